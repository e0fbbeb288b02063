//! `tandem sim survey`: every policy with every program, on a host that is overcommitted more and more.
//!
//! At 1× the program's VM has the 16 pCPUs to itself, at 2× it shares them with a VM that only computes, at
//! 4× two of it share them with two of those (`scenarios/papers/survey-*.toml`). Of each policy in each
//! place three things are told:
//!
//! - *throughput*: the geometric mean over all VMs of their work relative to stock in the same place;
//! - *unfairness*: how much slower the VM that is slowed down most is than the one slowed down least, each
//!   against itself alone on the host under stock (the ratio of largest to least slowdown; 1 is fair);
//! - *worst*: the least work of a VM relative to stock in the same place, and which VM that is.
//!
//! Then, which policy does best where, and where each hurts most. A program that does no unit of
//! work in the time that is simulated is reported as not measured.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::ensure;
use clap::Args;
use serde::Serialize;
use tandem_report::table::Cell;
use tandem_report::table::Table;
use tandem_report::table::Tone;

use super::execute;
use super::output;
use super::programs;
use super::reproduce::lab::Lab;
use super::reproduce::lab::Outcome;
use super::reproduce::lab::Trial;
use super::reproduce::sample::Sample;
use crate::demo::print;

/// What everything is relative to.
const STOCK: &str = "stock";

/// Policies and baselines, alone and joined.
const POLICIES: [&str; 23] = [
    STOCK,
    "ple-off",
    "fixed",
    "aple",
    "hvs",
    "cpth-r",
    "cpth-l",
    "cch",
    "apples",
    "flexw",
    "flexs",
    "flex",
    "eevdf",
    "credit",
    "pin",
    "balance",
    "cap",
    "gang",
    "demand",
    "balance+cap+gang",
    "demand+cap",
    "apples+flexw",
    "apples+flex",
];

/// How often the host is overcommitted.
const OVERCOMMIT: [u32; 3] = [1, 2, 4];

/// Below this a VM's work counts as hurt.
const HURT: f64 = 0.95;

/// So many places are named where a policy hurts.
const NAMED: usize = 3;

/// `tandem sim survey`
#[derive(Debug, Args)]
pub struct SurveyArgs {
    /// Policies besides stock, such as aple,hvs,apples+flexw [default: all]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    policies: Vec<String>,
    /// Programs of workloads/ [default: all that have a profile]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    workloads: Vec<String>,
    /// How often the host is overcommitted: 1, 2, 4 [default: all]
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    overcommit: Vec<u32>,
    /// Runs of each, with seeds one apart, 1 … 1000
    #[arg(long, value_name = "N", default_value_t = 2)]
    runs: u32,
    /// Worker threads [default: one for each CPU]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// The folder of the scenarios [default: scenarios/papers, here or above]
    #[arg(long, value_name = "DIR")]
    scenarios: Option<PathBuf>,
    /// Write all figures as JSON; without PATH to standard output, in place of the tables
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

/// One policy in one place.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Entry {
    workload: String,
    overcommit: u32,
    policy: String,
    /// Geometric mean over the VMs of work relative to stock; null: not measured.
    throughput: Option<f64>,
    /// Largest over least slowdown against alone.
    unfairness: Option<f64>,
    /// The least work of a VM relative to stock.
    worst: Option<f64>,
    /// Which VM that is.
    victim: Option<String>,
}

/// Runs the survey.
pub fn main(args: &SurveyArgs) -> anyhow::Result<()> {
    let workers = execute::workers(args.runs, args.workers)?;
    output::check_json(args.json.as_deref())?;
    let mut policies: Vec<&str> = chosen(&args.policies, &POLICIES);
    if !policies.contains(&STOCK) {
        policies.insert(0, STOCK);
    }
    let workloads = chosen(&args.workloads, &programs::all());
    let overcommit = match args.overcommit.as_slice() {
        [] => OVERCOMMIT.to_vec(),
        some => some.to_vec(),
    };
    for times in &overcommit {
        ensure!(
            OVERCOMMIT.contains(times),
            "--overcommit {times} is not possible: 1, 2 or 4"
        );
    }
    let mut lab = Lab::open(args.scenarios.as_deref(), args.runs)?;
    // Asked twice, as the judges of published claims are: the first time for what is needed.
    survey(&mut lab, &policies, &workloads, &overcommit)?;
    lab.run_all(workers)?;
    let entries = survey(&mut lab, &policies, &workloads, &overcommit)?;
    if !output::is_stdout(args.json.as_deref()) {
        print(&show(&entries, &policies, &workloads, &overcommit))?;
    }
    output::write_json(args.json.as_deref(), &entries)
}

