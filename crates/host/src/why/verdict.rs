//! Whether a cure helped: three measurements of equal length (without it, with it, and without it again), and a rule.
//!
//! A cure helped if all of this is so:
//!
//! 1. what the cause costs, however little, fell by a fifth, and by 10 ms per second: less is what two measurements of a busy host differ by;
//! 2. what the VM waits in all (RDY and LIM) fell by a fifth of that cost: else the wait has only got another name;
//! 3. the VM runs (RUN) no less than before, and, where the cause is its own threads, neither do these: who does less waits less;
//! 4. no other VM of the host, asked for or not, fell further behind its due by more than 2 % of it (and 0.01 pCPUs, which clocks that are
//!    read one after the other may differ by);
//! 5. no other VM that waits more received less, by as much, than it had or was due without the cure; nor, if other cures are in force by now,
//!    than before the first of them.
//!
//! Each is compared with that one of the two measurements without the cure that makes it harder for it to have helped where the cure acts, and easier for
//! the others to have differed by chance: of every other VM the worse one. By what a VM's two measurements without it differ, three times, it may also
//! be off with it: that is this VM's noise.
//!
//! Dues are by the weights from before the first change, so that a cure cannot excuse what it takes from others by what it writes; and rule 5 has those
//! without the cure, so that it cannot excuse it by where it lets vCPUs run. What cannot be compared, because the VM or its vCPUs are no longer
//! measured, did not help.

use serde::Serialize;
use tandem_model::{Nanos, State, VmId};
use tandem_observe::Interval;
use tandem_observe::findings::{Finding, Kind};

/// The cost has to fall by this part of itself.
pub const LESS: f64 = 0.20;

/// And by so much, per second.
pub const LEAST: Nanos = Nanos::from_millis(10);

/// Another VM may fall behind by so much of its due, and what ran may run less by so much of itself.
pub const BEHIND: f64 = 0.02;

/// And by so much, in pCPUs.
const BEHIND_PCPUS: f64 = 0.01;

/// And by so many times what it differs by of itself.
const NOISE: f64 = 3.0;

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
    /// What it waited, RDY and LIM; `None` if that is not measured.
    pub waited: Option<f64>,
}

impl Share {
    /// How far it is behind its due, in pCPUs; not below 0.
    fn short(&self) -> f64 {
        (self.due - self.received).max(0.0)
    }

    /// That, as a part of its due.
    fn lag(&self) -> f64 {
        if self.due > 0.0 { self.short() / self.due } else { 0.0 }
    }

    /// What nobody may take from it: what it had, up to its due.
    fn entitled(&self) -> f64 {
        self.received.min(self.due)
    }
}

/// What of a measurement counts for a cure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// What the cause costs, in ns per second, however little it is; 0 if it is not there.
    pub cost: Nanos,
    /// What the VM waits in all, RDY and LIM, in ns per second summed over its vCPUs; `None` if it is not measured.
    pub waits: Option<Nanos>,
    /// What it runs, likewise.
    pub runs: Option<Nanos>,
    /// What its other threads run, where these are the cause.
    pub threads: Option<Nanos>,
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

/// RDY and LIM of a VM; where LIM is not measured, it is in RDY.
pub(super) fn waits(interval: &Interval, vm: VmId) -> Option<Nanos> {
    let vm = interval.vms.iter().find(|one| one.vm == vm)?;
    let times = vm.times()?;
    let limited = times.get(State::Limited).unwrap_or_default();
    Some(times.get(State::Ready)? + limited)
}

impl Figures {
    /// Of a finding that was made before, in a later interval, or in the same; `cost` and `shares` are of that interval.
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

/// Whether it helped, and what shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Whether it did.
    pub helped: bool,
    /// What shows that.
    pub because: String,
}

/// What a measurement with a cure is compared with.
#[derive(Clone, Copy, Debug)]
pub struct Without<'a> {
    /// Before it was in force.
    pub before: &'a Figures,
    /// After it was put back.
    pub again: &'a Figures,
    /// The shares of all VMs before the first cure, if others are in force.
    pub first: Option<&'a [Share]>,
}

fn ms(time: Nanos) -> f64 {
    time.0 as f64 / 1e6
}

/// Compares a measurement with a cure with those without it.
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

