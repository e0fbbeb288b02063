//! Records events for traces. Costs nothing if it is off.

use crate::trace::{ExitReason, TraceEvent, Tracks};

use super::simulation::World;

impl World {
    #[inline]
    pub(crate) fn trace_exit(&mut self, vcpu: u32, reason: ExitReason) {
        if let Some(trace) = &mut self.trace {
            trace.add(TraceEvent::Exit { vcpu, reason, at: self.now });
        }
    }

    /// Returns the names of the tracks.
    pub(crate) fn tracks(&self) -> Tracks {
        Tracks {
            pcpus: self.pcpus.len() as u32,
            vms: self.names.clone(),
            vcpus: self
                .vcpus
                .iter()
                .enumerate()
                .map(|(v, vcpu)| (vcpu.vm, v as u32 - self.vms[vcpu.vm as usize].first_vcpu))
                .collect(),
            threads: self
                .threads
                .iter()
                .map(|thread| {
                    let role = &self.roles[thread.vm as usize][thread.role as usize];
                    (thread.vm, format!("{role}-{}", thread.number))
                })
                .collect(),
            objects: self.object_names.clone(),
        }
    }
}
