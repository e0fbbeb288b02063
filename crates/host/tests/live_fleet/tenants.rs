//! Settings of tenants on their own cgroups are no claims on others.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use tandem_host::config::VmRule;
use tandem_host::discovery::{Discovery, DiscoveryOptions, Vm};
use tandem_host::fleet::{Backend, Fleet};
use tandem_linux::ProcFs;
use tandem_linux::cgroup::{CgroupPath, CpuController, Version};
use tandem_linux::sampler::Sampler;
use tandem_model::PolicySet;

use crate::harness::{Skip, Test};
use crate::helper::Helper;
use crate::host::{LiveHost, controller};
use crate::subject::{OWNER, SHARED, Subject};

/// All tests, in the order in which they run.
pub const ALL: &[(&str, Test)] = &[
    ("spoof_weight", spoof_weight),
    ("delegated_weight", delegated_weight),
    ("roots_weight_counts", roots_weight),
    ("a_cgroup_called_deleted_is_one", deleted),
    ("a_cgroup_whose_name_is_no_text_is_told", no_text),
];

/// A user without any rights.
const TENANT: u32 = 65_534;

/// Gives a cgroup's folder and weight to a tenant, like `chown -R`.
fn give_away(controller: &dyn CpuController, cgroup: &CgroupPath) {
    let folder = controller.mount().join(cgroup.0.trim_start_matches('/'));
    let weight = match controller.version() {
        Version::V1 => "cpu.shares",
        Version::V2 => "cpu.weight",
    };
    for path in [folder.clone(), folder.join(weight)] {
        std::os::unix::fs::chown(path, Some(TENANT), None).expect("root may");
    }
    let owners = controller.owners(cgroup).expect("it is there");
    assert_eq!((owners.folder, owners.weight), (TENANT, Some(TENANT)));
}

/// A tenant's own cgroup has the maximum weight: the default counts, and is written.
fn delegated_weight() -> Result<(), Skip> {
    let live_host = LiveHost::new()?;
    let controller = controller()?;
    let (default, (_, most)) = (controller.default_weight(), controller.weight_range());
    controller.set_weight(&live_host.own, most).expect("it is there");
    give_away(controller.as_ref(), &live_host.own);
    let own = live_host.own.clone();
    let mut subject = Subject::acting_on(live_host)?;
    let observed = subject.observe(OWNER);
    assert_eq!((observed.weight, observed.in_force.weight), (default, default));
    assert_eq!(subject.observe(SHARED).weight, default);
    assert_eq!(subject.weight(&own), default);
    // The tenant sets it again while the daemon runs: still no claim.
    controller.set_weight(&own, most).expect("it is there");
    let said = subject.recheck();
    assert!(!said.iter().any(|line| line.contains("counts as configured")), "{said:?}");
    assert_eq!(subject.observe(OWNER).weight, default);
    assert_eq!(subject.weight(&own), default);
    Ok(())
}

/// The same weight set by root is the operator's.
fn roots_weight() -> Result<(), Skip> {
    let live_host = LiveHost::new()?;
    let controller = controller()?;
    let triple = controller.default_weight().times(3.0);
    controller.set_weight(&live_host.own, triple).expect("it is there");
    let mut subject = Subject::acting_on(live_host)?;
    assert_eq!(subject.observe(OWNER).weight, triple);
    Ok(())
}

/// Returns the configured weight of a VM in a dry run under these rules, relative to the default.
fn weight_under(rules: Vec<VmRule>, vm: &Vm) -> Result<f64, Skip> {
    let backend = Backend::Dry(controller()?);
    let sampler = Sampler::new(ProcFs::host());
    let mut fleet = Fleet::new(backend, sampler, rules, PolicySet::ALL);
    let vms = [vm.clone()];
    let (_, refused) = fleet.update(&vms, &vms);
    assert!(refused.is_empty(), "{refused:?}");
    let default = fleet.controller().default_weight();
    let managed = fleet.vm(vm.id).expect("it is taken");
    Ok(managed.configured.value() / default.value())
}

