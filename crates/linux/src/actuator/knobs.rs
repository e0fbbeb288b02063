//! The knobs of cgroups: weight, hard cap and idle class.
//!
//! The journal has the values that Tandem wrote, so the actuator recognises foreign values and the restore reverts to them.

use tandem_model::Weight;

use super::foreign::Foreign;
use super::{Actuator, ActuatorError, IdleSwitch, Made};
use crate::cgroup::{CgroupError, CgroupId, CgroupPath, Knob, Quota, check_length};
use crate::journal::{Entry, Key, Record};
use crate::restore::RestoreReport;

impl Actuator {
    /// Sets a cgroup's weight, rounded and clamped to the valid range; returns the written weight.
    pub fn set_weight(
        &mut self,
        cgroup: &CgroupPath,
        weight: Weight,
    ) -> Result<Weight, ActuatorError> {
        let written = self.controller.writable(weight);
        let key = self.before_knob(cgroup, Knob::Weight, &text_of(written))?;
        let outcome = self.controller.set_weight(cgroup, written);
        self.after_knob(key, outcome)
    }

    /// Sets or removes a cgroup's hard cap.
    pub fn set_quota(
        &mut self,
        cgroup: &CgroupPath,
        quota: Option<Quota>,
    ) -> Result<(), ActuatorError> {
        let text = match quota {
            Some(quota) => format!("{} {}", quota.quota_us, quota.period_us),
            None => "max 100000".to_owned(),
        };
        let key = self.before_knob(cgroup, Knob::Quota, &text)?;
        let outcome = self.controller.set_quota(cgroup, quota);
        self.after_knob(key, outcome)
    }

    /// Journals a knob's current and next value, unless the cgroup is ours.
    /// A foreign current value becomes the original.
    fn before_knob(
        &mut self,
        cgroup: &CgroupPath,
        knob: Knob,
        text: &str,
    ) -> Result<Option<Key>, ActuatorError> {
        if self.is_made(cgroup)? {
            return Ok(None);
        }
        let id = self.controller.id(cgroup)?;
        let record = |text: &str| record_of(cgroup, id, knob, text);
        let key = Key::Knob(cgroup.clone(), id, knob);
        if self.journal.knows(&key) {
            self.notice_foreign(cgroup, id, knob)?;
        } else {
            if cgroup.is_root() {
                return Err(CgroupError::RootHasNone(knob).into());
            }
            check_length(cgroup)?;
            self.enable_above(cgroup)?;
            let mut original = self.controller.read_knob(cgroup, knob)?;
            // In the idle class the file shows a value that cannot be written; a cgroup that leaves it gets the kernel's default.
            if knob == Knob::Weight && self.controller.is_idle(cgroup)? == Some(true) {
                original = text_of(self.controller.default_weight());
            }
            let user = self.charged_user(cgroup);
            self.append_of(record(&original), user)?;
        }
        self.will_write(record(text))?;
        Ok(Some(key))
    }

    /// Whether Tandem created this cgroup. If another process has replaced it, ours is gone.
    fn is_made(&self, cgroup: &CgroupPath) -> Result<bool, CgroupError> {
        if !self.journal.knows(&Key::Created(cgroup.clone())) {
            return Ok(false);
        }
        match self.made(cgroup) {
            Made::Ours => Ok(true),
            Made::Others | Made::Gone => Err(CgroupError::Gone(cgroup.clone())),
        }
    }

    /// Completes an announced write: after an error the knob still has its former value.
    fn after_knob<T>(
        &mut self,
        key: Option<Key>,
        outcome: Result<T, CgroupError>,
    ) -> Result<T, ActuatorError> {
        if let (Some(key), Err(_)) = (key, &outcome) {
            self.journal.write_failed(&key);
        }
        Ok(outcome?)
    }

    /// Makes a foreign value of a knob the original.
    fn notice_foreign(
        &mut self,
        cgroup: &CgroupPath,
        id: CgroupId,
        knob: Knob,
    ) -> Result<(), ActuatorError> {
        let text = self.controller.read_knob(cgroup, knob)?;
        let now = record_of(cgroup, id, knob, &text);
        if self.journal.is_ours(&now) {
            return Ok(self.journal.keep_current(now)?);
        }
        if knob == Knob::Weight && self.controller.is_idle(cgroup)? == Some(true) {
            return Ok(());
        }
        self.journal.replace_original(now)?;
        self.foreign.insert((cgroup.clone(), knob), text);
        Ok(())
    }

    /// Whether [`Self::take_foreign`] will return this knob.
    pub fn has_foreign(&self, cgroup: &CgroupPath, knob: Knob) -> bool {
        self.foreign.contains_key(&(cgroup.clone(), knob))
    }

    /// The knobs that another process set since the last call and that have our values again.
    pub fn take_foreign(&mut self) -> Vec<Foreign> {
        let foreign = std::mem::take(&mut self.foreign).into_iter();
        foreign.map(|((cgroup, knob), text)| Foreign { cgroup, knob, text }).collect()
    }

    /// Moves a cgroup into the idle class, or out of it.
    /// Outside it has the kernel's default weight until the caller sets another.
    pub fn set_idle(&mut self, cgroup: &CgroupPath, idle: bool) -> Result<(), ActuatorError> {
        let key = self.before_idle(cgroup, idle)?;
        let outcome = self.controller.set_idle(cgroup, idle);
        self.after_knob(key, outcome)
    }

