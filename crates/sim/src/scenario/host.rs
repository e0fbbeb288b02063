//! `[host]`: schedulers, placement, pause loops, halt polling.
//!
//! The tables of all schedulers (`[host.cfs]`, `[host.eevdf]`, `[host.credit]`) are read and checked, in use or not.
//! So a sweep can vary `scheduler` alone.
//!
//! Defaults of the fair schedulers scale with the number of CPUs as in the kernel (`sched_tunable_scaling`):
//! base times 1 + ⌊log₂ min(CPUs, 8)⌋.

use serde::Deserialize;
use tandem_model::Nanos;

use crate::document::place::LoadError;
use crate::document::read::{Field, Table};
use crate::host::{
    AplePolicy, BUSY_FACTOR, Candidate, CoScheduling, Cookies, CreditConfig, HostConfig,
    HostScheduler, PauseLoop, Placement, Ranking, Ticks,
};
use crate::sched::fair::CgroupMode;
use crate::sched::fair::Discipline;

use super::{Machine, Mode};

pub(super) const KEYS: [&str; 16] = [
    "scheduler",
    "cfs",
    "eevdf",
    "credit",
    "tick",
    "ticks",
    "placement",
    "busy_factor",
    "together",
    "core_scheduling",
    "cap",
    "cap_period",
    "pause_loop",
    "halt_poll",
    "apicv",
    "fast_reactivation",
];

pub(super) const EEVDF_KEYS: [&str; 4] = ["as_of", "cgroup_mode", "base_slice", "reweight"];

/// Minimum of a scheduler's times: below it, switching would take all the time.
const MIN_TIME: Nanos = Nanos(10_000);

/// Maximum busy_factor; kernels used at most 128.
const MAX_BUSY_FACTOR: u32 = 1024;

/// Maximum of a scheduler's times.
const MAX_TIME: Nanos = Nanos::from_secs(10);

/// `ple_window`, `ple_window_grow`, `ple_window_shrink` and `ple_window_max` of arch/x86/kvm/vmx (6.12).
const PLE: [u32; 4] = [4096, 2, 0, u32::MAX];

/// Name of a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SchedulerName {
    /// CFS.
    Cfs,
    /// EEVDF.
    Eevdf,
    /// Xen credit.
    Credit,
}

/// Reads `[host]` of a machine.
pub fn read(document: &Table<'_>, machine: &Machine) -> Result<HostConfig, LoadError> {
    let Some(table) = document.table("host", &KEYS)? else {
        let empty = crate::document::tree::Node::empty(document.place().clone());
        return settings(&Table::document(&empty, &KEYS)?, machine);
    };
    settings(&table, machine)
}

fn settings(table: &Table<'_>, machine: &Machine) -> Result<HostConfig, LoadError> {
    let name = table.or("scheduler", SchedulerName::Eevdf, Field::parse)?;
    let credit = credit(table)?;
    let fair = fair(table, name, machine.pcpus)?;
    let (pause_loop, pause_filter, candidate, lag_credit) = pause_loop(table, name)?;
    Ok(HostConfig {
        scheduler: match name {
            SchedulerName::Credit => HostScheduler::Credit(credit),
            SchedulerName::Cfs | SchedulerName::Eevdf => HostScheduler::Linux(fair),
        },
        tick: table.or("tick", Nanos::from_millis(4), tick)?,
        ticks: table.or("ticks", Ticks::Spread, Field::parse)?,
        placement: table.or("placement", Placement::LoadBalancing, Field::parse)?,
        busy_factor: table
            .or("busy_factor", BUSY_FACTOR, |field| field.small(1, MAX_BUSY_FACTOR))?,
        together: table.or("together", CoScheduling::No, Field::parse)?,
        core_scheduling: table.or("core_scheduling", Cookies::No, |field| {
            let cookies = field.parse()?;
            let has_smt = machine.layout.is_some_and(|layout| layout.threads_per_core > 1);
            let is_possible =
                has_smt && machine.mode == Mode::Virtual && name != SchedulerName::Credit;
            if cookies == Cookies::No || is_possible {
                return Ok(cookies);
            }
            Err(field
                .wrong("it needs machine.topology.threads_per_core = 2, VMs, and cfs or eevdf"))
        })?,
        cap: table.or("cap", false, Field::flag)?,
        cap_period: table.or("cap_period", Nanos::from_millis(30), |field| {
            field.time(Nanos::from_millis(1), MAX_TIME)
        })?,
        pause_loop,
        pause_filter,
        candidate,
        lag_credit,
        halt_poll: table.or("halt_poll", Nanos(200_000), |field| {
            field.time(Nanos::ZERO, Nanos::from_secs(1))
        })?,
        apicv: table.or("apicv", true, Field::flag)?,
        fast_reactivation: table.or("fast_reactivation", false, Field::flag)?,
    })
}

