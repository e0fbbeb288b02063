//! What a traced simulation tells: who was where, who waited for whom, and what caused what.
//!
//! Events are plain data in the order in which they ended. Times are ns since the simulation's
//! begin. Writers (Perfetto, pictures) are elsewhere and see only this.

use serde::Serialize;

/// A vCPU by its number over all VMs, in the order of VMs and vCPUs.
pub type VcpuIndex = u32;

/// A thread by its number over all VMs, in the order of VMs, roles and threads.
pub type ThreadIndex = u32;

/// What is known of the tracks before anything happens.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Tracks {
    /// How many pCPUs.
    pub pcpus: u32,
    /// For each VM: its name.
    pub vms: Vec<String>,
    /// For each vCPU: VM and number in it.
    pub vcpus: Vec<(u32, u32)>,
    /// For each thread: VM and name.
    pub threads: Vec<(u32, String)>,
    /// For each VM: the names of its objects.
    pub objects: Vec<Vec<String>>,
}

/// What a vCPU is doing, as the host sees it.
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

/// What a thread is doing, as the guest sees it.
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

/// Why a vCPU left guest mode.
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

/// What an interrupt between vCPUs is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IpiKind {
    /// Run the scheduler: a thread was woken there.
    Reschedule,
    /// Flush the TLB and answer.
    Shootdown,
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TraceEvent {
    /// A pCPU ran a vCPU.
    PcpuRan {
        /// Which pCPU.
        pcpu: u32,
        /// Which vCPU.
        vcpu: VcpuIndex,
        /// From, ns.
        from: u64,
        /// To, ns.
        to: u64,
    },
    /// A vCPU was in a state.
    Vcpu {
        /// Which.
        vcpu: VcpuIndex,
        /// In which state.
        state: VcpuState,
        /// From, ns.
        from: u64,
        /// To, ns.
        to: u64,
    },
    /// A thread was in a state.
    Thread {
        /// Which.
        thread: ThreadIndex,
        /// In which state.
        state: ThreadState,
        /// The vCPU in whose queue it is.
        vcpu: VcpuIndex,
        /// From, ns.
        from: u64,
        /// To, ns.
        to: u64,
    },
    /// A vCPU left guest mode.
    Exit {
        /// Which.
        vcpu: VcpuIndex,
        /// Why.
        reason: ExitReason,
        /// When, ns.
        at: u64,
    },
    /// A directed yield: a spinning vCPU gave way to another.
    Yield {
        /// Who spun.
        from: VcpuIndex,
        /// Who was chosen.
        to: VcpuIndex,
        /// When, ns.
        at: u64,
    },
    /// An interrupt between vCPUs.
    Ipi {
        /// Sender.
        from: VcpuIndex,
        /// Receiver.
        to: VcpuIndex,
        /// What for.
        kind: IpiKind,
        /// When it was sent, ns.
        sent: u64,
        /// When the receiver handled it, ns.
        handled: u64,
    },
    /// A thread woke another.
    Wakeup {
        /// Who; `None`: a timer or a device.
        from: Option<ThreadIndex>,
        /// Whom.
        to: ThreadIndex,
        /// When, ns.
        woken: u64,
        /// When it ran, ns.
        ran: u64,
        /// So long its vCPU then still has to do what waking and switching cost before the thread's next instruction, ns.
        owed: u64,
    },
}
