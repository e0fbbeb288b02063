//! The programs of the set, with their requirements, commands and units of work.
//!
//! A program runs for a time, or for a count that is sized beforehand to take about that time.
//! Its work is its own printed figure.
//! Programs without one (pbzip2, make) count as the count over the wall time, which includes the start of the agent.
//! Wake-up-bound programs gain from fewer vCPUs and from vCPUs that stay awake; computing programs must not lose.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::guest::output::Work;
use crate::guest::paced::Structure;
use crate::guest::process::Finished;
use crate::guest::token::Means;
use crate::guest::{inputs, output};

/// Unknown name of a program.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "'{0}' is no program of the set; the programs are {known}",
    known = all().map(|program| program.name).collect::<Vec<_>>().join(", ")
)]
pub struct UnknownProgram(pub String);

/// Behaviour of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// One thread runs while the others wait for it: bound by wake-ups.
    WakeUp,
    /// Computes and blocks.
    Mixed,
    /// Computes on all vCPUs.
    Computing,
}

impl Kind {
    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::WakeUp => "wake-up",
            Kind::Mixed => "mixed",
            Kind::Computing => "computing",
        }
    }
}

/// Command and work of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// `perf bench sched pipe`: two processes or threads, and two pipes.
    Pipe {
        /// Threads instead of processes.
        threads: bool,
    },
    /// `perf bench sched messaging`: many senders and receivers, over sockets.
    Messaging {
        /// Threads and pipes instead of processes and sockets.
        threads: bool,
    },
    /// `hackbench`: the same, over sockets or pipes.
    Hackbench {
        /// Pipes instead of sockets.
        pipes: bool,
    },
    /// [`crate::guest::token`].
    Token(Means),
    /// `sysbench cpu`: a thread per vCPU that computes primes. In no set: the agent changes nothing for it.
    SysbenchCpu,
    /// `sysbench threads`: threads that lock and yield.
    SysbenchThreads,
    /// `sysbench mutex`: threads that contend for the same mutex all the time.
    SysbenchMutex {
        /// Number of threads.
        threads: u64,
    },
    /// `sysbench oltp_read_write` against MariaDB.
    Oltp {
        /// Number of clients.
        connections: u32,
    },
    /// `pbzip2` on generated text.
    Pbzip2,
    /// `dbench` in memory.
    Dbench,
    /// `stress-ng --futex`.
    StressFutex,
    /// [`crate::guest::paced`], on one vCPU.
    Paced(Structure),
    /// One instance of a stressor of `stress-ng`, on one vCPU.
    Stress {
        /// Name of the stressor.
        stressor: &'static str,
        /// Its settings.
        settings: &'static str,
    },
    /// `make -j` of a generated C program.
    Make,
    /// `tandem vm run`.
    Microvm {
        /// The guest's workload.
        workload: &'static str,
        /// The workload's settings, `key=value`.
        settings: &'static [&'static str],
    },
}

/// A program of the set.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Name in arguments and reports.
    pub name: &'static str,
    /// Behaviour.
    pub kind: Kind,
    /// Command and work.
    pub load: Load,
}

/// A requirement of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A command and its Debian package.
    Command(&'static str, &'static str),
    /// KVM.
    Kvm,
}

/// Parameters of a command.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// Run time, for programs that take a time.
    pub seconds: u32,
    /// Amount of work, for programs that take a count.
    pub count: u64,
    /// vCPUs of this machine.
    pub vcpus: usize,
    /// Folder of the inputs.
    pub folder: &'a str,
    /// Path of this program.
    pub tandem: &'a str,
}

/// Senders, and receivers, of a group in hackbench and `perf bench sched messaging`; their default.
const FELLOWS: u64 = 20;
const GROUPS: u64 = 4;

/// Minimum time of dbench, which counts nothing in one second.
const DBENCH_SECONDS: u32 = 2;

const fn program(name: &'static str, kind: Kind, load: Load) -> Program {
    Program { name, kind, load }
}

const fn oltp(name: &'static str, connections: u32) -> Program {
    program(name, Kind::Mixed, Load::Oltp { connections })
}

const fn microvm(
    name: &'static str,
    kind: Kind,
    workload: &'static str,
    settings: &'static [&'static str],
) -> Program {
    program(name, kind, Load::Microvm { workload, settings })
}

