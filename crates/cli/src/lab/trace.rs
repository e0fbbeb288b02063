//! What pause-loop exits cost, from the kernel's trace (tracefs): each `kvm_exit` for PAUSE is paired
//! with the `kvm_entry` of the same vCPU thread that follows.
//!
//! The trace clock is the TSC. On Bochs, where one instruction takes one cycle, the cycles between
//! the two are the instructions that KVM executed, those of the two trace points included: the same
//! for every kernel, so that kernels compare. An exit during which the thread was switched out
//! (a directed yield that was taken, or the end of its slice) is counted apart: its cycles would be
//! those of somebody else.
//!
//! The buffer of each pCPU keeps the latest events; what was lost is said.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::Deserialize;
use serde::Serialize;

/// Where tracefs is mounted.
const TRACING: &str = "/sys/kernel/tracing";

/// Per pCPU: enough for some thousand exits.
const BUFFER_KIB: u32 = 1024;

/// PAUSE in `exit_reason` of VMX (40) and of SVM (0x77).
const PAUSE_EXIT: &str = "exit_reason==40||exit_reason==119";

/// What pause-loop exits cost. Cycles are those of the TSC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PauseExits {
    /// Exits in the trace.
    pub exits: u64,
    /// Events that the buffers lost.
    pub lost: u64,
    /// Exits after which the vCPU went on without having been switched out.
    pub stayed: u64,
    /// Median cycles of those, from exit to entry.
    pub stayed_median: u64,
    /// Mean cycles of those.
    pub stayed_mean: f64,
    /// Exits during which the vCPU was switched out.
    pub switched: u64,
    /// Of those, to a vCPU of the same VM.
    pub switched_to_sibling: u64,
    /// Median cycles from such an exit to the switch.
    pub switch_median: u64,
}

/// Starts to trace.
pub fn start() -> anyhow::Result<()> {
    put("tracing_on", "0")?;
    put("trace_clock", "x86-tsc")?;
    put("buffer_size_kb", &BUFFER_KIB.to_string())?;
    put("events/kvm/kvm_exit/filter", PAUSE_EXIT)?;
    put("events/kvm/kvm_exit/enable", "1")?;
    put("events/kvm/kvm_entry/enable", "1")?;
    put("events/sched/sched_switch/enable", "1")?;
    put("trace", "")?;
    put("tracing_on", "1")
}

/// Stops, and says what the pauses cost.
pub fn stop() -> anyhow::Result<PauseExits> {
    put("tracing_on", "0")?;
    put("events/enable", "0")?;
    let root = Path::new(TRACING);
    let mut costs = Costs::default();
    let mut lost = 0;
    for pcpu in 0.. {
        let folder = root.join(format!("per_cpu/cpu{pcpu}"));
        let Ok(text) = fs::read_to_string(folder.join("trace")) else {
            break;
        };
        costs.read(&text);
        let stats = fs::read_to_string(folder.join("stats")).unwrap_or_default();
        lost += overrun(&stats);
    }
    put("trace", "")?;
    Ok(costs.sum(lost))
}

fn put(file: &str, value: &str) -> anyhow::Result<()> {
    let path = Path::new(TRACING).join(file);
    fs::write(&path, value).with_context(|| {
        format!(
            "cannot write '{value}' to {}; tracing needs tracefs and a kernel with KVM's trace points",
            path.display()
        )
    })
}

fn overrun(stats: &str) -> u64 {
    let line = stats.lines().find_map(|line| line.strip_prefix("overrun:"));
    line.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// One line of the trace.
struct Event<'a> {
    thread: &'a str,
    time: u64,
    name: &'a str,
    rest: &'a str,
}

/// `   a/vcpu0-70      [002] d....  5368709: kvm_exit: vcpu 0 reason PAUSE_INSTRUCTION …`
fn parse(line: &str) -> Option<Event<'_>> {
    let (thread, rest) = line.split_once(" [")?;
    let (_, rest) = rest.split_once("] ")?;
    let (head, rest) = rest.split_once(": ")?;
    let time = head.split_whitespace().next_back()?.parse().ok()?;
    let (name, rest) = rest.split_once(": ").unwrap_or((rest, ""));
    Some(Event {
        thread: thread.trim(),
        time,
        name: name.trim(),
        rest,
    })
}

/// The VM that a thread `NAME/vcpuN…` belongs to.
fn vm(thread: &str) -> Option<&str> {
    thread.split_once("/vcpu").map(|(vm, _)| vm)
}

/// An exit whose entry has not been seen yet.
struct Pending {
    time: u64,
    switched: bool,
}

#[derive(Default)]
struct Costs {
    exits: u64,
    stayed: Vec<u64>,
    switches: Vec<u64>,
    to_sibling: u64,
}

impl Costs {
    /// Reads the trace of one pCPU. A thread that enters on another pCPU is left pending there, and
    /// was counted when it was switched out here.
    fn read(&mut self, text: &str) {
        let mut pending: BTreeMap<&str, Pending> = BTreeMap::new();
        for event in text.lines().filter_map(parse) {
            match event.name {
                "kvm_exit" => {
                    self.exits += 1;
                    let time = event.time;
                    let switched = false;
                    pending.insert(event.thread, Pending { time, switched });
                }
                "kvm_entry" => {
                    if let Some(exit) = pending.remove(event.thread)
                        && !exit.switched
                    {
                        self.stayed.push(event.time.saturating_sub(exit.time));
                    }
                }
                "sched_switch" => {
                    if let Some(exit) = pending.get_mut(event.thread)
                        && !exit.switched
                    {
                        exit.switched = true;
                        self.switches.push(event.time.saturating_sub(exit.time));
                        let next = event.rest.split_once("next_comm=").map(|(_, next)| next);
                        let mine = vm(event.thread);
                        self.to_sibling += u64::from(mine.is_some() && next.and_then(vm) == mine);
                    }
                }
                _ => {}
            }
        }
    }

    fn sum(mut self, lost: u64) -> PauseExits {
        let count = self.stayed.len() as u64;
        let total: u64 = self.stayed.iter().sum();
        PauseExits {
            exits: self.exits,
            lost,
            stayed: count,
            stayed_median: median(&mut self.stayed),
            stayed_mean: total as f64 / count.max(1) as f64,
            switched: self.switches.len() as u64,
            switched_to_sibling: self.to_sibling,
            switch_median: median(&mut self.switches),
        }
    }
}

fn median(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
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
";

    #[test]
    fn exits_are_paired_with_the_entry_of_the_same_thread() {
        let mut costs = Costs::default();
        costs.read(TRACE);
        let sum = costs.sum(3);
        assert_eq!((sum.exits, sum.stayed, sum.switched), (4, 2, 2));
        assert_eq!((sum.stayed_median, sum.stayed_mean), (900, 700.0));
        assert_eq!((sum.switched_to_sibling, sum.switch_median), (1, 600));
        assert_eq!(sum.lost, 3);
    }

    #[test]
    fn lines_that_are_no_events_are_passed_over() {
        assert!(parse("# entries-in-buffer/entries-written: 5/5   #P:4").is_none());
        assert!(parse("CPU:2 [LOST 55 EVENTS]").is_none());
        assert_eq!(overrun("entries: 4\noverrun: 17\n"), 17);
        assert_eq!(Costs::default().sum(0), PauseExits::default());
    }
}
