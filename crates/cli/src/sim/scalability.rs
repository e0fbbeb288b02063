//! `tandem sim scalability`: how far the programs of a scenario scale, on hardware and in their VMs.
//!
//! Each VM's program also runs alone, without a hypervisor, on as many CPUs as the VM has vCPUs, and on one.
//! From the first come utilization, workload parallelism, synchronization frequency and hence the type, and
//! the potential of the VM; from the scenario itself, the VM's speedup. Formulas and types are those of
//! Shan's dissertation (NJIT 2018), chapter 4, in `tandem_policy::scalability`; `usage` says what of the
//! simulator's times they are given.
//!
//! A speedup in a VM is relative to the CPU time that the VM was allocated: N if all of it was used. What was
//! really done, the work per second against one CPU's, is put beside both formulas: in the VM it is scaled up
//! from the CPU time allocated to N CPUs. The two differ by what the formulas leave out: cold caches, page
//! tables, the guest's kernel, and a program that does other work on many CPUs than on one.
//!
//! The allocation period is swept by `tandem sim compare --vary host.cfs.latency=…`, or here by `--set`.

pub mod usage;

use std::path::PathBuf;

use anyhow::Context;
use anyhow::ensure;
use clap::Args;
use serde::Serialize;
use tandem_policy::Nanos;
use tandem_policy::scalability::Fraction;
use tandem_policy::scalability::Speedup;
use tandem_policy::scalability::Type;
use tandem_policy::scalability::potential_efficiency;
use tandem_report::figure;
use tandem_report::table::Cell;
use tandem_report::table::Table;
use tandem_report::table::Tone;
use tandem_sim::Scenario;
use tandem_sim::World;
use tandem_sim::host::HostScheduler;
use tandem_sim::scenario::Mode;
use tandem_sim::scenario::Vm;
use tandem_sim::scenario::load;
use tandem_sim::sched::fair::Discipline;

use self::usage::Usage;
use super::execute;
use super::execute::Progress;
use super::input::ScenarioArgs;
use crate::console::print;
use crate::output;

