//! Thread names and VM names, by VMM.
//!
//! A thread's name (`comm`) has at most 15 bytes. The known patterns, from the source of each program:
//!
//! | VMM | thread | VM's name |
//! |---|---|---|
//! | QEMU with KVM | `CPU 3/KVM` | `-name web`, `-name guest=web,…` |
//! | QEMU's emulator | `CPU 3/TCG`; `ALL CPUs/TCG` when one thread runs all | the same |
//! | Firecracker | `fc_vcpu 3` | `--id` |
//! | cloud-hypervisor | `vcpu3` | — |
//! | crosvm | `crosvm_vcpu3` | `--name` |
//! | kvmtool | `kvm-vcpu-3` | `--name` |
//! | Tandem's microVMs | `web/vcpu3` | the part before the slash |
//!
//! Names count only in a process that holds KVM vCPUs, because any process may call a thread `vcpu0`.
//! Only QEMU's emulator and Tandem's thread back end run vCPUs without KVM.
//! Their names also count in a process that the operator named ([`crate::discovery::DiscoveryOptions::without_kvm`]).
//! A pattern can describe other VMMs: a glob with `{n}` for the vCPU's number.

use std::fmt;

use globset::GlobMatcher;
use serde::{Deserialize, Serialize};
use tandem_model::VcpuId;
use thiserror::Error;

use crate::glob::compile;

/// The program that runs a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Vmm {
    /// QEMU, with KVM or its own emulator.
    Qemu,
    /// Firecracker.
    Firecracker,
    /// cloud-hypervisor.
    CloudHypervisor,
    /// crosvm.
    Crosvm,
    /// kvmtool (`lkvm`).
    Kvmtool,
    /// Tandem's own microVMs.
    Tandem,
    /// Another process that holds KVM vCPUs.
    Other,
}

impl fmt::Display for Vmm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Vmm::Qemu => "qemu",
            Vmm::Firecracker => "firecracker",
            Vmm::CloudHypervisor => "cloud-hypervisor",
            Vmm::Crosvm => "crosvm",
            Vmm::Kvmtool => "kvmtool",
            Vmm::Tandem => "tandem",
            Vmm::Other => "other",
        })
    }
}

impl Vmm {
    /// All VMMs.
    pub const ALL: [Vmm; 7] = [
        Vmm::Qemu,
        Vmm::Firecracker,
        Vmm::CloudHypervisor,
        Vmm::Crosvm,
        Vmm::Kvmtool,
        Vmm::Tandem,
        Vmm::Other,
    ];

    /// Returns the VMM by a process's name, for VMs without known thread names.
    pub fn of_process(comm: &str) -> Vmm {
        match comm {
            _ if comm.starts_with("qemu-") || comm == "kvm" => Vmm::Qemu,
            "firecracker" => Vmm::Firecracker,
            // Cut off by the kernel after 15 bytes.
            "cloud-hyperviso" => Vmm::CloudHypervisor,
            "crosvm" => Vmm::Crosvm,
            "lkvm" | "kvmtool" => Vmm::Kvmtool,
            _ => Vmm::Other,
        }
    }

    /// Returns the VM's name in a command line, if this VMM takes one there.
    pub fn vm_name(self, args: &[&str]) -> Option<String> {
        let after = |flags: &[&str]| {
            args.iter().enumerate().skip(1).find_map(|(at, arg)| {
                flags.iter().find_map(|flag| match arg.strip_prefix(flag) {
                    Some("") => args.get(at + 1).copied(),
                    Some(rest) => rest.strip_prefix('='),
                    None => None,
                })
            })
        };
        let name = match self {
            Vmm::Qemu => qemu_name(after(&["--name", "-name"])?),
            Vmm::Firecracker => after(&["--id"])?.to_owned(),
            Vmm::Crosvm | Vmm::Kvmtool => after(&["--name"])?.to_owned(),
            Vmm::CloudHypervisor | Vmm::Tandem | Vmm::Other => return None,
        };
        (!name.is_empty()).then_some(name)
    }
}

/// Returns the guest's name in QEMU's option: `web`, `guest=web,debug-threads=on`, with `,,` for a comma.
fn qemu_name(option: &str) -> String {
    let option = option.replace(",,", "\0");
    let named = option.split(',').find_map(|part| part.strip_prefix("guest="));
    let first = option.split(',').next().filter(|part| !part.contains('='));
    named.or(first).unwrap_or_default().replace('\0', ",")
}

