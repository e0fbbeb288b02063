//! The same setups in the simulator.
//!
//! [`text`] writes a setup as a scenario.
//! [`Host`] describes the machine: the running kernel's scheduler, tick and halt polling, and the costs that [`super::fit`] finds.
//! The guests have no operating system: each vCPU has one thread, and the work of a guest kernel costs nothing ([`Host::new`]).
//!
//! Sizes are TSC cycles in the microVM and times here; the VMs' calibration converts them.
//! The background load of the host is a VM ([`Rest`]).
//!
//! Periods do not follow the clock here.
//! The timer of a bursty vCPU is a thread that sleeps for one period at a time, so its delays accumulate.

use std::fmt::Write;

use tandem_microvm::{Calibration, ParameterError, Workload};
use tandem_sim::machine::Costs;
use tandem_sim::scenario::load;
use tandem_sim::scenario::load::LoadError;
use tandem_sim::{Results, Scenario, World};
use thiserror::Error;

use super::setup;
use super::setup::{Count, FOR_EVER, Guest, PCPUS, Places, Quantity, Setup};
use crate::rest::Rest;
use crate::this_kernel;
use crate::this_kernel::UnknownRelease;

/// Start-up time that is not counted, ms.
const WARM_UP_MS: u64 = 100;

/// Error of a simulated setup.
#[derive(Debug, Error)]
pub enum SimulatedError {
    /// A guest's settings do not match its workload.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// The workload lacks a parameter that its counterpart needs.
    #[error("{workload} has no {parameter}")]
    NoParameter {
        /// The workload.
        workload: Workload,
        /// The parameter.
        parameter: String,
    },
    /// The simulator has no waiters that spin for a limited time.
    #[error(
        "{workload} with spin={spin}: the simulator's {workload} has no waiters that spin for a \
         while; write spin=0 or spin={FOR_EVER}"
    )]
    SpinForAWhile {
        /// The workload.
        workload: Workload,
        /// Cycles of spinning.
        spin: u64,
    },
    /// The simulator supports only some settings of the workload.
    #[error("{workload} is compared with {settings} only")]
    Settings {
        /// The workload.
        workload: Workload,
        /// The supported settings.
        settings: &'static str,
    },
    /// The simulator has no counterpart of the workload.
    #[error("{0} has no counterpart in the simulator: its phases follow the clock")]
    NoCounterpart(Workload),
    /// The scenario does not load.
    #[error("the scenario of {setup}: {source}")]
    Load {
        /// The setup.
        setup: String,
        /// The cause.
        source: LoadError,
    },
}

/// Description of a kernel for the simulator.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// `eevdf` or `cfs`.
    pub scheduler: &'static str,
    /// Treatment of lag when a group's weight changes, as in a scenario's `eevdf.reweight`.
    pub reweight: &'static str,
    /// Settings of the scheduler, as in a scenario's `[host]`.
    pub fair: String,
    /// Clock tick, ns.
    pub tick_ns: u64,
    /// Maximum halt polling of KVM, ns.
    pub halt_poll_ns: u64,
}

impl Kernel {
    /// Describes the running kernel, given its release.
    pub fn here(release: &str) -> Result<Kernel, UnknownRelease> {
        Ok(Kernel {
            scheduler: this_kernel::scheduler(release)?,
            reweight: this_kernel::reweight(release)?,
            fair: this_kernel::fair(release)?,
            tick_ns: this_kernel::tick().0,
            halt_poll_ns: this_kernel::halt_poll(),
        })
    }
}

/// Description of the machine for the simulator.
#[derive(Clone, Debug)]
pub struct Host {
    /// The kernel.
    pub kernel: Kernel,
    /// Largest cgroup weight relative to the default.
    pub weight_range: f64,
    /// Background load. `None`: no load.
    pub rest: Option<Rest>,
    /// Calibration of the VMs, which converts sizes of work.
    pub calibration: Calibration,
    /// Costs of the machine.
    pub costs: Costs,
}

