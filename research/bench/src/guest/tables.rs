//! Tables of the guest bench: ratios, costs, choices of the agent.
//!
//! A ratio has its interval: `4.12 (3.98 … 4.30)`.
//! Its tone is good if the whole interval is above 1, and bad if the ratio is below [`HARMLESS`].

use tandem_report::figure;
use tandem_report::table::{Align, Cell, Table, Tone};

use crate::guest::account::Account;
use crate::guest::program::Program;
use crate::guest::row::{Agreement, HARMLESS, QUIET, Row, disturbed, mean};
use crate::guest::variant::{Choice, Variant};
use crate::guest::{held_back, program};

/// Returns the variants of the rows, in a fixed order.
pub fn variants(rows: &[Row]) -> Vec<Variant> {
    let mut variants: Vec<Variant> = rows.iter().map(|row| row.variant).collect();
    variants.sort_unstable();
    variants.dedup();
    variants
}

/// Returns the programs of the rows, each once, in their order.
pub fn programs(rows: &[Row]) -> Vec<&str> {
    let mut programs: Vec<&str> = Vec::new();
    for row in rows {
        if !programs.contains(&row.program.as_str()) {
            programs.push(&row.program);
        }
    }
    programs
}

fn find<'a>(rows: &'a [Row], program: &str, variant: Variant) -> Option<&'a Row> {
    let same = |row: &&Row| row.program == program && row.variant == variant;
    rows.iter().find(same)
}

fn absent() -> Cell {
    Cell::toned(figure::NOT_MEASURED, Tone::Faint)
}

fn headed(first: &[&str], more: impl Iterator<Item = String>) -> Table {
    let mut names: Vec<String> = first.iter().map(|name| (*name).to_owned()).collect();
    names.extend(more);
    let align = |place| {
        if place < first.len() { Align::Left } else { Align::Right }
    };
    let headings: Vec<(&str, Align)> =
        names.iter().enumerate().map(|(place, name)| (name.as_str(), align(place))).collect();
    Table::new(&headings)
}

/// Tabulates every program's ratio in every variant, and their means.
pub fn ratios(rows: &[Row]) -> Table {
    let variants = variants(rows);
    let names = variants.iter().map(|variant| variant.name().to_owned());
    let mut table = headed(&["program", "kind", "stock", "pairs"], names);
    for program in programs(rows) {
        let Some(any) = rows.iter().find(|row| row.program == program) else {
            continue;
        };
        let mut cells = vec![
            Cell::toned(program, Tone::Strong),
            any.kind.name().into(),
            format!("{} {}/s", figure::rate(any.stock_rate), any.unit).into(),
            any.runs.to_string().into(),
        ];
        cells.extend(
            variants.iter().map(|&variant| find(rows, program, variant).map_or_else(absent, ratio)),
        );
        table.row(cells);
    }
    let mut means = vec![
        Cell::toned("geometric mean", Tone::Strong),
        Cell::default(),
        Cell::default(),
        Cell::default(),
    ];
    means.extend(variants.iter().map(|&variant| match mean(rows, variant, None) {
        Some((mean, count)) => format!("{mean:.2} of {count}").into(),
        None => absent(),
    }));
    table.row(means);
    table
}

/// Formats a ratio with its interval and tone.
fn ratio(row: &Row) -> Cell {
    let tone = match () {
        () if row.ratio < HARMLESS => Tone::Bad,
        () if row.ci_low > 1.0 => Tone::Good,
        () => Tone::Plain,
    };
    Cell::toned(words(row), tone)
}

/// Formats a ratio with its interval: `4.120 (3.980 … 4.300)`.
pub fn words(row: &Row) -> String {
    format!("{:.3} ({:.3} … {:.3})", row.ratio, row.ci_low, row.ci_high)
}

/// Tabulates CPU time and awake time per unit of work relative to stock.
pub fn costs(rows: &[Row]) -> Table {
    let variants = variants(rows);
    let names = variants.iter().flat_map(|variant| {
        let name = variant.name();
        [format!("{name} CPU"), format!("{name} awake")]
    });
    let mut table = headed(&["program"], names);
    for program in programs(rows) {
        let mut cells = vec![Cell::toned(program, Tone::Strong)];
        for &variant in &variants {
            let row = find(rows, program, variant);
            let of = |value: Option<f64>| value.map_or_else(absent, |v| format!("{v:.2}").into());
            cells.push(of(row.and_then(|row| row.cpu_ratio)));
            cells.push(of(row.and_then(|row| row.awake_ratio)));
        }
        table.row(cells);
    }
    table
}

