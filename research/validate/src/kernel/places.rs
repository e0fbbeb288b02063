//! The cgroups of a comparison on this machine, journaled and removed at the end.

use std::path::Path;

use tandem_linux::actuator::{Actuator, ActuatorError};
use tandem_linux::cgroup::{CgroupError, CgroupPath};
use tandem_linux::thread::{Pid, ThreadError, ThreadRef, Tid};
use tandem_linux::{ProcFs, cgroup};
use tandem_model::Weight;
use thiserror::Error;

use super::groups::{Group, USUAL_WEIGHT};
use super::real::{RealError, Settled};

/// Weight of a case's largest group relative to the kernel's default, so that background load gets little time.
const TIMES: f64 = 50.0;

/// Error of the cgroups of a comparison.
#[derive(Debug, Error)]
pub enum PlaceError {
    /// Cgroups are not usable.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// Cgroups cannot be changed.
    #[error(transparent)]
    Actuator(#[from] ActuatorError),
    /// A thread of this process cannot be read.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// A change could not be reverted.
    #[error("could not revert {what}: {error}")]
    Revert {
        /// The change.
        what: String,
        /// The cause.
        error: String,
    },
}

/// Parent of the cgroups of a comparison.
pub struct Places {
    actuator: Actuator,
    parent: CgroupPath,
}

impl Places {
    /// Uses the cgroup of this process as the parent; changes are first recorded in a journal in `state_dir`.
    pub fn open(state_dir: &Path) -> Result<Places, PlaceError> {
        let (actuator, _) = Actuator::open(cgroup::open(&ProcFs::host())?, state_dir)?;
        let pid = Pid(std::process::id());
        let own = ThreadRef::read(&ProcFs::host(), pid, Tid(pid.0))?;
        let parent = actuator.controller().cgroup_of(&own)?;
        Ok(Places { actuator, parent })
    }

    /// Creates the cgroups of a case, or reuses those that exist.
    pub fn of(&mut self, case: usize, groups: &[Group]) -> Result<Inside<'_>, PlaceError> {
        let controller = self.actuator.controller();
        let usual = controller.default_weight().value();
        let (_, most) = controller.weight_range();
        let heaviest = groups.iter().map(|group| group.weight).max().unwrap_or(1);
        let largest = (usual * TIMES).min(most.value());
        let mut made = Vec::new();
        for (number, group) in groups.iter().enumerate() {
            let name = format!("tandem-kernel-{case}-{number}-{}", std::process::id());
            let cgroup = self.actuator.create_group(&self.parent, &name)?;
            let weight = largest * f64::from(group.weight) / f64::from(heaviest.max(USUAL_WEIGHT));
            self.actuator.set_weight(&cgroup, Weight::saturating(weight))?;
            made.push(cgroup);
        }
        Ok(Inside { actuator: &mut self.actuator, groups: made })
    }

    /// Removes all cgroups.
    pub fn leave(mut self) -> Result<(), PlaceError> {
        let report = self.actuator.restore();
        match report.failures.first() {
            None => Ok(()),
            Some(failure) => {
                Err(PlaceError::Revert { what: failure.what.clone(), error: failure.error.clone() })
            }
        }
    }
}

/// Moves threads into the cgroups of a case.
pub struct Inside<'a> {
    actuator: &'a mut Actuator,
    groups: Vec<CgroupPath>,
}

impl Settled for Inside<'_> {
    fn settled(&mut self, threads: &[Vec<Tid>]) -> Result<(), RealError> {
        let pid = Pid(std::process::id());
        for (group, threads) in self.groups.iter().zip(threads) {
            for tid in threads {
                let thread = ThreadRef::read(&ProcFs::host(), pid, *tid)?;
                self.actuator.move_thread(&thread, group)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tandem_sim::workload::parse;

    use super::*;
    use crate::kernel::cpus::{CPUS, Speed};
    use crate::kernel::real::run_together;

    #[test]
    fn threads_run_in_cgroups_that_are_removed() {
        let state_dir = tempfile::tempdir().unwrap();
        let places = match std::thread::available_parallelism().map_or(1, usize::from) {
            cpus if cpus < CPUS as usize => Err("needs CPUs 0 and 1".to_owned()),
            _ => Places::open(state_dir.path()).map_err(|error| error.to_string()),
        };
        let mut places = match places {
            Ok(places) if rustix::process::geteuid().is_root() => places,
            Ok(_) => return println!("skipped: cgroups need root"),
            Err(why) => return println!("skipped: {why}"),
        };
        let text = "[[role]]\nprogram = [{ repeat = 5, do = [{ compute = \"1ms\" }, { sleep = \"1ms\" }] }]";
        let workload = parse::from_text("nap", text).unwrap();
        let groups = [1024, 2048].map(|weight| Group { weight, workload: workload.clone() });
        let speed = Speed::measure(&workload).unwrap();
        let controller = places.actuator.shared_controller();
        let mut inside = places.of(7, &groups).unwrap();
        let made = inside.groups.clone();
        let weights = made.iter().map(|cgroup| controller.weight(cgroup).unwrap());
        let weights: Vec<f64> = weights.map(Weight::value).collect();
        assert_eq!(weights[1], 2.0 * weights[0]);
        let workloads: Vec<_> = groups.iter().map(|group| &group.workload).collect();
        let ran = run_together(&workloads, speed, &mut inside, true).unwrap();
        let woken: Vec<usize> = ran.iter().map(|roles| roles[0].wakes.len()).collect();
        assert_eq!(woken, [5, 5]);
        places.leave().unwrap();
        assert!(made.iter().all(|cgroup| !controller.exists(cgroup)));
    }
}
