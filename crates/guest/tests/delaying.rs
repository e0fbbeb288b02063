//! Sets timer slack and scheduling of real threads, and reverts them on exit and after kill -9.
//! This includes threads created after the agent's last listing.
//! The tests need root and the cpuset controller, and are skipped without.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tandem_guest::actuator::{Actuator, restore_all, threads_of};
use tandem_guest::cpusets::Cpusets;
use tandem_guest::delaying::{Delaying, Refused, set_timer_slack, timer_slack};
use tandem_linux::ProcFs;
use tandem_linux::restore::RestoreReport;
use tandem_linux::sched_attr::{FairScheduling, fair_scheduling};
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_model::Nanos;
use tandem_policy::gleaner::delay::Held;

const HELD: Held = Held { slack: Nanos(500_000), batch: true };

/// A thread's timer slack and scheduling; `None` if it has exited.
type Has = (Option<Nanos>, Option<FairScheduling>);

fn has(tid: Tid) -> Has {
    let scheduling = fair_scheduling(tid).ok().flatten();
    (timer_slack(&ProcFs::host(), tid).ok(), scheduling)
}

/// Delays threads, with its own journal.
struct Agent {
    actuator: Actuator,
    delaying: Delaying,
    /// State directory that is removed with the agent.
    _state: Option<tempfile::TempDir>,
}

impl Agent {
    fn new(procfs: &ProcFs) -> Agent {
        let state = tempfile::tempdir().unwrap();
        let agent = Agent::in_folder(procfs, state.path());
        Agent { _state: Some(state), ..agent }
    }

    fn in_folder(procfs: &ProcFs, state: &Path) -> Agent {
        let (actuator, _) = Actuator::open(procfs, state).unwrap();
        Agent { actuator, delaying: Delaying::new(procfs), _state: None }
    }

    /// Sets as the agent does; `list` returns the current threads.
    fn try_set(
        &mut self,
        threads: &[Tid],
        held: Held,
        list: &mut dyn FnMut(&Cpusets) -> Vec<Tid>,
    ) -> Result<(), Refused> {
        self.delaying.set(&mut self.actuator, threads, held, list)
    }

    /// Sets without new threads meanwhile.
    fn set(&mut self, threads: &[Tid], held: Held) {
        let mut list = |_: &Cpusets| threads.to_vec();
        self.try_set(threads, held, &mut list).unwrap();
    }

    /// Reverts over several periods until finished; all periods but the first list the threads again.
    fn revert(&mut self, threads: &[Tid], list: &mut dyn FnMut(&Cpusets) -> Vec<Tid>) {
        let mut periods = 0;
        while periods == 0 || self.delaying.is_unfinished() {
            self.try_set(threads, Held::default(), list).unwrap();
            periods += 1;
            assert!(periods < 20);
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(periods > 1, "a pending fork needs another listing");
    }

    /// Reverts all changes.
    fn restore(&mut self) -> RestoreReport {
        let report = self.actuator.restore();
        assert!(report.is_complete(), "{report}");
        report
    }
}

fn kill(pid: Pid) {
    let number = rustix::process::Pid::from_raw(i32::try_from(pid.0).unwrap()).unwrap();
    let _ = rustix::process::kill_process(number, rustix::process::Signal::KILL);
}

/// A process of this test program in another role.
struct Role(Child);

impl Role {
    fn start(role: &str, environment: &[(&str, &str)]) -> Role {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", role, "--ignored", "--nocapture"]);
        command.envs(environment.iter().copied());
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Role(command.spawn().unwrap())
    }

    fn pid(&self) -> Pid {
        Pid(self.0.id())
    }

    /// Waits until it prints `word`.
    fn wait_for(&mut self, word: &str) {
        let lines = BufReader::new(self.0.stdout.as_mut().unwrap()).lines();
        let found = lines.map_while(Result::ok).any(|line| line.contains(word));
        assert!(found, "it ended without '{word}'");
    }

    fn threads(&self) -> Vec<Tid> {
        threads_of(&ProcFs::host(), self.pid())
    }

    fn have(&self) -> Vec<Has> {
        self.threads().iter().map(|&tid| has(tid)).collect()
    }

    /// Makes the workload create a thread or process.
    fn make(&mut self, what: &str) {
        writeln!(self.0.stdin.as_mut().unwrap(), "{what}").unwrap();
        self.wait_for(&format!("made {what}"));
    }

