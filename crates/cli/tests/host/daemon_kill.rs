//! kill -9 of the real daemon at 50 random moments, with real VMs: everything is reverted.
//!
//! The pins of three VMs on two pCPUs prevent a fair division, so the daemon makes groups, moves threads, writes weights and changes pins.
//! One VM has its own cgroup with its own weight.
//! After each kill `tandem host restore` and the next start of the daemon, in alternation, revert the changes.
//! Before that, the status is that the daemon is gone.
//! The test compares the cgroup and affinity of every thread, and the weight of every cgroup.

use tandem_testing::kills;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use tandem_linux::cgroup::{CgroupError, CgroupPath, CpuController, Knob};
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_linux::{ProcFs, cgroup};

/// Default number of kills, without TANDEM_KILLS.
const KILLS: u32 = 50;
/// Maximum time between start and kill, in milliseconds.
/// By then the daemon has made groups, moved threads, changed pins and written weights.
/// Turns and vCPUs apart start later; the live tests of the fleet kill daemons during these.
const WITHIN_MS: u32 = 500;

/// A child that is killed on drop.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A cgroup that is removed on drop, even if threads are still in it after a failure.
struct Group<'a>(&'a dyn CpuController, CgroupPath);

impl Drop for Group<'_> {
    fn drop(&mut self) {
        let above = self.1.parent().unwrap_or_else(CgroupPath::root);
        for tid in self.0.threads(&self.1).unwrap_or_default() {
            let _ = self.0.move_thread(tid, &above);
        }
        let _ = self.0.remove(&self.1);
    }
}

/// Returns the prefix of the names of this test's VMs and cgroups.
/// Other VMs and cgroups, such as those of another Tandem, may change at any time.
fn ours() -> String {
    // Names of VMs have at most 8 characters.
    format!("dk{:04x}", std::process::id() & 0xffff)
}

fn tandem() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tandem"))
}

fn start_vm(name: &str, vcpus: u32, pin: &str) -> Guard {
    let mut vm = Guard(
        tandem()
            .args(["vm", "run", "--control-stdio", "--backend", "threads", "--workload", "burn"])
            .args(["--name", name, "--vcpus", &vcpus.to_string(), "--pin", pin])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut ready = String::new();
    BufReader::new(vm.0.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
    assert!(ready.contains("\"ready\":true"), "{ready}");
    vm
}

fn threads(pid: u32) -> Vec<ThreadRef> {
    let procfs = ProcFs::host();
    std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .filter_map(|task| task.unwrap().file_name().to_str()?.parse().ok())
        .map(|tid| ThreadRef::read(&procfs, Pid(pid), Tid(tid)).unwrap())
        .collect()
}

/// Returns the state of this test's VMs and cgroups that the daemon can change, by name.
fn snapshot(controller: &dyn CpuController, vms: &[Guard]) -> BTreeMap<String, String> {
    let mut seen = BTreeMap::new();
    for vm in vms {
        for thread in threads(vm.0.id()) {
            let cgroup = controller.cgroup_of(&thread).unwrap();
            seen.insert(format!("cgroup of {thread}"), cgroup.to_string());
            let status =
                std::fs::read_to_string(format!("/proc/{}/task/{}/status", thread.pid, thread.tid))
                    .unwrap();
            let allowed = status.lines().find(|line| line.starts_with("Cpus_allowed_list"));
            seen.insert(format!("affinity of {thread}"), allowed.unwrap().to_owned());
        }
    }
    weights(controller, &CgroupPath::root(), &mut seen);
    seen
}

fn weights(
    controller: &dyn CpuController,
    cgroup: &CgroupPath,
    seen: &mut BTreeMap<String, String>,
) {
    // Cgroups of others may have been removed meanwhile.
    for child in controller.children(cgroup).unwrap_or_default() {
        if child.0.contains(&ours()) {
            // Linux before 5.15 has no idle class.
            for (what, knob) in [("weight", Knob::Weight), ("idle class", Knob::Idle)] {
                let text = controller.read_knob(&child, knob).unwrap_or_default();
                seen.insert(format!("{what} of {child}"), text);
            }
        }
        weights(controller, &child, seen);
    }
}

/// Moves all threads of a VM into a new cgroup with its own weight.
fn own_group<'a>(
    controller: &'a dyn CpuController,
    home: &CgroupPath,
    vm: &Guard,
) -> Result<Group<'a>, CgroupError> {
    let own = Group(controller, controller.create_child(home, &format!("{}-own", ours()))?);
    controller.set_weight(&own.1, tandem_model::Weight::constant(777.0))?;
    for thread in threads(vm.0.id()) {
        controller.move_thread(thread.tid, &own.1)?;
    }
    Ok(own)
}

