//! Claims of Gleaner: the cost of waking a blocked thread in a VM, and its effect on programs.
//!
//! Source: Ding, Gibbons, Kozuch and Shan, "Gleaner: Mitigating the Blocked-Waiter Wakeup Problem for
//! Virtualized Multicore Applications", USENIX ATC 2014.
//! Table 2 has wake-up latencies in four situations, table 1 run times of dedup.
//! Figure 5 has slowdowns of programs with 16 threads in a VM that is alone on the host.
//!
//! Gleaner is an agent inside the guest and sees only information that a guest can read.
//! Claims are judged with the paper's settings (`control = "paper"`); results with ours (`control = "ours"`) are shown next to them.
//! Trials with the agent have a warm-up of three seconds.
//! Run times of table 1 are compared relative to one core without a hypervisor, for which ours are scaled to match exactly.
//! The paper does not list the programs of figure 5's means: here they are all programs that have a profile.
//! The claim excludes cholesky's own figure because it ran for less than 0.01 s.
//! SPLASH's mean includes cholesky, as in the source, and has little weight.

use super::claims::{Claim, Figure};
use super::diagnosis::{native, rate, with_cpus};
use super::judge::{Judge, JudgeError};
use crate::programs::{PARSEC, SPLASH, parsec_and_splash};
use crate::sample::Sample;
use crate::trials::{Outcome, Trial, Trials, TrialsError};

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

/// Computation of each of the scenario's two threads before it wakes the other, µs.
const BETWEEN_US: f64 = 100.0;

/// Connections of the paper's sweep, in descending order.
const CONNECTIONS: [u32; 5] = [48, 32, 24, 20, 16];

/// A trial whose warm-up is long enough for the agent to settle.
fn long(trial: Trial) -> Trial {
    trial.set("duration", "5s").set("warmup", "3s")
}

/// Trials with the agent in the program's VM: with the paper's settings, which are judged, and with ours.
fn with_agents(trial: Trial) -> [Trial; 2] {
    ["paper", "ours"].map(|control| {
        let setting = format!("{{ control = \"{control}\" }}");
        long(trial.clone()).set("vm.program.gleaner", setting)
    })
}

/// Returns the latency from the wake-up of a thread until it runs, µs.
///
/// A round has two wake-ups and two computations.
fn latency(trials: &mut Trials, trial: &Trial) -> Result<Sample, JudgeError> {
    let rounds = trials.run(trial)?.of("pair", "work_rate")?;
    Ok(rounds.map(|rate| 1e6 / rate / 2.0 - BETWEEN_US))
}

fn wake(workload: &str) -> Trial {
    Trial::of("gleaner-wake").set("vm.pair.workload", workload)
}

fn native_wake(workload: &str) -> Trial {
    wake(workload).set("machine.mode", "native").set("host.placement", "load-balancing")
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
    let shared = |other: &str, cpus: u32| {
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
        ("shared_streamcluster.c4", shared("parsec-streamcluster", 4)),
        ("shared_streamcluster.c16", shared("parsec-streamcluster", 16)),
        ("shared_matmul.c4", shared("matmul", 4)),
        ("shared_matmul.c16", shared("matmul", 16)),
    ] {
        let takes = one.over(&rate(trials, &trial)?).map(|r| r * one_takes);
        figures.push(claim.figure(path, &takes)?);
    }
    Ok(figures)
}

fn f5_slowdown(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    // Without the agent, with the paper's settings, with ours.
    let mut slowdowns = |program: &str| {
        let dedicated = with_cpus("gleaner-program", program, 16);
        let native = rate(trials, &native(dedicated.clone()))?;
        let mut of = |trial: Trial| -> Result<Sample, JudgeError> {
            Ok(rate(trials, &trial)?.slowdown_percent(&native))
        };
        let [paper, ours] = with_agents(dedicated.clone());
        Ok::<[Sample; 3], JudgeError>([of(dedicated)?, of(paper)?, of(ours)?])
    };
    let both = |name: &str, [without, paper, ours]: &[Sample; 3]| {
        Ok::<[Figure; 2], JudgeError>([
            claim.figure(&format!("{name}[0]"), without)?,
            claim.figure_with_ours(&format!("{name}[1]"), paper, ours)?,
        ])
    };
    let mut figures = Vec::new();
    for (name, program) in
        [("dedup", "parsec-dedup"), ("facesim", "parsec-facesim"), ("volrend", "splash-volrend")]
    {
        figures.extend(both(name, &slowdowns(program)?)?);
    }
    for (name, suite) in [("parsec_avg", &PARSEC[..]), ("splash_avg", &SPLASH[..])] {
        let all: Vec<[Sample; 3]> =
            suite.iter().map(|program| slowdowns(program)).collect::<Result<_, JudgeError>>()?;
        let means = [0, 1, 2].map(|at| {
            let of_all: Vec<Sample> = all.iter().map(|three| three[at].clone()).collect();
            Sample::mean_of(&of_all)
        });
        figures.extend(both(name, &means)?);
    }
    Ok(figures)
}