    /// Returns its threads and those of its descendants.
    fn family(&self) -> Vec<Tid> {
        let cpusets = Cpusets::open(&ProcFs::host()).unwrap();
        let pids = cpusets.family(self.pid()).unwrap();
        let threads = pids.into_iter().map(|pid| threads_of(&ProcFs::host(), pid));
        threads.flatten().collect()
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "a role of the tests: makes a thread for each line that it reads"]
fn workload() {
    println!("\nworks");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let sleep = |command: &str| Command::new("sh").args(["-c", command]).spawn().unwrap();
        match line.as_str() {
            "child" => drop(sleep("sleep 60; true")),
            "orphan" => drop(sleep("sleep 61 & true").wait()),
            "forks" => {
                std::thread::spawn(move || {
                    loop {
                        let _ = sleep("sleep 0.02 & sleep 0.01; true").wait();
                    }
                });
            }
            _ => drop(std::thread::spawn(|| {
                std::thread::sleep(Duration::from_secs(60));
            })),
        }
        println!("\nmade {line}");
    }
}

#[test]
#[ignore = "a role of the tests: an agent that is killed"]
fn holder() {
    let (Ok(state), Ok(pid)) = (std::env::var("STATE"), std::env::var("WORKLOAD")) else {
        return;
    };
    let procfs = ProcFs::host();
    let threads = threads_of(&procfs, Pid(pid.parse().unwrap()));
    let mut agent = Agent::in_folder(&procfs, Path::new(&state));
    agent.set(&threads, HELD);
    println!("\nholds");
    std::thread::sleep(Duration::from_secs(60));
}

fn can_run() -> bool {
    let reason = match Cpusets::open(&ProcFs::host()) {
        Err(error) => error.to_string(),
        Ok(_) if !rustix::process::geteuid().is_root() => "it needs root".to_owned(),
        Ok(_) => return true,
    };
    println!("skipped: the timer slack of other processes: {reason}");
    false
}

fn workload_of_two_threads() -> Role {
    let mut workload = Role::start("workload", &[]);
    workload.wait_for("works");
    workload
}

/// Returns a workload of two threads, the settings of its first one, and an agent; `None` if the test cannot run.
fn ready() -> Option<(ProcFs, Role, Has, Agent)> {
    can_run().then(|| {
        let procfs = ProcFs::host();
        let workload = workload_of_two_threads();
        let before = workload.have()[0];
        let agent = Agent::new(&procfs);
        (procfs, workload, before, agent)
    })
}

#[test]
fn restore_keeps_foreign_slack() {
    if !can_run() {
        return;
    }
    let procfs = ProcFs::host();
    let workload = workload_of_two_threads();
    let before = workload.have();
    let mut agent = Agent::new(&procfs);
    let threads = workload.threads();
    for held in [HELD, Held::default(), HELD] {
        agent.set(&threads, held);
        let is_held = workload.have().iter().all(|(slack, scheduling)| {
            *slack == Some(HELD.slack) && scheduling.is_some_and(|now| now.batch)
        });
        assert_eq!(is_held, held.is_any(), "{:?}", workload.have());
    }
    set_timer_slack(&procfs, threads[0], Nanos(123_456)).unwrap();
    let report = agent.restore();
    assert!(report.left.len() == 1, "{report}");
    let mut wanted = before;
    wanted[0].0 = Some(Nanos(123_456));
    assert_eq!(workload.have(), wanted);
}

#[test]
fn kill_9_reverts_all_threads() {
    if !can_run() {
        return;
    }
    let procfs = ProcFs::host();
    let mut workload = workload_of_two_threads();
    let before = workload.have();
    let state = tempfile::tempdir().unwrap();
    let pid = workload.pid().to_string();
    let environment = [("STATE", state.path().to_str().unwrap()), ("WORKLOAD", &pid)];
    let mut holder = Role::start("holder", &environment);
    holder.wait_for("holds");
    // Children of delayed threads, unseen by the agent.
    workload.make("one");
    workload.make("child");
    let family = workload.family();
    holder.0.kill().unwrap();
    holder.0.wait().unwrap();
    let held = workload.have();
    assert_eq!(held.len(), before.len() + 1);
    assert!(held.iter().all(|(slack, _)| *slack == Some(HELD.slack)), "{held:?}");
    let report = restore_all(&procfs, state.path()).unwrap();
    assert!(report.is_complete(), "{report}");
    assert!(workload.have().iter().all(|now| *now == before[0]), "{:?}", workload.have());
    assert!(family.len() > held.len(), "{family:?}");
    assert!(family.iter().all(|tid| has(*tid) == before[0]));
    end_family(&workload);
}

/// Kills a process and its descendants, which would outlive it.
fn end_family(workload: &Role) {
    let cpusets = Cpusets::open(&ProcFs::host()).unwrap();
    for pid in cpusets.family(workload.pid()).unwrap() {
        kill(pid);
    }
}

#[test]
fn threads_created_during_revert_are_reverted() {
    let Some((_, mut workload, before, mut agent)) = ready() else { return };
    let threads = workload.threads();
    agent.set(&threads, HELD);
    // Created after the listing of threads.
    workload.make("child");
    workload.make("one");
    let mut list = |_: &Cpusets| workload.family();
    agent.revert(&threads, &mut list);
    let now: Vec<Has> = workload.family().into_iter().map(has).collect();
    assert!(now.len() > threads.len() + 1, "{now:?}");
    assert!(now.iter().all(|now| *now == before), "{now:?}");
    end_family(&workload);
}

#[test]
fn constantly_forking_workload_is_reverted() {
    let Some((_, mut workload, before, mut agent)) = ready() else { return };
    workload.make("forks");
    for held in [HELD, Held::default(), HELD, Held::default(), HELD] {
        let threads = workload.family();
        std::thread::sleep(Duration::from_millis(30));
        let mut list = |_: &Cpusets| workload.family();
        agent.try_set(&threads, held, &mut list).unwrap();
    }
    let mut list = |_: &Cpusets| workload.family();
    let outcome = agent.delaying.revert(&mut agent.actuator, &mut list);
    outcome.unwrap();
    agent.restore();
    for _ in 0..10 {
        let now: Vec<Has> = workload.family().into_iter().map(has).collect();
        let is_own = |now: &Has| {
            now.0.is_none_or(|slack| Some(slack) == before.0)
                && now.1.is_none_or(|now| Some(now) == before.1)
        };
        assert!(now.iter().all(is_own), "{now:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    end_family(&workload);
}

#[test]
fn orphan_is_found_in_workload_cgroup() {
    let Some((procfs, mut workload, before, mut agent)) = ready() else { return };
    let root = ThreadRef::of_process(&procfs, workload.pid()).unwrap();
    let cgroup = agent.actuator.cpusets().cgroup_of(&root).unwrap();
    agent.actuator.workload_is_in(&cgroup);
    let threads = workload.threads();
    // Other tests' workloads share this cgroup, so use a slack that they do not have.
    let held = Held { slack: Nanos(333_000), batch: false };
    agent.set(&threads, held);
    workload.make("orphan");
    let is_orphan = |pid: &Pid| {
        let folder = procfs.process(*pid);
        let command = std::fs::read_to_string(folder.join("cmdline")).unwrap_or_default();
        command == "sleep\u{0}61\u{0}"
    };
    // Wait until the shell's child has called execve.
    let found = (0..100).map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        let here = agent.actuator.cpusets().processes_within(&cgroup).unwrap();
        let orphans = here.into_iter().filter(is_orphan);
        orphans.collect::<Vec<Pid>>()
    });
    let orphans = found.into_iter().find(|found| !found.is_empty()).unwrap();
    assert!(orphans.iter().all(|pid| has(Tid(pid.0)) != before));
    agent.set(&threads, Held::default());
    agent.restore();
    let now: Vec<Has> = orphans.iter().map(|pid| has(Tid(pid.0))).collect();
    for pid in orphans {
        kill(pid);
    }
    assert!(now.iter().all(|now| *now == before), "{now:?}");
}

#[test]
fn later_choice_of_application_is_kept() {
    if !can_run() {
        return;
    }
    let procfs = ProcFs::host();
    let workload = workload_of_two_threads();
    let threads = workload.threads();
    for chosen in [Nanos(1), Nanos(5_000_000)] {
        let mut agent = Agent::new(&procfs);
        let slack = |tid: Tid| timer_slack(&procfs, tid).unwrap();
        agent.set(&threads, HELD);
        set_timer_slack(&procfs, threads[0], chosen).unwrap();
        agent.set(&threads, Held::default());
        assert_eq!(slack(threads[0]), chosen, "not delayed");
        agent.set(&threads, HELD);
        let held = chosen.max(HELD.slack);
        assert_eq!(slack(threads[0]), held, "the slack never decreases");
        agent.set(&threads, Held::default());
        assert_eq!(slack(threads[0]), chosen);
        agent.restore();
        assert_eq!(slack(threads[0]), chosen);
    }
}

#[test]
fn child_reverts_to_parents_original() {
    if !can_run() {
        return;
    }
    let procfs = ProcFs::host();
    let first = workload_of_two_threads();
    let mut other = workload_of_two_threads();
    let own = Nanos(70_000);
    for tid in other.threads() {
        set_timer_slack(&procfs, tid, own).unwrap();
    }
    let mut agent = Agent::new(&procfs);
    let mut threads = first.threads();
    threads.extend(other.threads());
    agent.set(&threads, HELD);
    other.make("child");
    let mut all = first.threads();
    all.extend(other.family());
    agent.set(&all, HELD);
    let mut list = |_: &Cpusets| [first.family(), other.family()].concat();
    agent.revert(&all, &mut list);
    let family = other.family();
    assert!(family.len() > other.threads().len());
    let slacks: Vec<Option<Nanos>> = family.iter().map(|tid| has(*tid).0).collect();
    assert!(slacks.iter().all(|slack| *slack == Some(own)), "{slacks:?}");
    end_family(&other);
}

/// A fake VM of files with threads of this test: scheduling is real, and timer slacks are plain files.
fn vm_of_files(threads: &[Tid]) -> (tempfile::TempDir, ProcFs) {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("proc/mounts", "none /cg cgroup2 rw 0 0\n");
    write("cg/cgroup.controllers", "cpuset cpu\n");
    write("cg/cgroup.subtree_control", "cpuset\n");
    let pid = std::process::id();
    for tid in threads {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).unwrap();
        write(&format!("proc/{pid}/task/{tid}/stat"), &stat);
        write(&format!("proc/{tid}/stat"), &stat);
        write(&format!("proc/{tid}/status"), &format!("Tgid:\t{pid}\n"));
        write(&format!("proc/{tid}/timerslack_ns"), "50000\n");
    }
    let procfs = ProcFs::at(root.path());
    (root, procfs)
}

