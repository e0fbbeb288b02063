//! Claims of APPLES (Shan, Ding & Gehani, TPDS 2017): pause-loop windows and the choice of the yield candidate.
//!
//! Two VMs of 16 vCPUs run one program each on 16 pCPUs, vCPU i on pCPU i (`research/scenarios/papers/apples.toml`).
//! All figures are relative to stock KVM.
//! The programs are those of figures 8, 13 and 14; the paper does not name the set of figure 5, so we use the same set.
//! The paper reports ebizzy's execution time but not its amount of work, so epochs of exits are compared per unit of work.

use super::claims::{Claim, Figure};
use super::judge::{Judge, JudgeError};
use crate::sample::Sample;
use crate::trials::{Trial, Trials};

/// The claims judged here.
pub const CLAIMS: &[(&str, Judge)] = &[
    ("apples.f1.dbench", f1_dbench),
    ("apples.f1.ebizzy", f1_ebizzy),
    ("apples.f5.overall", f5_overall),
    ("apples.f6.ebizzy", f6_ebizzy),
    ("apples.f8.mean", f8_mean),
    ("apples.f11.f12.window", f11_f12_window),
    ("apples.f13.f14.variants", f13_f14_variants),
    ("apples.overhead", overhead),
];

/// Programs that spin in the kernel; ebizzy first.
const SPINNING: [&str; 7] = [
    "ebizzy",
    "dbench",
    "hackbench",
    "kernbench",
    "parsec-raytrace",
    "parsec-streamcluster",
    "parsec-dedup",
];

/// Programs that do not spin in the kernel.
const COMPUTING: [&str; 3] = ["matmul", "parsec-blackscholes", "parsec-swaptions"];

/// Threads in each VM.
const THREADS: u32 = 32;

/// The windows of the paper's sweep, cycles.
const WINDOWS: [u32; 7] = [512, 1024, 2048, 4096, 8192, 16384, 32768];

/// A trial with the scenario's duration, except for hackbench.
///
/// Runs of hackbench differ by their start, not by their length, so short runs suffice.
fn trial(program: &str) -> Trial {
    match program {
        // Millions of messages a second.
        "hackbench" => of(program).set("duration", "500ms").set("warmup", "100ms"),
        _ => of(program),
    }
}

/// A shorter trial for policies without APLE.
///
/// Without a learning policy, a program that completes hundreds of units a second is stationary.
fn short(program: &str) -> Trial {
    match program {
        "ebizzy" | "dbench" | "parsec-dedup" => {
            of(program).set("duration", "800ms").set("warmup", "200ms")
        }
        _ => trial(program),
    }
}

/// A trial with the paper's 32 threads in each VM.
///
/// Profiles with one thread per vCPU would have 16; dedup's has 16 in each of two stages.
fn of(program: &str) -> Trial {
    let trial = Trial::of("apples").set("vm.*.workload", program);
    match program {
        "kernbench" | "parsec-raytrace" | "parsec-streamcluster" => {
            trial.set("vm.*.sized_for", THREADS)
        }
        _ => trial,
    }
}

/// A trial that is long enough for APLE to find its window.
fn settled(program: &str) -> Trial {
    of(program).set("duration", "4s").set("warmup", "2s")
}

/// Returns the work rate of both VMs relative to stock.
fn gain(trials: &mut Trials, stock: &Trial, other: &Trial) -> Result<Sample, JudgeError> {
    let stock = trials.run(stock)?.of("vm", "work_rate")?;
    Ok(trials.run(other)?.of("vm", "work_rate")?.over(&stock))
}

/// Returns the work rate relative to stock under a policy, whose parts are joined by `+`.
fn with(trials: &mut Trials, program: &str, policy: &str) -> Result<Sample, JudgeError> {
    let of = if policy.starts_with("aple") || policy == "apples" {
        trial(program)
    } else {
        short(program)
    };
    gain(trials, &of.clone().policy("stock"), &of.policy(policy))
}

/// Returns the work rate relative to stock with one fixed window on the whole host.
fn fixed(trials: &mut Trials, program: &str, window: u32) -> Result<Sample, JudgeError> {
    let other = short(program).policy("fixed").set("host.pause_loop.window", window);
    gain(trials, &short(program).policy("stock"), &other)
}

fn f1_dbench(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    window_sweep(trials, claim, "dbench")
}

fn f1_ebizzy(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    window_sweep(trials, claim, "ebizzy")
}

/// Returns the sample at an index, or an absent one.
fn at(samples: &[Sample], place: Option<usize>) -> Sample {
    let found = place.and_then(|at| samples.get(at)).cloned();
    found.unwrap_or_else(Sample::absent)
}

/// A sample with a single value.
fn one(value: Option<f64>) -> Sample {
    Sample::Runs(vec![value])
}