/// An ordinary user gives a thread the name of the operator's VMs.
fn spoof_weight() -> Result<(), Skip> {
    let controller = controller()?;
    let live_host = LiveHost::new()?;
    let poser = Helper::start_as(TENANT, "vm", &["db-1", "1"]);
    // These tests may run in /machine.slice, where names count, so the impostor runs elsewhere.
    let own = live_host.own.0.trim_start_matches('/');
    let procs = controller.mount().join(own).join("cgroup.procs");
    std::fs::write(procs, poser.pid().to_string()).expect("a process can be moved");
    let find = |without_kvm: &[String]| {
        let options =
            DiscoveryOptions { without_kvm: without_kvm.to_vec(), ..DiscoveryOptions::default() };
        let mut discovery = Discovery::new(options, ProcFs::host()).expect("they are right");
        let vms = discovery.scan().expect("it scans").vms;
        vms.into_iter().find(|vm| vm.process.pid == poser.pid())
    };
    assert_eq!(find(&[]), None, "without KVM it is no VM");
    // Even if the operator named it as a VM, its name does not count.
    let vm = find(&[poser.pid().to_string()]).expect("the operator named it");
    assert_eq!(vm.name, "db-1");
    let rule = |whose: VmRule| VmRule { weight: Some(100.0), ..whose };
    let name = VmRule::whose("db-*").expect("a name");
    assert_eq!(weight_under(vec![rule(name.clone())], &vm)?, 1.0);
    let user = |uid| VmRule { uid: Some(uid), ..name.clone() };
    assert_eq!(weight_under(vec![rule(user(TENANT))], &vm)?, 100.0);
    assert_eq!(weight_under(vec![rule(user(0))], &vm)?, 1.0);
    let anybody = VmRule::whose(&format!("uid:{TENANT}")).expect("a user");
    assert_eq!(weight_under(vec![rule(anybody)], &vm)?, 100.0);
    Ok(())
}

/// A tenant names a cgroup like the kernel names a removed one.
fn deleted() -> Result<(), Skip> {
    let live_host = LiveHost::new()?;
    let controller = controller()?;
    let name = format!("{}x (deleted)", live_host.prefix);
    let thread = live_host.own_threads()[0];
    let group =
        controller.create_child(&live_host.own, &name).map_err(|error| Skip(error.to_string()))?;
    let moved = controller.move_thread(thread.tid, &group);
    let place = controller.cgroup_of(&thread);
    controller.move_thread(thread.tid, &live_host.own).ok();
    controller.remove(&group).expect("it is empty");
    if let Err(error) = moved {
        return Err(Skip(error.to_string()));
    }
    assert_eq!(place.expect("it is there"), group);
    Ok(())
}

/// A tenant gives a cgroup a name that no text can express: this is reported, and the VM does not count as ended.
fn no_text() -> Result<(), Skip> {
    let live_host = LiveHost::new()?;
    let controller = controller()?;
    let thread = live_host.own_threads()[0];
    let own = live_host.own.0.trim_start_matches('/');
    let mut name = live_host.prefix.clone().into_bytes();
    name.extend(b"x\xff");
    let folder = controller.mount().join(own).join(OsStr::from_bytes(&name));
    fs::create_dir(&folder).map_err(|error| Skip(error.to_string()))?;
    let members = match controller.version() {
        Version::V1 => "tasks",
        Version::V2 => "cgroup.threads",
    };
    if controller.version() == Version::V2 {
        fs::write(folder.join("cgroup.type"), "threaded").ok();
    }
    let moved = fs::write(folder.join(members), thread.tid.to_string());
    let place = controller.cgroup_of(&thread);
    controller.move_thread(thread.tid, &live_host.own).ok();
    fs::remove_dir(&folder).expect("it is empty");
    if let Err(error) = moved {
        return Err(Skip(error.to_string()));
    }
    let error = place.expect_err("no path leads there");
    assert!(!error.is_gone() && error.to_string().contains("UTF-8"), "{error}");
    Ok(())
}
