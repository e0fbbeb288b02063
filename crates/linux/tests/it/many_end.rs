//! Cost of the release of many VMs at once: proportional to their settings, whatever other VMs and records there are.
//!
//! The release may be interrupted after any VM and continued later.

use tandem_linux::actuator::{Actuator, Held};
use tandem_linux::cgroup::{CgroupPath, Version};
use tandem_linux::journal::is_pending;
use tandem_model::{Nice, PcpuId};
use tandem_testing::fake_host::Fake;
use tandem_testing::faulty::{Faults, open};

/// vCPUs of each VM.
const VCPUS: usize = 2;

/// A host with VMs in groups of an actuator, and counters of its calls.
struct Subject {
    dir: tempfile::TempDir,
    host: Fake,
    faults: Faults,
    actuator: Actuator,
}

impl Subject {
    fn new() -> Subject {
        let dir = tempfile::tempdir().unwrap();
        let (host, faults) = (Fake::new(Version::V2), Faults::default());
        let actuator = open(&host, &faults, dir.path());
        Subject { dir, host, faults, actuator }
    }

    /// Creates this many managed VMs.
    fn manage(&mut self, name: &str, count: usize) -> Vec<Held> {
        let home = CgroupPath("/vms/shared".to_owned());
        let vms = (0..count).map(|n| {
            let name = format!("tandem-{name}-{n}");
            let group = self.actuator.create_group(&home, &name).unwrap();
            let threads = (0..VCPUS).map(|_| {
                let thread = self.host.start_in(&home);
                let one = [PcpuId(0)].into_iter().collect();
                self.actuator.move_thread(&thread, &group).unwrap();
                self.actuator.set_affinity(&thread, &one).unwrap();
                self.actuator.set_nice(&thread, Nice(3)).unwrap();
                thread
            });
            let threads = threads.collect();
            Held { threads, cgroups: vec![group], ..Held::default() }
        });
        vms.collect()
    }

    /// Ends and releases these VMs; returns the numbers of calls and of replacements of the journal's file.
    fn end(&mut self, vms: &[Held]) -> (usize, usize) {
        for thread in vms.iter().flat_map(|held| &held.threads) {
            self.host.end(thread);
        }
        let before = self.faults.calls();
        let reports = self.actuator.release(&vms.iter().collect::<Vec<_>>(), || true);
        let after = self.faults.calls();
        assert_eq!(reports.len(), vms.len());
        assert!(reports.iter().all(|report| report.is_complete()));
        for held in vms {
            assert!(!self.actuator.controller().exists(&held.cgroups[0]));
        }
        (after.0 - before.0, after.1 - before.1)
    }
}

#[test]
fn release_cost_is_independent_of_other_vms() {
    let cost = |ended: usize, others: usize| {
        let mut subject = Subject::new();
        let gone = subject.manage("gone", ended);
        subject.manage("other", others);
        let (calls, renames) = subject.end(&gone);
        assert_eq!(renames, 1, "{ended} VMs that ended, {others} others");
        drop(subject.actuator);
        assert_eq!(subject.host.now(), subject.host.wanted());
        calls
    };
    let few = cost(20, 1);
    assert_eq!(cost(20, 100), few, "others are not read");
    assert!(cost(100, 1) <= 5 * few, "{few} calls for 20");
}

#[test]
fn release_of_ended_vcpus_writes_nothing() {
    let mut subject = Subject::new();
    let vms = subject.manage("vm", 10);
    let unplugged: Vec<Held> =
        vms.iter().map(|held| Held { threads: vec![held.threads[1]], ..Held::default() }).collect();
    for held in &unplugged {
        subject.host.end(&held.threads[0]);
    }
    let (calls, _) = subject.faults.calls();
    let all: Vec<&Held> = unplugged.iter().collect();
    assert_eq!(subject.actuator.release(&all, || true).len(), 10);
    let after = subject.faults.calls().0;
    assert_eq!(after - calls, 10, "one liveness check each");
}

#[test]
fn interrupted_release_is_completed_later() {
    for is_killed in [false, true] {
        let mut subject = Subject::new();
        let vms = subject.manage("vm", 10);
        let all: Vec<&Held> = vms.iter().collect();
        let is_there =
            |actuator: &Actuator, held: &Held| actuator.controller().exists(&held.cgroups[0]);
        let mut left = 3;
        let reports = subject.actuator.release(&all, || {
            left -= 1;
            left >= 0
        });
        assert_eq!(reports.len(), 3);
        // Affinity, nice value and cgroup of two vCPUs, and the group.
        assert!(reports.iter().all(|report| report.put_back == 7));
        let there: Vec<bool> = vms.iter().map(|held| is_there(&subject.actuator, held)).collect();
        assert_eq!(there, [vec![false; 3], vec![true; 7]].concat());
        if is_killed {
            subject.actuator.abandon();
            assert!(is_pending(subject.dir.path()));
            drop(open(&subject.host, &Faults::default(), subject.dir.path()));
        } else {
            let reports = subject.actuator.release(&all, || true);
            let put_back: Vec<usize> = reports.iter().map(|report| report.put_back).collect();
            // The controller is enabled for all of them, and is disabled with the last.
            assert_eq!(put_back[..9], [vec![0; 3], vec![7; 6]].concat());
            assert!(put_back[9] >= 7);
        }
        assert_eq!(subject.host.now(), subject.host.wanted());
        assert!(!is_pending(subject.dir.path()));
    }
}
