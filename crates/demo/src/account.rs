//! Computes figures from two readings: shares, fair shares, lags, work.
//!
//! The fair share comes from the policy crate's [`assess`], as in the daemon: GPS over the accounting groups
//! of the VMs' pCPUs.
//! The capacity is the CPU time that the VMs received together.
//! A VM whose guest never sleeps counts as runnable throughout.
//! The kernel does not count throttled time as waiting, so a cap would otherwise look fair.
//! Pins are those at the start of the VMs, even if the mode migrates vCPUs.

use tandem_linux::sampler::VcpuSample;
use tandem_model::{Nanos, VcpuId, VcpuObservation, VmId, VmObservation, Weight};
use tandem_policy::assess::{accounting_groups, assess};
use tandem_policy::fair_share::{Claim, fair_shares};
use tandem_report::experiment::{Figures, Sample, VmFigures, mean_and_max};
use tandem_report::service::Completion;

use crate::alone::MeasuredAlone;
use crate::cpu_time::{Reading, others};
use crate::plan::Plan;
use crate::timeslices::Tick;
use crate::windows;

/// Readings at both ends of a mode's window.
pub struct Window {
    /// CPU times at the start.
    pub begin: Reading,
    /// CPU times at the end.
    pub end: Reading,
    /// Per VM and vCPU: whether it was runnable at the end.
    pub runnable: Vec<Vec<bool>>,
    /// Per VM: finished work, and the time between its two counts in seconds.
    pub work: Vec<(u64, f64)>,
    /// Per VM: completion times of its bursts or requests, if its workload has any.
    pub completions: Vec<Option<Completion>>,
    /// The vCPUs' accounts over the whole window.
    pub ticks: Vec<Tick>,
    /// Shares over time.
    pub series: Vec<Sample>,
}

/// Returns the figures of one mode; `alone` has the results of each VM alone, if they were measured.
pub fn figures(plan: &Plan, window: Window, alone: Option<&[MeasuredAlone]>) -> Figures {
    let seconds = window.end.seconds_since(&window.begin);
    let length = Nanos((seconds * 1e9) as u64);
    let assessments = assess(length, &observations(plan, &window, length));
    let windows = windows::windows(plan, &window.ticks, &window.runnable);
    let waits = windows::waits(&window.ticks);
    let of_alone = |i: usize, work_per_second: f64| {
        let alone = alone?.get(i)?.work_per_second;
        (alone > 0.0).then_some(work_per_second / alone)
    };
    let vms: Vec<VmFigures> = plan
        .vms
        .iter()
        .zip(&assessments)
        .zip(&window.work)
        .zip(windows.into_iter().zip(waits))
        .enumerate()
        .map(|(i, (((vm, assessment), &(work, work_seconds)), (windows, waits)))| VmFigures {
            spins: None,
            name: vm.name.clone(),
            vcpus: vm.vcpus,
            weight: vm.weight,
            share: assessment.received.as_secs_f64() / seconds,
            fair: assessment.fair.as_secs_f64() / seconds,
            lag: assessment.lag,
            work,
            work_per_second: work as f64 / work_seconds,
            work_of_alone: of_alone(i, work as f64 / work_seconds),
            windows,
            waits,
            completion: window.completions.get(i).copied().flatten(),
        })
        .collect();
    let (mean_abs_lag, max_abs_lag) = mean_and_max(vms.iter().map(|vm| vm.lag));
    Figures {
        idle: window.end.idle_since(&window.begin),
        total_work_per_second: vms.iter().map(|vm| vm.work_per_second).sum(),
        vms,
        mean_abs_lag,
        max_abs_lag,
        work_vs_stock: None,
        series: window.series,
    }
}

