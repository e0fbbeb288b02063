//! The knobs of cgroups: weight, hard cap and idle class, journaled with what is written, so that what somebody else sets
//! beside Tandem is known and comes back in the end.

use tandem_model::Weight;

use super::foreign::Foreign;
use super::{Actuator, ActuatorError, Made};
use crate::cgroup::{CgroupError, CgroupPath, Knob, Quota, check_length};
use crate::journal::{Entry, Key, Record};
use crate::restore::RestoreReport;

impl Actuator {
    /// Sets a cgroup's weight, rounded and brought into range; returns what was written.
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

    /// Sets a cgroup's hard cap, or takes it away.
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

    /// Journals a knob's value and what it is about to get, unless the cgroup is ours. What somebody else set meanwhile is what comes
    /// back in the end.
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
        let record = |text: &str| Record::Knob {
            cgroup: cgroup.clone(),
            id,
            knob,
            original: text.to_owned(),
        };
        let key = Key::Knob(cgroup.clone(), id, knob);
        if self.journal.knows(&key) {
            self.notice_foreign(cgroup, knob, &record)?;
        } else {
            if cgroup.is_root() {
                return Err(CgroupError::RootHasNone(knob).into());
            }
            check_length(cgroup)?;
            self.enable_above(cgroup)?;
            let mut original = self.controller.read_knob(cgroup, knob)?;
            // In the idle class the file shows what cannot be written: the kernel gives the default to a cgroup that leaves it.
            if knob == Knob::Weight && self.controller.is_idle(cgroup)? == Some(true) {
                original = text_of(self.controller.default_weight());
            }
            let user = self.counted_for(cgroup);
            self.append_of(record(&original), user)?;
        }
        self.will_write(record(text))?;
        Ok(Some(key))
    }

    /// Whether it was made here. One that somebody else made in its place is nobody's whose knobs are set: ours is gone.
    fn is_made(&self, cgroup: &CgroupPath) -> Result<bool, CgroupError> {
        if !self.journal.knows(&Key::Created(cgroup.clone())) {
            return Ok(false);
        }
        match self.made(cgroup) {
            Made::Ours => Ok(true),
            Made::Others | Made::Gone => Err(CgroupError::Gone(cgroup.clone())),
        }
    }

    /// A knob that was announced has its value now, or still the one before.
    fn after_knob<T>(
        &mut self,
        key: Option<Key>,
        outcome: Result<T, CgroupError>,
    ) -> Result<T, ActuatorError> {
        if let (Some(key), Err(_)) = (key, &outcome) {
            self.journal.was_not_written(&key);
        }
        Ok(outcome?)
    }

    /// What a knob has that was never written here somebody else set: it is what comes back in the end.
    fn notice_foreign(
        &mut self,
        cgroup: &CgroupPath,
        knob: Knob,
        record: &dyn Fn(&str) -> Record,
    ) -> Result<(), ActuatorError> {
        let text = self.controller.read_knob(cgroup, knob)?;
        let now = record(&text);
        if self.journal.is_ours(&now) {
            return Ok(self.journal.still_has(now)?);
        }
        if knob == Knob::Weight && self.controller.is_idle(cgroup)? == Some(true) {
            return Ok(());
        }
        self.journal.replace_original(now)?;
        self.foreign.insert((cgroup.clone(), knob), text);
        Ok(())
    }

    /// Whether [`Self::take_foreign`] will tell of this knob.
    pub fn tells_of(&self, cgroup: &CgroupPath, knob: Knob) -> bool {
        self.foreign.contains_key(&(cgroup.clone(), knob))
    }

    /// The knobs that somebody else set since the last call, and that have our values again.
    pub fn take_foreign(&mut self) -> Vec<Foreign> {
        let told = std::mem::take(&mut self.foreign).into_iter();
        told.map(|((cgroup, knob), text)| Foreign { cgroup, knob, text }).collect()
    }

    /// Puts a cgroup into the idle class, or takes it out. Out of it, it has the kernel's default weight: the caller sets its own
    /// again.
    pub fn set_idle(&mut self, cgroup: &CgroupPath, idle: bool) -> Result<(), ActuatorError> {
        let key = self.before_idle(cgroup, idle)?;
        let outcome = self.controller.set_idle(cgroup, idle);
        self.after_knob(key, outcome)
    }

    /// Journals what putting a cgroup into the idle class and taking it out again with this weight changes, for whoever then does so
    /// by itself. [`Self::prepare_weight`] says it of each other weight, once that somebody has begun.
    pub fn prepare_idle(
        &mut self,
        cgroup: &CgroupPath,
        weight: Weight,
    ) -> Result<(), ActuatorError> {
        if self.is_made(cgroup)? {
            // To find out whether there is such a class.
            self.before_idle(cgroup, true)?;
            return Ok(());
        }
        let weighs = self.weight_record(cgroup, weight)?;
        let idle = self.knob_record(cgroup, Knob::Idle, "0".to_owned())?;
        if self.journal.knows(&idle.key())
            && self.journal.written(&weighs.key()).last() == Some(&weighs)
        {
            return Ok(());
        }
        self.before_idle(cgroup, true)?;
        self.will_write(idle)?;
        self.will_write(weighs)
    }

    /// Whoever puts a cgroup into the idle class and takes it out again gives it another weight from now on. What it has in the meantime tells
    /// nothing: between two looks at it, it may have left the class, and what the class shows would be taken for somebody's weight.
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
        // It has that one between two steps.
        let default = self.weight_record(cgroup, self.controller.default_weight())?;
        self.will_write(default)?;
        self.will_write(weighs)
    }

    /// What setting a cgroup's weight gives it.
    fn weight_record(&self, cgroup: &CgroupPath, weight: Weight) -> Result<Record, ActuatorError> {
        let text = text_of(self.controller.writable(weight));
        self.knob_record(cgroup, Knob::Weight, text)
    }

    fn knob_record(
        &self,
        cgroup: &CgroupPath,
        knob: Knob,
        text: String,
    ) -> Result<Record, ActuatorError> {
        Ok(Record::Knob {
            cgroup: cgroup.clone(),
            id: self.controller.id(cgroup)?,
            knob,
            original: text,
        })
    }

    /// Journals what one step into the idle class or out of it changes.
    fn before_idle(
        &mut self,
        cgroup: &CgroupPath,
        idle: bool,
    ) -> Result<Option<Key>, ActuatorError> {
        // In this order: taking it out of the class loses the weight, which is undone after that.
        let default = text_of(self.controller.default_weight());
        self.before_knob(cgroup, Knob::Weight, &default)?;
        if self.controller.is_idle(cgroup)?.is_none() {
            return Err(CgroupError::NoIdleClass.into());
        }
        self.before_knob(cgroup, Knob::Idle, if idle { "1" } else { "0" })
    }

    /// Gives one knob of a cgroup its own value back, and forgets it. A weight is none in the idle class, so that goes with it.
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

    /// The operator changed a knob of a cgroup that is not ours: it is not ours to put back.
    pub fn forget_knob(&mut self, cgroup: &CgroupPath, knob: Knob) -> Result<(), ActuatorError> {
        let id = self.controller.id(cgroup)?;
        let key = Key::Knob(cgroup.clone(), id, knob);
        Ok(self.journal.forget(&key)?)
    }
}

fn text_of(weight: Weight) -> String {
    format!("{:.0}", weight.value())
}
