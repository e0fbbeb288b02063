//! `tandem sim kernel`: does the simulator schedule threads as the kernel that runs here does?
//!
//! The same thread programs run as plain threads on CPUs 0 and 1 ([`real`]) and in the simulator's
//! `native` mode with two CPUs and the running kernel's scheduler and tick ([`simulated`]). What the
//! kernel's work costs on this machine is measured first by other programs ([`calibrate`]). Compared
//! are ratios: each program's run time, and that of each of its roles, over the run time of two
//! threads that only compute. Real runs are interleaved, the reference with them, and medians of the
//! ratios are taken, so that a machine that is slower for a while matters little.
//!
//! It needs a quiet machine: whatever else runs takes time from the real programs only. The load
//! before the measurement is part of the report.

mod calibrate;
mod objects;
mod real;
mod simulated;

use std::path::Path;
use std::path::PathBuf;

use anyhow::Context;
use anyhow::bail;
use clap::Args;
use serde::Serialize;
use tandem_report::Table;
use tandem_sim::workload::Workload;
use tandem_sim::workload::parse;

use crate::console::print;
use crate::output;
use real::Speed;
use simulated::Machine;
pub(super) use simulated::scheduler;
pub(super) use simulated::tick;
use tandem_experiment::averages;

/// The program that others are set against.
const REFERENCE: &str = "[[role]]\nname = \"compute\"\nthreads = 2\npins = [0, 1]\n\
                         program = [{ repeat = 20, do = [{ compute = \"5ms\" }] }]";

/// A ratio may be off by so much.
const TOLERANCE: f64 = 0.10;

