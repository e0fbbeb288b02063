//! Runs the mixes of [`tandem_bench::why_trial`] one after the other, runs `tandem host why` on each, and writes its findings.
//!
//! ```text
//! why_trial --tandem target/release/tandem [-o FILE] [--seconds 5] [--source plain] [MIX …]
//! ```
//!
//! Needs an otherwise idle host with KVM, two pCPUs and root.
//! With intervals of 5 s it takes about three minutes; no mix may take longer than its interval and 40 s.
//! Each VM gets its own cgroup.
//! The program removes everything it creates at its end, also on an error, and after kill -9 with the next start.
//! With `--hog PART` as its first arguments the program is a hog that runs until stdin closes.

use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tandem_bench::why_trial;
use tandem_bench::why_trial::{Document, Hog, Mix, MixResult, MixVm, Running};
use tandem_demo::control::Ready;
use tandem_demo::host_facts;
use tandem_linux::actuator::Actuator;
use tandem_linux::affinity::set_affinity;
use tandem_linux::cgroup::Quota;
use tandem_linux::sched_attr::set_nice;
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_linux::{ProcFs, cgroup};
use tandem_model::{Nice, PcpuId, PcpuSet};

type Failure = Box<dyn Error>;

/// Directory of the cgroups' journal.
const STATE: &str = "/run/tandem-why-trial";

/// Warm-up between the boot of the VMs and the interval.
const WARM: Duration = Duration::from_secs(1);

/// Maximum boot time of a VM.
const BOOT: Duration = Duration::from_secs(20);

/// Maximum time of an answer in addition to its interval.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Period in which a hog is busy, then sleeps.
const HOG_PERIOD: Duration = Duration::from_millis(10);

/// The kernel's default period of quotas.
const PERIOD_US: u64 = 100_000;

/// A child that is killed on drop.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The arguments.
struct Options {
    tandem: PathBuf,
    output: Option<PathBuf>,
    seconds: f64,
    source: String,
    mixes: Vec<String>,
}

