//! `tandem host why --try`: tries the cures of what was found, one at a time, and says what each did.
//!
//! ```text
//! measure ─► the costliest finding not tried yet ─► change ─► measure ─► helped? ─► stays, and is what the next is compared with
//!                      ▲                                         │
//!                      └──────────────── put back ◄──────────────┘ no
//! ```
//!
//! The operator stays in charge:
//! - only VMs that were named are changed, and settings of the host (its processes, cgroups that are not one VM's alone) only with `yes`;
//! - every change goes through the daemon's journal first: Ctrl-C, an error or a panic put everything back at once, and after kill -9
//!   `tandem host restore` or the next start does;
//! - at the end everything is put back, unless what helped is to be kept. That stays in the journal, so that `tandem host restore` undoes it;
//! - where a daemon acts on the same state directory, nothing can be tried: its lock is held.
//!
//! Both measurements take equally long and are made by the same source. What counts as help is in [`super::verdict`].

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;
use tandem_linux::actuator::Actuator;
use tandem_linux::cgroup;
use tandem_linux::interrupt::Interrupt;
use tandem_linux::restore::RestoreReport;
use tandem_observe::findings::Finding;
use tandem_observe::findings::Kind;
use tandem_policy::VmId;

use super::Observation;
use super::SCHEMA;
use super::Why;
use super::WhyError;
use super::WhyInterval;
use super::steps;
use super::steps::Ground;
use super::steps::Step;
use super::steps::Target;
use super::text;
use super::text::shown;
use super::verdict::Figures;
use super::verdict::Share;
use super::verdict::judge;

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
}

impl Trials {
    /// Whether everything that is not to be kept is as it was.
    pub fn is_put_back(&self) -> bool {
        self.put_back
            .as_ref()
            .is_none_or(RestoreReport::is_complete)
    }
}

impl Observation {
    fn shares(&self) -> Vec<Share> {
        let pcpus =
            |time: tandem_policy::Nanos| time.0 as f64 / self.interval.length.0.max(1) as f64;
        let measured = self.interval.vms.iter();
        let shares = measured.filter_map(|vm| {
            let known = self.known.get(&vm.vm)?;
            Some(Share {
                id: vm.vm,
                vm: known.name.clone(),
                due: pcpus(known.due),
                received: pcpus(known.received),
            })
        });
        shares.collect()
    }

    fn figures(&self, finding: &Finding) -> Figures {
        Figures::of(finding, &self.interval, &self.found.findings, self.shares())
    }
}

impl Why {
    /// Tries the cures of what is wrong with the VM of that name or process number, or with all.
    pub fn try_cures(
        &mut self,
        asked: Option<&str>,
        options: &TryOptions,
        interrupt: &Interrupt,
    ) -> Result<Trials, WhyError> {
        if asked.is_none() && !options.yes {
            return Err(WhyError::NobodyNamed);
        }
        let controller = cgroup::open(&self.procfs)?;
        let (mut actuator, earlier) = Actuator::open(controller, &self.state_dir)?;
        if !earlier.is_complete() {
            // What stays in the journal is for `tandem host restore`.
            return Err(WhyError::EarlierLeft(earlier));
        }
        let tried = self.try_all(asked, options, interrupt, &mut actuator);
        // On an error nothing is kept, and dropping the actuator would put back without a word.
        let (found, mut trials) = match tried {
            Ok(tried) => tried,
            Err(error) => {
                let report = actuator.restore()?;
                return Err(match report.is_complete() {
                    true => error,
                    false => WhyError::NotPutBack {
                        error: Box::new(error),
                        report,
                    },
                });
            }
        };
        let put_back = match options.keep {
            true => {
                actuator.abandon();
                None
            }
            false => {
                trials.iter_mut().for_each(|trial| trial.in_force = false);
                Some(actuator.restore()?)
            }
        };
        Ok(Trials {
            schema: SCHEMA,
            earlier,
            found,
            trials,
            put_back,
        })
    }

