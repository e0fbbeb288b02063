//! `tandem host why --try`: tries the cures of what was found, one at a time, and says what each did.
//!
//! ```text
//! measure ─► the costliest finding not tried yet ─► change ─► measure ─► put back ─► measure ─► helped?
//!                      ▲                                                               no │      │ yes
//!                      ├───────────────────────────────────────────────────────────────────┘      │
//!                      └─────────────────────────── measure ◄─ change again, and it stays ◄───────┘
//! ```
//!
//! So every cure is compared with what is without it, before and after, and what ends or begins by itself is not taken for its doing. What the next one
//! is compared with was measured last.
//!
//! The operator stays in charge:
//! - only VMs that were named are changed, and settings of the host (its processes, cgroups that are not one VM's alone) only with `yes`;
//! - every change goes through the daemon's journal first: Ctrl-C, an error or a panic put everything back at once, and after kill -9
//!   `tandem host restore` or the next start does; what threads hand on to those that they start is put back there, too;
//! - what somebody else sets meanwhile, or later, is theirs, and stays;
//! - at the end everything is put back, unless what helped is to be kept. That stays in the journal, so that `tandem host restore` undoes it;
//! - where a daemon acts on the same state directory, nothing can be tried: its lock is held. A VM that a daemon with another one looks after is
//!   not changed ([`Claims`]).
//!
//! All measurements take equally long and are made by the same source. What counts as help is in [`super::verdict`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use tandem_linux::actuator::Actuator;
use tandem_linux::cgroup;
use tandem_linux::claims::{Claims, HOST_CLAIMS};
use tandem_linux::interrupt::Interrupt;
use tandem_linux::restore::{RestoreFailure, RestoreReport};
use tandem_model::VmId;
use tandem_observe::findings::{Finding, Kind, Situation, cost};

use super::changes::Changes;
use super::steps::{Ground, Step, Target};
use super::text::shown;
use super::verdict::{Figures, Share, Without, judge, waits};
use super::{Observation, SCHEMA, Why, WhyError, WhyInterval, asked_for, text};
use crate::config::restore_command;
use crate::select::VmPattern;
use crate::watch::LookError;
use crate::weights::Weights;

/// After a change, until measuring begins: threads that were moved have then run where they are now.
const SETTLE: Duration = Duration::from_millis(200);

/// How many other VMs are shown of each trial: on a host of a thousand, most have nothing to do with it.
const OTHERS: usize = 3;

/// How cures are tried.
#[derive(Clone, Copy, Debug)]
pub struct TryOptions {
    /// How long each measurement takes.
    pub length: Duration,
    /// Whether what helped stays in force.
    pub keep: bool,
    /// Whether VMs that nobody named, and settings of the host, may be changed.
    pub yes: bool,
}

/// What came of a cure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It helped.
    Helped,
    /// It did not, and is put back.
    DidNotHelp,
    /// The kernel refused, or a thread was gone; what was changed is put back.
    Failed,
    /// It was not tried.
    NotTried,
}

/// One cure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// The VM's name.
    pub vm: String,
    /// Its process.
    pub pid: u32,
    /// What is wrong with it.
    pub kind: Kind,
    /// What was changed, or was to be.
    pub changes: Vec<String>,
    /// What came of it.
    pub outcome: Outcome,
    /// What shows that.
    pub because: String,
    /// Whether it is in force now.
    pub in_force: bool,
    /// Measured before; `None` if it was not tried.
    pub before: Option<Figures>,
    /// Measured with the change.
    pub after: Option<Figures>,
    /// Measured when it was put back.
    pub again: Option<Figures>,
}

/// All that was tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trials {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What an earlier run that was killed, or kept its cures, had left: put back before anything was measured.
    pub earlier: RestoreReport,
    /// What was found before the first change.
    pub found: WhyInterval,
    /// The cures, in the order in which they were tried.
    pub trials: Vec<Trial>,
    /// What was put back at the end; `None` if what helped is kept.
    pub put_back: Option<RestoreReport>,
    /// Where what helped is kept: what did not, and could not be put back. It stays in the journal.
    pub failed: Vec<RestoreFailure>,
}

impl Trials {
    /// Whether everything that is not to be kept is as it was.
    pub fn is_put_back(&self) -> bool {
        let is_complete = self.put_back.as_ref();
        is_complete.is_none_or(RestoreReport::is_complete) && self.failed.is_empty()
    }
}

