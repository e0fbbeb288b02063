//! Figures of one program in one variant relative to stock, and figures over several rows.
//!
//! A row's ratio is the median over pairs of runs of (rate of the variant) ÷ (rate in stock), so 4 is four times as fast.
//! Its interval is that of [`crate::interval`].
//! CPU time and awake time are per unit of work, also relative to stock: below 1 is less.
//! Unmeasured figures are absent.

use crate::interval::Interval;
use serde::{Deserialize, Serialize};
use tandem_model::averages::{geometric_mean, median};

use crate::guest::program::Kind;
use crate::guest::variant::{Choice, Fixed, Variant};

/// Minimum ratio, relative to the best, of a setting that counts as equally good.
const AS_GOOD: f64 = 0.97;

/// Maximum CPU time of other tasks on an idle machine, in vCPUs; the kernel's figure rests on samples.
pub const QUIET: f64 = 0.1;

/// Minimum ratio of a program that counts as not slower.
pub const HARMLESS: f64 = 0.98;

/// Figures of one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Units of work per second.
    pub rate: f64,
    /// CPU seconds per unit of work.
    pub cpu: Option<f64>,
    /// Awake seconds of vCPUs per unit of work.
    pub awake: Option<f64>,
    /// Choice of the agent.
    pub choice: Option<Choice>,
    /// Time from the start to the choice, in ms.
    pub settled_ms: Option<f64>,
    /// CPU time of the agent itself, as a fraction of one vCPU.
    pub agent_cpu: Option<f64>,
    /// CPU time of all other tasks on the machine, in vCPUs.
    pub others: Option<f64>,
    /// On one vCPU: idle periods per unit of work.
    pub transitions: Option<f64>,
    /// On one vCPU: busy seconds, of all tasks, per unit of work.
    pub busy: Option<f64>,
    /// 99th percentile of the latencies that the program measured, in ns.
    pub latency_p99_ns: Option<f64>,
    /// Delayed scheduling: the agent's timer slack at the end, in ns.
    pub delay_slack_ns: Option<f64>,
    /// Delayed scheduling: whether wake-up preemption was off at the end.
    pub delay_batch: Option<bool>,
}

/// One program in one variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The program.
    pub program: String,
    /// The variant.
    pub variant: Variant,
    /// Rate relative to stock, median of the pairs.
    pub ratio: f64,
    /// Lower end of its interval.
    pub ci_low: f64,
    /// Upper end of its interval.
    pub ci_high: f64,
    /// Pairs of runs.
    pub runs: usize,
    /// Probability that the interval covers the true median.
    pub coverage: f64,
    /// Behaviour of the program.
    pub kind: Kind,
    /// Unit of work.
    pub unit: String,
    /// Units per second in stock, median.
    pub stock_rate: f64,
    /// Units per second in this variant, median.
    pub rate: f64,
    /// CPU time per unit of work relative to stock.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpu_ratio: Option<f64>,
    /// Awake time of vCPUs per unit of work relative to stock: the energy proxy.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub awake_ratio: Option<f64>,
    /// The agent's most frequent choice.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub choice: Option<Choice>,
    /// Time from the start to the choice, in ms, median.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub settled_ms: Option<f64>,
    /// CPU time of the agent itself, as a fraction of one vCPU, median.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub agent_cpu: Option<f64>,
    /// Maximum CPU time of all other tasks during one of the runs, in stock or in this variant, in vCPUs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub others: Option<f64>,
    /// On one vCPU: idle periods per unit of work, relative to stock.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub transitions_ratio: Option<f64>,
    /// On one vCPU: idle periods per second in this variant and in stock, medians.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub transitions_per_second: Option<[f64; 2]>,
    /// On one vCPU: busy time per unit of work, relative to stock.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub busy_ratio: Option<f64>,
    /// Interval of `busy_ratio` over the pairs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub busy_interval: Option<[f64; 2]>,
    /// 99th percentile of latencies in this variant and in stock, in ns, medians.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub latency_p99_ns: Option<[f64; 2]>,
    /// Delayed scheduling: the agent's timer slack at the end, in ns, median.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub delay_slack_ns: Option<f64>,
    /// Delayed scheduling: number of runs in which wake-up preemption was off at the end.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub delay_batch_runs: Option<usize>,
    /// Whether the agent delayed threads exactly if slack by hand helps ([`crate::guest::held_back`]).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub held_back_right: Option<bool>,
    /// vCPUs of the machine.
    pub vcpus: usize,
    /// The ratio of each pair.
    pub pairs: Vec<f64>,
}

