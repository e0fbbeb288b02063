//! `tandem vm`: run one microVM in this process.
//!
//! By hand it runs for some seconds and prints a table, or JSON. With `--control-stdio` it is a part
//! of something larger: it says when it is ready, answers each line on its stdin with a line of
//! cumulative counters, and stops when its stdin ends, so that it never outlives who started it.

use std::io::IsTerminal;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use anyhow::bail;
use clap::Args;
use clap::Subcommand;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use rustix::io::Errno;
use serde::Serialize;
use signal_hook::consts::SIGINT;
use signal_hook::consts::SIGTERM;
use tandem_microvm::Backend;
use tandem_microvm::Calibration;
use tandem_microvm::Microvm;
use tandem_microvm::MicrovmConfig;
use tandem_microvm::VmName;
use tandem_microvm::Workload;
use tandem_microvm::report::Report;
use tandem_microvm::report::VcpuReport;
use tandem_microvm::workload;
use tandem_report::table::Look;
use tandem_report::table::Table;

/// How long a VM runs if nothing says otherwise.
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
    #[arg(long, allow_negative_numbers = true)]
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

/// The first line of `--control-stdio`.
#[derive(Serialize)]
struct Ready {
    ready: bool,
    pid: u32,
    backend: Backend,
    calibration: String,
    vcpus: Vec<ReadyVcpu>,
}

#[derive(Serialize)]
struct ReadyVcpu {
    index: usize,
    tid: i32,
}

/// Runs a `tandem vm` command.
pub fn main(command: VmCommand) -> anyhow::Result<()> {
    match command {
        VmCommand::Run(args) => run(&args),
    }
}

fn run(args: &RunArgs) -> anyhow::Result<()> {
    let config = config(args)?;
    let limit = limit(args)?;
    // Before the VM, so that a signal at any moment finds somebody listening.
    let signals = signals()?;
    let vm = Microvm::start(config)?;
    let first = vm.snapshot();
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    let end = if args.control_stdio {
        ready(&vm)?;
        wait(
            &vm,
            &signals,
            deadline,
            Some(&|| print_line(&vm.snapshot())),
        )?
    } else {
        wait(&vm, &signals, deadline, None)?
    };
    // The span ends before the threads do, or the time that stopping takes would be in it.
    let report = Report::between(&vm, &first, &vm.snapshot());
    let last = vm.stop();
    match end {
        End::Stdin => {}
        End::Time if args.control_stdio => print_line(&report)?,
        End::Time if args.json => print_text(&serde_json::to_string_pretty(&report)?)?,
        End::Time => print_text(&text(&report))?,
        End::Failure => bail!("the VM stopped: {}", last.failure.unwrap_or_default()),
    }
    let violations = last.sum(|vcpu| vcpu.violations);
    if violations > 0 {
        bail!("the workload saw {violations} broken invariants: a bug of Tandem or of this host");
    }
    Ok(())
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
    config.calibration = args
        .calibration
        .as_deref()
        .map(str::parse::<Calibration>)
        .transpose()?;
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
        None => bail!("--seconds {seconds} is no time to run; give a number above 0, such as 10"),
    }
}

/// A stream that becomes readable when the process is asked to end.
fn signals() -> anyhow::Result<UnixStream> {
    let (reader, writer) = UnixStream::pair().context("cannot make a socket pair for signals")?;
    for signal in [SIGINT, SIGTERM] {
        let writer = writer.try_clone().context("cannot duplicate a socket")?;
        signal_hook::low_level::pipe::register(signal, writer)
            .with_context(|| format!("cannot handle signal {signal}"))?;
    }
    Ok(reader)
}

/// Why a VM's run ended.
enum End {
    /// The time is up, or a signal asked for the end.
    Time,
    /// stdin ended, or nobody reads stdout any more.
    Stdin,
    /// A vCPU stopped by itself.
    Failure,
}

type Answer<'a> = &'a dyn Fn() -> anyhow::Result<()>;