fn options() -> Result<Options, Failure> {
    let mut options = Options {
        tandem: PathBuf::from("target/release/tandem"),
        output: None,
        seconds: 5.0,
        source: "plain".to_owned(),
        mixes: Vec::new(),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || {
            let value = arguments.next();
            value.ok_or_else(|| format!("{argument} takes a value"))
        };
        match argument.as_str() {
            "--tandem" => options.tandem = value()?.into(),
            "-o" => options.output = Some(value()?.into()),
            "--seconds" => {
                let seconds = value()?.parse()?;
                if !(0.05..=3600.0).contains(&seconds) {
                    return Err(format!("--seconds {seconds} is not possible: 0.05 … 3600").into());
                }
                options.seconds = seconds;
            }
            "--source" => options.source = value()?,
            option if option.starts_with('-') => {
                return Err(format!(
                    "{option} is not known; there are --tandem, -o, --seconds, --source and names of mixes"
                )
                .into());
            }
            mix => options.mixes.push(mix.to_owned()),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let outcome = match &arguments[..] {
        [_, first, part] if first == "--hog" => hog(part),
        _ => options().and_then(|options| run(&options)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Computes for a fraction of the time, until stdin closes.
fn hog(part: &str) -> Result<(), Failure> {
    let busy = HOG_PERIOD.mul_f64(part.parse::<f64>()?.clamp(0.0, 1.0));
    std::thread::spawn(move || {
        loop {
            let begin = Instant::now();
            while begin.elapsed() < busy {
                std::hint::spin_loop();
            }
            if busy < HOG_PERIOD {
                sleep(HOG_PERIOD.saturating_sub(begin.elapsed()));
            }
        }
    });
    let _ = std::io::stdin().read(&mut [0])?;
    Ok(())
}

fn run(options: &Options) -> Result<(), Failure> {
    let mut mixes = why_trial::read(why_trial::MIXES)?;
    for name in &options.mixes {
        if !mixes.iter().any(|mix| mix.name == *name) {
            let names: Vec<&str> = mixes.iter().map(|mix| mix.name.as_str()).collect();
            return Err(format!("'{name}' is no mix; there are {}", names.join(", ")).into());
        }
    }
    mixes.retain(|mix| options.mixes.is_empty() || options.mixes.contains(&mix.name));
    let pcpus: Vec<PcpuId> = host_facts::usable_pcpus()?.iter().collect();
    let mut results = Vec::new();
    let begin = Instant::now();
    let count = mixes.len();
    for (mix, seed) in mixes.iter().zip(1..) {
        let seconds = begin.elapsed().as_secs();
        eprintln!("{seed} of {count}, after {seconds} s: {} …", mix.name);
        let result = if pcpus.len() < mix.pcpus() {
            Err(format!("it takes {} pCPUs", mix.pcpus()).into())
        } else {
            measure(options, mix, seed, &pcpus)
        };
        let result =
            result.unwrap_or_else(|error: Failure| MixResult::not_run(mix, error.to_string()));
        println!("{}", line(&result));
        results.push(result);
    }
    let kernel = host_facts::read().kernel;
    let document =
        Document::new(kernel, pcpus.len(), options.source.clone(), options.seconds, results);
    println!(
        "{} of {} right; {} ran, {} of them without an answer; {} s",
        document.right,
        document.mixes,
        document.run,
        document.failed,
        begin.elapsed().as_secs()
    );
    if let Some(path) = &options.output {
        let text = serde_json::to_string_pretty(&document)? + "\n";
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

fn line(result: &MixResult) -> String {
    let found = result.found.iter();
    let found: Vec<String> = found.map(|one| format!("{}:{:?}", one.vm, one.kind)).collect();
    let verdict = match result.right {
        Some(true) => "right",
        Some(false) => "WRONG",
        None => "not run",
    };
    let why = result.not_run.as_deref().or(result.failed.as_deref());
    let why = why.map_or_else(String::new, |why| format!("; {why}"));
    format!(
        "{verdict:8} {:22} is {:?}, looked at {}, found {}{why}",
        result.mix,
        result.cause,
        result.looked_at.join(" "),
        found.join(" ")
    )
}

/// Starts a mix, runs `tandem host why` on it, and removes it.
fn measure(
    options: &Options,
    mix: &Mix,
    seed: u64,
    pcpus: &[PcpuId],
) -> Result<MixResult, Failure> {
    let mut vms = Vec::new();
    for vm in &mix.vm {
        vms.push(start(options, vm, seed, pcpus)?);
    }
    let controller = cgroup::open(&ProcFs::host())?;
    let (mut actuator, _) = Actuator::open(controller, STATE.as_ref())?;
    for (vm, (guard, ready)) in mix.vm.iter().zip(&vms) {
        confine(&mut actuator, vm, guard.0.id(), ready)?;
    }
    let hogs: Result<Vec<Guard>, Failure> =
        mix.hog.iter().map(|hog| start_hog(hog, pcpus)).collect();
    let hogs = hogs?;
    sleep(WARM);
    let mut command = Command::new(&options.tandem);
    command
        .args(["host", "why", "--json", "--source", &options.source])
        .args(["--interval", &options.seconds.to_string()]);
    let limit = Duration::from_secs_f64(options.seconds) + ANSWER_TIMEOUT;
    let answer = why_trial::ask(&mut command, limit);
    let running = mix.vm.iter().zip(&vms).map(|(vm, (guard, _))| Running {
        name: vm.name.clone(),
        called: why_trial::called(seed, vm),
        pid: guard.0.id(),
    });
    let running: Vec<Running> = running.collect();
    let hogs: Vec<u32> = hogs.iter().map(|hog| hog.0.id()).collect();
    Ok(MixResult::of(mix, &running, &hogs, answer))
}

/// Returns the usable pCPUs with these indices.
fn places(pins: &[usize], pcpus: &[PcpuId]) -> Vec<PcpuId> {
    pins.iter().map(|pin| pcpus[*pin]).collect()
}

fn start(
    options: &Options,
    vm: &MixVm,
    seed: u64,
    pcpus: &[PcpuId],
) -> Result<(Guard, Ready), Failure> {
    let mut command = Command::new(&options.tandem);
    command
        .args(["vm", "run", "--control-stdio"])
        .args(["--name", &why_trial::called(seed, vm)])
        .args(["--vcpus", &vm.vcpus.to_string(), "--workload", &vm.workload])
        .args(["--seed", &seed.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    for setting in &vm.set {
        command.args(["--set", setting]);
    }
    if !vm.pin.is_empty() {
        let pins: Vec<String> = places(&vm.pin, pcpus).iter().map(ToString::to_string).collect();
        command.args(["--pin", &pins.join(",")]);
    }
    let child =
        command.spawn().map_err(|error| format!("{}: {error}", options.tandem.display()))?;
    let mut guard = Guard(child);
    let stdout = guard.0.stdout.take().ok_or("no stdout")?;
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(stdout).read_line(&mut line);
        // The receiver may have timed out.
        let _ = tell.send(read.map(|_| line));
    });
    let line = told
        .recv_timeout(BOOT)
        .map_err(|_| format!("VM '{}' did not boot within {} s", vm.name, BOOT.as_secs()))??;
    let ready: Ready = serde_json::from_str(&line)
        .map_err(|error| format!("VM '{}' said '{}': {error}", vm.name, line.trim()))?;
    Ok((guard, ready))
}

/// Moves a VM's vCPUs into a cgroup with its weight and quota.
fn confine(actuator: &mut Actuator, vm: &MixVm, pid: u32, ready: &Ready) -> Result<(), Failure> {
    let procfs = ProcFs::host();
    let vcpus = ready.vcpus.iter();
    let vcpus: Vec<ThreadRef> = vcpus
        .map(|vcpu| ThreadRef::read(&procfs, Pid(pid), Tid(vcpu.tid)))
        .collect::<Result<_, _>>()?;
    let first = vcpus.first().ok_or("a VM without vCPUs")?;
    let above = actuator.controller().cgroup_of(first)?;
    let default = actuator.controller().default_weight();
    let group = actuator.create_group(&above, &format!("why-trial-{}-{pid}", vm.name))?;
    actuator.set_weight(&group, default.times(vm.weight))?;
    if let Some(quota) = vm.quota {
        let quota = Quota { quota_us: (quota * PERIOD_US as f64) as u64, period_us: PERIOD_US };
        actuator.set_quota(&group, Some(quota))?;
    }
    for thread in &vcpus {
        actuator.move_thread(thread, &group)?;
    }
    Ok(())
}

fn start_hog(hog: &Hog, pcpus: &[PcpuId]) -> Result<Guard, Failure> {
    let child = Command::new(std::env::current_exe()?)
        .args(["--hog", &hog.busy.to_string()])
        .stdin(Stdio::piped())
        .spawn()?;
    let guard = Guard(child);
    let pid = Pid(guard.0.id());
    let place: PcpuSet = places(&hog.pin, pcpus).into_iter().collect();
    // Its second thread exists by now.
    sleep(HOG_PERIOD * 5);
    for task in std::fs::read_dir(ProcFs::host().process(pid).join("task"))? {
        let tid = Tid(task?.file_name().to_string_lossy().parse()?);
        set_affinity(tid, &place)?;
        set_nice(tid, Nice(hog.nice))?;
    }
    Ok(guard)
}
