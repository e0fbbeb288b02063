/*
 * Workloads that a timer wakes: bursty with a duty cycle, server with busy times in between. Both count how long each burst or
 * request took from when it was due until it was done (completion.h).
 *
 * What is due stands on the clock, not on when the last one ended: the demand is the same whatever service the vCPU gets, and
 * a time for which the vCPU could not even begin is not left out of what is measured.
 */
#include "completion.h"
#include "compute.h"
#include "draw.h"
#include "sync.h"
#include "workload.h"

enum bursty { BURSTY_WORK, BURSTY_PERIOD, BURSTY_BACKLOG, BURSTY_JITTER };

static void sleep_until(struct tandem_vm *vm, struct tandem_vcpu *me, u64 deadline)
{
    while (!stopping(vm)) {
        __atomic_store_n(&me->pending, 0, __ATOMIC_SEQ_CST);
        if (platform_now() >= deadline)
            return;
        platform_arm_timer(vm, me, deadline);
        platform_halt(vm, me);
    }
}

/*
 * A vCPU that falls behind goes on without sleeping; more than `backlog` periods behind, it gives
 * the oldest bursts up and counts them as dropped.
 */
void run_bursty(struct tandem_vm *vm, struct tandem_vcpu *me)
{
    const u64 period = vm->params[BURSTY_PERIOD];
    const u64 backlog = vm->params[BURSTY_BACKLOG];
    /* vCPUs start anywhere in the period, or they would all wake in the same instant. */
    u64 next = platform_now() + draw_below(me, period);
    while (!stopping(vm)) {
        sleep_until(vm, me, next);
        compute(vm, me, draw_size(me, vm->params[BURSTY_WORK], vm->params[BURSTY_JITTER]));
        if (stopping(vm))
            return;
        count(&me->work);
        count_completion(me, next);
        next += period;
        u64 now = platform_now();
        u64 behind = now > next ? (now - next) / period : 0;
        if (behind > backlog) {
            next += (behind - backlog) * period;
            store(&me->dropped, me->dropped + (behind - backlog));
        }
    }
}

enum server { SERVER_BUSY, SERVER_SERVE, SERVER_EVERY, SERVER_REQUEST, SERVER_JITTER };

static u64 microseconds(const struct tandem_vm *vm, enum server parameter)
{
    u64 cycles = vm->params[parameter] * vm->tsc_khz / 1000; /* an hour at 100 GHz: this fits */
    return cycles > 0 ? cycles : 1;
}

/*
 * Busy, then serving, again and again, each for its time on the clock. Busy is to compute without a
 * pause, in pieces of the size of a request, which are not timed. Serving is to sleep until a
 * request is due, compute, and sleep again. Requests that are late are done before the vCPU is busy
 * again; a vCPU that is late by a whole round leaves that round out and counts its requests as dropped.
 */
void run_server(struct tandem_vm *vm, struct tandem_vcpu *me)
{
    const u64 busy = microseconds(vm, SERVER_BUSY);
    const u64 serve = microseconds(vm, SERVER_SERVE);
    const u64 every = microseconds(vm, SERVER_EVERY);
    const u64 request = microseconds(vm, SERVER_REQUEST);
    const u64 requests = serve / every;
    u64 round = platform_now();
    while (!stopping(vm)) {
        const u64 open = round + busy;
        while (platform_now() < open) {
            compute(vm, me, request);
            if (stopping(vm))
                return;
            count(&me->work);
        }
        for (u64 i = 0; i < requests; i++) {
            u64 due = open + i * every + draw_below(me, every * vm->params[SERVER_JITTER] / 100 + 1);
            sleep_until(vm, me, due);
            compute(vm, me, request);
            if (stopping(vm))
                return;
            count(&me->work);
            count_completion(me, due);
        }
        round = open + serve;
        u64 now = platform_now();
        u64 missed = now > round ? (now - round) / (busy + serve) : 0;
        round += missed * (busy + serve);
        store(&me->dropped, me->dropped + missed * requests);
    }
}