/// Reads the period of a clock tick: 10 kHz to 10 Hz.
pub fn tick(field: &Field<'_>) -> Result<Nanos, LoadError> {
    field.time(Nanos(100_000), Nanos::from_millis(100))
}

pub(super) const CFS_KEYS: [&str; 5] =
    ["as_of", "latency", "min_granularity", "wakeup_granularity", "own_granularity"];

/// Reads the fair scheduler of the given name, with the settings in `[….cfs]` and `[….eevdf]`, for `cpus` CPUs.
pub fn fair(table: &Table<'_>, name: SchedulerName, cpus: u32) -> Result<Discipline, LoadError> {
    let time = |field: &Field<'_>| field.time(MIN_TIME, MAX_TIME);
    let mut cfs = Discipline::cfs(cpus);
    if let (
        Some(table),
        Discipline::Cfs { as_of, latency, min_granularity, wakeup_granularity, own_granularity },
    ) = (table.table("cfs", &CFS_KEYS)?, &mut cfs)
    {
        *as_of = table.or("as_of", *as_of, Field::parse)?;
        *latency = table.or("latency", *latency, time)?;
        *min_granularity = table.or("min_granularity", *min_granularity, time)?;
        *wakeup_granularity = table.or("wakeup_granularity", *wakeup_granularity, |field| {
            field.time(Nanos::ZERO, MAX_TIME)
        })?;
        *own_granularity = table.or("own_granularity", *own_granularity, Field::flag)?;
        if min_granularity > latency {
            return Err(table.wrong(format!(
                "cfs: min_granularity {} is longer than latency {}: give latency at least as much",
                min_granularity.in_whole_units(),
                latency.in_whole_units()
            )));
        }
    }
    let mut eevdf = Discipline::eevdf(cpus);
    if let Some(table) = table.table("eevdf", &EEVDF_KEYS)? {
        eevdf = eevdf_release(&table, cpus)?;
        let Discipline::Eevdf { base_slice, reweight, .. } = &mut eevdf else {
            return Ok(eevdf);
        };
        *base_slice = table.or("base_slice", *base_slice, |field| {
            field.time(Nanos(100_000), Nanos::from_millis(100))
        })?;
        *reweight = table.or("reweight", *reweight, Field::parse)?;
    }
    Ok(match name {
        SchedulerName::Cfs => cfs,
        SchedulerName::Eevdf | SchedulerName::Credit => eevdf,
    })
}

/// Reads the release in `[….eevdf]`, and the meaning of group weights, which can be selected since Linux 7.3.
fn eevdf_release(table: &Table<'_>, cpus: u32) -> Result<Discipline, LoadError> {
    let is_flat = |field: &Field<'_>| field.choice(&[("6.12", false), ("7.3", true)]);
    if table.or("as_of", false, is_flat)? {
        let mode = table.or("cgroup_mode", CgroupMode::Concur, Field::parse)?;
        return Ok(Discipline::eevdf_flat(cpus, mode));
    }
    let older = |field: &Field<'_>| {
        field.parse::<CgroupMode>()?;
        Err(field
            .wrong("needs as_of = \"7.3\": earlier releases have one meaning of group weights"))
    };
    table.or("cgroup_mode", Discipline::eevdf(cpus), older)
}

