//! Claims of dynamic asymmetric vCPUs, which allocate a VM's CPU time to its vCPUs by demand.
//!
//! Source: Shan's dissertation (NJIT 2018), chapter 5.
//! Four VMs of 16 vCPUs run on 16 pCPUs under Linux 3.19.8, with PARSEC and SPLASH-2X programs except cholesky, which is too short.
//! "Normal" is four VMs that run the same program on the stock host; performance is a program's work rate in one VM.
//!
//! Figure 5.10 adds the parts one after the other, next to VMs that compute.
//! We take its four means to be the stock host (1.0), time by demand, time and latency, and all three parts with the resolver.
//! All are relative to the stock host with the same neighbours.
//! The resolver's gain is the ratio of the last mean to the one before; the source does not specify it.
//!
//! The policy acts every 24 ms, the shortest of the source's periods.
//! Its resolver moves vCPUs, so the placement is `rebalance`.
//! Means are over all programs that have a profile.

use super::claims::{Claim, Figure};
use super::judge::{Judge, JudgeError};
use crate::programs::parsec_and_splash_but_cholesky as programs;
use crate::sample::Sample;
use crate::trials::{Trial, Trials};

/// The claims judged here.
pub const CLAIMS: &[(&str, Judge)] =
    &[("asym.f5_3", f5_3_neighbours), ("asym.f5_4", f5_4_alike), ("asym.f5_10", f5_10_parts)];

/// The parts of the policy.
const ALL: &str = "{ time = true, latency = true, resolver = true }";
const TIME: &str = "{ time = true, latency = false, resolver = false }";
const TIME_AND_LATENCY: &str = "{ time = true, latency = true, resolver = false }";
/// VMs in the set-up of identical VMs.
const VMS: f64 = 4.0;
/// pCPUs of the host.
const PCPUS: f64 = 16.0;

fn shared(program: &str) -> Trial {
    Trial::of("asymmetric-beside").set("vm.program.workload", program)
}

fn alike(program: &str) -> Trial {
    Trial::of("asymmetric-alike").set("vm.program.workload", program)
}

/// Enables these parts of the policy.
fn with(trial: Trial, parts: &str) -> Trial {
    trial
        .set("policies.asymmetric", parts)
        .set("policies.period", "24ms")
        .set("policies.placement", "rebalance")
}

/// Returns the work rate of the program, summed over all VMs that run it.
fn rate(trials: &mut Trials, trial: &Trial) -> Result<Sample, JudgeError> {
    Ok(trials.run(trial)?.of("program", "work_rate")?)
}

/// Returns the program's work rate in one of four identical VMs on the stock host.
fn normal(trials: &mut Trials, program: &str) -> Result<Sample, JudgeError> {
    Ok(rate(trials, &alike(program))?.map(|all| all / VMS))
}

fn f5_3_neighbours(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    let (mut symmetric, mut asymmetric) = (Vec::new(), Vec::new());
    let mut dedup = Sample::absent();
    for program in programs() {
        let normal = normal(trials, program)?;
        let without = rate(trials, &shared(program))?;
        let with = rate(trials, &with(shared(program), ALL))?;
        if program == "parsec-dedup" {
            dedup = with.over(&without);
        }
        symmetric.push(without.over(&normal));
        asymmetric.push(with.over(&normal));
    }
    Ok(vec![
        claim.figure("symmetric_mean", &Sample::mean_of(&symmetric))?,
        claim.figure("asymmetric_mean", &Sample::mean_of(&asymmetric))?,
        claim.figure("dedup_asym_over_sym", &dedup)?,
    ])
}

fn f5_4_alike(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    let mut gains = Vec::new();
    let mut used: [Vec<Sample>; 2] = Default::default();
    let (mut dedup, mut bodytrack) = (Sample::absent(), Sample::absent());
    for program in programs() {
        let trials_of = [alike(program), with(alike(program), ALL)];
        for (used, trial) in used.iter_mut().zip(&trials_of) {
            let busy = trials.run(trial)?.of_host("busy")?;
            used.push(busy.map(|pcpus| 100.0 * pcpus / PCPUS));
        }
        let gain = rate(trials, &trials_of[1])?.over(&rate(trials, &trials_of[0])?);
        match program {
            "parsec-dedup" => dedup = gain.clone(),
            "parsec-bodytrack" => bodytrack = gain.clone(),
            _ => {}
        }
        gains.push(gain);
    }
    Ok(vec![
        claim.figure("mean", &Sample::mean_of(&gains))?,
        claim.figure("dedup", &dedup)?,
        claim.figure("bodytrack", &bodytrack)?,
        claim.figure("cpu_utilization_percent[0]", &Sample::mean_of(&used[0]))?,
        claim.figure("cpu_utilization_percent[1]", &Sample::mean_of(&used[1]))?,
    ])
}

fn f5_10_parts(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    let mut means = Vec::new();
    for parts in [TIME, TIME_AND_LATENCY, ALL] {
        let gains: Vec<Sample> = programs()
            .map(|program| {
                let without = rate(trials, &shared(program))?;
                Ok(rate(trials, &with(shared(program), parts))?.over(&without))
            })
            .collect::<Result<_, JudgeError>>()?;
        means.push(Sample::mean_of(&gains));
    }
    let mut figures = Vec::new();
    for (at, mean) in means.iter().enumerate() {
        figures.push(claim.figure(&format!("means[{}]", at + 1), mean)?);
    }
    let resolver = means[2].over(&means[1]).map(|ratio| 100.0 * (ratio - 1.0));
    figures.push(claim.figure("resolver_percent", &resolver)?);
    let means: Option<Vec<f64>> = means.iter().map(Sample::mean).collect();
    figures.push(claim.shape(
        "each part adds",
        means.is_some_and(|means| means[0] > 1.0 && means.is_sorted_by(|a, b| a < b)),
    ));
    Ok(figures)
}
