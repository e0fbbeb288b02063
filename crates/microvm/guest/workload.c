/* Selects the VM's workload and initializes a vCPU for it. */
#include "workload.h"

#include "draw.h"

void tandem_run(struct tandem_vm *vm, u32 index)
{
    struct tandem_vcpu *me = &vm->vcpu[index];
    me->index = index;
    draw_seed(me, vm->seed, index);
    me->chain = vm->seed;
    switch ((enum tandem_workload)vm->workload) {
    case TANDEM_BURN:
        return run_burn(vm, me);
    case TANDEM_SPINLOCK:
        return run_spinlock(vm, me);
    case TANDEM_MUTEX:
        return run_mutex(vm, me);
    case TANDEM_BARRIER:
        return run_barrier(vm, me);
    case TANDEM_FORKJOIN:
        return run_forkjoin(vm, me);
    case TANDEM_PIPELINE:
        return run_pipeline(vm, me);
    case TANDEM_SHOOTDOWN:
        return run_shootdown(vm, me);
    case TANDEM_BURSTY:
        return run_bursty(vm, me);
    case TANDEM_SERVER:
        return run_server(vm, me);
    }
}