fn start_daemon(state: &Path) -> Guard {
    Guard(
        tandem()
            .args([
                "host",
                "run",
                &format!("{}*", ours()),
                "--placement",
                "rebalance",
                "--without-kvm",
                "uid:0",
            ])
            .args(["--period-ms", "30", "--scan-ms", "100", "--state-dir"])
            .arg(state)
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    )
}

fn status(state: &Path) -> serde_json::Value {
    let output =
        tandem().args(["host", "status", "--json", "--state-dir"]).arg(state).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "no daemon runs: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
#[ignore = "needs root and KVM"]
fn sigkill_at_random_moments_is_reverted() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: cgroups and other processes' affinities need root");
        return;
    }
    let controller = match cgroup::open(&ProcFs::host()) {
        Ok(controller) => controller,
        Err(error) => {
            println!("skipped: no usable cpu controller: {error}");
            return;
        }
    };
    if std::thread::available_parallelism().map_or(1, |n| n.get()) < 2 {
        println!("skipped: pins on two pCPUs need two pCPUs");
        return;
    }
    let controller = controller.as_ref();
    let vms = [
        start_vm(&format!("{}-0", ours()), 2, "0,1"),
        start_vm(&format!("{}-1", ours()), 1, "0"),
        start_vm(&format!("{}-2", ours()), 1, "0"),
    ];
    let home = controller.cgroup_of(&threads(vms[1].0.id())[0]).unwrap();
    let _own = match own_group(controller, &home, &vms[1]) {
        Ok(own) => own,
        Err(error) => {
            println!("skipped: cannot make the cgroup of a VM: {error}");
            return;
        }
    };

    let state = tempfile::tempdir().unwrap();
    let before = snapshot(controller, &vms);
    let mut moments = Pcg32::seed_from_u64(9);
    let mut changed = 0;
    let kills = kills::kills(KILLS);
    for kill in 0..kills {
        let mut daemon = start_daemon(state.path());
        let moment = moments.next_u32() % WITHIN_MS;
        std::thread::sleep(Duration::from_millis(u64::from(moment)));
        daemon.0.kill().unwrap();
        daemon.0.wait().unwrap();
        if snapshot(controller, &vms) != before {
            changed += 1;
            let status = status(state.path());
            assert_eq!((&status["daemon"], &status["unrestored"]), (&"gone".into(), &true.into()));
            assert!(status["service"].is_null(), "{status}");
        }
        let journal = std::fs::read_to_string(state.path().join("journal")).unwrap_or_default();
        let output = if kill % 2 == 0 {
            tandem().args(["host", "restore", "--state-dir"]).arg(state.path()).output().unwrap()
        } else {
            // The next start reverts changes first; it stops immediately, without new changes.
            tandem()
                .args(["host", "run", "nobody", "--duration", "0s", "--state-dir"])
                .arg(state.path())
                .output()
                .unwrap()
        };
        assert!(output.status.success(), "{output:?}");
        let status = status(state.path());
        // Another daemon may run on this host meanwhile.
        let daemon = status["daemon"].as_str();
        assert!(
            matches!(daemon, Some("none" | "elsewhere")) && status["unrestored"] == false,
            "kill {kill}: {status}"
        );
        assert_eq!(
            snapshot(controller, &vms),
            before,
            "kill {kill} after {moment} ms, reverted by {output:?} from {journal}"
        );
    }
    // Kills before any change would prove nothing.
    assert!(changed > kills / 2, "only {changed} of {kills} kills came after a change");
    println!("{changed} of {kills} kills came after a change");
}
