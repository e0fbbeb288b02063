//! Claims of Gleaner's problem: what waking a blocked thread costs in a VM, and what programs lose by it.
//!
//! Source: Ding, Gibbons, Kozuch and Shan, "Gleaner: Mitigating the Blocked-Waiter Wakeup Problem for
//! Virtualized Multicore Applications", USENIX ATC 2014: a wake-up's latency in four situations (table 2), run times of
//! dedup (table 1), slowdowns of programs with 16 threads in a VM that has the host to itself (figure 5).
//!
//! Gleaner itself is an agent inside the guest, which the simulator does not have: figures with it are
//! not covered. Run times in table 1 are compared as ratios to the one on one core without a hypervisor:
//! ours are scaled so that this one is exact. The programs of figure 5's means are not known to us: here they
//! are all that have a profile.

use super::Judge;
use super::claims::Claim;
use super::claims::Figure;
use super::diagnosis::native;
use super::diagnosis::rate;
use super::diagnosis::with_cpus;
use super::lab::Lab;
use super::lab::Trial;
use super::sample::Sample;
use crate::sim::programs::PARSEC;
use crate::sim::programs::SPLASH;

/// The claims judged here.
pub const CLAIMS: &[(&str, Judge)] = &[
    ("gleaner.t2.A", t2_a_same_vcpu),
    ("gleaner.t2.B", t2_b_kept_busy),
    ("gleaner.t2.C", t2_c_halted),
    ("gleaner.t2.D", t2_d_taken),
    ("gleaner.t1.dedup", t1_dedup),
    ("gleaner.f5.slowdown", f5_slowdown),
];

/// What both threads of the scenario compute before they wake the other, µs.
const BETWEEN_US: f64 = 100.0;

/// Why figures with Gleaner are missing.
const AGENT: &str = "needs the agent in the guest";

/// From waking a thread until it runs, µs: a round is two of them, and two computations.
fn latency(lab: &mut Lab, trial: &Trial) -> anyhow::Result<Sample> {
    let rounds = lab.run(trial)?.of("pair", "work_rate");
    Ok(rounds.map(|rate| 1e6 / rate / 2.0 - BETWEEN_US))
}

fn wake(workload: &str) -> Trial {
    Trial::of("gleaner-wake").set("vm.pair.workload", workload)
}

fn native_wake(workload: &str) -> Trial {
    wake(workload)
        .set("machine.mode", "native")
        .set("host.placement", "balance")
}

fn table_2(lab: &mut Lab, claim: &Claim, workload: &str) -> anyhow::Result<Vec<Figure>> {
    Ok(vec![
        claim.figure("native_us", &latency(lab, &native_wake(workload))?)?,
        claim.figure("vm_us", &latency(lab, &wake(workload))?)?,
    ])
}

fn t2_a_same_vcpu(lab: &mut Lab, claim: &Claim) -> anyhow::Result<Vec<Figure>> {
    table_2(lab, claim, "same")
}

fn t2_b_kept_busy(lab: &mut Lab, claim: &Claim) -> anyhow::Result<Vec<Figure>> {
    table_2(lab, claim, "kept-busy")
}

fn t2_c_halted(lab: &mut Lab, claim: &Claim) -> anyhow::Result<Vec<Figure>> {
    table_2(lab, claim, "halted")
}

fn t2_d_taken(lab: &mut Lab, claim: &Claim) -> anyhow::Result<Vec<Figure>> {
    let vm = latency(lab, &Trial::of("gleaner-wake-shared"))?;
    Ok(vec![
        claim.figure("native_us", &latency(lab, &native_wake("taken"))?)?,
        claim.figure("vm_us_at_least", &vm)?,
    ])
}

fn t1_dedup(lab: &mut Lab, claim: &Claim) -> anyhow::Result<Vec<Figure>> {
    let alone = |cpus: u32| with_cpus("gleaner-program", "parsec-dedup", cpus);
    let beside = |other: &str, cpus: u32| {
        with_cpus("gleaner-shared", "parsec-dedup", cpus)
            .set("vm.other.vcpus", cpus)
            .set("vm.other.workload", other)
    };
    let one = rate(lab, &native(alone(1)))?;
    let one_takes = claim.number("native.c1")?;
    let mut figures = Vec::new();
    for (path, trial) in [
        ("native.c4", native(alone(4))),
        ("native.c16", native(alone(16))),
        ("dedicated.c1", alone(1)),
        ("dedicated.c4", alone(4)),
        ("dedicated.c16", alone(16)),
        ("shared_streamcluster.c4", beside("parsec-streamcluster", 4)),
        (
            "shared_streamcluster.c16",
            beside("parsec-streamcluster", 16),
        ),
        ("shared_matmul.c4", beside("matmul", 4)),
        ("shared_matmul.c16", beside("matmul", 16)),
    ] {
        let takes = one.over(&rate(lab, &trial)?).map(|r| r * one_takes);
        figures.push(claim.figure(path, &takes)?);
    }
    Ok(figures)
}

fn f5_slowdown(lab: &mut Lab, claim: &Claim) -> anyhow::Result<Vec<Figure>> {
    let mut slowdown = |program: &str| {
        let dedicated = with_cpus("gleaner-program", program, 16);
        let without = rate(lab, &native(dedicated.clone()))?;
        anyhow::Ok(rate(lab, &dedicated)?.slowdown_percent(&without))
    };
    let mut figures = Vec::new();
    for (name, program) in [
        ("dedup", "parsec-dedup"),
        ("facesim", "parsec-facesim"),
        ("cholesky", "splash-cholesky"),
        ("volrend", "splash-volrend"),
    ] {
        figures.push(claim.figure(&format!("{name}[0]"), &slowdown(program)?)?);
        figures.push(claim.not_covered(&format!("{name}[1]"), AGENT));
    }
    for (name, suite) in [("parsec_avg", &PARSEC[..]), ("splash_avg", &SPLASH[..])] {
        let all: Vec<Sample> = suite
            .iter()
            .map(|program| slowdown(program))
            .collect::<anyhow::Result<_>>()?;
        figures.push(claim.figure(&format!("{name}[0]"), &Sample::mean_of(&all))?);
        figures.push(claim.not_covered(&format!("{name}[1]"), AGENT));
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trial_can_be_read_and_figures_with_gleaner_are_left_out() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/papers");
        let mut lab = Lab::open(Some(std::path::Path::new(folder)), 1).unwrap();
        let published = crate::sim::reproduce::claims::published().unwrap();
        for (id, judge) in CLAIMS {
            let claim = published.iter().find(|claim| claim.id == *id).unwrap();
            let figures = judge(&mut lab, claim).unwrap_or_else(|error| panic!("{id}: {error:#}"));
            for figure in figures {
                let with = figure.name.ends_with("[1]");
                assert_eq!(figure.in_band().is_none(), with, "{id} {}", figure.name);
                assert_ne!(figure.in_band(), Some(true), "{id}: nothing has run yet");
            }
        }
    }

    #[test]
    fn waking_on_the_same_vcpu_is_cheapest_and_a_halted_one_dearest() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/papers");
        let mut lab = Lab::open(Some(std::path::Path::new(folder)), 1).unwrap();
        let trials = ["same", "kept-busy", "halted"].map(wake);
        for trial in &trials {
            latency(&mut lab, trial).unwrap();
        }
        lab.run_all(1).unwrap();
        let us = trials.map(|trial| latency(&mut lab, &trial).unwrap().mean());
        assert!(us[0] > 1.0 && us[0] < us[1] && us[1] < us[2], "{us:?}");
    }
}