impl Observation {
    fn shares(&self) -> Vec<Share> {
        let pcpus =
            |time: tandem_model::Nanos| time.0 as f64 / self.interval.length.0.max(1) as f64;
        let measured = self.interval.vms.iter();
        let shares = measured.filter_map(|vm| {
            let known = self.known.get(&vm.vm)?;
            Some(Share {
                id: vm.vm,
                vm: known.name.clone(),
                due: pcpus(known.due),
                received: pcpus(known.received),
                waited: waits(&self.interval, vm.vm).map(pcpus),
            })
        });
        shares.collect()
    }

    fn figures(&self, finding: &Finding) -> Figures {
        let situation = Situation {
            interval: &self.interval,
            vms: self.known.clone(),
            host: self.host.clone(),
            weights: BTreeMap::new(),
        };
        let cost = cost(&situation, finding.id, finding.kind);
        Figures::of(finding, &self.interval, cost, self.shares())
    }
}

/// Trials on their way.
struct Trying<'a> {
    asked: &'a [VmPattern],
    options: &'a TryOptions,
    interrupt: &'a Interrupt,
    changes: &'a mut Changes,
    /// The VMs that are ours for now, as other daemons of the host see it.
    claims: Claims,
}

impl Why {
    /// Tries the cures of what is wrong with the VMs that match, or with all if there is no pattern.
    pub fn try_cures(
        &mut self,
        asked: &[VmPattern],
        options: &TryOptions,
        interrupt: &Interrupt,
    ) -> Result<Trials, WhyError> {
        if asked.is_empty() && !options.yes {
            return Err(WhyError::NobodyNamed);
        }
        // Before what an earlier run kept is put back: it should not be for a name that is mistyped.
        let vms = self.look.scan()?.vms;
        asked_for(asked, &vms, self.look.controller.as_ref())?;
        let claims = Claims::open(Path::new(HOST_CLAIMS));
        let claims = claims.map_err(tandem_linux::actuator::ActuatorError::Journal)?;
        let controller = cgroup::open(&self.procfs).map_err(LookError::from)?;
        let (actuator, earlier) = Actuator::open(controller, &self.look.state_dir)?;
        if !earlier.is_complete() {
            // What stays in the journal is for `tandem host restore`.
            return Err(WhyError::EarlierLeft(earlier));
        }
        let mut changes = Changes::new(self.procfs.clone(), actuator);
        let trying = Trying { asked, options, interrupt, changes: &mut changes, claims };
        let tried = self.try_all(trying);
        // On an error nothing is kept, and dropping the actuator would put back without a word.
        let (found, mut trials) = match tried {
            Ok(tried) => tried,
            Err(error) => {
                let report = changes.restore();
                return Err(match report.is_complete() {
                    true => error,
                    false => WhyError::NotPutBack { error: Box::new(error), report },
                });
            }
        };
        let (put_back, failed) = match options.keep {
            true => (None, changes.keep().failures),
            false => {
                trials.iter_mut().for_each(|trial| trial.in_force = false);
                (Some(changes.restore()), Vec::new())
            }
        };
        Ok(Trials { schema: SCHEMA, earlier, found, trials, put_back, failed })
    }

