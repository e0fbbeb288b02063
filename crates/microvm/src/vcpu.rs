//! A running vCPU of the KVM backend: the loop around KVM_RUN.
//!
//! The kernel handles all normal operations of the guest; KVM_RUN returns only for a signal or a failure.
//! The loop therefore never waits in user space.

use kvm_ioctls::{VcpuExit, VcpuFd};
use thiserror::Error;
use vm_memory::{Bytes, GuestAddress};

use crate::shared::SharedArea;
use crate::signals::KickTarget;

/// `TANDEM_FAULT_PORT` of `guest/shared.h`.
const FAULT_PORT: u16 = 0xf4;

/// Exceptions that push an error code (Intel SDM volume 3A, table 6-1).
const WITH_ERROR_CODE: [u64; 8] = [8, 10, 11, 12, 13, 14, 17, 21];

/// Failure of a vCPU: a bug of the guest, or a missing feature of the host.
#[derive(Clone, Debug, Error)]
pub enum VcpuError {
    /// The guest raised an exception.
    #[error(
        "vCPU {index}: exception {vector} in the guest at {rip:#x} (address {address:#x}); \
         the host's KVM may not know an instruction that the guest uses"
    )]
    Exception {
        /// The vCPU.
        index: u32,
        /// The exception.
        vector: u64,
        /// Instruction pointer.
        rip: u64,
        /// CR2, the address of a page fault.
        address: u64,
    },
    /// KVM_RUN failed.
    #[error("vCPU {index}: KVM_RUN failed: {cause}")]
    Run {
        /// The vCPU.
        index: u32,
        /// Error of the kernel.
        cause: kvm_ioctls::Error,
    },
    /// KVM cannot continue the guest.
    #[error("vCPU {index}: KVM cannot go on: {exit} at {rip:#x}")]
    Exit {
        /// The vCPU.
        index: u32,
        /// The reason for the exit.
        exit: String,
        /// Instruction pointer of the guest.
        rip: u64,
    },
}

/// Runs vCPU `index` on this thread until the VM stops.
pub(crate) fn run(mut vcpu: VcpuFd, index: u32, area: &SharedArea) -> Result<(), VcpuError> {
    // SAFETY: the mapping belongs to `vcpu`, which is dropped after the target: locals are dropped in
    // reverse order of their declaration, and parameters last.
    let _target = unsafe { KickTarget::register(vcpu.get_kvm_run()) };
    while !area.stopping() {
        let exit = match vcpu.run() {
            Ok(VcpuExit::Intr) => None,
            Ok(VcpuExit::IoOut(FAULT_PORT, _)) => return Err(exception(&vcpu, index, area)),
            Ok(other) => Some(format!("{other:?}")),
            Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => None,
            Err(cause) => return Err(VcpuError::Run { index, cause }),
        };
        if let Some(exit) = exit {
            let rip = vcpu.get_regs().map(|regs| regs.rip).unwrap_or_default();
            return Err(VcpuError::Exit { index, exit, rip });
        }
        // Before the check of `stopping`: a kick in between sets it again.
        vcpu.set_kvm_immediate_exit(0);
    }
    Ok(())
}

/// Reads the exception from the fault handler's stack: the vector, an optional error code, then RIP.
fn exception(vcpu: &VcpuFd, index: u32, area: &SharedArea) -> VcpuError {
    let stack = vcpu.get_regs().map(|regs| regs.rsp).unwrap_or_default();
    let word = |place: u64| -> u64 {
        area.memory().read_obj(GuestAddress(stack + place * 8)).unwrap_or_default()
    };
    let vector = word(0);
    VcpuError::Exception {
        index,
        vector,
        rip: word(if WITH_ERROR_CODE.contains(&vector) { 2 } else { 1 }),
        address: vcpu.get_sregs().map(|sregs| sregs.cr2).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Ring;
    use crate::{kvm, memory};

    /// Runs a vCPU from `code`, placed in the stack area of the guest.
    fn run_code(code: &[u8]) -> Option<VcpuError> {
        const CODE: u64 = 0x6_0000;
        let area = memory::for_kvm(1).expect("memory for a guest");
        area.memory().write_slice(code, GuestAddress(CODE)).expect("the code fits");
        let mut machine = match kvm::create(&area, 1, Ring::User) {
            Ok(machine) => machine,
            Err(error) => {
                println!("skipped: {error}");
                return None;
            }
        };
        let vcpu = machine.vcpus.pop().expect("one was asked for");
        let mut regs = vcpu.get_regs().expect("registers");
        regs.rip = CODE;
        vcpu.set_regs(&regs).expect("registers");
        Some(run(vcpu, 0, &area).expect_err("the guest cannot go on"))
    }

    #[test]
    fn guest_exception_is_reported_with_address() {
        // NOP; UD2: vector 6, no error code.
        if let Some(error) = run_code(&[0x90, 0x0f, 0x0b]) {
            let VcpuError::Exception { vector, rip, .. } = error else {
                panic!("{error}");
            };
            assert_eq!((vector, rip), (6, 0x6_0001));
            assert!(error.to_string().contains("exception 6 in the guest at 0x60001"), "{error}");
        }
        // NOP; MOV EAX, [0x40000000], which is not mapped: vector 14, with an error code.
        let load = [0x90, 0x8b, 0x04, 0x25, 0x00, 0x00, 0x00, 0x40];
        if let Some(error) = run_code(&load) {
            let VcpuError::Exception { vector, rip, address, .. } = error else {
                panic!("{error}");
            };
            assert_eq!((vector, rip, address), (14, 0x6_0001, 0x4000_0000));
        }
    }
}
