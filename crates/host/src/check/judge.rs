//! Judges a knob by its measured figure.
//!
//! Each test has two expected figures: `with`, if the knob acts, and `without`, if it does nothing.
//! A figure counts as one of them if it is closer than [`NEAR`] of their distance; otherwise the result is unclear.
//! If the threads received less than [`ENOUGH`] of a pCPU together, other load was present, and the test is not measured.
//!
//! Shares are parts of the sum that the threads of a test received, so other load on the pCPU does not change them.

use tandem_model::Nanos;

use super::report::{Finding, Subject, Verdict};

/// Maximum distance from an expected figure, relative to the distance between both.
pub const NEAR: f64 = 0.4;

/// Minimum pCPU time that the threads of a test must receive together, in pCPUs.
pub const ENOUGH: f64 = 0.3;

/// nice 0 against nice 5: 1024 and 335 of the kernel's `sched_prio_to_weight`.
pub const NICE_SHARE: f64 = 1024.0 / (1024.0 + 335.0);

/// Maximum duration of a useful switch, for turns of 20 ms.
pub const SOON: Nanos = Nanos::from_millis(10);

/// The cap of the quota test, in pCPUs.
pub const CAP: f64 = 0.3;

/// The slice of the slice test.
pub const LONG_SLICE: Nanos = Nanos::from_millis(20);

/// Compares a figure with both expected ones.
fn verdict(figure: f64, with: f64, without: f64) -> Verdict {
    let near = NEAR * (with - without).abs();
    match figure {
        _ if !figure.is_finite() => Verdict::NotMeasured("there is no figure".to_owned()),
        _ if (figure - with).abs() <= near => Verdict::Acts,
        _ if (figure - without).abs() <= near => Verdict::DoesNotAct,
        _ => Verdict::Unclear,
    }
}

/// Time that the threads of a test received, on the pCPUs of the test.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// Length of the test.
    pub window: Nanos,
    /// Time of the thread or group under test.
    pub one: Nanos,
    /// Time of the other threads.
    pub others: Nanos,
}

impl Received {
    /// Share of the thread or group under test.
    pub fn share(&self) -> f64 {
        self.one.0 as f64 / (self.one.0 + self.others.0) as f64
    }

    /// Sum, in pCPUs.
    pub fn pcpus(&self) -> f64 {
        (self.one.0 + self.others.0) as f64 / self.window.0.max(1) as f64
    }

    /// Returns the verdict if the sum is too low to measure.
    fn too_little(&self) -> Option<Verdict> {
        (self.pcpus() < ENOUGH).then(|| {
            Verdict::NotMeasured(format!(
                "its threads received {:.2} pCPUs in all: the host is too busy; try again",
                self.pcpus()
            ))
        })
    }
}

/// Judges a share that is `with` if the knob acts and `without` if it does not.
fn shared(subject: Subject, received: Received, with: f64, without: f64) -> Finding {
    if let Some(verdict) = received.too_little() {
        return Finding::new(subject, verdict);
    }
    let share = received.share();
    Finding::new(subject, verdict(share, with, without))
        .figure(format!("share {share:.2}; due {with:.2}"))
        .value("share", share)
        .value("due_share", with)
}

/// Two groups of weights 4 and 1; `one` is the heavy one.
pub fn weight(received: Received) -> Finding {
    shared(Subject::CgroupWeight, received, 0.8, 0.5)
}

/// A group in the idle class against a normal one; `one` is the idle one.
pub fn idle_class(received: Received) -> Finding {
    shared(Subject::IdleClass, received, 0.0, 0.5)
}

/// Two threads of one group; `one` has nice 0, the other 5.
pub fn nice(received: Received) -> Finding {
    shared(Subject::Nice, received, NICE_SHARE, 0.5)
}

/// Groups of two vCPUs, weights 4 and 1, in a VM's group next to another group of equal weight.
/// `inside` is the heavy vCPU against the light one; `outside` is both against the other group.
pub fn vcpu_groups(inside: Received, outside: Received) -> Finding {
    let inner = shared(Subject::VcpuGroups, inside, 0.8, 0.5);
    // Three threads that compete individually would give the two of them two thirds.
    let outer = verdict(outside.share(), 0.5, 2.0 / 3.0);
    let verdict = match (&inner.verdict, outer) {
        (Verdict::Acts, Verdict::Acts) => Verdict::Acts,
        (Verdict::Acts, _) => Verdict::Unclear,
        (other, _) => other.clone(),
    };
    if !inner.is_measured() {
        return inner;
    }
    let figure = format!(
        "share {:.2} within the VM; due 0.80; the VM's own {:.2}; due 0.50",
        inside.share(),
        outside.share()
    );
    Finding { verdict, ..inner }.figure(figure).value("vm_share", outside.share())
}

