//! Scalability of an application on a machine and on a VM: efficiency, speedup and type.
//!
//! Source: Shan's dissertation (NJIT 2018), chapter 4.
//! Speedup on N units of execution is N times the fraction of the available CPU time that is used.
//! A physical machine loses the time in which its cores idle or busy-wait.
//! A VM loses the switches of its idle and spinning vCPUs.
//! It also loses the rest of its time slices at the end of an allocation period, which is not carried over.
//! An idle vCPU itself loses no time, as others may use its slice.
//!
//! Times are [`Nanos`] over the same span of execution.
//! Pure functions: the caller measures the times and chooses the span.

use serde::Serialize;
use thiserror::Error;

use tandem_model::units::Nanos;

/// Speed relative to that on one unit of execution.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Speedup(pub f64);

/// A fraction of a whole, 0 … 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Fraction(f64);

impl Fraction {
    /// Zero.
    pub const NONE: Fraction = Fraction(0.0);

    /// One.
    pub const ALL: Fraction = Fraction(1.0);

    /// Checks that `value` is within 0 … 1.
    pub fn new(value: f64) -> Result<Fraction, ScalabilityError> {
        if (0.0..=1.0).contains(&value) {
            Ok(Fraction(value))
        } else {
            Err(ScalabilityError::NotAFraction(value))
        }
    }

    /// Returns the fraction as a number.
    pub fn get(self) -> f64 {
        self.0
    }

    /// `part` ÷ `whole`.
    fn of(part: Nanos, whole: Nanos) -> Result<Fraction, ScalabilityError> {
        if part <= whole && whole > Nanos::ZERO {
            Ok(Fraction(part.0 as f64 / whole.0 as f64))
        } else {
            Err(ScalabilityError::NotAPart { part, whole })
        }
    }
}

/// Invalid input of a computation.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum ScalabilityError {
    /// The value is not between 0 and 1.
    #[error("{0} is not a part of a whole: expected 0 … 1")]
    NotAFraction(f64),
    /// The part exceeds the whole, or the whole is 0.
    #[error(
        "{part} cannot be a part of {whole}: expected a time of at most as much, of more than 0 ns"
    )]
    NotAPart {
        /// The part.
        part: Nanos,
        /// The whole.
        whole: Nanos,
    },
    /// The run has no units of execution.
    #[error("0 units of execution cannot run anything: expected 1 or more")]
    NoUnits,
}

/// CPU time of the cores of a physical machine while an application ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhysicalRun {
    /// Cores, N.
    pub cores: u32,
    /// Execution time, wall clock.
    pub execution: Nanos,
    /// Idle, summed over the cores.
    pub idle: Nanos,
    /// Busy-waiting, summed over the cores.
    pub busy_waiting: Nanos,
}

impl PhysicalRun {
    /// Available CPU time: N × execution time.
    fn available(&self) -> Result<Nanos, ScalabilityError> {
        match self.cores {
            0 => Err(ScalabilityError::NoUnits),
            cores => Ok(Nanos(self.execution.0.saturating_mul(u64::from(cores)))),
        }
    }

    /// 1 − (idle + busy-waiting) ÷ (N × execution time).
    pub fn efficiency(&self) -> Result<Fraction, ScalabilityError> {
        let lost = Nanos(self.idle.0.saturating_add(self.busy_waiting.0));
        efficiency(lost, self.available()?)
    }

    /// Speedup_PM = N − (idle + busy-waiting, summed over the cores) ÷ execution time.
    pub fn speedup(&self) -> Result<Speedup, ScalabilityError> {
        Ok(speedup(self.cores, self.efficiency()?))
    }
}

/// CPU time that a VM was given, and its losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualRun {
    /// vCPUs, N.
    pub vcpus: u32,
    /// Time slices allocated to the VM.
    pub allocated: Nanos,
    /// Spent on switching idle or spinning vCPUs out and in.
    pub switching: Nanos,
    /// Left unused at the ends of allocation periods.
    pub unused: Nanos,
}

impl VirtualRun {
    /// 1 − (switching + unused) ÷ allocated.
    pub fn efficiency(&self) -> Result<Fraction, ScalabilityError> {
        if self.vcpus == 0 {
            return Err(ScalabilityError::NoUnits);
        }
        let lost = Nanos(self.switching.0.saturating_add(self.unused.0));
        efficiency(lost, self.allocated)
    }

    /// Speedup_VM = N − N × (switching + unused) ÷ allocated.
    pub fn speedup(&self) -> Result<Speedup, ScalabilityError> {
        Ok(speedup(self.vcpus, self.efficiency()?))
    }
}

fn efficiency(lost: Nanos, available: Nanos) -> Result<Fraction, ScalabilityError> {
    Fraction::of(lost, available).map(|lost| Fraction(1.0 - lost.0))
}

/// Speedup = N × efficiency.
fn speedup(units: u32, efficiency: Fraction) -> Speedup {
    Speedup(f64::from(units) * efficiency.0)
}

/// Potential efficiency of an application on a VM in one allocation period:
/// min(1, utilization ÷ the VM's share of the host).
///
/// `utilization` is measured on a physical machine of the same size.
/// An application that uses no more of that machine than the VM's share can use everything it is
/// given, if the slices go to the vCPUs with work.
pub fn potential_efficiency(
    utilization: Fraction,
    share: Fraction,
) -> Result<Fraction, ScalabilityError> {
    if share.0 > 0.0 {
        Ok(Fraction((utilization.0 / share.0).min(1.0)))
    } else {
        Err(ScalabilityError::NotAFraction(share.0))
    }
}

/// Workload parallelism is high from this fraction of N active CPUs.
pub const HIGH_PARALLELISM: f64 = 0.75;

/// Properties of an application, independent of the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Features {
    /// Units of execution, N.
    pub units: u32,
    /// Workload parallelism: active CPUs on average.
    pub active: f64,
    /// Synchronization frequency: voluntary switches of one thread per second.
    pub voluntary_switches_per_second: f64,
    /// The time slice; a thread that blocks at least once in it synchronizes often.
    pub timeslice: Nanos,
}

/// The four types of applications.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Type {
    /// Type 1, high parallelism and rare synchronization: scales on both.
    ScalesOnBoth,
    /// Type 2, low parallelism and frequent synchronization: scales poorly on both.
    PoorOnBoth,
    /// Type 3, high parallelism and frequent synchronization: scales worse on a VM.
    WorseOnVm,
    /// Type 4, low parallelism and rare synchronization: scales better on a VM.
    BetterOnVm,
}

impl Type {
    /// The type's number in the source, 1 … 4.
    pub fn number(self) -> u8 {
        match self {
            Type::ScalesOnBoth => 1,
            Type::PoorOnBoth => 2,
            Type::WorseOnVm => 3,
            Type::BetterOnVm => 4,
        }
    }
}

impl Features {
    /// Whether at least 75 % of the CPUs are active on average.
    pub fn high_parallelism(&self) -> bool {
        self.active >= HIGH_PARALLELISM * f64::from(self.units)
    }

    /// Whether a thread blocks at least once in a time slice.
    pub fn frequent_synchronization(&self) -> bool {
        self.voluntary_switches_per_second * self.timeslice.as_secs_f64() >= 1.0
    }

    /// Returns the type of the application.
    pub fn class(&self) -> Type {
        match (self.high_parallelism(), self.frequent_synchronization()) {
            (true, false) => Type::ScalesOnBoth,
            (false, true) => Type::PoorOnBoth,
            (true, true) => Type::WorseOnVm,
            (false, false) => Type::BetterOnVm,
        }
    }
}
