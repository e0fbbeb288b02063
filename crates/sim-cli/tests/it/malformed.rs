//! Malformed scenarios and workloads through the real binary: each fails without a panic, with an error that
//! has the file, the line and the valid form.

use std::process::Command;

use tempfile::TempDir;

fn run(args: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tandem-sim")).args(args).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success(), message)
}

fn fails(args: &[&str], needles: &[&str]) {
    let (success, message) = run(args);
    assert!(!success, "{args:?} was accepted");
    assert!(!message.contains("panicked"), "{args:?} panicked:\n{message}");
    for needle in needles {
        assert!(message.contains(needle), "{args:?}: '{needle}' is not in:\n{message}");
    }
}

fn write(dir: &TempDir, name: &str, text: &str) -> String {
    let path = dir.path().join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The lines of a valid scenario.
const VALID: [&str; 16] = [
    "duration = \"10ms\"",
    "[machine]",
    "pcpus = 2",
    "[host]",
    "scheduler = \"cfs\"",
    "[[workload]]",
    "name = \"w\"",
    "[workload.objects]",
    "m = \"mutex\"",
    "[[workload.role]]",
    "threads = 2",
    "program = [{ forever = [{ compute = \"1ms\" }, \"work\"] }]",
    "[[vm]]",
    "name = \"a\"",
    "vcpus = 2",
    "workload = \"w\"",
];

#[test]
fn valid_scenario_runs() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(&dir, "s.toml", &VALID.join("\n"));
    let (success, message) = run(&["run", &path]);
    assert!(success, "{message}");
}

#[test]
fn scenarios() {
    let dir = tempfile::tempdir().unwrap();
    // The number of the replaced line (from 1), its replacement, and parts of the error.
    let cases: &[(usize, &str, &[&str])] = &[
        (1, "duraton = \"10ms\"", &["s.toml:1:", "did you mean `duration`?"]),
        (1, "", &["s.toml:1:", "no `duration`", "duration = \"1s\""]),
        (1, "duration = 10", &["s.toml:1:", "duration = 10", "with its unit"]),
        (1, "duration = \"10 m\"", &["s.toml:1:", "10 m", "500ns, 1.5us, 4ms or 2s"]),
        (2, "[machne]", &["s.toml:2:", "did you mean `machine`?"]),
        (2, "[machine", &["s.toml:2:"]),
        (3, "pcpus = 0", &["s.toml:3:", "machine.pcpus = 0", "1 … 4096"]),
        (3, "pcpus = \"two\"", &["s.toml:3:", "a whole number"]),
        (3, "pcpus = 99999999999999999999", &["s.toml:3:", "too large"]),
        (3, "pcpus = 2\npcpus = 3", &["s.toml:4:", "duplicate key"]),
        (3, "pcpus = 2\ncosts.vm_exits = 1", &["s.toml:4:", "did you mean `vm_exit`?"]),
        (3, "pcpus = 2\nmode = \"metal\"", &["s.toml:4:", "\"virtual\", \"native\""]),
        (5, "scheduler = \"fcs\"", &["s.toml:5:", "did you mean \"cfs\"?"]),
        (
            5,
            "pause_loop = { policy = \"on\" }",
            &["s.toml:5:", "\"off\", \"fixed\", \"per-vm\", \"stock\""],
        ),
        (5, "cfs.latency = \"1ns\"", &["s.toml:5:", "10us … 10s"]),
        (5, "cap = \"yes\"", &["s.toml:5:", "true or false"]),
        (9, "m = \"mutx\"", &["s.toml:9:", "did you mean \"mutex\"?"]),
        (9, "q = { kind = \"queue\" }", &["s.toml:9:", "no `capacity`", "capacity = 16"]),
        (11, "threads = 0", &["s.toml:11:", "1 … 100000"]),
        (11, "threads = \"one per vcpu\"", &["s.toml:11:", "\"1 per vcpu\""]),
        (12, "program = [{ comptue = \"1ms\" }]", &["s.toml:12:", "did you mean `compute`?"]),
        (12, "program = [{ compute = \"exp(1)\" }]", &["s.toml:12:", "a number and a unit"]),
        (12, "program = [{ compute = \"poisson(1ms)\" }]", &["s.toml:12:", "exp(MEAN)"]),
        (12, "program = [{ lock = \"n\" }]", &["s.toml:12:", "[objects] has m"]),
        (12, "program = [{ lock = \"m\" }, { lock = \"m\" }]", &["s.toml:12:", "wait for itself"]),
        (
            12,
            "program = [\n  { compute = \"1ms\" },\n  { unlock = \"m\" },\n]",
            &["s.toml:14:", "{ lock = \"m\" } comes first"],
        ),
        (12, "program = [{ forever = [\"work\"] }]", &["s.toml:12:", "stop the clock"]),
        (13, "[vm]", &["s.toml:13:", "a list is needed"]),
        (14, "name = \"a*\"", &["s.toml:14:", "letters, digits"]),
        (15, "vcpus = 5000", &["s.toml:15:", "vm[0].vcpus = 5000", "1 … 4096"]),
        (15, "vcpus = 2\npins = [\"0\"]", &["s.toml:16:", "1 sets of pCPUs for the 2 vCPUs"]),
        (15, "vcpus = 2\npins = \"2\"", &["s.toml:16:", "pCPUs 0 … 1"]),
        (15, "vcpus = 2\nweight = 0.5", &["s.toml:16:", "1 … 262144"]),
        (15, "vcpus = 2\nidle = \"sleep\"", &["s.toml:16:", "\"haltpoll(200us)\""]),
        (16, "workload = \"v\"", &["s.toml:16:", "workloads/v.toml"]),
        (
            16,
            "workload = \"w\"\n[[vm]]\nname = \"a\"\nvcpus = 1\nworkload = \"w\"",
            &["s.toml:17:", "names must differ"],
        ),
    ];
    for (line, text, needles) in cases {
        let mut lines = VALID;
        lines[line - 1] = text;
        let path = write(&dir, "s.toml", &lines.join("\n"));
        fails(&["run", &path], needles);
    }
}

