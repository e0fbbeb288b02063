//! Shares relative to fair shares over short windows, waits, and shares over time, from readings every [`TICK`].
//!
//! The fair share of a VM in a window is the sum of its GPS service in the ticks, from the policy crate's [`assess`].
//! The capacity of a tick is the CPU time that the VMs received together.
//! A VM is backlogged for the sum of its vCPUs' runnable times, at most the tick.
//! This sum is an upper bound of the time in which any vCPU is runnable.
//! If vCPUs are runnable in the same ticks and asleep in others, the bound per tick is much tighter than per window.
//!
//! The kernel counts a wait when it ends.
//! Time beyond a tick's length is therefore moved to the preceding ticks, in which it was spent.
//! A vCPU that is runnable at the end has waited through its last ticks without counted time.
//! A VM whose guest never sleeps is runnable throughout, because throttled time is not counted as waiting.
//!
//! The kernel updates CPU time once per clock tick (1 to 10 ms), which is the error at each end of a window.

use std::time::Instant;

use tandem_model::{Nanos, VcpuId, VcpuObservation, VmId, VmObservation, Weight};
use tandem_policy::assess::assess;
use tandem_report::experiment::Sample;
use tandem_report::service::{Waits, WindowFigures};

use crate::plan::Plan;
use crate::timeslices::{Account, TICK, Tick};

/// Lengths of the windows, in ticks: 250 ms and 1 s.
pub const LENGTHS: [usize; 2] = [5, 20];

/// Minimum fair share of a VM, in pCPUs, for a window to count; below it, a clock tick is too large a part.
const MIN_FAIR: f64 = 0.05;

/// The account of one VM between two ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Part {
    lasted: Nanos,
    received: Nanos,
    fair: Nanos,
}

/// Returns each VM's windows, one entry for each of [`LENGTHS`].
///
/// `ticks` are those of one mode; `runnable` has the states of the vCPUs at the last tick.
pub fn windows(plan: &Plan, ticks: &[Tick], runnable: &[Vec<bool>]) -> Vec<Vec<WindowFigures>> {
    let parts = parts(plan, ticks, runnable);
    let of_vm = |vm: usize| {
        let own: Vec<Part> = parts.iter().map(|parts| parts[vm]).collect();
        let of = |&length: &usize| of_length(&own, length);
        LENGTHS.iter().filter_map(of).collect()
    };
    (0..plan.vms.len()).map(of_vm).collect()
}

/// Returns the figures of windows of one length; `None` if the mode was shorter.
///
/// A window starts every quarter of the length, so that window bounds rarely split an unfair period.
/// It ends at the first tick at which it is at most half a tick short of the length, even if ticks are late.
fn of_length(parts: &[Part], length: usize) -> Option<WindowFigures> {
    let seconds = length as f64 * TICK.as_secs_f64();
    let enough = seconds - TICK.as_secs_f64() / 2.0;
    let mut figures: Option<WindowFigures> = None;
    for first in (0..parts.len()).step_by((length / 4).max(1)) {
        let (mut lasted, mut received, mut fair) = (0.0, 0.0, 0.0);
        for part in &parts[first..] {
            lasted += part.lasted.as_secs_f64();
            received += part.received.as_secs_f64();
            fair += part.fair.as_secs_f64();
            if lasted >= enough {
                break;
            }
        }
        if lasted < enough {
            break;
        }
        let figures = figures.get_or_insert(WindowFigures {
            seconds,
            windows: 0,
            least: None,
            greatest: None,
        });
        if fair < MIN_FAIR * lasted {
            continue;
        }
        let part = received / fair;
        figures.windows += 1;
        figures.least = Some(figures.least.map_or(part, |least| least.min(part)));
        figures.greatest = Some(figures.greatest.map_or(part, |most| most.max(part)));
    }
    figures
}

