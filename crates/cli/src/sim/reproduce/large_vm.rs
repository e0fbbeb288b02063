//! Claims of large-vCPU VMs: what many vCPUs on few pCPUs cost, and what three techniques give back.
//!
//! Source: Kilic, Doddamani, Bhat, Bagdi and Gopalan, "Overcoming Virtualization Overheads for Large-vCPU
//! Virtual Machines", MASCOTS 2018: 255 threads of dedup, vips and canneal in a VM of up to 255 vCPUs on 6
//! pCPUs (`scenarios/papers/large-vm.toml`). The claims are shapes; what we take them to say stands in each
//! figure's name. Rates of interrupts are compared per unit of the program's work.

use super::Judge;
use super::claims::Claim;
use super::claims::Figure;
use super::lab::Lab;
use super::lab::Outcome;
use super::lab::Trial;

/// The claims judged here.
pub const CLAIMS: &[(&str, Judge)] = &[
    ("largevm.f2_7", f2_7_throughput),
    ("largevm.f8_13", f8_13_interrupts),
];

/// As many vCPUs as there are pCPUs, and as many as the paper's largest VM has.
const SMALL: u32 = 6;
const LARGE: [u32; 3] = [50, 150, 255];
const LARGEST: u32 = LARGE[2];

/// The three techniques.
const ALL: [&str; 3] = ["per-thread", "hypercall-flush", "fast-reactivation"];

const DEDUP: &str = "parsec-dedup";
const VIPS: &str = "parsec-vips";
const CANNEAL: &str = "parsec-canneal";

fn run(lab: &mut Lab, program: &str, vcpus: u32, policies: &[&str]) -> anyhow::Result<Outcome> {
    let trial = Trial::of("large-vm")
        .set("vm.large.workload", program)
        .set("vm.large.vcpus", vcpus);
    let trial = policies
        .iter()
        .fold(trial, |trial, name| trial.policy(name));
    lab.run(&trial)
}

fn rate(lab: &mut Lab, program: &str, vcpus: u32, policies: &[&str]) -> anyhow::Result<f64> {
    let outcome = run(lab, program, vcpus, policies)?;
    Ok(outcome.of("large", "work_rate").mean())
}

fn f2_7_throughput(lab: &mut Lab, claim: &Claim) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (program, name) in [(VIPS, "vips"), (DEDUP, "dedup"), (CANNEAL, "canneal")] {
        let peak = rate(lab, program, SMALL, &[])?;
        let most = rate(lab, program, LARGEST, &[])?;
        figures.push(match program {
            CANNEAL => claim.shape("canneal: 255 vCPUs lose at most 10 %", most >= 0.9 * peak),
            _ => claim.shape(
                &format!("{name}: 255 vCPUs lose over 10 %"),
                most < 0.9 * peak,
            ),
        });
        let mut stays = true;
        for vcpus in LARGE {
            stays &= rate(lab, program, vcpus, &ALL)? >= 0.95 * peak;
        }
        figures.push(claim.shape(
            &format!("{name}: all three stay within 5 % of the peak at 6 vCPUs"),
            stays,
        ));
    }
    Ok(figures)
}

/// Interrupts of a kind for each unit of work.
fn per_work(outcome: &Outcome, metric: &str) -> f64 {
    let work = outcome.of("large", "work_rate");
    outcome.of("large", metric).over(&work).mean()
}

fn f8_13_interrupts(lab: &mut Lab, claim: &Claim) -> anyhow::Result<Vec<Figure>> {
    const SHOOTDOWN: &str = "shootdown_ipis";
    const RESCHEDULE: &str = "reschedule_ipis";
    let mut figures = Vec::new();
    for (program, name) in [(VIPS, "vips"), (DEDUP, "dedup")] {
        let small = per_work(&run(lab, program, SMALL, &[])?, SHOOTDOWN);
        let large = per_work(&run(lab, program, LARGEST, &[])?, SHOOTDOWN);
        let cured = run(lab, program, LARGEST, &["hypercall-flush"])?;
        figures.push(claim.shape(
            &format!("{name}: shootdown IPIs grow by over 10 % from 6 to 255 vCPUs"),
            large > 1.1 * small,
        ));
        figures.push(claim.shape(
            &format!("{name}: a flush by hypercall interrupts no more than 5 pCPUs"),
            per_work(&cured, SHOOTDOWN) <= 5.0 * per_work(&cured, "shootdowns"),
        ));
    }
    for (program, name) in [(CANNEAL, "canneal"), (DEDUP, "dedup")] {
        let small = per_work(&run(lab, program, SMALL, &[])?, RESCHEDULE);
        let large = per_work(&run(lab, program, LARGEST, &[])?, RESCHEDULE);
        let pinned = per_work(&run(lab, program, LARGEST, &["per-thread"])?, RESCHEDULE);
        figures.push(claim.shape(
            &format!("{name}: rescheduling IPIs grow from 6 to 255 vCPUs"),
            large > small,
        ));
        figures.push(claim.shape(
            &format!("{name}: a vCPU for each thread raises rescheduling IPIs"),
            pinned > large,
        ));
    }
    Ok(figures)
}
