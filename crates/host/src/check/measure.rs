//! The measuring process: makes groups and threads below a given cgroup, changes one knob after the other, and reports the effects.
//! It writes a line of JSON per finding, and ends with its input, so that it never outlives the check.
//!
//! Each test has threads of its own, on one pCPU if they are to compete.
//! They run for `SETTLE` first, which excludes the time before the change.

use std::cell::Cell;
use std::error::Error;
use std::io;
use std::io::{BufRead, Read, Write};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tandem_linux::affinity::set_affinity;
use tandem_linux::cgroup;
use tandem_linux::cgroup::{CgroupPath, CpuController, Quota};
use tandem_linux::procfs::ProcFs;
use tandem_linux::sampler::Sampler;
use tandem_linux::sched_attr::{schedulers_slice, set_nice, set_slice};
use tandem_linux::thread::ThreadRef;
use tandem_model::{Nanos, Nice, PcpuSet, Weight};

use super::burner::{Burner, Team, this_thread};
use super::judge;
use super::judge::Received;
use super::report::{Finding, Subject, Verdict};

const SETTLE: Duration = Duration::from_millis(60);

/// Duration of measuring a share.
const WINDOW: Duration = Duration::from_millis(500);

/// Duration of measuring the defect, which is intermittent.
const HOG_WINDOW: Duration = Duration::from_millis(1500);

/// Number of switches of the idle class, and their interval.
const SWITCHES: u32 = 24;
const SWITCH_EVERY: Duration = Duration::from_millis(40);

/// Maximum number of measurements of a knob that does not act.
const TRIES: u32 = 3;

/// Orders for the process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Orders {
    /// The cgroup to work below.
    pub top: CgroupPath,
    /// The one or two pCPUs to measure on.
    pub pcpus: PcpuSet,
}

type Failure = Box<dyn Error + Send + Sync>;

/// One test: a finding, or the reason for its absence.
type Test = fn(&Bench) -> Result<Finding, Failure>;

/// Main function of the measuring process: reads [`Orders`] from stdin, and writes findings to stdout.
pub fn main() -> io::Result<()> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let orders: Orders = serde_json::from_str(&line)?;
    std::thread::spawn(|| {
        let mut rest = Vec::new();
        let _ = io::stdin().lock().read_to_end(&mut rest);
        // The parent has ended.
        std::process::exit(0);
    });
    let bench = Bench::new(orders).map_err(io::Error::other)?;
    let tests: [(Subject, Test); 9] = [
        (Subject::CgroupWeight, Bench::weight),
        (Subject::IdleClass, Bench::idle_class),
        (Subject::IdleSwitch, Bench::idle_switch),
        (Subject::VcpuGroups, Bench::vcpu_groups),
        (Subject::Nice, Bench::nice),
        (Subject::Slice, Bench::slice),
        (Subject::Affinity, Bench::affinity),
        (Subject::Quota, Bench::quota),
        (Subject::PinnedHog, Bench::pinned_hog),
    ];
    for (subject, test) in tests {
        let finding = measure(&bench, subject, test);
        let text = serde_json::to_string(&finding)?;
        writeln!(io::stdout(), "{text}")?;
        io::stdout().flush()?;
    }
    Ok(())
}

/// Measures, and repeats the test if the knob does not act or is unclear: a busy host can hide the effect, but rarely fakes it.
fn measure(bench: &Bench, subject: Subject, test: Test) -> Finding {
    let once = || {
        test(bench)
            .unwrap_or_else(|error| Finding::new(subject, Verdict::NotMeasured(error.to_string())))
    };
    let mut finding = once();
    for _ in 1..TRIES {
        match finding.verdict {
            Verdict::DoesNotAct | Verdict::Unclear => finding = once(),
            _ => break,
        }
    }
    finding
}

struct Bench {
    controller: Box<dyn CpuController>,
    orders: Orders,
    /// The first pCPU.
    here: PcpuSet,
    /// The second, if there is one.
    there: Option<PcpuSet>,
    /// Number of groups made so far.
    groups: Cell<u32>,
}

/// A group that is removed on drop, if it is empty.
struct Group<'a> {
    controller: &'a dyn CpuController,
    path: CgroupPath,
}

impl Group<'_> {
    fn set_weight(&self, factor: f64) -> Result<(), Failure> {
        let weight = Weight::saturating(self.controller.default_weight().value() * factor);
        self.controller.set_weight(&self.path, weight)?;
        Ok(())
    }

    fn set_idle(&self, idle: bool) -> Result<(), Failure> {
        Ok(self.controller.set_idle(&self.path, idle)?)
    }

    /// Moves a thread into the group.
    fn take(&self, thread: &ThreadRef) -> Result<(), Failure> {
        Ok(self.controller.move_thread(thread.tid, &self.path)?)
    }

    fn burner(&self, pcpus: &PcpuSet) -> io::Result<Burner> {
        Burner::start(pcpus, |thread| self.take(thread))
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        // The check removes the rest.
        let _ = self.controller.remove(&self.path);
    }
}

