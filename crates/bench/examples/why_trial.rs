//! Runs the mixes of [`tandem_bench::why_trial`] one after the other, asks `tandem host why` about each, and writes what it named.
//!
//! ```text
//! why_trial --tandem target/release/tandem [-o FILE] [--seconds 5] [--source plain] [MIX …]
//! ```
//!
//! For a quiet host with KVM, two pCPUs and root. Each VM gets a cgroup of its own; all that is made goes at the end, also on an error, and
//! after kill -9 with the next start. With `--hog PART` as its first arguments the program is a hog that ends with its stdin.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::BufRead;
use std::io::BufReader;
use std::io::Read;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::ExitCode;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;
use std::time::Instant;

use serde_json::Value;
use tandem_bench::control::Ready;
use tandem_bench::host_facts;
use tandem_bench::why_trial;
use tandem_bench::why_trial::Document;
use tandem_bench::why_trial::Hog;
use tandem_bench::why_trial::Mix;
use tandem_bench::why_trial::MixResult;
use tandem_bench::why_trial::MixVm;
use tandem_bench::why_trial::Named;
use tandem_linux::ProcFs;
use tandem_linux::actuator::Actuator;
use tandem_linux::affinity::set_affinity;
use tandem_linux::cgroup;
use tandem_linux::cgroup::Quota;
use tandem_linux::sched_attr::set_nice;
use tandem_linux::thread::Pid;
use tandem_linux::thread::ThreadRef;
use tandem_linux::thread::Tid;
use tandem_policy::Nice;
use tandem_policy::PcpuId;
use tandem_policy::PcpuSet;
use tandem_policy::Weight;

type Failure = Box<dyn Error>;

/// Where the cgroups' journal is.
const STATE: &str = "/run/tandem-why-trial";

/// After VMs have booted, until they are looked at.
const WARM: Duration = Duration::from_secs(1);

/// A hog is busy and sleeps in turn within this.
const HOG_PERIOD: Duration = Duration::from_millis(10);

/// The kernel's default period of quotas.
const PERIOD_US: u64 = 100_000;

/// A child that does not outlive this program's use of it.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What was asked for.
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
            "--seconds" => options.seconds = value()?.parse()?,
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

/// Is busy for a part of the time, until stdin ends.
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
    for (mix, seed) in mixes.iter().zip(1..) {
        let result = match pcpus.len() < mix.pcpus() {
            true => Err(format!("it takes {} pCPUs", mix.pcpus()).into()),
            false => measure(options, mix, seed, &pcpus),
        };
        let result = result.unwrap_or_else(|error: Failure| MixResult {
            mix: mix.name.clone(),
            cause: mix.cause,
            of: mix.of.clone(),
            found: Vec::new(),
            right: None,
            others: None,
            not_run: Some(error.to_string()),
        });
        println!("{}", line(&result));
        results.push(result);
    }
    let kernel = host_facts::read().kernel;
    let document = Document::new(
        kernel,
        pcpus.len(),
        options.source.clone(),
        options.seconds,
        results,
    );
    println!("{} of {} right", document.right, document.run);
    if let Some(path) = &options.output {
        let text = serde_json::to_string_pretty(&document)? + "\n";
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

fn line(result: &MixResult) -> String {
    let found = result.found.iter();
    let found: Vec<String> = found
        .map(|one| format!("{}:{:?}", one.vm, one.kind))
        .collect();
    let verdict = match result.right {
        Some(true) => "right",
        Some(false) => "WRONG",
        None => "not run",
    };
    let why = result.not_run.as_deref().unwrap_or_default();
    format!(
        "{verdict:8} {:22} is {:?}, found {}{why}",
        result.mix,
        result.cause,
        found.join(" ")
    )
}

/// Starts a mix, asks about it, and takes it away.
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
    let output = Command::new(&options.tandem)
        .args(["host", "why", "--json", "--source", &options.source])
        .args(["--interval", &options.seconds.to_string()])
        .output()
        .map_err(|error| format!("{}: {error}", options.tandem.display()))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().into());
    }
    let said: Value = serde_json::from_slice(&output.stdout)?;
    let pids = vms.iter().map(|(guard, _)| u64::from(guard.0.id()));
    let names: BTreeMap<u64, &str> = pids.zip(mix.vm.iter().map(|vm| vm.name.as_str())).collect();
    let found = said["findings"].as_array().ok_or("no findings")?.iter();
    let of_mix = found.filter_map(|one| Some((names.get(&one["pid"].as_u64()?)?, one)));
    let found = of_mix.map(|(name, one)| named(name, one));
    let found: Vec<Named> = found.collect::<Result<_, Failure>>()?;
    Ok(MixResult {
        mix: mix.name.clone(),
        cause: mix.cause,
        of: mix.of.clone(),
        right: Some(why_trial::judge(mix, &found)),
        others: Some(others(&said, &hogs)),
        found,
        not_run: None,
    })
}

