//! `tandem guest record` of small programs with known behaviour: the profile matches it, and the scenario runs.
//!
//! Tests of tracing need root and tracefs, and are skipped without them.
//! No test depends on timing.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tandem_guest::record::tracefs::Tracefs;
use tandem_linux::ProcFs;
use tandem_model::Nanos;
use tandem_model::application::{Profile, Step, ThreadProfile};
use tandem_sim::World;

/// Timeout of expected events on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

fn tandem(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Returns whether scheduler events can be traced here; if not, prints the reason.
fn can_trace() -> bool {
    // Opened once, because two instances of one process would have the same name.
    static TRACED: LazyLock<Result<(), String>> = LazyLock::new(|| {
        let traced = Tracefs::open(&ProcFs::host());
        traced.map(drop).map_err(|error| error.to_string())
    });
    if let Err(error) = &*TRACED {
        println!("skipped: {error}");
    }
    TRACED.is_ok()
}

/// Records a command with these options; returns the profile and the output of the recorder.
fn record(folder: &Path, options: &[&str], command: &[&str]) -> (Option<Profile>, Output) {
    let (scenario, json) = (folder.join("program.toml"), folder.join("profile.json"));
    let output = tandem(&["guest", "record", "-o"])
        .arg(&scenario)
        .arg("--json")
        .arg(&json)
        .args(options)
        .arg("--")
        .args(command)
        .output()
        .unwrap();
    let text = fs::read_to_string(json).ok();
    (text.map(|text| serde_json::from_str(&text).unwrap()), output)
}

/// Runs the scenario in the simulator, and checks that its VM makes progress.
fn simulate(folder: &Path) {
    let path = folder.join("program.toml");
    // A pass lasts for up to the time that was traced.
    let settings = ["duration=3s", "warmup=100ms"].map(str::to_owned);
    let source = tandem_experiment::input::source(&path, &settings, None, None).unwrap();
    let results = World::new(&source.scenario().unwrap()).run();
    assert!(results.vms.iter().any(|vm| results.throughput(&vm.name) > Some(0.0)));
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Two processes that exchange a byte through two pipes for 3 s.
const PING_PONG: &str = "pipe(A,B); pipe(C,D); $| = 1; $end = time + 3; \
    if ($child = fork) { while (time < $end) { syswrite(B, 'x'); sysread(C, $b, 1) } kill 9, $child; wait; exit 0 } \
    while (sysread(A, $b, 1)) { syswrite(D, $b) }";

#[test]
#[ignore = "needs root"]
fn ping_pong_has_mutual_wake_ups() {
    if !can_trace() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (profile, output) = record(folder.path(), &[], &["perl", "-e", PING_PONG]);
    let profile = profile.unwrap_or_else(|| panic!("{}", said(&output)));
    assert!(profile.traced > Nanos::ZERO, "{:?}", profile.missing);
    let busy = |(_, thread): &(usize, &ThreadProfile)| thread.steps.len() > 20;
    let threads: Vec<_> = profile.threads.iter().enumerate().filter(busy).collect();
    assert_eq!(threads.len(), 2, "{:?}", profile.threads);
    for ((number, one), (other, _)) in [(threads[0], threads[1]), (threads[1], threads[0])] {
        let count = |wanted: Step| one.steps.iter().filter(|step| **step == wanted).count();
        let (waits, wakes) = (count(Step::Wait), count(Step::Wake(other)));
        assert!(waits > 10 && wakes > 10, "{number}: {waits} {wakes}");
    }
    let edges = profile.wakes.iter().filter(|edge| edge.count > 10).count();
    assert_eq!(edges, 2, "{:?}", profile.wakes);
    simulate(folder.path());
}

#[test]
#[ignore = "needs root"]
fn computing_pair_has_no_waits() {
    let folder = tempfile::tempdir().unwrap();
    let pair = "$end = time + 2; fork; 1 while time < $end; wait";
    let options: &[&[&str]] =
        if can_trace() { &[&[], &["--no-trace"]] } else { &[&["--no-trace"]] };
    for options in options {
        let (profile, output) = record(folder.path(), options, &["perl", "-e", pair]);
        let profile = profile.unwrap_or_else(|| panic!("{}", said(&output)));
        // Neighbours may take most CPU time, so run and wait time count together.
        let computing = profile.threads.iter().filter(|thread| {
            let busy = thread.ran + thread.waited;
            thread.name == "perl" && busy.0 * 10 > thread.wall.0 * 7
        });
        assert_eq!(computing.count(), 2, "{:?}", profile.threads);
        let between: u64 = profile.wakes.iter().map(|edge| edge.count).sum();
        assert!(between <= 2, "{:?}", profile.wakes);
        if !options.is_empty() {
            assert_eq!(profile.traced, Nanos::ZERO);
            assert!(profile.missing[0].contains("tracing was not wanted"), "{:?}", profile.missing);
        }
        simulate(folder.path());
        fs::remove_file(folder.path().join("program.toml")).unwrap();
    }
}

#[test]
#[ignore = "needs root"]
fn sleeps_have_the_requested_length() {
    let folder = tempfile::tempdir().unwrap();
    let sleeper = "for (1..100) { select(undef, undef, undef, 0.02) }";
    let (profile, output) = record(folder.path(), &[], &["perl", "-e", sleeper]);
    let profile = profile.unwrap_or_else(|| panic!("{}", said(&output)));
    let thread = &profile.threads[0];
    // The last sample may be several sleeps before the end.
    assert!((60..130).contains(&thread.sleeps), "{thread:?}");
    assert!(thread.slept().0 * 10 > thread.wall.0 * 5, "{thread:?}");
    if can_trace() {
        let sleeps = thread.steps.iter().filter_map(|step| match step {
            Step::Sleep(time) => Some(time.0),
            _ => None,
        });
        let mut sleeps: Vec<u64> = sleeps.collect();
        sleeps.sort_unstable();
        assert!(sleeps.len() > 5, "{thread:?}");
        // Timers are never early, but may be late on a busy machine.
        let middle = sleeps[sleeps.len() / 2];
        assert!((19_900_000..40_000_000).contains(&middle), "{middle}");
    }
    simulate(folder.path());
}

#[test]
fn exit_status_is_passed_and_files_kept() {
    let folder = tempfile::tempdir().unwrap();
    let busy = "$end = time + 2; 1 while time < $end; exit 7";
    let (profile, output) = record(folder.path(), &["--no-trace"], &["perl", "-e", busy]);
    assert_eq!(output.status.code(), Some(7), "{}", said(&output));
    assert!(profile.is_some());
    let before = fs::read_to_string(folder.path().join("program.toml")).unwrap();
    let (_, output) = record(folder.path(), &[], &["perl", "-e", "exit 7"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("program.toml"), "{}", said(&output));
    let after = fs::read_to_string(folder.path().join("program.toml")).unwrap();
    assert_eq!(before, after);
}

#[test]
fn errors_leave_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let cases: [(&[&str], i32, &str); 3] = [
        (&["no-such-program-anywhere"], 1, "cannot start 'no-such-program-anywhere'"),
        (&["sh", "-c", "exit 3"], 3, "record a program that runs for at least a second"),
        (&["true"], 1, "record a program that runs for at least a second"),
    ];
    for (command, code, wanted) in cases {
        let (profile, output) = record(folder.path(), &["--no-trace"], command);
        let said = said(&output);
        assert!(said.contains(wanted), "{command:?}: {said}");
        assert!(profile.is_none());
        assert!(!folder.path().join("program.toml").exists(), "{command:?}");
        assert_eq!(output.status.code(), Some(code), "{command:?}: {said}");
    }
    let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = sleeper.id().to_string();
    let idle = tandem(&["guest", "record", "--duration", "1s", "--pid", &pid, "-o"]);
    let idle = { idle }.arg(folder.path().join("x.toml")).output().unwrap();
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert!(said(&idle).contains("nothing ran: sleep 60"), "{}", said(&idle));
    assert!(!folder.path().join("x.toml").exists());
    let none =
        tandem(&["guest", "record", "-o"]).arg(folder.path().join("x.toml")).output().unwrap();
    assert_eq!(none.status.code(), Some(2));
    let gone = tandem(&["guest", "record", "--pid", "4194304", "-o"]);
    let gone = { gone }.arg(folder.path().join("x.toml")).output().unwrap();
    assert!(said(&gone).contains("--pid 4194304"), "{}", said(&gone));
    assert!(!folder.path().join("x.toml").exists());
}

#[test]
fn signals_reach_the_command_after_recording() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program.toml");
    let command = "$SIG{TERM} = sub { exit 5 }; 1 while 1";
    let mut recorder = tandem(&["guest", "record", "--no-trace", "--duration", "1s", "-o"]);
    recorder.arg(&path).args(["--", "perl", "-e", command]);
    let mut recorder = recorder.spawn().unwrap();
    let deadline = Instant::now() + TIMEOUT;
    // The scenario is written at the end of the recording.
    while fs::read_to_string(&path).is_ok_and(|text| text.is_empty()) || !path.exists() {
        assert!(Instant::now() < deadline, "no scenario was written");
        sleep(Duration::from_millis(50));
    }
    let pid = rustix::process::Pid::from_child(&recorder);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    while recorder.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "it does not end");
        sleep(Duration::from_millis(50));
    }
    assert_eq!(recorder.wait().unwrap().code(), Some(5));
}

