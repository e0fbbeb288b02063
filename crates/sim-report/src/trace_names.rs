//! What the tracks and events of a simulation's trace are called.

use tandem_sim::trace::{ExitReason, Tracks};

/// What a vCPU is called.
pub(super) fn vcpu_name(tracks: &Tracks, vcpu: u32) -> String {
    let (vm, number) = tracks.vcpus[vcpu as usize];
    format!("{}/{number}", tracks.vms[vm as usize])
}

/// What an object of a VM is called.
pub(super) fn object_name(tracks: &Tracks, vm: u32, object: u32) -> &str {
    let objects = &tracks.objects[vm as usize];
    objects.get(object as usize).map_or("?", String::as_str)
}

/// Why a vCPU left guest mode, in words.
pub(super) fn exit_name(reason: ExitReason) -> &'static str {
    match reason {
        ExitReason::PauseLoop => "exit: pause loop",
        ExitReason::Halt => "exit: HLT",
        ExitReason::SendIpi => "exit: send IPI",
        ExitReason::Interrupt => "exit: interrupt",
        ExitReason::EndOfInterrupt => "exit: end of interrupt",
        ExitReason::Timer => "exit: timer",
        ExitReason::Hypercall => "exit: hypercall",
    }
}
