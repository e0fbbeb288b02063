//! `tandem sim compare`: every combination of some settings, several runs each.
//!
//! Run i has the same seed in every combination, so that all of them meet the same arrivals and
//! times (common random numbers), and differences are taken run by run. Runs are independent: worker
//! threads take them in turn, and figures are put together in the order of combinations and runs, so
//! the output does not depend on how many workers there are.

use std::collections::BTreeMap;
use std::path::Path;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use tandem_policy::Nanos;
use tandem_report::figure;
use tandem_report::simulation::comparison_page;
use tandem_report::table::Cell;
use tandem_report::table::Table;
use tandem_report::table::Tone;
use tandem_sim::Scenario;

use super::execute;
use super::input::ScenarioArgs;
use super::metrics;
use super::metrics::Metric;
use super::page;
use super::page::MOST_VMS;
use super::parquet;
use super::parquet::Row;
use super::policies;
use super::vary;
use super::vary::Combination;
use crate::console::print;
use crate::output;
use crate::output::OutputArgs;
use tandem_experiment::statistics::Mean;

/// Shown unless other metrics are asked for.
const SHOWN: &str = "work_rate,received,steal,wake_p99";

/// `tandem sim compare`
#[derive(Debug, Args)]
pub struct CompareArgs {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// Values to compare, such as host.scheduler=cfs,eevdf,credit; several make all combinations
    #[arg(long, value_name = "KEY=VALUE,…")]
    vary: Vec<String>,
    /// Policies to compare, such as stock,aple,hvs,aple+hvs; an unknown one lists all
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    policies: Vec<String>,
    /// Runs of each combination, with seeds one apart, 1 … 1000
    #[arg(long, value_name = "N", default_value_t = 10)]
    runs: u32,
    /// Worker threads [default: one for each CPU]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Metrics in table, page and picture; an unknown one lists all
    #[arg(long, value_name = "NAME,…", default_value = SHOWN)]
    metrics: String,
    /// Write the metrics relative to the first combination as a bar chart, SVG
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// What is written as JSON.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// The scenario's name.
    pub scenario: String,
    /// The seeds of the runs.
    pub seeds: Vec<u64>,
    /// The combinations, the first being what the others are held against.
    pub combinations: Vec<CombinationFigures>,
}

impl Comparison {
    /// A figure of a combination.
    pub fn figure(&self, combination: usize, vm: &str, metric: &str) -> Option<&Figure> {
        let figures = &self.combinations.get(combination)?.figures;
        figures
            .iter()
            .find(|figure| figure.vm == vm && figure.metric == metric)
    }

    /// The VMs to be shown: all and each, or if they are too many only all.
    fn vms(&self) -> Vec<&str> {
        let mut vms: Vec<&str> = Vec::new();
        for figure in self.combinations.iter().flat_map(|c| &c.figures) {
            if !vms.contains(&figure.vm.as_str()) {
                vms.push(&figure.vm);
            }
        }
        if vms.len() > MOST_VMS + 1 {
            vms.truncate(1);
        }
        vms
    }
}

/// The figures of one combination.
#[derive(Debug, Serialize)]
pub struct CombinationFigures {
    /// What it is called; empty if it is the scenario as it is.
    pub name: String,
    /// What was set, by key.
    pub settings: BTreeMap<String, String>,
    /// Every metric of every VM.
    pub figures: Vec<Figure>,
}

/// One metric of one VM over all runs.
#[derive(Debug, Serialize)]
pub struct Figure {
    /// The VM; empty: the host or all VMs together.
    pub vm: String,
    /// What.
    pub metric: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// How many runs have it.
    pub runs: usize,
    /// Their mean.
    #[serde(flatten)]
    pub mean: Mean,
    /// The paired difference to the first combination.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against_first: Option<Mean>,
    /// The value of each run.
    pub values: Vec<f64>,
}

/// One run to be made.
struct Job<'a> {
    scenario: &'a Scenario,
    seed: u64,
    combination: usize,
}

