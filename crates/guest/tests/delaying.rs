//! Timer slack and scheduling of real threads: set, and put back on an orderly end and after kill -9, threads included that were
//! born after the agent last looked. Needs root and the cpuset controller, else each test says so and is skipped.

use std::io::BufRead;
use std::io::BufReader;
use std::io::Write;
use std::path::Path;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::time::Duration;

use tandem_guest::actuator::Actuator;
use tandem_guest::actuator::restore_all;
use tandem_guest::actuator::threads_of;
use tandem_guest::cpusets::Cpusets;
use tandem_guest::delaying::Delaying;
use tandem_guest::delaying::set_timer_slack;
use tandem_guest::delaying::timer_slack;
use tandem_linux::ProcFs;
use tandem_linux::sched_attr::FairScheduling;
use tandem_linux::sched_attr::fair_scheduling;
use tandem_linux::thread::Pid;
use tandem_linux::thread::Tid;
use tandem_policy::Nanos;
use tandem_policy::gleaner::delay::Held;

const HELD: Held = Held {
    slack: Nanos(500_000),
    batch: true,
};

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

    fn have(&self) -> Vec<(Option<Nanos>, Option<FairScheduling>)> {
        let of = |&tid: &Tid| {
            let scheduling = fair_scheduling(tid).unwrap();
            (timer_slack(&ProcFs::host(), tid), scheduling)
        };
        self.threads().iter().map(of).collect()
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
        std::thread::spawn(|| std::thread::sleep(Duration::from_secs(60)));
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
    let (mut actuator, _) = Actuator::open(&procfs, Path::new(&state)).unwrap();
    Delaying::new(&procfs)
        .set(&mut actuator, &threads, HELD)
        .unwrap();
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

#[test]
fn what_was_set_is_put_back_and_what_somebody_else_set_stays() {
    if !can_run() {
        return;
    }
    let procfs = ProcFs::host();
    let workload = workload_of_two_threads();
    let before = workload.have();
    let state = tempfile::tempdir().unwrap();
    let (mut actuator, _) = Actuator::open(&procfs, state.path()).unwrap();
    let mut delaying = Delaying::new(&procfs);
    let threads = workload.threads();
    for held in [HELD, Held::default(), HELD] {
        delaying.set(&mut actuator, &threads, held).unwrap();
        let is_held = workload.have().iter().all(|(slack, scheduling)| {
            *slack == Some(HELD.slack) && scheduling.is_some_and(|now| now.batch)
        });
        assert_eq!(is_held, held.is_any(), "{:?}", workload.have());
    }
    set_timer_slack(&procfs, threads[0], Nanos(123_456)).unwrap();
    let report = actuator.restore();
    assert!(report.is_complete() && report.left.len() == 1, "{report}");
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
    let environment = [
        ("STATE", state.path().to_str().unwrap()),
        ("WORKLOAD", &pid),
    ];
    let mut holder = Role::start("holder", &environment);
    holder.wait_for("holds");
    // Born to a thread that is held back, and seen by nobody.
    writeln!(workload.0.stdin.as_mut().unwrap(), "one").unwrap();
    workload.wait_for("made one");
    holder.0.kill().unwrap();
    holder.0.wait().unwrap();
    let held = workload.have();
    assert_eq!(held.len(), before.len() + 1);
    assert!(
        held.iter().all(|(slack, _)| *slack == Some(HELD.slack)),
        "{held:?}"
    );
    let report = restore_all(&procfs, state.path()).unwrap();
    assert!(report.is_complete(), "{report}");
    assert!(
        workload.have().iter().all(|now| *now == before[0]),
        "{:?}",
        workload.have()
    );
}
