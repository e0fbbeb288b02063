//! Claims of large-vCPU VMs: the cost of many vCPUs on few pCPUs, and the gain of three techniques.
//!
//! Source: Kilic, Doddamani, Bhat, Bagdi and Gopalan, "Overcoming Virtualization Overheads for Large-vCPU
//! Virtual Machines", MASCOTS 2018.
//! It runs 255 threads of dedup, vips and canneal in a VM of up to 255 vCPUs on 6 pCPUs (`research/scenarios/papers/large-vm.toml`).
//! The claims are shapes; each figure's name states our reading.
//! Interrupt rates are compared per unit of the program's work.

use super::claims::{Claim, Figure};
use super::judge::{Judge, JudgeError};
use crate::trials::{Outcome, Trial, Trials, TrialsError};

/// The claims judged here.
pub const CLAIMS: &[(&str, Judge)] =
    &[("largevm.f2_7", f2_7_throughput), ("largevm.f8_13", f8_13_interrupts)];

/// One vCPU per pCPU.
const SMALL: u32 = 6;
/// The larger VMs.
const LARGE: [u32; 3] = [50, 150, 255];
/// vCPUs of the paper's largest VM.
const LARGEST: u32 = LARGE[2];

/// The three techniques.
const ALL: [&str; 3] = ["per-thread", "hypercall-flush", "fast-reactivation"];

const DEDUP: &str = "parsec-dedup";
const VIPS: &str = "parsec-vips";
const CANNEAL: &str = "parsec-canneal";

fn run(
    trials: &mut Trials,
    program: &str,
    vcpus: u32,
    policies: &[&str],
) -> Result<Outcome, JudgeError> {
    let trial =
        Trial::of("large-vm").set("vm.large.workload", program).set("vm.large.vcpus", vcpus);
    let trial = policies.iter().fold(trial, |trial, name| trial.policy(name));
    Ok(trials.run(&trial)?)
}

fn rate(
    trials: &mut Trials,
    program: &str,
    vcpus: u32,
    policies: &[&str],
) -> Result<Option<f64>, JudgeError> {
    let outcome = run(trials, program, vcpus, policies)?;
    Ok(outcome.of("large", "work_rate")?.mean())
}

fn f2_7_throughput(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    let mut figures = Vec::new();
    // Each program's work rate at 255 vCPUs relative to the peak.
    let mut left = Vec::new();
    for (program, name) in [(VIPS, "vips"), (DEDUP, "dedup"), (CANNEAL, "canneal")] {
        let peak = rate(trials, program, SMALL, &[])?;
        let most = rate(trials, program, LARGEST, &[])?;
        let own = most.zip(peak).map(|(most, peak)| most / peak);
        figures.push(match program {
            CANNEAL => claim.shape(
                "canneal: 255 vCPUs lose less than those of vips and of dedup",
                left.iter().all(|&other| both(own, other, |own, other| own > other)),
            ),
            _ => claim.shape(
                &format!("{name}: 255 vCPUs lose over 10 %"),
                own.is_some_and(|own| own < 0.9),
            ),
        });
        left.push(own);
        let mut stays = true;
        for vcpus in LARGE {
            let rate = rate(trials, program, vcpus, &ALL)?;
            stays &= both(rate, peak, |rate, peak| rate >= 0.95 * peak);
        }
        figures.push(
            claim
                .shape(&format!("{name}: all three stay within 5 % of the peak at 6 vCPUs"), stays),
        );
    }
    Ok(figures)
}

/// Returns whether both values were measured and satisfy the predicate.
fn both(a: Option<f64>, b: Option<f64>, is_so: impl Fn(f64, f64) -> bool) -> bool {
    a.zip(b).is_some_and(|(a, b)| is_so(a, b))
}

/// Returns a metric per unit of work.
fn per_work(outcome: &Outcome, metric: &str) -> Result<Option<f64>, TrialsError> {
    let work = outcome.of("large", "work_rate")?;
    Ok(outcome.of("large", metric)?.over(&work).mean())
}

fn f8_13_interrupts(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    const SHOOTDOWN: &str = "shootdown_ipis";
    const RESCHEDULE: &str = "reschedule_ipis";
    let mut figures = Vec::new();
    for (program, name) in [(VIPS, "vips"), (DEDUP, "dedup")] {
        let small = per_work(&run(trials, program, SMALL, &[])?, SHOOTDOWN)?;
        let large = per_work(&run(trials, program, LARGEST, &[])?, SHOOTDOWN)?;
        let flushed = run(trials, program, LARGEST, &["hypercall-flush"])?;
        figures.push(claim.shape(
            &format!("{name}: shootdown IPIs grow by over 10 % from 6 to 255 vCPUs"),
            both(large, small, |large, small| large > 1.1 * small),
        ));
        figures.push(claim.shape(
            &format!("{name}: a flush by hypercall interrupts no more than 5 pCPUs"),
            both(
                per_work(&flushed, SHOOTDOWN)?,
                per_work(&flushed, "shootdowns")?,
                |interrupts, flushes| interrupts <= 5.0 * flushes,
            ),
        ));
    }
    for (program, name) in [(CANNEAL, "canneal"), (DEDUP, "dedup")] {
        let small = per_work(&run(trials, program, SMALL, &[])?, RESCHEDULE)?;
        let large = per_work(&run(trials, program, LARGEST, &[])?, RESCHEDULE)?;
        let pinned = per_work(&run(trials, program, LARGEST, &["per-thread"])?, RESCHEDULE)?;
        figures.push(claim.shape(
            &format!("{name}: rescheduling IPIs grow from 6 to 255 vCPUs"),
            both(large, small, |large, small| large > small),
        ));
        figures.push(claim.shape(
            &format!("{name}: a vCPU for each thread raises rescheduling IPIs"),
            both(pinned, large, |pinned, large| pinned > large),
        ));
    }
    Ok(figures)
}
