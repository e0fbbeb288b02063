//! Measurements on a machine with other load.
//!
//! A live test must not fail because of other load, so it uses the least busy pCPUs.
//! [`measure`] compares the busy time of these pCPUs (`/proc/stat`) with the time of the test's own threads (`schedstat`).
//! If other load exceeds [`CALM`], it repeats the measurement, [`TRIES`] times at most, and then skips the test with the reason.
//! Only measurements are repeated: a test asserts on the result once.
//!
//! A test program waits at most [`MAX_WAIT`] in total for quiet pCPUs, so a busy machine costs it seconds, not minutes.
//! Loads are in pCPUs: 1.0 is one pCPU for the whole time.
//! Time taken by a hypervisor below this host (steal) counts as other load.
//! Non-goal: naming the processes that cause it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tandem_linux::affinity::affinity;
use tandem_linux::thread::Tid;
use tandem_model::{PcpuId, PcpuSet};

use crate::harness::Skip;

/// Maximum other load of a quiet pCPU, in pCPUs.
pub const CALM: f64 = 0.15;

/// Length of a sample of load.
pub const SAMPLE: Duration = Duration::from_millis(500);

/// Maximum time that a test program waits for quiet pCPUs, over all tests.
pub const MAX_WAIT: Duration = Duration::from_secs(20);

/// Maximum number of measurements.
pub const TRIES: usize = 3;

/// Time that the tests of this program have waited for quiet pCPUs.
static WAITED: Mutex<Duration> = Mutex::new(Duration::ZERO);

/// Busy time of pCPUs since boot.
struct Busy {
    at: Instant,
    seconds: BTreeMap<PcpuId, f64>,
}

impl Busy {
    fn now() -> Busy {
        let stat = fs::read_to_string("/proc/stat").expect("/proc/stat");
        let tick = 1.0 / rustix::param::clock_ticks_per_second() as f64;
        Busy { at: Instant::now(), seconds: busy_seconds(&stat, tick) }
    }

    /// Returns the load of some pCPUs since an earlier sample, in pCPUs.
    fn load_since(&self, before: &Busy, pcpus: &PcpuSet) -> f64 {
        let busy = |sample: &Busy, pcpu| sample.seconds.get(&pcpu).copied().unwrap_or_default();
        let of_each = pcpus.iter().map(|pcpu| busy(self, pcpu) - busy(before, pcpu));
        of_each.sum::<f64>() / (self.at - before.at).as_secs_f64()
    }
}

/// Returns the busy time of each pCPU in `/proc/stat`: user, nice, system, interrupts and steal; guest time is part of user.
fn busy_seconds(stat: &str, tick: f64) -> BTreeMap<PcpuId, f64> {
    let lines = stat.lines().filter_map(|line| line.strip_prefix("cpu"));
    lines
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let pcpu = words.next().filter(|_| !line.starts_with(' '))?.parse().ok()?;
            let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
            let busy: u64 = [0, 1, 2, 5, 6, 7].iter().filter_map(|field| ticks.get(*field)).sum();
            Some((PcpuId(pcpu), busy as f64 * tick))
        })
        .collect()
}

/// Returns the pCPUs on which this process may run, the least busy first, each with its load.
pub fn by_load() -> Vec<(PcpuId, f64)> {
    let allowed = affinity(Tid(std::process::id())).expect("an affinity");
    let before = Busy::now();
    sleep(SAMPLE);
    let after = Busy::now();
    let load = |pcpu: PcpuId| after.load_since(&before, &[pcpu].into_iter().collect());
    let mut loads: Vec<(PcpuId, f64)> = allowed.iter().map(|pcpu| (pcpu, load(pcpu))).collect();
    loads.sort_by(|(one, a), (two, b)| a.total_cmp(b).then(one.cmp(two)));
    loads
}

/// Waits for a condition within the remainder of [`MAX_WAIT`]; it is checked at least once.
fn wait_for<T>(mut condition: impl FnMut() -> Result<T, Skip>) -> Result<T, Skip> {
    loop {
        let begin = Instant::now();
        let result = condition();
        if result.is_ok() {
            return result;
        }
        let mut waited = WAITED.lock().unwrap_or_else(|poison| poison.into_inner());
        *waited += begin.elapsed();
        if *waited >= MAX_WAIT {
            return result;
        }
    }
}

