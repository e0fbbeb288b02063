/*
 * The platform of a vCPU: halt and interrupts through the CPL 0 stubs of stubs.S, with the
 * in-kernel local APIC in x2APIC mode. Built into the guest image only.
 */
#include "platform.h"
#include "sync.h"
#include "workload.h"

#define X2APIC_ICR 0x830
#define X2APIC_TIMER_INITIAL_COUNT 0x838

static void write_msr(u32 msr, u32 low, u32 high)
{
    __asm__ volatile("int %0" : : "i"(TANDEM_GATE_WRMSR), "c"(msr), "a"(low), "d"(high) : "memory");
}

static void interrupt(struct tandem_vcpu *me, u32 target, u32 vector)
{
    /* An x2APIC register write may pass earlier stores (Intel SDM 3A, 11.12.3). */
    __asm__ volatile("mfence; lfence" : : : "memory");
    write_msr(X2APIC_ICR, vector, target);
    count(&me->ipis);
}

void platform_halt(struct tandem_vm *vm, struct tandem_vcpu *me)
{
    (void)vm;
    if (__atomic_load_n(&me->pending, __ATOMIC_ACQUIRE) == 0)
        __asm__ volatile("int %0" : : "i"(TANDEM_GATE_HALT) : "memory");
}

void platform_wake(struct tandem_vm *vm, struct tandem_vcpu *me, u32 target)
{
    (void)vm;
    interrupt(me, target, TANDEM_VECTOR_WAKE);
}

void platform_shootdown(struct tandem_vm *vm, struct tandem_vcpu *me, u32 target)
{
    (void)vm;
    interrupt(me, target, TANDEM_VECTOR_SHOOTDOWN);
}

/*
 * The one-shot APIC timer counts units of 16 ns (KVM's APIC bus runs at 1 GHz, and the VMM sets the
 * divider); its 32 bits last 68 s. A longer sleep wakes early and rearms it.
 */
void platform_arm_timer(struct tandem_vm *vm, struct tandem_vcpu *me, u64 deadline)
{
    (void)me;
    u64 nanoseconds = platform_nanoseconds_until(vm, deadline, 60ull * 1000 * 1000 * 1000);
    write_msr(X2APIC_TIMER_INITIAL_COUNT, (u32)(nanoseconds / 16 + 1), 0);
}

/* Entry point of every vCPU, at CPL 3 or, if configured, at CPL 0. */
void guest_main(struct tandem_vm *vm, u32 index)
{
    tandem_run(vm, index);
    for (;;) {
        __atomic_store_n(&vm->vcpu[index].pending, 0, __ATOMIC_SEQ_CST);
        platform_halt(vm, &vm->vcpu[index]);
    }
}
