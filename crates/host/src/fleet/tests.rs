//! Many VMs that start or end at once, and VMs that cannot be adopted, do not delay other VMs.
//!
//! The host is simulated in memory.
//! No test measures time: an update has a budget of zero or an unlimited one, and the tests count its reads and changes.

mod adopt;
mod vcpus;

use tandem_linux::journal::is_pending;
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_model::{Because, PcpuSet, VcpuId};
use tandem_testing::faulty::{Faults, FaultyDisk};

use super::*;
use crate::fixtures::tree::{Tree, USER, VmTree};
use crate::vm_cpu::found;

const VCPUS: u32 = 2;

/// A fleet, its simulated host and its journal.
struct Subject {
    fleet: Fleet,
    tree: Tree,
    disk: Faults,
    dir: tempfile::TempDir,
}

impl Subject {
    fn new(budget: Duration) -> Subject {
        let mut subject = Subject::before_the_first_update();
        subject.fleet.budget = budget;
        // The first update has a larger budget.
        subject.fleet.update(&[], &[]);
        subject
    }

    fn before_the_first_update() -> Subject {
        let (dir, tree) = (tempfile::tempdir().unwrap(), Tree::default());
        let disk = Faults::default();
        let actuator = Actuator::open_on(
            Box::new(FaultyDisk(disk.clone())),
            Box::new(tree.clone()),
            Box::new(tree.clone()),
            dir.path(),
            "boot",
        );
        let backend = Backend::Live(Box::new(actuator.unwrap().0));
        let sampler = Sampler::new(ProcFs::at(dir.path()));
        Subject { fleet: Fleet::new(backend, sampler, Vec::new(), PolicySet::ALL), tree, disk, dir }
    }

    /// VMs that share a cgroup with others.
    fn vms(&self, count: u32) -> Vec<Vm> {
        self.tree.put_other(0, "/vms");
        (0..count).map(|n| self.tree.vm(n, VCPUS, |_| "/vms".to_owned())).collect()
    }

    /// Updates the fleet with these VMs and returns the managed ones.
    fn update(&mut self, found: &[Vm]) -> Vec<VmId> {
        self.fleet.update(found, found);
        self.fleet.vms().map(|managed| managed.vm.id).collect()
    }
}

/// A VM that a tenant has made impossible to adopt, and slow to check: another process runs in the first of thousands of cgroups.
fn hostile(tree: &Tree) -> Vm {
    tree.make_unfit("/his");
    tree.put_other(1, "/his/a");
    (0..5_000).for_each(|n| tree.make(&format!("/his/b{n}")));
    tree.vm(0, VCPUS, |_| "/his".to_owned())
}

#[test]
fn hostile_unfit_vms_delay_no_others() {
    let mut subject = Subject::new(Duration::ZERO);
    let first = hostile(&subject.tree);
    let before = subject.tree.asked();
    assert!(subject.update(std::slice::from_ref(&first)).is_empty());
    let tried = subject.tree.asked();
    assert_eq!(tried.parents - before.parents, 1);
    assert!(tried.reads - before.reads < 100, "of thousands of cgroups: {tried:?}");
    // Even without time, an update tries one new VM and one that failed before.
    let fresh = subject.tree.vm(1, VCPUS, |_| "/fresh".to_owned());
    let both = [first, fresh];
    assert_eq!(subject.update(&both), [both[1].id]);
}

#[test]
fn unfit_vm_is_retried_until_adopted() {
    let mut subject = Subject::new(Duration::ZERO);
    let tree = subject.tree.clone();
    let first = hostile(&tree);
    let selected = std::slice::from_ref(&first);
    // Adopting one VM reads the cgroups of all VMs of the host.
    let mut all: Vec<Vm> = (1..50).map(|n| tree.vm(n, VCPUS, |_| "/others".to_owned())).collect();
    all.push(first.clone());
    let before = tree.asked();
    for _ in 0..127 {
        let (_, refused) = subject.fleet.update(selected, &all);
        assert!(refused.len() <= 1);
    }
    let after = tree.asked();
    let tries = after.parents - before.parents;
    assert!((6..=8).contains(&tries), "{tries} tries in 127 looks");
    let (places, threads) = (after.places - before.places, VCPUS as usize + 1);
    assert!(
        places <= tries * (all.len() * threads + 1),
        "{places} looks where a thread is, in {tries} tries"
    );
    tree.make_fit("/his");
    let looks = (1..=64).find(|_| !subject.update(selected).is_empty());
    assert!(looks.is_some(), "it is adopted in the end");
}

