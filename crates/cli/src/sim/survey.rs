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
//! Then, which policy does best where, and where each hurts most, and at last every cell (`matrix`). A
//! program that does no unit of work in the time that is simulated is reported as not measured.
//!
//! The figures can be kept (`--json`) and shown again without simulating (`--from`), also as a document
//! (`--markdown`) or a page (`--html`).

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::ensure;
use clap::Args;
use serde::Deserialize;
use serde::Serialize;
use tandem_report::survey_page::Ranking;
use tandem_report::survey_page::Section;
use tandem_report::table::Cell;
use tandem_report::table::Table;
use tandem_report::table::Tone;

use super::execute;
use super::page;
use super::programs;
use super::reproduce::lab::Lab;
use super::reproduce::lab::Outcome;
use super::reproduce::lab::Trial;
use super::reproduce::sample::Sample;
use crate::console::print;
use crate::output;
use tandem_experiment::averages::geometric_mean;

mod document;
mod figures;
mod matrix;

use figures::Survey;

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

/// So many policies of the matrix are printed beside each other.
const BESIDE: usize = 8;

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
    /// Show the figures of this file, which --json wrote, and simulate nothing
    #[arg(long, value_name = "PATH", conflicts_with_all = ["runs", "workers", "scenarios"])]
    from: Option<PathBuf>,
    /// Write the tables into this document, below the line that says so if it has one
    #[arg(long, value_name = "PATH")]
    markdown: Option<PathBuf>,
    /// Write a page with charts, one file that opens offline
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// One policy in one place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
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

/// Runs the survey, or reads one, and shows it.
pub fn main(args: &SurveyArgs) -> anyhow::Result<()> {
    output::check_json(args.json.as_deref())?;
    let before = match &args.markdown {
        Some(path) => {
            let before = document::before(path)?;
            output::check(path)?;
            before
        }
        None => String::new(),
    };
    args.html.as_deref().map_or(Ok(()), output::check)?;
    let survey = match &args.from {
        Some(path) => figures::read(path, &args.policies, &args.workloads, &args.overcommit)?,
        None => simulate(args)?,
    };
    if !output::is_stdout(args.json.as_deref()) {
        print(&show(&survey))?;
    }
    if let Some(path) = &args.markdown {
        let text = document::document(&before, &parts(&survey, usize::MAX));
        output::write_text(path, "document", &text)?;
    }
    if let Some(path) = &args.html {
        let page = page::survey::html(&rankings(&survey), &parts(&survey, usize::MAX));
        output::write_text(path, "page", &page)?;
    }
    output::write_json(args.json.as_deref(), &survey.entries)
}

fn simulate(args: &SurveyArgs) -> anyhow::Result<Survey> {
    let workers = execute::workers(args.runs, args.workers)?;
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
    let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    Ok(Survey {
        entries,
        policies: owned(&policies),
        workloads: owned(&workloads),
        overcommit,
    })
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

fn two_digits(value: Option<f64>) -> String {
    value.map_or_else(|| "not measured".to_owned(), |value| format!("{value:.2}"))
}

/// Where something was.
fn place(entry: &Entry) -> String {
    format!("{} {}×", entry.workload, entry.overcommit)
}

/// The tables for people.
fn show(survey: &Survey) -> String {
    let part = |part: &Section| {
        let remark = match part.remark.as_str() {
            "" => String::new(),
            remark => format!("{remark}\n\n"),
        };
        let table = part.table.as_ref().map(|table| format!("{table}\n"));
        format!("{}\n\n{remark}{}", part.title, table.unwrap_or_default())
    };
    let parts: Vec<String> = parts(survey, BESIDE).iter().map(part).collect();
    parts.join("\n")
}

/// All there is to say, with so many policies of the matrix beside each other at most.
fn parts(survey: &Survey, beside: usize) -> Vec<Section> {
    let Survey {
        entries,
        overcommit,
        ..
    } = survey;
    let policies: Vec<&str> = survey.policies.iter().map(String::as_str).collect();
    let workloads: Vec<&str> = survey.workloads.iter().map(String::as_str).collect();
    let places = workloads.len() * overcommit.len();
    let mut parts = vec![
        Section {
            title: "Each policy over all programs".to_owned(),
            remark: format!(
                "Throughput is the geometric mean. \"Best where\" and \"hurts where\" count places, of {places}; \
                 the {NAMED} worst are named with their victim."
            ),
            table: Some(by_policy(entries, &policies, overcommit)),
        },
        Section {
            title: "The best policy of each program".to_owned(),
            remark: String::new(),
            table: Some(by_workload(entries, &workloads, overcommit)),
        },
    ];
    parts.extend(matrix::tables(
        entries, &policies, &workloads, overcommit, beside,
    ));
    let missing: Vec<String> = entries
        .iter()
        .filter(|entry| entry.throughput.is_none())
        .map(|entry| format!("{} {}", place(entry), entry.policy))
        .collect();
    if !missing.is_empty() {
        parts.push(Section {
            title: "Not measured".to_owned(),
            remark: format!(
                "Some VM did no unit of work in the time that was simulated: {}.",
                missing.join(", ")
            ),
            table: None,
        });
    }
    parts
}

/// Each policy's mean at each overcommit.
fn rankings(survey: &Survey) -> Vec<Ranking> {
    let ranking = |&times: &u32| Ranking {
        place: format!("{times}×"),
        policies: survey
            .policies
            .iter()
            .map(|policy| (policy.clone(), mean_of(&survey.entries, policy, times)))
            .collect(),
    };
    survey.overcommit.iter().map(ranking).collect()
}

/// A policy's throughput over all programs.
fn mean_of(entries: &[Entry], policy: &str, times: u32) -> Option<f64> {
    let there = entries
        .iter()
        .filter(|entry| entry.policy == policy && entry.overcommit == times);
    geometric_mean(there.filter_map(|entry| entry.throughput))
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
            cells.push(two_digits(mean_of(entries, policy, times)).into());
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

    fn survey_of(entries: Vec<Entry>) -> Survey {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Survey {
            entries,
            policies: names(&["stock", "hvs"]),
            workloads: names(&["a", "b"]),
            overcommit: vec![2],
        }
    }

    #[test]
    fn the_best_and_the_hurt_are_found() {
        let entries = vec![
            entry_of("a", "stock", 1.0, 1.0),
            entry_of("a", "hvs", 1.2, 0.9),
            entry_of("b", "stock", 1.0, 1.0),
            entry_of("b", "hvs", 0.8, 0.7),
        ];
        let best = winners(&entries);
        assert_eq!(best[&("a", 2)].policy, "hvs");
        assert_eq!(best[&("b", 2)].policy, "stock");
        let text = show(&survey_of(entries));
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
        let text = show(&survey_of(vec![entry]));
        assert!(text.contains("simulated: a 2× stock."), "{text}");
    }
}
