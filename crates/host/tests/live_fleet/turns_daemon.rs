//! Helper in place of a daemon whose VMs take turns or have their vCPUs divided, and its watchdog.

use std::io::{Write, stdin, stdout};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{env, fs};

use tandem_host::discovery::Vm;
use tandem_host::fleet::{Backend, Fleet};
use tandem_host::turns::watchdog::watch;
use tandem_linux::actuator::Actuator;
use tandem_linux::sampler::Sampler;
use tandem_linux::thread::Pid;
use tandem_linux::{ProcFs, cgroup};
use tandem_model::{Decision, Nanos, PcpuId, PolicySet, VcpuId, VmId};
use tandem_policy::host::Host;
use tandem_policy::turns::{Member, Rotation, Slot};

use crate::apart::divide;
use crate::helper::{command, number};
use crate::subject::{
    OWNER, SHARED, THIRD, describe_process, set_affinity, set_weight, single, whole,
};

/// Both VMs take turns of 20 ms, with their first two vCPUs on pCPU 0.
pub fn both() -> Rotation {
    both_for(20)
}

/// Both VMs take turns of this length in ms.
pub fn both_for(ms: u64) -> Rotation {
    let member = |(at, vm): (u64, VmId)| Member {
        vm,
        slots: vec![Slot {
            from: Nanos::from_millis(ms * at),
            to: Nanos::from_millis(ms * (at + 1)),
            pcpus: (0..2).map(|n| (VcpuId(n), PcpuId(0))).collect(),
        }],
        moves: false,
    };
    let members = (0..).zip([SHARED, OWNER]).map(member).collect();
    Rotation { length: Nanos::from_millis(2 * ms), members, next_to_residents: false }
}

/// File in the state folder for the daemon's errors with turns, and the PIDs of later watchdogs.
pub const TOLD: &str = "told";

/// All decisions about the vCPUs of a divided VM, applied repeatedly.
fn divisions(vm: VmId) -> [Decision; 4] {
    [
        divide(vm, &[0.5, 0.5]),
        divide(vm, &[0.25, 0.75]),
        set_weight(whole(vm), 900.0),
        divide(vm, &[]),
    ]
}

/// Runs the daemon: it also changes weights, affinities and groups of single vCPUs.
/// It divides the vCPUs of the third VM, if there is one, and merges them, continuously.
/// Prints `ready`, and then its watchdog's PID.
pub fn be_a_daemon() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [state_dir, shared, owner, third @ ..] = arguments.as_slice() else {
        panic!("daemon STATE_DIR PID PID [PID]");
    };
    let controller = cgroup::open(&ProcFs::host()).expect("a controller");
    let (actuator, _) = Actuator::open(controller, Path::new(state_dir)).expect("the lock");
    let fleet = Fleet::new(
        Backend::Live(Box::new(actuator)),
        Sampler::new(ProcFs::host()),
        Vec::new(),
        PolicySet::ALL,
    );
    let mut fleet = fleet.with_watchdog(watchdog(Path::new(state_dir)));
    let vms = [(SHARED, shared), (OWNER, owner)].into_iter();
    let vms: Vec<Vm> = vms
        .chain(third.iter().map(|pid| (THIRD, pid)))
        .map(|(id, pid)| describe_process(id, Pid(number(pid) as u32)))
        .collect();
    let (_, refused) = fleet.update(&vms, &vms);
    assert!(refused.is_empty(), "{refused:?}");
    let period = Nanos::from_millis(100);
    fleet.observe(period, period, false);
    let mut changes = vec![set_weight(whole(SHARED), 700.0)];
    for vm in [SHARED, OWNER] {
        changes.push(set_affinity(vm, 0, &[PcpuId(0)].into_iter().collect()));
        changes.push(set_weight(single(vm, 1), 300.0));
    }
    fleet.apply(&changes, None);
    fleet.apply(&[], Some(&both()));
    let mut watchdog = fleet.turn_watchdog().expect("it is started");
    println!("ready\n{watchdog}");
    stdout().flush().expect("the test reads");
    let mut divisions = divisions(THIRD).into_iter().cycle();
    let mut told = String::new();
    loop {
        let next = Instant::now() + Duration::from_millis(20);
        while !third.is_empty() && Instant::now() < next {
            let applied = fleet.apply(&divisions.next().into_iter().collect::<Vec<_>>(), None);
            assert!(applied.refused.is_empty(), "{:?}", applied.refused);
            // Lets kills also hit the time between two changes.
            sleep(Duration::from_millis(3));
        }
        sleep(next.saturating_duration_since(Instant::now()));
        fleet.observe(period, period, false);
        fleet.apply(&[], Some(&both()));
        let mut news = fleet.turn_errors();
        if let Some(now) = fleet.turn_watchdog().filter(|now| *now != watchdog) {
            watchdog = now;
            news.push(now.to_string());
        }
        if !news.is_empty() {
            told.extend(news.iter().map(|line| format!("{line}\n")));
            fs::write(Path::new(state_dir).join(TOLD), &told).expect("a file");
        }
    }
}

/// Starts the watchdog of a daemon with this state directory.
pub fn watchdog(state_dir: &Path) -> Command {
    let mut command = command("watchdog");
    command.arg(state_dir);
    command
}

/// Runs the watchdog.
pub fn be_a_watchdog() -> ExitCode {
    let state_dir = env::args_os().nth(1).expect("the state directory");
    let controller = cgroup::open(&ProcFs::host()).expect("a controller");
    watch(stdin(), &*controller, Path::new(&state_dir)).expect("it watches");
    ExitCode::SUCCESS
}