impl Host {
    /// Creates a machine with the default costs and without background load.
    ///
    /// Costs of a guest's operating system are 0, because the guests have none.
    /// `posted_interrupt` is the whole cost of an interrupt, because the probes cannot separate its parts.
    pub fn new(kernel: Kernel, weight_range: f64, calibration: Calibration) -> Host {
        let costs = Costs {
            timer_exit: 0,
            interrupt_handler: 0,
            thread_switch: 0,
            wakeup: 0,
            syscall: 0,
            futex_work: 0,
            tick_work: 0,
            tlb_flush: 0,
            queue_work: 0,
            timer_slack: 0,
            timer_work: 0,
            ..Costs::default()
        };
        Host { kernel, weight_range, rest: None, calibration, costs }
    }

    /// Converts TSC cycles to ns.
    fn nanos(&self, cycles: u64) -> u64 {
        let khz = u128::from(self.calibration.tsc_khz.max(1));
        (u128::from(cycles) * 1_000_000 / khz) as u64
    }

    /// Returns a size that varies by `jitter` percent, in a scenario's syntax.
    fn size(&self, cycles: u64, jitter: u64) -> String {
        let spread = cycles * jitter / 100;
        let (least, most) = (self.nanos(cycles - spread), self.nanos(cycles + spread));
        match spread {
            0 => format!("\"{least}ns\""),
            _ => format!("\"uniform({least}ns, {most}ns)\""),
        }
    }
}

/// Returns a setup as the text of a scenario.
///
/// `places` is the initial placement of the vCPUs; `None`: spread.
pub fn text(
    host: &Host,
    setup: &Setup,
    places: Option<&Places>,
    seconds: f64,
) -> Result<String, SimulatedError> {
    let kernel = &host.kernel;
    let heaviest = setup.guests.iter().map(|guest| guest.weight).max();
    let times = setup::times(host.weight_range, heaviest.unwrap_or(1));
    let duration_ms = WARM_UP_MS + (seconds * 1000.0).round().max(1.0) as u64;
    let mut out = format!(
        "about = \"calibration: {setup}\"\nduration = \"{duration_ms}ms\"\nwarmup = \
         \"{WARM_UP_MS}ms\"\n\n[machine]\npcpus = {PCPUS}\n\n[host]\nscheduler = \"{}\"\n\
         tick = \"{}ns\"\nticks = \"in-step\"\nhalt_poll = \"{}ns\"\n\
         pause_loop = {{ policy = \"off\" }}\n{}",
        kernel.scheduler, kernel.tick_ns, kernel.halt_poll_ns, kernel.fair,
    );
    for (i, guest) in setup.guests.iter().enumerate() {
        let pins: Vec<String> = (0..guest.vcpus)
            .map_while(|v| setup.pinning.pcpu(v))
            .map(|p| format!("\"{p}\""))
            .collect();
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "\n[[vm]]\nname = \"vm{i}\"\nvcpus = {}\nweight = {}\nworkload = \"work{i}\"\n\
             spin_locks = \"queued\"\ntick = \"100ms\"\nbalance = false\n",
            guest.vcpus,
            1024.0 * times * f64::from(guest.weight),
        );
        if !pins.is_empty() {
            let _ = writeln!(out, "pins = [{}]", pins.join(", "));
        }
        if let Some(places) = places.and_then(|places| places.get(i)) {
            let places: Vec<String> = places.iter().map(u32::to_string).collect();
            let _ = writeln!(out, "begins_on = [{}]", places.join(", "));
        }
        out.push_str(&workload(host, guest, &format!("work{i}"))?);
    }
    if let Some(rest) = host.rest {
        out.push_str(&rest.vm(PCPUS));
    }
    Ok(out)
}

/// Returns a workload role with a thread on each of these vCPUs.
fn role(name: &str, vcpus: std::ops::Range<u32>, before: &str, turn: &str) -> String {
    let pins: Vec<String> = vcpus.clone().map(|v| v.to_string()).collect();
    format!(
        "[[workload.role]]\nname = \"{name}\"\nthreads = {}\npins = [{}]\nprogram = [{before}{{ \
         forever = [{turn}] }}]\n",
        vcpus.len(),
        pins.join(", "),
    )
}