#[test]
fn oldest_candidate_is_tried_first() {
    let mut subject = Subject::new(Duration::ZERO);
    let vms = subject.vms(4);
    let ids: Vec<VmId> = vms.iter().map(|vm| vm.id).collect();
    assert_eq!(subject.update(&vms[2..]), ids[2..3]);
    assert_eq!(subject.update(&vms), ids[2..], "the last has waited");
    assert_eq!(subject.update(&vms), [ids[0], ids[2], ids[3]]);
    assert_eq!(subject.update(&vms), ids);
}

#[test]
fn first_update_has_longer_budget() {
    let mut subject = Subject::before_the_first_update();
    let vms = subject.vms(10);
    // Each new group takes a second.
    let (began, tree) = (Instant::now(), subject.tree.clone());
    subject.fleet.now =
        Box::new(move || began + Duration::from_secs(1) * tree.below("/vms") as u32);
    for adopted in 5..=10 {
        assert_eq!(subject.update(&vms).len(), adopted);
    }
}

#[test]
fn many_ended_vms_cost_one_journal_write() {
    let mut subject = Subject::new(Duration::MAX);
    let vms = subject.vms(200);
    assert_eq!(subject.update(&vms).len(), 200);
    let (gone, others) = vms.split_at(100);
    // Cost of an update without changes.
    let before = subject.tree.asked().lives;
    subject.update(&vms);
    let quiet = subject.tree.asked().lives - before;
    gone.iter().for_each(|vm| subject.tree.end_vm(vm));
    let (before, rewrites) = (subject.tree.asked().lives, subject.disk.calls().1);
    assert_eq!(subject.update(others).len(), 100);
    let lives = subject.tree.asked().lives - before;
    assert!(
        lives <= quiet / 2 + 100 * VCPUS as usize,
        "{lives} checks whether a thread is alive, {quiet} in an update without changes"
    );
    let after = subject.disk.calls().1;
    assert_eq!(after - rewrites, 1, "rewrites of the journal");
    assert_eq!(subject.tree.below("/vms"), 100);
}

#[test]
fn reverts_beyond_the_budget_wait_for_next_updates() {
    let mut subject = Subject::new(Duration::MAX);
    let vms = subject.vms(10);
    assert_eq!(subject.update(&vms).len(), 10);
    subject.fleet.budget = Duration::ZERO;
    for looks in 1..=9 {
        // None of them is managed or observed; each update removes one group.
        assert!(subject.update(&[]).is_empty());
        assert!(subject.fleet.observe(Nanos(1), Nanos(1), false).is_empty());
        assert_eq!(subject.tree.below("/vms"), 10 - looks);
    }
    // The last one is selected again: it is adopted after its earlier changes are reverted.
    assert_eq!(subject.update(&vms[9..]), [vms[9].id]);
    assert_eq!(subject.tree.below("/vms"), 1);
    assert!(subject.update(&[]).is_empty());
    assert_eq!(subject.tree.below("/vms"), 0);
    assert!(!is_pending(subject.dir.path()));
}

#[test]
fn hostile_busy_groups_delay_no_vm() {
    let mut subject = Subject::new(Duration::MAX);
    let vms = subject.vms(10);
    assert_eq!(subject.update(&vms).len(), 10);
    subject.tree.make_busy("/vms", true);
    let others = subject.vms(12).split_off(10);
    let before = subject.tree.asked();
    assert_eq!(subject.update(&others).len(), 2, "others are adopted");
    let reported = (0..40).map(|_| subject.fleet.update(&others, &others).1);
    let reported: Vec<Refused> = reported.flatten().collect();
    assert_eq!(reported.len(), 10, "each is reported once: {reported:?}");
    let error = &reported[0].error;
    assert!(error.contains("1 threads") && error.ends_with("it is tried again"));
    let asked = subject.tree.asked();
    let tries = 41 * 10;
    let reads = asked.reads - before.reads;
    assert!(reads < tries * 12, "{reads} reads for {tries} tries");
    assert_eq!(subject.tree.below("/vms"), 12);
    subject.tree.make_busy("/vms", false);
    subject.update(&others);
    assert_eq!(subject.tree.below("/vms"), 2);
    subject.update(&[]);
    assert!(!is_pending(subject.dir.path()));
}

