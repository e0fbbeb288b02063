//! What this process may do, and what this kernel has.

use std::ffi::CString;
use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::ptr::NonNull;

use super::BpfError;
use super::events::Place;

/// Where the kernel describes itself.
const BTF: &str = "/sys/kernel/btf";
/// Modules that have events of KVM. Where KVM is built in, the kernel itself has them.
const MODULES: [&str; 4] = ["kvm", "kvm_intel", "kvm_amd", "kvm_pvm"];
/// The inode of the first PID namespace: include/uapi/linux/nsfs.h
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";
/// Bits of capability(7).
const SYS_ADMIN: u32 = 21;
const NEEDED: [(u32, &str); 3] = [(39, "CAP_BPF"), (38, "CAP_PERFMON"), (12, "CAP_NET_ADMIN")];

/// Whether a BPF program would be of any use: errors that the kernel gives for these reasons name none of them.
pub fn check_permissions() -> Result<(), BpfError> {
    let path = PathBuf::from("/proc/self/ns/pid");
    if let Ok(namespace) = fs::read_link(&path)
        && namespace != Path::new(FIRST_PID_NAMESPACE)
    {
        return Err(BpfError::PidNamespace { path: namespace });
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let missing = missing_capabilities(&status);
    if !missing.is_empty() {
        return Err(BpfError::NotPermitted {
            missing: missing.join(", "),
        });
    }
    let path = PathBuf::from("/sys/kernel/security/lockdown");
    if fs::read_to_string(&path).is_ok_and(|text| text.contains("[confidentiality]")) {
        return Err(BpfError::Lockdown { path });
    }
    Ok(())
}

/// What a process with this `/proc/self/status` lacks. None if the file does not tell: the kernel will.
fn missing_capabilities(status: &str) -> Vec<&'static str> {
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
        .unwrap_or(u64::MAX);
    if effective >> SYS_ADMIN & 1 == 1 {
        return Vec::new();
    }
    let lacks = |(bit, _): &&(u32, &str)| effective >> bit & 1 == 0;
    NEEDED.iter().filter(lacks).map(|(_, name)| *name).collect()
}

/// BTF of the kernel and of the modules of KVM.
pub struct KernelTypes {
    kernel: NonNull<libbpf_sys::btf>,
    modules: Vec<NonNull<libbpf_sys::btf>>,
    /// Whether KVM is there, built in or as a module.
    pub has_kvm: bool,
}

impl KernelTypes {
    /// Reads it.
    pub fn load() -> Result<KernelTypes, BpfError> {
        // SAFETY: takes nothing; what it gives is ours to free.
        let kernel = unsafe { libbpf_sys::btf__load_vmlinux_btf() };
        let Some(kernel) = NonNull::new(kernel) else {
            return Err(BpfError::NoBtf {
                path: Path::new(BTF).join("vmlinux"),
                source: std::io::Error::last_os_error().into(),
            });
        };
        let mut types = KernelTypes {
            kernel,
            modules: Vec::new(),
            has_kvm: false,
        };
        for module in MODULES {
            if !Path::new(BTF).join(module).exists() {
                continue;
            }
            let name = CString::new(module).expect("no zero byte in a constant");
            // SAFETY: the name ends with a zero byte, and the kernel's BTF lives as long as its modules' (`Drop`).
            let btf = unsafe { libbpf_sys::btf__load_module_btf(name.as_ptr(), kernel.as_ptr()) };
            types.modules.extend(NonNull::new(btf));
        }
        types.has_kvm = types.has(Place::Function("kvm_arch_vcpu_ioctl_run"));
        Ok(types)
    }

    /// Whether there is such a tracepoint or function. That it is described does not mean that it can be attached to.
    pub fn has(&self, place: Place) -> bool {
        let (name, kind) = match place {
            Place::Tracepoint(name) => (format!("btf_trace_{name}"), libbpf_sys::BTF_KIND_TYPEDEF),
            Place::Function(name) => (name.to_owned(), libbpf_sys::BTF_KIND_FUNC),
        };
        let name = CString::new(name).expect("names of events hold no zero byte");
        let all = self.modules.iter().chain([&self.kernel]);
        all.into_iter().any(|btf| {
            // SAFETY: the BTF lives, and the name ends with a zero byte.
            unsafe { libbpf_sys::btf__find_by_name_kind(btf.as_ptr(), name.as_ptr(), kind) > 0 }
        })
    }
}

impl KernelTypes {
    /// Whether groups can have quotas: the programs look at this field.
    pub fn has_quotas(&self) -> bool {
        // SAFETY: the BTF lives, and the name ends with a zero byte.
        unsafe {
            libbpf_sys::btf__find_by_name_kind(
                self.kernel.as_ptr(),
                c"cfs_bandwidth".as_ptr(),
                libbpf_sys::BTF_KIND_STRUCT,
            ) > 0
        }
    }
}

impl Drop for KernelTypes {
    fn drop(&mut self) {
        for btf in self.modules.drain(..).chain([self.kernel]) {
            // SAFETY: made by libbpf for us, and freed once; modules before the kernel that they build on.
            unsafe { libbpf_sys::btf__free(btf.as_ptr()) };
        }
    }
}

/// Whether programs may ask whether an interrupt is served: the kernel must tell where it counts that.
pub fn tells_interrupts() -> bool {
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    symbols.lines().any(|line| {
        let name = line.split(' ').nth(2).unwrap_or_default();
        name == "__preempt_count" || name == "pcpu_hot"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_that_are_missing_are_named() {
        let status = |bits: u64| format!("Name:\tx\nCapEff:\t{bits:016x}\nCapBnd:\t0\n");
        assert!(missing_capabilities(&status(1 << SYS_ADMIN)).is_empty());
        assert!(missing_capabilities("").is_empty());
        assert_eq!(
            missing_capabilities(&status(1 << 39)),
            ["CAP_PERFMON", "CAP_NET_ADMIN"]
        );
        assert_eq!(missing_capabilities(&status(0)).len(), 3);
    }
}