/// Returns this many quiet pCPUs, the least busy first.
pub fn quiet_pcpus(count: usize) -> Result<Vec<PcpuId>, Skip> {
    wait_for(|| {
        let loads = by_load();
        let first = loads.get(..count).ok_or_else(|| Skip(format!("needs {count} pCPUs")))?;
        match first.iter().find(|(_, load)| *load > CALM) {
            Some((pcpu, load)) => Err(Skip(format!(
                "{count} quiet pCPUs are needed, and other load takes {:.0} % of pCPU {pcpu}",
                load * 100.0
            ))),
            None => Ok(first.iter().map(|(pcpu, _)| *pcpu).collect()),
        }
    })
}

/// Waits until these pCPUs are quiet; the test must not have threads on them yet.
pub fn wait_until_quiet(pcpus: &PcpuSet) -> Result<(), Skip> {
    wait_for(|| {
        let loads = by_load();
        let mut busy = loads.iter().filter(|(pcpu, load)| pcpus.contains(*pcpu) && *load > CALM);
        match busy.next() {
            Some((pcpu, load)) => {
                Err(Skip(format!("other load takes {:.0} % of pCPU {pcpu}", load * 100.0)))
            }
            None => Ok(()),
        }
    })
}

/// Returns the run time in seconds of each thread of these processes that may run on these pCPUs, and of ended children.
fn own_time(processes: &[u32], pcpus: &PcpuSet) -> BTreeMap<u32, f64> {
    let mut times = BTreeMap::new();
    for process in processes {
        let tasks = fs::read_dir(format!("/proc/{process}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let tid = task.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(tid) = tid else { continue };
            let is_here = affinity(Tid(tid)).is_ok_and(|set| set.iter().any(|p| pcpus.contains(p)));
            if is_here {
                times.insert(tid, run_time(&task.path()));
            }
        }
        if let (Some(time), Some(ended)) = (times.get_mut(process), children_time(*process)) {
            *time += ended;
        }
    }
    times
}

/// Returns the run time of a thread in seconds, from its folder in `/proc`; 0 if it ended.
fn run_time(folder: &Path) -> f64 {
    let schedstat = fs::read_to_string(folder.join("schedstat")).unwrap_or_default();
    let nanos = schedstat.split_ascii_whitespace().next();
    nanos.and_then(|nanos| nanos.parse::<f64>().ok()).unwrap_or_default() / 1e9
}

/// Returns the CPU time in seconds of the ended children of a process: fields 16 and 17 of its `stat`.
fn children_time(process: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    let ticks = |field: usize| fields.get(field)?.parse::<f64>().ok();
    Some((ticks(13)? + ticks(14)?) / rustix::param::clock_ticks_per_second() as f64)
}

/// Returns this process and its descendants.
fn family() -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let parents: BTreeMap<u32, u32> = processes
        .filter_map(|entry| {
            let process = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let (_, fields) = stat.rsplit_once(')')?;
            Some((process, fields.split_ascii_whitespace().nth(1)?.parse().ok()?))
        })
        .collect();
    let mut family = vec![std::process::id()];
    let mut next = 0;
    while let Some(parent) = family.get(next).copied() {
        family.extend(parents.iter().filter(|(_, of)| **of == parent).map(|(process, _)| process));
        next += 1;
    }
    family
}

/// Measures on quiet pCPUs; threads of this process and its descendants are not other load.
pub fn measure<T>(pcpus: &PcpuSet, measurement: impl FnMut() -> T) -> Result<T, Skip> {
    measure_with(pcpus, family, measurement, |_| false)
}

/// Measures until the result is good, regardless of other load, or until the pCPUs are quiet.
pub fn measure_until<T>(
    pcpus: &PcpuSet,
    measurement: impl FnMut() -> T,
    is_good: impl Fn(&T) -> bool,
) -> Result<T, Skip> {
    measure_with(pcpus, family, measurement, is_good)
}