    fn try_all(&mut self, mut trying: Trying<'_>) -> Result<(WhyInterval, Vec<Trial>), WhyError> {
        let mut before = self.measure(&mut trying, None)?;
        let (found, weights) = (before.found.clone(), before.weights.clone());
        let first = before.shares();
        let mut tried: BTreeSet<(VmId, Kind)> = BTreeSet::new();
        let mut trials = Vec::new();
        loop {
            let mut findings = before.found.findings.iter();
            let next = findings.find(|finding| tried.insert((finding.id, finding.kind)));
            let Some(finding) = next.cloned() else {
                return Ok((found, trials));
            };
            let mut trial = Trial {
                vm: finding.vm.clone(),
                pid: finding.pid,
                kind: finding.kind,
                changes: finding.cure.changes.iter().map(ToString::to_string).collect(),
                outcome: Outcome::NotTried,
                because: String::new(),
                in_force: false,
                before: None,
                after: None,
                again: None,
            };
            let steps = match self.steps(&finding, &before, &mut trying)? {
                Ok(steps) => steps,
                Err(because) => {
                    trial.because = because;
                    trials.push(trial);
                    continue;
                }
            };
            let before_it = before.figures(&finding);
            trial.before = Some(before_it.clone());
            if let Err(because) = trying.changes.make(&steps) {
                trying.changes.take_back()?;
                (trial.outcome, trial.because) = (Outcome::Failed, because);
                trials.push(trial);
                // It was in force for a moment, and what was measured before is of then.
                before = self.measure_after(&mut trying, &weights)?;
                continue;
            }
            let with = self.measure_after(&mut trying, &weights)?;
            trying.changes.take_back()?;
            let again = self.measure_after(&mut trying, &weights)?;
            let (with_it, again_without) = (with.figures(&finding), again.figures(&finding));
            let without = Without {
                before: &before_it,
                again: &again_without,
                first: trials
                    .iter()
                    .any(|trial: &Trial| trial.in_force)
                    .then_some(first.as_slice()),
            };
            let verdict = judge(without, &with_it);
            (trial.after, trial.again) = (Some(with_it), Some(again_without));
            trial.because = verdict.because;
            trial.outcome = Outcome::DidNotHelp;
            before = again;
            if verdict.helped {
                match self.make_again(&finding, &before, &mut trying)? {
                    Ok(()) => {
                        (trial.outcome, trial.in_force) = (Outcome::Helped, true);
                        before = self.measure_after(&mut trying, &weights)?;
                    }
                    Err(because) => (trial.outcome, trial.because) = (Outcome::Failed, because),
                }
            }
            trials.push(trial);
        }
    }

    /// Puts a cure that helped in force.
    fn make_again(
        &mut self,
        finding: &Finding,
        before: &Observation,
        trying: &mut Trying<'_>,
    ) -> Result<Result<(), String>, WhyError> {
        let steps = match self.steps(finding, before, trying)? {
            Ok(steps) => steps,
            Err(because) => return Ok(Err(because)),
        };
        let made = trying.changes.make(&steps);
        if made.is_err() {
            trying.changes.take_back()?;
        }
        Ok(made)
    }

    /// Measures once threads that were moved have run where they are now.
    fn measure_after(
        &mut self,
        trying: &mut Trying<'_>,
        weights: &Weights,
    ) -> Result<Observation, WhyError> {
        let settled = trying.changes.wait(SETTLE, trying.interrupt);
        settled.map_err(WhyError::Interrupted)?;
        self.measure(trying, Some(weights))
    }

    fn measure(
        &mut self,
        trying: &mut Trying<'_>,
        weights: Option<&Weights>,
    ) -> Result<Observation, WhyError> {
        let Trying { asked, options, interrupt, changes, .. } = trying;
        let wait = || changes.wait(options.length, interrupt);
        self.observe(asked, weights, wait)
    }

    /// What a cure changes; says why it is not tried. Who is on the host is looked up anew: who came since must not be hit.
    fn steps(
        &self,
        finding: &Finding,
        before: &Observation,
        trying: &mut Trying<'_>,
    ) -> Result<Result<Vec<Step>, String>, WhyError> {
        let known = before.known.get(&finding.id);
        if known.is_some_and(|known| known.is_managed) {
            return Ok(Err("a daemon looks after the VM".to_owned()));
        }
        let now = self.who_is_there(&before.vms)?;
        let ground = Ground {
            procfs: &self.procfs,
            controller: self.look.controller.as_ref(),
            vms: &now.vms,
            unreadable: now.unreadable_vmms,
            processes: &before.processes,
            selected: &before.asked,
            yes: trying.options.yes,
        };
        let steps = match ground.steps(finding.id, &finding.cure.changes) {
            Ok(steps) => steps,
            Err(because) => return Ok(Err(because)),
        };
        let targets: BTreeSet<Target> = trying.changes.targets().collect();
        if steps.iter().any(|step| targets.contains(&step.target())) {
            let because = "a cure that helped has changed that already";
            return Ok(Err(because.to_owned()));
        }
        // They are ours until the end.
        for vm in now.vms.iter().filter(|vm| vm.id == finding.id) {
            match trying.claims.claim(vm.process.pid) {
                Ok(true) => {}
                Ok(false) => {
                    let because = "a daemon with another state directory, or another trial, looks after the VM";
                    return Ok(Err(because.to_owned()));
                }
                Err(error) => {
                    let because = format!(
                        "whether a daemon looks after the VM cannot be known: {HOST_CLAIMS}: {error}"
                    );
                    return Ok(Err(because));
                }
            }
        }
        Ok(Ok(steps))
    }
}

