//! Permissions of this process and capabilities of this kernel.

use std::ffi::{CStr, CString};
use std::fs;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use tandem_linux::thread::StartTime;
use tandem_model::PcpuSet;

use super::BpfError;
use super::events::Place;

/// The folder of the kernel's BTF.
const BTF: &str = "/sys/kernel/btf";
/// Modules with KVM events. If KVM is built in, the kernel's own BTF has them.
const MODULES: [&str; 4] = ["kvm", "kvm_intel", "kvm_amd", "kvm_pvm"];
/// The inode of the first PID namespace: include/uapi/linux/nsfs.h
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";
/// The inode of the first user namespace.
const FIRST_USER_NAMESPACE: &str = "user:[4026531837]";
/// Offsets of this process's clocks, by which thread start times in `/proc` are shifted (time namespaces).
const CLOCKS: &str = "/proc/self/timens_offsets";
/// KVM's maximum halt-polling time, in ns.
const MAX_POLL: &str = "/sys/module/kvm/parameters/halt_poll_ns";
/// The possible pCPUs.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
/// Bits of capability(7).
const SYS_ADMIN: u32 = 21;
const NEEDED: [(u32, &str); 3] = [(39, "CAP_BPF"), (38, "CAP_PERFMON"), (12, "CAP_NET_ADMIN")];

/// Checks the requirements of BPF programs that the kernel's own errors do not name.
pub fn check_permissions() -> Result<(), BpfError> {
    let link = |name: &str| fs::read_link(Path::new("/proc/self/ns").join(name)).ok();
    check_namespaces(link("user"), link("pid"))?;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let missing = missing_capabilities(&status);
    if !missing.is_empty() {
        return Err(BpfError::NotPermitted { missing: missing.join(", ") });
    }
    let path = PathBuf::from("/sys/kernel/security/lockdown");
    if fs::read_to_string(&path).is_ok_and(|text| text.contains("[confidentiality]")) {
        return Err(BpfError::Lockdown { path });
    }
    Ok(())
}

/// Checks that this process is in the first user and PID namespaces, if the links can be read.
/// Only there capabilities are valid for BPF, and thread numbers match those that programs see.
fn check_namespaces(user: Option<PathBuf>, pid: Option<PathBuf>) -> Result<(), BpfError> {
    let is_other = |link: &PathBuf, first: &str| link != Path::new(first);
    if let Some(path) = user.filter(|link| is_other(link, FIRST_USER_NAMESPACE)) {
        return Err(BpfError::UserNamespace { path });
    }
    match pid.filter(|link| is_other(link, FIRST_PID_NAMESPACE)) {
        Some(path) => Err(BpfError::PidNamespace { path }),
        None => Ok(()),
    }
}

/// Whether this process may attach to events of modules; `true` if its status is unreadable.
pub fn may_see_modules() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    sees_modules(&status)
}

fn sees_modules(status: &str) -> bool {
    effective(status) >> SYS_ADMIN & 1 == 1
}

fn effective(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
        .unwrap_or(u64::MAX)
}

/// Returns the capabilities that a process with this `/proc/self/status` lacks.
/// The result is empty if the file lacks the field; the kernel then reports the error.
fn missing_capabilities(status: &str) -> Vec<&'static str> {
    let effective = effective(status);
    if effective >> SYS_ADMIN & 1 == 1 {
        return Vec::new();
    }
    let lacks = |(bit, _): &&(u32, &str)| effective >> bit & 1 == 0;
    NEEDED.iter().filter(lacks).map(|(_, name)| *name).collect()
}

/// The BTF that describes an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Described {
    /// The kernel's.
    Kernel,
    /// A module's.
    Module,
}

/// BTF of the kernel and of KVM's modules.
pub struct KernelTypes {
    kernel: NonNull<libbpf_sys::btf>,
    modules: Vec<NonNull<libbpf_sys::btf>>,
    /// Whether KVM is present, built in or as a module.
    pub has_kvm: bool,
}

