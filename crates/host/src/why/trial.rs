//! `tandem host why --try`: applies the remedies of the findings one at a time, and reports the effect of each.
//!
//! ```text
//! measure ─► costliest untried finding ─► apply ─► measure ─► revert ─► measure ─► helped?
//!                      ▲                                                    no │      │ yes
//!                      ├───────────────────────────────────────────────────────┘      │
//!                      └─────────────────────── measure ◄─ apply again and keep ◄─────┘
//! ```
//!
//! Each remedy is compared with the host without it, both before and after.
//! An effect that starts or ends for another reason is therefore not attributed to the remedy.
//! The last measurement is the baseline of the next remedy.
//!
//! The operator stays in control:
//! - Only the named VMs are changed.
//!   Host settings (processes, cgroups shared with other VMs) need `yes`.
//! - Every change is written to the daemon's journal first.
//!   Ctrl-C, an error or a panic reverts everything at once; after kill -9, `tandem host restore` or the next start does.
//!   Settings that children inherited from changed threads are reverted too.
//! - Settings that others write during or after a trial stay.
//! - At the end everything is reverted, unless remedies that helped are to be kept.
//!   Kept changes stay in the journal, so that `tandem host restore` reverts them.
//! - If a daemon uses the same state directory, no trial runs, because the daemon holds its lock.
//!   VMs that a daemon with another state directory manages are not changed ([`Claims`]).
//!
//! All measurements have the same length and source. [`super::verdict`] defines when a remedy helped.

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
use super::{Observation, SCHEMA, Why, WhyError, WhyInterval, select_vms, text};
use crate::config::restore_command;
use crate::select::VmPattern;
use crate::watch::LookError;
use crate::weights::Weights;

/// Delay between a change and the next measurement, in which moved threads run at their new place.
const SETTLE: Duration = Duration::from_millis(200);

/// Maximum number of other VMs shown per trial: on a host of a thousand, most are unaffected.
const OTHERS: usize = 3;

/// Options of the trials.
#[derive(Clone, Copy, Debug)]
pub struct TryOptions {
    /// Length of each measurement.
    pub length: Duration,
    /// Whether remedies that helped are kept.
    pub keep: bool,
    /// Whether unnamed VMs and host settings may be changed.
    pub yes: bool,
}

/// Outcome of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The remedy helped.
    Helped,
    /// The remedy did not help and was reverted.
    DidNotHelp,
    /// The kernel refused a change, or a thread had ended; all changes were reverted.
    Failed,
    /// The remedy was not tried.
    NotTried,
}

/// Trial of one remedy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// The VM's name.
    pub vm: String,
    /// PID of its process.
    pub pid: u32,
    /// Kind of the finding.
    pub kind: Kind,
    /// The changes that were made or planned.
    pub changes: Vec<String>,
    /// The outcome.
    pub outcome: Outcome,
    /// The reason for the outcome.
    pub because: String,
    /// Whether the remedy is still applied.
    pub in_force: bool,
    /// Measured before the change; `None` if the remedy was not tried.
    pub before: Option<Figures>,
    /// Measured with the change.
    pub after: Option<Figures>,
    /// Measured after the change was reverted.
    pub again: Option<Figures>,
}

/// Report of all trials.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trials {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Changes of an earlier run (killed, or with `--keep`) that were reverted before the first measurement.
    pub earlier: RestoreReport,
    /// The findings before the first change.
    pub found: WhyInterval,
    /// The trials, in order.
    pub trials: Vec<Trial>,
    /// The changes that were reverted at the end; `None` if remedies are kept.
    pub put_back: Option<RestoreReport>,
    /// With kept remedies: changes that could not be reverted. They stay in the journal.
    pub failed: Vec<RestoreFailure>,
}

impl Trials {
    /// Whether everything except kept remedies is reverted.
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

/// State of the trials in progress.
struct Trying<'a> {
    asked: &'a [VmPattern],
    options: &'a TryOptions,
    interrupt: &'a Interrupt,
    changes: &'a mut Changes,
    /// Claims on the VMs under trial, visible to other daemons of the host.
    claims: Claims,
}