/// What was found, and then what each cure did.
pub fn text(trials: &Trials, state_dir: &Path) -> String {
    let restore = restore_command(state_dir);
    let mut text = match trials.earlier == RestoreReport::default() {
        true => String::new(),
        false => format!("what an earlier run had left: {}\n\n", trials.earlier),
    };
    text += &text::text(&trials.found);
    text += "\n";
    for (trial, number) in trials.trials.iter().zip(1..) {
        text += &one(trial, number);
    }
    if trials.trials.is_empty() {
        text += "\nnothing was tried\n";
    }
    let kept = trials.trials.iter().filter(|trial| trial.in_force).count();
    let _ = match &trials.put_back {
        Some(report) => write!(text, "\neverything is put back: {report}"),
        None if kept == 0 => write!(text, "\nnothing helped, and everything is put back"),
        None => write!(
            text,
            "\nkept: {kept} of {}; '{restore}', or the next start of the daemon, reverts it; threads that a changed thread starts from now on keep the \
             change",
            trials.trials.len()
        ),
    };
    for failure in &trials.failed {
        let _ = write!(
            text,
            "\nnot reverted, and in the journal for '{restore}': {}: {}",
            failure.what, failure.error
        );
    }
    text
}

/// The other VMs that receive the least of what they had, before and after.
fn fell_most<'a>(before: &'a Figures, after: &'a Figures) -> Vec<(&'a Share, &'a Share)> {
    let pairs = after.others.iter().filter_map(|now| {
        let then = before.others.iter().find(|then| then.id == now.id)?;
        Some((then, now))
    });
    let mut pairs: Vec<(&Share, &Share)> = pairs.collect();
    let fell = |(then, now): &(&Share, &Share)| then.received - now.received;
    pairs.sort_by(|one, two| fell(two).total_cmp(&fell(one)));
    pairs.truncate(OTHERS);
    pairs
}

fn one(trial: &Trial, number: usize) -> String {
    let heading = match trial.outcome {
        Outcome::NotTried => "not tried",
        _ => "tried",
    };
    let mut text = format!(
        "\n{heading} {number}  {} (process {}): {}\n",
        shown(&trial.vm),
        trial.pid,
        trial.kind.words()
    );
    for change in &trial.changes {
        let _ = writeln!(text, "   change: {}", shown(change));
    }
    if let (Some(before), Some(after)) = (&trial.before, &trial.after) {
        let ms = |figures: &Figures| figures.cost.0 as f64 / 1e6;
        let again = trial.again.as_ref();
        let again = again
            .map_or_else(String::new, |again| format!(", and {:.0} again without it", ms(again)));
        let _ =
            writeln!(text, "   costs {:.0} → {:.0} ms per second{again}", ms(before), ms(after));
        if let Some((before, after)) = before.waits.zip(after.waits) {
            let _ = writeln!(
                text,
                "   waits (RDY and LIM) {:.0} → {:.0} ms per second",
                before.0 as f64 / 1e6,
                after.0 as f64 / 1e6
            );
        }
        let shares = before.share.iter().zip(&after.share);
        for (before, after) in shares.chain(fell_most(before, after)) {
            let _ = writeln!(
                text,
                "   {} received {:.2} of {:.2} → {:.2} of {:.2} pCPUs due",
                shown(&after.vm),
                before.received,
                before.due,
                after.received,
                after.due
            );
        }
    }
    let verdict = match trial.outcome {
        Outcome::Helped => "it helped: ",
        Outcome::DidNotHelp => "it did not help and is put back: ",
        Outcome::Failed => "it could not be made: ",
        Outcome::NotTried => "",
    };
    let _ = writeln!(text, "   {verdict}{}", shown(&trial.because));
    text
}

#[cfg(test)]
mod tests {
    use tandem_model::Nanos;
    use tandem_model::states::interval::{HostTotals, SourceName};

    use super::*;

