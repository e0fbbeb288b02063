//! The figures of the guest bench as a page.

use crate::bench_page::{self, Bars, BenchPage, Tile};
use tandem_papers::section::Section;
use tandem_report::chart::rows::Row as Bar;
use tandem_report::figure;
use tandem_report::table::Table;

use crate::guest::account::Account;
use crate::guest::measure::Plan;
use crate::guest::program::{Kind, PROGRAMS};
use crate::guest::row::{Agreement, Row, mean};
use crate::guest::tables;
use crate::guest::variant::Variant;
use tandem_demo::host_facts;

/// Renders the page.
pub fn html(rows: &[Row], agreements: &[Agreement], account: &Account, plan: &Plan) -> String {
    let variants = tables::variants(rows);
    let findings: Vec<String> =
        variants.iter().filter_map(|&variant| tables::finding(rows, variant)).collect();
    let page = BenchPage {
        title: "Blocking programs in this VM".to_owned(),
        lead: match findings.first() {
            Some(finding) => finding.clone(),
            None => "Nothing was measured.".to_owned(),
        },
        notes: findings.into_iter().skip(1).chain(tables::warning(rows)).collect(),
        tiles: variants.first().map(|&variant| tiles(rows, variant)).unwrap_or_default(),
        bars: variants.iter().map(|&variant| bars(rows, variant)).collect(),
        pairs: Vec::new(),
        sections: sections(rows, agreements, account),
        how: how(&variants, plan),
    };
    let footer = format!("tandem {} bench guest", env!("CARGO_PKG_VERSION"));
    bench_page::html(&page, &footer)
}

/// Returns means of a variant over all programs, and over each kind.
fn tiles(rows: &[Row], variant: Variant) -> Vec<Tile> {
    let kinds = [Kind::WakeUp, Kind::Mixed, Kind::Computing].map(Some);
    std::iter::once(None)
        .chain(kinds)
        .map(|kind| {
            let programs = match kind {
                None => "all programs".to_owned(),
                Some(kind) => format!("{} programs", kind.name()),
            };
            let (figure, beside) = match mean(rows, variant, kind) {
                Some((mean, count)) => {
                    (format!("{mean:.2} ×"), format!("throughput of stock, mean of {count}"))
                }
                None => (figure::NOT_MEASURED.to_owned(), String::new()),
            };
            Tile { name: format!("{}, {programs}", variant.name()), figure, beside }
        })
        .collect()
}

fn bars(rows: &[Row], variant: Variant) -> Bars {
    let bar = |row: &Row| Bar {
        name: row.program.clone(),
        series: 0,
        value: Some(row.ratio),
        // The whisker is symmetric and has the length of the interval's longer side.
        half_width: Some((row.ci_high - row.ratio).max(row.ratio - row.ci_low)),
        label: format!("{:.2}", row.ratio),
        tooltip: format!("{}: {}", row.program, tables::words(row)),
    };
    Bars {
        title: format!("Throughput with {} against stock", variant.name()),
        remark: format!("{}. Dashed: stock.", variant.what()),
        unit: "× stock".to_owned(),
        rows: rows.iter().filter(|row| row.variant == variant).map(bar).collect(),
    }
}

fn sections(rows: &[Row], agreements: &[Agreement], account: &Account) -> Vec<Section> {
    let section = |title: &str, remark: &str, table: Table| Section {
        title: title.to_owned(),
        remark: remark.to_owned(),
        table: (!table.is_empty()).then_some(table),
    };
    let mut sections = vec![
        section(
            "Throughput against stock",
            "The median over pairs of runs, with its interval (from order statistics, 95 % or more \
             from six pairs on).",
            tables::ratios(rows),
        ),
        section(
            "Cost",
            "CPU time per unit of work, and time per unit of work in which vCPUs were awake (busy, or \
             polling while idle), each against stock: below 1 is less. Awake time stands for energy.",
            tables::costs(rows),
        ),
        section(
            "The agent's choice",
            "The most frequent choice; each run starts a new agent, so every figure includes its time to settle.",
            tables::choices(rows),
        ),
    ];
    if !agreements.is_empty() {
        sections.push(section(
            "The agent's choice against the best fixed setting",
            "Settings count as best within 3 % of the best, or within its interval.",
            tables::agreement(agreements),
        ));
    }
    let mut left_out = Table::new(&["what", "why not"]);
    for (name, reason) in account.skipped.iter().chain(&account.failed) {
        left_out.row([name.clone(), reason.clone()]);
    }
    let remark = if left_out.is_empty() {
        "Nothing was left out of the last run."
    } else {
        "Programs and variants that could not run, or failed, in the last run."
    };
    sections.push(section("Left out", remark, left_out));
    sections
}

fn how(variants: &[Variant], plan: &Plan) -> Vec<(String, String)> {
    let host = host_facts::read();
    let mut how = vec![
        (
            "Machine".to_owned(),
            format!("{} vCPUs, {}, Linux {}", plan.vcpus, host.cpu, host.kernel),
        ),
        (
            "Runs".to_owned(),
            format!(
                "about {} s each, {} rounds in the last run, every second one in the opposite order; a \
                 variant is compared with stock in the same round",
                plan.seconds, plan.runs
            ),
        ),
    ];
    let named = |variant: &Variant| (variant.name().to_owned(), variant.what().to_owned());
    how.push(named(&Variant::Stock));
    how.extend(variants.iter().map(named));
    how.extend(PROGRAMS.iter().map(|program| (program.name.to_owned(), program.load.what())));
    how
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::row::agreements;
    use crate::guest::row::tests::row;

    fn plan() -> Plan {
        Plan {
            runs: 10,
            seconds: 3,
            variants: vec![Variant::Agent],
            vcpus: 2,
            vcpu: 0,
            tandem: "tandem".to_owned(),
            state_dir: None,
        }
    }

    #[test]
    fn page_has_variants_and_skipped_programs() {
        let rows: Vec<Row> =
            Variant::EXHAUSTIVE.iter().map(|&variant| row("sched-pipe", variant, 2.0)).collect();
        let account = Account {
            skipped: vec![("vm-burn".to_owned(), "no <kvm>".to_owned())],
            failed: Vec::new(),
        };
        let page = html(&rows, &agreements(&rows), &account, &plan());
        for text in [
            "agent has 2.00 times",
            "best fixed setting",
            "no &lt;kvm&gt;",
            "wake-up programs",
            figure::NOT_MEASURED,
            "10 rounds",
        ] {
            assert!(page.contains(text), "{text}");
        }
        assert_eq!(page.matches("class=\"chart").count(), 5);
    }

    #[test]
    fn empty_page_states_missing_figures() {
        let page = html(&[], &[], &Account::default(), &plan());
        assert!(page.contains("Nothing was measured."));
    }
}
