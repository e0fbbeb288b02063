//! The same workloads in the simulator, as one operating system on two CPUs without a hypervisor.

use anyhow::bail;
use rustix::time::ClockId;
use rustix::time::clock_getres;
use tandem_policy::Nanos;
use tandem_sim::Scenario;
use tandem_sim::World;
use tandem_sim::machine::Costs;
use tandem_sim::scenario::load;
use tandem_sim::workload::Workload;

/// Longer than any of the programs.
const MOST: Nanos = Nanos::from_secs(120);

/// The machine as the simulator is told of it.
#[derive(Clone, Debug)]
pub struct Machine {
    base: Scenario,
}

impl Machine {
    /// Two CPUs under the scheduler of a kernel of this release (EEVDF since 6.6), with its tick.
    pub fn new(release: &str) -> anyhow::Result<Machine> {
        let scheduler = scheduler(release)?;
        let text = format!(
            "duration = \"{}s\"\n[machine]\npcpus = {}\nmode = \"native\"\n[[vm]]\n\
             name = \"machine\"\nworkload = \"none\"\nscheduler = \"{scheduler}\"\n\
             tick = \"{}ns\"\n[[workload]]\nname = \"none\"\n[[workload.role]]\n\
             program = [{{ compute = \"1ns\" }}]\n",
            MOST.0 / 1_000_000_000,
            super::real::CPUS,
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
    pub fn run(&self, workload: &Workload) -> anyhow::Result<Vec<Nanos>> {
        let mut scenario = self.base.clone();
        scenario.vms[0].workload = workload.clone();
        let results = World::new(&scenario).run();
        let roles = results.vms[0].roles.iter();
        let finished: Option<Vec<Nanos>> = roles.map(|role| role.finished).collect();
        match finished {
            Some(finished) => Ok(finished),
            None => bail!(
                "workload {} does not end within {MOST} of simulated time",
                workload.name
            ),
        }
    }
}

/// The scheduler of a kernel of this release: EEVDF since 6.6, CFS before.
pub fn scheduler(release: &str) -> anyhow::Result<&'static str> {
    let mut numbers = release.split(['.', '-']).map(str::parse::<u32>);
    let version = match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => bail!("the kernel's release is \"{release}\": expected one like 6.12.3"),
    };
    Ok(if version >= (6, 6) { "eevdf" } else { "cfs" })
}

/// The kernel's clock tick: what its coarse clocks resolve.
pub fn tick() -> Nanos {
    let resolution = clock_getres(ClockId::MonotonicCoarse);
    let nanos = resolution.tv_sec as u64 * 1_000_000_000 + resolution.tv_nsec as u64;
    Nanos(nanos.clamp(100_000, 100_000_000))
}
