//! Branch counters of the VMs under the policy `flexs`, read once a period.

use std::collections::BTreeSet;

use tandem_linux::branch_counters::{BranchCounters, CounterError};
use tandem_linux::thread::ThreadRef;
use tandem_model::branch_counters::Counted;
use tandem_model::{PolicyId, PolicySet};

use crate::vm_cpu::VcpuCpu;

/// A source of counters, or none, in which case nothing is counted.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) source: Option<Box<dyn BranchCounters>>,
    pub(crate) policy: Option<PolicyId>,
    /// Errors of the last periods.
    pub(crate) errors: BTreeSet<String>,
}

impl Counters {
    /// Reads a vCPU's counters since the last read, if the VM's policies need them and it ran.
    pub(crate) fn read(&mut self, policies: PolicySet, vcpu: &VcpuCpu) -> Option<Counted> {
        let source = self.source.as_mut()?;
        if !policies.contains(self.policy?) {
            return None;
        }
        match source.count(vcpu.id, &vcpu.host.thread) {
            Ok(counted) => counted,
            Err(error) if error.is_gone() => None,
            Err(error) => {
                let line = match &error {
                    CounterError::NoMicrovm { .. } | CounterError::TooManyFiles => {
                        format!("flexs: {error}")
                    }
                    _ => format!("flexs: vCPU {} ({}): {error}", vcpu.id, vcpu.host.thread),
                };
                self.errors.insert(line);
                None
            }
        }
    }

    pub(crate) fn forget(&mut self, thread: &ThreadRef) {
        if let Some(source) = &mut self.source {
            source.forget(thread);
        }
    }
}