#[test]
fn new_leavers_are_reverted_before_busy_groups() {
    let mut subject = Subject::new(Duration::MAX);
    let vms = subject.vms(3);
    assert_eq!(subject.update(&vms).len(), 3);
    subject.tree.make_busy("/vms", true);
    let other = subject.vms(4).split_off(3);
    assert_eq!(subject.update(&other), [other[0].id]);
    assert_eq!(subject.tree.below("/vms"), 4);
    subject.fleet.budget = Duration::ZERO;
    assert!(subject.update(&[]).is_empty());
    assert_eq!(subject.tree.below("/vms"), 3);
}

#[test]
fn vms_of_one_process_are_all_adopted() {
    let mut subject = Subject::new(Duration::MAX);
    let mut vms = subject.vms(2);
    vms[1].process = vms[0].process;
    vms[1].vcpus.truncate(1);
    assert_eq!(subject.update(&vms).len(), 2);
}

#[test]
fn returning_vm_waits_for_its_revert() {
    let mut subject = Subject::new(Duration::MAX);
    let vms = subject.vms(3);
    assert_eq!(subject.update(&vms).len(), 3);
    subject.fleet.budget = Duration::ZERO;
    assert!(subject.update(&[]).is_empty(), "reverts the first");
    assert!(subject.update(&vms[2..]).is_empty(), "reverts the second");
    assert_eq!(subject.tree.below("/vms"), 1);
    assert_eq!(subject.update(&vms[2..]), [vms[2].id]);
    assert_eq!(subject.tree.below("/vms"), 1);
    // The revert leaves the new group alone.
    assert_eq!(subject.update(&vms[2..]), [vms[2].id]);
    assert_eq!(subject.tree.below("/vms"), 1);
}

#[test]
fn drop_reverts_remaining_changes() {
    let mut subject = Subject::new(Duration::MAX);
    let vms = subject.vms(5);
    subject.update(&vms);
    subject.fleet.budget = Duration::ZERO;
    subject.update(&[]);
    assert_eq!(subject.tree.below("/vms"), 4);
    drop(subject.fleet);
    assert_eq!(subject.tree.below("/vms"), 0);
    assert!(!is_pending(subject.dir.path()));
}

/// Sleeping threads of this process, which end when this is dropped.
struct Idlers {
    threads: Vec<ThreadRef>,
    _ends: Vec<std::sync::mpsc::Sender<()>>,
}

impl Idlers {
    fn new(count: usize) -> Idlers {
        let (send_tid, tids) = std::sync::mpsc::channel();
        let ends = (0..count).map(|_| {
            let (end, ends) = std::sync::mpsc::channel::<()>();
            let send_tid = send_tid.clone();
            std::thread::spawn(move || {
                let tid = rustix::thread::gettid().as_raw_nonzero().get();
                send_tid.send(tid.unsigned_abs()).unwrap();
                let _ = ends.recv();
            });
            end
        });
        let _ends = ends.collect();
        let (procfs, own) = (ProcFs::host(), Pid(std::process::id()));
        let threads = tids.into_iter().take(count);
        let threads = threads.map(|tid| ThreadRef::read(&procfs, own, Tid(tid)).unwrap());
        Idlers { threads: threads.collect(), _ends }
    }
}

impl Subject {
    /// VMs whose vCPUs are real threads, and for each VM a thread to replace its second vCPU.
    fn vms_of_threads(&self, idlers: &Idlers) -> (Vec<Vm>, Vec<ThreadRef>) {
        let count = idlers.threads.len() / 3;
        let mut vms = self.vms(count as u32);
        let (vcpus, others) = idlers.threads.split_at(2 * count);
        for (vm, threads) in vms.iter_mut().zip(vcpus.chunks(2)) {
            for (vcpu, thread) in vm.vcpus.iter_mut().zip(threads) {
                vcpu.thread = *thread;
                self.tree.put(*thread, &CgroupPath("/vms".to_owned()));
            }
        }
        (vms, others.to_vec())
    }

    fn replace_vcpus(&self, vms: &mut [Vm], others: &[ThreadRef]) {
        for (vm, thread) in vms.iter_mut().zip(others) {
            vm.vcpus[1].thread = *thread;
            self.tree.put(*thread, &CgroupPath("/vms".to_owned()));
        }
    }

    fn has_vcpus(&self, vm: &Vm) -> bool {
        let managed = self.fleet.vm(vm.id).unwrap();
        let threads: Vec<ThreadRef> =
            managed.cpu.vcpus.iter().map(|vcpu| vcpu.host.thread).collect();
        vm.vcpus.iter().all(|vcpu| threads.contains(&vcpu.thread))
    }
}

