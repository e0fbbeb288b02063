//! Claims of Flex (Rao & Zhou, "Towards Fair and Efficient SMP Virtual Machine Scheduling", PPoPP 2014):
//! fair shares of VMs with different numbers of vCPUs, and parallel programs with neighbours.
//!
//! The source runs Xen 4.0.2 on a host of 16 logical CPUs, with all VMs on four of them.
//! That Xen distributes the credits of the whole host in each period, so VMs confined to a part of the host rarely run out of credits.
//!
//! The lag of a VM over a run is |fair − received| ÷ fair, in percent.
//! Fair shares come from the same water-filling as FlexW's (`tandem_policy::fair_share`): by weight, up to the capacity of the VM's vCPUs.
//! The number of VMs is varied, and the figures are the maxima over the numbers.
//! The VMs have four, three, two and one vCPUs; each size occurs once before any occurs twice.
//! The source does not give the maximum number of VMs: here it is eight, each size twice.
//!
//! Parallel programs run in turn in a VM of four vCPUs, next to a VM of three vCPUs that repeats lu, which spins.
//! The metric is the mean of both VMs' work rates relative to Xen, compared per program.
//! The source does not list the programs of the mix: here they are PARSEC with its default waiting, and NPB with spinning waiters.
//!
//! "Xen" is the credit scheduler without a policy; "Flex" is FlexW and FlexS together; "balance+cap" is without
//! co-scheduling.

use tandem_model::{Nanos, Weight};
use tandem_policy::fair_share::{Claim as Wanted, fair_shares};

use super::claims::{Claim, Figure};
use super::judge::{Judge, JudgeError};
use crate::programs::{NPB, PARSEC, PASSIVE};
use crate::sample::Sample;
use crate::trials::{Outcome, Trial, Trials, TrialsError};

/// The claims judged here.
pub const CLAIMS: &[(&str, Judge)] =
    &[("flex.f6.lag", f6_lag), ("flex.f7.weights", f7_weights), ("flex.f8.parallel", f8_parallel)];

/// pCPUs that the VMs of all scenarios here share.
const PCPUS: u32 = 4;

/// The sizes of the VMs.
const SIZES: [u32; 4] = [4, 3, 2, 1];

/// Maximum number of VMs in a mix.
const MAX_VMS: usize = 8;

/// Xen's default weight, which a relative weight of 1 stands for.
const WEIGHT: u32 = 256;

/// Minimum deviation from the fair share that counts as a drift, as a fraction of the share.
const DRIFT: f64 = 0.03;

/// Blocking programs, and programs whose waiters spin in user space.
fn programs() -> impl Iterator<Item = &'static str> {
    let active = NPB.into_iter().filter(|name| !name.ends_with(PASSIVE));
    PARSEC.into_iter().chain(active)
}

/// A VM of a mix: number of vCPUs and relative weight.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Vm {
    vcpus: u32,
    weight: u32,
}

impl Vm {
    fn of(vcpus: u32) -> Vm {
        Vm { vcpus, weight: 1 }
    }
}

/// Returns the scenario's name for the VM at an index.
fn name(at: usize) -> String {
    format!("vm{}", at + 1)
}

/// Mixes of two to [`MAX_VMS`] VMs of equal weight.
fn mixes() -> impl Iterator<Item = Vec<Vm>> {
    let mix = |count| SIZES.into_iter().cycle().take(count).map(Vm::of).collect();
    (2..=MAX_VMS).map(mix)
}

/// The scenario with these VMs, all on the same pCPUs, with CFS in the guests as in 2014.
fn mixed(mix: &[Vm]) -> Trial {
    let vm = |(at, vm): (usize, &Vm)| {
        format!(
            "{{ name = \"{}\", vcpus = {}, weight = {}, pins = \"0-{}\", scheduler = \"cfs\", workload = \"burn\" }}",
            name(at),
            vm.vcpus,
            vm.weight * WEIGHT,
            PCPUS - 1
        )
    };
    let vms: Vec<String> = mix.iter().enumerate().map(vm).collect();
    Trial::of("flex-lag").set("vm", format!("[{}]", vms.join(", ")))
}

/// Returns the fair share of each VM of a mix, pCPUs.
fn fair(mix: &[Vm]) -> Vec<f64> {
    let period = Nanos::from_secs(1);
    let wanted = |vm: &Vm| {
        let peak = Nanos(period.0 * u64::from(vm.vcpus.min(PCPUS)));
        Wanted::always_runnable(Weight::saturating(f64::from(vm.weight)), peak, period)
    };
    let wanted: Vec<Wanted> = mix.iter().map(wanted).collect();
    let shares = fair_shares(Nanos(period.0 * u64::from(PCPUS)), period, &wanted);
    let pcpus = |share: Nanos| share.0 as f64 / period.0 as f64;
    shares.into_iter().map(pcpus).collect()
}

