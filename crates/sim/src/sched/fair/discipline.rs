//! Fair schedulers by kernel release, with their settings.

use serde::{Deserialize, Serialize};
use tandem_model::Nanos;

use super::CgroupMode;

/// A fair scheduler with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Discipline {
    /// Completely Fair Scheduler, kernel/sched/fair.c of 3.15 … 6.1.
    Cfs {
        /// Release whose rules apply.
        #[serde(skip_serializing_if = "CfsAge::is_first")]
        as_of: CfsAge,
        /// Period in which every runnable entity runs once, if they are few.
        latency: Nanos,
        /// Minimum time that each entity gets.
        min_granularity: Nanos,
        /// Minimum distance by which a woken entity must be behind to preempt.
        wakeup_granularity: Nanos,
        /// Whether a custom slice is an entity's own wake-up granularity, as in the prototype of asymmetric vCPUs
        /// (Shan, NJIT 2018, chapter 5); no released kernel has this.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        own_granularity: bool,
    },
    /// Earliest eligible virtual deadline first, kernel/sched/fair.c of 6.12 and 7.3.
    Eevdf {
        /// Meaning of group weights, since Linux 7.3; `None`: an earlier release.
        #[serde(skip_serializing_if = "Option::is_none")]
        cgroup_mode: Option<CgroupMode>,
        /// Slice of an entity without a custom slice.
        base_slice: Nanos,
        /// Handling of lag when a runnable entity's weight changes.
        #[serde(skip_serializing_if = "Reweight::is_kept")]
        reweight: Reweight,
    },
}

/// First release with the modelled rules of CFS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub enum CfsAge {
    /// Linux 3.15 … 5.12.
    #[default]
    #[serde(rename = "3.15")]
    Linux3,
    /// Linux 5.13: the period depends on all runnable entities of the CPU (ALT_PERIOD of 0c2de3f054a5), and a slice is at least the
    /// minimum granularity (BASE_SLICE of the same commit).
    #[serde(rename = "5.13")]
    AltPeriod,
    /// Linux 5.14 … 6.1: an entity that is picked again keeps its buddy role, too.
    /// Since 21f56ffe4482, set_next_entity clears buddies, and it is skipped in this case.
    #[serde(rename = "5.14")]
    KeptBuddies,
}

impl CfsAge {
    /// Whether it is the first release, that of most papers.
    fn is_first(&self) -> bool {
        *self == CfsAge::Linux3
    }
}

/// Handling of lag when a runnable entity's weight changes (reweight_entity).
/// A group on several pCPUs is reweighted whenever one of its vCPUs sleeps or wakes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum Reweight {
    /// The entity is placed again, as since Linux 6.13 (6d71a9c61604, "sched/fair: Fix EEVDF entity placement bug causing
    /// scheduling lag"): its lag is inflated as if V did not include it, but V always includes the current entity.
    #[serde(rename = "6.13")]
    Placed,
    /// Lag is constant in time, as in Linux 6.7 … 6.12 and again since the revert (101f3498b4bd, 2026).
    #[default]
    #[serde(rename = "reverted")]
    Kept,
}

impl Reweight {
    /// Whether lag is kept.
    fn is_kept(&self) -> bool {
        *self == Reweight::Kept
    }
}

impl Discipline {
    /// sysctl_sched_latency, sysctl_sched_min_granularity and sysctl_sched_wakeup_granularity for one CPU (kernel/sched/fair.c, 3.19).
    const CFS: [u64; 3] = [6_000_000, 750_000, 1_000_000];

    /// sysctl_sched_base_slice of EEVDF for one CPU (kernel/sched/fair.c, 6.12).
    const EEVDF: u64 = 750_000;

    /// The same of 7.3.4: 2.1 ms on four CPUs (`sched/base_slice_ns` in debugfs).
    const EEVDF_FLAT: u64 = 700_000;

    /// CFS with the kernel's settings for a machine with `cpus` CPUs.
    pub fn cfs(cpus: u32) -> Discipline {
        let [latency, min_granularity, wakeup_granularity] =
            Discipline::CFS.map(|time| Nanos(time * Discipline::scaling(cpus)));
        Discipline::Cfs {
            as_of: CfsAge::default(),
            latency,
            min_granularity,
            wakeup_granularity,
            own_granularity: false,
        }
    }

    /// EEVDF with the kernel's settings for a machine with `cpus` CPUs.
    pub fn eevdf(cpus: u32) -> Discipline {
        Discipline::Eevdf {
            cgroup_mode: None,
            base_slice: Nanos(Discipline::EEVDF * Discipline::scaling(cpus)),
            reweight: Reweight::default(),
        }
    }

    /// Flat EEVDF of Linux 7.3 with the kernel's settings for a machine with `cpus` CPUs.
    pub fn eevdf_flat(cpus: u32, cgroup_mode: CgroupMode) -> Discipline {
        Discipline::Eevdf {
            cgroup_mode: Some(cgroup_mode),
            base_slice: Nanos(Discipline::EEVDF_FLAT * Discipline::scaling(cpus)),
            reweight: Reweight::Kept,
        }
    }

    /// Whether it is Linux 7.3: the tasks of all groups compete in one queue per CPU, and wake-ups preempt lazily.
    pub fn is_flat(&self) -> bool {
        matches!(self, Discipline::Eevdf { cgroup_mode: Some(_), .. })
    }

    /// Meaning of group weights; before 7.3 there was one.
    pub(super) fn cgroup_mode(&self) -> CgroupMode {
        match *self {
            Discipline::Eevdf { cgroup_mode: Some(mode), .. } => mode,
            Discipline::Eevdf { .. } | Discipline::Cfs { .. } => CgroupMode::Smp,
        }
    }

    /// Factor of the kernel's times on a machine with `cpus` CPUs (get_update_sysctl_factor): 1 + ⌊log₂ min(cpus, 8)⌋.
    pub fn scaling(cpus: u32) -> u64 {
        1 + u64::from(cpus.clamp(1, 8).ilog2())
    }

    /// Maximum number of entities that each get the minimum granularity in a latency (sched_nr_latency).
    pub(super) fn many(&self) -> u32 {
        match self {
            Discipline::Cfs { latency, min_granularity, .. } => {
                latency.0.div_ceil(min_granularity.0.max(1)) as u32
            }
            Discipline::Eevdf { .. } => u32::MAX,
        }
    }

    /// Whether an entity that is picked again keeps its buddy role.
    pub(super) fn keeps_buddies(&self) -> bool {
        match self {
            Discipline::Cfs { as_of, .. } => *as_of >= CfsAge::KeptBuddies,
            Discipline::Eevdf { .. } => true,
        }
    }
}