#[test]
fn hostile_vcpu_replacements_cost_one_journal_write() {
    let mut subject = Subject::new(Duration::MAX);
    let idlers = Idlers::new(60);
    let (mut vms, others) = subject.vms_of_threads(&idlers);
    assert_eq!(subject.update(&vms).len(), 20);
    assert!(vms.iter().all(|vm| subject.has_vcpus(vm)));
    subject.replace_vcpus(&mut vms, &others);
    let before = subject.disk.calls().1;
    subject.update(&vms);
    assert!(vms.iter().all(|vm| subject.has_vcpus(vm)));
    let rewrites = subject.disk.calls().1 - before;
    assert!(rewrites <= 1, "{rewrites} rewrites of the journal");
}

#[test]
fn hostile_vcpu_replacements_delay_no_other_vm() {
    let mut subject = Subject::new(Duration::MAX);
    let idlers = Idlers::new(30);
    let (mut vms, others) = subject.vms_of_threads(&idlers);
    assert_eq!(subject.update(&vms).len(), 10);
    subject.fleet.budget = Duration::ZERO;
    subject.replace_vcpus(&mut vms, &others);
    for looks in 1..=10 {
        assert_eq!(subject.update(&vms).len(), 10, "all stay managed");
        let taken = vms.iter().filter(|vm| subject.has_vcpus(vm)).count();
        assert_eq!(taken, looks);
        // The first VM replaces its vCPUs each time.
        let first = vms[0].vcpus[0].thread;
        vms[0].vcpus[0].thread = vms[0].vcpus[1].thread;
        vms[0].vcpus[1].thread = first;
    }
}

#[test]
fn hostile_trickle_of_vms_rereads_no_others() {
    let mut subject = Subject::new(Duration::MAX);
    let tree = subject.tree.clone();
    let mut vms: Vec<Vm> =
        (0..200).map(|n| tree.vm(n, VCPUS, |_| format!("/others/{n}/vm"))).collect();
    subject.update(&vms);
    let come = |subject: &mut Subject, vms: &mut Vec<Vm>| {
        let n = vms.len() as u32;
        vms.push(tree.vm(n, VCPUS, |_| format!("/his/{n}/vm")));
        subject.update(vms)
    };
    // The first few updates read the places of all VMs.
    for _ in 0..3 {
        come(&mut subject, &mut vms);
    }
    let looks = 8;
    let before = tree.asked();
    for _ in 0..looks {
        come(&mut subject, &mut vms);
    }
    assert_eq!(vms.len(), subject.fleet.vms().count());
    let places = tree.asked().places - before.places;
    // Reads of an update without a new VM.
    let before = tree.asked();
    for _ in 0..looks {
        subject.update(&vms);
    }
    let quiet = tree.asked().places - before.places;
    let of_new = places.saturating_sub(quiet);
    // Every 16th update reads the place of each VM.
    let all = vms.len() * (VCPUS as usize + 1);
    let most = all * looks / 16 + looks * 40;
    assert!(of_new <= most, "{of_new} places read for {looks} new VMs, more than {most}");
}

#[test]
fn hostile_cgroups_are_charged_to_their_user() {
    let mut subject = Subject::new(Duration::from_secs(60));
    let tree = subject.tree.clone();
    let mut vms = subject.vms(2);
    vms.push(tree.vm(2, VCPUS, |_| "/own".to_owned()));
    assert_eq!(subject.update(&vms).len(), 3);
    let user = |subject: &Subject, cgroup: &CgroupPath| match &subject.fleet.backend {
        Backend::Live(actuator) => actuator.charged_user(cgroup),
        Backend::Dry(_) => None,
    };
    let mut cgroups: Vec<CgroupPath> = subject.fleet.vms().map(|vm| vm.cgroup().clone()).collect();
    assert!(cgroups.contains(&CgroupPath("/own".to_owned())));
    // The vCPUs of one VM get groups of their own.
    let portions: Vec<(VcpuId, f64)> = (0..VCPUS).map(|n| (VcpuId(n), 0.5)).collect();
    if let (Some(managed), Backend::Live(actuator)) =
        (subject.fleet.vms.get_mut(&vms[0].id), &mut subject.fleet.backend)
    {
        // The update took no vCPUs, because these threads do not exist.
        let threads = vms[0].vcpus.iter();
        managed.cpu.vcpus =
            threads.map(|vcpu| found(vcpu.index, vcpu.thread, PcpuSet::default())).collect();
        let divide = [Decision::Divide { vm: vms[0].id, portions, because: Because::Together }];
        let applied = Applied::all(&divide, &mut subject.fleet.vms, actuator);
        assert!(applied.refused.is_empty() && applied.others == 1, "{applied:?}");
        let vcpus = &subject.fleet.vms[&vms[0].id].cpu.vcpus;
        cgroups.extend(vcpus.iter().filter_map(|vcpu| vcpu.group.clone()));
    }
    assert_eq!(cgroups.len(), 3 + VCPUS as usize);
    for cgroup in &cgroups {
        assert_eq!(user(&subject, cgroup), Some(USER), "{cgroup}");
    }
    assert_eq!(user(&subject, &CgroupPath("/vms".to_owned())), None);
    assert!(subject.update(&[]).is_empty());
    for cgroup in &cgroups {
        assert_eq!(user(&subject, cgroup), None, "{cgroup} is released");
    }
    // A failed adoption leaves no charge after its revert.
    let unfit = hostile(&tree);
    assert!(subject.update(std::slice::from_ref(&unfit)).is_empty());
    assert!(subject.update(&[]).is_empty());
    let group = CgroupPath("/his".to_owned()).child(&crate::homes::group_name(&unfit));
    assert_eq!(user(&subject, &group), None);
}