/// All programs, in the order in which they run.
pub const PROGRAMS: [Program; 25] = [
    program("sched-pipe", Kind::WakeUp, Load::Pipe { threads: false }),
    program("sched-pipe-threads", Kind::WakeUp, Load::Pipe { threads: true }),
    program("token-futex", Kind::WakeUp, Load::Token(Means::Futex)),
    program("token-condvar", Kind::WakeUp, Load::Token(Means::Condvar)),
    program("sysbench-mutex", Kind::WakeUp, Load::SysbenchMutex { threads: 2 }),
    program("sysbench-mutex-4", Kind::Mixed, Load::SysbenchMutex { threads: 4 }),
    program("sysbench-threads", Kind::Mixed, Load::SysbenchThreads),
    program("stress-futex", Kind::Mixed, Load::StressFutex),
    program("sched-messaging", Kind::Mixed, Load::Messaging { threads: false }),
    program("sched-messaging-threads", Kind::Mixed, Load::Messaging { threads: true }),
    program("hackbench-sockets", Kind::Mixed, Load::Hackbench { pipes: false }),
    program("hackbench-pipes", Kind::Mixed, Load::Hackbench { pipes: true }),
    oltp("oltp-1", 1),
    oltp("oltp-2", 2),
    oltp("oltp-4", 4),
    oltp("oltp-8", 8),
    oltp("oltp-16", 16),
    program("dbench", Kind::Computing, Load::Dbench),
    program("pbzip2", Kind::Computing, Load::Pbzip2),
    program("make", Kind::Computing, Load::Make),
    microvm("vm-burn", Kind::Computing, "burn", &[]),
    microvm("vm-mutex", Kind::Mixed, "mutex", &[]),
    microvm("vm-barrier", Kind::Mixed, "barrier", &[]),
    microvm("vm-forkjoin", Kind::Mixed, "forkjoin", &[]),
    microvm("vm-pipeline", Kind::Mixed, "pipeline", &[]),
];

const fn paced(name: &'static str, structure: Structure) -> Program {
    program(name, Kind::Mixed, Load::Paced(structure))
}

/// The programs for one vCPU, in the order in which they run.
pub const ONE_VCPU: [Program; 9] = [
    paced("timers", Structure::Timers),
    paced("timers-relative", Structure::TimersRelative),
    paced("event-loop", Structure::EventLoop),
    paced("requests-workers", Structure::RequestsWorkers),
    paced("requests-loop", Structure::RequestsLoop),
    paced("redis", Structure::Redis),
    paced("memcached", Structure::Memcached),
    program(
        "stress-timer",
        Kind::Mixed,
        Load::Stress { stressor: "timer", settings: "--timer 1 --timer-freq 2000" },
    ),
    program(
        "stress-nanosleep",
        Kind::Mixed,
        Load::Stress { stressor: "nanosleep", settings: "--nanosleep 1" },
    ),
];

/// The programs of both sets.
pub fn all() -> impl Iterator<Item = &'static Program> {
    PROGRAMS.iter().chain(&ONE_VCPU)
}

impl Load {
    /// Returns whether it is for one vCPU.
    pub fn is_for_one_vcpu(self) -> bool {
        matches!(self, Load::Paced(_) | Load::Stress { .. })
    }

    /// Describes its work and the unit of work.
    pub fn what(self) -> String {
        let many = format!("{GROUPS} groups of {FELLOWS} senders and {FELLOWS} receivers");
        match self {
            Load::Pipe { threads } => format!(
                "perf bench sched pipe: two {} and two pipes; round trips",
                if threads { "threads" } else { "processes" }
            ),
            Load::Messaging { threads: false } => {
                format!("perf bench sched messaging: {many}, processes and sockets; messages")
            }
            Load::Messaging { threads: true } => {
                format!("perf bench sched messaging: {many}, threads and pipes; messages")
            }
            Load::Hackbench { pipes } => format!(
                "hackbench: {many}, processes and {}; messages",
                if pipes { "pipes" } else { "sockets" }
            ),
            Load::Token(means) => {
                format!("two threads hand on a token by {}; passes", means.name())
            }
            Load::SysbenchCpu => "sysbench cpu: a thread per vCPU; events".to_owned(),
            Load::SysbenchThreads => {
                "sysbench threads: 4 threads lock one of 8 mutexes and yield; events".to_owned()
            }
            Load::SysbenchMutex { threads } => {
                format!("sysbench mutex: {threads} threads lock the same mutex without end; locks")
            }
            Load::Oltp { connections } => format!(
                "sysbench OLTP read/write against MariaDB, {connections} connection{}; transactions",
                if connections == 1 { "" } else { "s" }
            ),
            Load::Pbzip2 => "pbzip2 of generated text, a thread per vCPU; megabytes".to_owned(),
            Load::Dbench => "dbench in memory, a client per vCPU; megabytes".to_owned(),
            Load::StressFutex => {
                "stress-ng futex, an instance per vCPU; bogo operations".to_owned()
            }
            Load::Paced(structure) => structure.what().to_owned(),
            Load::Stress { stressor, .. } => {
                format!("stress-ng {stressor}, an instance; bogo operations")
            }
            Load::Make => "make -j of a generated C program, a job per vCPU; files".to_owned(),
            Load::Microvm { workload, .. } => {
                format!("tandem vm run: a VM of 2 vCPUs, workload {workload}; its items")
            }
        }
    }