fn workload(host: &Host, guest: &Guest, name: &str) -> Result<String, SimulatedError> {
    let parameters = guest.parameters()?;
    let value = |wanted: &str| -> Result<u64, SimulatedError> {
        let mut all = parameters.iter();
        let found = all.find(|(parameter, _)| parameter.name == wanted);
        let found = found.ok_or_else(|| SimulatedError::NoParameter {
            workload: guest.workload,
            parameter: wanted.to_owned(),
        })?;
        Ok(found.1)
    };
    let jitter = value("jitter")?;
    let size = |wanted: &str| Ok::<_, SimulatedError>(host.size(value(wanted)?, jitter));
    // Waiters either block at once or never.
    let never_blocks = |spin: u64| match spin {
        0 => Ok(false),
        spin if host.nanos(spin) > 60_000_000_000 => Ok(true),
        _ => Err(SimulatedError::SpinForAWhile { workload: guest.workload, spin }),
    };
    let n = guest.vcpus;
    let (objects, roles) = match guest.workload {
        Workload::Burn => (
            String::new(),
            role("vcpu", 0..n, "", &format!("{{ compute = {} }}, \"work\"", size("work")?)),
        ),
        Workload::Spinlock | Workload::Mutex => {
            let kind = match guest.workload {
                Workload::Spinlock => "{ kind = \"spin\", lock = \"ticket\", space = \"user\" }",
                _ if never_blocks(value("spin")?)? => {
                    "{ kind = \"spin\", lock = \"test-and-set\", space = \"user\" }"
                }
                _ => "\"mutex\"",
            };
            let turn = format!(
                "{{ compute = {} }}, {{ locked = \"lock\", do = [{{ compute = {} }}] }}, \"work\"",
                size("outside")?,
                size("inside")?
            );
            (format!("lock = {kind}\n"), role("vcpu", 0..n, "", &turn))
        }
        Workload::Barrier => {
            let spins = value("wait")? == 0 || never_blocks(value("spin")?)?;
            let wait = if spins { "spin" } else { "block" };
            let turn =
                format!("{{ compute = {} }}, {{ barrier = \"all\" }}, \"work\"", size("work")?);
            (
                format!("all = {{ kind = \"barrier\", wait = \"{wait}\" }}\n"),
                role("vcpu", 0..n, "", &turn),
            )
        }
        Workload::Forkjoin => forkjoin(&size("serial")?, &size("parallel")?, {
            if value("rotate")? != 0 || never_blocks(value("spin")?)? {
                return Err(SimulatedError::Settings {
                    workload: guest.workload,
                    settings: "rotate=no and spin=0",
                });
            }
            n
        }),
        Workload::Pipeline => {
            if never_blocks(value("spin")?)? {
                return Err(SimulatedError::Settings {
                    workload: guest.workload,
                    settings: "spin=0",
                });
            }
            pipeline(&size("work")?, value("capacity")?, n)
        }
        Workload::Shootdown => (
            String::new(),
            role("first", 0..1, "", &format!("{{ unmap = {} }}, \"work\"", size("gap")?))
                + &role(
                    "others",
                    1..n,
                    "",
                    &format!("{{ compute = {} }}, \"work\"", size("work")?),
                ),
        ),
        Workload::Server => return Err(SimulatedError::NoCounterpart(guest.workload)),
        Workload::Bursty => {
            let period = host.nanos(value("period")?);
            let timer = format!("{{ sleep = \"{period}ns\" }}, {{ release = \"due[own]\" }}");
            let turn = format!(
                "{{ acquire = \"due[own]\" }}, {{ compute = {} }}, \"work\"",
                size("work")?
            );
            let before = format!("{{ sleep = \"uniform(0ns, {period}ns)\" }}, ");
            (
                format!("due = {{ kind = \"semaphore\", units = 0, count = {n} }}\n"),
                role("vcpu", 0..n, "", &turn) + &role("timer", 0..n, &before, &timer),
            )
        }
    };
    Ok(format!("\n[[workload]]\nname = \"{name}\"\n[workload.objects]\n{objects}{roles}"))
}

