//! Whether a cure helped: two measurements of equal length, before and after, and a rule.
//!
//! A cure helped if all of this is so:
//!
//! 1. what the finding costs fell by a fifth, and by 10 ms per second: less is what two measurements of a busy host differ by;
//! 2. what the VM waits in all (RDY and LIM) fell by a fifth of that cost: else the wait has only got another name;
//! 3. no other VM of the host, asked for or not, fell further behind its due by more than 2 % of it (and 0.01 pCPUs, which clocks that are
//!    read one after the other may differ by).
//!
//! Dues are by the weights from before the first change, so that a cure cannot excuse what it takes from others by what it writes.
//! What cannot be compared, because the VM or its vCPUs are no longer measured, did not help.

use serde::Serialize;
use tandem_observe::Interval;
use tandem_observe::findings::Finding;
use tandem_policy::Nanos;
use tandem_policy::State;
use tandem_policy::VmId;

/// The cost has to fall by this part of itself.
pub const LESS: f64 = 0.20;

/// And by so much, per second.
pub const LEAST: Nanos = Nanos::from_millis(10);

/// Another VM may fall behind by so much of its due.
pub const BEHIND: f64 = 0.02;

/// And by so much, in pCPUs.
const BEHIND_PCPUS: f64 = 0.01;

/// A VM's share in a measurement, in pCPUs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// Its number while it is looked at.
    #[serde(skip)]
    pub id: VmId,
    /// Its name.
    pub vm: String,
    /// Due, by the weights from before the first change.
    pub due: f64,
    /// Received.
    pub received: f64,
}

impl Share {
    /// How far it is behind its due, in pCPUs; not below 0.
    fn short(&self) -> f64 {
        (self.due - self.received).max(0.0)
    }

    /// That, as a part of its due.
    fn lag(&self) -> f64 {
        match self.due > 0.0 {
            true => self.short() / self.due,
            false => 0.0,
        }
    }
}

/// What of a measurement counts for a cure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// What the finding costs, in ns per second; 0 if it is not found.
    pub cost: Nanos,
    /// What the VM waits in all, RDY and LIM, in ns per second summed over its vCPUs; `None` if it is not measured.
    pub waits: Option<Nanos>,
    /// The VM's own share; `None` if it is not measured.
    pub share: Option<Share>,
    /// The shares of all other VMs of the host.
    pub others: Vec<Share>,
}

/// A time in an interval, per second.
fn per_second(time: Nanos, length: Nanos) -> Nanos {
    let ns = u128::from(time.0) * 1_000_000_000 / u128::from(length.0.max(1));
    Nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

impl Figures {
    /// Of a finding that was made before, in a later interval, or in the same. `findings` and `shares` are of that interval.
    pub fn of(
        finding: &Finding,
        interval: &Interval,
        findings: &[Finding],
        shares: Vec<Share>,
    ) -> Figures {
        let is_same = |other: &&Finding| other.id == finding.id && other.kind == finding.kind;
        let found = findings.iter().find(is_same);
        let vm = interval.vms.iter().find(|vm| vm.vm == finding.id);
        let waits = vm.and_then(|vm| {
            let times = vm.times()?;
            // Where LIM is not measured, it is in RDY.
            let limited = times.get(State::Limited).unwrap_or_default();
            Some(times.get(State::Ready)? + limited)
        });
        let (own, others): (Vec<Share>, Vec<Share>) =
            shares.into_iter().partition(|share| share.id == finding.id);
        Figures {
            cost: found.map_or(Nanos::ZERO, |found| found.lost_per_second),
            waits: waits.map(|time| per_second(time, interval.length)),
            share: own.into_iter().next(),
            others,
        }
    }
}

/// Whether it helped, and what shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Whether it did.
    pub helped: bool,
    /// What shows that.
    pub because: String,
}

fn ms(time: Nanos) -> f64 {
    time.0 as f64 / 1e6
}

/// Compares a measurement before a cure with one after it.
pub fn judge(before: &Figures, after: &Figures) -> Verdict {
    match objection(before, after) {
        Some(because) => Verdict {
            helped: false,
            because,
        },
        None => Verdict {
            helped: true,
            because: format!(
                "its cost fell from {:.0} to {:.0} ms per second, and no other VM fell behind",
                ms(before.cost),
                ms(after.cost)
            ),
        },
    }
}