    /// Returns the unit of work, for `… per second`.
    pub fn unit(self) -> &'static str {
        match self {
            Load::Pipe { .. } => "round trips",
            Load::Messaging { .. } | Load::Hackbench { .. } => "messages",
            Load::Token(_) => "passes",
            Load::SysbenchCpu | Load::SysbenchThreads => "events",
            Load::SysbenchMutex { .. } => "locks",
            Load::Oltp { .. } => "transactions",
            Load::Pbzip2 | Load::Dbench => "MB",
            Load::StressFutex | Load::Stress { .. } => "bogo ops",
            Load::Paced(_) => "pieces",
            Load::Make => "files",
            Load::Microvm { .. } => "items",
        }
    }

    /// Returns its requirements.
    pub fn needs(self) -> &'static [Need] {
        match self {
            Load::Pipe { .. } | Load::Messaging { .. } => &[Need::Command("perf", "linux-perf")],
            Load::Hackbench { .. } => &[Need::Command("hackbench", "rt-tests")],
            Load::Token(_) => &[],
            Load::SysbenchCpu | Load::SysbenchThreads | Load::SysbenchMutex { .. } => {
                &[Need::Command("sysbench", "sysbench")]
            }
            Load::Oltp { .. } => &[
                Need::Command("sysbench", "sysbench"),
                Need::Command("mariadbd", "mariadb-server-core"),
                Need::Command("mariadb-install-db", "mariadb-server-core"),
                Need::Command("my_print_defaults", "mariadb-client-core"),
            ],
            Load::Pbzip2 => &[Need::Command("pbzip2", "pbzip2")],
            Load::Dbench => &[Need::Command("dbench", "dbench")],
            Load::StressFutex | Load::Stress { .. } => &[Need::Command("stress-ng", "stress-ng")],
            Load::Paced(Structure::Redis) => &[Need::Command("redis-server", "redis-server")],
            Load::Paced(Structure::Memcached) => &[Need::Command("memcached", "memcached")],
            Load::Paced(_) => &[],
            Load::Make => &[Need::Command("make", "make"), Need::Command("cc", "gcc")],
            Load::Microvm { .. } => &[Need::Kvm],
        }
    }

    /// Returns the minimum and maximum count, for programs that take one.
    pub fn counts(self) -> Option<(u64, u64)> {
        const ANY: u64 = 1_000_000_000;
        match self {
            Load::Pipe { .. } => Some((2_000, ANY)),
            Load::Messaging { .. } | Load::Hackbench { .. } => Some((20, ANY)),
            Load::SysbenchMutex { .. } => Some((50_000, ANY)),
            Load::Pbzip2 => Some((10, 2_000)),
            Load::Make => Some((4, inputs::FILES)),
            _ => None,
        }
    }

    /// Converts a count to units of work.
    fn units(self, count: u64) -> f64 {
        let units = match self {
            Load::Messaging { .. } | Load::Hackbench { .. } => {
                // Every sender writes to every receiver of its group.
                count * GROUPS * FELLOWS * FELLOWS
            }
            Load::SysbenchMutex { threads } => count * threads,
            _ => count,
        };
        units as f64
    }

    /// Returns the command; for OLTP, [`crate::guest::database`] makes it.
    pub fn command(self, setting: &Setting) -> Vec<String> {
        let Setting { seconds, count, vcpus, folder, tandem } = *setting;
        let line = match self {
            Load::Pipe { threads } => {
                let threads = if threads { " -T" } else { "" };
                format!("perf bench sched pipe -l {count}{threads}")
            }
            Load::Messaging { threads } => {
                let threads = if threads { " -t -p" } else { "" };
                format!("perf bench sched messaging -g {GROUPS} -l {count}{threads}")
            }
            Load::Hackbench { pipes } => {
                let pipes = if pipes { " -p" } else { "" };
                format!("hackbench -g {GROUPS} -l {count}{pipes}")
            }
            Load::Token(means) => {
                format!("bench guest-token --by {} --seconds {seconds}", means.name())
            }
            Load::SysbenchCpu => {
                format!("sysbench cpu --threads={vcpus} --time={seconds} run")
            }
            Load::SysbenchThreads => format!("sysbench threads --threads=4 --time={seconds} run"),
            Load::SysbenchMutex { threads } => format!(
                "sysbench mutex --threads={threads} --mutex-num=1 --mutex-loops=0 \
                 --mutex-locks={count} --time=0 run"
            ),
            Load::Oltp { .. } => String::new(),
            Load::Pbzip2 => format!("pbzip2 -k -c -f -p{vcpus}"),
            Load::Dbench => format!("dbench -t {} -D", seconds.max(DBENCH_SECONDS)),
            Load::StressFutex => {
                format!("stress-ng --futex {vcpus} --timeout {seconds} --metrics --no-rand-seed")
            }
            Load::Paced(structure) => {
                format!("bench guest-paced {} {seconds}", structure.name())
            }
            Load::Stress { settings, .. } => {
                format!("stress-ng {settings} --timeout {seconds} --metrics --no-rand-seed")
            }
            Load::Make => format!("make -s -B -j{vcpus} COUNT={count} -C"),
            Load::Microvm { workload, .. } => {
                format!("vm run --json --vcpus 2 --workload {workload} --seconds {seconds}")
            }
        };
        let mut argv: Vec<String> = line.split_ascii_whitespace().map(str::to_owned).collect();
        match self {
            Load::Token(_) | Load::Paced(_) => argv.insert(0, tandem.to_owned()),
            Load::Microvm { settings, .. } => {
                argv.insert(0, tandem.to_owned());
                for setting in settings {
                    argv.extend(["--set".to_owned(), (*setting).to_owned()]);
                }
            }
            // Discard the compressed data, which the harness would keep as output.
            Load::Pbzip2 => {
                argv = ["sh", "-c", "exec \"$@\" >/dev/null", "sh"]
                    .map(str::to_owned)
                    .into_iter()
                    .chain(argv)
                    .collect();
                argv.push(format!("{folder}/text-{count}"));
            }
            Load::Dbench => {
                argv.push(format!("{folder}/dbench"));
                argv.push(vcpus.to_string());
            }
            Load::Make => argv.push(format!("{folder}/program")),
            _ => {}
        }
        argv
    }

    /// Returns the work of a run; `None` if its output has no figure.
    pub fn work(self, run: &Finished, setting: &Setting) -> Option<Work> {
        let (text, units) = (&run.text, self.units(setting.count));
        match self {
            Load::Pipe { .. } | Load::Messaging { .. } => output::perf(text, units),
            Load::Hackbench { .. } => output::hackbench(text, units),
            Load::Token(_) => output::token(text),
            Load::SysbenchCpu | Load::SysbenchThreads => output::sysbench_events(text),
            Load::SysbenchMutex { .. } => output::sysbench_mutex(text, units),
            Load::Oltp { .. } => output::sysbench_transactions(text),
            Load::Dbench => output::dbench(text, f64::from(setting.seconds.max(DBENCH_SECONDS))),
            Load::StressFutex => output::stress_ng(text, "futex"),
            Load::Stress { stressor, .. } => output::stress_ng(text, stressor),
            Load::Paced(_) => output::paced(text),
            Load::Pbzip2 | Load::Make => Work::new(units, run.wall.as_secs_f64()),
            Load::Microvm { .. } => output::microvm(text),
        }
    }
}