/// `tandem sim kernel`
#[derive(Debug, Args)]
pub struct KernelArgs {
    /// Workload files, or folders of them, whose programs end
    #[arg(value_name = "WORKLOAD", default_value = "scenarios/kernel")]
    workloads: Vec<PathBuf>,
    /// Real runs of each program; medians count
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Write all figures as JSON; without PATH to standard output, in place of the table
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

/// Everything measured.
#[derive(Debug, Serialize)]
struct Comparison {
    kernel: String,
    tick_ns: u64,
    load_average: String,
    runs: u32,
    reference_real_ns: f64,
    reference_simulated_ns: f64,
    calibration: Vec<calibrate::Found>,
    programs: Vec<Program>,
    within: usize,
}

/// One program.
#[derive(Debug, Serialize)]
struct Program {
    name: String,
    roles: Vec<RoleRatio>,
    /// Whether all its roles are within the tolerance.
    within: bool,
}

/// One role of a program.
#[derive(Debug, Serialize)]
struct RoleRatio {
    role: String,
    real_ns: f64,
    real_ratio: f64,
    /// Smallest and largest ratio of the real runs.
    real_range: (f64, f64),
    simulated_ratio: f64,
    /// Simulated over real, less one.
    difference: f64,
}

/// Carries it out.
pub fn main(args: &KernelArgs) -> anyhow::Result<()> {
    output::check_json(args.json.as_deref())?;
    let workloads = read(&args.workloads)?;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus < real::CPUS as usize {
        bail!("the comparison needs CPUs 0 and 1; this process may use {cpus} CPU");
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .context("cannot read which kernel runs here")?
        .trim()
        .to_owned();
    let load_average = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let mut machine = Machine::new(&release)?;
    eprintln!("measuring what the kernel's work costs here …");
    let calibration = calibrate::calibrate(&mut machine)?;
    let reference = parse::from_text("reference", REFERENCE)?;
    let rounds = measure(&workloads, &reference, args.runs)?;
    let reference_simulated = last(&simulated_ends(&machine, &reference)?);
    let mut programs = Vec::new();
    for (w, workload) in workloads.iter().enumerate() {
        let simulated = simulated_ends(&machine, workload)?;
        let roles = workload.roles.iter().enumerate().map(|(r, role)| {
            let mut ratios: Vec<f64> = rounds.iter().map(|x| x.times[w][r] / x.reference).collect();
            let mut times: Vec<f64> = rounds.iter().map(|x| x.times[w][r]).collect();
            let real_ratio = median(&mut ratios);
            let simulated_ratio = simulated[r] / reference_simulated;
            RoleRatio {
                role: role.name.clone(),
                real_ns: median(&mut times),
                real_ratio,
                real_range: (ratios[0], ratios[ratios.len() - 1]),
                simulated_ratio,
                difference: simulated_ratio / real_ratio - 1.0,
            }
        });
        let roles: Vec<RoleRatio> = roles.collect();
        programs.push(Program {
            name: workload.name.clone(),
            within: roles.iter().all(|r| r.difference.abs() <= TOLERANCE),
            roles,
        });
    }
    let mut references: Vec<f64> = rounds.iter().map(|round| round.reference).collect();
    let comparison = Comparison {
        kernel: release,
        tick_ns: simulated::tick().0,
        load_average: load_average.trim().to_owned(),
        runs: args.runs,
        reference_real_ns: median(&mut references),
        reference_simulated_ns: reference_simulated,
        calibration,
        within: programs.iter().filter(|p| p.within).count(),
        programs,
    };
    if !output::is_stdout(args.json.as_deref()) {
        print(&text(&comparison))?;
    }
    output::write_json(args.json.as_deref(), &comparison)
}

/// One real run of everything.
struct Round {
    reference: f64,
    /// For each workload and role when it ended, ns.
    times: Vec<Vec<f64>>,
}

fn measure(workloads: &[Workload], reference: &Workload, runs: u32) -> anyhow::Result<Vec<Round>> {
    let mut rounds = Vec::new();
    for run in 1..=runs {
        eprintln!("real run {run} of {runs} …");
        let mut times = Vec::new();
        let mut references = Vec::new();
        for workload in workloads {
            let speed = Speed::measure(reference)?;
            references.push(last(&nanos(&real::run(reference, speed)?)));
            let speed = Speed::measure(workload)?;
            times.push(nanos(&real::run(workload, speed)?));
        }
        rounds.push(Round {
            reference: median(&mut references),
            times,
        });
    }
    Ok(rounds)
}

fn nanos(finished: &[std::time::Duration]) -> Vec<f64> {
    finished.iter().map(|t| t.as_nanos() as f64).collect()
}

fn last(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}

fn simulated_ends(machine: &Machine, workload: &Workload) -> anyhow::Result<Vec<f64>> {
    let ends = machine.run(workload)?;
    Ok(ends.iter().map(|end| end.0 as f64).collect())
}

/// The median, zero of nothing; sorts.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    averages::middle(values).unwrap_or(0.0)
}

/// The report for a terminal.
fn text(comparison: &Comparison) -> String {
    let mut costs = Table::new(&["cost, ns", "table", "measured here"]);
    for found in &comparison.calibration {
        let measured = found.measured.map_or("—".to_owned(), |ns| ns.to_string());
        costs.row([found.cost.to_owned(), found.table.to_string(), measured]);
    }
    let mut ratios = Table::new(&[
        "program",
        "role",
        "real",
        "real ratio",
        "real runs",
        "simulated ratio",
        "difference",
        "within 10 %",
    ]);
    for program in &comparison.programs {
        for role in &program.roles {
            let within = match role.difference.abs() <= TOLERANCE {
                true => "yes",
                false => "NO",
            };
            ratios.row([
                program.name.clone(),
                role.role.clone(),
                format!("{:.1} ms", role.real_ns / 1e6),
                format!("{:.3}", role.real_ratio),
                format!("{:.3} … {:.3}", role.real_range.0, role.real_range.1),
                format!("{:.3}", role.simulated_ratio),
                format!("{:+.1} %", role.difference * 100.0),
                within.to_owned(),
            ]);
        }
    }
    format!(
        "Linux {}, tick {} ms, load average before: {}\n\n{costs}\n\nReference: two threads \
         computing, {:.1} ms real, {:.1} ms simulated; medians of {} runs.\n\n{ratios}\n\n{} of {} \
         programs are within {} % in every role.",
        comparison.kernel,
        comparison.tick_ns as f64 / 1e6,
        comparison.load_average,
        comparison.reference_real_ns / 1e6,
        comparison.reference_simulated_ns / 1e6,
        comparison.runs,
        comparison.within,
        comparison.programs.len(),
        TOLERANCE * 100.0,
    )
}

/// Reads workload files, and all those in folders in the order of their names.
fn read(paths: &[PathBuf]) -> anyhow::Result<Vec<Workload>> {
    let mut files: Vec<PathBuf> = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let folder = std::fs::read_dir(path);
        let folder = folder.with_context(|| format!("cannot read {}", path.display()))?;
        let mut found: Vec<PathBuf> = Vec::new();
        for entry in folder {
            let file = entry?.path();
            if file
                .extension()
                .is_some_and(|extension| extension == "toml")
            {
                found.push(file);
            }
        }
        found.sort();
        files.extend(found);
    }
    if files.is_empty() {
        bail!("there are no workloads (*.toml) in {:?}", paths);
    }
    files.iter().map(|file| one(file)).collect()
}

fn one(file: &Path) -> anyhow::Result<Workload> {
    let text = std::fs::read_to_string(file);
    let text = text.with_context(|| format!("cannot read {}", file.display()))?;
    let workload = parse::from_text(&file.to_string_lossy(), &text)?;
    parse::fits(&workload, real::CPUS, real::CPUS)
        .map_err(|message| anyhow::anyhow!("{}: {message}", file.display()))?;
    real::check(&workload).with_context(|| format!("{} cannot be compared", file.display()))?;
    Ok(workload)
}
