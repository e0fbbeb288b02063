//! Claims of Gleaner's problem: what waking a blocked thread costs in a VM, and what programs lose by it.
//!
//! Source: Ding, Gibbons, Kozuch and Shan, "Gleaner: Mitigating the Blocked-Waiter Wakeup Problem for
//! Virtualized Multicore Applications", USENIX ATC 2014: a wake-up's latency in four situations (table 2), run times of
//! dedup (table 1), slowdowns of programs with 16 threads in a VM that has the host to itself (figure 5).
//!
//! Gleaner itself is an agent inside the guest: the policies of Tandem's agent, told what one could read there
//! (`gleaner = true`). It is given three seconds before anything is measured. Run times in table 1 are compared as ratios to the one on one core without a hypervisor:
//! ours are scaled so that this one is exact. The programs of figure 5's means are not known to us: here they
//! are all that have a profile.

use super::claims::Claim;
use super::claims::Figure;
use super::diagnosis::native;
use super::diagnosis::rate;
use super::diagnosis::with_cpus;
use super::judge::Judge;
use super::judge::JudgeError;
use crate::programs::PARSEC;
use crate::programs::SPLASH;
use crate::programs::parsec_and_splash;
use crate::sample::Sample;
use crate::trials::Outcome;
use crate::trials::Trial;
use crate::trials::Trials;
use crate::trials::TrialsError;

/// The claims judged here.
pub const CLAIMS: &[(&str, Judge)] = &[
    ("gleaner.t2.A", t2_a_same_vcpu),
    ("gleaner.t2.B", t2_b_kept_busy),
    ("gleaner.t2.C", t2_c_halted),
    ("gleaner.t2.D", t2_d_taken),
    ("gleaner.t1.dedup", t1_dedup),
    ("gleaner.f5.slowdown", f5_slowdown),
    ("gleaner.f7.speedup", f7_speedup),
    ("gleaner.f8.mysql", f8_mysql),
];

/// What both threads of the scenario compute before they wake the other, µs.
const BETWEEN_US: f64 = 100.0;

/// Connections of the paper's sweep, most first.
const CONNECTIONS: [u32; 5] = [48, 32, 24, 20, 16];

/// Long enough for the agent to find its setting first.
fn long(trial: Trial) -> Trial {
    trial.set("duration", "5s").set("warmup", "3s")
}

/// With the agent in the program's VM.
fn with_agent(trial: Trial) -> Trial {
    long(trial).set("vm.program.gleaner", "true")
}

/// From waking a thread until it runs, µs: a round is two of them, and two computations.
fn latency(trials: &mut Trials, trial: &Trial) -> Result<Sample, JudgeError> {
    let rounds = trials.run(trial)?.of("pair", "work_rate")?;
    Ok(rounds.map(|rate| 1e6 / rate / 2.0 - BETWEEN_US))
}

fn wake(workload: &str) -> Trial {
    Trial::of("gleaner-wake").set("vm.pair.workload", workload)
}

fn native_wake(workload: &str) -> Trial {
    wake(workload)
        .set("machine.mode", "native")
        .set("host.placement", "load-balancing")
}

fn table_2(trials: &mut Trials, claim: &Claim, workload: &str) -> Result<Vec<Figure>, JudgeError> {
    Ok(vec![
        claim.figure("native_us", &latency(trials, &native_wake(workload))?)?,
        claim.figure("vm_us", &latency(trials, &wake(workload))?)?,
    ])
}

fn t2_a_same_vcpu(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    table_2(trials, claim, "same")
}

fn t2_b_kept_busy(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    table_2(trials, claim, "kept-busy")
}

fn t2_c_halted(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    table_2(trials, claim, "halted")
}

fn t2_d_taken(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    let vm = latency(trials, &Trial::of("gleaner-wake-shared"))?;
    Ok(vec![
        claim.figure("native_us", &latency(trials, &native_wake("taken"))?)?,
        claim.figure("vm_us_at_least", &vm)?,
    ])
}

fn t1_dedup(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    let alone = |cpus: u32| with_cpus("gleaner-program", "parsec-dedup", cpus);
    let beside = |other: &str, cpus: u32| {
        with_cpus("gleaner-shared", "parsec-dedup", cpus)
            .set("vm.other.vcpus", cpus)
            .set("vm.other.workload", other)
    };
    let one = rate(trials, &native(alone(1)))?;
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
        let takes = one.over(&rate(trials, &trial)?).map(|r| r * one_takes);
        figures.push(claim.figure(path, &takes)?);
    }
    Ok(figures)
}

