//! Events of a traced simulation: placement, waits and their causes.
//!
//! Events are plain data in the order in which they ended.
//! Times are ns since the start of the simulation.
//! Writers (Perfetto, pictures) are elsewhere and use only these types.

use serde::Serialize;

/// A vCPU by its number over all VMs, in the order of VMs and vCPUs.
pub type VcpuIndex = u32;

/// A thread by its number over all VMs, in the order of VMs, roles and threads.
pub type ThreadIndex = u32;

/// Tracks of a trace, known at its start.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Tracks {
    /// Number of pCPUs.
    pub pcpus: u32,
    /// Per VM: its name.
    pub vms: Vec<String>,
    /// Per vCPU: VM and number in it.
    pub vcpus: Vec<(u32, u32)>,
    /// Per thread: VM and name.
    pub threads: Vec<(u32, String)>,
    /// Per VM: the names of its objects.
    pub objects: Vec<Vec<String>>,
}

/// State of a vCPU, as seen by the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum VcpuState {
    /// On a pCPU.
    Running,
    /// Runnable without a pCPU: steal time.
    Ready,
    /// Halted.
    Halted,
    /// Halted, while the host polls for it on its pCPU.
    HaltPolling,
}

/// State of a thread, as seen by the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThreadState {
    /// Current on its vCPU, which may or may not be on a pCPU.
    Running,
    /// Current and spinning for an object of its VM (`None`: for TLB flushes).
    Spinning(Option<u32>),
    /// Runnable in its vCPU's queue.
    Ready,
    /// Blocked on an object of its VM.
    Blocked(u32),
    /// Asleep or waiting for a device.
    Sleeping,
    /// Ended.
    Ended,
}

/// Reason of a VM exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExitReason {
    /// A pause loop lasted longer than the window.
    PauseLoop,
    /// HLT.
    Halt,
    /// Write to the interrupt command register.
    SendIpi,
    /// An interrupt arrived while it ran.
    Interrupt,
    /// End of interrupt.
    EndOfInterrupt,
    /// A timer of the guest.
    Timer,
    /// Hypercall (kick of a paravirtual lock).
    Hypercall,
}

/// Purpose of an IPI between vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IpiKind {
    /// Run the scheduler: a thread was woken there.
    Reschedule,
    /// Flush the TLB and answer.
    Shootdown,
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TraceEvent {
    /// A pCPU ran a vCPU.
    PcpuRan {
        /// The pCPU.
        pcpu: u32,
        /// The vCPU.
        vcpu: VcpuIndex,
        /// Start, ns.
        from: u64,
        /// End, ns.
        to: u64,
    },
    /// A vCPU was in a state.
    Vcpu {
        /// The vCPU.
        vcpu: VcpuIndex,
        /// The state.
        state: VcpuState,
        /// Start, ns.
        from: u64,
        /// End, ns.
        to: u64,
    },
    /// A thread was in a state.
    Thread {
        /// The thread.
        thread: ThreadIndex,
        /// The state.
        state: ThreadState,
        /// The vCPU in whose queue it is.
        vcpu: VcpuIndex,
        /// Start, ns.
        from: u64,
        /// End, ns.
        to: u64,
    },
    /// A VM exit.
    Exit {
        /// The vCPU.
        vcpu: VcpuIndex,
        /// The reason.
        reason: ExitReason,
        /// Time, ns.
        at: u64,
    },
    /// A directed yield of a spinning vCPU.
    Yield {
        /// The spinning vCPU.
        from: VcpuIndex,
        /// The candidate.
        to: VcpuIndex,
        /// Time, ns.
        at: u64,
    },
    /// An IPI between vCPUs.
    Ipi {
        /// Sender.
        from: VcpuIndex,
        /// Receiver.
        to: VcpuIndex,
        /// Purpose.
        kind: IpiKind,
        /// Time of sending, ns.
        sent: u64,
        /// Time at which the receiver handled it, ns.
        handled: u64,
    },
    /// A wake-up of a thread.
    Wakeup {
        /// The waking thread; `None`: a timer or a device.
        from: Option<ThreadIndex>,
        /// The woken thread.
        to: ThreadIndex,
        /// Time of the wake-up, ns.
        woken: u64,
        /// Time at which it ran, ns.
        ran: u64,
        /// Wake-up and switch costs that its vCPU still pays before the thread's next instruction, ns.
        owed: u64,
    },
}