impl KernelTypes {
    /// Loads the BTF.
    pub fn load() -> Result<KernelTypes, BpfError> {
        // SAFETY: takes no argument; we own the returned BTF.
        let kernel = unsafe { libbpf_sys::btf__load_vmlinux_btf() };
        let Some(kernel) = NonNull::new(kernel) else {
            return Err(BpfError::NoBtf {
                path: Path::new(BTF).join("vmlinux"),
                source: std::io::Error::last_os_error().into(),
            });
        };
        let mut types = KernelTypes { kernel, modules: Vec::new(), has_kvm: false };
        for module in MODULES {
            if !Path::new(BTF).join(module).exists() {
                continue;
            }
            let name = CString::new(module).expect("no zero byte in a constant");
            // SAFETY: the name ends with a zero byte, and the kernel's BTF lives as long as its modules' (`Drop`).
            let btf = unsafe { libbpf_sys::btf__load_module_btf(name.as_ptr(), kernel.as_ptr()) };
            types.modules.extend(NonNull::new(btf));
        }
        types.has_kvm = types.place(Place::Function("kvm_arch_vcpu_ioctl_run")).is_some();
        Ok(types)
    }

    /// Returns the BTF that describes a tracepoint or function. The kernel may still refuse to attach to it.
    pub fn place(&self, place: Place) -> Option<Described> {
        let (name, kind) = match place {
            Place::Tracepoint(name) => (format!("btf_trace_{name}"), libbpf_sys::BTF_KIND_TYPEDEF),
            Place::Function(name) => (name.to_owned(), libbpf_sys::BTF_KIND_FUNC),
            Place::Program(_) => return Some(Described::Kernel),
        };
        let name = CString::new(name).expect("names of events hold no zero byte");
        if has(self.kernel, &name, kind) {
            return Some(Described::Kernel);
        }
        let mut modules = self.modules.iter();
        modules.any(|module| has(*module, &name, kind)).then_some(Described::Module)
    }

    /// Whether the kernel has CPU quotas, whose structure the programs read.
    pub fn has_quotas(&self) -> bool {
        has(self.kernel, c"cfs_bandwidth", libbpf_sys::BTF_KIND_STRUCT)
    }

    /// Whether programs can check that an interrupt is being served.
    /// The kernel must describe the variable that counts interrupts in BTF and list it in kallsyms.
    /// A variable that is described but not listed makes it refuse programs; one that is not described silently reads as none.
    pub fn exposes_interrupts(&self) -> bool {
        let described: Vec<&CStr> = [c"__preempt_count", c"pcpu_hot"]
            .into_iter()
            .filter(|name| has(self.kernel, name, libbpf_sys::BTF_KIND_VAR))
            .collect();
        if described.is_empty() {
            return false;
        }
        let symbols = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
        described.iter().all(|name| is_listed(&symbols, &name.to_string_lossy()))
    }
}

/// Whether BTF, including its base, has a type of that name and kind.
fn has(btf: NonNull<libbpf_sys::btf>, name: &CStr, kind: u32) -> bool {
    // SAFETY: `KernelTypes` frees the BTF only when dropped, and the name ends with a zero byte.
    unsafe { libbpf_sys::btf__find_by_name_kind(btf.as_ptr(), name.as_ptr(), kind) > 0 }
}

/// Whether kallsyms text lists a symbol.
fn is_listed(symbols: &str, name: &str) -> bool {
    symbols.lines().any(|line| line.split_ascii_whitespace().nth(2) == Some(name))
}

/// Returns the highest possible pCPU number plus one, which exceeds the number of pCPUs if numbers have gaps.
pub fn pcpu_numbers() -> Option<u32> {
    let possible = fs::read_to_string(POSSIBLE).ok()?;
    highest(&possible)?.checked_add(1)
}

/// Returns the highest number of a list such as `0-3,8-11`.
fn highest(list: &str) -> Option<u32> {
    let set: PcpuSet = list.trim().parse().ok()?;
    set.iter().map(|pcpu| pcpu.0).max()
}

/// Returns KVM's maximum halt-polling time in ns, which a VM can override; `u64::MAX` if unknown.
pub fn max_poll() -> u64 {
    let text = fs::read_to_string(MAX_POLL).ok();
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(u64::MAX)
}

/// Returns the range of CLOCK_BOOTTIME in which a thread started, from its start time in `/proc`.
/// Ticks are coarser than the kernel's clock, and shifted if this process has its own time namespace.
pub fn born(start: StartTime) -> (u64, u64) {
    let offsets = fs::read_to_string(CLOCKS).unwrap_or_default();
    let tick = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    born_between(start, tick, shift(&offsets))
}