/// Speedups next to matmul, which computes all the time.
///
/// The mean is over the programs that have a profile.
/// An "average speedup of 203 %" may be a gain (three times the throughput) or a ratio (twice): both readings are judged.
/// Each VM has half the weight in the system's throughput.
fn f7_speedup(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    let [paper, ours] = [0, 1].map(|agent| f7_gains(trials, agent));
    let (paper, ours) = (paper?, ours?);
    let paths = ["dedup_max", "mean_gain_percent", "mean_ratio_percent", "system_throughput_mean"];
    let figures = paths.iter().zip(paper.iter().zip(&ours));
    figures.map(|(path, (paper, ours))| Ok(claim.figure_with_ours(path, paper, ours)?)).collect()
}

/// Returns dedup's speedup, the mean as a gain and as a ratio, and the system's, with the paper's agent (0) or ours (1).
fn f7_gains(trials: &mut Trials, agent: usize) -> Result<[Sample; 4], JudgeError> {
    let (mut gains, mut systems) = (Vec::new(), Vec::new());
    let mut of_dedup = None;
    for program in parsec_and_splash() {
        let shared = with_cpus("gleaner-shared", program, 16).set("vm.other.workload", "matmul");
        let without = trials.run(&long(shared.clone()))?;
        let with = trials.run(&with_agents(shared)[agent])?;
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
    let mean = Sample::mean_of(&gains);
    let of_dedup = of_dedup.unwrap_or_else(Sample::absent);
    Ok([
        of_dedup,
        mean.map(|ratio| (ratio - 1.0) * 100.0),
        mean.map(|ratio| ratio * 100.0),
        Sample::mean_of(&systems),
    ])
}

/// MySQL with one thread per connection in two VMs that share the host, both with the agent.
fn f8_mysql(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    let mut gains: [Vec<Sample>; 2] = Default::default();
    for connections in CONNECTIONS {
        // The profile has two connections per vCPU.
        let sized = with_cpus("gleaner-program", "oltp", 16)
            .set("vm.program.count", 2)
            .set("vm.program.sized_for", connections / 2);
        let without = rate(trials, &long(sized.clone()))?;
        for (gains, trial) in gains.iter_mut().zip(with_agents(sized)) {
            let with = rate(trials, &trial)?;
            gains.push(with.over(&without).map(|ratio| (ratio - 1.0) * 100.0));
        }
    }
    let [paper, ours] = gains;
    let up_to_20 = paper.get(..4).unwrap_or_default().iter();
    let up_to_20: Option<Vec<f64>> = up_to_20.map(Sample::mean).collect();
    Ok(vec![
        claim.figure_with_ours("max_percent", &Sample::max_of(&paper), &Sample::max_of(&ours))?,
        claim.shape(
            "grows as connections fall from 48 to 20",
            up_to_20.is_some_and(|gains| gains.is_sorted_by(|a, b| a < b)),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_experiment::progress::Silent;

    #[test]
    fn agents_use_paper_and_own_settings() {
        let [paper, ours] =
            with_agents(Trial::of("gleaner-program")).map(|trial| format!("{trial:?}"));
        assert!(paper.contains("control = \\\"paper\\\""), "{paper}");
        assert!(ours.contains("control = \\\"ours\\\""), "{ours}");
        assert_ne!(paper, ours);
    }

    #[test]
    fn wake_latency_grows_from_same_to_halted_vcpu() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../research/scenarios/papers");
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