/// Identification of a row.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The program.
    pub program: &'a str,
    /// The variant.
    pub variant: Variant,
    /// Behaviour of the program.
    pub kind: Kind,
    /// Unit of work.
    pub unit: &'a str,
    /// vCPUs of the machine.
    pub vcpus: usize,
}

impl Row {
    /// Computes the row of pairs of runs; `None` if there are none.
    pub fn of(about: &About, stock: &[Sample], samples: &[Sample]) -> Option<Row> {
        let pairs = || stock.iter().zip(samples);
        let ratios: Vec<f64> = pairs().map(|(a, b)| b.rate / a.rate).collect();
        let interval = Interval::of(&ratios)?;
        let each = |of: fn(&Sample) -> Option<f64>| {
            let ratio = |(a, b)| Some(of(b)? / of(a).filter(|stock| *stock > 0.0)?);
            pairs().filter_map(ratio).collect::<Vec<f64>>()
        };
        let against = |of: fn(&Sample) -> Option<f64>| median(each(of));
        let busy = Interval::of(&each(|sample| sample.busy));
        let both = |of: fn(&Sample) -> Option<f64>| {
            let of_all = |all: &[Sample]| median(all.iter().filter_map(of));
            Some([of_all(samples)?, of_all(stock)?])
        };
        let batch = || samples.iter().filter_map(|sample| sample.delay_batch);
        let own = |of: fn(&Sample) -> Option<f64>| median(samples.iter().filter_map(of));
        Some(Row {
            program: about.program.to_owned(),
            variant: about.variant,
            ratio: interval.median,
            ci_low: interval.low,
            ci_high: interval.high,
            runs: ratios.len(),
            coverage: interval.coverage,
            kind: about.kind,
            unit: about.unit.to_owned(),
            stock_rate: median(stock.iter().map(|sample| sample.rate))?,
            rate: median(samples.iter().map(|sample| sample.rate))?,
            cpu_ratio: against(|sample| sample.cpu),
            awake_ratio: against(|sample| sample.awake),
            choice: most_often(samples.iter().filter_map(|sample| sample.choice)),
            settled_ms: own(|sample| sample.settled_ms),
            agent_cpu: own(|sample| sample.agent_cpu),
            others: stock
                .iter()
                .chain(samples)
                .filter_map(|sample| sample.others)
                .max_by(f64::total_cmp),
            transitions_ratio: against(|sample| sample.transitions),
            transitions_per_second: both(|sample| Some(sample.transitions? * sample.rate)),
            busy_ratio: busy.map(|busy| busy.median),
            busy_interval: busy.map(|busy| [busy.low, busy.high]),
            latency_p99_ns: both(|sample| sample.latency_p99_ns),
            delay_slack_ns: own(|sample| sample.delay_slack_ns),
            delay_batch_runs: batch().next().map(|_| batch().filter(|is| *is).count()),
            held_back_right: None,
            vcpus: about.vcpus,
            pairs: ratios,
        })
    }
}

/// Returns the most frequent choice; the smallest of equally frequent ones.
fn most_often(choices: impl Iterator<Item = Choice>) -> Option<Choice> {
    let mut counts = std::collections::BTreeMap::new();
    for choice in choices {
        *counts.entry(choice).or_insert(0u32) += 1;
    }
    let most = counts.values().copied().max()?;
    let mut frequent = counts.into_iter().filter(|(_, count)| *count == most);
    frequent.next().map(|(choice, _)| choice)
}

