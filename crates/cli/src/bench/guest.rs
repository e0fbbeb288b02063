//! `tandem bench guest`: the programs of [`program::PROGRAMS`] on this machine, stock against the
//! guest agent and against what an administrator would set by hand.
//!
//! Each program runs alone, in turn in stock and in every variant ([`measure`]), for some seconds each
//! time; the figures are medians of paired ratios with intervals ([`interval`]), CPU time and awake
//! time per unit of work ([`counters`]), and means over the set. What cannot run here is left out with
//! its reason and counted; it is no failure. A program that should run and does not is one.
//!
//! The agent is `tandem guest run`, started anew for each run, so its time to settle is in every
//! figure. It changes vCPUs and idle settings, journals that, and puts it back; this bench changes
//! nothing but its own folder. Run it on an otherwise idle machine.

pub mod counters;
pub mod database;
pub mod folder;
pub mod inputs;
pub mod interval;
pub mod measure;
pub mod output;
pub mod page;
pub mod process;
pub mod program;
pub mod row;
pub mod tables;
pub mod token;
pub mod variant;

use std::path::Path;
use std::path::PathBuf;

use anyhow::Context;
use anyhow::bail;
use anyhow::ensure;
use clap::Args;
use tandem_report::table::Table;

use self::counters::Counters;
use self::folder::Folder;
use self::measure::Bench;
use self::measure::Plan;
use self::program::PROGRAMS;
use self::program::Program;
use self::row::Row;
use super::write_json;
use crate::console::check_writable;
use crate::console::print;
use crate::demo::host_facts;
use tandem_linux::interrupt::Interrupt;
use tandem_report::progress::Progress;

/// `tandem bench guest`
#[derive(Debug, Args)]
pub struct GuestArgs {
    /// A program to run; may be repeated [default: all]; an unknown name lists them
    #[arg(long = "program", value_name = "NAME", value_delimiter = ',')]
    programs: Vec<String>,
    /// Pairs of runs of each program and variant, 1 … 1000; from 6 on, intervals cover 95 %
    #[arg(long, value_name = "N", default_value_t = 10)]
    runs: u32,
    /// What to compare with stock: agent, taskset, haltpoll, exhaustive (agent and all fixed settings)
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        default_value = "agent"
    )]
    variants: Vec<String>,
    /// Seconds that a run takes, about, 1 … 60
    #[arg(long, value_name = "S", default_value_t = 3)]
    seconds: u32,
    /// Write the figures here, a list of {program, variant, ratio, ci_low, ci_high, runs, …}
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep the figures that the JSON file has of other programs and variants
    #[arg(long, requires = "json")]
    add: bool,
    /// Write a page with charts, one file that opens offline
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Only list the programs, and what those lack that cannot run here
    #[arg(long)]
    list: bool,
    /// Where the agent keeps its journal [default: the agent's own]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// What was left out, and what went wrong: name and reason.
#[derive(Debug, Default)]
pub struct Account {
    /// Programs and variants that cannot run here.
    pub skipped: Vec<(String, String)>,
    /// Programs that should have run and did not.
    pub failed: Vec<(String, String)>,
}

/// Runs the bench.
pub fn main(args: &GuestArgs) -> anyhow::Result<()> {
    let programs = program::chosen(&args.programs)?;
    if args.list {
        return print(&list(&programs).to_string());
    }
    let plan = plan(args)?;
    let mut older = Vec::new();
    for path in args.json.iter().chain(&args.html) {
        check_writable(path)?;
    }
    if let (Some(path), true) = (&args.json, args.add) {
        older = read_rows(path)?;
    }
    let interrupt = Interrupt::watch()?;
    let folder = Folder::new()?;
    let mut account = Account::default();
    let plan = usable(plan, &folder, &interrupt, &mut account)?;
    let (programs, missing) = sorted_out(programs);
    account.skipped.extend(missing);

    let steps = programs.len() as u64 * u64::from(plan.runs) * (plan.variants.len() as u64 + 1);
    let progress = Progress::begin(steps);
    let mut bench = Bench::new(&plan, &folder, &interrupt);
    let mut rows = older;
    for (place, program) in programs.iter().enumerate() {
        let part = progress.within(program.name);
        part.say(&format!("{} of {}", place + 1, programs.len()));
        let measured = bench.measure(program, &part)?;
        for failure in measured.failures {
            part.note(&failure);
            account.failed.push((program.name.to_owned(), failure));
        }
        rows = row::merged(rows, &measured.rows);
        // After each program: a bench of an hour must not lose all to what happens in its last minute.
        if let Some(path) = &args.json {
            save(path, &rows)?;
        }
    }
    drop(progress);
    in_order(&mut rows);
    finish(args, &plan, &rows, &account)
}