impl Bench {
    fn new(orders: Orders) -> Result<Bench, Failure> {
        let controller = cgroup::open(&ProcFs::host())?;
        let mut pcpus = orders.pcpus.iter().map(|pcpu| PcpuSet::from_iter([pcpu]));
        let here = pcpus.next().ok_or("there is no pCPU to measure on")?;
        let there = pcpus.next();
        drop(pcpus);
        // If the writing thread then sleeps on the tested pCPU, that pCPU reschedules at once.
        // Daemons mostly write from another pCPU, so the test does too.
        if let Some(there) = &there {
            set_affinity(this_thread().tid, there)?;
        }
        Ok(Bench { controller, orders, here, there, groups: Cell::new(0) })
    }

    /// Makes a group with an unused name, since a finished group may still exist.
    /// The kernel removes ended threads from their cgroup with a delay.
    fn group_below(&self, parent: &CgroupPath, name: &str) -> Result<Group<'_>, Failure> {
        let controller = self.controller.as_ref();
        self.groups.set(self.groups.get() + 1);
        let name = format!("{name}-{}", self.groups.get());
        for above in controller.missing_enables(&parent.child(&name))? {
            controller.enable(&above)?;
        }
        Ok(Group { controller, path: controller.create_child(parent, &name)? })
    }

    fn group(&self, name: &str) -> Result<Group<'_>, Failure> {
        self.group_below(&self.orders.top, name)
    }

    fn there(&self) -> Result<&PcpuSet, Failure> {
        let only_one = "it takes two pCPUs, and this process may use one only";
        self.there.as_ref().ok_or_else(|| only_one.into())
    }

    fn weight(&self) -> Result<Finding, Failure> {
        let (heavy, light) = (self.group("a")?, self.group("b")?);
        heavy.set_weight(4.0)?;
        light.set_weight(1.0)?;
        let (one, other) = (heavy.burner(&self.here)?, light.burner(&self.here)?);
        Ok(judge::weight(received(WINDOW, &[one.thread], &[other.thread])?))
    }

    /// Fails if this kernel has no idle class for cgroups.
    fn need_idle(&self, group: &Group<'_>) -> Result<(), Failure> {
        match self.controller.is_idle(&group.path)? {
            Some(_) => Ok(()),
            None => Err("this kernel has no cpu.idle: Linux 5.15 is the first that has".into()),
        }
    }

    fn idle_class(&self) -> Result<Finding, Failure> {
        let (idle, normal) = (self.group("a")?, self.group("b")?);
        self.need_idle(&idle)?;
        idle.set_idle(true)?;
        let (one, other) = (idle.burner(&self.here)?, normal.burner(&self.here)?);
        Ok(judge::idle_class(received(WINDOW, &[one.thread], &[other.thread])?))
    }

    fn idle_switch(&self) -> Result<Finding, Failure> {
        let groups = [self.group("a")?, self.group("b")?];
        self.need_idle(&groups[0])?;
        groups[1].set_idle(true)?;
        let burners = [groups[0].burner(&self.here)?, groups[1].burner(&self.here)?];
        sleep(SETTLE);
        let mut waits = Vec::new();
        let (mut out, mut into) = (1, 0);
        for _ in 0..SWITCHES {
            burners[out].forget();
            let begin = Instant::now();
            groups[out].set_idle(false)?;
            groups[into].set_idle(true)?;
            sleep(SWITCH_EVERY);
            waits.push(first_run(&burners[out].starts(), begin));
            (out, into) = (into, out);
        }
        Ok(judge::idle_switch(&waits))
    }

    fn vcpu_groups(&self) -> Result<Finding, Failure> {
        let (vm, other) = (self.group("vm")?, self.group("b")?);
        let heavy = self.group_below(&vm.path, "vcpu0")?;
        let light = self.group_below(&vm.path, "vcpu1")?;
        heavy.set_weight(4.0)?;
        light.set_weight(1.0)?;
        let vcpus = [heavy.burner(&self.here)?, light.burner(&self.here)?];
        let beside = other.burner(&self.here)?;
        let threads = [vcpus[0].thread, vcpus[1].thread, beside.thread];
        let (window, ran) = ran(WINDOW, &threads)?;
        let of = |one, others| Received { window, one, others };
        // The two vCPUs compete for their VM's part only, so the sum of all three decides whether it is enough.
        let all = of(ran[0] + ran[1], ran[2]);
        let inside = Received {
            window: Nanos((window.0 as f64 * all.share()) as u64),
            ..of(ran[0], ran[1])
        };
        Ok(judge::vcpu_groups(inside, all))
    }

    fn nice(&self) -> Result<Finding, Failure> {
        let group = self.group("a")?;
        let (one, other) = (group.burner(&self.here)?, group.burner(&self.here)?);
        set_nice(one.thread.tid, Nice(0))?;
        set_nice(other.thread.tid, Nice(5))?;
        Ok(judge::nice(received(WINDOW, &[one.thread], &[other.thread])?))
    }

    fn slice(&self) -> Result<Finding, Failure> {
        if schedulers_slice().is_none() {
            return Err(
                "this kernel has no slices of threads' own: Linux 6.12 is the first that has"
                    .into(),
            );
        }
        let group = self.group("a")?;
        let burners = [group.burner(&self.here)?, group.burner(&self.here)?];
        let usual = run_length(&burners)?;
        for burner in &burners {
            set_slice(burner.thread.tid, Some(judge::LONG_SLICE))?;
        }
        Ok(judge::slice(usual, run_length(&burners)?))
    }

    fn affinity(&self) -> Result<Finding, Failure> {
        let there = self.there()?;
        let asked = there.iter().next().ok_or("there is no second pCPU")?.0;
        let group = self.group("a")?;
        let burner = group.burner(&self.here)?;
        sleep(SETTLE);
        let was_on = burner.pcpu();
        set_affinity(burner.thread.tid, there)?;
        sleep(SETTLE);
        Ok(judge::affinity(asked, was_on, burner.pcpu()))
    }

    fn quota(&self) -> Result<Finding, Failure> {
        let group = self.group("a")?;
        let burner = group.burner(&self.here)?;
        let pcpus = |(window, ran): (Nanos, Vec<Nanos>)| {
            ran.iter().copied().sum::<Nanos>().0 as f64 / window.0.max(1) as f64
        };
        let uncapped = pcpus(ran(WINDOW / 2, &[burner.thread])?);
        let period_us = 50_000;
        let quota = Quota { quota_us: (judge::CAP * period_us as f64) as u64, period_us };
        self.controller.set_quota(&group.path, Some(quota))?;
        let capped = ran(WINDOW, &[burner.thread]);
        // Before the burner stops, which it can only do while it runs.
        self.controller.set_quota(&group.path, None)?;
        Ok(judge::quota(pcpus(capped?), uncapped))
    }

    fn pinned_hog(&self) -> Result<Finding, Failure> {
        let there = self.there()?;
        let (blocking, burning) = (self.group("a")?, self.group("b")?);
        let both = [&self.here, there];
        let seats: Vec<PcpuSet> = both.into_iter().chain(both).cloned().collect();
        let team = Team::start(&seats, |thread| blocking.take(thread))?;
        let burners = [burning.burner(&self.here)?, burning.burner(there)?];
        let others = [burners[0].thread, burners[1].thread];
        Ok(judge::pinned_hog(received(HOG_WINDOW, &team.threads, &others)?))
    }
}