/// Returns the CPU time that each VM received, relative to its fair share.
fn parts(outcome: &Outcome, mix: &[Vm]) -> Result<Vec<Sample>, TrialsError> {
    let part = |(at, fair): (usize, f64)| {
        let received = outcome.of(&name(at), "received")?;
        Ok(received.map(|received| received / fair))
    };
    fair(mix).into_iter().enumerate().map(part).collect()
}

fn lag_percent(part: &Sample) -> Sample {
    part.map(|part| (1.0 - part).abs() * 100.0)
}

/// Returns the maxima, over the mixes, of a mix's maximum lag and of its mean lag.
fn lags(trials: &mut Trials, policies: &[&str]) -> Result<[Sample; 2], JudgeError> {
    let (mut largest, mut means) = (Vec::new(), Vec::new());
    for mix in mixes() {
        let trial = policies.iter().fold(mixed(&mix), |t, name| t.policy(name));
        let outcome = trials.run(&trial)?;
        let lags: Vec<Sample> = parts(&outcome, &mix)?.iter().map(lag_percent).collect();
        largest.push(Sample::max_of(&lags));
        means.push(Sample::mean_of(&lags));
    }
    Ok([Sample::max_of(&largest), Sample::max_of(&means)])
}

fn f6_lag(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    let [xen_max, xen_mean] = lags(trials, &[])?;
    let [flex_max, flex_mean] = lags(trials, &["flex"])?;
    Ok(vec![
        claim.figure("xen_max_percent", &xen_max)?,
        claim.figure("xen_mean_percent", &xen_mean)?,
        claim.figure("flex_max_percent", &flex_max)?,
        claim.figure("flex_mean_percent", &flex_mean)?,
    ])
}

fn f7_weights(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    let mut weighted = |weights: [u32; 3]| -> Result<(Vec<Vm>, Option<Vec<f64>>), JudgeError> {
        let sizes = SIZES.iter().zip(weights);
        let mix: Vec<Vm> = sizes.map(|(&vcpus, weight)| Vm { vcpus, weight }).collect();
        let outcome = trials.run(&mixed(&mix).policy("flex"))?;
        let parts = parts(&outcome, &mix)?.iter().map(Sample::mean).collect();
        Ok((mix, parts))
    };
    let (_, with_size) = weighted([3, 2, 1])?;
    let (_, against_size) = weighted([1, 2, 3])?;
    let (mix, middle) = weighted([1, 3, 2])?;
    let off = |parts: &Option<Vec<f64>>| -> Option<f64> {
        let off = parts.as_ref()?.iter().map(|part| (part - 1.0).abs());
        off.max_by(f64::total_cmp)
    };
    Ok(vec![
        claim.shape(
            "3:2:1: each VM within 3 % of its share",
            off(&with_size).is_some_and(|off| off < DRIFT),
        ),
        claim.shape(
            "1:2:3: drifts by over 3 % to the VM with most vCPUs from that with least",
            against_size.is_some_and(|parts| drifts(&parts)),
        ),
        claim.shape(
            "1:3:2: less accurate than 3:2:1, towards the VMs with more vCPUs",
            off(&middle) > off(&with_size) && middle.is_some_and(|parts| drift(&mix, &parts) > 0.0),
        ),
    ])
}

/// Returns whether the first VM exceeds its share and the last one falls short, each by more than [`DRIFT`].
fn drifts(parts: &[f64]) -> bool {
    matches!(parts, [most, .., least] if *most > 1.0 + DRIFT && *least < 1.0 - DRIFT)
}

/// Returns the sum of the VMs' excess over their fair shares (pCPUs), weighted by their number of vCPUs.
///
/// It is positive if time moved from VMs with fewer vCPUs to VMs with more.
fn drift(mix: &[Vm], parts: &[f64]) -> f64 {
    let beyond = fair(mix).into_iter().zip(parts);
    let beyond = beyond.map(|(fair, part)| fair * (part - 1.0));
    let weighted = mix.iter().zip(beyond);
    weighted.map(|(vm, beyond)| f64::from(vm.vcpus) * beyond).sum()
}

/// Returns the work rates of lu and of the program next to it, in this order.
fn both(trials: &mut Trials, program: &str, policies: &[&str]) -> Result<[Sample; 2], JudgeError> {
    let trial = Trial::of("flex-parallel").set("vm.program.workload", program);
    let trial = policies.iter().fold(trial, |t, name| t.policy(name));
    let outcome = trials.run(&trial)?;
    Ok([outcome.of("lu", "work_rate")?, outcome.of("program", "work_rate")?])
}

