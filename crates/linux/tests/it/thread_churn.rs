//! VMs that start and end hundreds of threads per second: the journal holds the live ones, and no VM can fill it.

use tandem_linux::actuator::{Actuator, ActuatorError};
use tandem_linux::cgroup::{CgroupPath, MAX_PATH_LENGTH, Version};
use tandem_linux::thread::ThreadRef;
use tandem_model::{Nanos, Nice, PcpuId, Weight};
#[allow(dead_code, reason = "not every test uses all of it")]
use tandem_testing::fake_host::{Fake, open_on, state_dir};

/// Limit with room for a VM of 1,000 vCPUs.
const MAX_BYTES: u64 = 1 << 20;

fn size(dir: &std::path::Path) -> u64 {
    std::fs::metadata(dir.join("journal")).unwrap().len()
}

fn take(actuator: &mut Actuator, thread: &ThreadRef, group: &CgroupPath) {
    actuator.move_thread(thread, group).unwrap();
    let pcpus = [PcpuId(0)].into_iter().collect();
    actuator.set_affinity(thread, &pcpus).unwrap();
}

#[test]
fn thread_churn() {
    for are_released in [false, true] {
        let dir = state_dir();
        let host = Fake::new(Version::V2);
        let mut actuator = open_on(&host, dir.path());
        let home = CgroupPath("/vms/shared".to_owned());
        let group = actuator.create_group(&home, "tandem-x").unwrap();
        let mut longest = 0;
        for _ in 0..40 {
            // New threads since the last scan, half a second ago.
            let threads: Vec<ThreadRef> = (0..250).map(|_| host.start_in(&group)).collect();
            for thread in &threads {
                take(&mut actuator, thread, &group);
            }
            longest = longest.max(size(dir.path()));
            for thread in &threads {
                host.end(thread);
                if are_released {
                    actuator.release_thread(thread).unwrap();
                }
            }
        }
        assert!(longest < MAX_BYTES, "{longest} bytes, released: {are_released}");
        drop(actuator);
        assert_eq!(size(dir.path()), 0);
        assert_eq!(host.now(), host.wanted());
    }
}

#[test]
fn repeated_weights_leave_few_lines() {
    let dir = state_dir();
    let host = Fake::new(Version::V1);
    let mut actuator = open_on(&host, dir.path());
    let own = CgroupPath("/vms/own.scope".to_owned());
    let mut longest = 0;
    for n in 0..20_000u32 {
        let weight = Weight::constant(f64::from(2 + n % 9000));
        actuator.set_weight(&own, weight).unwrap();
        longest = longest.max(size(dir.path()));
    }
    assert!(longest < MAX_BYTES, "{longest} bytes");
    actuator.abandon();
    drop(open_on(&host, dir.path()));
    assert_eq!(host.now(), host.wanted());
}

#[test]
fn one_vm_cannot_fill_the_journal() {
    let dir = state_dir();
    let host = Fake::new(Version::V1);
    let mut actuator = open_on(&host, dir.path());
    let home = CgroupPath("/vms/shared".to_owned());
    let refused = (0..30_000).find_map(|_| {
        let thread = host.start_in(&home);
        let one = [PcpuId(0)].into_iter().collect();
        let slice = Some(Nanos::from_millis(3));
        let set = actuator.set_nice(&thread, Nice(1));
        let set = set.and_then(|_| actuator.set_slice(&thread, slice));
        set.and_then(|_| actuator.set_affinity(&thread, &one)).err()
    });
    let refused = refused.expect("there is a limit").to_string();
    assert!(refused.contains("process 1"), "{refused}");
    // The journal can be restored from, and then has room again.
    assert!(actuator.restore().is_complete());
    assert_eq!(host.now(), host.wanted());
    let thread = host.start_in(&home);
    actuator.set_nice(&thread, Nice(1)).unwrap();
}

#[test]
fn cgroups_with_long_paths_are_refused() {
    let dir = state_dir();
    let host = Fake::new(Version::V1);
    let mut actuator = open_on(&host, dir.path());
    let mut cgroup = CgroupPath("/vms".to_owned());
    while cgroup.0.len() <= MAX_PATH_LENGTH {
        let free = MAX_PATH_LENGTH - cgroup.0.len();
        cgroup = cgroup.child(&"x".repeat(free.clamp(1, 100)));
        host.make_cgroup(&cgroup);
    }
    let too_long = |error: Option<ActuatorError>| {
        let said = error.expect("it is refused").to_string();
        let bytes = cgroup.0.len().to_string();
        assert!(said.contains(&bytes) && said.contains("512"), "{said}");
        assert!(said.len() < 500, "{said}");
    };
    let thread = host.start_in(&cgroup);
    let home = CgroupPath("/vms/shared".to_owned());
    let group = actuator.create_group(&home, "tandem-x").unwrap();
    too_long(actuator.create_group(&cgroup, "tandem-x").err());
    too_long(actuator.move_thread(&thread, &group).err());
    too_long(actuator.set_weight(&cgroup, Weight::constant(5.0)).err());
    // A cgroup within the limit, and a group inside a group there.
    let above = cgroup.parent().unwrap();
    assert!(above.0.len() > MAX_PATH_LENGTH - 110, "{}", above.0.len());
    let group = actuator.create_group(&above, "tandem-x").unwrap();
    actuator.create_group(&group, "vcpu0").unwrap();
    drop(actuator);
    assert_eq!(host.now(), host.wanted());
}