/// Comparison of the agent's choice with the best fixed setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Agreement {
    /// The program.
    pub program: String,
    /// The fixed setting with the highest ratio.
    pub best: Variant,
    /// Fixed settings that count as best: within 3 % of it, or within its interval.
    pub as_good: Vec<Variant>,
    /// The fixed setting that equals the agent's choice.
    pub chosen: Option<Variant>,
    /// Whether it counts as best.
    pub agrees: bool,
    /// Time from the start to the choice, in ms.
    pub settled_ms: Option<f64>,
}

/// Returns the agreement of every program for which all fixed settings and the agent were measured.
pub fn agreements(rows: &[Row]) -> Vec<Agreement> {
    let agents = rows.iter().filter(|row| row.variant == Variant::Agent);
    agents.filter_map(|agent| agreement(rows, agent)).collect()
}

fn agreement(rows: &[Row], agent: &Row) -> Option<Agreement> {
    let fixed: Vec<&Row> = rows
        .iter()
        .filter(|row| row.program == agent.program && row.variant.fixed().is_some())
        .collect();
    if fixed.len() + 1 < Variant::EXHAUSTIVE.len() {
        return None;
    }
    let best = fixed.iter().max_by(|a, b| a.ratio.total_cmp(&b.ratio))?;
    let enough = best.ci_low.min(best.ratio * AS_GOOD);
    let as_good: Vec<Variant> =
        fixed.iter().filter(|row| row.ratio >= enough).map(|row| row.variant).collect();
    let with = |setting: Fixed| {
        let found = fixed.iter().find(|row| row.variant.fixed() == Some(setting));
        found.map(|row| row.variant)
    };
    let chosen = agent.choice.and_then(|choice| with(choice.fixed(agent.vcpus)));
    Some(Agreement {
        program: agent.program.clone(),
        best: best.variant,
        agrees: chosen.is_some_and(|chosen| as_good.contains(&chosen)),
        as_good,
        chosen,
        settled_ms: agent.settled_ms,
    })
}

/// Returns the geometric mean of a variant's ratios, and the number of programs.
pub fn mean(rows: &[Row], variant: Variant, kind: Option<Kind>) -> Option<(f64, usize)> {
    let ratios: Vec<f64> = rows
        .iter()
        .filter(|row| row.variant == variant && kind.is_none_or(|kind| row.kind == kind))
        .map(|row| row.ratio)
        .collect();
    let mean = geometric_mean(ratios.iter().copied())?;
    Some((mean, ratios.len()))
}

/// Returns the programs with a disturbed run, in which other tasks took more than [`QUIET`] vCPUs.
pub fn disturbed(rows: &[Row]) -> Vec<&str> {
    let mut names: Vec<&str> = rows
        .iter()
        .filter(|row| row.others.is_some_and(|others| others > QUIET))
        .map(|row| row.program.as_str())
        .collect();
    names.dedup();
    names
}