fn f5_slowdown(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    // Without the agent and with it.
    let mut slowdowns = |program: &str| {
        let dedicated = with_cpus("gleaner-program", program, 16);
        let native = rate(trials, &native(dedicated.clone()))?;
        let mut of = |trial: Trial| -> Result<Sample, JudgeError> {
            Ok(rate(trials, &trial)?.slowdown_percent(&native))
        };
        Ok::<[Sample; 2], JudgeError>([of(dedicated.clone())?, of(with_agent(dedicated))?])
    };
    let mut figures = Vec::new();
    for (name, program) in [
        ("dedup", "parsec-dedup"),
        ("facesim", "parsec-facesim"),
        ("cholesky", "splash-cholesky"),
        ("volrend", "splash-volrend"),
    ] {
        for (at, slowdown) in slowdowns(program)?.iter().enumerate() {
            figures.push(claim.figure(&format!("{name}[{at}]"), slowdown)?);
        }
    }
    for (name, suite) in [("parsec_avg", &PARSEC[..]), ("splash_avg", &SPLASH[..])] {
        let all: Vec<[Sample; 2]> = suite
            .iter()
            .map(|program| slowdowns(program))
            .collect::<Result<_, JudgeError>>()?;
        for at in 0..2 {
            let of_all: Vec<Sample> = all.iter().map(|both| both[at].clone()).collect();
            figures.push(claim.figure(&format!("{name}[{at}]"), &Sample::mean_of(&of_all))?);
        }
    }
    Ok(figures)
}

/// Beside matmul, which computes all the time. The mean is over the programs that have a profile; a gain
/// of 203 % is three times the throughput. Of the system's throughput each VM counts half.
fn f7_speedup(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    let (mut gains, mut systems) = (Vec::new(), Vec::new());
    let mut of_dedup = None;
    for program in parsec_and_splash() {
        let beside = with_cpus("gleaner-shared", program, 16).set("vm.other.workload", "matmul");
        let without = trials.run(&long(beside.clone()))?;
        let with = trials.run(&with_agent(beside))?;
        let gain = |vm: &str| -> Result<Sample, TrialsError> {
            let rate = |outcome: &Outcome| outcome.of(vm, "work_rate");
            Ok(rate(&with)?.over(&rate(&without)?))
        };
        let (program_gains, other_gains) = (gain("program")?, gain("other")?);
        systems.push(program_gains.zip(&other_gains, f64::midpoint));
        if program == "parsec-dedup" {
            of_dedup = Some(program_gains.clone());
        }
        gains.push(program_gains);
    }
    let mean = Sample::mean_of(&gains).map(|ratio| (ratio - 1.0) * 100.0);
    Ok(vec![
        claim.figure("dedup_max", &of_dedup.unwrap_or_else(Sample::absent))?,
        claim.figure("mean_percent", &mean)?,
        claim.figure("system_throughput_mean", &Sample::mean_of(&systems))?,
    ])
}

/// MySQL alone in its VM; a thread for each connection.
fn f8_mysql(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    let mut gains = Vec::new();
    for connections in CONNECTIONS {
        // The profile has two connections for each vCPU.
        let sized =
            with_cpus("gleaner-program", "oltp", 16).set("vm.program.sized_for", connections / 2);
        let without = rate(trials, &long(sized.clone()))?;
        let with = rate(trials, &with_agent(sized))?;
        gains.push(with.over(&without).map(|ratio| (ratio - 1.0) * 100.0));
    }
    let up_to_20 = gains.get(..4).unwrap_or_default().iter();
    let up_to_20: Option<Vec<f64>> = up_to_20.map(Sample::mean).collect();
    Ok(vec![
        claim.figure("max_percent", &Sample::max_of(&gains))?,
        claim.shape(
            "grows as connections fall from 48 to 20",
            up_to_20.is_some_and(|gains| gains.is_sorted_by(|a, b| a < b)),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Silent;

    #[test]
    fn waking_on_the_same_vcpu_is_cheapest_and_a_halted_one_dearest() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/papers");
        let mut trials = Trials::open(Some(std::path::Path::new(folder)), 1).unwrap();
        let wakes = ["same", "kept-busy", "halted"].map(wake);
        for trial in &wakes {
            latency(&mut trials, trial).unwrap();
        }
        trials.run_all(1, &Silent).unwrap();
        let us = wakes.map(|trial| latency(&mut trials, &trial).unwrap().mean().unwrap());
        assert!(us[0] > 1.0 && us[0] < us[1] && us[1] < us[2], "{us:?}");
    }
}
