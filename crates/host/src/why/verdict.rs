//! Decides whether a remedy helped, from three measurements of equal length: without it, with it, and without it again.
//!
//! A remedy helped if all of these hold:
//!
//! 1. The cost of the cause fell by a fifth and by 10 ms per second.
//!    Two measurements of a busy host differ by less without any change.
//! 2. The VM's waits (RDY and LIM) fell by a fifth of that cost; otherwise the wait only changed its name.
//! 3. The VM runs (RUN) no less than before, and neither do its own threads if they are the cause.
//!    A VM that does less waits less.
//! 4. No other VM of the host, selected or not, fell further behind its fair share by more than 2 % of it.
//!    A tolerance of 0.01 pCPUs covers the skew between clock reads.
//! 5. No other VM that waits more received less, by the same margin, than it had or was entitled to without the remedy.
//!    If remedies are applied already, this also holds relative to the state before the first one.
//!
//! Each rule uses the stricter of the two measurements without the remedy for the VM itself.
//! For every other VM it uses the worse one, which tolerates chance differences.
//! Three times the difference between a VM's two measurements without the remedy is that VM's noise.
//!
//! Fair shares use the weights from before the first change, so that a remedy cannot hide a loss by writing weights.
//! Rule 5 uses the shares without the remedy, so that it cannot hide a loss by moving vCPUs.
//! A VM that is no longer measured was not helped.

use serde::Serialize;
use tandem_model::{Nanos, State, VmId};
use tandem_observe::Interval;
use tandem_observe::findings::{Finding, Kind};

/// Minimum relative fall of the cost.
pub const LESS: f64 = 0.20;

/// Minimum fall of the cost, per second.
pub const MIN_FALL: Nanos = Nanos::from_millis(10);

/// Tolerated loss of another VM relative to its fair share, and of RUN relative to itself.
pub const BEHIND: f64 = 0.02;

/// Tolerated loss, in pCPUs.
const BEHIND_PCPUS: f64 = 0.01;

/// Tolerated loss, as a multiple of the noise.
const NOISE: f64 = 3.0;

/// A VM's share in a measurement, in pCPUs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// Id of the VM for this run.
    #[serde(skip)]
    pub id: VmId,
    /// Its name.
    pub vm: String,
    /// Fair share, by the weights from before the first change.
    pub due: f64,
    /// Received.
    pub received: f64,
    /// Time waited, RDY and LIM; `None` if it is not measured.
    pub waited: Option<f64>,
}

impl Share {
    /// How far the VM is behind its fair share, in pCPUs; at least 0.
    fn short(&self) -> f64 {
        (self.due - self.received).max(0.0)
    }

    /// The same, relative to the fair share.
    fn lag(&self) -> f64 {
        if self.due > 0.0 { self.short() / self.due } else { 0.0 }
    }

    /// Received time that a remedy must leave to the VM: at most its fair share.
    fn entitled(&self) -> f64 {
        self.received.min(self.due)
    }
}

/// The figures of a measurement that decide about a remedy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Cost of the cause, in ns per second; 0 if the cause is absent.
    pub cost: Nanos,
    /// The VM's waits, RDY and LIM, in ns per second summed over its vCPUs; `None` if not measured.
    pub waits: Option<Nanos>,
    /// The VM's RUN, in the same unit.
    pub runs: Option<Nanos>,
    /// Run time of its other threads, if they are the cause.
    pub threads: Option<Nanos>,
    /// The VM's own share; `None` if not measured.
    pub share: Option<Share>,
    /// The shares of all other VMs of the host.
    pub others: Vec<Share>,
}

/// Scales a time within an interval to one second.
fn per_second(time: Nanos, length: Nanos) -> Nanos {
    let ns = u128::from(time.0) * 1_000_000_000 / u128::from(length.0.max(1));
    Nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// Returns RDY and LIM of a VM; if LIM is not measured, RDY includes it.
pub(super) fn waits(interval: &Interval, vm: VmId) -> Option<Nanos> {
    let vm = interval.vms.iter().find(|one| one.vm == vm)?;
    let times = vm.times()?;
    let limited = times.get(State::Limited).unwrap_or_default();
    Some(times.get(State::Ready)? + limited)
}

impl Figures {
    /// Figures of an earlier finding in this or a later interval, with its `cost` and `shares`.
    pub fn of(finding: &Finding, interval: &Interval, cost: Nanos, shares: Vec<Share>) -> Figures {
        let vm = interval.vms.iter().find(|vm| vm.vm == finding.id);
        let runs = vm.and_then(|vm| vm.times()?.get(State::Run));
        let are_cause = finding.kind == Kind::OwnThreads;
        let threads = vm.filter(|_| are_cause);
        let threads = threads.map(|vm| vm.threads.iter().map(|thread| thread.time).sum::<Nanos>());
        let (own, others): (Vec<Share>, Vec<Share>) =
            shares.into_iter().partition(|share| share.id == finding.id);
        let rate = |time| per_second(time, interval.length);
        Figures {
            cost,
            waits: waits(interval, finding.id).map(rate),
            runs: runs.map(rate),
            threads: threads.map(rate),
            share: own.into_iter().next(),
            others,
        }
    }

    fn other(&self, id: VmId) -> Option<&Share> {
        self.others.iter().find(|share| share.id == id)
    }
}

/// Whether a remedy helped, and the reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Whether it helped.
    pub helped: bool,
    /// The reason.
    pub because: String,
}

