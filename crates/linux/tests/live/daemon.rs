//! The helper in the role of a daemon to be killed: it changes all settings of a VM in a loop, in an order given by a seed.

use std::env;
use std::io::{Write, stdout};
use std::path::Path;
use std::process::ExitCode;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use tandem_linux::actuator::{Actuator, ActuatorError};
use tandem_linux::affinity::affinity;
use tandem_linux::cgroup::{CgroupError, CgroupPath, Quota};
use tandem_linux::sched_attr::SchedAttrError;
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_linux::{ProcFs, cgroup};
use tandem_model::{Nanos, Nice, PcpuSet, Weight};

use crate::helper::{gettid, number, vcpu_threads};

/// State of the daemon and its VM.
struct Subject {
    actuator: Actuator,
    threads: Vec<ThreadRef>,
    home: CgroupPath,
    own: CgroupPath,
    prefix: String,
    all: PcpuSet,
    /// Whether `own` is in the idle class, where it has no weight.
    idle: bool,
}

/// Runs the daemon until it is killed.
pub fn be_a_daemon() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [state_dir, seed, pid, own, prefix] = arguments.as_slice() else {
        panic!("daemon STATE_DIR SEED PID OWN PREFIX");
    };
    let procfs = ProcFs::host();
    let pid = Pid(number(pid) as u32);
    let controller = cgroup::open(&procfs).expect("a controller");
    let threads = vcpu_threads(pid);
    let home = controller.cgroup_of(&threads[0]).expect("a home");
    let (actuator, _) = Actuator::open(controller, Path::new(state_dir)).expect("the lock");
    let mut subject = Subject {
        actuator,
        threads,
        home,
        own: CgroupPath(own.clone()),
        prefix: prefix.clone(),
        all: affinity(Tid(gettid())).expect("an affinity"),
        idle: false,
    };
    let mut random = Pcg32::seed_from_u64(number(seed));
    println!("ready");
    stdout().flush().expect("the test reads");
    loop {
        match subject.change(&mut random) {
            // This kernel lacks the feature.
            Ok(())
            | Err(
                ActuatorError::Cgroup(CgroupError::NoIdleClass)
                | ActuatorError::SchedAttr(SchedAttrError::NoSlices),
            ) => {}
            Err(error) => {
                println!("{error}");
                return ExitCode::FAILURE;
            }
        }
    }
}

impl Subject {
    /// Changes one thing.
    fn change(&mut self, random: &mut Pcg32) -> Result<(), ActuatorError> {
        let mut pick = |count: usize| random.next_u32() as usize % count;
        let group = self.home.child(&format!("{}{}", self.prefix, pick(2)));
        let thread = self.threads[pick(self.threads.len())];
        match pick(22) {
            0..4 => {
                let name = group.name().to_owned();
                self.actuator.create_group(&self.home, &name)?;
                self.actuator.move_thread(&thread, &group)?;
            }
            4..7 => {
                let pcpu = self.all.iter().nth(pick(self.all.len()));
                self.actuator.set_affinity(&thread, &pcpu.into_iter().collect())?;
            }
            7..10 if !self.idle => {
                let weight = Weight::saturating((2 + pick(5000)) as f64);
                self.actuator.set_weight(&self.own, weight)?;
            }
            10..12 if self.actuator.controller().exists(&group) => {
                self.actuator.set_weight(&group, Weight::constant(300.0))?;
            }
            12 => {
                let quota_us = 50_000 + pick(50_000) as u64;
                let period_us = 50_000;
                let cap = Some(Quota { quota_us, period_us });
                self.actuator.set_quota(&self.own, cap)?;
            }
            13 | 14 => {
                let report = self.actuator.release_group(&group)?;
                assert!(report.is_complete(), "{report}");
            }
            15 if pick(4) == 0 => {
                let report = self.actuator.restore();
                assert!(report.is_complete(), "{report}");
                self.idle = false;
            }
            16 => {
                self.actuator.set_idle(&self.own, !self.idle)?;
                self.idle = !self.idle;
            }
            17 | 18 => {
                self.actuator.set_nice(&thread, Nice(pick(20) as i8))?;
            }
            19 => {
                let slice = Nanos::from_millis(1 + pick(9) as u64);
                self.actuator.set_slice(&thread, Some(slice))?;
            }
            20 | 21 if self.actuator.controller().exists(&group) => {
                let below = self.actuator.create_group(&group, "vcpu")?;
                self.actuator.move_thread(&thread, &below)?;
                self.actuator.set_weight(&below, Weight::constant(700.0))?;
            }
            _ => {}
        }
        Ok(())
    }
}
