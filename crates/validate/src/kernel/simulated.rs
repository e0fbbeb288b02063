//! The same workloads in the simulator, as one operating system on two CPUs without a hypervisor.

use tandem_policy::Nanos;
use tandem_sim::Scenario;
use tandem_sim::World;
use tandem_sim::machine::Costs;
use tandem_sim::scenario::load;
use tandem_sim::scenario::load::LoadError;
use tandem_sim::workload::Workload;
use thiserror::Error;

use super::cpus::CPUS;
use crate::this_kernel::UnknownRelease;
use crate::this_kernel::scheduler;
use crate::this_kernel::tick;

/// Why a workload did not run in the simulator.
#[derive(Debug, Error)]
pub enum SimulatedError {
    /// Which scheduler the kernel has cannot be told.
    #[error(transparent)]
    Release(#[from] UnknownRelease),
    /// The machine's scenario is none.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// It goes on and on.
    #[error("workload {workload} does not end within {MOST} of simulated time")]
    Endless {
        /// Which.
        workload: String,
    },
}

/// Longer than any of the programs.
const MOST: Nanos = Nanos::from_secs(120);

/// The machine as the simulator is told of it.
#[derive(Clone, Debug)]
pub struct Machine {
    base: Scenario,
}

impl Machine {
    /// Two CPUs under the scheduler of a kernel of this release (EEVDF since 6.6), with its tick.
    pub fn new(release: &str) -> Result<Machine, SimulatedError> {
        let scheduler = scheduler(release)?;
        let text = format!(
            "duration = \"{}s\"\n[machine]\npcpus = {}\nmode = \"native\"\n[[vm]]\n\
             name = \"machine\"\nworkload = \"none\"\nscheduler = \"{scheduler}\"\n\
             tick = \"{}ns\"\n[[workload]]\nname = \"none\"\n[[workload.role]]\n\
             program = [{{ compute = \"1ns\" }}]\n",
            MOST.0 / 1_000_000_000,
            CPUS,
            tick().0,
        );
        let base = load::from_text("kernel comparison", &text)?;
        Ok(Machine { base })
    }

    /// The costs now in use.
    pub fn costs(&mut self) -> &mut Costs {
        &mut self.base.machine.costs
    }

    /// Runs a workload; when the last thread of each role ended.
    pub fn run(&self, workload: &Workload) -> Result<Vec<Nanos>, SimulatedError> {
        let mut scenario = self.base.clone();
        scenario.vms[0].workload = workload.clone();
        let results = World::new(&scenario).run();
        let roles = results.vms[0].roles.iter();
        let finished: Option<Vec<Nanos>> = roles.map(|role| role.finished).collect();
        match finished {
            Some(finished) => Ok(finished),
            None => Err(SimulatedError::Endless {
                workload: workload.name.clone(),
            }),
        }
    }
}
