/*
 * TLB shootdowns: vCPU 0 computes a little, then interrupts every other vCPU and spins until all
 * have acknowledged; one such round is one item of work. The others compute. A preempted vCPU
 * delays the whole round, by design.
 */
#include "compute.h"
#include "draw.h"
#include "sync.h"
#include "workload.h"

enum shootdown { SHOOTDOWN_GAP, SHOOTDOWN_WORK, SHOOTDOWN_JITTER };

static void shoot(struct tandem_vm *vm, struct tandem_vcpu *me, u64 request)
{
    for (u32 target = 1; target < vm->vcpus; target++) {
        store(&vm->vcpu[target].request, request);
        platform_shootdown(vm, me, target);
    }
    for (u32 target = 1; target < vm->vcpus; target++) {
        while (load(&vm->vcpu[target].seen) != request) {
            if (stopping(vm))
                return;
            platform_pause();
            count(&me->spins);
        }
    }
}

void run_shootdown(struct tandem_vm *vm, struct tandem_vcpu *me)
{
    const u64 jitter = vm->params[SHOOTDOWN_JITTER];
    const u64 size = vm->params[me->index == 0 ? SHOOTDOWN_GAP : SHOOTDOWN_WORK];
    for (u64 request = 1; !stopping(vm); request++) {
        compute(vm, me, draw_size(me, size, jitter));
        if (me->index == 0)
            shoot(vm, me, request);
        if (stopping(vm))
            return;
        count(&me->work);
    }
}
