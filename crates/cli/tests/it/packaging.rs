//! Shipped files match the binary: the example settings are valid and show the defaults, and systemd accepts the units.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tandem_host::config::HostConfig;

fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file)
}

fn example() -> String {
    fs::read_to_string(packaging("tandem.toml")).expect("the example settings are in the tree")
}

fn read(text: &str) -> HostConfig {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("tandem.toml");
    fs::write(&path, text).expect("a temporary file");
    HostConfig::read(&path).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Returns the example with the settings of these keys uncommented.
fn uncommented(wanted: impl Fn(&str) -> bool) -> String {
    let mut text = String::new();
    for line in example().lines() {
        let setting = line.strip_prefix('#').filter(|rest| {
            let key = rest.split(" = ").next().unwrap_or_default();
            (rest.contains(" = ") && !key.contains(' ') && wanted(key))
                || (rest.starts_with("[[") && wanted("weight"))
        });
        text.push_str(setting.unwrap_or(line));
        text.push('\n');
    }
    text
}

#[test]
fn example_settings_are_valid() {
    read(&example()).check().expect("the unchanged example");
    // The directory of the metrics file must exist.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = folder.path().to_str().expect("a plain path");
    let full = read(&uncommented(|_| true).replace("/run/tandem", run));
    full.check().expect("the example with every key given");
    assert_eq!(full.rule.len(), 1);
    assert!(full.metrics_listen.is_some());
}

#[test]
fn agent_unit_has_the_required_permissions() {
    let unit = fs::read_to_string(packaging("systemd/tandem-guest@.service")).expect("it ships");
    let setting = |key: &str| {
        let mut lines = unit.lines().filter_map(|line| line.strip_prefix(key));
        lines.next().unwrap_or_default().to_owned()
    };
    assert!(setting("SystemCallFilter=").contains("perf_event_open"));
    assert!(setting("RestrictAddressFamilies=").contains("AF_NETLINK"));
    for capability in ["CAP_NET_ADMIN", "CAP_PERFMON", "CAP_SYSLOG"] {
        assert!(setting("CapabilityBoundingSet=").contains(capability), "{capability}");
    }
    assert_ne!(setting("ProtectKernelLogs="), "yes", "it would remove CAP_SYSLOG");
    // Without the dash the unit fails on a kernel without haltpoll.
    assert!(setting("ReadWritePaths=").contains("-/sys/module/haltpoll/parameters"));
}

#[test]
fn example_settings_show_the_defaults() {
    // The packaged settings do not act; the default settings do.
    assert!(read(&example()).dry_run && read(&example()).select.is_empty());
    let optional: BTreeSet<_> = [
        "metrics_listen",
        "metrics_file",
        "thread_pattern",
        "without_kvm",
        "cgroup",
        "qmp_sockets",
        "pids",
        "names",
        "cgroups",
        "uids",
        "exclude",
        "all",
        "weight",
        "name",
    ]
    .into();
    let mut config = read(&uncommented(|key| !optional.contains(key)));
    config.select = HostConfig::default().select;
    config.dry_run = false;
    assert_eq!(config, HostConfig::default());
}

#[test]
fn host_unit_permits_real_time() {
    let unit = packaging("systemd").join("tandem-host.service");
    let unit = fs::read_to_string(unit).expect("the unit is in the tree");
    // RestrictRealtime forbids SCHED_FIFO even to root, and the thread of the turns needs it.
    let forbids = |line: &&str| line.trim_start().starts_with("RestrictRealtime");
    assert_eq!(unit.lines().find(forbids), None);
}

#[test]
fn memory_that_tenants_can_grow_is_bounded() {
    let unit = packaging("systemd").join("tandem-host.service");
    let unit = fs::read_to_string(unit).expect("the unit is in the tree");
    let setting = |key: &str| {
        let mut lines = unit.lines().filter_map(|line| line.split_once('='));
        lines.find(|(found, _)| *found == key).map(|(_, value)| value)
    };
    assert!(setting("MemoryMax").is_some_and(|most| most.ends_with('M')));
    assert!(setting("TasksMax").is_some_and(|most| most.parse::<u32>().is_ok()));
    assert_eq!(setting("OOMScoreAdjust"), None);
}

#[test]
fn systemd_accepts_the_units() {
    // A template is checked through an instance.
    let units = [
        ("tandem-host.service", "tandem-host.service"),
        ("tandem-export.service", "tandem-export.service"),
        ("tandem-guest@.service", "tandem-guest@mariadb.service"),
    ];
    for (file, name) in units {
        let unit = fs::read_to_string(packaging("systemd").join(file));
        let unit = unit.expect("the unit is in the tree");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join(name);
        // systemd checks that the program exists.
        let there = unit.replace("/usr/bin/tandem", env!("CARGO_BIN_EXE_tandem"));
        fs::write(&path, there).expect("a temporary file");
        let verify = Command::new("systemd-analyze").arg("verify").arg(&path).output();
        let output = match verify {
            Ok(output) => output,
            Err(error) => {
                println!("skipped: systemd-analyze cannot be run ({error})");
                return;
            }
        };
        let said = String::from_utf8_lossy(&output.stderr);
        // It also reports other units of this machine, and the missing service of the instance.
        let is_ours = |line: &&str| line.contains(name) && !line.contains("not found");
        let ours: Vec<_> = said.lines().filter(is_ours).collect();
        assert!(ours.is_empty(), "{ours:#?}");
    }
}

/// Maximum exposure of each unit by `systemd-analyze security`: 0 is closed, 10 open.
/// systemd 252 reports 2.9, 3.3 and 3.6; other versions differ slightly.
/// Comments in the units explain their permissions.
const EXPOSURES: [(&str, f64); 3] =
    [("tandem-host.service", 3.2), ("tandem-export.service", 3.6), ("tandem-guest@.service", 3.9)];

#[test]
fn exposure_of_units_is_bounded() {
    for (file, most) in EXPOSURES {
        let analyze = Command::new("systemd-analyze")
            .args(["security", "--offline=true", "--no-pager"])
            .arg(packaging("systemd").join(file))
            .output();
        let said = match analyze {
            Ok(output) => {
                String::from_utf8_lossy(&output.stdout).into_owned()
                    + &String::from_utf8_lossy(&output.stderr)
            }
            Err(error) => {
                println!("skipped: systemd-analyze cannot be run ({error})");
                return;
            }
        };
        // "→ Overall exposure level for tandem-host.service: 3.4 OK"
        let level = said
            .split_once("Overall exposure level for ")
            .and_then(|(_, rest)| rest.split_once(": "))
            .and_then(|(_, rest)| rest.split_whitespace().next()?.parse::<f64>().ok());
        let Some(level) = level else {
            println!("skipped: no exposure of {file}: {said}");
            continue;
        };
        println!("{file}: {level}");
        assert!(level <= most, "{file}: {level}, at most {most}: {said}");
    }
}

/// Returns the values of a key in all lines of a file: settings such as `CapabilityBoundingSet=` accumulate.
fn settings(file: &str, key: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(packaging("systemd").join(file)).expect("it is in the tree");
    let values = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    values.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

const EXPORT: &str = "tandem-export.service";
const EXPORT_WITH_BPF: &str = "tandem-export.service.d/bpf.conf";

#[test]
fn only_the_bpf_exporter_has_bpf_capabilities() {
    let capabilities = |file| settings(file, "CapabilityBoundingSet");
    let needed = ["CAP_BPF", "CAP_PERFMON", "CAP_NET_ADMIN", "CAP_SYS_ADMIN"];
    assert_eq!(capabilities(EXPORT_WITH_BPF), needed.map(str::to_owned).into());
    assert!(needed.iter().all(|capability| !capabilities(EXPORT).contains(*capability)));
    let calls = settings(EXPORT_WITH_BPF, "SystemCallFilter");
    assert!(calls.contains("bpf") && calls.contains("perf_event_open"), "{calls:?}");
    assert!(settings(EXPORT_WITH_BPF, "ExecStart").contains("bpf"));
}

#[test]
fn systemd_accepts_the_bpf_exporter() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::create_dir(folder.path().join("tandem-export.service.d")).expect("a folder");
    for file in [EXPORT, EXPORT_WITH_BPF] {
        let text = fs::read_to_string(packaging("systemd").join(file)).expect("it is in the tree");
        let text = text.replace("/usr/bin/tandem", env!("CARGO_BIN_EXE_tandem"));
        fs::write(folder.path().join(file), text).expect("a temporary file");
    }
    let verify =
        Command::new("systemd-analyze").arg("verify").arg(folder.path().join(EXPORT)).output();
    match verify {
        Err(error) => println!("skipped: systemd-analyze cannot be run ({error})"),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let ours: Vec<&str> =
                said.lines().filter(|line| line.contains("tandem-export")).collect();
            assert!(ours.is_empty(), "{ours:#?}");
        }
    }
}

