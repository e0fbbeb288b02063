//! Costs of pause-loop exits and wake-up latencies of vCPUs, from the kernel's trace (tracefs).
//!
//! Each `kvm_exit` for PAUSE is paired with the next `kvm_entry` of the same vCPU thread.
//! Each wake-up of a vCPU thread is paired with the switch to it.
//!
//! The trace clock is the TSC.
//! On Bochs one instruction takes one cycle, so the cycles of a pair are KVM's instructions.
//! They include both trace points, which cost the same in every kernel.
//!
//! Two kinds of exits are counted separately:
//!
//! - The thread was switched out (a successful directed yield, or the end of its slice): the cycles include other threads.
//! - KVM sent an IPI to another pCPU, to run a vCPU that waits there: policies differ in how often they find a yield target, so the costs of yields and of failed searches are separate figures.
//!
//! The buffer of each pCPU keeps the latest events; lost events are counted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::file::FileError;

/// Error of tracing.
#[derive(Debug, Error)]
pub enum TraceError {
    /// Writing to a file of tracefs failed.
    #[error(
        "cannot write '{value}' to {path}; tracing needs tracefs and a kernel with KVM's trace \
         points: {source}"
    )]
    Write {
        /// The value.
        value: String,
        /// Path of the file.
        path: PathBuf,
        /// OS error.
        source: io::Error,
    },
    /// Reading the trace failed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Mount point of tracefs.
const TRACING: &str = "/sys/kernel/tracing";

/// Buffer size per pCPU, sufficient for some thousand exits.
const BUFFER_KIB: u32 = 512;

/// PAUSE in `exit_reason` of VMX (40) and of SVM (0x77).
const PAUSE_EXIT: &str = "exit_reason==40||exit_reason==119";

/// Figures of a trace. Cycles are those of the TSC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Traced {
    /// Lost events.
    pub lost: u64,
    /// Pause-loop exits.
    pub pauses: Pauses,
    /// Wake-ups of vCPUs, by VM.
    pub wakes: BTreeMap<String, Wakes>,
}

/// Wake-up latencies of vCPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Wakes {
    /// Wake-ups.
    pub wakes: u64,
    /// Median cycles from the wake-up to the switch.
    pub median: u64,
    /// 99th percentile of these cycles.
    pub p99: u64,
}

/// Costs of pause-loop exits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pauses {
    /// Exits in the trace.
    pub exits: u64,
    /// Exits after which the vCPU continued, without an IPI to another pCPU.
    pub stayed: u64,
    /// Their median cycles from exit to entry.
    pub stayed_median: u64,
    /// Their mean cycles from exit to entry.
    pub stayed_mean: f64,
    /// Exits after which the vCPU continued, with an IPI to another pCPU.
    #[serde(default)]
    pub asked: u64,
    /// Their median cycles from exit to entry.
    #[serde(default)]
    pub asked_median: u64,
    /// Their mean cycles from exit to entry.
    #[serde(default)]
    pub asked_mean: f64,
    /// Exits during which the vCPU was switched out.
    pub switched: u64,
    /// Exits during which the vCPU was switched out for a vCPU of the same VM.
    pub switched_to_sibling: u64,
    /// Median cycles from such an exit to the switch.
    pub switch_median: u64,
}

/// Starts tracing.
pub fn start() -> Result<(), TraceError> {
    put("tracing_on", "0")?;
    put("trace_clock", "x86-tsc")?;
    put("buffer_size_kb", &BUFFER_KIB.to_string())?;
    put("events/kvm/kvm_exit/filter", PAUSE_EXIT)?;
    put("events/kvm/kvm_exit/enable", "1")?;
    put("events/kvm/kvm_entry/enable", "1")?;
    put("events/sched/sched_switch/enable", "1")?;
    put("events/ipi/ipi_send_cpu/enable", "1")?;
    put("events/sched/sched_wakeup/filter", "comm ~ \"*/vcpu*\"")?;
    put("events/sched/sched_wakeup/enable", "1")?;
    put("trace", "")?;
    put("tracing_on", "1")
}

/// Stops tracing. Keeps the trace.
pub fn stop() -> Result<(), TraceError> {
    put("tracing_on", "0")?;
    put("events/enable", "0")
}

/// Evaluates and clears the trace. Reading is slow, so call it after the VMs have ended.
pub fn result() -> Result<Traced, TraceError> {
    let root = Path::new(TRACING);
    let path = root.join("trace");
    let text = fs::read_to_string(&path).map_err(FileError::of("read", &path))?;
    let stats = |pcpu: u32| fs::read_to_string(root.join(format!("per_cpu/cpu{pcpu}/stats"))).ok();
    let lost = (0..).map_while(stats).map(|text| overrun(&text)).sum();
    let traced = read(&text, lost);
    put("trace", "")?;
    Ok(traced)
}

