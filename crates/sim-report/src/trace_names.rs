//! Names of the tracks and events of a simulation's trace.

use tandem_sim::trace::{ExitReason, Tracks};

/// Returns the name of a vCPU.
pub(super) fn vcpu_name(tracks: &Tracks, vcpu: u32) -> String {
    let (vm, number) = tracks.vcpus[vcpu as usize];
    format!("{}/{number}", tracks.vms[vm as usize])
}

/// Returns the name of an object of a VM.
pub(super) fn object_name(tracks: &Tracks, vm: u32, object: u32) -> &str {
    let objects = &tracks.objects[vm as usize];
    objects.get(object as usize).map_or("?", String::as_str)
}

/// Returns the name of an exit by its reason.
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