/// The leader opens a semaphore for each follower, and all meet at a barrier.
fn forkjoin(serial: &str, parallel: &str, n: u32) -> (String, String) {
    let join = format!("{{ compute = {parallel} }}, {{ barrier = \"join\" }}, \"work\"");
    let mut objects = "join = { kind = \"barrier\", wait = \"block\" }\n".to_owned();
    let mut leader = format!("{{ compute = {serial} }}, ");
    if n == 1 {
        return (objects, role("leader", 0..1, "", &(leader + &join)));
    }
    let followers = n - 1;
    objects
        .push_str(&format!("fork = {{ kind = \"semaphore\", units = 0, count = {followers} }}\n"));
    for follower in 0..followers {
        leader.push_str(&format!("{{ release = \"fork[{follower}]\" }}, "));
    }
    let follower = format!("{{ acquire = \"fork[own]\" }}, {join}");
    let roles =
        role("leader", 0..1, "", &(leader + &join)) + &role("follower", 1..n, "", &follower);
    (objects, roles)
}

/// A pipeline with a stage on each vCPU and queues in between.
fn pipeline(work: &str, capacity: u64, n: u32) -> (String, String) {
    let mut objects = String::new();
    let mut roles = String::new();
    for stage in 0..n {
        let mut turn = String::new();
        if stage > 0 {
            turn.push_str(&format!("{{ get = \"q{stage}\" }}, "));
        }
        turn.push_str(&format!("{{ compute = {work} }}, "));
        if stage + 1 < n {
            let next = stage + 1;
            objects.push_str(&format!("q{next} = {{ kind = \"queue\", capacity = {capacity} }}\n"));
            turn.push_str(&format!("{{ put = \"q{next}\" }}, "));
        }
        turn.push_str("\"work\"");
        roles.push_str(&role(&format!("stage{stage}"), stage..stage + 1, "", &turn));
    }
    (objects, roles)
}

/// Returns a setup as a scenario with this host's costs.
pub fn scenario(
    host: &Host,
    setup: &Setup,
    places: Option<&Places>,
    seconds: f64,
) -> Result<Scenario, SimulatedError> {
    let text = text(host, setup, places, seconds)?;
    let read = load::from_text("calibration", &text);
    let mut scenario =
        read.map_err(|source| SimulatedError::Load { setup: setup.to_string(), source })?;
    scenario.machine.costs = host.costs;
    Ok(scenario)
}

/// Simulates a setup with a seed.
pub fn run(
    host: &Host,
    setup: &Setup,
    places: Option<&Places>,
    seconds: f64,
    seed: u64,
) -> Result<Results, SimulatedError> {
    let mut scenario = scenario(host, setup, places, seconds)?;
    scenario.seed = seed;
    Ok(World::new(&scenario).run())
}

/// Returns a quantity from the results of a simulation, items per second.
pub fn rate(quantity: &Quantity, results: &Results) -> f64 {
    let seconds = results.measured.0 as f64 / 1e9;
    let Some(vm) = results.vms.get(quantity.guest) else {
        return 0.0;
    };
    let first = vm.roles.first().map_or(0, |role| role.work);
    let work = match quantity.count {
        Count::All => vm.work,
        Count::First => first,
        Count::Others => vm.work.saturating_sub(first),
    };
    work as f64 / seconds.max(1e-9)
}

/// Returns the mean of a quantity over some seeds; `places` is as in [`text`].
pub fn mean_rate(
    host: &Host,
    quantity: &Quantity,
    places: Option<&Places>,
    seconds: f64,
    seeds: std::ops::Range<u64>,
) -> Result<f64, SimulatedError> {
    let (mut sum, count) = (0.0, seeds.end.saturating_sub(seeds.start));
    for seed in seeds {
        sum += rate(quantity, &run(host, &quantity.setup, places, seconds, seed)?);
    }
    Ok(sum / count.max(1) as f64)
}

/// Fixtures for tests.
#[cfg(test)]
pub mod testing {
    use super::Kernel;

