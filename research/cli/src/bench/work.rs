//! `tandem-lab bench work`: work of a VM with competing VMs, in every mode ([`tandem_bench::work`]).
//!
//! `tandem-lab bench asymmetric` is the same for VMs whose vCPUs need unequal CPU time.

use std::path::PathBuf;

use clap::Args;
use tandem_bench::work::cell::{Choice, SUBJECTS, Subject, UNEQUAL};
use tandem_bench::work::measure::{MODES, Settings};
use tandem_bench::work::{measure, output};
use tandem_demo::plan::Plan;
use tandem_demo::{host_facts, mode, range};
use tandem_host::config::Placement;
use tandem_linux::interrupt::Interrupt;
use tandem_microvm::Backend;
use tandem_report::progress::Progress;

use tandem_cli::live;
use tandem_cli::live::{BackendArg, DaemonArgs, SecondsArgs};
use tandem_command::console::{check_writable, print};
use tandem_command::output::{save_json, write_text};

/// `tandem-lab bench work`
#[derive(Debug, Args)]
#[command(mut_arg("seconds", |seconds| {
    seconds
        .default_value("3")
        .help("Seconds counted per mode and run, 0.5 … 3600; where a server takes part, whole rounds of it (4.5 s)")
}))]
pub struct WorkArgs {
    /// What the subjects do [default: all]: barrier-spin, barrier-block, spinlock, mutex, forkjoin, pipeline, shootdown, bursty, burn, server
    #[arg(long, value_name = "NAME,…")]
    workloads: Option<String>,
    /// vCPUs of the subjects
    #[arg(long, value_name = "N,…", default_value = "2,4")]
    vcpus: String,
    /// Where vCPUs may run: free (anywhere), pinned (vCPU i on pCPU i mod P)
    #[arg(long, value_name = "NAME,…", default_value = "free,pinned")]
    placements: String,
    /// Competing VMs: burn1, burn2 (one or two VMs of 2 vCPUs that compute), pairs (each of the workloads)
    #[arg(long, alias = "beside", value_name = "NAME,…", default_value = "burn1,burn2")]
    with: String,
    /// Modes to measure; stock is a cgroup of equal weight per VM
    #[arg(long, value_name = "NAME,…", default_value = MODES)]
    modes: String,
    /// Runs of each cell, 1 … 100; each goes through all modes
    #[arg(long, default_value_t = 5)]
    runs: u32,
    #[command(flatten)]
    seconds: SecondsArgs,
    /// What runs the vCPUs [default: kvm, or threads where there is no KVM]
    #[arg(long, value_enum)]
    backend: Option<BackendArg>,
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Write the figures here as JSON
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Write a page with a picture here
    #[arg(long, value_name = "PATH")]
    html: Option<PathBuf>,
    /// Directory for journals and logs of the experiment [default: /run/tandem-demo]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl WorkArgs {
    fn settings(&self, subjects: &[Subject]) -> anyhow::Result<Settings> {
        let choice = Choice::parse(
            subjects,
            self.workloads.as_deref(),
            &self.vcpus,
            &self.placements,
            &self.with,
        )?;
        let runs = range::whole("--runs", self.runs, 1, 100)?;
        let plan = Plan {
            vms: Vec::new(),
            modes: mode::list(&self.modes)?,
            window: self.seconds.window()?,
            settle: self.seconds.settle()?,
            backend: self.backend.map(Backend::from),
            seed: 1,
            pcpus: host_facts::usable_pcpus()?,
            // The daemon's default.
            daemon: self.daemon.plan(Placement::Turns)?,
            state_dir: live::state_dir(self.state_dir.as_ref()),
            alone: Some(self.seconds.alone()?),
        };
        Ok(Settings::new(runs, &choice, plan)?)
    }