    /// Journals the changes of a switch of a cgroup's idle class with this weight, and returns the switch; `goes_on` if another one is in use.
    pub fn idle_switch(
        &mut self,
        cgroup: &CgroupPath,
        weight: Weight,
        goes_on: bool,
    ) -> Result<IdleSwitch, ActuatorError> {
        if goes_on {
            self.prepare_weight(cgroup, weight)?;
        } else {
            self.prepare_idle(cgroup, weight)?;
        }
        Ok(IdleSwitch::journaled(cgroup.clone(), weight))
    }

    /// Journals the changes for a caller that will itself move a cgroup into the idle class and out of it with this weight.
    /// [`Self::prepare_weight`] announces each later weight.
    pub fn prepare_idle(
        &mut self,
        cgroup: &CgroupPath,
        weight: Weight,
    ) -> Result<(), ActuatorError> {
        if self.is_made(cgroup)? {
            // Fails if the kernel has no such class.
            self.before_idle(cgroup, true)?;
            return Ok(());
        }
        let weighs = self.weight_record(cgroup, weight)?;
        let default = self.weight_record(cgroup, self.controller.default_weight())?;
        let enter = self.knob_record(cgroup, Knob::Idle, "1")?;
        let leave = self.knob_record(cgroup, Knob::Idle, "0")?;
        if self.journal.written(&leave.key()).ends_with(&[enter, leave.clone()])
            && self.journal.written(&weighs.key()).ends_with(&[default, weighs.clone()])
        {
            return self.notice_foreign(cgroup, self.controller.id(cgroup)?, Knob::Weight);
        }
        self.before_idle(cgroup, true)?;
        self.will_write(leave)?;
        self.will_write(weighs)
    }

    /// Announces another weight of a cgroup that a caller moves into the idle class and out of it ([`Self::prepare_idle`]).
    /// Does not compare the current weight: between two reads the cgroup may leave the class, whose displayed weight would then look foreign.
    pub fn prepare_weight(
        &mut self,
        cgroup: &CgroupPath,
        weight: Weight,
    ) -> Result<(), ActuatorError> {
        if self.is_made(cgroup)? {
            return Ok(());
        }
        let weighs = self.weight_record(cgroup, weight)?;
        if self.journal.written(&weighs.key()).last() == Some(&weighs) {
            return Ok(());
        }
        if !self.journal.knows(&weighs.key()) {
            return self.prepare_idle(cgroup, weight);
        }
        // The cgroup has the default weight between two steps.
        let default = self.weight_record(cgroup, self.controller.default_weight())?;
        self.will_write(default)?;
        self.will_write(weighs)
    }

    /// The record of setting a cgroup's weight.
    fn weight_record(&self, cgroup: &CgroupPath, weight: Weight) -> Result<Record, ActuatorError> {
        let text = text_of(self.controller.writable(weight));
        self.knob_record(cgroup, Knob::Weight, &text)
    }

    fn knob_record(
        &self,
        cgroup: &CgroupPath,
        knob: Knob,
        text: &str,
    ) -> Result<Record, ActuatorError> {
        Ok(record_of(cgroup, self.controller.id(cgroup)?, knob, text))
    }

    /// Journals one step into the idle class or out of it.
    fn before_idle(
        &mut self,
        cgroup: &CgroupPath,
        idle: bool,
    ) -> Result<Option<Key>, ActuatorError> {
        // In this order: leaving the class resets the weight, which the undo then sets.
        let default = text_of(self.controller.default_weight());
        self.before_knob(cgroup, Knob::Weight, &default)?;
        if self.controller.is_idle(cgroup)?.is_none() {
            return Err(CgroupError::NoIdleClass.into());
        }
        self.before_knob(cgroup, Knob::Idle, if idle { "1" } else { "0" })
    }

    /// Reverts one knob of a cgroup and forgets it.
    /// A cgroup has no weight in the idle class, so releasing the weight releases the class, too.
    pub fn release_knob(
        &mut self,
        cgroup: &CgroupPath,
        knob: Knob,
    ) -> Result<RestoreReport, ActuatorError> {
        let mut report = RestoreReport::default();
        let goes = |k: Knob| k == knob || (knob == Knob::Weight && k == Knob::Idle);
        self.undo_where(
            &mut report,
            |record| matches!(record, Record::Knob { cgroup: c, knob: k, .. } if c == cgroup && goes(*k)),
        );
        self.disable_unneeded(&mut report);
        Ok(report)
    }

    /// Forgets a knob that the operator changed: a restore leaves it.
    pub fn forget_knob(&mut self, cgroup: &CgroupPath, knob: Knob) -> Result<(), ActuatorError> {
        let id = self.controller.id(cgroup)?;
        let key = Key::Knob(cgroup.clone(), id, knob);
        Ok(self.journal.forget(&key)?)
    }
}

fn record_of(cgroup: &CgroupPath, id: CgroupId, knob: Knob, text: &str) -> Record {
    Record::Knob { cgroup: cgroup.clone(), id, knob, original: text.to_owned() }
}

fn text_of(weight: Weight) -> String {
    format!("{:.0}", weight.value())
}
