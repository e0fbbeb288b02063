//! `tandem vm`: run one microVM in this process.
//!
//! By default, it runs for some seconds and prints a table, or JSON.
//! With `--control-stdio`, it prints a line when it is ready, and answers each line on its stdin with cumulative counters.
//! It then stops when its stdin ends, so that it never outlives its parent ([`tandem_demo::vm_run`]).

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use tandem_demo::vm_run::Signals;
use tandem_demo::{control, vm_run, vm_tables};
use tandem_host::select::WrongArgument;
use tandem_microvm::{Calibration, MicrovmConfig, VmName, Workload, workload};
use tandem_report::json;
use tandem_report::table::Look;

use tandem_command::console::explain;
use tandem_command::number::time;

/// Default run time of a VM.
const DEFAULT_SECONDS: f64 = 10.0;

/// `tandem vm …`
#[derive(Debug, Subcommand)]
pub enum VmCommand {
    /// Boot a VM, run its workload, and report what it got done
    #[command(after_long_help = workload::describe(), after_help = "See --help for the workloads.")]
    Run(RunArgs),
}

/// `tandem vm run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Name of the VM: up to 8 characters of a-z, 0-9, _ and -; its threads are NAME/vcpuN
    #[arg(long, default_value = "vm0")]
    name: String,
    /// Number of vCPUs, 1 to 64
    #[arg(long, default_value_t = 1)]
    vcpus: u32,
    /// What the vCPUs do
    #[arg(long, default_value = "burn")]
    workload: String,
    /// Set a parameter of the workload; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// How long to run [default: 10, or without end with --control-stdio]
    #[arg(long, visible_alias = "duration", value_name = "TIME", allow_negative_numbers = true, value_parser = time::<f64>("seconds"))]
    seconds: Option<f64>,
    /// Where the random sizes start
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// pCPUs to pin the vCPUs to, in turn: 0,1 puts vCPU 2 on pCPU 0 again [default: not pinned]
    #[arg(long, value_name = "PCPU,…", value_delimiter = ',')]
    pin: Vec<u32>,
    /// kvm: real vCPUs; threads: the same code on plain threads, for hosts without KVM
    #[arg(long, default_value = "kvm")]
    backend: String,
    /// Privilege level of the workload: 3, as a program, or 0, as a kernel, where Intel processors see
    /// pause loops (KVM backend)
    #[arg(long, default_value = "3")]
    ring: String,
    /// How fast the machine computes, as a ready line or a report gave it; give VMs whose work is
    /// compared the same one [default: measured]
    #[arg(long, value_name = "KHZ:STEPS")]
    calibration: Option<String>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Print {"ready":true,…} once booted, a line of cumulative counters for each line on stdin, and
    /// stop when stdin ends
    #[arg(long)]
    control_stdio: bool,
}

/// Runs a `tandem vm` command.
pub fn main(command: VmCommand) -> anyhow::Result<()> {
    match command {
        VmCommand::Run(args) => run(&args),
    }
}

fn run(args: &RunArgs) -> anyhow::Result<()> {
    let wrong = |error: anyhow::Error| WrongArgument(explain(&error));
    let config = config(args).map_err(wrong)?;
    let limit = limit(args).map_err(wrong)?;
    let signals = Signals::listen()?;
    let mut stdout = std::io::stdout();
    let ended = if args.control_stdio {
        vm_run::run(config, limit, &signals, Some(&mut stdout))?
    } else {
        vm_run::run(config, limit, &signals, None)?
    };
    match &ended.report {
        None => {}
        Some(report) if args.control_stdio => control::say(&mut stdout, report)?,
        Some(report) if args.json => print_text(&json::text(report)?)?,
        Some(report) => {
            let look = Look::of(stdout.is_terminal());
            print_text(&vm_tables::text(report, look))?;
        }
    }
    Ok(ended.check()?)
}

fn config(args: &RunArgs) -> anyhow::Result<MicrovmConfig> {
    let workload: Workload = args.workload.parse()?;
    let name: VmName = args.name.parse()?;
    let mut config = MicrovmConfig::new(name, workload);
    config.vcpus = args.vcpus;
    config.seed = args.seed;
    config.pins = args.pin.clone();
    config.backend = args.backend.parse()?;
    config.ring = args.ring.parse()?;
    for setting in &args.settings {
        config.parameters.set_from(setting)?;
    }
    config.calibration = args.calibration.as_deref().map(str::parse::<Calibration>).transpose()?;
    config.check()?;
    Ok(config)
}

fn limit(args: &RunArgs) -> anyhow::Result<Option<Duration>> {
    let seconds = match args.seconds {
        Some(seconds) => seconds,
        None if args.control_stdio => return Ok(None),
        None => DEFAULT_SECONDS,
    };
    let limit = Duration::try_from_secs_f64(seconds).ok();
    match limit.filter(|limit| !limit.is_zero()) {
        Some(limit) => Ok(Some(limit)),
        None => {
            bail!("--seconds {seconds} is not a valid run time; give a number above 0, such as 10")
        }
    }
}

fn print_text(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{text}").and_then(|()| stdout.flush()).context("cannot write to stdout")
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tandem_microvm::Backend;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: RunArgs,
    }

    fn parse(line: &str) -> RunArgs {
        let words = line.split_whitespace();
        Line::try_parse_from(std::iter::once("run").chain(words)).unwrap().args
    }

    #[test]
    fn options_become_a_configuration() {
        let args = parse(
            "--name db-1 --vcpus 3 --workload barrier --set work=2M --set wait=spin --seed 9 \
             --pin 0,1 --backend threads --calibration 2445423:348248",
        );
        let config = config(&args).unwrap();
        assert_eq!(config.name.as_str(), "db-1");
        assert_eq!((config.vcpus, config.seed, config.backend), (3, 9, Backend::Threads));
        assert_eq!(config.workload(), Workload::Barrier);
        assert_eq!(config.parameters.values()[..2], [2_000_000, 0]);
        assert_eq!((0..3).map(|i| config.pin(i)).collect::<Vec<_>>(), [Some(0), Some(1), Some(0)]);
        assert_eq!(config.calibration.unwrap().to_string(), "2445423:348248");
    }

    #[test]
    fn invalid_options_name_valid_values() {
        let error = |line: &str| config(&parse(line)).unwrap_err().to_string();
        assert!(error("--vcpus 65").contains("1 to 64"));
        assert!(error("--workload sleep").contains("burn, spinlock"));
        assert!(error("--workload mutex --set colour=1").contains("outside, inside, spin, jitter"));
        assert!(error("--name Database").contains("a-z"));
        assert!(error("--ring 1").contains("0 (as a kernel) or 3"));
        assert!(error("--backend xen").contains("kvm or threads"));
        assert!(error("--calibration fast").contains("KHZ:STEPS"));
    }

    #[test]
    fn controlled_run_has_no_default_end() {
        let seconds = |line: &str| limit(&parse(line)).map(|limit| limit.map(|l| l.as_secs_f64()));
        assert_eq!(seconds("").unwrap(), Some(10.0));
        assert_eq!(seconds("--control-stdio").unwrap(), None);
        assert_eq!(seconds("--control-stdio --seconds 0.5").unwrap(), Some(0.5));
        for bad in ["0", "-1", "nan", "inf", "1e300"] {
            let error = seconds(&format!("--seconds {bad}")).unwrap_err().to_string();
            assert!(error.contains("above 0"), "{error}");
        }
    }
}