#[test]
fn unwritable_file_prevents_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let (path, json) = (folder.path().join("p.toml"), folder.path().join("no/p.json"));
    let started = folder.path().join("started");
    let mut recorder = tandem(&["guest", "record", "--no-trace", "-o"]);
    recorder.arg(&path).arg("--json").arg(&json).args(["--", "touch"]);
    let output = recorder.arg(&started).output().unwrap();
    assert!(!output.status.success());
    assert!(said(&output).contains("no/p.json"), "{}", said(&output));
    assert!(!started.exists() && !path.exists());
}

#[test]
#[ignore = "needs root"]
fn signal_keeps_the_record_and_stops_tracing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program.toml");
    let mut busy = Command::new("perl").args(["-e", "1 while 1"]).spawn().unwrap();
    let recorder = tandem(&["guest", "record", "--pid", &busy.id().to_string(), "-o"]);
    let mut recorder = { recorder }.arg(&path).spawn().unwrap();
    let deadline = Instant::now() + TIMEOUT;
    // The recorder needs time to sample the program.
    sleep(Duration::from_secs(2));
    let pid = rustix::process::Pid::from_raw(recorder.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    while recorder.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "it does not end");
        sleep(Duration::from_millis(50));
    }
    assert!(recorder.wait().unwrap().success());
    let is_there = busy.try_wait().unwrap().is_none();
    busy.kill().unwrap();
    busy.wait().unwrap();
    assert!(is_there, "the program continues");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("name = \"perl\"") || text.contains("[[workload.role]]"), "{text}");
    simulate(folder.path());
    let left = format!("/sys/kernel/tracing/instances/tandem-record-{}", recorder.id());
    let instances = fs::read_dir("/sys/kernel/tracing/instances").into_iter().flatten();
    for instance in instances.flatten() {
        assert!(!instance.path().to_string_lossy().starts_with(&left));
    }
}