#[test]
fn workload_files_are_named_with_their_own_lines() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = "duration = \"1ms\"\nmachine = { pcpus = 1 }\n\
        [[vm]]\nname = \"a\"\nvcpus = 1\nworkload = \"wl\"\n";
    let path = write(&dir, "scenarios/s.toml", scenario);
    for (text, needles) in [
        ("", ["wl.toml:1:", "no `role`"]),
        ("[[role]]\nthread = 1\n", ["wl.toml:2:", "did you mean `threads`?"]),
        (
            "[objects]\nc = \"condition\"\nm = \"mutex\"\n[[role]]\n\
             program = [{ locked = \"m\", do = [{ wait = \"c\", mutex = \"m\" }] }]\n",
            ["wl.toml:2:", "none signals"],
        ),
        ("role = [", ["wl.toml:1:", "wl.toml"]),
    ] {
        write(&dir, "workloads/wl.toml", text);
        fails(&["run", &path], &needles);
    }
}

#[test]
fn flags() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(&dir, "s.toml", &VALID.join("\n"));
    let with = |more: &[&str], needles: &[&str]| {
        let mut args = vec![more[0], path.as_str()];
        args.extend(&more[1..]);
        fails(&args, needles);
    };
    with(&["run", "--set", "vm.0.vcpus"], &["KEY=VALUE"]);
    with(&["run", "--set", "vm.3.vcpus=1"], &["--set vm.3.vcpus=1", "it has 0, a"]);
    with(&["run", "--set", "host.sched=cfs"], &["--set host.sched=cfs", "`sched`"]);
    with(&["run", "--set", "vm.a.vcpus=x"], &["--set vm.a.vcpus=x", "a whole number"]);
    with(&["run", "--seed", "x"], &["--seed", "x"]);
    with(&["run", "--duration", "1"], &["--set duration=1", "with its unit"]);
    with(&["run", "--json", "/no/such/dir/x.json"], &["/no/such/dir/x.json"]);
    with(&["run", "--parquet", "/no/such/dir/x"], &["/no/such/dir/x"]);
    with(&["run", "--trace", "/no/such/dir/x"], &["/no/such/dir/x"]);
    with(&["run", "--parquet", &path], &["is a scenario's name"]);
    with(&["compare", "--vary", "host.scheduler"], &["KEY=VALUE,VALUE"]);
    with(&["compare", "--vary", "policies=fair,turns"], &["give --policies fair,turns"]);
    with(&["compare", "--vary", "host.scheduler=cfs,o1"], &["--vary host.scheduler=o1"]);
    with(&["compare", "--runs", "0"], &["--runs 0", "1 … 1000"]);
    with(&["compare", "--workers", "0"], &["--workers 0", "1 … 1024"]);
    with(&["compare", "--runs", "1", "--metrics", "speed"], &["`speed`", "work_rate"]);
    fails(&["run", "/no/such.toml"], &["/no/such.toml", "cannot read"]);
    with(&["compare", "--policies", "stock,best"], &["\"best\"", "cpth-r"]);
    fails(&["run"], &["SCENARIO.toml"]);
    fails(&["fly"], &["fly"]);
    let folder = dir.path().to_str().unwrap();
    fails(&["run", folder], &[folder, "cannot read"]);
}