/// Tabulates idle periods, busy time and latencies of programs on one vCPU, in variants and stock.
pub fn one_vcpu(rows: &[Row]) -> Table {
    let names = [
        "work",
        "idle periods",
        "per second",
        "in stock",
        "busy",
        "latency p99",
        "in stock",
        "slack at the end",
    ];
    let mut table = headed(&["program", "variant"], names.map(str::to_owned).into_iter());
    for row in rows.iter().filter(|row| is_of_one_vcpu(row)) {
        let part = |value: Option<f64>| value.map_or_else(absent, |v| format!("{v:.3}").into());
        let rate = |pair: Option<[f64; 2]>, at: usize| {
            pair.map_or_else(absent, |pair| figure::rate(pair[at]).into())
        };
        let time = |ns: Option<f64>| ns.map_or_else(absent, |ns| figure::time(ns).into());
        table.row([
            Cell::toned(row.program.clone(), Tone::Strong),
            row.variant.name().into(),
            ratio(row),
            part(row.transitions_ratio),
            rate(row.transitions_per_second, 0),
            rate(row.transitions_per_second, 1),
            part(row.busy_ratio),
            time(row.latency_p99_ns.map(|pair| pair[0])),
            time(row.latency_p99_ns.map(|pair| pair[1])),
            time(row.delay_slack_ns),
        ]);
    }
    table
}

fn is_of_one_vcpu(row: &Row) -> bool {
    row.transitions_ratio.is_some() || row.latency_p99_ns.is_some()
}

/// Tabulates the agent's choices, its time to settle, and its CPU time.
pub fn choices(rows: &[Row]) -> Table {
    let names = ["vCPUs", "retention", "settled after", "agent's CPU"];
    let mut table = headed(&["program"], names.map(str::to_owned).into_iter());
    for row in rows.iter().filter(|row| row.variant == Variant::Agent) {
        let choice = |of: fn(Choice) -> String| match row.choice {
            Some(choice) => of(choice).into(),
            None => absent(),
        };
        table.row([
            Cell::toned(row.program.clone(), Tone::Strong),
            choice(|choice| choice.vcpus.to_string()),
            choice(|choice| match choice.retention_ns {
                0 => "off".to_owned(),
                ns => figure::time(ns as f64),
            }),
            settled(row.settled_ms),
            row.agent_cpu.map_or_else(absent, |part| format!("{:.2} %", part * 100.0).into()),
        ]);
    }
    table
}

fn settled(ms: Option<f64>) -> Cell {
    ms.map_or_else(absent, |ms| figure::time(ms * 1e6).into())
}

/// Compares the agent's choice with the best fixed setting.
pub fn agreement(agreements: &[Agreement]) -> Table {
    let mut table =
        Table::new(&["program", "best", "as good", "chosen", "agrees", "settled after"]);
    for found in agreements {
        let names: Vec<&str> = found.as_good.iter().map(|variant| variant.name()).collect();
        let (word, tone) = if found.agrees { ("yes", Tone::Good) } else { ("no", Tone::Bad) };
        table.row([
            Cell::toned(found.program.clone(), Tone::Strong),
            found.best.name().into(),
            names.join(", ").into(),
            found.chosen.map_or_else(absent, |variant| variant.name().into()),
            Cell::toned(word, tone),
            settled(found.settled_ms),
        ]);
    }
    table
}

/// Warns if the machine was not idle.
pub fn warning(rows: &[Row]) -> Option<String> {
    let names = disturbed(rows);
    (!names.is_empty()).then(|| {
        format!(
            "Not idle: in some run of each of these programs, something else took more than {QUIET} \
             vCPUs, so their figures are unreliable: {}.",
            names.join(", ")
        )
    })
}

/// States the result of a variant: mean, faster and slower programs.
pub fn finding(rows: &[Row], variant: Variant) -> Option<String> {
    let (mean, count) = mean(rows, variant, None)?;
    let of: Vec<&Row> = rows.iter().filter(|row| row.variant == variant).collect();
    let slow: Vec<&str> =
        of.iter().filter(|row| row.ratio < HARMLESS).map(|row| row.program.as_str()).collect();
    let faster = of.iter().filter(|row| row.ci_low > 1.0).count();
    let slow = match slow.len() {
        0 => "none is slower by more than 2 %".to_owned(),
        _ => format!("slower by more than 2 %: {}", slow.join(", ")),
    };
    let programs = if count == 1 { "program" } else { "programs" };
    Some(format!(
        "Over {count} {programs}, {} has {mean:.2} times the throughput of stock (geometric mean). \
         Surely faster: {faster}; {slow}.",
        variant.name(),
    ))
}

/// Lists programs and their missing requirements.
pub fn list(programs: &[Program]) -> Table {
    let mut table = Table::new(&["program", "kind", "what; unit of work", "lacks"]);
    for program in programs {
        let lacks = program::missing(program.load, program::present);
        table.row([
            program.name.to_owned(),
            program.kind.name().to_owned(),
            program.load.what(),
            lacks.unwrap_or_default(),
        ]);
    }
    table
}