/// Loads the BPF programs with exactly the capabilities of the unit: `setpriv` drops all others, even from root.
#[test]
fn bpf_exporter_capabilities_are_sufficient() {
    let test = "bpf_exporter_capabilities_are_sufficient";
    let all: BTreeSet<String> = [EXPORT, EXPORT_WITH_BPF]
        .iter()
        .flat_map(|file| settings(file, "CapabilityBoundingSet"))
        .collect();
    let top = |bounding: &str| {
        Command::new("setpriv")
            .args(["--bounding-set", bounding, "--no-new-privs"])
            .arg(env!("CARGO_BIN_EXE_tandem"))
            .args(["host", "top", "--once", "--interval", "0.1", "--source", "bpf"])
            .output()
    };
    let unlimited = match top("+all") {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: {test}: setpriv cannot be run ({error})");
            return;
        }
    };
    if !unlimited.status.success() {
        let why = String::from_utf8_lossy(&unlimited.stderr).into_owned();
        println!("skipped: {test}: BPF does not work here: {why}");
        return;
    }
    let names = all.iter().map(|name| name.trim_start_matches("CAP_").to_lowercase());
    let bounding = names.fold("-all".to_owned(), |all, name| format!("{all},+{name}"));
    let output = top(&bounding).expect("it could be run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{bounding}: {said}");
    // Without them it fails.
    let without: Vec<&str> = bounding
        .split(',')
        .filter(|one| !["+bpf", "+perfmon", "+sys_admin", "+net_admin"].contains(one))
        .collect();
    let refused = top(&without.join(",")).expect("it could be run");
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("CAP_BPF"), "{said}");
}
