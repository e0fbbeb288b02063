//! Malformed input through the real binary: each fails without a panic, with an error that has the cause and the
//! valid form.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// Arguments, and required parts of the message: the invalid value or key, and the valid form.
type Case<'a> = (&'a [&'a str], &'a [&'a str]);

fn fails(args: &[&str], needles: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_tandem")).args(args).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{args:?} was accepted");
    assert!(!message.contains("panicked"), "{args:?} panicked:\n{message}");
    for needle in needles {
        assert!(message.contains(needle), "{args:?}: '{needle}' is not in:\n{message}");
    }
}

fn write(dir: &TempDir, name: &str, text: &str) -> String {
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn configuration_files() {
    let dir = tempfile::tempdir().unwrap();
    let cases = [
        ("[host]\nperiod = 100\n", ["unknown field `period`", "period_ms"]),
        ("[host]\nperiod_ms = \"fast\"\n", ["line 2", "invalid type"]),
        ("[host]\nperiod_ms = 5\n", ["period_ms = 5", "30 … 1000"]),
        ("[host]\nperiod_ms = -100\n", ["line 2", "-100"]),
        ("[host.fair]\nfair_window = \"0s\"\n", ["fair.fair_window = 0ns", "100ms … 3600s"]),
        ("[host.fair]\nfair_window = 10.0\n", ["line 2", "such as \"4ms\", 100ms … 3600s"]),
        ("[host.turns]\nperiods = \"5\"\n", ["line 2", "a whole number, 1 … 100"]),
        ("[host.flexs]\nchoises = 5\n", ["line 2", "did you mean `choices`?"]),
        ("[host]\nfair_window_s = 0\n", ["fair.fair_window = 0ns", "100ms … 3600s"]),
        ("[host]\ngain = 0.5\nfair.gain = 0.4\n", ["line 2", "gain is the old name of fair.gain"]),
        ("[host]\nscan_ms = 99999999\n", ["scan_ms = 99999999", "100 … 60000"]),
        ("[host]\ngain = 7.5\n", ["fair.gain = 7.5", "0.001 … 1"]),
        ("[host]\nspread = nan\n", ["fair.spread = NaN", "1 … 1000"]),
        ("[host]\nplacement = \"spread\"\n", ["spread", "`rebalance`"]),
        ("[host]\nmetrics_listen = \"0.0.0.0:9464\"\n", ["0.0.0.0:9464", "loopback"]),
        ("[host]\nmetrics_listen = \"9464\"\n", ["line 2", "such as 127.0.0.1:9464"]),
        ("[host.select]\nname = \"db\"\n", ["unknown field `name`", "`names`"]),
        ("[[host.weight]]\nname = \"db\"\nweight = 0\n", ["rule[0].weight = 0", "0.01 … 100"]),
        ("[[host.weight]]\nweight = 2\n", ["rule[0]", "name = "]),
        ("[[host.rule]]\nname = \"[\"\nweight = 2\n", ["rule[0].name = [", "a glob such as"]),
        ("[[host.weight]]\nname = \"db\"\n", ["a rule needs weight", "line 1"]),
        (
            "[[host.rule]]\nname = \"db\"\npolicies = [\"fare\"]\n",
            ["no policy is called \"fare\"", "fair, configured"],
        ),
        ("[host]\npolicies = \"fair\"\n", ["line 2", "a list, such as"]),
        ("[host]\npolicies = [\"turns\", \"none\"]\n", ["\"none\" is no policy", "policies = []"]),
        ("[guest]\n", ["unknown field `guest`", "`host`"]),
        ("[host\nperiod_ms = 100\n", ["line 1", "tandem.toml"]),
        ("period_ms = 100\n", ["unknown field `period_ms`", "`host`"]),
    ];
    for (text, needles) in cases {
        let path = write(&dir, "tandem.toml", text);
        fails(&["host", "run", "--select-all", "--config", &path], &needles);
    }
    fails(&["host", "run", "--config", "/no/such.toml"], &["/no/such.toml", "cannot read"]);
    let path = dir.path().to_str().unwrap().to_owned();
    fails(&["host", "run", "--config", &path], &[&path, "cannot read"]);
}

#[test]
fn host_flags() {
    let cases: &[Case] = &[
        (&["host", "run"], &["no VM is selected", "--select-all"]),
        (
            &["host", "run", "--select-all", "--period-ms", "5000"],
            &["'5000' for '--period-ms", "30 … 1000"],
        ),
        (&["host", "run", "--select-all", "--period-ms", "x"], &["--period-ms", "x"]),
        (&["host", "run", "--select-all", "--weight", "2"], &["'db-*=2'"]),
        (&["host", "run", "--select-all", "--weight", "a=b"], &["'b' is not a number"]),
        (
            &["host", "run", "--select-all", "--weight", "a=-1"],
            &["'a=-1' for '--weight", "-1 is not possible: 0.01 … 100"],
        ),
        (
            &["host", "run", "--select-all", "--weight", "a=999999999"],
            &["'a=999999999' for '--weight", "0.01 … 100"],
        ),
        (
            &["host", "run", "--select-all", "--weight", "[=2"],
            &["'[=2' for '--weight", "[ is not possible: a glob such as"],
        ),
        (
            &["host", "run", "--select-all", "--vm-policies", "[=fair"],
            &["'[=fair' for '--vm-policies", "a glob such as"],
        ),
        (
            &["host", "run", "--select-all", "--turn-ms", "3"],
            &["'3' for '--turn-ms", "5ms … 100ms"],
        ),
        (
            &["host", "run", "--select-all", "--turn-ms", "20min"],
            &["--turn-ms", "expected a time with its unit", "5ms … 100ms"],
        ),
        (&["host", "run", "--select-all", "--gain", "-1"], &["'-1' for '--gain", "0.001 … 1"]),
        (&["host", "run", "--select-all", "--spread", "nan"], &["--spread", "1 … 1000"]),
        (&["host", "run", "/vms/../x"], &["'/vms/../x' for '[VM]...'", "without '.' and '..'"]),
        (&["host", "run", "0"], &["'0' for '[VM]...'", "1 or more"]),
        (&["host", "run", "--select-all", "--exclude", "uid:me"], &["--exclude", "uid:1000"]),
        (&["host", "run", "--duration", "soon"], &["'soon' for '--duration", "90s"]),
        (&["host", "pause"], &["<VM>..."]),
        (
            &["host", "run", "--select-all", "--policies", "fare"],
            &["no policy is called", "fair, configured"],
        ),
        (
            &["host", "run", "--select-all", "--policies", "turns,none"],
            &["'turns,none' for '--policies", "none excludes"],
        ),
        (&["host", "run", "--select-all", "--vm-policies", "a=none+fair"], &["none excludes"]),
        (&["host", "run", "--select-all", "--vm-policies", "a"], &["'db-*=configured'"]),
        (
            &["host", "run", "--select-all", "--vm-policies", "a=fair+x"],
            &["\"x\"", "fair, configured"],
        ),
        (&["host", "run", "--select-all", "--placement", "no"], &["keep", "rebalance"]),
        (&["host", "run", "[a"], &["'[a' for '[VM]...'", "a glob such as"]),
        (&["host", "run", "--select-all", "--thread-pattern", "cpu"], &["cpu", "{n}"]),
        (&["host", "status", "--interval", "0"], &["'0' for '--interval", "50ms"]),
        (&["host", "status", "--interval", "NaN"], &["'NaN' for '--interval", "50ms"]),
        (&["host", "top", "--interval", "3601"], &["'3601' for '--interval", "50ms … 3600s"]),
        (&["host", "top", "uid:me"], &["'uid:me'", "such as uid:1000"]),
        (&["host", "why", "--try", "--keep", "--duration", "1h5m"], &["--duration", "50ms"]),
        (&["host", "frobnicate"], &["frobnicate"]),
    ];
    for (args, needles) in cases {
        fails(args, needles);
    }
}

#[test]
fn thread_pattern_help_shows_the_placeholder() {
    for command in ["run", "list", "top"] {
        let output = Command::new(env!("CARGO_BIN_EXE_tandem"))
            .args(["host", command, "--help"])
            .output()
            .unwrap();
        // The positions of line breaks depend on the width of the terminal.
        let help = String::from_utf8_lossy(&output.stdout);
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            help.contains(
                "'cpu{n}:*': thread names of an unknown VMM, with {n} for the vCPU's number"
            ),
            "{help}"
        );
    }
}

#[test]
fn vm_flags() {
    let cases: &[Case] = &[
        (&["vm", "run", "--vcpus", "0"], &["0", "64"]),
        (&["vm", "run", "--vcpus", "65"], &["65", "64"]),
        (&["vm", "run", "--workload", "sleep"], &["sleep", "spinlock"]),
        (&["vm", "run", "--set", "colour=red"], &["colour"]),
        (&["vm", "run", "--set", "colour"], &["colour"]),
        (&["vm", "run", "--name", "a-name-that-is-too-long"], &["a-name-that-is-too-long", "8"]),
        (&["vm", "run", "--pin", "7000"], &["7000"]),
        (&["vm", "run", "--pin", "x"], &["x"]),
        (&["vm", "run", "--backend", "xen"], &["kvm", "threads"]),
        (&["vm", "run", "--seconds", "-1"], &["-1"]),
    ];
    for (args, needles) in cases {
        fails(args, needles);
    }
}

#[test]
fn demo_flags() {
    let cases: &[Case] = &[
        (&["demo", "--mix", "2,1", "--weights", "1,2,3"], &["2", "3"]),
        (&["demo", "--mix", "0,1"], &["0"]),
        (&["demo", "--mix", "a"], &["a"]),
        (&["demo", "--mix", "1,1", "--weights", "0,1"], &["0"]),
        (&["demo", "--modes", "magic"], &["magic", "equal-weights"]),
        (&["demo", "--vm", "vcpus=two"], &["two"]),
    ];
    for (args, needles) in cases {
        fails(args, needles);
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn journals() {
    if !is_root() {
        println!("skipped: opening the journal of a daemon needs root");
        return;
    }
    let cases = [
        ("{\"nonsense\":1}\n{}\n", ["journal", "line 1"]),
        ("not json at all\n{}\n", ["journal", "line 1"]),
        ("\u{0}\u{0}\u{0}\nx\n", ["journal", "line 1"]),
    ];
    for (text, needles) in cases {
        let dir = tempfile::tempdir().unwrap();
        let journal = write(&dir, "journal", text);
        let state = dir.path().to_str().unwrap();
        fails(&["host", "restore", "--state-dir", state], &needles);
        fails(&["host", "run", "--select-all", "--state-dir", state], &needles);
        assert_eq!(std::fs::read_to_string(&journal).unwrap(), text, "evidence was destroyed");
    }
}

#[test]
fn incomplete_last_journal_line_is_ignored() {
    if !is_root() || !Path::new("/sys/fs/cgroup").exists() {
        println!("skipped: restoring needs root and cgroups");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    write(&dir, "journal", "{\"half\":");
    let state = dir.path().to_str().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tandem"))
        .args(["host", "restore", "--state-dir", state])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn state_directories() {
    if !is_root() {
        println!("skipped: opening a state directory of a daemon needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = write(&dir, "file", "");
    fails(&["host", "run", "--select-all", "--state-dir", &file], &[&file]);
    fails(&["host", "run", "--select-all", "--state-dir", "/proc/no/dir"], &["/proc/no/dir"]);
}

/// Checks that a command fails with each of these arguments.
fn each_fails(command: &[&str], cases: &[(&[&str], &str)]) {
    for (args, needle) in cases {
        fails(&[command, *args].concat(), &[*needle]);
    }
}

#[test]
fn demo_errors_show_valid_values() {
    each_fails(
        &["demo"],
        &[
            (&["--mix", "4,2,1", "--weights", "1"], "one weight per VM"),
            (&["--mix", "0"], "1 to 64"),
            (&["--mix", "65"], "1 to 64"),
            (&["--mix", "two"], "4,2,1"),
            (&["--mix", "1,1,1", "--weights", "1,1,-1"], "0.01 to 100"),
            (&["--weights", "1,1,1,inf"], "0.01 to 100"),
            (&["--weights", "1"], "there are 4 VMs and --weights has 1"),
            (&["--workload", "mutex"], "--mix"),
            (&["--pinned", "--unpinned"], "cannot be used with"),
            (&["--alone-seconds", "0.1"], "0.5 … 60"),
            (&["--modes", "fair"], "as-is, equal-weights, hard-cap, pinning, nice, batch, tandem"),
            (&["--modes", "tandem,tandem"], "twice"),
            (&["--seconds", "0"], "0.5 … 3600"),
            (&["--seconds", "-1"], "0.5 … 3600"),
            (&["--seconds", "x"], "invalid value 'x'"),
            (&["--settle-seconds", "nan"], "0 … 600"),
            (&["--period-ms", "5"], "30 … 1000"),
            (&["--backend", "xen"], "kvm, threads"),
            (&["--placement", "move"], "keep, turns, rebalance"),
            (&["--vm", "name=a"], "vcpus is missing"),
            (&["--vm", "name=a,vcpus=1", "--mix", "1"], "cannot be used with"),
            (&["--vm", "name=a,vcpus=1", "--vm", "name=a,vcpus=2"], "names must differ"),
            (&["--vm", "name=A,vcpus=1"], "a-z, 0-9"),
            (&["--vm", "name=a,vcpus=1,cpus=8000"], "this process may use"),
            (&["--html", "a", "--no-html"], "cannot be used with"),
        ],
    );
}
