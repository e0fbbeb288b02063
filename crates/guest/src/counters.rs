//! Kernel counters of each vCPU: `/proc/stat`, and the idle states of cpuidle.
//!
//! Every kernel has `/proc/stat`, with times in ticks of 10 ms ([`CLOCK_TICK`]).
//! Idle states have a resolution of 1 us and distinguish polling (state POLL) from halting, but need a cpuidle driver.
//! All counters start at boot, so a figure is the difference of two readings.
//! [`crate::sampler`] takes it over a period, the benchmark over the run of a program.
//!
//! Sources: proc_stat(5); fs/proc/stat.c; drivers/cpuidle/sysfs.c.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::{fs, io};

use tandem_linux::ProcFs;
use tandem_linux::procfs::read_text;
use tandem_model::units::PcpuId;
use thiserror::Error;

/// Tick of `/proc/stat`, ns: USER_HZ is 100 on every architecture that KVM supports.
pub const CLOCK_TICK: u64 = 10_000_000;

/// Reason why counters could not be read.
#[derive(Debug, Error)]
pub enum CounterError {
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// A file differs from its documented format.
    #[error("{path} has no {wanted}; expected a file as proc_stat(5) describes")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Missing item.
        wanted: String,
    },
}

/// Open files of one vCPU's idle states.
#[derive(Debug)]
pub struct IdleStates {
    /// `usage` and `time` of each polling state.
    polling: Vec<(File, File)>,
    halting: Vec<(File, File)>,
}

/// Sums of a vCPU's idle states since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Idle {
    /// Idle time, ns, with a resolution of 1 us.
    pub time: u64,
    /// Part of the idle time that the vCPU polled instead of halting, ns.
    pub polled: u64,
    /// Number of polling periods.
    pub polls: u64,
    /// Number of halts.
    pub halts: u64,
}

impl IdleStates {
    /// Opens the idle states of a vCPU; none if the kernel has none, or no such vCPU.
    pub fn open(procfs: &ProcFs, vcpu: PcpuId) -> IdleStates {
        let folder = procfs.resolve(format!("/sys/devices/system/cpu/cpu{}/cpuidle", vcpu.0));
        let mut states = IdleStates { polling: Vec::new(), halting: Vec::new() };
        for number in 0.. {
            let state = folder.join(format!("state{number}"));
            let (Ok(usage), Ok(time)) =
                (File::open(state.join("usage")), File::open(state.join("time")))
            else {
                break;
            };
            let name = fs::read_to_string(state.join("name")).unwrap_or_default();
            match name.trim() {
                "POLL" => states.polling.push((usage, time)),
                _ => states.halting.push((usage, time)),
            }
        }
        states
    }

    /// Returns `None` if the kernel has no idle states.
    pub fn read(&self) -> Option<Idle> {
        let mut idle = Idle::default();
        for (usage, time) in &self.polling {
            let time = number(time)? * 1000;
            idle.polls += number(usage)?;
            idle.time += time;
            idle.polled += time;
        }
        for (usage, time) in &self.halting {
            idle.halts += number(usage)?;
            idle.time += number(time)? * 1000;
        }
        (!self.halting.is_empty()).then_some(idle)
    }
}

/// Reads a file that holds one number.
fn number(file: &File) -> Option<u64> {
    let mut buffer = [0u8; 24];
    let bytes = file.read_at(&mut buffer, 0).ok()?;
    std::str::from_utf8(&buffer[..bytes]).ok()?.trim().parse().ok()
}

/// Contents of `/proc/stat`.
/// Times are in ticks of [`CLOCK_TICK`], in the order user, nice, system, idle, iowait, irq, softirq, steal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Sum over all vCPUs.
    pub all: [u64; 8],
    /// Times of each online vCPU, by its number.
    pub vcpus: BTreeMap<u32, [u64; 8]>,
    /// Context switches.
    pub switches: u64,
}