/// Runs the comparison.
pub fn main(args: &CompareArgs) -> anyhow::Result<()> {
    let workers = execute::workers(args.runs, args.workers)?;
    let combinations = vary::combinations(policies::combinations(&args.policies)?, &args.vary)?;
    let scenarios = scenarios(&args.scenario, &combinations)?;
    let first = scenarios.first().context("there is nothing to compare")?;
    let seeds: Vec<u64> = (0..u64::from(args.runs))
        .map(|run| first.seed.wrapping_add(run))
        .collect();
    args.output.check()?;
    args.picture.as_deref().map_or(Ok(()), output::check)?;
    let jobs: Vec<Job> = scenarios
        .iter()
        .enumerate()
        .flat_map(|(combination, scenario)| {
            seeds.iter().map(move |&seed| Job {
                scenario,
                seed,
                combination,
            })
        })
        .collect();
    let each: Vec<(&Scenario, u64)> = jobs.iter().map(|job| (job.scenario, job.seed)).collect();
    // The page also shows what one run of each combination has besides figures.
    let is_watched = |at: usize| args.output.html.is_some() && jobs[at].seed == first.seed;
    let runs = execute::each(
        &each,
        workers,
        |at, world| {
            if is_watched(at) {
                world.record_waits();
            }
        },
        |at, scenario, results| {
            let metrics = metrics::of(scenario, &results);
            (metrics, is_watched(at).then_some(results))
        },
    )?;
    let (runs, watched): (Vec<_>, Vec<_>) = runs.into_iter().unzip();
    let watched = jobs.iter().zip(watched);
    let watched = watched.filter_map(|(job, results)| Some((job.scenario, results?)));
    let comparison = Comparison {
        scenario: first.name.clone(),
        seeds,
        combinations: figures(&combinations, &jobs, &runs),
    };
    let shown = shown(&comparison, &args.metrics)?;
    let table = table(&comparison, &combinations, &shown);
    if !args.output.json_only() {
        let runs = page::comparison::runs_in_words(&comparison.seeds);
        print(&format!("{}, {runs}\n\n{table}", comparison.scenario))?;
    }
    output::write_json(args.output.json.as_deref(), &comparison)?;
    if args.output.html.is_some() || args.picture.is_some() {
        let vms = comparison.vms();
        let watched = watched.collect();
        let data = page::comparison::data(&comparison, first, &watched, &shown, &vms, table);
        if let Some(path) = &args.output.html {
            let page = comparison_page::html(&data, &page::footer());
            output::write_text(path, "page", &page)?;
        }
        if let Some(path) = &args.picture {
            let picture = comparison_page::picture(&data)
                .with_context(|| page::comparison::no_picture(combinations.len()))?;
            output::write_text(path, "picture", &picture)?;
        }
    }
    match &args.output.parquet {
        Some(path) => write_parquet(path, &combinations, &jobs, &runs),
        None => Ok(()),
    }
}

/// The scenario of each combination; all are read before any runs.
fn scenarios(args: &ScenarioArgs, combinations: &[Combination]) -> anyhow::Result<Vec<Scenario>> {
    let source = args.source()?;
    let scenario = |combination: &Combination| {
        let mut source = source.clone();
        for setting in &combination.settings {
            source.set(setting.clone());
        }
        Ok(source.scenario()?)
    };
    combinations.iter().map(scenario).collect()
}

/// Means of every metric of every combination.
fn figures(
    combinations: &[Combination],
    jobs: &[Job<'_>],
    runs: &[Vec<Metric>],
) -> Vec<CombinationFigures> {
    let mut all: Vec<CombinationFigures> = Vec::new();
    for (at, combination) in combinations.iter().enumerate() {
        let mut figures: Vec<Figure> = Vec::new();
        let own = jobs
            .iter()
            .zip(runs)
            .filter(|(job, _)| job.combination == at);
        for (_, metrics) in own {
            for metric in metrics {
                let same = |f: &&mut Figure| f.vm == metric.vm && f.metric == metric.metric;
                match figures.iter_mut().find(same) {
                    Some(figure) => figure.values.push(metric.value),
                    None => figures.push(Figure {
                        vm: metric.vm.clone(),
                        metric: metric.metric,
                        unit: metric.unit,
                        runs: 0,
                        mean: Mean {
                            mean: metric.value,
                            ci95: None,
                        },
                        against_first: None,
                        values: vec![metric.value],
                    }),
                }
            }
        }
        for figure in &mut figures {
            figure.runs = figure.values.len();
            if let Some(mean) = Mean::of(&figure.values) {
                figure.mean = mean;
            }
            let first = all.first().and_then(|first| {
                let same = |f: &&Figure| f.vm == figure.vm && f.metric == figure.metric;
                first.figures.iter().find(same)
            });
            figure.against_first =
                first.and_then(|first| Mean::of_difference(&figure.values, &first.values));
        }
        all.push(CombinationFigures {
            name: combination.name(),
            settings: combination
                .settings
                .iter()
                .map(|setting| (setting.key.clone(), setting.value.clone()))
                .collect(),
            figures,
        });
    }
    all
}

/// The metrics that were asked for; refuses those that no VM has.
fn shown<'a>(comparison: &Comparison, metrics: &'a str) -> anyhow::Result<Vec<&'a str>> {
    let shown: Vec<&str> = metrics.split(',').map(str::trim).collect();
    let figures = || comparison.combinations.iter().flat_map(|c| &c.figures);
    for name in &shown {
        if !figures().any(|figure| figure.metric == *name) && !SHOWN.split(',').any(|s| s == *name)
        {
            let mut known: Vec<&str> = figures().map(|figure| figure.metric).collect();
            known.sort_unstable();
            known.dedup();
            anyhow::bail!(
                "no metric is called `{name}`: there are {}",
                known.join(", ")
            );
        }
    }
    Ok(shown)
}

