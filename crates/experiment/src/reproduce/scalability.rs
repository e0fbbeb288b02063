//! Claims of scalability on VMs: what to simulate, and what of it answers to which published figure.
//!
//! Source: Shan's dissertation (NJIT 2018), chapter 4, and Shan, Jia and Ding, "Rethinking Multicore
//! Application Scalability on Big Virtual Machines", ICPADS 2017: 16 pCPUs, a VM of 16 vCPUs beside three
//! that compute all the time. All speedups are N × efficiency, by the formulas of
//! `tandem_policy::scalability` on the times that `scalability::usage` names.
//!
//! Which programs the source's means are over is not known to us: here they are all PARSEC and
//! SPLASH-2X programs that have a profile. Which type a program is of is decided by its run on
//! hardware and the published thresholds. The time slice of these is that of a vCPU where all are
//! runnable: the allocation period, which is CFS' latency, over the four VMs.

use tandem_policy::Nanos;
use tandem_policy::scalability::Features;
use tandem_policy::scalability::ScalabilityError;

use super::claims::Claim;
use super::claims::Figure;
use super::judge::Judge;
use super::judge::JudgeError;
use crate::programs::parsec_and_splash;
use crate::sample::Sample;
use crate::scalability::usage::Usage;
use crate::trials::Outcome;
use crate::trials::Trial;
use crate::trials::Trials;

/// The claims judged here.
pub const CLAIMS: &[(&str, Judge)] = &[
    ("scal.f4_2", f4_2_types),
    ("scal.f4_5", f4_5_period),
    ("scal.f4_7", f4_7_balance),
];

/// CPUs, and vCPUs of each VM.
const CPUS: u32 = 16;

/// VMs that share the host.
const VMS: u32 = 4;

/// CFS' latency on so many CPUs, ms: the allocation period.
const PERIOD_MS: u64 = 24;

/// The program alone, without a hypervisor.
fn on_hardware(program: &str) -> Trial {
    Trial::of("scalability-native").set("vm.program.workload", program)
}

/// The program in its VM.
fn in_vm(program: &str) -> Trial {
    Trial::of("scalability-vm").set("vm.program.workload", program)
}

/// With an allocation period of so many ms.
fn with_period(trial: Trial, ms: u64) -> Trial {
    trial.set("host.cfs.latency", format!("{ms}ms"))
}

/// What is computed from the usage in each run.
fn of_usage<E>(
    outcome: &Outcome,
    of: impl Fn(Usage) -> Result<f64, E>,
) -> Result<Sample, JudgeError>
where
    JudgeError: From<E>,
{
    let figure = |metric: &str| outcome.of("program", metric);
    let spinning = figure("spin_user")?
        .plus(&figure("spin_kernel")?)
        .plus(&figure("shootdown_wait")?);
    // Times are in pCPUs: seconds of CPU time in one second.
    let time = |pcpus: f64| Nanos((pcpus * 1e9) as u64);
    let figures = [
        &figure("threads")?,
        &figure("received")?,
        &spinning,
        &figure("idle_poll")?,
        &figure("exits")?,
        &figure("voluntary_switches")?,
        &figure("work_rate")?,
    ];
    let usage = |[threads, received, spinning, polling, exits, switches, work]: [f64; 7]| Usage {
        cpus: CPUS,
        threads: threads as u32,
        measured: Nanos::from_secs(1),
        received: time(received),
        spinning: time(spinning),
        idle_polling: time(polling),
        exits: time(exits),
        voluntary_switches: switches,
        work,
    };
    Ok(Sample::try_combine(figures, |values| of(usage(values)))?)
}

fn speedup_on_hardware(outcome: &Outcome) -> Result<Sample, JudgeError> {
    of_usage(outcome, |usage| {
        Ok::<f64, ScalabilityError>(usage.physical().speedup()?.0)
    })
}

/// All VMs have the same weight, so the fair share is the host over their number.
fn speedup_in_vm(outcome: &Outcome) -> Result<Sample, JudgeError> {
    let fair = Nanos(1_000_000_000 * u64::from(CPUS / VMS));
    of_usage(outcome, |usage| {
        Ok::<f64, ScalabilityError>(usage.virtual_run(fair).speedup()?.0)
    })
}