    /// A kernel before 6.13, which does not inflate lag when a weight changes.
    pub fn kernel() -> Kernel {
        Kernel {
            scheduler: "eevdf",
            reweight: "reverted",
            fair: "eevdf = { base_slice = \"1500us\", reweight = \"reverted\" }\n".to_owned(),
            tick_ns: 4_000_000,
            halt_poll_ns: 200_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::setup;
    use super::*;

    fn host() -> Host {
        let calibration = Calibration { tsc_khz: 2_000_000, steps_per_mebicycle: 300_000 };
        Host::new(testing::kernel(), 256.0, calibration)
    }

    #[test]
    fn every_setup_loads_and_does_work() {
        let comparisons = setup::comparisons(&setup::COMPARED);
        let quantities: Vec<&Quantity> =
            comparisons.iter().flat_map(|c| [&c.over, &c.under]).collect();
        for quantity in quantities {
            let results = run(&host(), &quantity.setup, None, 0.1, 1).unwrap();
            assert!(rate(quantity, &results) > 0.0, "{}", quantity.setup);
        }
    }

    #[test]
    fn background_load_is_last_vm_with_measured_share() {
        let quantity = setup::reference();
        let mut host = host();
        // With large weights of the VMs it would receive less.
        host.weight_range = 1.0;
        host.rest = Some(Rest { every_ns: 10_000_000, for_ns: 1_000_000 });
        let results = run(&host, &quantity.setup, None, 4.0, 1).unwrap();
        let names: Vec<&str> = results.vms.iter().map(|vm| vm.name.as_str()).collect();
        assert_eq!(names, ["vm0", "rest"]);
        let part = results.vms[1].received.0 as f64 / (2 * results.measured.0) as f64;
        assert!((0.08..0.13).contains(&part), "{part} of a tenth");
    }

    #[test]
    fn stacked_spinning_vms_stay_stacked() {
        let two = setup::comparisons_of(Workload::Spinlock).remove(1).over;
        assert!(two.setup.to_string().ends_with("not pinned"));
        let rate = |places: [[u32; 2]; 2]| {
            let places: Places = places.iter().map(|of| of.to_vec()).collect();
            mean_rate(&host(), &two, Some(&places), 0.5, 1..2).unwrap()
        };
        let (stacked, spread) = (rate([[0, 0], [1, 1]]), rate([[0, 1], [0, 1]]));
        assert!(stacked < spread / 50.0, "{stacked}, {spread}");
    }

    #[test]
    fn pcpus_with_ticks_in_step_switch_together() {
        let shootdowns = setup::comparisons_of(Workload::Shootdown).remove(0).over;
        assert!(shootdowns.setup.to_string().ends_with(", pinned"));
        let rate = |ticks: &str| {
            let text = text(&host(), &shootdowns.setup, None, 0.5).unwrap();
            let text = text.replace("\"in-step\"", ticks);
            let mut scenario = load::from_text("ticks", &text).unwrap();
            scenario.machine.costs = host().costs;
            super::rate(&shootdowns, &World::new(&scenario).run())
        };
        // The initiator needs its sibling to run as well: half of the time in step, a quarter otherwise.
        let (in_step, spread) = (rate("\"in-step\""), rate("\"spread\""));
        assert!(in_step > 1.6 * spread, "{in_step}, {spread}");
    }

    #[test]
    fn vm_alone_computes_items_by_cycles() {
        // An item of 100 000 cycles takes 50 µs at 2 GHz: 20 000 items a second on each of two pCPUs.
        let rate = mean_rate(&host(), &setup::reference(), None, 0.2, 1..2).unwrap();
        assert!((rate / 40_000.0 - 1.0).abs() < 0.001, "{rate}");
    }

    #[test]
    fn only_server_has_no_counterpart() {
        for workload in Workload::ALL {
            let has = setup::COMPARED.contains(&workload);
            assert_eq!(has, workload != Workload::Server, "{workload}");
        }
        let guest = Guest { workload: Workload::Server, settings: &[], vcpus: 1, weight: 1 };
        let error = workload(&host(), &guest, "w").unwrap_err().to_string();
        assert!(error.contains("server has no counterpart"), "{error}");
    }

    #[test]
    fn limited_spinning_has_no_counterpart() {
        let guest =
            Guest { workload: Workload::Mutex, settings: &["spin=10k"], vcpus: 2, weight: 1 };
        let error = workload(&host(), &guest, "w").unwrap_err().to_string();
        assert!(error.contains("write spin=0"), "{error}");
    }
}