fn plan(args: &GuestArgs) -> anyhow::Result<Plan> {
    ensure!(
        (1..=1000).contains(&args.runs),
        "--runs {} is not possible: 1 … 1000",
        args.runs
    );
    ensure!(
        (1..=60).contains(&args.seconds),
        "--seconds {} is not possible: 1 … 60",
        args.seconds
    );
    let vcpus = host_facts::usable_pcpus()?;
    let tandem = std::env::current_exe().context("cannot find the running program")?;
    Ok(Plan {
        runs: args.runs,
        seconds: args.seconds,
        variants: variant::list(&args.variants)?,
        vcpus: vcpus.len(),
        vcpu: vcpus
            .iter()
            .next()
            .map(|vcpu| vcpu.0)
            .context("this process may use no vCPU")?,
        tandem: tandem.display().to_string(),
        state_dir: args.state_dir.clone(),
    })
}

/// The plan with those variants that work here.
fn usable(
    mut plan: Plan,
    folder: &Folder,
    interrupt: &Interrupt,
    account: &mut Account,
) -> anyhow::Result<Plan> {
    let bench = Bench::new(&plan, folder, interrupt);
    let mut usable = Vec::new();
    for &variant in &plan.variants {
        match bench.try_out(variant)? {
            Ok(()) => usable.push(variant),
            Err(reason) => {
                let name = format!("variant {}", variant.name());
                account.skipped.push((name, reason));
            }
        }
    }
    if usable.is_empty() {
        let reasons: Vec<String> = account
            .skipped
            .iter()
            .map(|(name, reason)| format!("{name}: {reason}"))
            .collect();
        bail!("nothing to compare with stock: {}", reasons.join("; "));
    }
    plan.variants = usable;
    Ok(plan)
}

/// The programs that can run here, and the others with what they lack.
fn sorted_out(programs: Vec<Program>) -> (Vec<Program>, Vec<(String, String)>) {
    let mut skipped = Vec::new();
    let mut runnable = Vec::new();
    for program in programs {
        match program::missing(program.load, program::present) {
            None => runnable.push(program),
            Some(reason) => skipped.push((program.name.to_owned(), reason)),
        }
    }
    (runnable, skipped)
}

fn list(programs: &[Program]) -> Table {
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

/// The rows that a file holds; an empty file holds none.
fn read_rows(path: &Path) -> anyhow::Result<Vec<Row>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    serde_json::from_str(&text)
        .with_context(|| format!("{} holds no figures of this bench", path.display()))
}

fn save(path: &Path, rows: &[Row]) -> anyhow::Result<()> {
    let mut rows = rows.to_vec();
    in_order(&mut rows);
    let json = serde_json::to_string_pretty(&rows).context("cannot write JSON")?;
    std::fs::write(path, json + "\n").with_context(|| format!("cannot write {}", path.display()))
}

/// Sorts rows as the set has its programs, then by variant.
fn in_order(rows: &mut [Row]) {
    let place = |row: &Row| {
        let programs = PROGRAMS.iter();
        let at = programs
            .map(|p| p.name)
            .position(|name| name == row.program);
        (at.unwrap_or(PROGRAMS.len()), row.variant)
    };
    rows.sort_by_key(place);
}

