//! Fit of the costs of virtualization on this machine with probes.
//!
//! A probe is a microVM whose speed depends mainly on one cost.
//! Its speed relative to a VM that only computes is measured on the real machine.
//! A bisection then finds the cost at which the simulator has the same relative speed; speed falls monotonically with the cost.
//! Each probe depends on the costs before it, which sets their order.
//! Three passes account for the weaker dependencies.
//!
//! One VM has the probes for both costs of an interrupt.
//! It interrupts rarely, so that the receiver's loss depends little on the sender's cost.
//! If it only sent interrupts, fitting the two costs in turn would diverge.
//!
//! The probes' workloads are those marked *fitted* in [`super::setup`]; the compared ratios do not include the probes.
//! Costs that the probes cannot separate keep the table's value.
//! Leaving a pCPU (`halt_exit`) and switching vCPUs (`vcpu_switch`) always occur with a wake-up.
//! So `halt_wake` is the sum of the three minus the table's value of the other two.

use serde::Serialize;
use tandem_microvm::Workload;
use tandem_sim::machine::Costs;

use super::setup::{Count, Guest, Pinning, Quantity, first_of, reference};
use super::simulated;
use super::simulated::{Host, SimulatedError};

/// Maximum cost, ns.
const MAX_COST: u64 = 1_000_000;

/// Passes over all costs.
const PASSES: usize = 3;

/// Simulated time of a probe, s.
const SECONDS: f64 = 0.1;

/// A cost and the quantity that depends on it.
pub struct Probe {
    /// Key in the table of costs.
    pub cost: &'static str,
    field: fn(&mut Costs) -> &mut u64,
    /// The quantity that depends on the cost.
    pub quantity: Quantity,
    /// Description of the probe.
    pub what: &'static str,
}

/// Returns all probes in the order of the fit.
pub fn probes() -> Vec<Probe> {
    let vm = |workload, settings, pinning, count| {
        let guest = Guest { workload, settings, vcpus: 2, weight: 1 };
        first_of(vec![guest], pinning, count)
    };
    let shootdown = |count| {
        vm(Workload::Shootdown, &["gap=200k", "work=20k", "jitter=0"], Pinning::Spread, count)
    };
    vec![
        Probe {
            cost: "lock_handoff",
            field: |costs| &mut costs.lock_handoff,
            quantity: vm(
                Workload::Spinlock,
                &["outside=200", "inside=500", "jitter=0"],
                Pinning::Spread,
                Count::All,
            ),
            what: "two vCPUs that pass a spin lock on",
        },
        Probe {
            cost: "posted_interrupt",
            field: |costs| &mut costs.posted_interrupt,
            quantity: shootdown(Count::Others),
            what: "a vCPU that computes and is interrupted",
        },
        Probe {
            cost: "ipi_send_exit",
            field: |costs| &mut costs.ipi_send_exit,
            quantity: shootdown(Count::First),
            what: "the vCPU that interrupts it",
        },
        Probe {
            cost: "halt_poll_wake",
            field: |costs| &mut costs.halt_poll_wake,
            quantity: vm(
                Workload::Barrier,
                &["work=20k", "wait=block", "spin=0", "jitter=50"],
                Pinning::Spread,
                Count::All,
            ),
            what: "two vCPUs that wake each other on two pCPUs",
        },
        Probe {
            cost: "halt_wake",
            field: |costs| &mut costs.halt_wake,
            quantity: vm(
                Workload::Barrier,
                &["work=20k", "wait=block", "spin=0", "jitter=50"],
                Pinning::OnePcpu,
                Count::All,
            ),
            what: "two vCPUs that wake each other on one pCPU",
        },
    ]
}

/// A fitted cost.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// Key in the table of costs.
    pub cost: &'static str,
    /// Value in the table, ns.
    pub table: u64,
    /// Fitted value, ns.
    pub found: u64,
    /// Description of the probe.
    pub probe: &'static str,
    /// The probe's real speed relative to computing.
    pub real: f64,
    /// The same in the simulator with the fitted costs.
    pub simulated: f64,
}