/// Merges rows; `newer` rows replace older ones of the same program and variant.
pub fn merged(older: Vec<Row>, newer: &[Row]) -> Vec<Row> {
    let same = |a: &Row, b: &Row| (&a.program, a.variant) == (&b.program, b.variant);
    let mut rows: Vec<Row> =
        older.into_iter().filter(|old| !newer.iter().any(|new| same(old, new))).collect();
    rows.extend_from_slice(newer);
    rows
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn sample(rate: f64) -> Sample {
        Sample { rate, cpu: Some(2.0 / rate), ..Sample::default() }
    }

    /// A row with this ratio.
    pub fn row(program: &str, variant: Variant, ratio: f64) -> Row {
        let about = About { program, variant, kind: Kind::WakeUp, unit: "passes", vcpus: 2 };
        let stock = vec![sample(10.0); 10];
        Row::of(&about, &stock, &vec![sample(10.0 * ratio); 10]).unwrap()
    }

    #[test]
    fn row_compares_pair_by_pair() {
        let about =
            About { program: "p", variant: Variant::Agent, kind: Kind::Mixed, unit: "x", vcpus: 2 };
        // The machine is twice as fast in the second pair, which does not affect the ratio.
        let stock = [sample(10.0), sample(20.0)];
        let agent = [sample(40.0), sample(80.0)];
        let row = Row::of(&about, &stock, &agent).unwrap();
        assert_eq!((row.ratio, row.ci_low, row.ci_high), (4.0, 4.0, 4.0));
        assert_eq!((row.runs, row.cpu_ratio), (2, Some(0.25)));
        assert_eq!((row.awake_ratio, row.choice), (None, None));
        let json = serde_json::to_value(&row).unwrap();
        assert_eq!(json["variant"], "agent");
        assert!(json.get("awake_ratio").is_none());
        assert_eq!(serde_json::from_value::<Row>(json).unwrap(), row);
        assert_eq!(Row::of(&about, &[], &[]), None);
    }

    fn exhaustive(ratios: [f64; 4], choice: Choice) -> Agreement {
        let mut rows = vec![row("p", Variant::Agent, 1.0)];
        rows[0].choice = Some(choice);
        let fixed = Variant::EXHAUSTIVE.iter().filter(|variant| variant.fixed().is_some());
        for (&variant, ratio) in fixed.zip(ratios) {
            rows.push(row("p", variant, ratio));
        }
        agreements(&rows).remove(0)
    }

    #[test]
    fn agreement_compares_choice_with_best() {
        let one = Choice { vcpus: 1, retention_ns: 0 };
        let clear = exhaustive([1.0, 2.0, 8.0, 7.0], one);
        assert_eq!(clear.best, Variant::OneOff);
        assert_eq!(clear.as_good, [Variant::OneOff]);
        assert!(clear.agrees);
        let close = exhaustive([1.0, 1.02, 0.98, 0.5], one);
        assert_eq!(close.best, Variant::AllOn);
        assert_eq!(close.as_good, [Variant::AllOff, Variant::AllOn]);
        assert!(!close.agrees);
    }

    #[test]
    fn agreement_needs_all_fixed_settings() {
        let rows = [row("p", Variant::Agent, 1.0), row("p", Variant::Haltpoll, 1.0)];
        assert_eq!(agreements(&rows), []);
    }

    #[test]
    fn most_frequent_choice_wins() {
        let choice = |vcpus| Choice { vcpus, retention_ns: 0 };
        assert_eq!(most_often([1, 2, 2].map(choice).into_iter()), Some(choice(2)));
        assert_eq!(most_often([2, 1].map(choice).into_iter()), Some(choice(1)));
    }

    #[test]
    fn means_select_variant_and_kind() {
        let rows = [
            row("a", Variant::Agent, 4.0),
            row("b", Variant::Agent, 1.0),
            row("a", Variant::Taskset, 9.0),
        ];
        assert_eq!(mean(&rows, Variant::Agent, None), Some((2.0, 2)));
        assert_eq!(mean(&rows, Variant::Agent, Some(Kind::Mixed)), None);
    }

    #[test]
    fn disturbed_programs_are_named_once() {
        let mut rows = vec![
            row("a", Variant::Agent, 1.0),
            row("b", Variant::Agent, 1.0),
            row("b", Variant::Taskset, 1.0),
            row("c", Variant::Agent, 1.0),
        ];
        rows[0].others = Some(0.01);
        rows[1].others = Some(0.9);
        rows[2].others = Some(0.8);
        assert_eq!(disturbed(&rows), ["b"]);
    }

    #[test]
    fn newer_rows_replace_older_ones() {
        let older = vec![row("a", Variant::Agent, 1.0), row("b", Variant::Agent, 1.0)];
        let rows = merged(older, &[row("a", Variant::Agent, 2.0)]);
        let ratios: Vec<f64> = rows.iter().map(|row| row.ratio).collect();
        assert_eq!(ratios, [1.0, 2.0]);
    }
}