impl Stat {
    /// Reads `/proc/stat`.
    pub fn read(procfs: &ProcFs) -> Result<Stat, CounterError> {
        let path = procfs.resolve("/proc/stat");
        let text =
            read_text(&path).map_err(|source| CounterError::Read { path: path.clone(), source })?;
        Stat::parse(&text).map_err(|wanted| CounterError::Malformed { path, wanted })
    }

    /// Parses `/proc/stat`; the error names the missing item.
    pub fn parse(text: &str) -> Result<Stat, String> {
        let mut stat = Stat { all: [0; 8], vcpus: BTreeMap::new(), switches: 0 };
        let (mut seen_all, mut seen_switches) = (false, false);
        for line in text.lines() {
            let mut fields = line.split_ascii_whitespace();
            let Some(name) = fields.next() else {
                continue;
            };
            let mut times = || {
                let mut times = [0; 8];
                for (time, field) in times.iter_mut().zip(&mut fields) {
                    *time = field.parse().map_err(|_| format!("number for '{field}'"))?;
                }
                Ok::<_, String>(times)
            };
            if name == "cpu" {
                (stat.all, seen_all) = (times()?, true);
            } else if name == "ctxt" {
                (stat.switches, seen_switches) = (times()?[0], true);
            } else if let Some(vcpu) = name.strip_prefix("cpu").and_then(|n| n.parse().ok()) {
                stat.vcpus.insert(vcpu, times()?);
            }
        }
        match (seen_all, seen_switches) {
            (true, true) => Ok(stat),
            (false, _) => Err("line 'cpu'".to_owned()),
            (_, false) => Err("line 'ctxt'".to_owned()),
        }
    }

    /// Returns the times of a vCPU; zeros if it is offline.
    pub fn vcpu(&self, vcpu: PcpuId) -> [u64; 8] {
        self.vcpus.get(&vcpu.0).copied().unwrap_or_default()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const STAT: &str = "cpu  10 20 30 40 5 0 1 7 0 0\ncpu0 4 10 15 20 2 0 1 3 0 0\n\
                        cpu3 6 10 15 20 3 0 0 4 0 0\nintr 5 0 1\nctxt 900\nbtime 1\n";

    #[test]
    fn stat_lines_are_found_by_name() {
        let stat = Stat::parse(STAT).unwrap();
        assert_eq!(stat.all, [10, 20, 30, 40, 5, 0, 1, 7]);
        assert_eq!(stat.vcpu(PcpuId(3))[7], 4);
        assert_eq!(stat.vcpu(PcpuId(9)), [0; 8]);
        assert_eq!(stat.switches, 900);
    }

    #[test]
    fn missing_stat_lines_are_refused() {
        assert!(Stat::parse("ctxt 5\n").unwrap_err().contains("'cpu'"));
        assert!(Stat::parse("cpu 1 2\n").unwrap_err().contains("'ctxt'"));
        assert!(Stat::parse("cpu x\n").unwrap_err().contains("'x'"));
    }

    #[test]
    fn polling_and_halting_are_distinguished() {
        let root = tempfile::tempdir().unwrap();
        for (state, name, usage, time) in
            [("state0", "POLL\n", "3\n", "10\n"), ("state1", "haltpoll idle\n", "2\n", "1000\n")]
        {
            let folder = root.path().join("sys/devices/system/cpu/cpu0/cpuidle");
            let folder = folder.join(state);
            fs::create_dir_all(&folder).unwrap();
            for (file, text) in [("name", name), ("usage", usage), ("time", time)] {
                fs::write(folder.join(file), text).unwrap();
            }
        }
        let procfs = ProcFs::at(root.path());
        let idle = IdleStates::open(&procfs, PcpuId(0)).read().unwrap();
        assert_eq!((idle.time, idle.polled), (1_010_000, 10_000));
        assert_eq!((idle.polls, idle.halts), (3, 2));
        assert_eq!(IdleStates::open(&procfs, PcpuId(1)).read(), None);
    }
}