/// Fits the costs so that the simulator matches `real`, the probes' relative speeds, and stores them in the host.
pub fn fit(host: &mut Host, real: &[f64]) -> Result<Vec<Found>, SimulatedError> {
    let probes = probes();
    let table = Costs::default();
    let reference = simulated::mean_rate(host, &reference(), None, SECONDS, 1..2)?;
    let speed = |host: &Host, probe: &Probe| -> Result<f64, SimulatedError> {
        Ok(simulated::mean_rate(host, &probe.quantity, None, SECONDS, 1..2)? / reference)
    };
    for _ in 0..PASSES {
        for (probe, &wanted) in probes.iter().zip(real) {
            let cost = seek(wanted, |cost| {
                *(probe.field)(&mut host.costs) = cost;
                speed(host, probe)
            })?;
            *(probe.field)(&mut host.costs) = cost;
        }
    }
    let found = probes.iter().zip(real).map(|(probe, &real)| {
        Ok(Found {
            cost: probe.cost,
            table: *(probe.field)(&mut table.clone()),
            found: *(probe.field)(&mut host.costs),
            probe: probe.what,
            real,
            simulated: speed(host, probe)?,
        })
    });
    found.collect()
}

/// Returns the least cost, to 1 % or 10 ns, at which the speed is at most `wanted`.
///
/// Returns 0 if the speed is never above `wanted`, and [`MAX_COST`] if it always is.
fn seek<E>(wanted: f64, mut speed: impl FnMut(u64) -> Result<f64, E>) -> Result<u64, E> {
    let (mut low, mut high) = (0, MAX_COST);
    if speed(low)? <= wanted {
        return Ok(low);
    }
    if speed(high)? > wanted {
        return Ok(high);
    }
    while high - low > 10.max(high / 100) {
        // Costs span orders of magnitude: the geometric mean, except near 0.
        let middle = match low {
            0 => high / 10,
            low => ((low as f64 * high as f64).sqrt() as u64).clamp(low + 1, high - 1),
        };
        if speed(middle)? > wanted { low = middle } else { high = middle }
    }
    Ok(high)
}

#[cfg(test)]
mod tests {
    use tandem_microvm::Calibration;

    use super::super::simulated::testing::kernel;
    use super::*;

    #[test]
    fn seek_finds_cost_to_one_percent() {
        for cost in [25_u64, 700, 12_345, 400_000] {
            let wanted = 1.0 / (10_000.0 + cost as f64);
            let found = seek(wanted, |cost| Ok::<_, ()>(1.0 / (10_000.0 + cost as f64))).unwrap();
            assert!(found.abs_diff(cost) <= 10.max(cost / 100), "{cost}: {found}");
        }
    }

    #[test]
    fn unreachable_speed_yields_bounds() {
        let speed = |cost: u64| Ok::<_, ()>(1.0 / (1000.0 + cost as f64));
        assert_eq!(seek(1.0, speed).unwrap(), 0);
        assert_eq!(seek(0.0, speed).unwrap(), MAX_COST);
    }

    /// The simulated probes of a machine with known costs yield these costs.
    #[test]
    fn fit_recovers_known_costs() {
        let calibration = Calibration { tsc_khz: 2_000_000, steps_per_mebicycle: 300_000 };
        let unknown = Host::new(kernel(), 256.0, calibration);
        let mut known = unknown.clone();
        known.costs.lock_handoff = 150;
        known.costs.posted_interrupt = 9_000;
        known.costs.ipi_send_exit = 6_000;
        known.costs.halt_poll_wake = 4_000;
        known.costs.halt_wake = 15_000;
        let base = simulated::mean_rate(&known, &reference(), None, SECONDS, 1..2).unwrap();
        let real: Vec<f64> = probes()
            .iter()
            .map(|p| simulated::mean_rate(&known, &p.quantity, None, SECONDS, 1..2).unwrap() / base)
            .collect();
        let mut host = unknown;
        let found = fit(&mut host, &real).unwrap();
        for (mut costs, found) in std::iter::repeat(known.costs).zip(&found) {
            let probe = probes().into_iter().find(|p| p.cost == found.cost).unwrap();
            let truth = *(probe.field)(&mut costs);
            let off = found.found as f64 / truth as f64 - 1.0;
            assert!(off.abs() < 0.05, "{}: {} for {truth}", found.cost, found.found);
        }
    }
}
