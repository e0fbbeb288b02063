//! Initial state of a vCPU: 64-bit mode at the workload's ring, on its own stack, with the local APIC on.
//!
//! The VMM sets the state that a boot loader and a kernel would have left, as the guest has no boot code.
//! Formats: Intel SDM volume 3A, chapters 2, 3 and 11.

use kvm_bindings::{
    CpuId, KVM_MP_STATE_RUNNABLE, kvm_cpuid_entry2, kvm_dtable, kvm_lapic_state, kvm_mp_state,
    kvm_regs, kvm_segment, kvm_sregs,
};
use kvm_ioctls::VcpuFd;

use crate::image::Entry;
use crate::memory::SHARED_START;
use crate::ring::Ring;
use crate::{image, memory};

const CR0_PROTECTED_PAGING: u64 = 1 << 31 | 1 << 16 | 1 << 5 | 1 << 4 | 1 << 1 | 1;
const CR4_PAE: u64 = 1 << 5;
const EFER_LONG_MODE: u64 = 1 << 10 | 1 << 8;
const APIC_ON_X2APIC: u64 = 1 << 11 | 1 << 10;
const RFLAGS_INTERRUPTS: u64 = 1 << 9 | 1 << 1;

/// Offsets of local APIC registers.
const APIC_SPURIOUS: usize = 0xf0;
const APIC_TIMER: usize = 0x320;
const APIC_TIMER_DIVIDER: usize = 0x3e0;

const APIC_SOFTWARE_ENABLE: u32 = 1 << 8;
const DIVIDE_BY_16: u32 = 0b0011;

/// Sets the state of vCPU `index`; an error contains the failed step.
pub(crate) fn set(
    vcpu: &VcpuFd,
    index: u32,
    supported: &CpuId,
    ring: Ring,
) -> Result<(), (&'static str, kvm_ioctls::Error)> {
    vcpu.set_cpuid2(&cpuid(supported, index)).map_err(|e| ("KVM_SET_CPUID2", e))?;
    let mut sregs = vcpu.get_sregs().map_err(|e| ("KVM_GET_SREGS", e))?;
    system_registers(&mut sregs, index, ring);
    vcpu.set_sregs(&sregs).map_err(|e| ("KVM_SET_SREGS", e))?;
    vcpu.set_regs(&registers(index)).map_err(|e| ("KVM_SET_REGS", e))?;
    let mut lapic = vcpu.get_lapic().map_err(|e| ("KVM_GET_LAPIC", e))?;
    local_apic(&mut lapic);
    vcpu.set_lapic(&lapic).map_err(|e| ("KVM_SET_LAPIC", e))?;
    // Only vCPU 0 starts runnable; the others would wait for a start-up IPI.
    let runnable = kvm_mp_state { mp_state: KVM_MP_STATE_RUNNABLE };
    vcpu.set_mp_state(runnable).map_err(|e| ("KVM_SET_MP_STATE", e))
}

/// Returns KVM's supported CPUID with this vCPU's APIC id and the x2APIC that the guest uses.
fn cpuid(supported: &CpuId, index: u32) -> CpuId {
    let mut cpuid = supported.clone();
    for entry in cpuid.as_mut_slice() {
        identify(entry, index);
    }
    cpuid
}

fn identify(entry: &mut kvm_cpuid_entry2, index: u32) {
    match entry.function {
        1 => {
            entry.ebx = entry.ebx & 0x00ff_ffff | index << 24;
            entry.ecx |= 1 << 21;
        }
        0xb | 0x1f => entry.edx = index,
        _ => {}
    }
}

fn system_registers(sregs: &mut kvm_sregs, index: u32, ring: Ring) {
    let tables = memory::tables(index);
    let (code, data) = match ring {
        Ring::Kernel => (memory::KERNEL_CODE, memory::KERNEL_DATA),
        Ring::User => (memory::USER_CODE, memory::USER_DATA),
    };
    let data = segment(data, 0b0011, ring.into());
    sregs.cs = kvm_segment { l: 1, db: 0, ..segment(code, 0b1011, ring.into()) };
    sregs.ss = data;
    sregs.ds = data;
    sregs.es = data;
    sregs.fs = data;
    sregs.gs = kvm_segment { base: tables.record, ..data };
    sregs.tr = kvm_segment {
        base: tables.tss.0,
        limit: tables.tss.1,
        selector: 0,
        type_: 0b1011,
        present: 1,
        ..Default::default()
    };
    sregs.ldt = kvm_segment { unusable: 1, ..Default::default() };
    sregs.gdt = table(tables.gdt);
    sregs.idt = table(tables.idt);
    sregs.cr0 = CR0_PROTECTED_PAGING;
    sregs.cr3 = tables.page_table;
    sregs.cr4 = CR4_PAE;
    sregs.efer = EFER_LONG_MODE;
    sregs.apic_base |= APIC_ON_X2APIC;
}

/// Returns a flat segment of all addresses.
fn segment(selector: u16, type_: u8, privilege: u8) -> kvm_segment {
    kvm_segment {
        base: 0,
        limit: 0xffff_ffff,
        selector,
        type_,
        present: 1,
        dpl: privilege,
        db: 1,
        s: 1,
        g: 1,
        ..Default::default()
    }
}

fn table((base, limit): (u64, u16)) -> kvm_dtable {
    kvm_dtable { base, limit, ..Default::default() }
}

fn registers(index: u32) -> kvm_regs {
    kvm_regs {
        rip: image::address(Entry::Main),
        rsp: memory::tables(index).user_stack,
        rdi: SHARED_START,
        rsi: u64::from(index),
        rflags: RFLAGS_INTERRUPTS,
        ..Default::default()
    }
}

/// Enables the local APIC, with the one-shot timer on the wake-up vector (`platform_arm_timer` in the guest).
fn local_apic(lapic: &mut kvm_lapic_state) {
    let mut put = |offset: usize, value: u32| {
        for (place, byte) in value.to_le_bytes().into_iter().enumerate() {
            lapic.regs[offset + place] = byte as _;
        }
    };
    put(APIC_SPURIOUS, APIC_SOFTWARE_ENABLE | u32::from(memory::VECTOR_SPURIOUS));
    put(APIC_TIMER, u32::from(memory::VECTOR_WAKE));
    put(APIC_TIMER_DIVIDER, DIVIDE_BY_16);
}