/// A vCPU, as described by a thread's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuName {
    /// The VMM of the pattern.
    pub vmm: Vmm,
    /// The vCPU's number.
    pub index: VcpuId,
    /// The VM's name, if the thread's name has it. Several VMs may then share a process.
    pub vm: Option<String>,
    /// Whether it counts without KVM vCPUs in a process that the operator named.
    pub without_kvm: bool,
}

impl VcpuName {
    /// Parses a thread's name by the table above.
    pub fn parse(comm: &str) -> Option<VcpuName> {
        let known = |vmm, index, without_kvm| VcpuName { vmm, index, vm: None, without_kvm };
        if comm == "ALL CPUs/TCG" {
            return Some(known(Vmm::Qemu, VcpuId(0), true));
        }
        if let Some(rest) = comm.strip_prefix("CPU ") {
            if let Some(index) = rest.strip_suffix("/KVM").and_then(number) {
                return Some(known(Vmm::Qemu, index, false));
            }
            let index = rest.strip_suffix("/TCG").and_then(number)?;
            return Some(known(Vmm::Qemu, index, true));
        }
        let prefixes = [
            ("fc_vcpu ", Vmm::Firecracker),
            ("vcpu", Vmm::CloudHypervisor),
            ("crosvm_vcpu", Vmm::Crosvm),
            ("kvm-vcpu-", Vmm::Kvmtool),
        ];
        for (prefix, vmm) in prefixes {
            if let Some(index) = comm.strip_prefix(prefix).and_then(number) {
                return Some(known(vmm, index, false));
            }
        }
        let (vm, index) = comm.rsplit_once("/vcpu")?;
        Some(VcpuName {
            vmm: Vmm::Tandem,
            index: number(index)?,
            vm: (!vm.is_empty()).then(|| vm.to_owned()),
            without_kvm: true,
        })
        .filter(|name| name.vm.is_some())
    }
}

fn number(text: &str) -> Option<VcpuId> {
    let all_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    all_digits.then(|| text.parse().ok().map(VcpuId)).flatten()
}

/// An invalid pattern of thread names.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("'{pattern}' is no pattern of vCPU thread names: {why}; write one such as 'my-vcpu-{{n}}'")]
pub struct PatternError {
    /// The pattern.
    pub pattern: String,
    /// The reason.
    pub why: String,
}

/// An operator's own pattern: a glob with `{n}` for the vCPU's number.
#[derive(Clone, Debug)]
pub struct ThreadPattern {
    before: GlobMatcher,
    after: GlobMatcher,
}

impl ThreadPattern {
    /// Compiles a pattern.
    pub fn new(pattern: &str) -> Result<ThreadPattern, PatternError> {
        let wrong =
            |why: String| PatternError { pattern: pattern.chars().take(100).collect(), why };
        let mut parts = pattern.split("{n}");
        let (Some(before), Some(after), None) = (parts.next(), parts.next(), parts.next()) else {
            return Err(wrong("it must hold {n} exactly once".to_owned()));
        };
        let compile = |part: &str| compile(part, false).map_err(wrong);
        Ok(ThreadPattern { before: compile(before)?, after: compile(after)? })
    }