fn observations(plan: &Plan, window: &Window, length: Nanos) -> Vec<VmObservation> {
    let delta = |now: VcpuSample, then: VcpuSample| {
        (now.ran.saturating_sub(then.ran), now.waited.saturating_sub(then.waited))
    };
    let vcpu = |vm: usize, index: usize| {
        let (ran, waited) = delta(window.end.vms[vm][index], window.begin.vms[vm][index]);
        let busy = plan.vms[vm].never_sleeps();
        let allowed = plan.vms[vm].allowed(index, &plan.pcpus);
        VcpuObservation {
            ran,
            waited: if busy { length.saturating_sub(ran) } else { waited },
            runnable: busy || window.runnable[vm][index],
            ..VcpuObservation::new(VcpuId(index as u32), allowed)
        }
    };
    let vm = |i: usize| {
        let vcpus = (0..window.end.vms[i].len()).map(|index| vcpu(i, index));
        VmObservation::new(VmId(i as u64), Weight::saturating(plan.vms[i].weight), vcpus.collect())
    };
    (0..plan.vms.len()).map(vm).collect()
}

/// Returns the CPU time of a mode that was neither used by VMs nor idle, in pCPUs, if it is significant.
pub fn others_in(pcpus: usize, figures: &Figures) -> Option<f64> {
    let vms = figures.vms.iter().map(|vm| vm.share).sum();
    others(pcpus, vms, figures.idle)
}

/// Returns the fair share of each VM by weight if all VMs are always runnable, as CPU time per second.
pub fn entitlements(plan: &Plan) -> Vec<Nanos> {
    divide(plan, |_| Nanos(u64::MAX))
}

/// Returns the part of its work alone that each VM deserves: its fair share divided by its CPU time alone, at most 1.
/// No VM demands more CPU time than it used alone.
pub fn deserved(plan: &Plan, alone: &[MeasuredAlone]) -> Vec<f64> {
    let wants = |i: usize| Nanos((alone[i].share * 1e9) as u64);
    let fair = divide(plan, wants);
    let part = |(fair, alone): (Nanos, &MeasuredAlone)| {
        if alone.share > 0.0 { (fair.as_secs_f64() / alone.share).min(1.0) } else { 1.0 }
    };
    fair.into_iter().zip(alone).map(part).collect()
}

