//! The text output of the bench: a table of work and shares, a table of verdicts, and closing lines.
//!
//! Every VM of every mix has a row in each mode.
//! A value is the median of the runs, with their range if there were several.

use tandem_report::figure;
use tandem_report::table::{Align, Cell, Table, Tone};

use super::figures::{Flexs, MixFigures, MixMode, ModeVm, RECALL, Worst};
use crate::flexs::verdicts::Verdicts;
use crate::spread::Spread;

fn absent() -> Cell {
    Cell::toned(figure::NOT_MEASURED, Tone::Faint)
}

/// Returns a table with the rows that `row` makes for VMs and modes.
fn rows(flexs: &Flexs, headings: &[&str], row: impl Fn(&ModeVm) -> Option<Vec<Cell>>) -> Table {
    let left = ["mix", "VM", "mode"].map(|name| (name, Align::Left));
    let right = headings.iter().map(|&name| (name, Align::Right));
    let all: Vec<(&str, Align)> = left.into_iter().chain(right).collect();
    let mut table = Table::new(&all);
    for mix in &flexs.mixes {
        for i in 0..mix.vms.len() {
            for mode in &mix.modes {
                if let Some(cells) = mode.vms.get(i).and_then(&row) {
                    table.row([named(mix, i, mode), cells].concat());
                }
            }
        }
    }
    table
}

fn named(mix: &MixFigures, vm: usize, mode: &MixMode) -> Vec<Cell> {
    vec![Cell::toned(mix.mix, Tone::Strong), mix.vms[vm].name.clone().into(), mode.mode.into()]
}

/// Tabulates work and shares of every VM in every mode.
pub fn work(flexs: &Flexs) -> Table {
    let headings = ["work of alone", "against stock", "pCPUs", "fair share", "of fair share"];
    rows(flexs, &headings, |vm| {
        let spread = |spread: Option<Spread>| spread.map_or_else(absent, |s| s.text().into());
        let ratio = vm.work_vs_stock.map(|ratio| format!("{ratio:.3}").into());
        Some(vec![
            spread(vm.work_of_alone),
            ratio.unwrap_or_else(absent),
            vm.share.text().into(),
            vm.due.text().into(),
            format!("{:.1} %", vm.of_due.median * 100.0).into(),
        ])
    })
}

/// Tabulates verdicts and ground truth of every VM whose branches were counted.
pub fn verdicts(flexs: &Flexs) -> Table {
    let headings =
        ["judged", "spun", "found", "recall", "worked", "false alarms", "swaps", "no sibling"];
    rows(flexs, &headings, |vm| {
        let told = vm.verdicts.as_ref()?;
        let recall = told.recall().map(|part| percent(Some(part)).into());
        Some(vec![
            told.judged.to_string().into(),
            told.spun.to_string().into(),
            told.found.to_string().into(),
            recall.unwrap_or_else(absent),
            told.worked.to_string().into(),
            told.false_alarms.to_string().into(),
            told.swaps.to_string().into(),
            told.failed.to_string().into(),
        ])
    })
}

/// Formats a fraction in percent.
fn percent(part: Option<f64>) -> String {
    part.map_or_else(|| figure::NOT_MEASURED.to_owned(), |part| format!("{:.1} %", part * 100.0))
}

/// Counts by reason over all VMs: missed spinning periods, periods without a search for a sibling, refused siblings.
/// Kinds without a count are omitted.
pub fn reasons(flexs: &Flexs) -> Vec<String> {
    let figures = &flexs.promised.verdicts;
    let list = |what: &str, counts: Vec<(String, u64)>| {
        let counts = counts.iter().map(|(why, count)| format!("{count} {why}"));
        let counts: Vec<String> = counts.collect();
        (!counts.is_empty()).then(|| format!("{what}: {}", counts.join(", ")))
    };
    let missed = figures.missed.iter();
    let missed = missed.map(|(basis, count)| (format!("({basis})"), *count));
    let left = figures.left.iter();
    let left = left.map(|(left, count)| (format!("({left})"), *count));
    let refused = figures.refused.iter();
    let refused = refused.map(|(why, count)| (format!("({why})"), *count));
    let lists = [
        list("Missed spinning periods", missed.collect()),
        list("Periods without a search for a sibling", left.collect()),
        list("Refused siblings", refused.collect()),
    ];
    lists.into_iter().flatten().collect()
}