/// The type by the mean of the runs on hardware, 1 … 4; `None` before they have run.
fn type_of(outcome: &Outcome) -> Result<Option<u8>, JudgeError> {
    let timeslice = Nanos::from_millis(PERIOD_MS / u64::from(VMS));
    let mean = |of: fn(Features) -> f64| -> Result<Option<f64>, JudgeError> {
        let feature = |usage: Usage| Ok::<f64, ScalabilityError>(of(usage.features(timeslice)));
        Ok(of_usage(outcome, feature)?.mean())
    };
    let active = mean(|features| features.active)?;
    let switches = mean(|features| features.voluntary_switches_per_second)?;
    Ok(active.zip(switches).map(|(active, switches)| {
        let features = Features {
            units: CPUS,
            active,
            voluntary_switches_per_second: switches,
            timeslice,
        };
        features.class().number()
    }))
}

/// The mean speedup of each type; absent of a type that no program is of.
fn by_type(programs: &[(Option<u8>, Sample)], number: u8) -> Sample {
    let of_type: Vec<Sample> = programs
        .iter()
        .filter(|(of, _)| *of == Some(number))
        .map(|(_, speedup)| speedup.clone())
        .collect();
    match of_type.is_empty() {
        true => Sample::absent(),
        false => Sample::mean_of(&of_type),
    }
}

/// Mean speedups at 16 of the four types, on hardware and in the VM.
fn f4_2_types(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    let (mut hardware, mut vm) = (Vec::new(), Vec::new());
    for program in parsec_and_splash() {
        let alone = trials.run(&on_hardware(program))?;
        let inside = trials.run(&in_vm(program))?;
        let number = type_of(&alone)?;
        hardware.push((number, speedup_on_hardware(&alone)?));
        vm.push((number, speedup_in_vm(&inside)?));
    }
    let mut figures = Vec::new();
    for (place, speedups) in [("pm", &hardware), ("vm", &vm)] {
        for number in 1..=4_u8 {
            let path = format!("{place}[{}]", number - 1);
            figures.push(claim.figure(&path, &by_type(speedups, number))?);
        }
    }
    Ok(figures)
}

/// Programs of type 4 with two allocation periods.
fn f4_5_period(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    let mut figures = Vec::new();
    for (at, period) in [PERIOD_MS, 192].into_iter().enumerate() {
        let mut speedups = Vec::new();
        for program in parsec_and_splash() {
            let alone = trials.run(&on_hardware(program))?;
            let inside = trials.run(&with_period(in_vm(program), period))?;
            speedups.push((type_of(&alone)?, speedup_in_vm(&inside)?));
        }
        figures.push(claim.figure(&format!("mean[{at}]"), &by_type(&speedups, 4))?);
    }
    Ok(figures)
}

/// Serial work that is spread over the vCPUs, that is not but vCPU 0 has time for it, and that is not.
///
/// With matched allocation vCPU 0 weighs three times as much as any other, as it has three times the work.
fn f4_7_balance(trials: &mut Trials, claim: &Claim) -> Result<Vec<Figure>, JudgeError> {
    let weights: Vec<u32> = (0..CPUS)
        .map(|vcpu| if vcpu == 0 { 3 * 1024 } else { 1024 })
        .collect();
    // A period in which few iterations end needs many of them for a steady mean.
    let trial = |program: &str| in_vm(program).set("duration", "10s");
    let matched = trial("forkjoin-fixed").set("vm.program.vcpu_weights", format!("{weights:?}"));
    let three = [trial("forkjoin-rotating"), matched, trial("forkjoin-fixed")];
    let mut figures = Vec::new();
    for (at, trial) in three.iter().enumerate() {
        let speedup = speedup_in_vm(&trials.run(trial)?)?;
        figures.push(claim.figure(&format!("speedup[{at}]"), &speedup)?);
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_types_mean_is_over_its_programs_run_by_run() {
        let programs = [
            (Some(1), Sample::new(vec![2.0, 4.0])),
            (Some(4), Sample::new(vec![7.0, 9.0])),
            (Some(1), Sample::new(vec![4.0, 8.0])),
        ];
        assert_eq!(by_type(&programs, 1), Sample::new(vec![3.0, 6.0]));
        assert_eq!(by_type(&programs, 4), Sample::new(vec![7.0, 9.0]));
        assert!(by_type(&programs, 2).mean().is_none());
    }
}