/// Returns the received and fair CPU time of each VM between successive ticks.
fn parts(plan: &Plan, ticks: &[Tick], runnable: &[Vec<bool>]) -> Vec<Vec<Part>> {
    let lengths: Vec<Nanos> = ticks.windows(2).map(length).collect();
    let could_run: Vec<Vec<Vec<Nanos>>> = (0..plan.vms.len())
        .map(|vm| {
            let of = |vcpu: usize| {
                if plan.vms[vm].never_sleeps() {
                    lengths.clone()
                } else {
                    could_run(ticks, &lengths, (vm, vcpu), runnable[vm][vcpu])
                }
            };
            (0..plan.vms[vm].vcpus as usize).map(of).collect()
        })
        .collect();
    let between = |(i, two): (usize, &[Tick])| {
        let vcpu = |vm: usize, index: usize| {
            let ran = ran(two, (vm, index));
            let allowed = plan.vms[vm].allowed(index, &plan.pcpus);
            VcpuObservation {
                ran,
                waited: could_run[vm][index][i].saturating_sub(ran),
                ..VcpuObservation::new(VcpuId(index as u32), allowed)
            }
        };
        let vm = |vm: usize| {
            let vcpus = (0..plan.vms[vm].vcpus as usize).map(|index| vcpu(vm, index));
            VmObservation::new(
                VmId(vm as u64),
                Weight::saturating(plan.vms[vm].weight),
                vcpus.collect(),
            )
        };
        let vms: Vec<VmObservation> = (0..plan.vms.len()).map(vm).collect();
        let assessed = assess(lengths[i], &vms).into_iter().map(|vm| Part {
            lasted: lengths[i],
            received: vm.received,
            fair: vm.fair,
        });
        assessed.collect()
    };
    ticks.windows(2).enumerate().map(between).collect()
}

fn length(two: &[Tick]) -> Nanos {
    Nanos(two[1].at.duration_since(two[0].at).as_nanos() as u64)
}

fn ran(two: &[Tick], (vm, vcpu): (usize, usize)) -> Nanos {
    two[1].vms[vm][vcpu].ran.saturating_sub(two[0].vms[vm][vcpu].ran)
}

/// Returns the runnable time of a vCPU between successive ticks, with waits in the ticks in which they were spent.
fn could_run(
    ticks: &[Tick],
    lengths: &[Nanos],
    (vm, vcpu): (usize, usize),
    runnable: bool,
) -> Vec<Nanos> {
    let counted = |two: &[Tick]| {
        let (then, now) = (two[0].vms[vm][vcpu], two[1].vms[vm][vcpu]);
        ran(two, (vm, vcpu)) + now.waited.saturating_sub(then.waited)
    };
    let mut could: Vec<Nanos> = ticks.windows(2).map(counted).collect();
    if runnable {
        let waiting = could.iter().rev().take_while(|time| **time == Nanos::ZERO);
        let first = could.len() - waiting.count();
        could[first..].copy_from_slice(&lengths[first..]);
    }
    let mut beyond = Nanos::ZERO;
    for (could, &length) in could.iter_mut().zip(lengths).rev() {
        let whole = *could + beyond;
        beyond = whole.saturating_sub(length);
        *could = whole.min(length);
    }
    could
}

/// Returns each VM's waits between the first and the last tick.
pub fn waits(ticks: &[Tick]) -> Vec<Waits> {
    let (Some(first), Some(last)) = (ticks.first(), ticks.last()) else {
        return Vec::new();
    };
    let of_vm = |(then, now): (&Vec<Account>, &Vec<Account>)| {
        let (mut runs, mut waited) = (0, 0);
        for (then, now) in then.iter().zip(now) {
            runs += now.slices.saturating_sub(then.slices);
            waited += now.waited.saturating_sub(then.waited).0;
        }
        Waits { runs, mean_ns: (runs > 0).then(|| waited as f64 / runs as f64) }
    };
    first.vms.iter().zip(&last.vms).map(of_vm).collect()
}

