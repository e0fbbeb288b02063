//! What a measured figure says of a knob.
//!
//! Each test has two figures that it could give: `with`, what the knob should do, and `without`, what happens if it does nothing. A figure
//! is taken for one of them if it is nearer to it than [`NEAR`] of the distance between both; in between it is unclear. Where the
//! threads got less than [`ENOUGH`] of a pCPU together, somebody else was busy there, and nothing was measured.
//!
//! Shares are parts of what the threads of a test received in all, so that others who take some of the pCPU change nothing.

use tandem_model::Nanos;

use super::report::{Finding, Subject, Verdict};

/// How near to a figure counts as that figure, as a part of the distance between the two.
pub const NEAR: f64 = 0.4;

/// The part of a pCPU that the threads of a test must have received together.
pub const ENOUGH: f64 = 0.3;

/// nice 0 against nice 5: 1024 and 335 of the kernel's `sched_prio_to_weight`.
pub const NICE_SHARE: f64 = 1024.0 / (1024.0 + 335.0);

/// A switch that takes longer than this is of no use for turns of 20 ms.
pub const SOON: Nanos = Nanos::from_millis(10);

/// The cap of the quota test, in pCPUs.
pub const CAP: f64 = 0.3;

/// The slice of the slice test.
pub const LONG_SLICE: Nanos = Nanos::from_millis(20);

/// Which of the two figures this is.
fn verdict(figure: f64, with: f64, without: f64) -> Verdict {
    let near = NEAR * (with - without).abs();
    match figure {
        _ if !figure.is_finite() => Verdict::NotMeasured("there is no figure".to_owned()),
        _ if (figure - with).abs() <= near => Verdict::Acts,
        _ if (figure - without).abs() <= near => Verdict::DoesNotAct,
        _ => Verdict::Unclear,
    }
}

/// What threads received in a test, on the pCPUs of the test.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// Length of the test.
    pub window: Nanos,
    /// What the thread or group received that the test is about.
    pub one: Nanos,
    /// What the others received.
    pub others: Nanos,
}

impl Received {
    /// The part of one in what all received.
    pub fn share(&self) -> f64 {
        self.one.0 as f64 / (self.one.0 + self.others.0) as f64
    }

    /// pCPUs that all received.
    pub fn pcpus(&self) -> f64 {
        (self.one.0 + self.others.0) as f64 / self.window.0.max(1) as f64
    }

    /// Why this says nothing, if it does.
    fn too_little(&self) -> Option<Verdict> {
        (self.pcpus() < ENOUGH).then(|| {
            Verdict::NotMeasured(format!(
                "its threads received {:.2} pCPUs in all: the host is too busy; try again",
                self.pcpus()
            ))
        })
    }
}

/// A share that should be `with` and is `without` if the knob does nothing.
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

/// A group in the idle class beside one that is not; `one` is idle.
pub fn idle_class(received: Received) -> Finding {
    shared(Subject::IdleClass, received, 0.0, 0.5)
}

/// Two threads of one group; `one` has nice 0, the other 5.
pub fn nice(received: Received) -> Finding {
    shared(Subject::Nice, received, NICE_SHARE, 0.5)
}

/// Groups of two vCPUs, weights 4 and 1, in a VM's group beside another group of equal weight. `inside`: the heavy vCPU against the light one;
/// `outside`: both against the other group.
pub fn vcpu_groups(inside: Received, outside: Received) -> Finding {
    let inner = shared(Subject::VcpuGroups, inside, 0.8, 0.5);
    // Threads that compete one by one would receive two of three parts.
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

/// How long a group waited each time it left the idle class while another entered; `None`: it did not run until the next switch.
pub fn idle_switch(waits: &[Option<Nanos>]) -> Finding {
    let subject = Subject::IdleSwitch;
    let mut seen: Vec<Nanos> = waits.iter().flatten().copied().collect();
    seen.sort_unstable();
    let (Some(worst), Some(median)) = (seen.last(), seen.get(seen.len() / 2)) else {
        return Finding::new(
            subject,
            match waits.is_empty() {
                true => Verdict::NotMeasured("no switch was made".to_owned()),
                false => Verdict::DoesNotAct,
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

/// How long two threads that share a pCPU run in turn, in their own time, with the usual slice and with [`LONG_SLICE`]; `None`: they did
/// not take turns. Others who run in between change nothing.
pub fn slice(usual: Option<Nanos>, long: Option<Nanos>) -> Finding {
    let subject = Subject::Slice;
    let (Some(usual), Some(long)) = (usual, long) else {
        let why = "its two threads never ran in turn: they did not share a pCPU";
        return Finding::new(subject, Verdict::NotMeasured(why.to_owned()));
    };
    let ms = |nanos: Nanos| nanos.0 as f64 / 1e6;
    // Others who run there end runs early, so 20 ms are seldom seen in full.
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

/// Where a burning thread was before and after its affinity was set to another pCPU.
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

/// A group whose four threads block, two on each of two pCPUs, beside one that burns both; equal weights. `one` is the group that blocks.
///
/// Due is half. A healthy host gives it about that, or less, as it sleeps now and then. EEVDF kernels that inflate the lag of a group
/// that is reweighted while queued (6.13 and later, until "sched/fair: Fix EEVDF entity placement bug causing scheduling lag" is reverted)
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