fn finish(args: &GuestArgs, plan: &Plan, rows: &[Row], account: &Account) -> anyhow::Result<()> {
    let mut parts = vec![tables::ratios(rows).to_string()];
    parts.extend(
        tables::variants(rows)
            .into_iter()
            .filter_map(|variant| tables::finding(rows, variant)),
    );
    parts.extend(tables::warning(rows));
    parts.push("CPU time and awake time per unit of work, against stock:".to_owned());
    parts.push(tables::costs(rows).to_string());
    let choices = tables::choices(rows);
    if !choices.is_empty() {
        parts.push("What the agent chose in most runs, and when:".to_owned());
        parts.push(choices.to_string());
    }
    let agreements = row::agreements(rows);
    if !agreements.is_empty() {
        let agree = agreements.iter().filter(|found| found.agrees).count();
        parts.push(format!(
            "The agent's choice is as good as the best fixed setting for {agree} of {} programs:",
            agreements.len()
        ));
        parts.push(tables::agreement(&agreements).to_string());
    }
    parts.push(counts(rows, account));
    print(&parts.join("\n\n"))?;
    if let Some(path) = &args.json {
        write_json(path, &rows)?;
    }
    if let Some(path) = &args.html {
        let text = page::html(rows, &agreements, account, plan);
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("charts: {}", path.display());
    }
    let failures = account.failed.len();
    ensure!(
        failures == 0,
        "{failures} of the programs or variants that should run did not"
    );
    Ok(())
}

/// What ran and what did not, with the reasons.
fn counts(rows: &[Row], account: &Account) -> String {
    let mut lines = vec![format!(
        "{} measured, {} skipped, {} failed",
        tables::programs(rows).len(),
        account.skipped.len(),
        account.failed.len()
    )];
    for (word, list) in [("skipped", &account.skipped), ("failed", &account.failed)] {
        lines.extend(
            list.iter()
                .map(|(name, reason)| format!("{word}: {name}: {reason}")),
        );
    }
    lines.join("\n")
}

/// `tandem bench guest-counters`: the machine's counters, for the script that serves a database.
pub fn print_counters() -> anyhow::Result<()> {
    print(&serde_json::to_string(&Counters::read()?).context("cannot write JSON")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::guest::variant::Variant;

    #[test]
    fn rows_stand_in_the_order_of_the_set() {
        let mut rows = vec![
            row::tests::row("make", Variant::Agent, 1.0),
            row::tests::row("sched-pipe", Variant::Taskset, 1.0),
            row::tests::row("gone", Variant::Agent, 1.0),
            row::tests::row("sched-pipe", Variant::Agent, 1.0),
        ];
        in_order(&mut rows);
        let names: Vec<String> = rows
            .iter()
            .map(|row| format!("{} {}", row.program, row.variant.name()))
            .collect();
        assert_eq!(
            names,
            [
                "sched-pipe agent",
                "sched-pipe taskset",
                "make agent",
                "gone agent"
            ]
        );
    }

    #[test]
    fn a_file_of_figures_is_read_back_and_another_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("figures.json");
        let rows = [row::tests::row("make", Variant::Agent, 1.0)];
        save(&path, &rows).unwrap();
        assert_eq!(read_rows(&path).unwrap(), rows);
        std::fs::write(&path, "").unwrap();
        assert_eq!(read_rows(&path).unwrap(), []);
        std::fs::write(&path, "{}").unwrap();
        let error = format!("{:#}", read_rows(&path).unwrap_err());
        assert!(error.contains("holds no figures of this bench"), "{error}");
    }

    #[test]
    fn what_was_skipped_is_counted_with_its_reason() {
        let account = Account {
            skipped: vec![("vm-burn".to_owned(), "no /dev/kvm".to_owned())],
            failed: Vec::new(),
        };
        let rows = [row::tests::row("make", Variant::Agent, 1.0)];
        assert_eq!(
            counts(&rows, &account),
            "1 measured, 1 skipped, 0 failed\nskipped: vm-burn: no /dev/kvm"
        );
    }
}
