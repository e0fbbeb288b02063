/*
 * Workloads that compute alone: burn without a pause, bursty with a duty cycle.
 */
#include "compute.h"
#include "draw.h"
#include "sync.h"
#include "workload.h"

enum burn { BURN_WORK, BURN_JITTER };

void run_burn(struct tandem_vm *vm, struct tandem_vcpu *me)
{
    while (!stopping(vm)) {
        compute(vm, me, draw_size(me, vm->params[BURN_WORK], vm->params[BURN_JITTER]));
        if (stopping(vm))
            return;
        count(&me->work);
    }
}

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
 * The periods stand on the clock, not on when the last burst ended: the demand is work / period
 * whatever service the vCPU gets. A vCPU that falls behind goes on without sleeping; more than
 * `backlog` periods behind, it gives the oldest bursts up and counts them as dropped.
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
        next += period;
        u64 now = platform_now();
        u64 behind = now > next ? (now - next) / period : 0;
        if (behind > backlog) {
            next += (behind - backlog) * period;
            store(&me->dropped, me->dropped + (behind - backlog));
        }
    }
}