/// Waits for the end; meanwhile gives `answer`, if there is one, to each line on stdin.
fn wait(
    vm: &Microvm,
    signals: &UnixStream,
    deadline: Option<Instant>,
    answer: Option<Answer<'_>>,
) -> anyhow::Result<End> {
    let stdin = std::io::stdin();
    let event = vm.failure_event();
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(End::Time);
        }
        let mut fds = vec![
            PollFd::new(&event, PollFlags::IN),
            PollFd::new(signals, PollFlags::IN),
        ];
        if answer.is_some() {
            fds.push(PollFd::new(&stdin, PollFlags::IN));
        }
        // A time too long for the kernel is as good as none.
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => bail!("poll failed: {error}"),
        }
        let called = |place: usize| fds.get(place).is_some_and(|fd| !fd.revents().is_empty());
        match answer {
            _ if called(0) => return Ok(End::Failure),
            _ if called(1) => return Ok(End::Time),
            Some(answer) if called(2) => match lines()? {
                None => return Ok(End::Stdin),
                Some(lines) => {
                    for _ in 0..lines {
                        answer()?;
                    }
                }
            },
            _ => {}
        }
    }
}

/// How many lines end in what stdin holds now; none at its end.
fn lines() -> anyhow::Result<Option<usize>> {
    let mut buffer = [0; 4096];
    match rustix::io::read(std::io::stdin(), &mut buffer) {
        Ok(0) => Ok(None),
        Ok(read) => Ok(Some(
            buffer[..read].iter().filter(|byte| **byte == b'\n').count(),
        )),
        Err(Errno::INTR | Errno::AGAIN) => Ok(Some(0)),
        Err(error) => bail!("cannot read stdin: {error}"),
    }
}

fn ready(vm: &Microvm) -> anyhow::Result<()> {
    let vcpus = vm.tids().into_iter().enumerate();
    print_line(&Ready {
        ready: true,
        pid: std::process::id(),
        backend: vm.config().backend,
        calibration: vm.calibration().to_string(),
        vcpus: vcpus.map(|(index, tid)| ReadyVcpu { index, tid }).collect(),
    })
}

fn print_line(value: &impl Serialize) -> anyhow::Result<()> {
    print_text(&serde_json::to_string(value)?)
}

fn print_text(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{text}")
        .and_then(|()| stdout.flush())
        .context("cannot write to stdout")
}

/// The report for people.
fn text(report: &Report) -> String {
    let pairs = |(key, value): (&String, &String)| format!("{key}={value}");
    let sizes: Vec<String> = report.parameters.iter().map(pairs).collect();
    let pins: Vec<String> = report.pins.iter().map(u32::to_string).collect();
    format!(
        "{}: {} on {} vCPUs, backend {}, ring {}, {:.2} s\n\
         sizes {}; seed {}; {}; calibration {}\n\
         work counts {}: {:.1}/s\n\n{}",
        report.name,
        report.workload,
        report.vcpus.len(),
        report.backend,
        report.ring,
        report.seconds,
        sizes.join(" "),
        report.seed,
        match pins.is_empty() {
            true => "not pinned".to_owned(),
            false => format!("pinned to pCPU {} in turn", pins.join(",")),
        },
        report.calibration,
        report.workload.item(),
        report.work_per_second,
        table(report).text(Look::of(std::io::stdout().is_terminal())),
    )
}