fn named(name: &str, finding: &Value) -> Result<Named, Failure> {
    Ok(Named {
        vm: name.to_owned(),
        kind: serde_json::from_value(finding["kind"].clone())?,
        lost_per_second: finding["lost_per_second"].as_u64().ok_or("no cost")?,
        burned_per_second: finding["burned_per_second"].as_u64(),
    })
}

/// What tasks of the host and of the kernel took that are no hogs of the mix, in pCPUs.
fn others(said: &Value, hogs: &[Guard]) -> f64 {
    let host = &said["host"];
    let is_hog = |pid: &Value| {
        let mut pids = hogs.iter().map(|hog| u64::from(hog.0.id()));
        pids.any(|hog| Some(hog) == pid.as_u64())
    };
    let time = |value: &Value| value.as_f64().unwrap_or_default();
    let tasks = host["top_tasks"].as_array().into_iter().flatten();
    let of_hogs: f64 = tasks
        .filter(|task| is_hog(&task["pid"]))
        .map(|task| time(&task["time"]))
        .sum();
    let all = time(&host["tasks"]) + time(&host["kernel"]) - of_hogs;
    all.max(0.0) / (time(&said["seconds"]).max(1e-9) * 1e9)
}

/// The pCPUs with these numbers among those that may be used.
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
        .args(["vm", "run", "--control-stdio", "--name", &vm.name])
        .args(["--vcpus", &vm.vcpus.to_string(), "--workload", &vm.workload])
        .args(["--seed", &seed.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    for setting in &vm.set {
        command.args(["--set", setting]);
    }
    if !vm.pin.is_empty() {
        let pins: Vec<String> = places(&vm.pin, pcpus)
            .iter()
            .map(ToString::to_string)
            .collect();
        command.args(["--pin", &pins.join(",")]);
    }
    let child = command
        .spawn()
        .map_err(|error| format!("{}: {error}", options.tandem.display()))?;
    let mut guard = Guard(child);
    let stdout = guard.0.stdout.as_mut().ok_or("no stdout")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let ready: Ready = serde_json::from_str(&line)
        .map_err(|error| format!("VM '{}' said '{}': {error}", vm.name, line.trim()))?;
    Ok((guard, ready))
}

/// Gives a VM a cgroup with its weight and quota, for its vCPUs.
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
    actuator.set_weight(&group, Weight(default.0 * vm.weight))?;
    if let Some(quota) = vm.quota {
        let quota = Quota {
            quota_us: (quota * PERIOD_US as f64) as u64,
            period_us: PERIOD_US,
        };
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
    // Its second thread is there by now.
    sleep(HOG_PERIOD * 5);
    for task in std::fs::read_dir(ProcFs::host().process(pid).join("task"))? {
        let tid = Tid(task?.file_name().to_string_lossy().parse()?);
        set_affinity(tid, &place)?;
        set_nice(tid, Nice(hog.nice))?;
    }
    Ok(guard)
}