    fn try_all(
        &mut self,
        asked: Option<&str>,
        options: &TryOptions,
        interrupt: &Interrupt,
        actuator: &mut Actuator,
    ) -> Result<(WhyInterval, Vec<Trial>), WhyError> {
        let mut before = self.observe(asked, None, || interrupt.sleep(options.length))?;
        let found = before.found.clone();
        let mut tried: BTreeSet<(VmId, Kind)> = BTreeSet::new();
        let mut in_force: BTreeSet<Target> = BTreeSet::new();
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
                changes: finding
                    .cure
                    .changes
                    .iter()
                    .map(ToString::to_string)
                    .collect(),
                outcome: Outcome::NotTried,
                because: String::new(),
                in_force: false,
                before: None,
                after: None,
            };
            let steps = match self.steps(&finding, &before, options.yes, &in_force) {
                Ok(steps) => steps,
                Err(because) => {
                    trial.because = because;
                    trials.push(trial);
                    continue;
                }
            };
            trial.before = Some(before.figures(&finding));
            if let Err(because) = steps::make(actuator, &steps) {
                steps::take_back(actuator, &steps)?;
                (trial.outcome, trial.because) = (Outcome::Failed, because);
                trials.push(trial);
                continue;
            }
            interrupt.sleep(SETTLE).map_err(WhyError::Interrupted)?;
            let wait = || interrupt.sleep(options.length);
            let after = self.observe(asked, Some(&before.weights), wait)?;
            let figures = after.figures(&finding);
            let verdict = trial.before.as_ref().map(|before| judge(before, &figures));
            trial.after = Some(figures);
            let helped = verdict.as_ref().is_some_and(|verdict| verdict.helped);
            trial.because = verdict.map_or_else(String::new, |verdict| verdict.because);
            trial.in_force = helped;
            match helped {
                true => {
                    trial.outcome = Outcome::Helped;
                    in_force.extend(steps.iter().map(Step::target));
                    before = after;
                }
                false => {
                    trial.outcome = Outcome::DidNotHelp;
                    steps::take_back(actuator, &steps)?;
                }
            }
            trials.push(trial);
        }
    }

    /// What a cure changes; says why it is not tried.
    fn steps(
        &self,
        finding: &Finding,
        before: &Observation,
        yes: bool,
        in_force: &BTreeSet<Target>,
    ) -> Result<Vec<Step>, String> {
        let known = before.known.get(&finding.id);
        if known.is_some_and(|known| known.is_managed) {
            return Err("a daemon looks after the VM".to_owned());
        }
        let ground = Ground {
            procfs: &self.procfs,
            controller: self.controller.as_ref(),
            vms: &before.vms,
            selected: &before.asked,
            yes,
        };
        let steps = ground.steps(finding.id, &finding.cure.changes)?;
        match steps.iter().any(|step| in_force.contains(&step.target())) {
            true => Err("a cure that helped has changed that already".to_owned()),
            false => Ok(steps),
        }
    }
}

/// What was found, and then what each cure did.
pub fn text(trials: &Trials) -> String {
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
            "\nkept: {kept} of {}; 'tandem host restore', or the next start of the daemon, puts it back",
            trials.trials.len()
        ),
    };
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
    let mut text = format!(
        "\ntried {number}  {} (process {}): {}\n",
        shown(&trial.vm),
        trial.pid,
        trial.kind.words()
    );
    for change in &trial.changes {
        let _ = writeln!(text, "   change: {}", shown(change));
    }
    if let (Some(before), Some(after)) = (&trial.before, &trial.after) {
        let ms = |figures: &Figures| figures.cost.0 as f64 / 1e6;
        let _ = writeln!(
            text,
            "   costs {:.0} → {:.0} ms per second",
            ms(before),
            ms(after)
        );
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
        Outcome::Helped => "it helped",
        Outcome::DidNotHelp => "it did not help and is put back",
        Outcome::Failed => "it could not be made",
        Outcome::NotTried => "not tried",
    };
    let _ = writeln!(text, "   {verdict}: {}", shown(&trial.because));
    text
}

#[cfg(test)]
mod tests {
    use tandem_policy::Nanos;
    use tandem_policy::states::interval::HostTotals;
    use tandem_policy::states::interval::SourceName;

    use super::*;

    fn figures(cost: u64, others: f64) -> Figures {
        let share = |id: u64, received| Share {
            id: VmId(id),
            vm: format!("vm{id}"),
            due: 1.0,
            received,
        };
        Figures {
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
        }
    }

    #[test]
    fn a_trial_is_what_was_changed_both_measurements_and_the_verdict() {
        let helped = Trial {
            before: Some(figures(1000, 1.0)),
            after: Some(figures(0, 0.99)),
            ..trial(Outcome::Helped, "its cost fell")
        };
        let said = text(&trials(vec![helped]));
        let expected = "tried 1  vm1 (process 812): its vCPUs are stacked while pCPUs idle
   change: vCPU 0 may run on pCPUs 0-1
   costs 1000 → 0 ms per second
   waits (RDY and LIM) 1005 → 5 ms per second
   vm1 received 0.50 of 1.00 → 0.50 of 1.00 pCPUs due
   vm2 received 1.00 of 1.00 → 0.99 of 1.00 pCPUs due
   it helped: its cost fell

everything is put back: 0 changes put back, 0 needed no undoing";
        assert!(said.ends_with(expected), "{said}");
    }

    #[test]
    fn what_is_kept_is_said_with_how_to_undo_it() {
        let not_tried = trial(Outcome::NotTried, "it changes a process of the host's");
        let mut all = trials(vec![not_tried]);
        assert!(text(&all).contains("   not tried: it changes a process"));
        all.put_back = None;
        assert!(text(&all).ends_with("nothing helped, and everything is put back"));
        all.trials[0].in_force = true;
        let said = text(&all);
        assert!(
            said.contains("kept: 1 of 1; 'tandem host restore'"),
            "{said}"
        );
        all.earlier.put_back = 2;
        let said = text(&all);
        assert!(
            said.starts_with("what an earlier run had left: 2 changes"),
            "{said}"
        );
    }

    #[test]
    fn what_is_left_to_put_back_is_a_failure() {
        let mut all = trials(Vec::new());
        assert!(all.is_put_back());
        assert!(text(&all).contains("nothing was tried"));
        let failure = tandem_linux::restore::RestoreFailure {
            what: "the quota of /a".to_owned(),
            error: "read-only".to_owned(),
        };
        all.put_back.as_mut().unwrap().failures.push(failure);
        assert!(!all.is_put_back());
    }
}
