/*
 * The guest's code at CPL 0, minimal because a hypervisor without hardware support interprets its
 * instructions (about a microsecond each).
 *
 * %gs points at this vCPU's struct tandem_vcpu; the VMM sets it once. CPL 3 calls the gates with
 * int, with interrupts off (interrupt gates). The stack is the TSS's rsp0. A workload at CPL 0 uses
 * the same gates on its own stack.
 */
#include "shared.h"

#define X2APIC_EOI 0x80b

        /* Header for the VMM at the start of the image: see src/image.rs. */
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
 * Halts unless an interrupt is pending. Interrupts are off between the check and the HLT, and STI
 * delays them by one instruction, so no interrupt can arrive in between and be missed. If a
 * hypervisor allows one anyway, on_wake corrects it.
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
 * An interrupt between STI and HLT would be missed, so it returns behind the HLT instead. Observed
 * with kvm_amd on a processor that QEMU emulates: without this, 3 of 60 runs of forkjoin for 4 s
 * hung, and 0 of 60 with it.
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

/* A spurious interrupt needs no EOI. */
on_spurious:
        iretq

/*
 * Handlers of exceptions, which are all unexpected: eight bytes of code for each of the 32, which
 * push its number. The VMM reads number and frame from the stack, reports them and stops the VM.
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
