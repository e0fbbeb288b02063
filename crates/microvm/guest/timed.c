/*
 * Workloads that a timer wakes: bursty with a duty cycle, server with busy phases in between. Both
 * count completion times of bursts and requests from their scheduled starts (completion.h).
 *
 * The schedule follows the clock, not the end of the previous burst. The demand is therefore
 * independent of the service that the vCPU gets, and completion times include delayed starts.
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
 * A vCPU that falls behind continues without sleeping. More than `backlog` periods behind, it drops
 * and counts the oldest bursts.
 */
void run_bursty(struct tandem_vm *vm, struct tandem_vcpu *me)
{
    const u64 period = vm->params[BURSTY_PERIOD];
    const u64 backlog = vm->params[BURSTY_BACKLOG];
    /* vCPUs start at random times in the period, so that they do not wake simultaneously. */
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
 * Alternates between busy and serving phases of fixed duration. A busy vCPU computes continuously, in
 * untimed pieces of the size of a request. A serving vCPU sleeps until a request is due and computes.
 * Late requests complete before the next busy phase; a vCPU that is late by a whole round skips that
 * round and counts its requests as dropped.
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