/// Returns shares over time: a sample for each 250 ms, with times relative to `zero`.
pub fn series(ticks: &[Tick], zero: Instant) -> Vec<Sample> {
    let mut ends: Vec<usize> = (0..ticks.len()).step_by(LENGTHS[0]).collect();
    let last = ticks.len().saturating_sub(1);
    // A short remainder is omitted, because its rate would be inaccurate.
    if ends.len() < 2 || ends.last().is_some_and(|end| last - end > LENGTHS[0] / 2) {
        ends.push(last);
        ends.dedup();
    }
    let sample = |two: &[usize]| {
        let (then, now) = (&ticks[two[0]], &ticks[two[1]]);
        let seconds = now.at.duration_since(then.at).as_secs_f64();
        let sum = |vm: &Vec<Account>| vm.iter().map(|vcpu| vcpu.ran).sum::<Nanos>();
        let of_vm = |(then, now)| sum(now).saturating_sub(sum(then)).as_secs_f64() / seconds;
        Sample {
            t: since(zero, now.at) - seconds / 2.0,
            shares: then.vms.iter().zip(&now.vms).map(of_vm).collect(),
        }
    };
    if ticks.is_empty() { Vec::new() } else { ends.windows(2).map(sample).collect() }
}

/// Returns the seconds from `zero` to `at`, negative before `zero`.
fn since(zero: Instant, at: Instant) -> f64 {
    match at.checked_duration_since(zero) {
        Some(after) => after.as_secs_f64(),
        None => -zero.duration_since(at).as_secs_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_plan::plan;

    /// Returns ticks of 50 ms from each vCPU's cumulative run and wait times, in ms.
    fn ticks(at: Instant, vms: &[&[&[(u64, u64)]]]) -> Vec<Tick> {
        let account = |&(ran, waited): &(u64, u64), tick: usize| Account {
            ran: Nanos::from_millis(ran),
            waited: Nanos::from_millis(waited),
            slices: tick as u64 * 10,
        };
        let tick = |tick: usize| Tick {
            at: at + TICK * tick as u32,
            vms: vms
                .iter()
                .map(|vm| vm.iter().map(|vcpu| account(&vcpu[tick], tick)).collect())
                .collect(),
        };
        (0..vms[0][0].len()).map(tick).collect()
    }

    fn rounded(value: Option<f64>) -> f64 {
        (value.unwrap() * 1000.0).round() / 1000.0
    }

    #[test]
    fn waits_are_moved_to_their_ticks() {
        let ms = Nanos::from_millis;
        let lengths = [ms(50); 4];
        // The vCPU ran for 20 ms, then waited; the wait is counted at its end.
        let ran_late = ticks(Instant::now(), &[&[&[(0, 0), (20, 0), (20, 0), (20, 0), (60, 110)]]]);
        let could = could_run(&ran_late, &lengths, (0, 0), false);
        assert_eq!(could, [ms(20), ms(50), ms(50), ms(50)]);
        // The same wait, not finished at the end.
        let waiting = ticks(Instant::now(), &[&[&[(0, 0), (20, 0), (20, 0), (20, 0), (20, 0)]]]);
        let could = could_run(&waiting, &lengths, (0, 0), true);
        assert_eq!(could, [ms(20), ms(50), ms(50), ms(50)]);
        assert_eq!(could_run(&waiting, &lengths, (0, 0), false)[1], Nanos::ZERO);
    }

    #[test]
    fn alternating_burners_deviate_by_a_fifth() {
        let plan = plan("1,1", "1,1", "burn", "0");
        let a: Vec<(u64, u64)> =
            [0, 50, 100, 100, 100, 150, 200, 200, 200, 250, 300].map(|ran| (ran, 0)).to_vec();
        let b: Vec<(u64, u64)> =
            [0, 0, 0, 50, 100, 100, 100, 150, 200, 200, 200].map(|ran| (ran, 0)).to_vec();
        let ticks = ticks(Instant::now(), &[&[&a], &[&b]]);
        let windows = windows(&plan, &ticks, &[vec![false], vec![false]]);
        let [short] = windows[0].as_slice() else { panic!("500 ms have windows of 250 ms only") };
        // A VM runs in two or three of five ticks; its fair share is 2.5 ticks.
        assert_eq!((rounded(short.least), rounded(short.greatest)), (0.8, 1.2));
        assert_eq!(short.windows, 6);
    }

    #[test]
    fn late_tick_ends_a_window_early() {
        let part = |ms: u64| Part {
            lasted: Nanos::from_millis(ms),
            received: Nanos::from_millis(ms / 2),
            fair: Nanos::from_millis(ms / 2),
        };
        // Four ticks of 250 ms with a late one, and four of 200 ms.
        let late = [part(50), part(100), part(50), part(50)];
        assert_eq!(of_length(&late, LENGTHS[0]).map(|figures| figures.windows), Some(1));
        assert_eq!(of_length(&[part(50); 4], LENGTHS[0]), None);
    }

    #[test]
    fn alternating_vcpus_keep_a_vm_backlogged() {
        // vCPU 0 is runnable in even ticks, vCPU 1 in odd ones; each runs for 15 ms of them and waits 35 ms for a burner.
        // The VM is backlogged all the time, although each vCPU is runnable for only about half of it.
        let plan = plan("2,1", "1,1", "mutex,burn", "0");
        let turn = |own: bool| {
            let mut all = vec![(0, 0)];
            for tick in 0..5u64 {
                let (ran, waited) = *all.last().unwrap();
                let mine = (tick % 2 == 0) == own;
                all.push(if mine { (ran + 15, waited + 35) } else { (ran, waited) });
            }
            all
        };
        let burn: Vec<(u64, u64)> = (0..6).map(|tick| (tick * 35, 0)).collect();
        let ticks = ticks(Instant::now(), &[&[&turn(true), &turn(false)], &[&burn]]);
        let windows = windows(&plan, &ticks, &[vec![false; 2], vec![false]]);
        assert_eq!(rounded(windows[0][0].least), 0.6);
        assert_eq!(rounded(windows[1][0].least), 1.4);
    }

    #[test]
    fn sleeper_has_no_windows() {
        let plan = plan("1,1", "1,1", "bursty,burn", "0");
        let sleeper = [(0, 0); 6];
        let burn: Vec<(u64, u64)> = (0..6).map(|tick| (tick * 50, 0)).collect();
        let ticks = ticks(Instant::now(), &[&[&sleeper], &[&burn]]);
        let windows = windows(&plan, &ticks, &[vec![false], vec![false]]);
        assert_eq!((windows[0][0].windows, windows[0][0].least), (0, None));
        assert_eq!(rounded(windows[1][0].least), 1.0);
    }

    #[test]
    fn waits_are_per_run() {
        let ticks = ticks(Instant::now(), &[&[&[(0, 0), (10, 30)], &[(0, 0), (10, 10)]]]);
        let waits = waits(&ticks);
        assert_eq!((waits[0].runs, waits[0].mean_ns), (20, Some(2e6)));
    }

    #[test]
    fn series_has_samples_of_250_ms() {
        let own: Vec<(u64, u64)> = (0..9).map(|tick| (tick * 25, 0)).collect();
        let zero = Instant::now() + TICK * 5;
        let ticks = ticks(zero - TICK * 5, &[&[&own]]);
        let series = series(&ticks, zero);
        let shares: Vec<f64> = series.iter().map(|sample| sample.shares[0]).collect();
        assert_eq!(shares, [0.5, 0.5]);
        assert!((series[0].t + 0.125).abs() < 1e-9 && (series[1].t - 0.075).abs() < 1e-9);
        assert!(super::series(&[], zero).is_empty());
    }
}