/// Renders the whole output for the terminal.
pub fn summary(rows: &[Row], agreements: &[Agreement], account: &Account) -> String {
    let mut parts = vec![ratios(rows).to_string()];
    parts.extend(variants(rows).into_iter().filter_map(|variant| finding(rows, variant)));
    parts.extend(warning(rows));
    parts.push("CPU time and awake time per unit of work, relative to stock:".to_owned());
    parts.push(costs(rows).to_string());
    if rows.iter().any(is_of_one_vcpu) {
        let what = "On one vCPU: idle periods and busy time per unit of work, relative to stock:";
        parts.push(what.to_owned());
        parts.push(one_vcpu(rows).to_string());
        parts.extend(held_back::finding(rows));
    }
    let choices = choices(rows);
    if !choices.is_empty() {
        parts.push("The agent's most frequent choice, and its time to settle:".to_owned());
        parts.push(choices.to_string());
    }
    if !agreements.is_empty() {
        let agree = agreements.iter().filter(|found| found.agrees).count();
        parts.push(format!(
            "The agent's choice is as good as the best fixed setting for {agree} of {} programs:",
            agreements.len()
        ));
        parts.push(agreement(agreements).to_string());
    }
    parts.push(counts(rows, account));
    parts.join("\n\n")
}

/// Counts measured, skipped and failed programs, with reasons.
fn counts(rows: &[Row], account: &Account) -> String {
    let mut lines = vec![format!(
        "{} measured, {} skipped, {} failed",
        programs(rows).len(),
        account.skipped.len(),
        account.failed.len()
    )];
    for (word, list) in [("skipped", &account.skipped), ("failed", &account.failed)] {
        lines.extend(list.iter().map(|(name, reason)| format!("{word}: {name}: {reason}")));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::row::agreements;
    use crate::guest::row::tests::row;
    use tandem_report::table::Look;

    #[test]
    fn missing_variants_are_not_measured() {
        let rows = [
            row("pipe", Variant::Agent, 4.0),
            row("pipe", Variant::Taskset, 9.0),
            row("make", Variant::Agent, 1.0),
        ];
        let text = ratios(&rows).text(Look::Plain);
        assert!(text.contains("4.000 (4.000 … 4.000)"), "{text}");
        assert!(text.contains(figure::NOT_MEASURED), "{text}");
        assert!(text.contains("2.00 of 2") && text.contains("9.00 of 1"), "{text}");
        assert_eq!(variants(&rows), [Variant::Agent, Variant::Taskset]);
        assert_eq!(programs(&rows), ["pipe", "make"]);
        let text = costs(&rows).text(Look::Plain);
        assert!(text.contains("agent awake") && text.contains("0.25"), "{text}");
    }

    #[test]
    fn one_vcpu_programs_have_their_own_table() {
        let mut rows = vec![row("timers", Variant::Agent, 1.0), row("make", Variant::Agent, 1.0)];
        rows[0].transitions_ratio = Some(0.55);
        rows[0].transitions_per_second = Some([1_000.0, 1_800.0]);
        rows[0].latency_p99_ns = Some([800_000.0, 90_000.0]);
        let text = one_vcpu(&rows).text(Look::Plain);
        assert!(text.contains("0.550") && text.contains("timers"), "{text}");
        assert!(!text.contains("make"), "{text}");
        // The row has no busy time.
        assert!(text.contains(figure::NOT_MEASURED), "{text}");
    }

    #[test]
    fn finding_names_slower_programs() {
        let rows = [row("pipe", Variant::Agent, 4.0), row("make", Variant::Agent, 0.9)];
        let text = finding(&rows, Variant::Agent).unwrap();
        assert!(text.contains("1.90 times"), "{text}");
        assert!(text.contains("slower by more than 2 %: make"), "{text}");
        assert_eq!(finding(&rows, Variant::Taskset), None);
        let harmless = finding(&rows[..1], Variant::Agent).unwrap();
        assert!(harmless.contains("1 program, agent") && harmless.contains("none is slower"));
    }

    #[test]
    fn busy_machine_yields_a_warning() {
        let mut rows = [row("pipe", Variant::Agent, 4.0)];
        assert_eq!(warning(&rows), None);
        rows[0].others = Some(0.5);
        assert!(warning(&rows).unwrap().contains("pipe"));
    }

    #[test]
    fn unknown_choices_are_not_measured() {
        let rows: Vec<Row> =
            Variant::EXHAUSTIVE.iter().map(|&variant| row("pipe", variant, 2.0)).collect();
        let text = choices(&rows).text(Look::Plain);
        assert!(text.contains(figure::NOT_MEASURED), "{text}");
        let text = agreement(&agreements(&rows)).text(Look::Plain);
        assert!(text.contains("| no"), "{text}");
    }

    #[test]
    fn skipped_programs_are_counted_with_reasons() {
        let account = Account {
            skipped: vec![("vm-burn".to_owned(), "no /dev/kvm".to_owned())],
            failed: Vec::new(),
        };
        let rows = [row("make", Variant::Agent, 1.0)];
        assert_eq!(
            counts(&rows, &account),
            "1 measured, 1 skipped, 0 failed\nskipped: vm-burn: no /dev/kvm"
        );
    }
}