fn put(file: &str, value: &str) -> Result<(), TraceError> {
    let path = Path::new(TRACING).join(file);
    fs::write(&path, value).map_err(|source| TraceError::Write {
        value: value.to_owned(),
        path,
        source,
    })
}

fn overrun(stats: &str) -> u64 {
    let line = stats.lines().find_map(|line| line.strip_prefix("overrun:"));
    line.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// An event of the trace.
struct Event<'a> {
    thread: &'a str,
    time: u64,
    name: &'a str,
    rest: &'a str,
}

/// Parses a line: `   a/vcpu0-70      [002] d....  5368709: kvm_exit: vcpu 0 reason PAUSE_INSTRUCTION …`
fn parse(line: &str) -> Option<Event<'_>> {
    let (thread, rest) = line.split_once(" [")?;
    let (_, rest) = rest.split_once("] ")?;
    let (head, rest) = rest.split_once(": ")?;
    let time = head.split_whitespace().next_back()?.parse().ok()?;
    let (name, rest) = rest.split_once(": ").unwrap_or((rest, ""));
    Some(Event { thread: thread.trim(), time, name: name.trim(), rest })
}

/// Returns the VM of a thread `NAME/vcpuN…`.
fn vm(thread: &str) -> Option<&str> {
    thread.split_once("/vcpu").map(|(vm, _)| vm)
}

/// An exit without its entry.
struct Pending {
    time: u64,
    switched: bool,
    asked: bool,
}

#[derive(Default)]
struct Costs<'a> {
    exits: u64,
    pending: BTreeMap<&'a str, Pending>,
    stayed: Vec<u64>,
    asked: Vec<u64>,
    switches: Vec<u64>,
    to_sibling: u64,
    /// Times of wake-ups of threads that have not run yet, by TID.
    woken: BTreeMap<&'a str, u64>,
    waits: BTreeMap<&'a str, Vec<u64>>,
}

/// Parses the trace of all pCPUs, which is in the order of time.
fn read(text: &str, lost: u64) -> Traced {
    let mut costs = Costs::default();
    for event in text.lines().filter_map(parse) {
        match event.name {
            "kvm_exit" => costs.exit(&event),
            "kvm_entry" => costs.entry(&event),
            "sched_switch" => costs.switch(&event),
            "ipi_send_cpu" => {
                if let Some(exit) = costs.pending.get_mut(event.thread) {
                    exit.asked = true;
                }
            }
            "sched_wakeup" => {
                if let Some(number) = field(event.rest, "pid=") {
                    costs.woken.insert(number, event.time);
                }
            }
            _ => {}
        }
    }
    costs.sum(lost)
}

/// Returns the value of the field `name` (with `=`) of an event.
fn field<'a>(rest: &'a str, name: &str) -> Option<&'a str> {
    let mut words = rest.split_whitespace();
    words.find_map(|word| word.strip_prefix(name))
}

impl<'a> Costs<'a> {
    fn exit(&mut self, event: &Event<'a>) {
        self.exits += 1;
        let exit = Pending { time: event.time, switched: false, asked: false };
        self.pending.insert(event.thread, exit);
    }

    fn entry(&mut self, event: &Event<'a>) {
        if let Some(exit) = self.pending.remove(event.thread)
            && !exit.switched
        {
            let cycles = event.time.saturating_sub(exit.time);
            if exit.asked { self.asked.push(cycles) } else { self.stayed.push(cycles) }
        }
    }

    fn switch(&mut self, event: &Event<'a>) {
        let next = field(event.rest, "next_comm=").and_then(vm);
        if let Some(exit) = self.pending.get_mut(event.thread)
            && !exit.switched
        {
            exit.switched = true;
            self.switches.push(event.time.saturating_sub(exit.time));
            let mine = vm(event.thread);
            self.to_sibling += u64::from(mine.is_some() && next == mine);
        }
        let number = field(event.rest, "next_pid=");
        if let Some(time) = number.and_then(|number| self.woken.remove(number))
            && let Some(vm) = next
        {
            let wait = event.time.saturating_sub(time);
            self.waits.entry(vm).or_default().push(wait);
        }
    }

    fn sum(mut self, lost: u64) -> Traced {
        let pauses = Pauses {
            exits: self.exits,
            stayed: self.stayed.len() as u64,
            stayed_median: quantile(&mut self.stayed, 50),
            stayed_mean: mean(&self.stayed),
            asked: self.asked.len() as u64,
            asked_median: quantile(&mut self.asked, 50),
            asked_mean: mean(&self.asked),
            switched: self.switches.len() as u64,
            switched_to_sibling: self.to_sibling,
            switch_median: quantile(&mut self.switches, 50),
        };
        let wakes = self.waits.into_iter().map(|(vm, mut waits)| {
            let wakes = Wakes {
                wakes: waits.len() as u64,
                median: quantile(&mut waits, 50),
                p99: quantile(&mut waits, 99),
            };
            (vm.to_owned(), wakes)
        });
        Traced { lost, pauses, wakes: wakes.collect() }
    }
}

