/*
 * Work of a known size: a chain of dependent multiplications and additions.
 *
 * The size is a number of instructions, not a duration, so that time off the pCPU never counts as
 * work. `steps` of struct tandem_vm is the number of steps that take 2^20 TSC cycles on this
 * machine without disturbance (src/calibrate.rs). The loop is in assembly, so that the compilers
 * of guest and host generate the same code.
 */
#ifndef TANDEM_COMPUTE_H
#define TANDEM_COMPUTE_H

#include "platform.h"

/* Runs `steps` steps of the chain from `value` and returns the result. */
static inline u64 chain(u64 value, u64 steps)
{
    if (steps == 0)
        return value;
    __asm__ volatile(".p2align 4\n"
                     "1: imulq %[factor], %[value]\n"
                     "addq %[term], %[value]\n"
                     "subq $1, %[steps]\n"
                     "jnz 1b\n"
                     : [value] "+&r"(value), [steps] "+&r"(steps)
                     : [factor] "r"(6364136223846793005ull), [term] "r"(1442695040888963407ull)
                     : "cc");
    return value;
}

/* Computes `cycles` TSC cycles' worth of work; returns early, between slices, when the VM stops. */
static inline void compute(const struct tandem_vm *vm, struct tandem_vcpu *me, u64 cycles)
{
    const u64 slice = 1 << 16;
    u64 steps = (u64)(((unsigned __int128)cycles * vm->steps) >> 20);
    while (steps > slice) {
        if (stopping(vm))
            return;
        me->chain = chain(me->chain, slice);
        __atomic_store_n(&me->steps, me->steps + slice, __ATOMIC_RELEASE);
        steps -= slice;
    }
    me->chain = chain(me->chain, steps);
    __atomic_store_n(&me->steps, me->steps + steps, __ATOMIC_RELEASE);
}

#endif
