/*
 * Everything of the guest that runs at CPL 0, kept to a few instructions because a hypervisor
 * without hardware help interprets them one by one (about a microsecond each).
 *
 * %gs points at this vCPU's struct tandem_vcpu; the VMM sets it and nothing changes it. The gates
 * come from CPL 3 by int, with interrupts off (interrupt gates). The stack is the TSS's rsp0. A
 * workload that itself runs at CPL 0 takes the same gates, on the stack it is on.
 */
#include "shared.h"

#define X2APIC_EOI 0x80b

        /* What the VMM needs to know of the image, at its start: see src/image.rs. */
        .section .header, "a"
        .quad 0x6d65646e61740001
        .quad guest_main
        .quad gate_halt
        .quad gate_wrmsr
        .quad on_wake
        .quad on_shootdown
        .quad on_spurious
        .quad on_fault

        .text

/*
 * Halts unless something is pending. Interrupts are off between the look and the HLT, and STI
 * holds them off for one instruction more: an interrupt cannot come in between and be slept over.
 * Where a hypervisor lets one in all the same, on_wake makes it good.
 */
gate_halt:
        cmpl    $0, %gs:TANDEM_VCPU_PENDING
        jne     after_halt
        incq    %gs:TANDEM_VCPU_HALTS
        sti
halt:
        hlt
after_halt:
        iretq

/* ecx = MSR, edx:eax = value. */
gate_wrmsr:
        wrmsr
        iretq

/*
 * An interrupt that was let in between STI and HLT would be slept over: it returns behind the HLT
 * instead. Seen with kvm_amd on a processor that QEMU emulates: there 3 of 60 runs of forkjoin for
 * 4 s stopped dead without this, and 0 of 60 with it.
 */
on_wake:
        movl    $1, %gs:TANDEM_VCPU_PENDING
        cmpq    $halt, (%rsp)
        jne     1f
        decq    %gs:TANDEM_VCPU_HALTS
        movq    $after_halt, (%rsp)
1:
        pushq   %rax
        pushq   %rcx
        pushq   %rdx
end_of_interrupt:
        movl    $X2APIC_EOI, %ecx
        xorl    %eax, %eax
        xorl    %edx, %edx
        wrmsr
        popq    %rdx
        popq    %rcx
        popq    %rax
        iretq

on_shootdown:
        pushq   %rax
        pushq   %rcx
        pushq   %rdx
        incq    %gs:TANDEM_VCPU_ACKS
        movq    %gs:TANDEM_VCPU_REQUEST, %rax
        movq    %rax, %gs:TANDEM_VCPU_SEEN
        jmp     end_of_interrupt

/* A spurious interrupt takes no end of interrupt. */
on_spurious:
        iretq

/*
 * Exceptions, none of which the guest can have: eight bytes of code for each of the 32, which push
 * the number; the VMM then finds it and the frame on the stack, reports them and stops the VM.
 */
        .balign 8
on_fault:
        .set    vector, 0
        .rept   32
        .balign 8
        pushq   $vector
        jmp     fault
        .set    vector, vector + 1
        .endr

fault:
        outb    %al, $TANDEM_FAULT_PORT
        hlt
        jmp     fault

        .section .note.GNU-stack, "", @progbits