    /// Returns the command that repeats the measurement, without output files.
    fn command(&self, bench: &str) -> String {
        let workloads = self.workloads.iter();
        let workloads: String = workloads.map(|list| format!(" --workloads {list}")).collect();
        format!(
            "tandem-lab bench {bench}{workloads} --vcpus {} --placements {} --with {} --modes {} --runs {} {}{}",
            self.vcpus,
            self.placements,
            self.with,
            self.modes,
            self.runs,
            self.seconds,
            self.daemon.as_given()
        )
    }
}

/// `tandem-lab bench asymmetric`
#[derive(Debug, Args)]
#[command(mut_arg("workloads", |workloads| {
    workloads.help(
        "What the subjects do [default: all]: serial, serial-rotating (fork-join, one vCPU computes ten times as much, the same one or \
         each in turn), map-reduce (phases of some 10 ms), unequal-stages (a pipeline, 1 to 3), barrier-block, mutex",
    )
}))]
#[command(mut_arg("vcpus", |vcpus| vcpus.default_value("2")))]
#[command(mut_arg("with", |with| {
    with
        .default_value("burn1,itself")
        .help("Competing VMs: burn1, burn2 (one or two VMs of 2 vCPUs that compute), pairs, itself (the same workload)")
}))]
#[command(mut_arg("modes", |modes| {
    modes
        .default_value("stock,tandem,asymmetric")
        .help("Modes to measure; asymmetric is tandem with the policy asymmetric as well")
}))]
pub struct AsymmetricArgs {
    #[command(flatten)]
    work: WorkArgs,
}

/// Runs `tandem-lab bench work`.
pub fn main(args: &WorkArgs) -> anyhow::Result<()> {
    measure_and_show(args, &SUBJECTS, "work")
}

/// Runs `tandem-lab bench asymmetric`.
pub fn asymmetric(args: &AsymmetricArgs) -> anyhow::Result<()> {
    measure_and_show(&args.work, &UNEQUAL, "asymmetric")
}

fn measure_and_show(args: &WorkArgs, subjects: &[Subject], bench: &str) -> anyhow::Result<()> {
    let settings = args.settings(subjects)?;
    for path in args.json.iter().chain(&args.html) {
        // Fail before hours of measuring.
        check_writable(path)?;
    }
    note!("{}", settings.announce());
    let interrupt = Interrupt::watch()?;
    let progress = Progress::begin(settings.steps());
    let work = measure::measure(&settings, &progress, &interrupt)?;
    drop(progress);
    for section in output::sections(&work) {
        let table = section.table.iter().map(ToString::to_string);
        let table: String = table.collect();
        print(&format!("{}. {}\n\n{table}\n", section.title, section.remark))?;
    }
    for note in output::notes(&work) {
        tell!("{note}");
    }
    print(&output::verdict(&work))?;
    if let Some(path) = &args.html {
        let footer = format!("tandem {} bench {bench}", env!("CARGO_PKG_VERSION"));
        let page = output::html(&work, &args.command(bench), &footer);
        write_text(path, "page", &page)?;
    }
    args.json.as_ref().map_or(Ok(()), |path| save_json(path, &work))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Whole {
        #[command(flatten)]
        work: WorkArgs,
    }

    fn parse(args: &[&str]) -> anyhow::Result<(WorkArgs, Settings)> {
        let args = ["work"].iter().chain(args);
        let args = Whole::try_parse_from(args)?.work;
        let settings = args.settings(&SUBJECTS)?;
        Ok((args, settings))
    }

    #[test]
    fn defaults_cover_every_workload() {
        let (args, settings) = parse(&[]).unwrap();
        let text = settings.announce();
        assert!(text.starts_with("80 cells in 6 modes, 5 runs: about "), "{text}");
        // The command yields the same settings.
        let command = args.command("work");
        let seconds = " --seconds 3 --settle-seconds 2 --alone-seconds 2";
        assert!(command.ends_with(seconds), "{command}");
        let again: Vec<&str> = command.split(' ').skip(3).collect();
        assert_eq!(parse(&again).unwrap().1.announce(), text);
    }
}
