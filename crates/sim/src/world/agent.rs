//! The agent of a simulated guest: its policies and its last counters.
//!
//! The policies are those of the agent on live VMs ([`tandem_policy::gleaner`]):
//! the two remedies separately, with the paper's settings or with ours, or the agent's controller, which combines them.

use tandem_policy::gleaner::{Consolidation, Controller, Observation, Retention};

use crate::results::{AgentChoice, VcpuTime};
use crate::scenario;

/// A vCPU's counters at the end of the last period.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub ran: VcpuTime,
    pub idle: u64,
    pub idle_periods: u64,
    pub halting: u64,
    pub waited: u64,
}

/// The policies of an agent.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one for each VM, and its agent is boxed")]
pub(super) enum Control {
    Remedies { consolidation: Option<Consolidation>, retention: Option<Retention> },
    Agent(Controller),
}

impl Control {
    fn new(control: &scenario::Control, vcpus: u32) -> Control {
        match control.clone() {
            scenario::Control::Paper(remedies) | scenario::Control::Ours(remedies) => {
                let consolidation = remedies.consolidation;
                Control::Remedies {
                    consolidation: consolidation.map(|config| Consolidation::new(vcpus, config)),
                    retention: remedies.retention.map(Retention::new),
                }
            }
            scenario::Control::Agent(config) => Control::Agent(Controller::new(vcpus, config)),
        }
    }

    /// Returns the number of vCPUs to use and the retention in ns, given the current ones.
    pub fn decide(&mut self, observed: &Observation, (active, time): (u32, u64)) -> (u32, u64) {
        match self {
            Control::Remedies { consolidation, retention } => (
                consolidation.as_mut().map_or(active, |policy| policy.decide(observed).active),
                retention.as_mut().map_or(time, |policy| policy.decide(observed).time.0),
            ),
            Control::Agent(controller) => {
                let decision = controller.decide(observed);
                (decision.active, decision.retention_time.0)
            }
        }
    }
}

/// The agent of one VM.
#[derive(Debug)]
pub(crate) struct SimulatedAgent {
    pub control: Control,
    pub period: u64,
    pub seen: Vec<Seen>,
    pub switches: u64,
    pub waiting: u64,
    pub choices: Vec<AgentChoice>,
}

impl SimulatedAgent {
    pub(crate) fn new(agent: &scenario::Agent, vcpus: u32) -> SimulatedAgent {
        SimulatedAgent {
            control: Control::new(&agent.control, vcpus),
            period: agent.period.0,
            seen: vec![Seen::default(); vcpus as usize],
            switches: 0,
            waiting: 0,
            choices: Vec::new(),
        }
    }
}
