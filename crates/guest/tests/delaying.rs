//! Timer slack and scheduling of real threads: set, and put back on an orderly end and after kill -9, threads included that were
//! born after the agent last looked. Needs root and the cpuset controller, else each test says so and is skipped.

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

/// A thread's timer slack and scheduling; `None`: it ended.
type Has = (Option<Nanos>, Option<FairScheduling>);

fn has(tid: Tid) -> Has {
    let scheduling = fair_scheduling(tid).ok().flatten();
    (timer_slack(&ProcFs::host(), tid).ok(), scheduling)
}

/// What holds threads back, with a journal of its own.
struct Agent {
    actuator: Actuator,
    delaying: Delaying,
    /// Where the journal is, if it goes with the agent.
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

    /// Sets as the agent does; `list` tells the threads that there are meanwhile.
    fn try_set(
        &mut self,
        threads: &[Tid],
        held: Held,
        list: &mut dyn FnMut(&Cpusets) -> Vec<Tid>,
    ) -> Result<(), Refused> {
        self.delaying.set(&mut self.actuator, threads, held, list)
    }

    /// Sets, where no threads are born meanwhile.
    fn set(&mut self, threads: &[Tid], held: Held) {
        let mut list = |_: &Cpusets| threads.to_vec();
        self.try_set(threads, held, &mut list).unwrap();
    }

    /// Gives back, period after period until it is finished, with threads listed anew but the first time.
    fn give_back(&mut self, threads: &[Tid], list: &mut dyn FnMut(&Cpusets) -> Vec<Tid>) {
        let mut periods = 0;
        while periods == 0 || self.delaying.is_unfinished() {
            self.try_set(threads, Held::default(), list).unwrap();
            periods += 1;
            assert!(periods < 20);
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(periods > 1, "a fork that was under way is looked for");
    }

    /// Puts everything back.
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

/// This test program, as another role.
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

    /// Until it prints this.
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

    /// Lets the workload make something.
    fn make(&mut self, what: &str) {
        writeln!(self.0.stdin.as_mut().unwrap(), "{what}").unwrap();
        self.wait_for(&format!("made {what}"));
    }

    /// Its threads, and those of all that descends from it.
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

/// A workload of two threads, what its first one has, and an agent; none where this cannot run.
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
fn what_was_set_is_put_back_and_what_somebody_else_set_stays() {
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
fn after_kill_9_all_threads_have_theirs_again() {
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
    // Born to threads that are held back, and seen by nobody.
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

/// Children do not end with their parent.
fn end_family(workload: &Role) {
    let cpusets = Cpusets::open(&ProcFs::host()).unwrap();
    for pid in cpusets.family(workload.pid()).unwrap() {
        kill(pid);
    }
}

#[test]
fn threads_that_are_born_while_others_are_given_back_have_theirs_too() {
    let Some((_, mut workload, before, mut agent)) = ready() else { return };
    let threads = workload.threads();
    agent.set(&threads, HELD);
    // After the threads were listed.
    workload.make("child");
    workload.make("one");
    let mut list = |_: &Cpusets| workload.family();
    agent.give_back(&threads, &mut list);
    let now: Vec<Has> = workload.family().into_iter().map(has).collect();
    assert!(now.len() > threads.len() + 1, "{now:?}");
    assert!(now.iter().all(|now| *now == before), "{now:?}");
    end_family(&workload);
}

#[test]
fn a_workload_that_forks_all_the_time_has_its_own_in_the_end() {
    let Some((_, mut workload, before, mut agent)) = ready() else { return };
    workload.make("forks");
    for held in [HELD, Held::default(), HELD, Held::default(), HELD] {
        let threads = workload.family();
        std::thread::sleep(Duration::from_millis(30));
        let mut list = |_: &Cpusets| workload.family();
        agent.try_set(&threads, held, &mut list).unwrap();
    }
    let mut list = |_: &Cpusets| workload.family();
    let outcome = agent.delaying.give_back(&mut agent.actuator, &mut list);
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
fn a_process_whose_parent_ended_is_found_in_the_workloads_cgroup() {
    let Some((procfs, mut workload, before, mut agent)) = ready() else { return };
    let root = ThreadRef::of_process(&procfs, workload.pid()).unwrap();
    let cgroup = agent.actuator.cpusets().cgroup_of(&root).unwrap();
    agent.actuator.workload_is_in(&cgroup);
    let threads = workload.threads();
    // The other tests' workloads are in this cgroup too: what they are given is not to be put back here.
    let held = Held { slack: Nanos(333_000), batch: false };
    agent.set(&threads, held);
    workload.make("orphan");
    let is_orphan = |pid: &Pid| {
        let folder = procfs.process(*pid);
        let command = std::fs::read_to_string(folder.join("cmdline")).unwrap_or_default();
        command == "sleep\u{0}61\u{0}"
    };
    // Until the shell's child has become it.
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
fn what_the_application_chose_later_is_kept() {
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
        assert_eq!(slack(threads[0]), chosen, "nothing is held back");
        agent.set(&threads, HELD);
        let held = chosen.max(HELD.slack);
        assert_eq!(slack(threads[0]), held, "nobody gets less than it had");
        agent.set(&threads, Held::default());
        assert_eq!(slack(threads[0]), chosen);
        agent.restore();
        assert_eq!(slack(threads[0]), chosen);
    }
}

#[test]
fn a_new_process_gets_back_what_its_parent_had() {
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
    agent.give_back(&all, &mut list);
    let family = other.family();
    assert!(family.len() > other.threads().len());
    let slacks: Vec<Option<Nanos>> = family.iter().map(|tid| has(*tid).0).collect();
    assert!(slacks.iter().all(|slack| *slack == Some(own)), "{slacks:?}");
    end_family(&other);
}

/// A VM of files, whose threads are this test's own: what is scheduled is real, and timer slacks are files.
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
fn one_thread_that_cannot_be_read_keeps_no_other_from_it_and_is_tried_again() {
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
    // As where nobody may read it.
    std::fs::remove_file(file(threads[0])).unwrap();
    std::fs::create_dir(file(threads[0])).unwrap();
    let mut list = |_: &Cpusets| threads.clone();
    let refused = agent.try_set(&threads, held, &mut list).unwrap_err();
    assert_eq!((refused.failed, refused.of), (1, 3));
    assert!(!refused.is_most());
    let text = refused.to_string();
    assert!(text.contains("cannot read the timer slack"), "{text}");
    assert_eq!([slack(threads[1]), slack(threads[2])], ["500000", "500000"]);
    // It can be read now.
    std::fs::remove_dir(file(threads[0])).unwrap();
    std::fs::write(file(threads[0]), "50000\n").unwrap();
    agent.set(&threads, held);
    assert_eq!(slack(threads[0]), "500000");
    // To give back is tried again too.
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
fn another_process_with_the_number_of_one_that_ended_is_left_alone() {
    let me = Tid(std::process::id());
    let (root, procfs) = vm_of_files(&[me]);
    let file = root.path().join(format!("proc/{me}/timerslack_ns"));
    let mut agent = Agent::new(&procfs);
    let held = Held { batch: false, ..HELD };
    agent.set(&[me], held);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "500000");
    // It ended, and a later one that has chosen such a slack itself has its number.
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