/// Divides a second of every pCPU by weight; `wants` is the maximum demand of a VM.
fn divide(plan: &Plan, wants: impl Fn(usize) -> Nanos) -> Vec<Nanos> {
    let second = Nanos::from_secs(1);
    let vms: Vec<VmObservation> = plan
        .vms
        .iter()
        .enumerate()
        .map(|(i, vm)| {
            let vcpus = (0..vm.vcpus).map(|index| VcpuObservation {
                waited: second,
                runnable: true,
                ..VcpuObservation::new(VcpuId(index), vm.allowed(index as usize, &plan.pcpus))
            });
            VmObservation::new(VmId(i as u64), Weight::saturating(vm.weight), vcpus.collect())
        })
        .collect();
    let mut fair = vec![Nanos::ZERO; vms.len()];
    for group in accounting_groups(&vms) {
        let claim = |&i: &usize| {
            let peak = vms[i].peak(second).min(wants(i));
            Claim::always_runnable(vms[i].weight, peak, second)
        };
        let claims: Vec<Claim> = group.members.iter().map(claim).collect();
        let capacity = Nanos(second.0 * group.pcpus.len() as u64);
        for (&i, share) in group.members.iter().zip(fair_shares(capacity, second, &claims)) {
            fair[i] = share;
        }
    }
    fair
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::test_plan;
    use crate::timeslices::Account;

    fn plan(mix: &str, weights: &str, workload: &str) -> Plan {
        test_plan::plan(mix, weights, workload, "0-1")
    }

    fn fair(mix: &str, weights: &str) -> Vec<f64> {
        let fair = entitlements(&plan(mix, weights, "burn"));
        fair.iter().map(|fair| (fair.as_secs_f64() * 1000.0).round() / 1000.0).collect()
    }

    /// Returns a window in which vCPU 0 of each VM ran for this many milliseconds, and its other vCPUs not at all.
    fn window(plan: &Plan, ran_ms: &[u64], waited_ms: u64) -> Window {
        let at = Instant::now();
        let reading = |at: Instant, part: u64| Reading {
            at,
            vms: plan
                .vms
                .iter()
                .zip(ran_ms)
                .map(|(vm, ran)| {
                    let sample = |index: u32| VcpuSample {
                        ran: Nanos::from_millis(if index == 0 { ran * part } else { 0 }),
                        waited: Nanos::from_millis(waited_ms * part),
                        ..VcpuSample::default()
                    };
                    (0..vm.vcpus).map(sample).collect()
                })
                .collect(),
            idle: Nanos::ZERO,
        };
        Window {
            begin: reading(at, 0),
            end: reading(at + Duration::from_secs(10), 1),
            runnable: plan.vms.iter().map(|vm| vec![false; vm.vcpus as usize]).collect(),
            work: ran_ms.iter().map(|&ran| (ran, 10.0)).collect(),
            completions: vec![None; ran_ms.len()],
            ticks: (0..2)
                .map(|tick| Tick {
                    at: at + Duration::from_secs(10 * tick),
                    vms: plan
                        .vms
                        .iter()
                        .map(|vm| vec![Account::default(); vm.vcpus as usize])
                        .collect(),
                })
                .collect(),
            series: Vec::new(),
        }
    }

    #[test]
    fn infeasible_weights_get_their_peak() {
        assert_eq!(fair("4,2,1", "1,1,1"), [0.667, 0.667, 0.667]);
        assert_eq!(fair("4,3,2", "1,2,3"), [0.333, 0.667, 1.0]);
        assert_eq!(fair("2,1,1", "1,1,6"), [0.5, 0.5, 1.0]);
    }

    #[test]
    fn two_and_one_vcpus_lag_by_a_third() {
        let plan = plan("2,1", "1,1", "burn");
        let figures = figures(&plan, window(&plan, &[13_333, 6_667], 0), None);
        let [big, small] = figures.vms.as_slice() else { panic!("two VMs") };
        assert!((big.fair - 1.0).abs() < 1e-3 && (small.fair - 1.0).abs() < 1e-3);
        assert!((small.lag - 0.3333).abs() < 1e-3, "{}", small.lag);
        assert!((figures.max_abs_lag - 0.3333).abs() < 1e-3);
        assert!((big.work_per_second - 1333.3).abs() < 1e-6);
    }

    #[test]
    fn capped_burner_lags_without_counted_waits() {
        let plan = plan("1,1", "1,1", "burn");
        let figures = figures(&plan, window(&plan, &[9_000, 5_000], 0), None);
        assert!((figures.vms[1].fair - 0.7).abs() < 1e-6, "{}", figures.vms[1].fair);
    }

    #[test]
    fn sleeper_has_no_lag() {
        let plan = plan("1,1", "1,1", "bursty");
        let figures = figures(&plan, window(&plan, &[9_000, 1_000], 0), None);
        assert!(figures.vms[1].lag.abs() < 1e-6, "{:?}", figures.vms);
    }

    #[test]
    fn work_is_relative_to_the_vm_alone() {
        let plan = plan("2,2", "1,1", "burn");
        let alone = |work_per_second: f64| MeasuredAlone { work_per_second, share: 2.0 };
        let window = window(&plan, &[5_000, 10_000], 0);
        let figures = figures(&plan, window, Some(&[alone(1000.0), alone(0.0)]));
        assert_eq!(figures.vms[0].work_of_alone, Some(0.5));
        assert_eq!(figures.vms[1].work_of_alone, None, "there is no baseline");
    }

    #[test]
    fn unused_shares_go_to_other_vms() {
        let plan = plan("2,2,2", "1,1,1", "burn");
        let alone = |share: f64| MeasuredAlone { work_per_second: 1.0, share };
        // The demand of 0.2 is met; the others get 0.9 each, of 2.0 and of 1.8.
        let deserved = deserved(&plan, &[alone(2.0), alone(1.8), alone(0.2)]);
        for (deserved, expected) in deserved.iter().zip([0.45, 0.5, 1.0]) {
            assert!((deserved - expected).abs() < 1e-6, "{deserved}");
        }
        assert_eq!(super::deserved(&plan, &[alone(0.0); 3]), [1.0; 3]);
    }
}
