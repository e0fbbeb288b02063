/*
 * Workloads around one lock: each vCPU computes outside, then inside. The lock is a ticket lock
 * that spins for ever (spinlock) or a mutex that spins briefly and then sleeps (mutex).
 */
#include "compute.h"
#include "draw.h"
#include "sync.h"
#include "workload.h"

enum spinlock { SPINLOCK_OUTSIDE, SPINLOCK_INSIDE, SPINLOCK_JITTER };

void run_spinlock(struct tandem_vm *vm, struct tandem_vcpu *me)
{
    const u64 jitter = vm->params[SPINLOCK_JITTER];
    while (!stopping(vm)) {
        compute(vm, me, draw_size(me, vm->params[SPINLOCK_OUTSIDE], jitter));
        if (!ticket_lock(vm, me))
            return;
        compute(vm, me, draw_size(me, vm->params[SPINLOCK_INSIDE], jitter));
        ticket_unlock(vm, me);
        count(&me->work);
    }
}

enum mutex { MUTEX_OUTSIDE, MUTEX_INSIDE, MUTEX_SPIN, MUTEX_JITTER };

void run_mutex(struct tandem_vm *vm, struct tandem_vcpu *me)
{
    const u64 jitter = vm->params[MUTEX_JITTER];
    while (!stopping(vm)) {
        compute(vm, me, draw_size(me, vm->params[MUTEX_OUTSIDE], jitter));
        if (!mutex_lock(vm, me, vm->params[MUTEX_SPIN]))
            return;
        compute(vm, me, draw_size(me, vm->params[MUTEX_INSIDE], jitter));
        mutex_unlock(vm, me);
        count(&me->work);
    }
}
