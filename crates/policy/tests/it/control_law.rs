//! Why FlexW does not add w × lag: the paper's rule and ours on the same small host.
//!
//! `cargo test -p tandem-policy --test it control_law -- --nocapture` prints the table of
//! `docs/decisions/002-flexw-control-law.md`.

use std::collections::BTreeMap;

use crate::test_host::{PERIOD, TestHost};
use tandem_model::{Nanos, VmId, VmObservation};
use tandem_policy::fair_share::{Claim, fair_shares};

/// Measured periods, after [`SETTLE`] others.
const MEASURED: u32 = 200;
const SETTLE: u32 = 20;
/// The same clamps for both rules: w ÷ 100 … w × 100.
const SPREAD: f64 = 100.0;
const FAIR_WINDOW: u32 = 100;

/// The rule of the Flex paper: r_i ← r_i + w_i × lag_i, all r_i = w_i every fair window.
#[derive(Default)]
struct Paper {
    real_time: BTreeMap<VmId, f64>,
    periods: u32,
}

impl Paper {
    fn decide(&mut self, vms: &[VmObservation]) {
        self.periods += 1;
        let claims: Vec<Claim> = vms
            .iter()
            .map(|vm| Claim::always_runnable(vm.weight, vm.peak(PERIOD), PERIOD))
            .collect();
        let capacity = vms.iter().map(VmObservation::received).sum::<Nanos>();
        for (vm, fair) in vms.iter().zip(fair_shares(capacity, PERIOD, &claims)) {
            let w = vm.weight.value();
            let r = self.real_time.entry(vm.vm).or_insert(w);
            let lag = tandem_policy::assess::lag(fair, vm.received());
            *r = (*r + w * lag).clamp(w / SPREAD, w * SPREAD);
            if self.periods.is_multiple_of(FAIR_WINDOW) {
                *r = w;
            }
        }
    }
}

/// Result of a run: mean |lag| of each VM's total over the run, mean over VMs of the standard deviation of the
/// share per second ÷ its mean, and the largest ratio between a VM's weight in one period and the one before.
#[derive(Debug)]
struct Outcome {
    lag: f64,
    wobble: f64,
    jump: f64,
}

fn measure(
    mut host: TestHost,
    fair: &[f64],
    mut period: impl FnMut(&mut TestHost) -> Vec<f64>,
) -> Outcome {
    for _ in 0..SETTLE {
        period(&mut host);
    }
    let mut totals = vec![0.0; fair.len()];
    let mut seconds: Vec<Vec<f64>> = vec![Vec::new(); fair.len()];
    let mut jump: f64 = 1.0;
    let mut last: Vec<f64> = host.vms.iter().map(|vm| vm.weight).collect();
    for n in 0..MEASURED {
        for (i, share) in period(&mut host).into_iter().enumerate() {
            totals[i] += share / f64::from(MEASURED);
            match n % 10 {
                0 => seconds[i].push(share / 10.0),
                _ => *seconds[i].last_mut().unwrap() += share / 10.0,
            }
        }
        for (last, vm) in last.iter_mut().zip(&host.vms) {
            jump = jump.max(vm.weight / *last).max(*last / vm.weight);
            *last = vm.weight;
        }
    }
    let n = fair.len() as f64;
    let lag = totals.iter().zip(fair).map(|(s, f)| ((f - s) / f).abs()).sum::<f64>() / n;
    let wobble = seconds
        .iter()
        .map(|shares| {
            let mean = shares.iter().sum::<f64>() / shares.len() as f64;
            let variance =
                shares.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / shares.len() as f64;
            variance.sqrt() / mean
        })
        .sum::<f64>()
        / n;
    Outcome { lag, wobble, jump }
}

fn with_paper(host: TestHost, fair: &[f64]) -> Outcome {
    let mut paper = Paper::default();
    measure(host, fair, |host| {
        let (observed, _) = host.run_period();
        paper.decide(&observed);
        for vm in &mut host.vms {
            vm.weight = paper.real_time[&VmId(vm.id)];
        }
        shares(&observed)
    })
}

fn with_ours(host: TestHost, fair: &[f64]) -> Outcome {
    measure(host, fair, |host| shares(&host.step().0))
}

fn shares(observed: &[VmObservation]) -> Vec<f64> {
    observed.iter().map(|vm| vm.received().0 as f64 / PERIOD.0 as f64).collect()
}

/// A name, the host, and each VM's fair share in pCPUs.
type Mix = (&'static str, fn() -> TestHost, Vec<f64>);

fn mixes() -> Vec<Mix> {
    vec![
        ("2+1, both on pCPU 0", || TestHost::new(2).vm(2, 100.0).vm(1, 100.0), vec![1.0, 1.0]),
        ("4+2+1", || TestHost::new(2).vm(4, 100.0).vm(2, 100.0).vm(1, 100.0), vec![2.0 / 3.0; 3]),
        (
            "2+1+1+1 spread",
            || {
                TestHost::new(2)
                    .pinned(&[0, 1], 100.0)
                    .pinned(&[0], 100.0)
                    .pinned(&[1], 100.0)
                    .pinned(&[0], 100.0)
            },
            vec![0.5; 4],
        ),
        (
            "4+3+2+1 on 4 pCPUs",
            || TestHost::new(4).vm(4, 100.0).vm(3, 100.0).vm(2, 100.0).vm(1, 100.0),
            vec![1.0; 4],
        ),
    ]
}

#[test]
fn papers_step_oscillates_and_ours_does_not() {
    println!("| mix | rule | mean lag % | wobble per second % | largest jump of a weight |");
    println!("|---|---|---|---|---|");
    let mut worst: (f64, f64) = (0.0, 0.0);
    for (name, host, fair) in mixes() {
        let paper = with_paper(host(), &fair);
        let ours = with_ours(host(), &fair);
        for (rule, outcome) in [("paper", &paper), ("ours", &ours)] {
            println!(
                "| {name} | {rule} | {:.2} | {:.2} | ×{:.1} |",
                outcome.lag * 100.0,
                outcome.wobble * 100.0,
                outcome.jump
            );
        }
        worst = (worst.0.max(paper.wobble), worst.1.max(ours.wobble));
        assert!(ours.lag <= 0.03, "{name}: {ours:?}");
        assert!(ours.lag <= paper.lag + 0.005, "{name}: {ours:?} {paper:?}");
    }
    assert!(worst.1 * 2.0 < worst.0, "paper wobbles {:.3}, ours {:.3}", worst.0, worst.1);
}