/// Why it did not help.
fn objection(before: &Figures, after: &Figures) -> Option<String> {
    let (Some(waited), Some(waits)) = (before.waits, after.waits) else {
        return Some("the VM is not measured any more".to_owned());
    };
    let fell = before.cost.saturating_sub(after.cost);
    let least = Nanos((before.cost.0 as f64 * LESS) as u64);
    if fell < least || fell < LEAST {
        return Some(format!(
            "its cost went from {:.0} to {:.0} ms per second: that is no fall by a fifth, or within noise",
            ms(before.cost),
            ms(after.cost)
        ));
    }
    if waited.saturating_sub(waits) < least {
        return Some(format!(
            "its waits only have another cause: RDY and LIM went from {:.0} to {:.0} ms per second",
            ms(waited),
            ms(waits)
        ));
    }
    let pairs = after.others.iter().filter_map(|share| {
        let then = before.others.iter().find(|then| then.id == share.id)?;
        Some((then, share))
    });
    let mut behind: Vec<(&Share, f64)> = pairs
        .filter(|(then, now)| now.short() - then.short() > BEHIND_PCPUS)
        .map(|(then, now)| (now, now.lag() - then.lag()))
        .filter(|(_, more)| *more > BEHIND)
        .collect();
    behind.sort_by(|(_, one), (_, two)| two.total_cmp(one));
    let (worst, more) = behind.first()?;
    Some(format!(
        "{} fell behind its due by another {:.0} %: it received {:.2} of {:.2} pCPUs",
        worst.vm,
        more * 100.0,
        worst.received,
        worst.due
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(id: u64, due: f64, received: f64) -> Share {
        Share {
            id: VmId(id),
            vm: format!("vm{id}"),
            due,
            received,
        }
    }

    fn millis(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    fn figures(cost: u64, waits: u64, others: &[Share]) -> Figures {
        Figures {
            cost: millis(cost),
            waits: Some(millis(waits)),
            share: Some(share(1, 1.0, 1.0)),
            others: others.to_vec(),
        }
    }

    fn helped(before: &Figures, after: &Figures) -> bool {
        judge(before, after).helped
    }

    #[test]
    fn a_cost_has_to_fall_by_a_fifth_and_by_more_than_noise() {
        let before = figures(1000, 1000, &[]);
        assert!(helped(&before, &figures(800, 800, &[])));
        assert!(!helped(&before, &figures(801, 801, &[])));
        assert!(!helped(&before, &figures(1200, 1200, &[])));
        let small = figures(12, 12, &[]);
        assert!(helped(&small, &figures(2, 2, &[])));
        assert!(!helped(&small, &figures(3, 3, &[])), "9 ms are noise");
        let verdict = judge(&before, &figures(0, 0, &[]));
        assert!(
            verdict.helped && verdict.because.contains("from 1000 to 0"),
            "{verdict:?}"
        );
    }

    #[test]
    fn a_wait_under_another_name_is_no_cure() {
        let before = figures(1000, 1100, &[]);
        let verdict = judge(&before, &figures(0, 1000, &[]));
        assert!(
            !verdict.helped && verdict.because.contains("another cause"),
            "{verdict:?}"
        );
        assert!(helped(&before, &figures(0, 900, &[])));
    }

    #[test]
    fn nobody_else_may_fall_behind() {
        let before = figures(1000, 1000, &[share(2, 1.0, 1.0), share(3, 0.2, 0.2)]);
        let after = |others: &[Share]| judge(&before, &figures(0, 0, others));
        assert!(after(&[share(2, 1.0, 0.985), share(3, 0.2, 0.2)]).helped);
        let verdict = after(&[share(2, 1.0, 0.975), share(3, 0.2, 0.1)]);
        assert!(
            !verdict.helped
                && verdict
                    .because
                    .starts_with("vm3 fell behind its due by another 50 %"),
            "{verdict:?}"
        );
        // 0.008 pCPUs are 4 % of its due, and within what clocks are off by.
        assert!(after(&[share(3, 0.2, 0.192)]).helped);
        // It had more than its due, and has less of that.
        let ahead = figures(1000, 1000, &[share(2, 0.5, 0.9)]);
        assert!(helped(&ahead, &figures(0, 0, &[share(2, 0.5, 0.5)])));
        assert!(!helped(&ahead, &figures(0, 0, &[share(2, 0.5, 0.4)])));
        // One that came in between is compared with nothing.
        assert!(after(&[share(9, 1.0, 0.1)]).helped);
    }

    #[test]
    fn a_vm_that_is_gone_was_not_helped() {
        let before = figures(1000, 1000, &[]);
        let gone = Figures {
            waits: None,
            share: None,
            ..figures(0, 0, &[])
        };
        let verdict = judge(&before, &gone);
        assert!(
            !verdict.helped && verdict.because.contains("not measured"),
            "{verdict:?}"
        );
    }
}
