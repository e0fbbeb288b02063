//! Who decides: the policy's controller, which tries and judges, or in a dry run its rules without trials.

use tandem_policy::gleaner;
use tandem_policy::gleaner::consolidation::SamplingDetail;
use tandem_policy::gleaner::{Code, ControllerConfig, Decision, Observation};

use crate::dry_run::Preview;

/// Decides once a period.
pub(crate) enum Controller {
    /// What it decides is carried out, and judged by its effect.
    Live(Box<gleaner::Controller>),
    /// What it decides is only said.
    Dry(Box<Preview>),
}

impl Controller {
    /// For a workload that uses all of `vcpus` vCPUs, which halt at once.
    pub(crate) fn new(is_dry: bool, vcpus: u32, settings: ControllerConfig) -> Controller {
        match is_dry {
            true => Controller::Dry(Box::new(Preview::new(vcpus, settings))),
            false => Controller::Live(Box::new(gleaner::Controller::new(vcpus, settings))),
        }
    }

    /// A period is over.
    pub(crate) fn decide(&mut self, observed: &Observation) -> Decision {
        match self {
            Controller::Live(controller) => controller.decide(observed),
            Controller::Dry(preview) => preview.decide(observed),
        }
    }

    /// How closely it wants to be told where the workload's threads are in the next period, if at all.
    pub(crate) fn wants_code(&self) -> Option<SamplingDetail> {
        match self {
            Controller::Live(controller) => controller.wants_code(),
            Controller::Dry(_) => None,
        }
    }

    /// Where the workload's threads were in the period that [`Self::decide`] is about to be told of.
    pub(crate) fn saw(&mut self, code: &Code) {
        if let Controller::Live(controller) = self {
            controller.saw(code);
        }
    }
}