/// A column: its heading, and the number in it.
type Column = (&'static str, fn(&VcpuReport) -> u64);

fn table(report: &Report) -> Table {
    let mut headings = vec![
        "vCPU", "thread", "work/s", "CPU ms", "CPU %", "wait ms", "wait %",
    ];
    headings.extend(["halts", "IPIs"]);
    // Columns that only one workload can fill.
    let extra: Option<Column> = match report.workload {
        Workload::Shootdown => Some(("acks", |vcpu| vcpu.acks)),
        Workload::Bursty => Some(("dropped", |vcpu| vcpu.dropped)),
        _ => None,
    };
    headings.extend(extra.map(|(heading, _)| heading));
    let mut table = Table::new(&headings);
    let share = |ns: u64| format!("{:.1}", ns as f64 / 1e7 / report.seconds);
    let ms = |ns: u64| format!("{:.1}", ns as f64 / 1e6);
    let known = |ns: Option<u64>, show: &dyn Fn(u64) -> String| {
        ns.map_or_else(|| "not measured".to_owned(), show)
    };
    for vcpu in &report.vcpus {
        let mut row = vec![
            vcpu.index.to_string(),
            vcpu.tid.to_string(),
            format!("{:.1}", vcpu.work_per_second),
            ms(vcpu.cpu_ns),
            share(vcpu.cpu_ns),
            known(vcpu.wait_ns, &ms),
            known(vcpu.wait_ns, &share),
            vcpu.halts.to_string(),
            vcpu.ipis.to_string(),
        ];
        row.extend(extra.map(|(_, value)| value(vcpu).to_string()));
        table.row(row);
    }
    let sum = |value: fn(&VcpuReport) -> u64| report.vcpus.iter().map(value).sum::<u64>();
    let cpu = sum(|vcpu| vcpu.cpu_ns);
    let wait = report
        .vcpus
        .iter()
        .map(|vcpu| vcpu.wait_ns)
        .sum::<Option<u64>>();
    let mut total = vec![
        "all".to_owned(),
        String::new(),
        format!("{:.1}", report.work_per_second),
        ms(cpu),
        share(cpu),
        known(wait, &ms),
        known(wait, &share),
        sum(|vcpu| vcpu.halts).to_string(),
        sum(|vcpu| vcpu.ipis).to_string(),
    ];
    total.extend(extra.map(|(_, value)| sum(value).to_string()));
    table.row(total);
    table
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: RunArgs,
    }

    fn parse(line: &str) -> RunArgs {
        let words = line.split_whitespace();
        Line::try_parse_from(std::iter::once("run").chain(words))
            .unwrap()
            .args
    }

    #[test]
    fn flags_become_a_configuration() {
        let args = parse(
            "--name db-1 --vcpus 3 --workload barrier --set work=2M --set wait=spin --seed 9 \
             --pin 0,1 --backend threads --calibration 2445423:348248",
        );
        let config = config(&args).unwrap();
        assert_eq!(config.name.as_str(), "db-1");
        assert_eq!(
            (config.vcpus, config.seed, config.backend),
            (3, 9, Backend::Threads)
        );
        assert_eq!(config.workload(), Workload::Barrier);
        assert_eq!(config.parameters.values()[..2], [2_000_000, 0]);
        assert_eq!(
            (0..3).map(|i| config.pin(i)).collect::<Vec<_>>(),
            [Some(0), Some(1), Some(0)]
        );
        assert_eq!(config.calibration.unwrap().to_string(), "2445423:348248");
    }

    #[test]
    fn bad_flags_say_what_would_be_right() {
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
    fn a_run_under_control_has_no_end_unless_one_is_given() {
        let seconds = |line: &str| limit(&parse(line)).map(|limit| limit.map(|l| l.as_secs_f64()));
        assert_eq!(seconds("").unwrap(), Some(10.0));
        assert_eq!(seconds("--control-stdio").unwrap(), None);
        assert_eq!(seconds("--control-stdio --seconds 0.5").unwrap(), Some(0.5));
        for bad in ["0", "-1", "nan", "inf", "1e300"] {
            let error = seconds(&format!("--seconds {bad}"))
                .unwrap_err()
                .to_string();
            assert!(error.contains("above 0"), "{error}");
        }
    }

    #[test]
    fn the_text_names_backend_workload_sizes_and_seed() {
        let vm = Microvm::start(config(&parse("--backend threads --workload bursty")).unwrap());
        let vm = vm.unwrap();
        let first = vm.snapshot();
        std::thread::sleep(Duration::from_millis(1));
        let text = text(&Report::between(&vm, &first, &vm.snapshot()));
        for word in [
            "vm0: bursty on 1 vCPUs, backend threads, ring 3",
            "period=20000000",
            "seed 1",
        ] {
            assert!(text.contains(word), "{text}");
        }
        assert!(
            text.contains("dropped") && text.contains("not pinned"),
            "{text}"
        );
    }
}