/// Returns the programs of these names, in the order of the sets; without names, those for one vCPU or the others.
pub fn chosen(names: &[String], one_vcpu: bool) -> Result<Vec<Program>, UnknownProgram> {
    for name in names {
        if !all().any(|program| program.name == name) {
            return Err(UnknownProgram(name.clone()));
        }
    }
    let wanted = |program: &&Program| {
        if names.is_empty() {
            program.load.is_for_one_vcpu() == one_vcpu
        } else {
            names.iter().any(|name| program.name == name)
        }
    };
    Ok(all().filter(wanted).copied().collect())
}

/// Returns the reason why a program cannot run, if a requirement is missing.
pub fn missing(load: Load, present: impl Fn(Need) -> Result<(), String>) -> Option<String> {
    let mut reasons: Vec<String> =
        load.needs().iter().filter_map(|&need| present(need).err()).collect();
    reasons.dedup();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// Checks a requirement on this machine; the error is the reason.
pub fn present(need: Need) -> Result<(), String> {
    match need {
        Need::Command(command, package) => {
            if is_command(command) {
                Ok(())
            } else {
                Err(format!("no {command}: apt-get install {package}"))
            }
        }
        Need::Kvm => match std::fs::File::open("/dev/kvm") {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("/dev/kvm cannot be used: {error}")),
        },
    }
}

