//! The programs, the kernel events that they attach to, and the figures that are unavailable without them.

use std::fmt;

/// The attachment of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A tracepoint with BTF.
    Tracepoint(&'static str),
    /// The entry or exit of a kernel function.
    Function(&'static str),
    /// No event: user space runs the program.
    Program(&'static str),
}

impl Place {
    /// The name of the tracepoint, function or program.
    pub fn name(self) -> &'static str {
        match self {
            Place::Tracepoint(name) | Place::Function(name) | Place::Program(name) => name,
        }
    }

    /// Whether the kernel runs the program, and not user space.
    pub fn is_attached(self) -> bool {
        !matches!(self, Place::Program(_))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Tracepoint(name) => write!(f, "tracepoint {name}"),
            Place::Function(name) => write!(f, "function {name}"),
            Place::Program(name) => write!(f, "program {name}"),
        }
    }
}

/// The consequence of a missing event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// All measurement is impossible.
    Nothing,
    /// Some figure is unavailable, which is reported.
    Lacks(&'static str),
    /// None: only some kernels have the event, and others do not need it.
    Fine,
}

/// A program of `bpf/tandem.bpf.c` and its event.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// The name of the program.
    pub program: &'static str,
    /// The attachment.
    pub place: Place,
    /// The consequence if it cannot be attached.
    pub without: Without,
    /// Whether the program checks that no interrupt is being served. The variant `_unsure` omits this check.
    pub sure: bool,
    /// Whether it runs on every guest entry or exit.
    pub per_exit: bool,
}

const fn event(program: &'static str, place: Place, without: Without) -> Event {
    Event { program, place, without, sure: false, per_exit: false }
}

const fn sure(event: Event) -> Event {
    Event { sure: true, ..event }
}

const fn per_exit(event: Event) -> Event {
    Event { per_exit: true, ..event }
}

use Place::{Function, Program, Tracepoint};
use Without::{Fine, Lacks, Nothing};

const EXITS: Without = Lacks("RUN holds the part of VMM that the kernel does itself");

/// All programs. Only the first one, which sees when vCPUs run, is indispensable.
pub const EVENTS: [Event; 22] = [
    event("on_switch", Tracepoint("sched_switch"), Nothing),
    event(
        "on_wakeup",
        Tracepoint("sched_wakeup"),
        Lacks("RDY after a wake-up has no culprit, wake-up latency and CSTP are not measured"),
    ),
    event(
        "on_wakeup_new",
        Tracepoint("sched_wakeup_new"),
        Lacks("the first RDY of a new vCPU has no culprit"),
    ),
    event(
        "on_migrate",
        Tracepoint("sched_migrate_task"),
        Lacks("culprits of RDY are estimated: vCPUs move between pCPUs unseen"),
    ),
    event(
        "on_exit",
        Tracepoint("sched_process_exit"),
        Lacks("the end of a vCPU is seen with the next interval"),
    ),
    event(
        "find_out",
        Program("find_out"),
        Lacks("a vCPU is measured from its first switch or wake-up on"),
    ),
    event("settle", Program("settle"), Lacks("the culprit of RDY is known once its pCPU switches")),
    sure(event("on_waking", Tracepoint("sched_waking"), Lacks("which vCPU wakes which"))),
    per_exit(event("on_entry", Tracepoint("kvm_entry"), EXITS)),
    per_exit(event("on_kvm_exit", Tracepoint("kvm_exit"), EXITS)),
    per_exit(event("on_pvm_entry", Function("pvm_vcpu_run"), Fine)),
    per_exit(event("on_pvm_exit", Function("pvm_vcpu_run"), Fine)),
    event(
        "on_userspace_exit",
        Tracepoint("kvm_userspace_exit"),
        Lacks("RUN holds the VMM's own code"),
    ),
    event(
        "on_run",
        Function("kvm_arch_vcpu_ioctl_run"),
        Lacks("where no entry into a guest is seen, VMM: RUN holds it"),
    ),
    event(
        "on_halt",
        Function("kvm_vcpu_halt"),
        Lacks("POLL of a halt that ends in sleep is in VMM or RUN until the vCPU wakes"),
    ),
    event("on_block", Function("kvm_vcpu_block"), Fine),
    event("on_kvm_wakeup", Tracepoint("kvm_vcpu_wakeup"), Lacks("POLL is in VMM or RUN")),
    sure(event("on_ipi", Tracepoint("kvm_apic_ipi"), Lacks("how many IPIs a vCPU sends"))),
    sure(event(
        "on_accept_irq",
        Tracepoint("kvm_apic_accept_irq"),
        Lacks("which vCPUs a vCPU sends IPIs to"),
    )),
    event("on_spin", Function("kvm_vcpu_on_spin"), Lacks("pause exits")),
    event("on_yield_to", Function("kvm_vcpu_yield_to"), Lacks("which vCPU yields to which")),
    event(
        "on_unthrottle",
        Function("unthrottle_cfs_rq"),
        Lacks("LIM lasts until the next switch on the pCPU"),
    ),
];