/// `tandem sim scalability`
#[derive(Debug, Args)]
pub struct ScalabilityArgs {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// A thread that blocks once in this time synchronizes often [default: what a vCPU gets in a row where all
    /// are runnable]
    #[arg(long, value_name = "TIME")]
    timeslice: Option<String>,
    /// Write the analysis as JSON; without PATH to standard output, in place of the tables
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

/// A program on hardware.
#[derive(Clone, Copy, Debug)]
struct Alone {
    /// On as many CPUs as its VM has.
    native: Usage,
    /// On one, if it can run there and does any work.
    one: Option<Usage>,
}

/// The analysis of a scenario.
#[derive(Debug, Serialize)]
struct Analysis {
    scenario: String,
    seed: u64,
    /// Who blocks once in this time synchronizes often, ns.
    timeslice: Nanos,
    vms: Vec<VmAnalysis>,
}

/// The analysis of one VM.
#[derive(Debug, Serialize)]
struct VmAnalysis {
    name: String,
    workload: String,
    /// CPUs, N.
    n: u32,
    /// Active CPUs on average, on hardware.
    parallelism: f64,
    /// Voluntary switches of a thread per second, on hardware.
    synchronization: f64,
    /// 1 … 4.
    #[serde(rename = "type")]
    number: u8,
    class: Type,
    hardware: Scaling,
    /// Absent where the scenario itself has no hypervisor.
    #[serde(skip_serializing_if = "Option::is_none")]
    vm: Option<VmScaling>,
}

/// Used and lost.
#[derive(Clone, Copy, Debug, Serialize)]
struct Scaling {
    /// Part of the CPU time available that was used.
    efficiency: Fraction,
    /// N times that.
    speedup: Speedup,
    /// Work done, against one CPU; absent if the program cannot run on one, or did nothing there.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<Speedup>,
}

/// In the VM.
#[derive(Debug, Serialize)]
struct VmScaling {
    /// The fair share, in pCPUs.
    share: f64,
    /// What it received, in pCPUs.
    received: f64,
    #[serde(flatten)]
    scaling: Scaling,
    /// What the efficiency could be: min(1, utilization on hardware ÷ share).
    potential_efficiency: Fraction,
}

/// Runs what is needed and shows the analysis.
pub fn main(args: &ScalabilityArgs) -> anyhow::Result<()> {
    let scenario = args.scenario.source()?.scenario()?;
    output::check_json(args.json.as_deref())?;
    let timeslice = match &args.timeslice {
        None => timeslice(&scenario),
        Some(text) => load::time(text)
            .map_err(anyhow::Error::msg)
            .with_context(|| format!("--timeslice {text} is not possible"))?,
    };
    ensure!(
        timeslice > Nanos::ZERO,
        "--timeslice 0 is not possible: write a time such as 6ms"
    );
    let analysis = analyze(&scenario, timeslice)?;
    if !output::is_stdout(args.json.as_deref()) {
        print(&text(&scenario, &analysis))?;
    }
    output::write_json(args.json.as_deref(), &analysis)
}

/// What a vCPU gets in a row on the host where all vCPUs are runnable.
fn timeslice(scenario: &Scenario) -> Nanos {
    let vcpus: u64 = scenario.vms.iter().map(|vm| u64::from(vm.vcpus)).sum();
    let queued = vcpus.div_ceil(u64::from(scenario.machine.pcpus)).max(1);
    match scenario.host.scheduler {
        HostScheduler::Linux(Discipline::Cfs {
            latency,
            min_granularity,
            ..
        }) => Nanos(latency.0 / queued).max(min_granularity),
        HostScheduler::Linux(Discipline::Eevdf { base_slice }) => base_slice,
        HostScheduler::Credit(credit) => credit.timeslice,
    }
}

fn analyze(scenario: &Scenario, timeslice: Nanos) -> anyhow::Result<Analysis> {
    let runs = 1 + 2 * scenario.vms.len() as u64;
    let progress = Progress::begin(Nanos(scenario.duration.0.saturating_mul(runs)));
    let usages = |scenario: &Scenario| -> Vec<Usage> {
        progress.say(scenario.name.clone());
        let mut world = World::new(scenario);
        let results = execute::run(&mut world, scenario.duration, &progress);
        let vms = results.vms.iter();
        vms.map(|vm| Usage::of(vm, results.measured)).collect()
    };
    let inside = usages(scenario);
    let mut vms = Vec::new();
    // VMs that are alike need one run alone.
    let mut known: Vec<(&Vm, Alone)> = Vec::new();
    for (at, (vm, inside)) in scenario.vms.iter().zip(inside).enumerate() {
        let alike = |other: &&Vm| {
            other.vcpus == vm.vcpus && other.guest == vm.guest && other.workload == vm.workload
        };
        let alone = match known.iter().find(|(other, _)| alike(other)) {
            Some(&(_, alone)) => alone,
            None => {
                let run = |cpus: u32| -> Option<Usage> {
                    let scenario = usage::on_hardware(scenario, at, cpus)?;
                    usages(&scenario).first().copied()
                };
                let native = match scenario.machine.mode {
                    Mode::Native => inside,
                    Mode::Virtual => run(vm.vcpus).with_context(|| {
                        format!("the program of `{}` does not run on hardware", vm.name)
                    })?,
                };
                let one = run(1).filter(|one| one.work > 0.0);
                known.push((vm, Alone { native, one }));
                Alone { native, one }
            }
        };
        let Alone { native, one } = alone;
        let fair = usage::fair(scenario, inside.measured)[at];
        let features = native.features(timeslice);
        vms.push(VmAnalysis {
            name: vm.name.clone(),
            workload: vm.workload.name.clone(),
            n: vm.vcpus,
            parallelism: features.active,
            synchronization: features.voluntary_switches_per_second,
            number: features.class().number(),
            class: features.class(),
            hardware: hardware(&native, one.as_ref())?,
            vm: match scenario.machine.mode {
                Mode::Native => None,
                Mode::Virtual => Some(in_vm(&inside, fair, &native, one.as_ref())?),
            },
        });
    }
    Ok(Analysis {
        scenario: scenario.name.clone(),
        seed: scenario.seed,
        timeslice,
        vms,
    })
}

fn hardware(native: &Usage, one: Option<&Usage>) -> anyhow::Result<Scaling> {
    let run = native.physical();
    Ok(Scaling {
        efficiency: run.efficiency()?,
        speedup: run.speedup()?,
        measured: one.map(|one| Speedup(native.work_rate() / one.work_rate())),
    })
}

fn in_vm(
    inside: &Usage,
    fair: Nanos,
    native: &Usage,
    one: Option<&Usage>,
) -> anyhow::Result<VmScaling> {
    let run = inside.virtual_run(fair);
    let in_pcpus = |time: Nanos| time.as_secs_f64() / inside.measured.as_secs_f64();
    let utilization = native.physical().efficiency()?;
    let share = Fraction::new(in_pcpus(fair) / f64::from(inside.cpus))?;
    let up = f64::from(inside.cpus) / in_pcpus(run.allocated);
    Ok(VmScaling {
        share: in_pcpus(fair),
        received: in_pcpus(inside.received),
        scaling: Scaling {
            efficiency: run.efficiency()?,
            speedup: run.speedup()?,
            measured: one.map(|one| Speedup(inside.work_rate() / one.work_rate() * up)),
        },
        potential_efficiency: potential_efficiency(utilization, share)?,
    })
}

fn text(scenario: &Scenario, analysis: &Analysis) -> String {
    let mut table = Table::new(&[
        "VM",
        "workload",
        "N",
        "active",
        "blocks/s",
        "type",
        "on hardware",
        "done",
        "share",
        "received",
        "in the VM",
        "done",
        "possible",
    ]);
    let speedup = |speedup: Option<Speedup>| {
        speedup.map_or_else(String::new, |speedup| format!("{:.1}", speedup.0))
    };
    for vm in &analysis.vms {
        let of_vm = |cell: fn(&VmScaling) -> String| vm.vm.as_ref().map_or_else(String::new, cell);
        table.row([
            Cell::toned(&vm.name, Tone::Strong),
            vm.workload.as_str().into(),
            vm.n.to_string().into(),
            figure::pcpus(vm.parallelism).into(),
            figure::rate(vm.synchronization).into(),
            vm.number.to_string().into(),
            speedup(Some(vm.hardware.speedup)).into(),
            speedup(vm.hardware.measured).into(),
            of_vm(|vm| figure::pcpus(vm.share)).into(),
            of_vm(|vm| figure::pcpus(vm.received)).into(),
            Cell::from(speedup(vm.vm.as_ref().map(|vm| vm.scaling.speedup))),
            speedup(vm.vm.as_ref().and_then(|vm| vm.scaling.measured)).into(),
            match &vm.vm {
                None => Cell::default(),
                Some(of) => {
                    let possible = of.potential_efficiency.get() * f64::from(vm.n);
                    format!("{possible:.1}").into()
                }
            },
        ]);
    }
    let about = match scenario.about.as_str() {
        "" => String::new(),
        about => format!(": {about}"),
    };
    format!(
        "{}, seed {}{about}\n\n{table}\n\n\
         active: CPUs that run the program alone on hardware, of N; high from 75 % on. blocks/s: voluntary\n\
         switches of a thread; often from once in {} on. Type 1 scales on both, 2 on neither, 3 worse in a VM,\n\
         4 better in a VM. Speedups are N × the part of the CPU time available (in a VM: allocated) that was\n\
         used; done: by the work done, against one CPU; possible: what the VM's share allows.",
        analysis.scenario, analysis.seed, analysis.timeslice,
    )
}
