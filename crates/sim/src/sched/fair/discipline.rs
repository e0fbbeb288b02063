//! Which fair scheduler, of which release, with its settings.

use serde::Serialize;
use tandem_model::Nanos;

/// Which fair scheduler, with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Discipline {
    /// Completely Fair Scheduler, kernel/sched/fair.c of 3.15 … 6.1.
    Cfs {
        /// Whose rules it has.
        #[serde(skip_serializing_if = "CfsAge::is_first")]
        as_of: CfsAge,
        /// Every runnable entity runs once in this time, with few of them.
        latency: Nanos,
        /// The least time each then gets.
        min_granularity: Nanos,
        /// A woken entity preempts when it is behind by this much.
        wakeup_granularity: Nanos,
        /// Whether a custom slice is an entity's own wake-up granularity, as in the prototype of asymmetric vCPUs (Shan,
        /// NJIT 2018, chapter 5). No released kernel has that.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        own_granularity: bool,
    },
    /// Earliest eligible virtual deadline first, kernel/sched/fair.c of 6.12.
    Eevdf {
        /// The slice of an entity without one of its own.
        base_slice: Nanos,
        /// What becomes of the lag of a runnable entity whose weight changes.
        #[serde(skip_serializing_if = "Reweight::is_kept")]
        reweight: Reweight,
    },
}

/// The release since which CFS had the rules that are meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum CfsAge {
    /// Linux 3.15 … 5.12.
    #[default]
    #[serde(rename = "3.15")]
    Linux3,
    /// Linux 5.13: the period of slices is that of all that run on the CPU (ALT_PERIOD of 0c2de3f054a5), and no slice is shorter than
    /// the least granularity (BASE_SLICE of the same).
    #[serde(rename = "5.13")]
    AltPeriod,
    /// Linux 5.14 … 6.1: who goes on over a pick stays the buddy that it was, too (set_next_entity of 21f56ffe4482 forgets it).
    #[serde(rename = "5.14")]
    KeptBuddies,
}

impl CfsAge {
    /// Whether it is that of most papers.
    fn is_first(&self) -> bool {
        *self == CfsAge::Linux3
    }
}

/// What becomes of a runnable entity's lag when its weight changes (reweight_entity): a group of several pCPUs is given
/// another weight whenever one of its vCPUs sleeps or wakes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Reweight {
    /// It stays what it is in time, as in Linux 6.7 … 6.12 and again since the revert (101f3498b4bd, 2026).
    #[default]
    #[serde(rename = "reverted")]
    Kept,
    /// The entity is placed anew, as in Linux 6.13 and after (6d71a9c61604, "sched/fair: Fix EEVDF entity placement bug causing
    /// scheduling lag"): its lag is inflated as if it were not counted in V, which the current one always is.
    #[serde(rename = "6.13")]
    Placed,
}

impl Reweight {
    /// Whether lag is kept.
    fn is_kept(&self) -> bool {
        *self == Reweight::Kept
    }
}

impl Discipline {
    /// sysctl_sched_latency, sysctl_sched_min_granularity and sysctl_sched_wakeup_granularity of CFS for one CPU (kernel/sched/fair.c, 3.19).
    const CFS: [u64; 3] = [6_000_000, 750_000, 1_000_000];

    /// sysctl_sched_base_slice of EEVDF for one CPU (kernel/sched/fair.c, 6.12).
    const EEVDF: u64 = 750_000;

    /// CFS with the kernel's settings for a machine of so many CPUs.
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

    /// EEVDF with the kernel's settings for a machine of so many CPUs.
    pub fn eevdf(cpus: u32) -> Discipline {
        Discipline::Eevdf {
            base_slice: Nanos(Discipline::EEVDF * Discipline::scaling(cpus)),
            reweight: Reweight::default(),
        }
    }

    /// What times of the kernel's settings are multiplied by on a machine of so many CPUs (get_update_sysctl_factor): 1 + log₂ of them, of at most 8.
    pub fn scaling(cpus: u32) -> u64 {
        1 + u64::from(cpus.clamp(1, 8).ilog2())
    }

    /// So many have the least granularity each in the latency, at least (sched_nr_latency).
    pub(super) fn many(latency: Nanos, min_granularity: Nanos) -> u64 {
        latency.0.div_ceil(min_granularity.0.max(1))
    }

    /// Whether who goes on over a pick stays the buddy that it was.
    pub(super) fn keeps_buddies(&self) -> bool {
        match self {
            Discipline::Cfs { as_of, .. } => *as_of >= CfsAge::KeptBuddies,
            Discipline::Eevdf { .. } => true,
        }
    }
}