fn measure_with<T>(
    pcpus: &PcpuSet,
    own: impl Fn() -> Vec<u32>,
    mut measurement: impl FnMut() -> T,
    is_good: impl Fn(&T) -> bool,
) -> Result<T, Skip> {
    let mut loads = Vec::new();
    for _ in 0..TRIES {
        let (before, own_before) = (Busy::now(), own_time(&own(), pcpus));
        let result = measurement();
        let (after, own_after) = (Busy::now(), own_time(&own(), pcpus));
        let of_own = own_after.iter().map(|(tid, time)| {
            let before = own_before.get(tid).copied().unwrap_or_default();
            (time - before).max(0.0)
        });
        let seconds = (after.at - before.at).as_secs_f64();
        let others = after.load_since(&before, pcpus) - of_own.sum::<f64>() / seconds;
        if others <= CALM * pcpus.len() as f64 || is_good(&result) {
            return Ok(result);
        }
        loads.push(format!("{others:.2}"));
    }
    Err(Skip(format!(
        "other load took {} pCPUs of pCPUs {pcpus} in {TRIES} measurements",
        loads.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_excludes_idle_and_io_wait() {
        let stat = "cpu  1 1 1 1 1 1 1 1 1 1\ncpu0 100 20 30 4000 500 6 7 8 90 10\n\
                    cpu11 1 0 0 9 0 0 0 0 0 0\nintr 5\n";
        let busy = busy_seconds(stat, 0.01);
        assert_eq!(busy.keys().copied().collect::<Vec<_>>(), [PcpuId(0), PcpuId(11)]);
        assert!((busy[&PcpuId(0)] - 1.71).abs() < 1e-9, "{busy:?}");
        assert!((busy[&PcpuId(11)] - 0.01).abs() < 1e-9, "{busy:?}");
    }

    #[test]
    fn load_is_per_second_of_given_pcpus() {
        let at = Instant::now();
        let sample = |at, one: f64, two: f64| Busy {
            at,
            seconds: [(PcpuId(0), one), (PcpuId(1), two)].into_iter().collect(),
        };
        let (before, after) = (sample(at, 5.0, 7.0), sample(at + Duration::from_secs(2), 6.0, 9.0));
        let load = |set: &str| after.load_since(&before, &set.parse().unwrap());
        assert!((load("0") - 0.5).abs() < 1e-9);
        assert!((load("0-1") - 1.5).abs() < 1e-9);
    }

    #[test]
    fn own_threads_are_not_other_load() {
        let me = std::process::id();
        let pcpus = affinity(Tid(me)).expect("an affinity");
        let before = own_time(&[me], &pcpus);
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(50) {}
        let after = own_time(&[me], &pcpus);
        let sum = |times: &BTreeMap<u32, f64>| times.values().sum::<f64>();
        assert!(sum(&after) > sum(&before));
        let nowhere = PcpuSet::default();
        assert!(own_time(&[me], &nowhere).is_empty());
    }

    #[test]
    fn disturbed_measurements_are_repeated_and_then_skipped() {
        let me = std::process::id();
        let pcpus = affinity(Tid(me)).expect("an affinity");
        let mut runs = 0;
        // Without own processes, this process counts as other load.
        let spin = || {
            runs += 1;
            let begin = Instant::now();
            std::thread::scope(|scope| {
                for _ in pcpus.iter() {
                    scope.spawn(|| while begin.elapsed() < Duration::from_millis(300) {});
                }
            });
        };
        let disturbed = measure_with(&pcpus, Vec::new, spin, |()| false);
        let Err(Skip(reason)) = disturbed else { panic!("all pCPUs are busy") };
        assert_eq!(runs, TRIES, "{reason}");
        assert!(reason.contains("in 3 measurements"), "{reason}");
        let mut runs = 0;
        let spin_once = || {
            runs += 1;
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(300) {}
        };
        let good = measure_with(&pcpus, Vec::new, spin_once, |()| true);
        assert!(good.is_ok() && runs == 1, "a good result needs no quiet pCPUs");
        assert!(matches!(measure(&PcpuSet::default(), || 7), Ok(7)));
    }

    #[test]
    fn family_has_children_and_grandchildren() {
        let mut shell = std::process::Command::new("sh");
        let mut child = shell.args(["-c", "sleep 60 & wait"]).spawn().expect("a shell");
        let begin = Instant::now();
        while family().len() < 3 {
            assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", family());
            sleep(Duration::from_millis(5));
        }
        let family = family();
        assert!(family.contains(&std::process::id()) && family.contains(&child.id()));
        for process in &family[1..] {
            let pid = rustix::process::Pid::from_raw(*process as i32).expect("a process");
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        child.wait().expect("it ended");
    }
}
