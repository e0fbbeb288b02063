//! Selects the decision maker: the policy's controller with its trials, or its rules alone in a dry run.

use tandem_policy::gleaner;
use tandem_policy::gleaner::consolidation::SamplingDetail;
use tandem_policy::gleaner::{Code, ControllerConfig, Decision, Observation};

use crate::dry_run::Preview;

/// Decides once per period.
pub(crate) enum Controller {
    /// Decisions are applied and judged by their effect.
    Live(Box<gleaner::Controller>),
    /// Decisions are only reported.
    Dry(Box<Preview>),
}

impl Controller {
    /// Starts with all of `vcpus` vCPUs and without retention.
    pub(crate) fn new(is_dry: bool, vcpus: u32, settings: ControllerConfig) -> Controller {
        if is_dry {
            Controller::Dry(Box::new(Preview::new(vcpus, settings)))
        } else {
            Controller::Live(Box::new(gleaner::Controller::new(vcpus, settings)))
        }
    }

    /// Decides at the end of a period.
    pub(crate) fn decide(&mut self, observed: &Observation) -> Decision {
        match self {
            Controller::Live(controller) => controller.decide(observed),
            Controller::Dry(preview) => preview.decide(observed),
        }
    }

    /// Returns the level of detail at which to sample the workload's code in the next period, if any.
    pub(crate) fn wants_code(&self) -> Option<SamplingDetail> {
        match self {
            Controller::Live(controller) => controller.wants_code(),
            Controller::Dry(_) => None,
        }
    }

    /// Passes code samples of the period that the next [`Self::decide`] gets.
    pub(crate) fn saw(&mut self, code: &Code) {
        if let Controller::Live(controller) = self {
            controller.saw(code);
        }
    }
}