    /// Returns the vCPU's number, if the name matches. The first matching number counts.
    pub fn index(&self, comm: &str) -> Option<VcpuId> {
        let bytes = comm.as_bytes();
        let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
        (0..bytes.len())
            .filter(|&start| digit(start) && (start == 0 || !digit(start - 1)))
            .find_map(|start| {
                let end = (start..bytes.len()).find(|&at| !digit(at)).unwrap_or(bytes.len());
                let matches =
                    self.before.is_match(&comm[..start]) && self.after.is_match(&comm[end..]);
                matches.then(|| number(&comm[start..end])).flatten()
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(comm: &str) -> Option<(Vmm, u32, bool)> {
        VcpuName::parse(comm).map(|name| (name.vmm, name.index.0, name.without_kvm))
    }

    #[test]
    fn each_vmms_threads_are_known() {
        assert_eq!(parsed("CPU 0/KVM"), Some((Vmm::Qemu, 0, false)));
        assert_eq!(parsed("CPU 127/TCG"), Some((Vmm::Qemu, 127, true)));
        assert_eq!(parsed("ALL CPUs/TCG"), Some((Vmm::Qemu, 0, true)));
        assert_eq!(parsed("fc_vcpu 3"), Some((Vmm::Firecracker, 3, false)));
        assert_eq!(parsed("vcpu12"), Some((Vmm::CloudHypervisor, 12, false)));
        assert_eq!(parsed("crosvm_vcpu1"), Some((Vmm::Crosvm, 1, false)));
        assert_eq!(parsed("kvm-vcpu-2"), Some((Vmm::Kvmtool, 2, false)));
        assert_eq!(parsed("web/vcpu63"), Some((Vmm::Tandem, 63, true)));
        assert_eq!(VcpuName::parse("web/vcpu63").unwrap().vm.as_deref(), Some("web"));
    }

    #[test]
    fn other_names_are_not() {
        for comm in [
            "",
            "CPU /KVM",
            "CPU x/KVM",
            "CPU 0/HAX",
            "vcpu",
            "vcpu0x",
            "vcpu-1",
            "vcpu+1",
            "fc_vcpu",
            "fc_api",
            "/vcpu0",
            "web/vcpu",
            "kvm-nx-lpage-re",
            "vcpu99999999999",
        ] {
            assert_eq!(parsed(comm), None, "{comm}");
        }
    }

    #[test]
    fn names_come_from_command_lines() {
        let qemu = |args: &[&str]| Vmm::Qemu.vm_name(args);
        assert_eq!(qemu(&["qemu", "-name", "web"]).as_deref(), Some("web"));
        let guest = "guest=web,debug-threads=on";
        assert_eq!(qemu(&["qemu", "-name", guest]).as_deref(), Some("web"));
        let last = "debug-threads=on,guest=a,,b";
        assert_eq!(qemu(&["qemu", "--name", last]).as_deref(), Some("a,b"));
        assert_eq!(qemu(&["qemu", "-name", "debug-threads=on"]), None);
        assert_eq!(qemu(&["qemu", "-name"]), None);
        assert_eq!(qemu(&["-name", "x"]), None, "the program's own name");
        let id = Vmm::Firecracker.vm_name(&["fc", "--id=f1", "--api-sock", "x"]);
        assert_eq!(id.as_deref(), Some("f1"));
        let id = Vmm::Firecracker.vm_name(&["fc", "--api-sock", "x", "--id", "f2"]);
        assert_eq!(id.as_deref(), Some("f2"));
        assert_eq!(Vmm::CloudHypervisor.vm_name(&["ch", "--name", "x"]), None);
    }

    #[test]
    fn an_operators_pattern_finds_the_number() {
        let index = |pattern: &str, comm: &str| {
            let pattern = ThreadPattern::new(pattern).unwrap();
            pattern.index(comm).map(|index| index.0)
        };
        assert_eq!(index("my-vcpu-{n}", "my-vcpu-12"), Some(12));
        assert_eq!(index("vm*-cpu{n}", "vm7-cpu3"), Some(3));
        assert_eq!(index("vm?-{n}/run", "vm7-4/run"), Some(4));
        assert_eq!(index("{n}", "42"), Some(42));
        assert_eq!(index("my-vcpu-{n}", "my-vcpu-"), None);
        assert_eq!(index("my-vcpu-{n}", "my-vcpu-1x"), None);
        assert_eq!(index("é{n}", "é5"), Some(5));
    }

    #[test]
    fn useless_patterns_are_refused() {
        for pattern in ["vcpu", "{n}{n}", "[{n}"] {
            let error = ThreadPattern::new(pattern).unwrap_err().to_string();
            assert!(error.contains(pattern) && error.contains("my-vcpu-{n}"), "{error}");
        }
    }

    #[test]
    fn processes_are_known_by_their_names() {
        assert_eq!(Vmm::of_process("qemu-system-x86"), Vmm::Qemu);
        assert_eq!(Vmm::of_process("cloud-hyperviso"), Vmm::CloudHypervisor);
        assert_eq!(Vmm::of_process("toy"), Vmm::Other);
    }
}
