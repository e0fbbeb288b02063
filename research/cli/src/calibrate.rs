//! `tandem-lab calibrate`: compares simulated VMs with real ones on this machine.
//!
//! Arguments and printing; the rest is in [`tandem_validate::calibrate`].

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use tandem_demo::host_facts;
use tandem_demo::state_dir::StateDir;
use tandem_linux::interrupt::Interrupt;
use tandem_microvm::Workload;
use tandem_validate::calibrate;
use tandem_validate::calibrate::{COMPARED, Measurement, Options};
use tandem_validate::event::Event;

use tandem_cli::live;
use tandem_command::console::print;
use tandem_command::number::time;
use tandem_command::{invocation, output};

/// `tandem-lab calibrate`
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// Real runs of each setup, 2 … 1000
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(2..=1000))]
    runs: u32,
    /// Length of each run, 0.05 … 600 s
    #[arg(
        long,
        value_name = "S",
        default_value_t = 1.0,
        allow_negative_numbers = true,
        value_parser = time::<f64>("seconds")
    )]
    seconds: f64,
    /// Only the ratios of these workloads
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    only: Vec<String>,
    /// Write all figures as JSON; without PATH to standard output, in place of the tables
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Directory for the journal of what is changed meanwhile [default: /run/tandem-demo]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// Runs the comparison.
pub fn main(args: &CalibrateArgs) -> anyhow::Result<()> {
    calibrate::check_seconds(args.seconds)?;
    let workloads = workloads(&args.only)?;
    output::check_json(args.json.as_deref())?;
    calibrate::check_machine()?;
    let facts = host_facts::read();
    let interrupt = Interrupt::watch()?;
    let state = StateDir::open(&live::state_dir(args.state_dir.as_ref()))?;
    let options = Options {
        workloads,
        runs: args.runs,
        seconds: args.seconds,
        command: invocation::command(),
        kernel: facts.kernel,
        cpu: facts.cpu,
    };
    let tell = |event: Event| note!("{event}");
    let measurement = Measurement::take(options, &state.groups(), interrupt, &tell)?;
    state.finish();
    let calibrated = measurement.calibrate(&tell)?;
    if !output::is_stdout(args.json.as_deref()) {
        print(&calibrate::text(&calibrated))?;
    }
    output::write_json(args.json.as_deref(), &calibrated)
}

/// Returns the named workloads, or all comparable ones if none is named.
fn workloads(only: &[String]) -> anyhow::Result<Vec<Workload>> {
    if only.is_empty() {
        return Ok(COMPARED.to_vec());
    }
    let mut workloads = Vec::new();
    for name in only {
        let workload: Workload = name.parse().context("--only")?;
        if !COMPARED.contains(&workload) {
            let names = COMPARED.map(Workload::name).join(", ");
            bail!(
                "--only: the simulator has no counterpart of {workload}; it has those of {names}"
            );
        }
        if !workloads.contains(&workload) {
            workloads.push(workload);
        }
    }
    Ok(workloads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_unique_and_known() {
        let named =
            |names: &[&str]| workloads(&names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>());
        assert_eq!(named(&["mutex", "burn", "mutex"]).unwrap(), [Workload::Mutex, Workload::Burn]);
        assert_eq!(named(&[]).unwrap(), COMPARED);
        let error = format!("{:#}", named(&["server"]).unwrap_err());
        assert!(
            error.contains("no counterpart of server; it has those of burn, spinlock"),
            "{error}"
        );
        let error = format!("{:#}", named(&["sleep"]).unwrap_err());
        assert!(error.contains("no workload 'sleep'"), "{error}");
    }

    #[test]
    fn invalid_lengths_are_refused_at_once() {
        for seconds in [0.0, -1.0, 601.0, f64::NAN] {
            let args =
                CalibrateArgs { runs: 2, seconds, only: Vec::new(), json: None, state_dir: None };
            let error = main(&args).unwrap_err().to_string();
            assert!(error.contains("0.05 … 600"), "{error}");
        }
    }
}