/// The measurements without the remedy.
#[derive(Clone, Copy, Debug)]
pub struct Without<'a> {
    /// Before it was applied.
    pub before: &'a Figures,
    /// After it was reverted.
    pub again: &'a Figures,
    /// The shares of all VMs before the first remedy, if others are applied.
    pub first: Option<&'a [Share]>,
}

fn ms(time: Nanos) -> f64 {
    time.0 as f64 / 1e6
}

/// Compares the measurement with a remedy with those without it.
pub fn judge(without: Without<'_>, with: &Figures) -> Verdict {
    match objection(without, with) {
        Some(because) => Verdict { helped: false, because },
        None => Verdict {
            helped: true,
            because: format!(
                "its cost fell from {:.0} to {:.0} ms per second and was {:.0} again without it, and no other VM fell behind",
                ms(without.before.cost),
                ms(with.cost),
                ms(without.again.cost)
            ),
        },
    }
}

/// Returns the reason why the remedy did not help, if there is one.
fn objection(without: Without<'_>, with: &Figures) -> Option<String> {
    let Without { before, again, .. } = without;
    let (Some(waited), Some(waits), Some(waited_again)) = (before.waits, with.waits, again.waits)
    else {
        return Some("the VM is no longer measured".to_owned());
    };
    let cost = before.cost.min(again.cost);
    let fell = cost.saturating_sub(with.cost);
    let part = |of: Nanos| Nanos((of.0 as f64 * LESS) as u64);
    if fell < part(cost) || fell < MIN_FALL || fell.0 < before.cost.0.abs_diff(again.cost.0) {
        return Some(format!(
            "its cost went from {:.0} to {:.0} ms per second, and to {:.0} without it: the fall is less than a fifth, or within noise",
            ms(before.cost),
            ms(with.cost),
            ms(again.cost)
        ));
    }
    if waited.min(waited_again).saturating_sub(waits) < part(cost) {
        return Some(format!(
            "its waits only have another cause: RDY and LIM went from {:.0} to {:.0} ms per second, and to {:.0} without it",
            ms(waited),
            ms(waits),
            ms(waited_again)
        ));
    }
    let runs = (before.runs, again.runs, with.runs);
    let threads = (before.threads, again.threads, with.threads);
    does_less("it waits less because it does less: RUN", runs)
        .or_else(|| does_less("its threads do less: they ran", threads))
        .or_else(|| worst_off(without, with))
}

/// Objects if the VM or its threads ran less than in both measurements without the remedy.
fn does_less(
    what: &str,
    (before, again, with): (Option<Nanos>, Option<Nanos>, Option<Nanos>),
) -> Option<String> {
    let (before, again) = (before?, again?);
    let with = with.unwrap_or_default();
    let least = before.min(again);
    let noise = NOISE * before.0.abs_diff(again.0) as f64;
    let tolerance = noise.max(BEHIND * least.0 as f64).max(BEHIND_PCPUS * 1e9);
    let is_less = least.0 as f64 - with.0 as f64 > tolerance;
    is_less.then(|| {
        format!(
            "{what} went from {:.0} to {:.0} ms per second, and to {:.0} without it",
            ms(before),
            ms(with),
            ms(again)
        )
    })
}

