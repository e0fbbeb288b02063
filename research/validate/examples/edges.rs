//! Wait edges between VMs: mixes of microVMs on this machine compared with the simulator.
//!
//! `cargo run --release -p tandem-validate --example edges -- [--source plain|bpf] [--runs N] [--seconds S] [--json FILE]`
//!
//! It needs root, KVM and a quiet machine, and removes its cgroups at the end.
//! It produced `research/data/edges.json`.

use std::path::PathBuf;
use std::process::ExitCode;

use tandem_linux::interrupt::Interrupt;
use tandem_observe::Choice;
use tandem_validate::calibrate;
use tandem_validate::calibrate::edges;
use tandem_validate::calibrate::edges::Options;
use tandem_validate::event::Event;

/// Command-line arguments.
struct Arguments {
    source: Choice,
    runs: u32,
    seconds: f64,
    json: Option<PathBuf>,
}

fn arguments() -> Result<Arguments, String> {
    let mut read = Arguments { source: Choice::Bpf, runs: 10, seconds: 5.0, json: None };
    let mut words = std::env::args().skip(1);
    while let Some(option) = words.next() {
        let value = words.next().ok_or_else(|| format!("{option} needs a value"))?;
        let wrong = |expected: &str| format!("{option} {value} is invalid: {expected}");
        match option.as_str() {
            "--source" => {
                read.source = match value.as_str() {
                    "plain" => Choice::Plain,
                    "bpf" => Choice::Bpf,
                    _ => return Err(wrong("write plain or bpf")),
                };
            }
            "--runs" => {
                let runs = value.parse().ok().filter(|runs| (1..=1000).contains(runs));
                read.runs = runs.ok_or_else(|| wrong("1 … 1000"))?;
            }
            "--seconds" => {
                let seconds = value.parse().map_err(|_| wrong("0.05 … 600"))?;
                calibrate::check_seconds(seconds).map_err(|error| error.to_string())?;
                read.seconds = seconds;
            }
            "--json" => read.json = Some(PathBuf::from(value)),
            _ => {
                return Err(format!(
                    "unknown option {option}: use --source, --runs, --seconds or --json"
                ));
            }
        }
    }
    Ok(read)
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = arguments()?;
    calibrate::check_machine()?;
    let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = file("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.and_then(|line| line.split_once(':'));
    let options = Options {
        source: arguments.source,
        runs: arguments.runs,
        seconds: arguments.seconds,
        command: format!(
            "cargo run --release -p tandem-validate --example edges -- --runs {} --seconds {}",
            arguments.runs, arguments.seconds
        ),
        kernel: file("/proc/sys/kernel/osrelease").trim().to_owned(),
        cpu: model.map_or_else(String::new, |(_, name)| name.trim().to_owned()),
    };
    let state_dir = std::env::temp_dir().join(format!("tandem-edges-{}", std::process::id()));
    let tell = |event: Event| eprintln!("{event}");
    let compared = edges::measure(options, &state_dir, Interrupt::watch()?, &tell)?;
    println!("{compared}");
    if let Some(path) = arguments.json {
        tandem_report::json::write(&path, &compared)?;
    }
    Ok(std::fs::remove_dir_all(&state_dir)?)
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
