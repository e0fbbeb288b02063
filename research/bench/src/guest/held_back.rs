//! Judges the agent's delayed scheduling on one vCPU: compares its row with that of timer slack set by hand.
//!
//! Slack by hand *helps* if it meets one of these savings:
//!
//! - idle periods per unit of work fall by `FEWER`, and busy time grows by at most `TOLERANCE`;
//! - busy time falls by `CHEAPER`, and idle periods fall by half of `FEWER`.
//!
//! It must also be harmless: work falls by less than 2 %, and the 99th percentile of latencies stays within `BOUND`.
//!
//! The agent decided *right* if all of these hold:
//!
//! - it has slack at the end exactly if slack by hand helps;
//! - it is harmless itself;
//! - if it keeps slack, busy time grows by at most `DEARER`.
//!   With several pairs of runs the lower end of their interval decides, with one pair its ratio.
//!
//! Unmeasured figures do not count.

use crate::guest::row::{HARMLESS, Row};
use crate::guest::variant::Variant;

/// Minimum relative decrease of idle periods.
const FEWER: f64 = 0.1;
/// Minimum relative decrease of busy time per unit of work, as the alternative saving.
const CHEAPER: f64 = 0.03;
/// Maximum relative growth of busy time that counts as chance.
const TOLERANCE: f64 = 0.015;
/// Maximum relative growth of busy time with the agent, which tries settings and takes CPU time itself.
const DEARER: f64 = 0.03;
/// Maximum latency, the agent's default bound, in ns.
const BOUND: f64 = 1e6;

/// Returns whether a variant keeps the limits of work and latency.
/// If stock already exceeds the latency bound, stock's latency is the limit.
pub fn is_harmless(row: &Row) -> bool {
    let is_in_time = |[own, stock]: [f64; 2]| own <= BOUND.max(stock);
    row.ratio >= HARMLESS && row.latency_p99_ns.is_none_or(is_in_time)
}

/// Returns whether slack by hand helps; `None` if it was not measured.
fn helps(row: &Row) -> Option<bool> {
    let (periods, busy) = (row.transitions_ratio?, row.busy_ratio?);
    let saves = periods <= 1.0 - FEWER && busy <= 1.0 + TOLERANCE
        || periods <= 1.0 - FEWER / 2.0 && busy <= 1.0 - CHEAPER;
    Some(saves && is_harmless(row))
}

/// Returns whether the vCPU with the agent is not clearly busier than in stock.
fn is_no_dearer(row: &Row) -> bool {
    let least = row.busy_interval.map(|[low, _]| low).or(row.busy_ratio);
    least.is_none_or(|least| least <= 1.0 + DEARER)
}

/// Sets in the agent's rows whether it decided right, if slack by hand was measured too.
pub fn judge(rows: &mut [Row]) {
    let by_hand = rows.iter().filter(|row| row.variant == Variant::Slack);
    let by_hand: Vec<(String, Option<bool>)> =
        by_hand.map(|row| (row.program.clone(), helps(row))).collect();
    for row in rows.iter_mut().filter(|row| row.variant == Variant::Agent) {
        let found = by_hand.iter().find(|(program, _)| *program == row.program);
        let helps = found.and_then(|(_, helps)| *helps);
        row.held_back_right = helps.zip(row.delay_slack_ns).map(|(helps, slack)| {
            let keeps = slack > 0.0;
            helps == keeps && is_harmless(row) && (!keeps || is_no_dearer(row))
        });
    }
}

