//! Claims of the diagnosis of virtualization overhead.
//!
//! Source: Shan's dissertation (NJIT 2018), chapter 2.
//! PARSEC and SPLASH-2X programs run with one thread per vCPU in a VM of 16 vCPUs on 16 pCPUs, compared with the same without a hypervisor.
//! Factors are switched off one after the other.
//! A slowdown is the additional time for the same work, percent.
//!
//! The source does not list the programs of its means: here they are all programs that have a profile, except cholesky.
//! The source excludes cholesky because it runs for less than 0.01 s.
//! Programs "above 20 %" are selected by our default slowdown, not by the source's.
//! "Divided by" of figure 2.2 is taken as the throughput of one VM relative to that of two VMs together.
//! The source reports an increase of 74 % for facesim.

use super::claims::{Claim, Figure};
use super::judge::{Judge, JudgeError};
use crate::programs::parsec_and_splash_but_cholesky;
use crate::sample::Sample;
use crate::trials::{Trial, Trials};

/// The claims judged here.
pub const CLAIMS: &[(&str, Judge)] =
    &[("diag.f2_1", f2_1_dedicated), ("diag.f2_2", f2_2_several_vms), ("diag.f2_3", f2_3_factors)];

/// Threshold of a large slowdown, percent.
const LARGE: f64 = 20.0;

/// A trial of a scenario whose VM `program` runs a program, with this number of vCPUs and pCPUs.
pub fn with_cpus(scenario: &str, program: &str, cpus: u32) -> Trial {
    Trial::of(scenario)
        .set("vm.program.workload", program)
        .set("vm.program.vcpus", cpus)
        .set("machine.pcpus", cpus)
        .set("machine.pcpus_per_llc", cpus.min(8))
}

/// The same trial without a hypervisor.
pub fn native(trial: Trial) -> Trial {
    trial.set("machine.mode", "native")
}

/// Returns the work rate of the program.
pub fn rate(trials: &mut Trials, trial: &Trial) -> Result<Sample, JudgeError> {
    Ok(trials.run(trial)?.of("program", "work_rate")?)
}

/// Returns the slowdown in a VM whose trial is modified by `change`.
fn slowdown(
    trials: &mut Trials,
    program: &str,
    cpus: u32,
    change: impl Fn(Trial) -> Trial,
) -> Result<Sample, JudgeError> {
    let dedicated = with_cpus("diagnosis-program", program, cpus);
    let native = rate(trials, &native(dedicated.clone()))?;
    Ok(rate(trials, &change(dedicated))?.slowdown_percent(&native))
}

fn f2_1_dedicated(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    let of = |trials: &mut Trials, cpus: u32| -> Result<Vec<Sample>, JudgeError> {
        parsec_and_splash_but_cholesky()
            .map(|program| slowdown(trials, program, cpus, |same| same))
            .collect()
    };
    let (one, sixteen) = (of(trials, 1)?, of(trials, 16)?);
    let dedup = slowdown(trials, "parsec-dedup", 16, |same| same)?;
    Ok(vec![
        claim.figure("one_thread_mean", &Sample::mean_of(&one))?,
        claim.figure("sixteen_threads_mean", &Sample::mean_of(&sixteen))?,
        claim.figure("dedup_more_than", &dedup)?,
    ])
}

fn f2_2_several_vms(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    let mut together = |program: &str, vms: u32| {
        let trial = Trial::of("diagnosis-several")
            .set("vm.program.workload", program)
            .set("vm.program.count", vms);
        rate(trials, &trial)
    };
    let mut figures = Vec::new();
    for program in ["dedup", "streamcluster", "volrend"] {
        let suite = if program == "volrend" { "splash" } else { "parsec" };
        let profile = format!("{suite}-{program}");
        let ratio = together(&profile, 1)?.over(&together(&profile, 2)?);
        figures.push(claim.figure(&format!("{program}_divided_by"), &ratio)?);
    }
    let four = together("parsec-facesim", 4)?.over(&together("parsec-facesim", 1)?);
    let gain = four.map(|ratio| 100.0 * (ratio - 1.0));
    figures.push(claim.figure("facesim_4vm_gain_percent", &gain)?);
    Ok(figures)
}

/// Settings that switch factors off.
const NOTHING: [(&str, &str); 0] = [];
const HALTING: [(&str, &str); 1] = [("vm.*.idle", "poll")];
const PAUSE_LOOPS: [(&str, &str); 1] = [("host.pause_loop.policy", "off")];
const BOTH: [(&str, &str); 2] = [HALTING[0], PAUSE_LOOPS[0]];

fn f2_3_factors(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    let mut without = |program: &str, factors: &[(&str, &str)]| {
        slowdown(trials, program, 16, |trial| {
            let set = |trial: Trial, &(key, value): &(&str, &str)| trial.set(key, value);
            factors.iter().fold(trial, set)
        })
    };
    let mut all = Vec::new();
    for program in parsec_and_splash_but_cholesky() {
        let slowdowns = [
            without(program, &NOTHING)?,
            without(program, &HALTING)?,
            without(program, &BOTH)?,
            without(program, &PAUSE_LOOPS)?,
        ];
        all.push((program, slowdowns));
    }
    let large: Vec<&[Sample; 4]> = all
        .iter()
        .filter(|(_, slowdowns)| slowdowns[0].mean().is_some_and(|mean| mean > LARGE))
        .map(|(_, slowdowns)| slowdowns)
        .collect();
    let mean = |factor: usize| {
        let of_all: Vec<Sample> = large.iter().map(|each| each[factor].clone()).collect();
        Sample::mean_of(&of_all)
    };
    let of = |wanted: &str, factor: usize| {
        let found = all.iter().find(|(program, _)| *program == wanted);
        found.map_or_else(Sample::absent, |(_, each)| each[factor].clone())
    };
    Ok(vec![
        claim.figure("mean[0]", &mean(0))?,
        claim.figure("mean[1]", &mean(1))?,
        claim.figure("mean[2]", &mean(2))?,
        claim.figure("ple_off_default_idle", &mean(3))?,
        claim.figure("dedup[0]", &of("parsec-dedup", 0))?,
        claim.figure("dedup[1]", &of("parsec-dedup", 1))?,
        claim.figure("ocean_ncp_ple_off[0]", &of("splash-ocean_ncp", 0))?,
        claim.figure("ocean_ncp_ple_off[1]", &of("splash-ocean_ncp", 3))?,
    ])
}