/// Returns the least and the largest gain over the windows, and the best window in cycles.
fn window_sweep(
    trials: &mut Trials,
    claim: &Claim,
    program: &str,
) -> Result<Vec<Figure>, JudgeError> {
    let gains = WINDOWS
        .iter()
        .map(|&window| fixed(trials, program, window))
        .collect::<Result<Vec<Sample>, JudgeError>>()?;
    let best = Sample::largest(&gains);
    let window = best.and_then(|at| WINDOWS.get(at)).copied();
    Ok(vec![
        claim.figure("min", &at(&gains, Sample::least(&gains)))?,
        claim.figure("max", &at(&gains, best))?,
        claim.figure("best_cycles", &one(window.map(f64::from)))?,
    ])
}

fn f5_overall(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    let gains = SPINNING
        .iter()
        .map(|program| with(trials, program, "apples"))
        .collect::<Result<Vec<Sample>, JudgeError>>()?;
    Ok(vec![
        claim.figure("mean", &Sample::mean_of(&gains))?,
        claim.figure("min", &Sample::min_of(&gains))?,
        claim.figure("max", &Sample::max_of(&gains))?,
    ])
}

fn f6_ebizzy(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    let stock = trials.run(&short("ebizzy").policy("stock"))?;
    let mut figures = Vec::new();
    for (policy, of) in
        [("aple", settled("ebizzy")), ("hvs", short("ebizzy")), ("apples", settled("ebizzy"))]
    {
        let ours = trials.run(&of.policy(policy))?;
        let gain = ours.of("vm", "work_rate")?.over(&stock.of("vm", "work_rate")?);
        let left = ours.of("vm", "ple_inefficiency")?.over(&stock.of("vm", "ple_inefficiency")?);
        figures.push(claim.figure(policy, &gain)?);
        figures.push(claim.figure(
            &format!("inefficiency_cut_percent.{policy}"),
            &left.map(|left| (1.0 - left) * 100.0),
        )?);
    }
    Ok(figures)
}

fn f8_mean(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    let mut aple = Vec::new();
    let mut best = Vec::new();
    for program in SPINNING {
        aple.push(with(trials, program, "aple")?);
        let gains = WINDOWS
            .iter()
            .map(|&window| fixed(trials, program, window))
            .collect::<Result<Vec<Sample>, JudgeError>>()?;
        // The best window is chosen once, by its mean over the runs.
        best.push(at(&gains, Sample::largest(&gains)));
    }
    let ebizzy = match (aple.first(), best.first()) {
        (Some(aple), Some(best)) => aple.over(best),
        _ => Sample::absent(),
    };
    Ok(vec![
        claim.figure("aple", &Sample::mean_of(&aple))?,
        claim.figure("best_fixed", &Sample::mean_of(&best))?,
        claim.figure("ebizzy_aple_over_best", &ebizzy)?,
    ])
}

fn f11_f12_window(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    let mut figures = Vec::new();
    let mut exits = Vec::new();
    for (policy, of) in [("stock", short("ebizzy")), ("aple", settled("ebizzy"))] {
        let outcome = trials.run(&of.policy(policy))?;
        // Per VM: both VMs are alike.
        let window = outcome.of("vm", "ple_window")?.map(|sum| sum / 2.0);
        figures.push(claim.figure(&format!("{policy}_cycles"), &window)?);
        // Every epoch has the same number of exits.
        let work = outcome.of("vm", "work_rate")?;
        exits.push(outcome.of("vm", "ple_exits")?.over(&work));
    }
    let ratio = exits[0].over(&exits[1]);
    figures.push(claim.figure("epochs_stock_over_aple", &ratio)?);
    Ok(figures)
}

fn f13_f14_variants(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    let mut figures = Vec::new();
    for (list, base) in [("stock_window", ""), ("aple_window", "aple+")] {
        for (at, order) in ["hvs", "cpth-r", "cpth-l", "cch"].iter().enumerate() {
            let gains = SPINNING
                .iter()
                .map(|program| with(trials, program, &format!("{base}{order}")))
                .collect::<Result<Vec<Sample>, JudgeError>>()?;
            figures.push(claim.figure(&format!("{list}[{at}]"), &Sample::mean_of(&gains))?);
        }
    }
    Ok(figures)
}

/// The maximum overhead for programs that cannot gain.
fn overhead(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    let lost = |gain: Sample| gain.map(|gain| (1.0 - gain) * 100.0);
    let mut alone = Vec::new();
    for program in SPINNING {
        let one = trial(program).set("vm.vm.count", 1);
        let stock = one.clone().policy("stock");
        alone.push(lost(gain(trials, &stock, &one.policy("apples"))?));
    }
    let computing = COMPUTING
        .iter()
        .map(|program| Ok(lost(with(trials, program, "apples")?)))
        .collect::<Result<Vec<Sample>, JudgeError>>()?;
    // The largest of the programs' means; the spread between runs is noise.
    let largest = |samples: &[Sample]| {
        let largest = Sample::largest(samples).and_then(|at| samples.get(at));
        one(largest.and_then(Sample::mean))
    };
    Ok(vec![
        claim.figure("undersubscribed_percent_max", &largest(&alone))?,
        claim.figure("nonspinning_percent_max", &largest(&computing))?,
    ])
}