fn born_between(start: StartTime, tick: u64, shift: i128) -> (u64, u64) {
    let from = i128::from(start.0) * i128::from(tick) - shift;
    let clamp = |time: i128| u64::try_from(time.max(0)).unwrap_or(u64::MAX);
    (clamp(from), clamp(from + i128::from(tick)))
}

/// Returns the offset of CLOCK_BOOTTIME in ns, from the seconds and ns after its name.
fn shift(offsets: &str) -> i128 {
    let line = offsets.lines().find_map(|line| line.trim_start().strip_prefix("boottime"));
    let mut numbers = line
        .unwrap_or_default()
        .split_ascii_whitespace()
        .map(|number| number.parse::<i64>().map_or(0, i128::from));
    let mut next = || numbers.next().unwrap_or(0);
    next() * 1_000_000_000 + next()
}

impl Drop for KernelTypes {
    fn drop(&mut self) {
        for btf in self.modules.drain(..).chain([self.kernel]) {
            // SAFETY: libbpf allocated it for us, and we free it once; modules before their base, the kernel.
            unsafe { libbpf_sys::btf__free(btf.as_ptr()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities_are_named() {
        let status = |bits: u64| format!("Name:\tx\nCapEff:\t{bits:016x}\nCapBnd:\t0\n");
        assert!(missing_capabilities(&status(1 << SYS_ADMIN)).is_empty());
        assert!(missing_capabilities("").is_empty());
        assert_eq!(missing_capabilities(&status(1 << 39)), ["CAP_PERFMON", "CAP_NET_ADMIN"]);
        assert_eq!(missing_capabilities(&status(0)).len(), 3);
    }

    #[test]
    fn other_namespaces_are_named() {
        let link = |text: &str| Some(PathBuf::from(text));
        let (user, pid) = (link(FIRST_USER_NAMESPACE), link(FIRST_PID_NAMESPACE));
        assert!(check_namespaces(user.clone(), pid.clone()).is_ok());
        assert!(check_namespaces(None, None).is_ok(), "the kernel will tell");
        let said = |user, pid| check_namespaces(user, pid).unwrap_err().to_string();
        let rootless = said(link("user:[4026532000]"), pid);
        assert!(rootless.contains("host's user namespace"), "{rootless}");
        let container = said(user, link("pid:[4026532001]"));
        assert!(container.starts_with("pid:[4026532001]"), "{container}");
    }

    #[test]
    fn module_events_need_sys_admin() {
        let status = |bits: u64| format!("CapEff:\t{bits:016x}\n");
        let enough = 1 << 39 | 1 << 38 | 1 << 12;
        assert!(missing_capabilities(&status(enough)).is_empty());
        assert!(!sees_modules(&status(enough)));
        assert!(sees_modules(&status(1 << SYS_ADMIN)));
    }

    #[test]
    fn pcpu_numbers_may_have_gaps() {
        assert_eq!(highest("0-3,8-11\n"), Some(11));
        assert_eq!(highest("0\n"), Some(0));
        assert_eq!(highest("many"), None);
        let numbers = pcpu_numbers().expect("this kernel tells");
        assert!(numbers >= std::thread::available_parallelism().unwrap().get() as u32);
    }

    #[test]
    fn whole_symbols_are_compared() {
        let symbols = "0 A fixed\n0 D __preempt_count_sub\n0 d pcpu_hot\t[kvm]\n";
        assert!(is_listed(symbols, "pcpu_hot"));
        assert!(!is_listed(symbols, "__preempt_count"));
    }

    #[test]
    fn start_ticks_map_to_a_boottime_range() {
        let tick = 10_000_000;
        assert_eq!(born_between(StartTime(7), tick, 0), (70_000_000, 80_000_000));
        // A clock that is 1.5 s ahead shows tick 157 for the kernel's tick 7.
        let ahead = shift("monotonic           0         0\nboottime            1 500000000\n");
        assert_eq!(ahead, 1_500_000_000);
        assert_eq!(born_between(StartTime(157), tick, ahead), (70_000_000, 80_000_000));
        assert_eq!(shift(""), 0);
        assert_eq!(shift("boottime -2 0"), -2_000_000_000);
        assert_eq!(born_between(StartTime(u64::MAX), tick, 0).1, u64::MAX);
    }
}