impl Why {
    /// Tries the remedies for the VMs that match `asked`, or for all VMs if `asked` is empty.
    pub fn try_cures(
        &mut self,
        asked: &[VmPattern],
        options: &TryOptions,
        interrupt: &Interrupt,
    ) -> Result<Trials, WhyError> {
        if asked.is_empty() && !options.yes {
            return Err(WhyError::NoVmNamed);
        }
        // Check the names before reverting kept remedies of an earlier run: a mistyped name must not cost these.
        let vms = self.look.scan()?.vms;
        select_vms(asked, &vms, self.look.controller.as_ref())?;
        let claims = Claims::open(Path::new(HOST_CLAIMS));
        let claims = claims.map_err(tandem_linux::actuator::ActuatorError::Journal)?;
        let controller = cgroup::open(&self.procfs).map_err(LookError::from)?;
        let (actuator, earlier) = Actuator::open(controller, &self.look.state_dir)?;
        if !earlier.is_complete() {
            // The rest of the journal is left to `tandem host restore`.
            return Err(WhyError::EarlierLeft(earlier));
        }
        let mut changes = Changes::new(self.procfs.clone(), actuator);
        let trying = Trying { asked, options, interrupt, changes: &mut changes, claims };
        let tried = self.try_all(trying);
        // On an error nothing is kept. Restore here, because dropping the actuator reverts without a report.
        let (found, mut trials) = match tried {
            Ok(tried) => tried,
            Err(error) => {
                let report = changes.restore();
                return Err(if report.is_complete() {
                    error
                } else {
                    WhyError::NotPutBack { error: Box::new(error), report }
                });
            }
        };
        let (put_back, failed) = if options.keep {
            (None, changes.keep().failures)
        } else {
            trials.iter_mut().for_each(|trial| trial.in_force = false);
            (Some(changes.restore()), Vec::new())
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
                // The change was applied for a moment, so the earlier measurement is stale.
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

    /// Applies a remedy that helped again.
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

    /// Waits for moved threads to run at their new place, then measures.
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

    /// Returns the steps of a remedy, or the reason not to try it.
    /// The VMs are discovered from scratch, so that VMs that started since then are not changed.
    fn steps(
        &self,
        finding: &Finding,
        before: &Observation,
        trying: &mut Trying<'_>,
    ) -> Result<Result<Vec<Step>, String>, WhyError> {
        let known = before.known.get(&finding.id);
        if known.is_some_and(|known| known.is_managed) {
            return Ok(Err("a daemon manages the VM".to_owned()));
        }
        let now = self.rescan(&before.vms)?;
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
            let because = "a remedy that helped has already changed this";
            return Ok(Err(because.to_owned()));
        }
        // Hold the claims until the end.
        for vm in now.vms.iter().filter(|vm| vm.id == finding.id) {
            match trying.claims.claim(vm.process.pid) {
                Ok(true) => {}
                Ok(false) => {
                    let because =
                        "a daemon with another state directory, or another trial, manages the VM";
                    return Ok(Err(because.to_owned()));
                }
                Err(error) => {
                    let because = format!(
                        "cannot tell whether a daemon manages the VM: {HOST_CLAIMS}: {error}"
                    );
                    return Ok(Err(because));
                }
            }
        }
        Ok(Ok(steps))
    }
}

/// Formats the findings, then the effect of each remedy.
pub fn text(trials: &Trials, state_dir: &Path) -> String {
    let restore = restore_command(state_dir);
    let mut text = if trials.earlier == RestoreReport::default() {
        String::new()
    } else {
        format!("left by an earlier run: {}\n\n", trials.earlier)
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
        Some(report) => write!(text, "\neverything is reverted: {report}"),
        None if kept == 0 => write!(text, "\nno remedy helped, and everything is reverted"),
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

/// Returns the other VMs that lost the most pCPU time, before and after.
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
        Outcome::DidNotHelp => "it did not help and is reverted: ",
        Outcome::Failed => "it could not be applied: ",
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
    fn prints_changes_measurements_and_verdict() {
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

everything is reverted: 0 changes reverted, 0 needed no revert";
        assert!(said.ends_with(expected), "{said}");
    }

    #[test]
    fn prints_kept_remedies_with_undo_command() {
        let not_tried = Trial {
            changes: Vec::new(),
            ..trial(Outcome::NotTried, "it changes a process of the host's")
        };
        let mut all = trials(vec![not_tried]);
        let expected = "not tried 1  vm1 (process 812): its vCPUs are stacked while pCPUs idle\n   it changes a process of the host's\n";
        assert!(printed(&all).contains(expected), "{}", printed(&all));
        all.put_back = None;
        assert!(printed(&all).ends_with("no remedy helped, and everything is reverted"));
        all.trials[0].in_force = true;
        let said = printed(&all);
        assert!(said.contains("kept: 1 of 1; 'tandem host restore'"), "{said}");
        all.earlier.put_back = 2;
        let said = printed(&all);
        assert!(said.starts_with("left by an earlier run: 2 changes"), "{said}");
    }

    #[test]
    fn unreverted_changes_are_failures() {
        let mut all = trials(Vec::new());
        assert!(all.is_put_back());
        assert!(printed(&all).contains("nothing was tried"));
        let failure = tandem_linux::restore::RestoreFailure {
            what: "the quota of /a".to_owned(),
            error: "read-only".to_owned(),
        };
        all.put_back.as_mut().unwrap().failures.push(failure.clone());
        assert!(!all.is_put_back());
        // Also with kept remedies.
        all.put_back = None;
        assert!(all.is_put_back());
        all.failed.push(failure);
        assert!(!all.is_put_back());
        let said = printed(&all);
        assert!(said.ends_with("for 'tandem host restore': the quota of /a: read-only"), "{said}");
    }
}