/// Returns the objection of the other VM that lost the most, if any did.
fn worst_off(without: Without<'_>, with: &Figures) -> Option<String> {
    let Without { before, again, first } = without;
    let mut objections: Vec<(f64, String)> = Vec::new();
    for now in &with.others {
        let Some(then) = before.other(now.id) else {
            continue;
        };
        // A VM that has gone has no second measurement, hence no noise.
        let again = again.other(now.id).unwrap_or(then);
        let noise = NOISE * (then.received - again.received).abs();
        let may_lose = |due: f64| noise.max(BEHIND * due).max(BEHIND_PCPUS);
        let (short, lag) = (then.short().max(again.short()), then.lag().max(again.lag()));
        // If the remedy raises its fair share, as when VMs leave its pCPU, a VM that received more has lost nothing.
        let gained = now.received > then.received.max(again.received);
        if !gained && now.short() - short > may_lose(now.due) && now.lag() - lag > BEHIND {
            let more = now.lag() - lag;
            objections.push((
                more,
                format!(
                    "{} fell behind its due by another {:.0} %: it received {:.2} of {:.2} pCPUs",
                    now.vm,
                    more * 100.0,
                    now.received,
                    now.due
                ),
            ));
        }
        let loses = |entitled: f64, waited: Option<f64>, since: &str| {
            let lost = entitled - now.received;
            let waits_more =
                waited.zip(now.waited).is_some_and(|(waited, waits)| waits - waited > BEHIND_PCPUS);
            (waits_more && lost > may_lose(entitled)).then(|| {
                let part = lost / entitled;
                let because = format!(
                    "{} waits more and received {:.2} pCPUs instead of {entitled:.2}{since}",
                    now.vm, now.received
                );
                (part, because)
            })
        };
        let most_waited = then.waited.zip(again.waited);
        let most_waited = most_waited.map(|(one, two)| one.max(two));
        let entitled = then.entitled().min(again.entitled());
        objections.extend(loses(entitled, most_waited, ""));
        let first = first.and_then(|first| first.iter().find(|share| share.id == now.id));
        objections.extend(first.and_then(|first| {
            let since = ", taken by all remedies together";
            loses(first.entitled(), first.waited, since)
        }));
    }
    objections.sort_by(|(one, _), (two, _)| two.total_cmp(one));
    objections.into_iter().next().map(|(_, because)| because)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(id: u64, due: f64, received: f64) -> Share {
        Share { id: VmId(id), vm: format!("vm{id}"), due, received, waited: Some(0.0) }
    }

    fn waiting(share: Share, waited: f64) -> Share {
        Share { waited: Some(waited), ..share }
    }

    fn millis(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    fn figures(cost: u64, waits: u64, others: &[Share]) -> Figures {
        Figures {
            cost: millis(cost),
            waits: Some(millis(waits)),
            runs: Some(millis(500)),
            threads: None,
            share: Some(share(1, 1.0, 1.0)),
            others: others.to_vec(),
        }
    }

    /// Judges with two equal measurements without the remedy.
    fn judged(before: &Figures, with: &Figures) -> Verdict {
        let without = Without { before, again: before, first: None };
        judge(without, with)
    }

    fn helped(before: &Figures, with: &Figures) -> bool {
        judged(before, with).helped
    }

    #[test]
    fn cost_must_fall_by_fifth_and_above_noise() {
        let before = figures(1000, 1000, &[]);
        assert!(helped(&before, &figures(800, 800, &[])));
        assert!(!helped(&before, &figures(801, 801, &[])));
        assert!(!helped(&before, &figures(1200, 1200, &[])));
        let small = figures(12, 12, &[]);
        assert!(helped(&small, &figures(2, 2, &[])));
        assert!(!helped(&small, &figures(3, 3, &[])), "9 ms are noise");
        let verdict = judged(&before, &figures(0, 0, &[]));
        assert!(verdict.helped && verdict.because.contains("from 1000 to 0"), "{verdict:?}");
    }

    #[test]
    fn cost_must_return_without_the_remedy() {
        let (before, with) = (figures(1000, 1000, &[]), figures(0, 0, &[]));
        let of = |again: &Figures| {
            let without = Without { before: &before, again, first: None };
            judge(without, &with).helped
        };
        assert!(of(&figures(900, 900, &[])));
        assert!(!of(&figures(0, 0, &[])), "the cost does not return without the remedy");
        assert!(!of(&figures(400, 400, &[])), "it fell by 600 without the remedy");
    }

    #[test]
    fn renamed_wait_is_no_help() {
        let before = figures(1000, 1100, &[]);
        let verdict = judged(&before, &figures(0, 1000, &[]));
        assert!(!verdict.helped && verdict.because.contains("another cause"), "{verdict:?}");
        assert!(helped(&before, &figures(0, 900, &[])));
    }

    #[test]
    fn running_less_is_no_help() {
        let before = figures(1000, 1000, &[]);
        let runs = |ms| Figures { runs: Some(millis(ms)), ..figures(0, 0, &[]) };
        assert!(helped(&before, &runs(490)) && helped(&before, &runs(900)));
        let verdict = judged(&before, &runs(300));
        assert!(
            !verdict.helped && verdict.because.contains("RUN went from 500 to 300"),
            "{verdict:?}"
        );
        // The VM's threads, if they are the cause.
        let threads = |figures: Figures, ms| Figures { threads: Some(millis(ms)), ..figures };
        let before = threads(before, 400);
        assert!(helped(&before, &threads(figures(0, 0, &[]), 395)));
        let verdict = judged(&before, &threads(figures(0, 0, &[]), 200));
        assert!(!verdict.helped && verdict.because.contains("its threads do less"), "{verdict:?}");
    }

    #[test]
    fn no_other_vm_may_fall_behind() {
        let before = figures(1000, 1000, &[share(2, 1.0, 1.0), share(3, 0.2, 0.2)]);
        let after = |others: &[Share]| judged(&before, &figures(0, 0, others));
        assert!(after(&[share(2, 1.0, 0.985), share(3, 0.2, 0.2)]).helped);
        let verdict = after(&[share(2, 1.0, 0.975), share(3, 0.2, 0.1)]);
        assert!(
            !verdict.helped
                && verdict.because.starts_with("vm3 fell behind its due by another 50 %"),
            "{verdict:?}"
        );
        // 0.008 pCPUs are 4 % of its fair share, and within the skew of clocks.
        assert!(after(&[share(3, 0.2, 0.192)]).helped);
        // It had more than its fair share, and lost a part of the surplus.
        let ahead = figures(1000, 1000, &[share(2, 0.5, 0.9)]);
        let less = waiting(share(2, 0.5, 0.5), 0.4);
        assert!(helped(&ahead, &figures(0, 0, &[less])));
        assert!(!helped(&ahead, &figures(0, 0, &[share(2, 0.5, 0.4)])));
        // A VM that started in between has no comparison.
        assert!(after(&[share(9, 1.0, 0.1)]).helped);
    }

    #[test]
    fn raised_share_is_no_loss_if_received_rose() {
        // Two vCPUs of its pCPU may now run elsewhere, too.
        let before = figures(915, 916, &[share(2, 0.5, 0.52)]);
        assert!(helped(&before, &figures(0, 0, &[share(2, 0.84, 0.76)])));
        let verdict = judged(&before, &figures(0, 0, &[share(2, 0.84, 0.52)]));
        assert!(
            !verdict.helped && verdict.because.starts_with("vm2 fell behind its due"),
            "{verdict:?}"
        );
    }

    #[test]
    fn lowered_share_excuses_no_loss() {
        // Alone on its pCPU at first; then two vCPUs of the other VM are let there, and its fair share falls by a third.
        let before = figures(1000, 1000, &[share(2, 1.0, 1.0)]);
        let shared = waiting(share(2, 0.67, 0.67), 0.33);
        let verdict = judged(&before, &figures(0, 0, &[shared]));
        assert!(
            !verdict.helped
                && verdict
                    .because
                    .contains("vm2 waits more and received 0.67 pCPUs instead of 1.00"),
            "{verdict:?}"
        );
        // A VM that sleeps more is not robbed.
        assert!(helped(&before, &figures(0, 0, &[share(2, 0.67, 0.67)])));
    }

    #[test]
    fn noise_is_difference_without_remedy() {
        let of = |received| figures(1000, 1000, &[share(2, 1.0, received)]);
        let with = figures(0, 0, &[waiting(share(2, 1.0, 0.90), 0.1)]);
        let (steady, other) = (of(1.0), of(0.96));
        let judged = |again| {
            let without = Without { before: &steady, again, first: None };
            judge(without, &with)
        };
        assert!(!judged(&steady).helped);
        assert!(judged(&other).helped, "its own noise is 4 %");
    }

    #[test]
    fn all_remedies_share_one_tolerance() {
        let now = waiting(share(2, 1.0, 0.97), 0.03);
        let before = figures(1000, 1000, &[waiting(share(2, 1.0, 0.985), 0.015)]);
        let with = figures(0, 0, &[now]);
        let first = [share(2, 1.0, 1.0)];
        let judged = |first| {
            let without = Without { before: &before, again: &before, first };
            judge(without, &with)
        };
        assert!(judged(None).helped);
        let verdict = judged(Some(&first));
        assert!(
            !verdict.helped && verdict.because.contains("all remedies together"),
            "{verdict:?}"
        );
    }

    #[test]
    fn unmeasured_vm_was_not_helped() {
        let before = figures(1000, 1000, &[]);
        let gone = Figures { waits: None, share: None, ..figures(0, 0, &[]) };
        let verdict = judged(&before, &gone);
        assert!(!verdict.helped && verdict.because.contains("no longer measured"), "{verdict:?}");
    }
}
