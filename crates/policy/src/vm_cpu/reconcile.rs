//! Application of decisions to a VM's CPU settings.
//!
//! A swap of two vCPUs is two moves, and two more changes if the vCPUs' own weights or nice values differ.
//! Half of a swap would be worse than none: both vCPUs would share a pCPU, and no policy would swap them later.
//! So the moves come first, then the other changes.
//! If one fails, or a thread has ended, the earlier ones are undone in reverse order.
//! Between the two moves both vCPUs are on one pCPU, for some microseconds.
//!
//! Most failures are due to a vCPU's cpuset, for example if libvirt pinned it.
//! Policies see cpusets and plan no such swap, but a cpuset may change meanwhile.

use std::collections::BTreeSet;

use tandem_model::decision::Swap;
use tandem_model::{Target, VmId};

use super::{Decision, Knob, Knobs, Share, VcpuCpu, VmCpu, Weight};

/// Decisions that are applied together: one, or those of a swap.
#[derive(Clone, Debug, PartialEq)]
pub struct Step<'a> {
    /// The VM.
    pub vm: VmId,
    /// The decisions, in order.
    pub decisions: Vec<&'a Decision>,
    /// The swap.
    pub swap: Option<Swap>,
}

/// Why a step was not made: the error of the refused change, and those of undoing earlier ones.
pub type Refused<E> = Vec<E>;

/// Returns the steps of decisions in order; a swap at the position of the first of its decisions.
///
/// A swap of which another policy decided one affinity is left out.
pub fn steps(decisions: &[Decision]) -> impl Iterator<Item = Step<'_>> {
    let mut seen: BTreeSet<Swap> = BTreeSet::new();
    decisions.iter().filter_map(move |decision| {
        let vm = decision.vm();
        let Some(swap) = decision.swap() else {
            return Some(Step { vm, decisions: vec![decision], swap: None });
        };
        if !seen.insert(swap) {
            return None;
        }
        let parts = decisions.iter().filter(|decision| decision.swap() == Some(swap));
        let (moves, others): (Vec<&Decision>, Vec<&Decision>) =
            parts.partition(|decision| decision.knob() == Knob::Affinity);
        let decisions = [&moves[..], &others].concat();
        (moves.len() == 2).then_some(Step { vm, decisions, swap: Some(swap) })
    })
}

impl<G, V> VmCpu<G, V> {
    /// Makes the changes of a step: all or, after an error, none.
    /// Returns false if nothing changed, for example because a thread has ended.
    pub fn reconcile<K: Knobs<G, V>>(
        &mut self,
        step: &Step<'_>,
        knobs: &mut K,
    ) -> Result<bool, Refused<K::Error>> {
        if step.swap.is_none() {
            let mut made = false;
            for decision in &step.decisions {
                made |= self.apply(decision, knobs).map_err(|error| vec![error])?;
            }
            return Ok(made);
        }
        let mut undo: Vec<Decision> = Vec::new();
        for decision in &step.decisions {
            let outcome = match self.before(decision) {
                Some(before) => self.apply(decision, knobs).inspect(|made| {
                    undo.extend(made.then_some(before));
                }),
                None => Ok(false),
            };
            let cause = match outcome {
                Ok(true) => continue,
                Ok(false) => None,
                Err(error) => Some(error),
            };
            let undone = undo.iter().rev().filter_map(|before| self.apply(before, knobs).err());
            let failed: Refused<K::Error> = cause.into_iter().chain(undone).collect();
            return if failed.is_empty() { Ok(false) } else { Err(failed) };
        }
        Ok(true)
    }

    /// Returns the decision that restores the current value; `None` if that is unknown.
    fn before(&self, decision: &Decision) -> Option<Decision> {
        let now = self.vcpu(decision.vcpu()?)?;
        let mut before = decision.clone();
        match &mut before {
            Decision::SetAffinity { pcpus, .. } => pcpus.clone_from(&now.allowed),
            Decision::SetNice { nice, .. } => *nice = now.settings.nice,
            Decision::SetWeight { weight, .. } => *weight = now.settings.weight?,
            Decision::SetIdle { .. } | Decision::SetSlice { .. } | Decision::Divide { .. } => {
                return None;
            }
        }
        Some(before)
    }