/// Why it did not help.
fn objection(without: Without<'_>, with: &Figures) -> Option<String> {
    let Without { before, again, .. } = without;
    let (Some(waited), Some(waits), Some(waited_again)) = (before.waits, with.waits, again.waits)
    else {
        return Some("the VM is not measured any more".to_owned());
    };
    let cost = before.cost.min(again.cost);
    let fell = cost.saturating_sub(with.cost);
    let part = |of: Nanos| Nanos((of.0 as f64 * LESS) as u64);
    if fell < part(cost) || fell < LEAST || fell.0 < before.cost.0.abs_diff(again.cost.0) {
        return Some(format!(
            "its cost went from {:.0} to {:.0} ms per second, and to {:.0} without it: that is no fall by a fifth, or within noise",
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

/// What ran less than in both measurements without the cure.
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

/// The other VM that is worst off with the cure, if one is.
fn worst_off(without: Without<'_>, with: &Figures) -> Option<String> {
    let Without { before, again, first } = without;
    let mut objections: Vec<(f64, String)> = Vec::new();
    for now in &with.others {
        let Some(then) = before.other(now.id) else {
            continue;
        };
        // One that is gone meanwhile has no noise that would be known.
        let again = again.other(now.id).unwrap_or(then);
        let noise = NOISE * (then.received - again.received).abs();
        let may_lose = |due: f64| noise.max(BEHIND * due).max(BEHIND_PCPUS);
        let (short, lag) = (then.short().max(again.short()), then.lag().max(again.lag()));
        // Where the cure makes it due more, as when VMs leave its pCPU, who receives more than before has lost nothing.
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
            let since = ", what all cures together took from it";
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

    /// Nothing changes by itself.
    fn judged(before: &Figures, with: &Figures) -> Verdict {
        let without = Without { before, again: before, first: None };
        judge(without, with)
    }

    fn helped(before: &Figures, with: &Figures) -> bool {
        judged(before, with).helped
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
        let verdict = judged(&before, &figures(0, 0, &[]));
        assert!(verdict.helped && verdict.because.contains("from 1000 to 0"), "{verdict:?}");
    }

    #[test]
    fn what_ends_by_itself_is_not_the_cures() {
        let (before, with) = (figures(1000, 1000, &[]), figures(0, 0, &[]));
        let of = |again: &Figures| {
            let without = Without { before: &before, again, first: None };
            judge(without, &with).helped
        };
        assert!(of(&figures(900, 900, &[])));
        assert!(!of(&figures(0, 0, &[])), "it is not back without the cure");
        assert!(!of(&figures(400, 400, &[])), "it went by 600 by itself");
    }

    #[test]
    fn a_wait_under_another_name_is_no_cure() {
        let before = figures(1000, 1100, &[]);
        let verdict = judged(&before, &figures(0, 1000, &[]));
        assert!(!verdict.helped && verdict.because.contains("another cause"), "{verdict:?}");
        assert!(helped(&before, &figures(0, 900, &[])));
    }

    #[test]
    fn who_does_less_is_not_cured() {
        let before = figures(1000, 1000, &[]);
        let runs = |ms| Figures { runs: Some(millis(ms)), ..figures(0, 0, &[]) };
        assert!(helped(&before, &runs(490)) && helped(&before, &runs(900)));
        let verdict = judged(&before, &runs(300));
        assert!(
            !verdict.helped && verdict.because.contains("RUN went from 500 to 300"),
            "{verdict:?}"
        );
        // The VM's threads, where they are the cause.
        let threads = |figures: Figures, ms| Figures { threads: Some(millis(ms)), ..figures };
        let before = threads(before, 400);
        assert!(helped(&before, &threads(figures(0, 0, &[]), 395)));
        let verdict = judged(&before, &threads(figures(0, 0, &[]), 200));
        assert!(!verdict.helped && verdict.because.contains("its threads do less"), "{verdict:?}");
    }

    #[test]
    fn nobody_else_may_fall_behind() {
        let before = figures(1000, 1000, &[share(2, 1.0, 1.0), share(3, 0.2, 0.2)]);
        let after = |others: &[Share]| judged(&before, &figures(0, 0, others));
        assert!(after(&[share(2, 1.0, 0.985), share(3, 0.2, 0.2)]).helped);
        let verdict = after(&[share(2, 1.0, 0.975), share(3, 0.2, 0.1)]);
        assert!(
            !verdict.helped
                && verdict.because.starts_with("vm3 fell behind its due by another 50 %"),
            "{verdict:?}"
        );
        // 0.008 pCPUs are 4 % of its due, and within what clocks are off by.
        assert!(after(&[share(3, 0.2, 0.192)]).helped);
        // It had more than its due, and has less of that.
        let ahead = figures(1000, 1000, &[share(2, 0.5, 0.9)]);
        let less = waiting(share(2, 0.5, 0.5), 0.4);
        assert!(helped(&ahead, &figures(0, 0, &[less])));
        assert!(!helped(&ahead, &figures(0, 0, &[share(2, 0.5, 0.4)])));
        // One that came in between is compared with nothing.
        assert!(after(&[share(9, 1.0, 0.1)]).helped);
    }

    #[test]
    fn a_due_that_rises_with_the_cure_is_no_loss_of_who_received_more() {
        // Two vCPUs that were on its pCPU may run elsewhere, too.
        let before = figures(915, 916, &[share(2, 0.5, 0.52)]);
        assert!(helped(&before, &figures(0, 0, &[share(2, 0.84, 0.76)])));
        let verdict = judged(&before, &figures(0, 0, &[share(2, 0.84, 0.52)]));
        assert!(
            !verdict.helped && verdict.because.starts_with("vm2 fell behind its due"),
            "{verdict:?}"
        );
    }

    #[test]
    fn a_due_that_falls_with_the_cure_excuses_nothing() {
        // Alone on its pCPU; then two vCPUs of the cured VM are let there, and it is due a third less.
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
        // Who sleeps more is not robbed.
        assert!(helped(&before, &figures(0, 0, &[share(2, 0.67, 0.67)])));
    }

    #[test]
    fn what_a_vm_varies_by_is_its_noise() {
        let of = |received| figures(1000, 1000, &[share(2, 1.0, received)]);
        let with = figures(0, 0, &[waiting(share(2, 1.0, 0.90), 0.1)]);
        let (steady, other) = (of(1.0), of(0.96));
        let judged = |again| {
            let without = Without { before: &steady, again, first: None };
            judge(without, &with)
        };
        assert!(!judged(&steady).helped);
        assert!(judged(&other).helped, "it differs by 4 % of itself");
    }

    #[test]
    fn cures_together_may_take_no_more_than_one() {
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
        assert!(!verdict.helped && verdict.because.contains("all cures together"), "{verdict:?}");
    }

    #[test]
    fn a_vm_that_is_gone_was_not_helped() {
        let before = figures(1000, 1000, &[]);
        let gone = Figures { waits: None, share: None, ..figures(0, 0, &[]) };
        let verdict = judged(&before, &gone);
        assert!(!verdict.helped && verdict.because.contains("not measured"), "{verdict:?}");
    }
}