/// Returns whether the command is in PATH, `/usr/sbin` or `/sbin`; servers may be outside the PATH of ordinary users.
fn is_command(command: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin"].map(std::path::PathBuf::from);
    std::env::split_paths(&path).chain(more).any(|folder| folder.join(command).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTING: Setting =
        Setting { seconds: 3, count: 100, vcpus: 2, folder: "/tmp/f", tandem: "tandem" };

    fn finished(text: &str, wall: u64) -> Finished {
        Finished {
            status: std::process::ExitStatus::default(),
            text: text.to_owned(),
            wall: std::time::Duration::from_secs(wall),
            cpu: std::time::Duration::from_secs(1),
        }
    }

    #[test]
    fn commands_name_every_choice() {
        let line = |load: Load| load.command(&SETTING).join(" ");
        for (load, wanted) in [
            (Load::Pipe { threads: true }, "perf bench sched pipe -l 100 -T"),
            (Load::Hackbench { pipes: true }, "hackbench -g 4 -l 100 -p"),
            (Load::Token(Means::Condvar), "tandem bench guest-token --by condvar --seconds 3"),
            (Load::Paced(Structure::EventLoop), "tandem bench guest-paced event-loop 3"),
            (Load::Dbench, "dbench -t 3 -D /tmp/f/dbench 2"),
            (Load::Make, "make -s -B -j2 COUNT=100 -C /tmp/f/program"),
            (Load::Pbzip2, "sh -c exec \"$@\" >/dev/null sh pbzip2 -k -c -f -p2 /tmp/f/text-100"),
            (
                Load::Microvm { workload: "mutex", settings: &["a=1"] },
                "tandem vm run --json --vcpus 2 --workload mutex --seconds 3 --set a=1",
            ),
        ] {
            assert_eq!(line(load), wanted);
        }
    }

    #[test]
    fn counts_convert_to_units_of_work() {
        let hackbench = Load::Hackbench { pipes: false };
        let work = hackbench.work(&finished("\nTime: 2.0\n", 9), &SETTING);
        assert_eq!(work.unwrap().rate(), 100.0 * 4.0 * 400.0 / 2.0);
        let make = Load::Make.work(&finished("", 5), &SETTING).unwrap();
        assert_eq!(make.rate(), 20.0);
        assert_eq!(Load::StressFutex.work(&finished("", 5), &SETTING), None);
    }

    #[test]
    fn names_are_distinct_and_listed_on_error() {
        let names: std::collections::BTreeSet<_> = all().map(|p| p.name).collect();
        assert_eq!(names.len(), PROGRAMS.len() + ONE_VCPU.len());
        let one = chosen(&["make".to_owned()], false).unwrap();
        assert_eq!(one.len(), 1);
        let timers = chosen(&["timers".to_owned()], false).unwrap();
        assert!(timers[0].load.is_for_one_vcpu());
        assert_eq!(chosen(&[], false).unwrap().len(), PROGRAMS.len());
        assert_eq!(chosen(&[], true).unwrap().len(), ONE_VCPU.len());
        let error = chosen(&["x".to_owned()], false).unwrap_err().to_string();
        assert!(error.contains("oltp-16, dbench"), "{error}");
    }

    #[test]
    fn missing_packages_are_named_once() {
        let nothing = |need: Need| match need {
            Need::Command(_, package) => Err(format!("install {package}")),
            Need::Kvm => Err("no KVM".to_owned()),
        };
        let reason = missing(Load::Oltp { connections: 1 }, nothing).unwrap();
        assert_eq!(
            reason,
            "install sysbench; install mariadb-server-core; install mariadb-client-core"
        );
        assert_eq!(missing(Load::Token(Means::Futex), nothing), None);
        let said = present(Need::Command("no-such-command", "some-package")).unwrap_err();
        assert_eq!(said, "no no-such-command: apt-get install some-package");
        assert_eq!(present(Need::Command("sh", "dash")), Ok(()));
    }
}
