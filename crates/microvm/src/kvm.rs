//! Set-up of the KVM backend, from `/dev/kvm` to vCPUs that are ready to run.
//!
//! The local APICs are in the kernel.
//! The guest does not use the legacy interrupt controllers, which are absent if KVM supports it (split irqchip) and idle otherwise.
//! Interface: Documentation/virt/kvm/api.rst of Linux.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use kvm_bindings::{
    CpuId, KVM_CAP_SPLIT_IRQCHIP, KVM_MAX_CPUID_ENTRIES, kvm_enable_cap,
    kvm_userspace_memory_region,
};
use kvm_ioctls::{Cap, Error as Errno, Kvm, VcpuFd, VmFd};
use thiserror::Error;
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};

use crate::cpu_state;
use crate::ring::Ring;
use crate::shared::SharedArea;

/// The device of KVM.
const DEVICE: &CStr = c"/dev/kvm";

/// The only version of the interface in any released kernel.
const API_VERSION: i32 = 12;

/// Three pages below 4 GiB that Intel processors may need, far from the guest's memory.
const INTEL_TSS: usize = 0xfffb_d000;

/// Reason why a KVM virtual machine could not be created.
#[derive(Debug, Error)]
pub enum KvmError {
    /// The device does not exist.
    #[error(
        "this host has no {path} (no KVM module loaded, or no virtualization in the processor or \
         its firmware); --backend threads runs the same workload without KVM"
    )]
    Missing {
        /// The device.
        path: String,
    },
    /// The device may not be opened.
    #[error(
        "no permission to open {path}; run as root or as a member of the group that owns it \
         (usually kvm), or use --backend threads, which needs no KVM"
    )]
    Permission {
        /// The device.
        path: String,
    },
    /// The device cannot be opened, or is not KVM's.
    #[error("cannot use {path}: {cause}; --backend threads runs the same workload without KVM")]
    Unusable {
        /// The device.
        path: String,
        /// Error of the kernel.
        cause: String,
    },
    /// The number of vCPUs exceeds the limit of the host's KVM.
    #[error("this host's KVM gives a VM at most {most} vCPUs, and {asked} were asked for")]
    TooManyVcpus {
        /// Requested number.
        asked: u32,
        /// Limit of KVM.
        most: usize,
    },
    /// A step of the set-up failed.
    #[error("{step} failed: {cause}")]
    Step {
        /// The request.
        step: String,
        /// Error of the kernel.
        cause: Errno,
    },
}

/// A virtual machine whose vCPUs have not started.
pub(crate) struct KvmVm {
    /// Its vCPUs, in order.
    pub(crate) vcpus: Vec<VcpuFd>,
    /// The machine; the kernel destroys it when this and all vCPUs are closed.
    pub(crate) vm: VmFd,
    /// KVM's statistics of each vCPU, if available.
    /// They are kept open, as in QEMU: only the VMM can open these files, and others can read them only while they are open here.
    pub(crate) stats: Vec<OwnedFd>,
}

/// Checks that this process can use KVM; the error is the reason if not.
pub fn available() -> Result<(), KvmError> {
    open(DEVICE).map(drop)
}

/// Creates a machine of `vcpus` vCPUs that start at `ring`, with the memory of `area`, which must outlive it.
pub(crate) fn create(area: &SharedArea, vcpus: u32, ring: Ring) -> Result<KvmVm, KvmError> {
    let kvm = open(DEVICE)?;
    let most = kvm.get_max_vcpus();
    if vcpus as usize > most {
        return Err(KvmError::TooManyVcpus { asked: vcpus, most });
    }
    let vm = kvm.create_vm().map_err(step("KVM_CREATE_VM"))?;
    add_memory(&vm, area)?;
    if vm.check_extension(Cap::SetTssAddr) {
        vm.set_tss_address(INTEL_TSS).map_err(step("KVM_SET_TSS_ADDR"))?;
    }
    add_interrupt_controllers(&vm)?;
    let supported =
        kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).map_err(step("KVM_GET_SUPPORTED_CPUID"))?;
    let vcpus = (0..vcpus)
        .map(|index| create_vcpu(&vm, index, &supported, ring))
        .collect::<Result<Vec<_>, _>>()?;
    let stats = vcpus.iter().filter_map(open_stats).collect();
    Ok(KvmVm { vcpus, vm, stats })
}

