/*
 * Workloads in phases: barrier (every vCPU computes, then waits for all) and forkjoin (one vCPU
 * computes the serial part while the others wait, then all compute the parallel part).
 *
 * The invariant, checked in every phase against the next vCPU (modulo their number): work counts
 * differ by at most one.
 */
#include "compute.h"
#include "draw.h"
#include "sync.h"
#include "workload.h"

static void expect_same_phase(struct tandem_vm *vm, struct tandem_vcpu *me)
{
    u32 next = me->index + 1 < vm->vcpus ? me->index + 1 : 0;
    u64 mine = me->work;
    u64 theirs = load(&vm->vcpu[next].work);
    expect(me, theirs + 1 >= mine && theirs <= mine + 1);
}

enum barrier { BARRIER_WORK, BARRIER_WAIT, BARRIER_SPIN, BARRIER_JITTER };

void run_barrier(struct tandem_vm *vm, struct tandem_vcpu *me)
{
    const u64 spin = vm->params[BARRIER_WAIT] == 0 ? SPIN_FOR_EVER : vm->params[BARRIER_SPIN];
    while (!stopping(vm)) {
        compute(vm, me, draw_size(me, vm->params[BARRIER_WORK], vm->params[BARRIER_JITTER]));
        barrier_wait(vm, me, spin);
        if (stopping(vm))
            return;
        expect_same_phase(vm, me);
        count(&me->work);
    }
}

enum forkjoin { FORKJOIN_SERIAL, FORKJOIN_PARALLEL, FORKJOIN_ROTATE, FORKJOIN_SPIN, FORKJOIN_JITTER };

void run_forkjoin(struct tandem_vm *vm, struct tandem_vcpu *me)
{
    struct tandem_phases *phases = &vm->phases;
    const u64 spin = vm->params[FORKJOIN_SPIN];
    const u64 jitter = vm->params[FORKJOIN_JITTER];
    for (u64 round = 0; !stopping(vm); round++) {
        u64 leader = vm->params[FORKJOIN_ROTATE] ? round % vm->vcpus : 0;
        if (me->index == leader) {
            expect(me, load(&phases->forked) == round);
            compute(vm, me, draw_size(me, vm->params[FORKJOIN_SERIAL], jitter));
            store(&phases->forked, round + 1);
            wake_all(vm, me, &phases->fork_waiters);
        } else {
            WAIT_UNTIL(vm, me, &phases->fork_waiters, spin, load(&phases->forked) > round);
        }
        compute(vm, me, draw_size(me, vm->params[FORKJOIN_PARALLEL], jitter));
        barrier_wait(vm, me, spin);
        if (stopping(vm))
            return;
        expect_same_phase(vm, me);
        count(&me->work);
    }
}