fn chosen<'a>(asked: &'a [String], all: &[&'a str]) -> Vec<&'a str> {
    match asked {
        [] => all.to_vec(),
        some => some.iter().map(String::as_str).collect(),
    }
}

fn trial(times: u32, workload: &str, policy: &str) -> Trial {
    let scenario = format!("survey-{times}x");
    let place = Trial::of(&scenario).set("vm.program.workload", workload);
    place.policy(policy)
}

/// All entries; before the lab has run, only what is needed is noted down.
fn survey(
    lab: &mut Lab,
    policies: &[&str],
    workloads: &[&str],
    overcommit: &[u32],
) -> anyhow::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let computing = lab
        .run(&trial(1, "matmul", STOCK))?
        .of("program", "work_rate");
    for &workload in workloads {
        let program = lab
            .run(&trial(1, workload, STOCK))?
            .of("program", "work_rate");
        for &times in overcommit {
            let stock = lab.run(&trial(times, workload, STOCK))?;
            for &policy in policies {
                let ours = lab.run(&trial(times, workload, policy))?;
                let alone = |vm: &str| match vm.starts_with("matmul") {
                    true => &computing,
                    false => &program,
                };
                entries.push(entry((workload, times, policy), &ours, &stock, alone));
            }
        }
    }
    Ok(entries)
}

/// What came out of a policy against stock; `alone` is each VM's rate alone.
fn entry<'a>(
    (workload, overcommit, policy): (&str, u32, &str),
    ours: &Outcome,
    stock: &Outcome,
    alone: impl Fn(&str) -> &'a Sample,
) -> Entry {
    let mut gains: Vec<(f64, &str)> = Vec::new();
    let mut slowdowns: Vec<f64> = Vec::new();
    for vm in ours.vms() {
        let rate = ours.of(vm, "work_rate");
        gains.push((rate.over(&stock.of(vm, "work_rate")).mean(), vm));
        slowdowns.push(alone(vm).over(&rate).mean());
    }
    let measured = !gains.is_empty()
        && gains
            .iter()
            .all(|(gain, _)| gain.is_finite() && *gain > 0.0)
        && slowdowns.iter().all(|slowdown| slowdown.is_finite());
    let worst = gains.iter().min_by(|a, b| a.0.total_cmp(&b.0));
    let logs: f64 = gains.iter().map(|(gain, _)| gain.ln()).sum();
    let largest = slowdowns.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let least = slowdowns.iter().copied().fold(f64::INFINITY, f64::min);
    let when = |value: f64| measured.then_some(value);
    Entry {
        workload: workload.to_owned(),
        overcommit,
        policy: policy.to_owned(),
        throughput: when((logs / gains.len() as f64).exp()),
        unfairness: when(largest / least),
        worst: worst.and_then(|worst| when(worst.0)),
        victim: worst.filter(|_| measured).map(|worst| worst.1.to_owned()),
    }
}

fn geometric_mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let logs: Vec<f64> = values.map(f64::ln).collect();
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

fn two_digits(value: Option<f64>) -> String {
    value.map_or_else(|| "not measured".to_owned(), |value| format!("{value:.2}"))
}

/// Where something was.
fn place(entry: &Entry) -> String {
    format!("{} {}×", entry.workload, entry.overcommit)
}

/// The tables for people.
fn show(entries: &[Entry], policies: &[&str], workloads: &[&str], overcommit: &[u32]) -> String {
    let mut text = String::from("Each policy over all programs: geometric mean of throughput\n\n");
    text += &by_policy(entries, policies, overcommit).to_string();
    text += "\n\nEach program: the best policy, and what it does\n\n";
    text += &by_workload(entries, workloads, overcommit).to_string();
    let missing: Vec<String> = entries
        .iter()
        .filter(|entry| entry.throughput.is_none())
        .map(|entry| format!("{} {}", place(entry), entry.policy))
        .collect();
    if !missing.is_empty() {
        text += &format!("\n\nNot measured: {}", missing.join(", "));
    }
    text + "\n"
}