/// States the measured figures and their targets.
pub fn findings(flexs: &Flexs) -> String {
    let promised = &flexs.promised;
    let worst = |worst: &Option<Worst>| {
        let worst = worst.as_ref();
        worst.map_or_else(String::new, |worst| {
            format!(", {} in the mix {}", percent(Some(worst.value)), worst.mix)
        })
    };
    let met = promised.recall_met.map_or("", |met| if met { ": met" } else { ": not met" });
    let ratio = promised
        .least_work_vs_stock
        .map_or_else(|| figure::NOT_MEASURED.to_owned(), |ratio| format!("{ratio:.3}"));
    format!(
        "With {} counters, not hardware counters. Recall of spinning periods: {}{} (target {} in each mix{met}); {} of those that were long enough to be \
         judged. False alarms among working periods: {}{}. Minimum work of a spinning VM relative to stock, in mixes where a swap gains work: {ratio} \
         (target 1.05). Minimum CPU time of a VM relative to its fair share: {} (target 97 %).",
        flexs.counters,
        percent(promised.detection.recall),
        worst(&promised.least_recall),
        format_args!("{:.0} %", RECALL * 100.0),
        percent(promised.detection.recall_of_judged),
        percent(promised.detection.false_alarm_rate),
        worst(&promised.greatest_false_alarm_rate),
        percent(promised.least_of_due)
    )
}

/// Reasons and notes, one line each.
pub fn notes(flexs: &Flexs) -> Vec<String> {
    let mut lines = flexs.notes.clone();
    for mix in &flexs.mixes {
        let failures = mix.failures.iter();
        lines.extend(failures.map(|reason| format!("{}: a run failed: {reason}", mix.mix)));
        for mode in &mix.modes {
            let reasons = mode.not_measured.iter();
            lines.extend(reasons.map(|reason| {
                format!("{}, {}: {}: {reason}", mix.mix, mode.mode, figure::NOT_MEASURED)
            }));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use tandem_report::experiment::Host;
    use tandem_report::table::Look;

    use super::*;
    use crate::flexs::figures;

    fn flexs() -> Flexs {
        let mixes = figures::tests::mixes();
        Flexs {
            host: Host::default(),
            backend: "threads".to_owned(),
            counters: "synthetic",
            runs: 3,
            seconds: 3.0,
            settle_seconds: 1.0,
            alone_seconds: 0.0,
            promised: figures::promised(&mixes),
            mixes,
            notes: vec!["a note".to_owned()],
        }
    }

    #[test]
    fn tables_have_a_row_per_vm_and_mode() {
        let flexs = flexs();
        let text = work(&flexs).text(Look::Plain);
        assert_eq!(text.lines().count(), 2 + 8, "{text}");
        assert!(text.contains("1.453") && text.contains("97.5 %"), "{text}");
        let text = verdicts(&flexs).text(Look::Plain);
        assert_eq!(text.lines().count(), 2 + 4, "{text}");
        assert!(text.contains("| 80 |") || text.contains(" 80 |"), "{text}");
        assert!(text.contains("87.5 %"), "{text}");
        assert!(text.contains(figure::NOT_MEASURED), "{text}");
    }

    #[test]
    fn findings_state_targets_and_figures() {
        let text = findings(&flexs());
        assert!(
            text.contains(
                "93.8 %, 87.5 % in the mix one-burner (target 95 % in each mix: not met); 94.3 % of those"
            ),
            "{text}"
        );
        assert!(text.contains("working periods: 5.0 %, 5.0 % in the mix"), "{text}");
        assert!(text.contains("1.453 (target 1.05)"), "{text}");
        assert!(text.contains("97.5 % (target 97 %)"), "{text}");
        let mut none = flexs();
        none.promised = figures::promised(&[]);
        assert!(findings(&none).contains(figure::NOT_MEASURED));
    }

    #[test]
    fn misses_and_refusals_are_counted_by_reason() {
        let lines = reasons(&flexs());
        assert_eq!(
            lines,
            [
                "Missed spinning periods: 9 (all that its VM ran in this fair window looks alike), 1 (too few branches since its last \
                 accounting to tell)",
                "Refused siblings: 4 (it spins, too)",
            ]
        );
        let mut none = flexs();
        none.promised = figures::promised(&[]);
        assert!(reasons(&none).is_empty());
    }

    #[test]
    fn notes_name_their_mix() {
        let lines = notes(&flexs());
        assert!(lines.contains(&"a note".to_owned()));
        assert!(lines.contains(&"even: a run failed: a VM ended".to_owned()));
        assert!(
            lines.contains(&"one-burner, flexs: not measured: the daemon said: no".to_owned()),
            "{lines:?}"
        );
    }
}