    fn printed(trials: &Trials) -> String {
        text(trials, Path::new(crate::config::DEFAULT_STATE_DIR))
    }

    fn figures(cost: u64, others: f64) -> Figures {
        let share = |id: u64, received| Share {
            id: VmId(id),
            vm: format!("vm{id}"),
            due: 1.0,
            received,
            waited: None,
        };
        Figures {
            runs: None,
            threads: None,
            cost: Nanos::from_millis(cost),
            waits: Some(Nanos::from_millis(cost + 5)),
            share: Some(share(1, 0.5)),
            others: vec![share(2, others)],
        }
    }

    fn trial(outcome: Outcome, because: &str) -> Trial {
        Trial {
            vm: "vm1".to_owned(),
            pid: 812,
            kind: Kind::Stacked,
            changes: vec!["vCPU 0 may run on pCPUs 0-1".to_owned()],
            outcome,
            because: because.to_owned(),
            in_force: false,
            before: None,
            after: None,
            again: None,
        }
    }

    fn trials(trials: Vec<Trial>) -> Trials {
        Trials {
            schema: SCHEMA,
            earlier: RestoreReport::default(),
            found: WhyInterval {
                schema: SCHEMA,
                start: Nanos::ZERO,
                seconds: 5.0,
                source: SourceName::Plain,
                vms: vec!["vm1".to_owned()],
                unreadable: 0,
                findings: Vec::new(),
                not_looked_for: Vec::new(),
                notes: Vec::new(),
                host: HostTotals::default(),
            },
            trials,
            put_back: Some(RestoreReport::default()),
            failed: Vec::new(),
        }
    }

    #[test]
    fn a_trial_is_what_was_changed_both_measurements_and_the_verdict() {
        let helped = Trial {
            before: Some(figures(1000, 1.0)),
            after: Some(figures(0, 0.99)),
            again: Some(figures(990, 1.0)),
            ..trial(Outcome::Helped, "its cost fell")
        };
        let said = printed(&trials(vec![helped]));
        let expected = "tried 1  vm1 (process 812): its vCPUs are stacked while pCPUs idle
   change: vCPU 0 may run on pCPUs 0-1
   costs 1000 → 0 ms per second, and 990 again without it
   waits (RDY and LIM) 1005 → 5 ms per second
   vm1 received 0.50 of 1.00 → 0.50 of 1.00 pCPUs due
   vm2 received 1.00 of 1.00 → 0.99 of 1.00 pCPUs due
   it helped: its cost fell

everything is put back: 0 changes put back, 0 needed no undoing";
        assert!(said.ends_with(expected), "{said}");
    }

    #[test]
    fn what_is_kept_is_said_with_how_to_undo_it() {
        let not_tried = Trial {
            changes: Vec::new(),
            ..trial(Outcome::NotTried, "it changes a process of the host's")
        };
        let mut all = trials(vec![not_tried]);
        let expected = "not tried 1  vm1 (process 812): its vCPUs are stacked while pCPUs idle\n   it changes a process of the host's\n";
        assert!(printed(&all).contains(expected), "{}", printed(&all));
        all.put_back = None;
        assert!(printed(&all).ends_with("nothing helped, and everything is put back"));
        all.trials[0].in_force = true;
        let said = printed(&all);
        assert!(said.contains("kept: 1 of 1; 'tandem host restore'"), "{said}");
        all.earlier.put_back = 2;
        let said = printed(&all);
        assert!(said.starts_with("what an earlier run had left: 2 changes"), "{said}");
    }

    #[test]
    fn what_is_left_to_put_back_is_a_failure() {
        let mut all = trials(Vec::new());
        assert!(all.is_put_back());
        assert!(printed(&all).contains("nothing was tried"));
        let failure = tandem_linux::restore::RestoreFailure {
            what: "the quota of /a".to_owned(),
            error: "read-only".to_owned(),
        };
        all.put_back.as_mut().unwrap().failures.push(failure.clone());
        assert!(!all.is_put_back());
        // Where what helped is kept, too.
        all.put_back = None;
        assert!(all.is_put_back());
        all.failed.push(failure);
        assert!(!all.is_put_back());
        let said = printed(&all);
        assert!(said.ends_with("for 'tandem host restore': the quota of /a: read-only"), "{said}");
    }
}