fn by_policy(entries: &[Entry], policies: &[&str], overcommit: &[u32]) -> Table {
    let times: Vec<String> = overcommit.iter().map(|times| format!("{times}×")).collect();
    let mut headings = vec!["policy"];
    headings.extend(times.iter().map(String::as_str));
    headings.extend(["unfairness", "worst", "best where", "hurts where"]);
    let mut table = Table::new(&headings);
    let best = winners(entries);
    for &policy in policies {
        let own = || entries.iter().filter(|entry| entry.policy == policy);
        let mut cells: Vec<Cell> = vec![Cell::toned(policy, Tone::Strong)];
        for &times in overcommit {
            let there = own().filter(|entry| entry.overcommit == times);
            cells.push(two_digits(geometric_mean(there.filter_map(|e| e.throughput))).into());
        }
        cells.push(two_digits(geometric_mean(own().filter_map(|e| e.unfairness))).into());
        let worst = own().filter_map(|entry| entry.worst).reduce(f64::min);
        cells.push(two_digits(worst).into());
        let wins = best.values().filter(|winner| winner.policy == policy);
        cells.push(format!("{}", wins.count()).into());
        let mut hurt: Vec<&Entry> = own()
            .filter(|entry| entry.worst.is_some_and(|worst| worst < HURT))
            .collect();
        hurt.sort_by(|a, b| {
            a.worst
                .partial_cmp(&b.worst)
                .unwrap_or(a.policy.cmp(&b.policy))
        });
        let named: Vec<String> = hurt
            .iter()
            .take(NAMED)
            .map(|entry| {
                let victim = entry.victim.as_deref().unwrap_or_default();
                format!("{} ({victim} {})", place(entry), two_digits(entry.worst))
            })
            .collect();
        cells.push(match hurt.len() {
            0 => "nowhere".into(),
            count => format!("{count}: {}", named.join(", ")).into(),
        });
        table.row(cells);
    }
    table
}

/// The entry with the highest throughput of each place.
fn winners(entries: &[Entry]) -> BTreeMap<(&str, u32), &Entry> {
    let mut best: BTreeMap<(&str, u32), &Entry> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.throughput.is_some()) {
        let at = best
            .entry((entry.workload.as_str(), entry.overcommit))
            .or_insert(entry);
        if entry.throughput > at.throughput {
            *at = entry;
        }
    }
    best
}

fn by_workload(entries: &[Entry], workloads: &[&str], overcommit: &[u32]) -> Table {
    let times: Vec<String> = overcommit.iter().map(|times| format!("{times}×")).collect();
    let mut headings = vec!["program"];
    headings.extend(times.iter().map(String::as_str));
    let mut table = Table::new(&headings);
    let best = winners(entries);
    for &workload in workloads {
        let mut cells: Vec<Cell> = vec![Cell::toned(workload, Tone::Strong)];
        for &times in overcommit {
            cells.push(match best.get(&(workload, times)) {
                Some(entry) => format!(
                    "{} {}, unfairness {}, worst {}",
                    entry.policy,
                    two_digits(entry.throughput),
                    two_digits(entry.unfairness),
                    two_digits(entry.worst)
                )
                .into(),
                None => Cell::toned("not measured", Tone::Faint),
            });
        }
        table.row(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry_of(workload: &str, policy: &str, throughput: f64, worst: f64) -> Entry {
        Entry {
            workload: workload.to_owned(),
            overcommit: 2,
            policy: policy.to_owned(),
            throughput: Some(throughput),
            unfairness: Some(1.5),
            worst: Some(worst),
            victim: Some("matmul".to_owned()),
        }
    }

    #[test]
    fn the_best_and_the_hurt_are_found() {
        let entries = [
            entry_of("a", "stock", 1.0, 1.0),
            entry_of("a", "hvs", 1.2, 0.9),
            entry_of("b", "stock", 1.0, 1.0),
            entry_of("b", "hvs", 0.8, 0.7),
        ];
        let best = winners(&entries);
        assert_eq!(best[&("a", 2)].policy, "hvs");
        assert_eq!(best[&("b", 2)].policy, "stock");
        let text = show(&entries, &["stock", "hvs"], &["a", "b"], &[2]);
        assert!(
            text.contains("2: b 2× (matmul 0.70), a 2× (matmul 0.90)"),
            "{text}"
        );
        assert!(text.contains("nowhere"), "{text}");
        assert!(
            text.contains("0.98"),
            "the geometric mean of 1.2 and 0.8: {text}"
        );
    }

    #[test]
    fn what_was_not_measured_is_said() {
        let mut entry = entry_of("a", "stock", 1.0, 1.0);
        (entry.throughput, entry.worst) = (None, None);
        let text = show(&[entry], &["stock"], &["a"], &[2]);
        assert!(text.contains("Not measured: a 2× stock"), "{text}");
    }
}