#[test]
fn unreadable_thread_is_retried_alone() {
    let (send, receive) = std::sync::mpsc::channel();
    for _ in 0..3 {
        let send = send.clone();
        std::thread::spawn(move || {
            send.send(Tid(rustix::thread::gettid().as_raw_nonzero().get() as u32)).unwrap();
            std::thread::sleep(Duration::from_secs(60));
        });
    }
    let threads: Vec<Tid> = receive.iter().take(3).collect();
    let (root, procfs) = vm_of_files(&threads);
    let file = |tid: Tid| root.path().join(format!("proc/{tid}/timerslack_ns"));
    let slack = |tid: Tid| std::fs::read_to_string(file(tid)).unwrap();
    let mut agent = Agent::new(&procfs);
    let held = Held { batch: false, ..HELD };
    // Make the file unreadable.
    std::fs::remove_file(file(threads[0])).unwrap();
    std::fs::create_dir(file(threads[0])).unwrap();
    let mut list = |_: &Cpusets| threads.clone();
    let refused = agent.try_set(&threads, held, &mut list).unwrap_err();
    assert_eq!((refused.failed, refused.of), (1, 3));
    assert!(!refused.is_most());
    let text = refused.to_string();
    assert!(text.contains("cannot read the timer slack"), "{text}");
    assert_eq!([slack(threads[1]), slack(threads[2])], ["500000", "500000"]);
    // Make it readable again.
    std::fs::remove_dir(file(threads[0])).unwrap();
    std::fs::write(file(threads[0]), "50000\n").unwrap();
    agent.set(&threads, held);
    assert_eq!(slack(threads[0]), "500000");
    // A failed revert is retried, too.
    std::fs::remove_file(file(threads[0])).unwrap();
    std::fs::create_dir(file(threads[0])).unwrap();
    agent.try_set(&threads, Held::default(), &mut list).unwrap_err();
    assert_eq!([slack(threads[1]), slack(threads[2])], ["50000", "50000"]);
    assert!(agent.delaying.is_unfinished());
    std::fs::remove_dir(file(threads[0])).unwrap();
    std::fs::write(file(threads[0]), "500000\n").unwrap();
    agent.set(&threads, Held::default());
    assert_eq!(slack(threads[0]), "50000");
}

#[test]
fn process_with_reused_pid_is_left_alone() {
    let me = Tid(std::process::id());
    let (root, procfs) = vm_of_files(&[me]);
    let file = root.path().join(format!("proc/{me}/timerslack_ns"));
    let mut agent = Agent::new(&procfs);
    let held = Held { batch: false, ..HELD };
    agent.set(&[me], held);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "500000");
    // Simulate that a later process with the same slack has reused its PID.
    let stat = root.path().join(format!("proc/{me}/stat"));
    let text = std::fs::read_to_string(&stat).unwrap();
    let (name, rest) = text.rsplit_once(") ").unwrap();
    let mut fields: Vec<String> = rest.split(' ').map(str::to_owned).collect();
    let start: u64 = fields[19].parse().unwrap();
    fields[19] = (start + 1).to_string();
    let later = format!("{name}) {}", fields.join(" "));
    for path in [stat, root.path().join(format!("proc/{me}/task/{me}/stat"))] {
        std::fs::write(path, &later).unwrap();
    }
    let report = agent.restore();
    assert!(report.put_back == 0, "{report}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "500000");
}
