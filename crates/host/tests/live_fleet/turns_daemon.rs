//! The helper that stands for a daemon whose VMs take turns, and its watchdog.

use std::env;
use std::io::Write;
use std::io::stdin;
use std::io::stdout;
use std::path::Path;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use tandem_host::fleet::Backend;
use tandem_host::fleet::Fleet;
use tandem_host::turns::watchdog::watch;
use tandem_linux::ProcFs;
use tandem_linux::actuator::Actuator;
use tandem_linux::cgroup;
use tandem_linux::sampler::Sampler;
use tandem_linux::thread::Pid;
use tandem_policy::Nanos;
use tandem_policy::PcpuId;
use tandem_policy::PolicySet;
use tandem_policy::VcpuId;
use tandem_policy::VmId;
use tandem_policy::host::Host;
use tandem_policy::turns::Member;
use tandem_policy::turns::Rotation;

use crate::helper::command;
use crate::helper::number;
use crate::subject::OWNER;
use crate::subject::SHARED;
use crate::subject::describe_process;
use crate::subject::set_affinity;
use crate::subject::set_weight;
use crate::subject::single;
use crate::subject::whole;

/// Both VMs take turns of 20 ms, with their first two vCPUs on pCPU 0.
pub fn both() -> Rotation {
    let member = |vm: VmId| Member {
        vm,
        seats: (0..2).map(|n| (VcpuId(n), PcpuId(0))).collect(),
        due: 0.5,
    };
    Rotation {
        turn: Nanos::from_millis(20),
        members: vec![member(SHARED), member(OWNER)],
    }
}

/// Is the daemon: it changes weights, affinities and groups of single vCPUs too. Says `ready`, and then its watchdog's process.
pub fn be_a_daemon() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [state_dir, shared, owner] = arguments.as_slice() else {
        panic!("daemon STATE_DIR PID PID");
    };
    let controller = cgroup::open(&ProcFs::host()).expect("a controller");
    let (actuator, _) = Actuator::open(controller, Path::new(state_dir)).expect("the lock");
    let fleet = Fleet::new(
        Backend::Live(Box::new(actuator)),
        Sampler::new(ProcFs::host()),
        Vec::new(),
        PolicySet::ALL,
    );
    let mut fleet = fleet.with_watchdog(command("watchdog"));
    let vms = [(SHARED, shared), (OWNER, owner)];
    let vms = vms.map(|(id, pid)| describe_process(id, Pid(number(pid) as u32)));
    let (_, refused) = fleet.update(&vms, &vms);
    assert!(refused.is_empty(), "{refused:?}");
    let period = Nanos::from_millis(100);
    fleet.observe(period, period, false);
    let mut changes = vec![set_weight(whole(SHARED), 700.0)];
    for vm in [SHARED, OWNER] {
        changes.push(set_affinity(vm, 0, &[PcpuId(0)].into_iter().collect()));
        changes.push(set_weight(single(vm, 1), 300.0));
    }
    fleet.apply(&changes);
    fleet.rotate(&both());
    let watchdog = fleet.turn_watchdog().expect("it is started");
    println!("ready\n{watchdog}");
    stdout().flush().expect("the test reads");
    loop {
        sleep(Duration::from_millis(20));
        fleet.observe(period, period, false);
        fleet.rotate(&both());
    }
}

/// Is the watchdog.
pub fn be_a_watchdog() -> ExitCode {
    let controller = cgroup::open(&ProcFs::host()).expect("a controller");
    watch(stdin(), &*controller).expect("it watches");
    ExitCode::SUCCESS
}
