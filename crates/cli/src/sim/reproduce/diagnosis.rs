//! Claims of the diagnosis of virtualization overhead: where the time of programs in VMs goes.
//!
//! Source: Shan's dissertation (NJIT 2018), chapter 2: PARSEC and SPLASH-2X programs with a thread for each of
//! the 16 vCPUs of a VM on 16 pCPUs, against the same without a hypervisor. Factors are switched off one after
//! the other. A slowdown is how much longer the same work takes, percent.
//!
//! Which programs the source's means are over is not known to us: here they are all that have a profile.
//! Those "above 20 %" are the ones that our default slowdown puts there, not the source's. "Divided by" and
//! "percent" of figure 2.2 are taken to be the throughput of all VMs together against that of one.

use super::Judge;
use super::claims::Claim;
use super::claims::Figure;
use super::lab::Lab;
use super::lab::Trial;
use super::sample::Sample;
use crate::sim::programs::parsec_and_splash;

/// The claims judged here.
pub const CLAIMS: &[(&str, Judge)] = &[
    ("diag.f2_1", f2_1_dedicated),
    ("diag.f2_2", f2_2_several_vms),
    ("diag.f2_3", f2_3_factors),
];

/// Slowdowns above this count as large, percent.
const LARGE: f64 = 20.0;

/// A program in its VM, of a scenario with a VM called `program`, on so many CPUs.
pub fn with_cpus(scenario: &str, program: &str, cpus: u32) -> Trial {
    Trial::of(scenario)
        .set("vm.program.workload", program)
        .set("vm.program.vcpus", cpus)
        .set("machine.pcpus", cpus)
        .set("machine.pcpus_per_llc", cpus.min(8))
}

/// Without a hypervisor.
pub fn native(trial: Trial) -> Trial {
    trial.set("machine.mode", "native")
}

/// How fast the program is.
pub fn rate(lab: &mut Lab, trial: &Trial) -> anyhow::Result<Sample> {
    Ok(lab.run(trial)?.of("program", "work_rate"))
}

/// The slowdown in a VM that is changed by `change`.
fn slowdown(
    lab: &mut Lab,
    program: &str,
    cpus: u32,
    change: impl Fn(Trial) -> Trial,
) -> anyhow::Result<Sample> {
    let dedicated = with_cpus("diagnosis-program", program, cpus);
    let native = rate(lab, &native(dedicated.clone()))?;
    Ok(rate(lab, &change(dedicated))?.slowdown_percent(&native))
}

fn f2_1_dedicated(lab: &mut Lab, claim: &Claim) -> anyhow::Result<Vec<Figure>> {
    let of = |lab: &mut Lab, cpus: u32| -> anyhow::Result<Vec<Sample>> {
        parsec_and_splash()
            .map(|program| slowdown(lab, program, cpus, |same| same))
            .collect()
    };
    let (one, sixteen) = (of(lab, 1)?, of(lab, 16)?);
    let dedup = slowdown(lab, "parsec-dedup", 16, |same| same)?;
    Ok(vec![
        claim.figure("one_thread_mean", &Sample::mean_of(&one))?,
        claim.figure("sixteen_threads_mean", &Sample::mean_of(&sixteen))?,
        claim.figure("dedup_more_than", &dedup)?,
    ])
}

fn f2_2_several_vms(lab: &mut Lab, claim: &Claim) -> anyhow::Result<Vec<Figure>> {
    let mut together = |program: &str, vms: u32| {
        let trial = Trial::of("diagnosis-several")
            .set("vm.program.workload", program)
            .set("vm.program.count", vms);
        rate(lab, &trial)
    };
    let mut figures = Vec::new();
    for program in ["dedup", "streamcluster", "volrend"] {
        let suite = if program == "volrend" {
            "splash"
        } else {
            "parsec"
        };
        let profile = format!("{suite}-{program}");
        let ratio = together(&profile, 1)?.over(&together(&profile, 2)?);
        figures.push(claim.figure(&format!("{program}_divided_by"), &ratio)?);
    }
    let four = together("parsec-facesim", 4)?.over(&together("parsec-facesim", 1)?);
    figures.push(claim.figure("facesim_4vm_percent", &four.map(|ratio| 100.0 * ratio))?);
    Ok(figures)
}

/// The factors that are switched off.
const NOTHING: [(&str, &str); 0] = [];
const HALTING: [(&str, &str); 1] = [("vm.*.idle", "poll")];
const PAUSE_LOOPS: [(&str, &str); 1] = [("host.pause_loop.policy", "off")];
const BOTH: [(&str, &str); 2] = [HALTING[0], PAUSE_LOOPS[0]];

fn f2_3_factors(lab: &mut Lab, claim: &Claim) -> anyhow::Result<Vec<Figure>> {
    let mut without = |program: &str, factors: &[(&str, &str)]| {
        slowdown(lab, program, 16, |trial| {
            let set = |trial: Trial, &(key, value): &(&str, &str)| trial.set(key, value);
            factors.iter().fold(trial, set)
        })
    };
    let mut all = Vec::new();
    for program in parsec_and_splash() {
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
        .filter(|(_, slowdowns)| slowdowns[0].mean() > LARGE)
        .map(|(_, slowdowns)| slowdowns)
        .collect();
    let mean = |factor: usize| {
        let of_all: Vec<Sample> = large.iter().map(|each| each[factor].clone()).collect();
        Sample::mean_of(&of_all)
    };
    let of = |wanted: &str, factor: usize| {
        let found = all.iter().find(|(program, _)| *program == wanted);
        found.map_or(Sample::new(Vec::new()), |(_, each)| each[factor].clone())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trial_can_be_read() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/papers");
        let mut lab = Lab::open(Some(std::path::Path::new(folder)), 1).unwrap();
        let published = crate::sim::reproduce::claims::published().unwrap();
        for (id, judge) in CLAIMS {
            let claim = published.iter().find(|claim| claim.id == *id).unwrap();
            let figures = judge(&mut lab, claim).unwrap_or_else(|error| panic!("{id}: {error:#}"));
            // Nothing has run yet, so nothing can be reproduced.
            assert!(
                figures.iter().all(|figure| figure.in_band() != Some(true)),
                "{id}"
            );
        }
    }
}
