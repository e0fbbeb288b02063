/*
 * The workload that computes continuously. Those that sleep in between are in timed.c.
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