/// Returns the delay of the first run after `begin`, from the times at which a thread ran again.
fn first_run(starts: &[Instant], begin: Instant) -> Option<Nanos> {
    let start = starts.iter().find(|start| **start >= begin)?;
    Some(Nanos(start.duration_since(begin).as_nanos() as u64))
}

/// Measures the time that each thread received in a window, and the window's length.
fn ran(window: Duration, threads: &[ThreadRef]) -> Result<(Nanos, Vec<Nanos>), Failure> {
    sleep(SETTLE);
    let mut sampler = Sampler::new(ProcFs::host());
    let mut sample = || -> Result<Vec<Nanos>, Failure> {
        let samples = threads.iter().map(|thread| Ok(sampler.sample(thread)?.ran));
        samples.collect()
    };
    let before = sample()?;
    let begin = Instant::now();
    sleep(window);
    let after = sample()?;
    let took = Nanos(begin.elapsed().as_nanos() as u64);
    let ran = after.iter().zip(before);
    Ok((took, ran.map(|(now, then)| now.saturating_sub(then)).collect()))
}

/// Measures the time that the threads of both sides received.
fn received(
    window: Duration,
    one: &[ThreadRef],
    others: &[ThreadRef],
) -> Result<Received, Failure> {
    let (window, ran) = ran(window, &[one, others].concat())?;
    let (first, rest) = ran.split_at(one.len());
    Ok(Received { window, one: first.iter().copied().sum(), others: rest.iter().copied().sum() })
}

/// Returns the run length, in CPU time, of two burners that share a pCPU and alternate.
fn run_length(burners: &[Burner; 2]) -> Result<Option<Nanos>, Failure> {
    let threads = [burners[0].thread, burners[1].thread];
    sleep(SETTLE);
    for burner in burners {
        burner.forget();
    }
    let (_, ran) = ran(WINDOW, &threads)?;
    let starts = |n: usize| burners[n].starts().into_iter().map(move |start| (start, n));
    let mut starts: Vec<(Instant, usize)> = starts(0).chain(starts(1)).collect();
    starts.sort_unstable();
    let changes = starts.windows(2).filter(|two| two[0].1 != two[1].1).count();
    // The switches include those of the settling time before the window.
    let in_all = ran[0] + ran[1];
    let part = WINDOW.as_secs_f64() / (WINDOW + SETTLE).as_secs_f64();
    let changes = (changes as f64 * part).round() as u64;
    Ok(in_all.0.checked_div(changes).map(Nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_ends_at_first_run() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let starts = [at(4), at(13), at(24)];
        let wait = |ms| first_run(&starts, at(ms));
        assert_eq!(wait(10), Some(Nanos::from_millis(3)));
        assert_eq!(wait(30), None);
    }
}