/// Reads `[host.credit]`; the defaults derive from CSCHED_DEFAULT_TSLICE_MS.
fn credit(table: &Table<'_>) -> Result<CreditConfig, LoadError> {
    let mut config = CreditConfig::default();
    let keys = ["as_of", "starts", "tick", "timeslice", "ratelimit"];
    if let Some(credit) = table.table("credit", &keys)? {
        config = CreditConfig::of(credit.or("as_of", config.age, Field::parse)?);
        config.starts = credit.or("starts", config.starts, Field::parse)?;
        let time = |field: &Field<'_>| field.time(Nanos(100_000), Nanos::from_secs(1));
        config.tick = credit.or("tick", config.tick, time)?;
        config.timeslice = credit.or("timeslice", config.timeslice, time)?;
        config.ratelimit = credit.or("ratelimit", config.ratelimit, |field| {
            field.time(Nanos::ZERO, Nanos::from_millis(500))
        })?;
        if config.tick > config.timeslice {
            return Err(credit.wrong(format!(
                "credit: tick {} is longer than timeslice {}: give tick a part of it",
                config.tick.in_whole_units(),
                config.timeslice.in_whole_units()
            )));
        }
    }
    Ok(config)
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Policy {
    Off,
    Fixed,
    PerVm,
    Stock,
    Aple,
}

pub(super) const PAUSE_LOOP_KEYS: [&str; 9] =
    ["policy", "window", "grow", "shrink", "most", "filter", "candidate", "lag_credit", "aple"];

/// Reads `[host.pause_loop]` of a host with this scheduler.
fn pause_loop(
    table: &Table<'_>,
    scheduler: SchedulerName,
) -> Result<(PauseLoop, bool, Candidate, Option<Nanos>), LoadError> {
    let [mut base, mut grow, mut shrink, mut most] = PLE;
    let (mut policy, mut filter, mut candidate) = (Policy::Stock, false, Candidate::Stock);
    let mut aple = AplePolicy::default();
    let mut lag_credit = None;
    if let Some(table) = table.table("pause_loop", &PAUSE_LOOP_KEYS)? {
        policy = table.or("policy", policy, Field::parse)?;
        base = table.or("window", base, |field| field.small(1, u32::MAX))?;
        grow = table.or("grow", grow, |field| field.small(0, u32::MAX))?;
        shrink = table.or("shrink", shrink, |field| field.small(0, u32::MAX))?;
        most = table.or("most", most, |field| field.small(1, u32::MAX))?;
        filter = table.or("filter", filter, Field::flag)?;
        candidate = table.or("candidate", candidate, |field| {
            field.choice(&[
                ("none", Candidate::None),
                ("stock", Candidate::Stock),
                ("in-kernel", Candidate::InKernel),
                ("ipi-aware", Candidate::IpiAware),
                ("hvs", Candidate::Ranked(Ranking::Hvs)),
                ("cpth-r", Candidate::Ranked(Ranking::CpthR)),
                ("cpth-l", Candidate::Ranked(Ranking::CpthL)),
                ("cch", Candidate::Ranked(Ranking::Cch)),
            ])
        })?;
        lag_credit =
            table.or("lag_credit", None, |field| match field.time(Nanos::ZERO, MAX_TIME)? {
                Nanos::ZERO => Ok(None),
                _ if scheduler != SchedulerName::Eevdf => {
                    Err(field
                        .wrong("lag is of EEVDF: leave it out, or set host.scheduler = \"eevdf\""))
                }
                margin => Ok(Some(margin)),
            })?;
        aple = table.or("aple", aple, Field::settings)?;
        if most < base {
            return Err(table.wrong(format!(
                "pause_loop: most = {most} is below window = {base}: give most at least as much"
            )));
        }
    }
    let pause_loop = match policy {
        Policy::Off => PauseLoop::Off,
        Policy::Fixed => PauseLoop::Fixed(base),
        Policy::PerVm => PauseLoop::PerVm(base),
        Policy::Stock => PauseLoop::Stock { base, grow, shrink, most },
        Policy::Aple => PauseLoop::Aple(aple),
    };
    Ok((pause_loop, filter, candidate, lag_credit))
}