/// Waits of a group each time it left the idle class while another entered; `None` if it did not run until the next switch.
pub fn idle_switch(waits: &[Option<Nanos>]) -> Finding {
    let subject = Subject::IdleSwitch;
    let mut seen: Vec<Nanos> = waits.iter().flatten().copied().collect();
    seen.sort_unstable();
    let (Some(worst), Some(median)) = (seen.last(), seen.get(seen.len() / 2)) else {
        return Finding::new(
            subject,
            if waits.is_empty() {
                Verdict::NotMeasured("no switch was made".to_owned())
            } else {
                Verdict::DoesNotAct
            },
        );
    };
    let missed = waits.len() - seen.len();
    let verdict = match () {
        () if missed * 2 > waits.len() => Verdict::DoesNotAct,
        () if *median <= SOON && missed * 10 <= waits.len() => Verdict::Acts,
        () => Verdict::Unclear,
    };
    let ms = |nanos: &Nanos| nanos.0 as f64 / 1e6;
    let missed_words = match missed {
        0 => String::new(),
        _ => format!("; {missed} of {} not at all", waits.len()),
    };
    Finding::new(subject, verdict)
        .figure(format!("runs after {:.1} ms, {:.1} at worst{missed_words}", ms(median), ms(worst)))
        .value("median_ms", ms(median))
        .value("worst_ms", ms(worst))
        .value("missed", missed as f64)
}

/// Run lengths, in CPU time, of two threads that share a pCPU, with the usual slice and with [`LONG_SLICE`].
/// `None` if they did not alternate. Other load in between has no effect.
pub fn slice(usual: Option<Nanos>, long: Option<Nanos>) -> Finding {
    let subject = Subject::Slice;
    let (Some(usual), Some(long)) = (usual, long) else {
        let why = "its two threads never ran in turn: they did not share a pCPU";
        return Finding::new(subject, Verdict::NotMeasured(why.to_owned()));
    };
    let ms = |nanos: Nanos| nanos.0 as f64 / 1e6;
    // Other load ends runs early, so 20 ms are rarely reached.
    let verdict = match ms(long) / ms(usual) {
        longer if longer >= 2.0 => Verdict::Acts,
        longer if longer <= 1.4 => Verdict::DoesNotAct,
        _ => Verdict::Unclear,
    };
    Finding::new(subject, verdict)
        .figure(format!("runs of {:.1} ms; {:.1} with the usual slice", ms(long), ms(usual)))
        .value("run_ms", ms(long))
        .value("usual_run_ms", ms(usual))
}

/// The pCPU of a burning thread before and after its affinity was set to another pCPU.
pub fn affinity(asked: u32, was_on: u32, is_on: u32) -> Finding {
    let verdict = match (is_on == asked, is_on == was_on) {
        (true, _) => Verdict::Acts,
        (false, true) => Verdict::DoesNotAct,
        (false, false) => Verdict::Unclear,
    };
    Finding::new(Subject::Affinity, verdict)
        .figure(format!("moved from pCPU {was_on} to {is_on}; due {asked}"))
}

/// pCPUs received under a cap of [`CAP`], and without one.
pub fn quota(capped: f64, uncapped: f64) -> Finding {
    let subject = Subject::Quota;
    if uncapped < 2.0 * CAP {
        let why = format!(
            "without a cap its thread received {uncapped:.2} pCPUs: the host is too busy; try again"
        );
        return Finding::new(subject, Verdict::NotMeasured(why));
    }
    Finding::new(subject, verdict(capped, CAP, uncapped))
        .figure(format!("{capped:.2} pCPUs; due {CAP:.2}; without {uncapped:.2}"))
        .value("received_pcpus", capped)
        .value("uncapped_pcpus", uncapped)
}

/// A group with four blocking threads, two on each of two pCPUs, against one that burns both, with equal weights.
/// `one` is the blocking group.
/// The fair share is half; a healthy host gives about that, or less, as the group sometimes sleeps.
/// EEVDF kernels that inflate the lag of a group reweighted while queued give it up to nine tenths.
/// They are 6.13 and later, until "sched/fair: Fix EEVDF entity placement bug causing scheduling lag" is reverted.
/// give it up to nine tenths.
pub fn pinned_hog(received: Received) -> Finding {
    let subject = Subject::PinnedHog;
    if let Some(verdict) = received.too_little() {
        return Finding::new(subject, verdict);
    }
    let share = received.share();
    let verdict = match share {
        share if share >= 0.65 => Verdict::Present,
        share if share <= 0.58 => Verdict::Absent,
        _ => Verdict::Unclear,
    };
    Finding::new(subject, verdict)
        .figure(format!(
            "blocking group {:.2} of {:.2} pCPUs; due {:.2} at most",
            share * received.pcpus(),
            received.pcpus(),
            received.pcpus() / 2.0
        ))
        .value("share", share)
        .value("received_pcpus", received.pcpus())
}

#[cfg(test)]
mod tests;