fn table(comparison: &Comparison, combinations: &[Combination], shown: &[&str]) -> Table {
    let mut table = Table::new(&[
        "VM",
        "metric",
        "settings",
        "mean",
        "± 95 %",
        "against first",
        "± 95 %",
    ]);
    for vm in comparison.vms() {
        for metric in shown {
            let mut heading = true;
            for (combination, of) in combinations.iter().zip(&comparison.combinations) {
                let same = |f: &&Figure| f.vm == vm && f.metric == *metric;
                let Some(figure) = of.figures.iter().find(same) else {
                    continue;
                };
                let base = comparison.combinations.first();
                let base = base.and_then(|first| first.figures.iter().find(same));
                let mut cells = match heading {
                    true => vec![
                        Cell::toned(if vm.is_empty() { "all" } else { vm }, Tone::Strong),
                        format!("{metric}, {}", figure.unit).into(),
                    ],
                    false => vec![Cell::default(), Cell::default()],
                };
                heading = false;
                cells.push(match combination.name().as_str() {
                    "" => "as it is".into(),
                    name => name.into(),
                });
                cells.push(number(figure.mean.mean, figure.unit).into());
                cells.push(half_width(&figure.mean, figure.unit).into());
                cells.extend(difference(figure, base));
                table.row(cells);
            }
        }
    }
    table
}

/// The difference to the first combination, relative to it; faint where it may be none.
fn difference(figure: &Figure, base: Option<&Figure>) -> [Cell; 2] {
    let (Some(difference), Some(base)) = (figure.against_first, base) else {
        return [Cell::default(), Cell::default()];
    };
    if base.mean.mean == 0.0 {
        return [Cell::default(), Cell::default()];
    }
    let relative = |value: f64| value / base.mean.mean.abs();
    let tone = match difference.differs_from_zero() {
        true => Tone::Plain,
        false => Tone::Faint,
    };
    let width = difference.ci95.map(|ci95| figure::percent(relative(ci95)));
    [
        Cell::toned(figure::signed_percent(relative(difference.mean)), tone),
        Cell::toned(width.unwrap_or_default(), tone),
    ]
}

/// A value in its unit as people read it.
pub fn number(value: f64, unit: &str) -> String {
    match unit {
        "ns" => Nanos(value.max(0.0).round() as u64).to_string(),
        "pCPUs" => figure::pcpus(value),
        _ => figure::rate(value),
    }
}

fn half_width(mean: &Mean, unit: &str) -> String {
    mean.ci95
        .map_or_else(String::new, |ci95| number(ci95, unit))
}

fn write_parquet(
    path: &Path,
    combinations: &[Combination],
    jobs: &[Job<'_>],
    runs: &[Vec<Metric>],
) -> anyhow::Result<()> {
    let names: Vec<String> = combinations.iter().map(Combination::name).collect();
    let rows = jobs.iter().zip(runs).flat_map(|(job, metrics)| {
        let combination = names.get(job.combination).map_or("", String::as_str);
        metrics.iter().map(move |metric| Row {
            scenario: &job.scenario.name,
            combination,
            seed: job.seed,
            metric,
        })
    });
    parquet::write(path, rows)
}