/// Returns the mean of both VMs' work rates relative to Xen.
fn over_xen(trials: &mut Trials, program: &str, policies: &[&str]) -> Result<Sample, JudgeError> {
    let [lu, own] = both(trials, program, policies)?;
    let [xen_lu, xen_own] = both(trials, program, &[])?;
    Ok(lu.over(&xen_lu).zip(&own.over(&xen_own), f64::midpoint))
}

fn f8_parallel(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    let [_, with] = both(trials, "parsec-bodytrack", &["flex"])?;
    let [_, without] = both(trials, "parsec-bodytrack", &[])?;
    let bodytrack = with.over(&without);
    let (mut over_balance, mut over_demand) = (Vec::new(), Vec::new());
    for program in programs() {
        let flex = over_xen(trials, program, &["flex"])?;
        over_balance.push(flex.over(&over_xen(trials, program, &["balance", "cap"])?));
        over_demand.push(flex.over(&over_xen(trials, program, &["demand", "cap"])?));
    }
    // These VMs only compute, so the difference is the overhead of FlexS.
    let all = |outcome: &Outcome| -> Result<Sample, TrialsError> {
        let of = |at: usize| outcome.of(&name(at), "work_rate");
        let rates = (0..SIZES.len()).map(of).collect::<Result<Vec<Sample>, _>>()?;
        Ok(Sample::mean_of(&rates))
    };
    let mix = SIZES.map(Vm::of);
    let without = all(&trials.run(&mixed(&mix).policy("balance"))?)?;
    let with = all(&trials.run(&mixed(&mix).policy("flexs"))?)?;
    let overhead = with.over(&without).map(|ratio| (1.0 - ratio) * 100.0);
    Ok(vec![
        claim.figure("bodytrack_over_xen", &bodytrack)?,
        claim.figure("mix_over_balance_cap", &Sample::geometric_mean_of(&over_balance))?,
        claim.figure("mix_over_demand_cap", &Sample::geometric_mean_of(&over_demand))?,
        claim.figure("flexs_schedule_overhead_percent", &overhead)?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(ours: &[f64], wanted: &[f64]) -> bool {
        ours.len() == wanted.len() && ours.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-6)
    }

    #[test]
    fn mixes_have_two_to_eight_heterogeneous_vms() {
        let sizes: Vec<Vec<u32>> =
            mixes().map(|mix| mix.iter().map(|vm| vm.vcpus).collect()).collect();
        assert_eq!(sizes.len(), 7);
        assert_eq!(sizes[0], [4, 3]);
        assert_eq!(sizes[2], [4, 3, 2, 1]);
        assert_eq!(sizes[3], [4, 3, 2, 1, 4]);
    }

    #[test]
    fn fair_share_is_bounded_by_vcpus() {
        assert!(near(&fair(&[Vm::of(4), Vm::of(3)]), &[2.0, 2.0]));
        assert!(near(&fair(&[Vm::of(4), Vm::of(2), Vm::of(1)]), &[1.5, 1.5, 1.0]));
        let weighted = [(4, 1), (3, 2), (2, 3)].map(|(vcpus, weight)| Vm { vcpus, weight });
        assert!(near(&fair(&weighted), &[2.0 / 3.0, 4.0 / 3.0, 2.0]));
    }

    #[test]
    fn lags_are_absolute_and_in_percent() {
        let parts = Sample::new(vec![0.4, 1.0, 3.35]);
        let wanted = [60.0, 0.0, 235.0];
        let lags = lag_percent(&parts);
        let off = lags.zip(&Sample::new(wanted.to_vec()), |a, b| (a - b).abs());
        assert!(Sample::max_of(&[off]).mean().unwrap() < 1e-6, "{lags:?}");
    }

    #[test]
    fn drift_goes_from_last_to_first_vm() {
        assert!(drifts(&[1.2, 1.1, 0.85]));
        assert!(!drifts(&[1.0, 1.2, 0.85]));
        assert!(!drifts(&[1.2, 0.9, 1.0]));
    }

    #[test]
    fn drift_is_positive_towards_larger_vms() {
        // Shares of 2/3, 2 and 4/3 pCPUs; a tenth of a pCPU moves.
        let mix = [(4, 1), (3, 3), (2, 2)].map(|(vcpus, weight)| Vm { vcpus, weight });
        let moved = |from: usize, to: usize| {
            let mut had = fair(&mix);
            had[from] -= 0.1;
            had[to] += 0.1;
            let parts: Vec<f64> = had.iter().zip(fair(&mix)).map(|(a, b)| a / b).collect();
            drift(&mix, &parts)
        };
        assert!((moved(2, 0) - 0.2).abs() < 1e-9);
        assert!((moved(1, 0) - 0.1).abs() < 1e-9);
        assert!((moved(0, 1) + 0.1).abs() < 1e-9);
    }
}