#[test]
fn deselected_vm_is_reverted_at_once() {
    let mut subject = Subject::new(Duration::MAX);
    let vms = subject.vms(2);
    assert_eq!(subject.update(&vms).len(), 2);
    let groups: Vec<_> = subject.fleet.vms().map(|managed| managed.cgroup().clone()).collect();
    let (notes, _) = subject.fleet.update(&vms[1..], &vms);
    let said = notes.iter().any(|note| note.0.contains("its changes are reverted"));
    assert!(said, "{notes:?}");
    assert!(!subject.fleet.is_leaving(vms[0].process.pid), "it is reverted in the same update");
    assert!(!subject.fleet.controller().exists(&groups[0]));
    assert!(subject.fleet.controller().exists(&groups[1]), "the other VM keeps its group");
    assert_eq!(subject.update(&vms).len(), 2);
    assert!(subject.fleet.controller().exists(&groups[0]));
}

/// A rule for VMs with this name.
fn rule(name: &str) -> VmRule {
    VmRule { cgroup: Some("/vms".to_owned()), ..VmRule::whose(name).unwrap() }
}

#[test]
fn reload_keeps_vms_managed() {
    let mut subject = Subject::new(Duration::MAX);
    let vms = subject.vms(2);
    subject.update(&vms);
    let managed = |subject: &Subject| -> Vec<(CgroupPath, f64)> {
        let vms = subject.fleet.vms();
        vms.map(|managed| (managed.cgroup().clone(), managed.configured.value())).collect()
    };
    let before = managed(&subject);
    let changes = subject.tree.asked().changes;
    // The same settings change nothing.
    let (notes, refused) = subject.fleet.reconfigure(Vec::new(), PolicySet::ALL, false, false);
    assert!(notes.is_empty() && refused.is_empty(), "{notes:?}");
    assert_eq!((managed(&subject), subject.tree.asked().changes), (before.clone(), changes));
    // A weight is written, and the VM keeps its group.
    let weighed = VmRule { weight: Some(3.0), ..rule(&vms[0].name) };
    let (notes, _) = subject.fleet.reconfigure(vec![weighed], PolicySet::ALL, false, false);
    let after = managed(&subject);
    let heavier = after.iter().zip(&before).filter(|(now, then)| now.1 > 2.5 * then.1).count();
    assert!(heavier >= 1 && notes.iter().any(|note| note.0.contains("at weight")), "{notes:?}");
    let groups = |vms: &[(CgroupPath, f64)]| -> Vec<CgroupPath> {
        vms.iter().map(|(group, _)| group.clone()).collect()
    };
    assert_eq!(groups(&after), groups(&before));
    // Without its policies, each VM is reverted, and then measured only.
    let (notes, _) = subject.fleet.reconfigure(Vec::new(), PolicySet::NONE, false, false);
    assert_eq!((notes.len(), subject.fleet.vms().count()), (2, 0), "{notes:?}");
    subject.update(&vms);
    subject.update(&vms);
    assert!(subject.fleet.vms().all(ManagedVm::is_left_alone));
    assert!(groups(&before).iter().all(|group| !subject.fleet.controller().exists(group)));
}