/// Describes how often the agent decided right; `None` if no row was judged.
pub fn finding(rows: &[Row]) -> Option<String> {
    let judged: Vec<(&str, bool)> =
        rows.iter().filter_map(|row| Some((row.program.as_str(), row.held_back_right?))).collect();
    let wrong: Vec<&str> =
        judged.iter().filter(|(_, right)| !right).map(|(program, _)| *program).collect();
    let right = judged.len() - wrong.len();
    let but = match wrong.len() {
        0 => String::new(),
        _ => format!("; not for {}", wrong.join(", ")),
    };
    (!judged.is_empty()).then(|| {
        format!(
            "The agent holds threads back where timer slack by hand helps, and only there, for {right} of {} programs{but}.",
            judged.len()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::row::tests::row;

    /// A program for which slack by hand gives these ratios, and for which the agent has `slack` at the end.
    fn program(name: &str, periods: f64, busy: f64, slack: f64) -> [Row; 2] {
        let mut by_hand = row(name, Variant::Slack, 1.0);
        by_hand.transitions_ratio = Some(periods);
        by_hand.busy_ratio = Some(busy);
        by_hand.latency_p99_ns = Some([700_000.0, 90_000.0]);
        let mut agent = row(name, Variant::Agent, 0.995);
        agent.delay_slack_ns = Some(slack);
        agent.latency_p99_ns = Some([700_000.0, 90_000.0]);
        [agent, by_hand]
    }

    fn right(rows: impl IntoIterator<Item = Row>) -> Vec<Option<bool>> {
        let mut rows: Vec<Row> = rows.into_iter().collect();
        judge(&mut rows);
        let agents = rows.iter().filter(|row| row.variant == Variant::Agent);
        agents.map(|row| row.held_back_right).collect()
    }

    #[test]
    fn slack_is_right_exactly_if_it_helps() {
        let rows = [
            program("fewer", 0.6, 0.98, 5e5),
            program("cheaper", 0.94, 0.9, 5e5),
            program("missed", 0.6, 0.98, 0.0),
            program("useless", 0.97, 1.0, 0.0),
            program("harms", 0.6, 1.2, 5e5),
        ];
        assert_eq!(right(rows.into_iter().flatten()), [true, true, false, true, false].map(Some));
    }

    #[test]
    fn lost_work_or_latency_is_wrong() {
        let mut slower = program("slower", 0.6, 0.9, 5e5);
        slower[0].ratio = 0.97;
        let mut late = program("late", 0.6, 0.9, 5e5);
        late[0].latency_p99_ns = Some([1_200_000.0, 90_000.0]);
        let mut late_anyway = program("late anyway", 0.6, 0.9, 5e5);
        late_anyway[0].latency_p99_ns = Some([1_200_000.0, 1_300_000.0]);
        assert_eq!(
            right([slower, late, late_anyway].into_iter().flatten()),
            [false, false, true].map(Some)
        );
    }

    #[test]
    fn busier_with_slack_is_wrong() {
        let busier = |busy: f64, interval: Option<[f64; 2]>, slack: f64| {
            let helps = if slack > 0.0 { 0.6 } else { 0.99 };
            let mut program = program("busier", helps, 0.9, slack);
            program[0].busy_ratio = Some(busy);
            program[0].busy_interval = interval;
            right(program)[0]
        };
        assert_eq!(busier(1.07, None, 5e5), Some(false));
        assert_eq!(busier(1.07, Some([1.05, 1.09]), 5e5), Some(false));
        // The interval includes less busy time.
        assert_eq!(busier(1.07, Some([0.95, 1.2]), 5e5), Some(true));
        assert_eq!(busier(1.02, Some([1.02, 1.02]), 5e5), Some(true));
        // Without slack the additional busy time does not count.
        assert_eq!(busier(1.07, None, 0.0), Some(true));
    }

    #[test]
    fn unmeasured_programs_are_not_judged() {
        let [alone, _] = program("alone", 0.6, 0.9, 5e5);
        assert_eq!(right([alone.clone()]), [None]);
        let mut rows = vec![alone];
        rows.extend(program("good", 0.6, 0.9, 5e5));
        rows.extend(program("missed", 0.6, 0.9, 0.0));
        assert_eq!(finding(&rows), None);
        judge(&mut rows);
        let text = finding(&rows).unwrap();
        assert!(text.contains("for 1 of 2 programs; not for missed."), "{text}");
    }
}