/// KVM_GET_STATS_FD (Linux 5.14), include/uapi/linux/kvm.h: `_IO(KVMIO, 0xce)`.
const KVM_GET_STATS_FD: libc::c_ulong = 0xaece;

/// Opens KVM's statistics of a vCPU; `None` on kernels without them.
fn open_stats(vcpu: &VcpuFd) -> Option<OwnedFd> {
    // SAFETY: the request takes no argument and accesses no memory; the descriptor is open.
    let fd = unsafe { libc::ioctl(vcpu.as_raw_fd(), KVM_GET_STATS_FD as _, 0) };
    // SAFETY: a new descriptor without another owner.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn open(path: &CStr) -> Result<Kvm, KvmError> {
    let name = || path.to_string_lossy().into_owned();
    let kvm = Kvm::new_with_path(path).map_err(|e| open_error(name(), e))?;
    match kvm.get_api_version() {
        API_VERSION => Ok(kvm),
        other => Err(KvmError::Unusable {
            path: name(),
            cause: format!("its interface is version {other}, not {API_VERSION}"),
        }),
    }
}

fn open_error(path: String, error: Errno) -> KvmError {
    match error.errno() {
        libc::ENOENT | libc::ENODEV | libc::ENXIO => KvmError::Missing { path },
        libc::EACCES | libc::EPERM => KvmError::Permission { path },
        _ => KvmError::Unusable { path, cause: error.to_string() },
    }
}

fn step(name: &'static str) -> impl Fn(Errno) -> KvmError {
    move |cause| KvmError::Step { step: name.to_owned(), cause }
}

fn add_memory(vm: &VmFd, area: &SharedArea) -> Result<(), KvmError> {
    for (slot, region) in area.memory().iter().enumerate() {
        let region = kvm_userspace_memory_region {
            slot: slot as u32,
            flags: 0,
            guest_phys_addr: region.start_addr().0,
            memory_size: region.len(),
            userspace_addr: region.as_ptr() as u64,
        };
        // SAFETY: the region is mapped for the lifetime of the area, which outlives the machine;
        // both sides access shared data in it as atomics.
        unsafe { vm.set_user_memory_region(region) }.map_err(step("KVM_SET_USER_MEMORY_REGION"))?;
    }
    Ok(())
}

fn add_interrupt_controllers(vm: &VmFd) -> Result<(), KvmError> {
    const IOAPIC_PINS: u64 = 24;
    let split = kvm_enable_cap {
        cap: KVM_CAP_SPLIT_IRQCHIP,
        args: [IOAPIC_PINS, 0, 0, 0],
        ..Default::default()
    };
    if vm.enable_cap(&split).is_ok() {
        return Ok(());
    }
    vm.create_irq_chip().map_err(step("KVM_CREATE_IRQCHIP"))
}

fn create_vcpu(vm: &VmFd, index: u32, supported: &CpuId, ring: Ring) -> Result<VcpuFd, KvmError> {
    let failed =
        |step: &str, cause| KvmError::Step { step: format!("{step} for vCPU {index}"), cause };
    let vcpu = vm.create_vcpu(u64::from(index)).map_err(|e| failed("KVM_CREATE_VCPU", e))?;
    cpu_state::set(&vcpu, index, supported, ring).map_err(|(step, e)| failed(step, e))?;
    Ok(vcpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_kvm_suggests_threads_backend() {
        let error = open(c"/dev/there-is-no-such-device").unwrap_err();
        assert!(matches!(error, KvmError::Missing { .. }), "{error}");
        assert!(error.to_string().contains("--backend threads"));
        let error = open(c"/dev/null").unwrap_err().to_string();
        assert!(error.contains("/dev/null") && error.contains("--backend threads"), "{error}");
    }

    #[test]
    fn missing_permission_suggests_group() {
        let error = open_error("/dev/kvm".into(), Errno::new(libc::EACCES)).to_string();
        assert!(error.contains("group") && error.contains("--backend threads"), "{error}");
    }
}
