/*
 * Platform interface of the workloads. Implemented twice: platform_kvm.c for a vCPU (halt, APIC),
 * platform_threads.c for a plain thread (futex, signals).
 *
 * Sleeping follows one protocol, so that no wake-up is lost: clear `pending`, check the condition,
 * and only then call platform_halt, which does not sleep if `pending` was set since. A vCPU that
 * makes the condition true wakes the sleeper afterwards. Wake-ups may be spurious: check again.
 */
#ifndef TANDEM_PLATFORM_H
#define TANDEM_PLATFORM_H

#include "shared.h"

/* Sleeps until `pending` of this vCPU is set; may return earlier when the VM stops. */
void platform_halt(struct tandem_vm *vm, struct tandem_vcpu *me);

/* Sets `pending` of vCPU `target` and ends its sleep. Orders all earlier stores before it. */
void platform_wake(struct tandem_vm *vm, struct tandem_vcpu *me, u32 target);

/* Interrupts vCPU `target`, which copies `request` to `seen` in any state. */
void platform_shootdown(struct tandem_vm *vm, struct tandem_vcpu *me, u32 target);

/* Sets `pending` of this vCPU at TSC `deadline` or slightly later; replaces an earlier timer. */
void platform_arm_timer(struct tandem_vm *vm, struct tandem_vcpu *me, u64 deadline);

static inline u64 platform_now(void)
{
    u32 low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (u64)high << 32 | low;
}

static inline void platform_pause(void)
{
    __asm__ volatile("pause");
}

static inline int stopping(const struct tandem_vm *vm)
{
    return __atomic_load_n(&vm->stop, __ATOMIC_RELAXED) != 0;
}

/* Nanoseconds from now to TSC `deadline`, rounded up, at least 1 and at most `most`. */
static inline u64 platform_nanoseconds_until(const struct tandem_vm *vm, u64 deadline, u64 most)
{
    u64 now = platform_now();
    u64 cycles = deadline > now ? deadline - now : 0;
    /* 2^43 cycles are more than half an hour: above, the product below would not fit. */
    u64 bounded = cycles < (1ull << 43) ? cycles : (1ull << 43);
    u64 nanoseconds = bounded * 1000000 / vm->tsc_khz + 1;
    return nanoseconds < most ? nanoseconds : most;
}

#endif