    /// Makes one change; false if nothing changed.
    fn apply<K: Knobs<G, V>>(
        &mut self,
        decision: &Decision,
        knobs: &mut K,
    ) -> Result<bool, K::Error> {
        match decision {
            Decision::SetWeight { target: Target::Vm(_), weight, .. } => {
                self.set_weight(*weight, knobs)
            }
            Decision::SetIdle { target: Target::Vm(_), idle, .. } => self.set_idle(*idle, knobs),
            Decision::Divide { portions, .. } => self.divide(portions, knobs),
            Decision::SetWeight { target: Target::Vcpu(_, id), .. }
            | Decision::SetIdle { target: Target::Vcpu(_, id), .. } => {
                let Some(vcpu) = self.vcpus.iter_mut().find(|vcpu| vcpu.id == *id) else {
                    return Ok(false);
                };
                if vcpu.group.is_none() && !knobs.find_inner_group(&self.group, vcpu)? {
                    return Ok(false);
                }
                vcpu.apply_to_group(decision, knobs)
            }
            Decision::SetNice { vcpu, .. }
            | Decision::SetSlice { vcpu, .. }
            | Decision::SetAffinity { vcpu, .. } => match self.vcpu_mut(*vcpu) {
                Some(vcpu) => vcpu.apply_to_thread(decision, knobs),
                None => Ok(false),
            },
        }
    }

    /// Sets its weight, on its group or on the groups of its vCPUs; false if there is no weight to write now.
    pub fn set_weight<K: Knobs<G, V>>(
        &mut self,
        weight: Weight,
        knobs: &mut K,
    ) -> Result<bool, K::Error> {
        match self.share {
            // The keeper may still be writing the weight that it knows.
            Share::Idle | Share::Rotation | Share::Ended { slept: false } => {
                self.weight = weight;
                Ok(false)
            }
            Share::Together | Share::Ended { slept: true } => {
                self.weight = knobs.set_weight(&self.group, weight)?;
                Ok(true)
            }
            Share::PerVcpu { .. } => self.set_portions(weight, knobs).map(|()| true),
        }
    }

    /// Sets the weight of its group again after others changed it.
    pub fn restore_group_weight<K: Knobs<G, V>>(&self, knobs: &mut K) -> Result<(), K::Error> {
        match self.group_weight() {
            Some(weight) => knobs.set_weight(&self.group, weight).map(drop),
            None => Ok(()),
        }
    }

    /// Moves its group into the idle class, undivided, or out of it.
    fn set_idle<K: Knobs<G, V>>(&mut self, idle: bool, knobs: &mut K) -> Result<bool, K::Error> {
        if self.takes_turns() || idle == self.is_idle() {
            return Ok(false);
        }
        self.unite(knobs)?;
        knobs.set_idle(&self.group, idle)?;
        if idle {
            self.share = Share::Idle;
            return Ok(true);
        }
        self.share = Share::Together;
        let weight = std::mem::replace(&mut self.weight, knobs.default_weight());
        self.weight = knobs.set_weight(&self.group, weight)?;
        Ok(true)
    }
}

impl<G, V> VcpuCpu<G, V> {
    /// Sets the weight or the idle class of its group.
    fn apply_to_group<K: Knobs<G, V>>(
        &mut self,
        decision: &Decision,
        knobs: &mut K,
    ) -> Result<bool, K::Error> {
        let Some(group) = &self.group else {
            return Ok(false);
        };
        match decision {
            Decision::SetWeight { weight, .. } => {
                let idle = self.settings.idle;
                let written = if idle { *weight } else { knobs.set_weight(group, *weight)? };
                self.settings.weight = Some(written);
            }
            Decision::SetIdle { idle, .. } if *idle == self.settings.idle => return Ok(false),
            Decision::SetIdle { idle, .. } => {
                knobs.set_idle(group, *idle)?;
                self.settings.idle = *idle;
                if let Some(weight) = self.settings.weight.filter(|_| !idle) {
                    self.settings.weight = Some(knobs.default_weight());
                    self.settings.weight = Some(knobs.set_weight(group, weight)?);
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets its thread's nice value, slice or affinity.
    fn apply_to_thread<K: Knobs<G, V>>(
        &mut self,
        decision: &Decision,
        knobs: &mut K,
    ) -> Result<bool, K::Error> {
        let is_alive = match decision {
            Decision::SetNice { nice, .. } => {
                let now = knobs.set_nice(&self.host, *nice)?;
                self.settings.nice = now.unwrap_or(self.settings.nice);
                now.is_some()
            }
            Decision::SetSlice { slice, .. } => {
                let now = knobs.set_slice(&self.host, *slice)?;
                self.settings.slice = now.unwrap_or(self.settings.slice);
                now.is_some()
            }
            // The keeper's slots end first.
            Decision::SetAffinity { .. } if !self.slots.is_empty() => false,
            Decision::SetAffinity { pcpus, .. } => {
                let now = knobs.set_affinity(&self.host, pcpus)?;
                let is_alive = now.is_some();
                if let Some(now) = now {
                    let before = std::mem::replace(&mut self.allowed, now);
                    let granted = self.granted.take().unwrap_or(before);
                    self.granted = (granted != self.allowed).then_some(granted);
                }
                is_alive
            }
            _ => false,
        };
        if is_alive {
            self.ours.insert(decision.knob());
        }
        Ok(is_alive)
    }
}