/// Returns the mean; 0 without values.
fn mean(values: &[u64]) -> f64 {
    values.iter().sum::<u64>() as f64 / values.len().max(1) as f64
}

/// Returns the value that `percent` of the values are below; 0 without values.
fn quantile(values: &mut [u64], percent: usize) -> u64 {
    values.sort_unstable();
    let place = values.len() * percent / 100;
    values.get(place).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "\
# tracer: nop
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
        a/vcpu0-70      [002] d....  1000: kvm_exit: vcpu 0 reason PAUSE_INSTRUCTION rip 0x100200
        a/vcpu0-70      [002] d....  1900: kvm_entry: vcpu 0, rip 0x100202
        a/vcpu0-70      [002] d....  5000: kvm_exit: vcpu 0 reason PAUSE_INSTRUCTION rip 0x100200
        a/vcpu0-70      [002] d..2.  5600: sched_switch: prev_comm=a/vcpu0 prev_pid=70 prev_prio=120 prev_state=R ==> next_comm=a/vcpu3 next_pid=73 next_prio=120
        a/vcpu3-73      [002] d....  5700: kvm_entry: vcpu 3, rip 0x100302
        b/vcpu1-81      [002] d....  6000: kvm_exit: vcpu 1 reason PAUSE_INSTRUCTION rip 0x100200
        b/vcpu1-81      [002] d..2.  6400: sched_switch: prev_comm=b/vcpu1 prev_pid=81 prev_prio=120 prev_state=R ==> next_comm=a/vcpu0 next_pid=70 next_prio=120
        a/vcpu0-70      [002] d....  9000: kvm_entry: vcpu 0, rip 0x100202
        a/vcpu0-70      [002] d....  9100: kvm_exit: vcpu 0 reason PAUSE_INSTRUCTION rip 0x100200
        a/vcpu0-70      [002] d....  9600: kvm_entry: vcpu 0, rip 0x100202
        a/vcpu0-70      [002] d....  9700: kvm_exit: vcpu 0 reason PAUSE_INSTRUCTION rip 0x100200
        a/vcpu0-70      [002] d..2.  9900: ipi_send_cpu: cpu=1 callsite=resched_curr+0x3f/0x60 callback=0x0
        a/vcpu0-70      [002] d....  9950: kvm_entry: vcpu 0, rip 0x100202
        init-1          [003] d..2.  9960: ipi_send_cpu: cpu=1 callsite=resched_curr+0x3f/0x60 callback=0x0
";

    const WAKES: &str = "\
        b/vcpu0-80      [000] d.h3.  1000: sched_wakeup: comm=s/vcpu0 pid=70 prio=120 target_cpu=002
        b/vcpu2-82      [002] d..2.  1500: sched_switch: prev_comm=b/vcpu2 prev_pid=82 prev_prio=120 prev_state=R ==> next_comm=s/vcpu0 next_pid=70 next_prio=120
        b/vcpu0-80      [000] d.h3.  2000: sched_wakeup: comm=s/vcpu1 pid=71 prio=120 target_cpu=003
        b/vcpu3-83      [003] d..2.  3000: sched_switch: prev_comm=b/vcpu3 prev_pid=83 prev_prio=120 prev_state=R ==> next_comm=init next_pid=1 next_prio=120
        init-1          [003] d..2.  6000: sched_switch: prev_comm=init prev_pid=1 prev_prio=120 prev_state=S ==> next_comm=s/vcpu1 next_pid=71 next_prio=120
";

    #[test]
    fn exits_pair_with_entry_of_same_thread() {
        let traced = read(TRACE, 3);
        let sum = traced.pauses;
        assert_eq!((sum.exits, sum.stayed, sum.switched), (5, 2, 2));
        assert_eq!((sum.stayed_median, sum.stayed_mean), (900, 700.0));
        assert_eq!((sum.asked, sum.asked_median, sum.asked_mean), (1, 250, 250.0));
        assert_eq!((sum.switched_to_sibling, sum.switch_median), (1, 600));
        assert_eq!((traced.lost, traced.wakes.len()), (3, 0));
    }

    #[test]
    fn wake_ups_pair_with_switch_to_thread() {
        let traced = read(WAKES, 0);
        let expected = Wakes { wakes: 2, median: 4000, p99: 4000 };
        assert_eq!(traced.wakes, BTreeMap::from([("s".to_owned(), expected)]));
    }

    #[test]
    fn other_lines_are_skipped() {
        assert!(parse("# entries-in-buffer/entries-written: 5/5   #P:4").is_none());
        assert!(parse("CPU:2 [LOST 55 EVENTS]").is_none());
        assert_eq!(overrun("entries: 4\noverrun: 17\n"), 17);
        assert_eq!(read("", 0), Traced::default());
    }
}
