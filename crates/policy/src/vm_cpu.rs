//! A VM's CPU settings, and the only code that changes them: in the daemon and in the simulator.
//!
//! ```text
//!                 divide                     join                        cpu.idle = 1
//! PerVcpu ◄──────────────────► Together ◄──────────────► Rotation     Together ◄────► Idle
//!             rejoin, join        ▲   read again  │ leaves, sleeps
//!                                 └──── Ended ◄───┘
//! ```
//!
//! [`VmCpu`] holds the current values, as the host confirmed them after each change.
//! Policies decide on new values ([`Decision`]s, each with its reason, and a [`Rotation`](crate::turns::Rotation)).
//! [`VmCpu::reconcile`] makes the changes through [`Knobs`], in order, and reports those that the host refused.
//! A refused change leaves the VM as it was: a swap is made as a whole or not at all, and a failed division is undone.
//!
//! While a VM takes turns, the turn keeper alone switches its idle class and the affinities of its vCPUs; this state only records the weight.
//! A host reports changes by others (foreign weights, moved threads) through the `on_…` methods.

mod division;
mod reconcile;
#[cfg(test)]
mod tests;
mod turns;

use std::collections::BTreeSet;

use tandem_model::{
    Decision, Knob, Nanos, Nice, PcpuSet, VcpuId, VcpuSettings, VmSettings, Weight,
};

pub use self::reconcile::{Refused, Step, steps};

/// How the vCPUs of a VM share its CPU time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Share {
    /// One group with the VM's weight.
    Together,
    /// One group in the idle class, which has no weight; the VM gets its weight when it leaves the class.
    Idle,
    /// A group per vCPU, each with a part of the VM's weight.
    PerVcpu {
        /// Weight of the VM's group, which holds no vCPU.
        empty: Weight,
        /// Whether others put that group into the idle class.
        idle: bool,
    },
    /// It takes turns: the turn keeper switches the idle class of its group and sets its weight.
    Rotation,
    /// It has left the rotation, and the keeper's last changes are not read yet.
    Ended {
        /// Whether it left because it slept.
        slept: bool,
    },
}

/// A vCPU's settings; `V` identifies it on its host, `G` is a group there.
#[derive(Clone, Debug)]
pub struct VcpuCpu<G, V> {
    /// Its number in the VM.
    pub id: VcpuId,
    /// Its thread on the host.
    pub host: V,
    /// The group that holds it alone, if it has one.
    pub group: Option<G>,
    /// Current values.
    pub settings: VcpuSettings,
    /// The pCPUs on which it may run outside its slots.
    pub allowed: PcpuSet,
    /// The operator's affinity, if a policy narrowed it.
    pub granted: Option<PcpuSet>,
    /// The pCPUs of its slots in turns, where the turn keeper sets its affinity; otherwise empty.
    pub slots: PcpuSet,
    /// Settings of its thread that a policy changed; a different value there is a foreign change.
    pub ours: BTreeSet<Knob>,
}

/// A VM's CPU settings.
#[derive(Clone, Debug)]
pub struct VmCpu<G, V> {
    /// The group whose weight is the VM's.
    pub group: G,
    /// Whether its vCPUs can get groups of their own.
    pub divisible: bool,
    /// Its vCPUs, by number.
    pub vcpus: Vec<VcpuCpu<G, V>>,
    share: Share,
    weight: Weight,
}

/// The knobs of a host.
///
/// A method returns the value that the host then has, which may be rounded, and `None` for a thread that has ended.
/// After an error the knob has its former value.
pub trait Knobs<G, V> {
    /// Why the host refused a change.
    type Error;
    /// A turn keeper's handle of a group.
    type Switch;

    /// Returns the weight of a group that just left the idle class.
    fn default_weight(&self) -> Weight;

    /// Whether a group is in the idle class.
    fn is_idle(&self, group: &G) -> Result<bool, Self::Error>;

    /// Sets a group's weight.
    fn set_weight(&mut self, group: &G, weight: Weight) -> Result<Weight, Self::Error>;

    /// Moves a group into the idle class, or out of it.
    fn set_idle(&mut self, group: &G, idle: bool) -> Result<(), Self::Error>;

    /// Finds or makes the group that holds a vCPU alone within its VM's group `vm`, and sets the vCPU's `group`, weight and idle class.
    /// Returns false if the thread has ended.
    fn find_inner_group(&mut self, vm: &G, vcpu: &mut VcpuCpu<G, V>) -> Result<bool, Self::Error>;

    /// Moves a vCPU into a new group with this weight, next to its VM's group `vm`; on an error it stays.
    fn separate(
        &mut self,
        vm: &G,
        vcpu: &VcpuCpu<G, V>,
        weight: Weight,
    ) -> Result<Option<(G, Weight)>, Self::Error>;

    /// Moves a vCPU into its VM's group.
    fn rejoin(&mut self, vm: &G, vcpu: &VcpuCpu<G, V>) -> Result<(), Self::Error>;

    /// Removes a group that held a single vCPU; the host retries later if the group is busy.
    fn remove_group(&mut self, group: G);

    /// Sets a thread's nice value.
    fn set_nice(&mut self, vcpu: &V, nice: Nice) -> Result<Option<Nice>, Self::Error>;

    /// Sets a thread's slice; `None`: the scheduler's default.
    fn set_slice(
        &mut self,
        vcpu: &V,
        slice: Option<Nanos>,
    ) -> Result<Option<Option<Nanos>>, Self::Error>;

    /// Sets a thread's affinity.
    fn set_affinity(&mut self, vcpu: &V, pcpus: &PcpuSet) -> Result<Option<PcpuSet>, Self::Error>;

    /// Prepares for a turn keeper that moves a group into the idle class and out of it with this weight.
    /// `goes_on` if it does so already.
    fn prepare_turns(
        &mut self,
        group: &G,
        weight: Weight,
        goes_on: bool,
    ) -> Result<Self::Switch, Self::Error>;

    /// Prepares for a turn keeper that sets a thread's affinity to one of these pCPUs; false if the thread has ended.
    fn prepare_slots(&mut self, vcpu: &V, pcpus: &PcpuSet) -> Result<bool, Self::Error>;
}

impl<G, V> VcpuCpu<G, V> {
    /// Returns a vCPU in its VM's group, with these current values.
    pub fn new(id: VcpuId, host: V, settings: VcpuSettings, allowed: PcpuSet) -> VcpuCpu<G, V> {
        VcpuCpu {
            id,
            host,
            group: None,
            settings,
            allowed,
            granted: None,
            slots: PcpuSet::default(),
            ours: BTreeSet::new(),
        }
    }

    /// Takes in a group that holds this vCPU alone, with its weight and idle class, or that there is none.
    pub fn on_group(&mut self, group: Option<(G, Weight, bool)>) {
        let (group, weight, idle) = match group {
            Some((group, weight, idle)) => (Some(group), Some(weight), idle),
            None => (None, None, false),
        };
        self.group = group;
        (self.settings.weight, self.settings.idle) = (weight, idle);
    }

    /// Takes in an affinity that others set.
    pub fn on_affinity(&mut self, allowed: PcpuSet) {
        self.allowed = allowed;
        self.granted = None;
    }
}

impl<G, V> VmCpu<G, V> {
    /// Returns a VM without vCPUs, with these current values of its group.
    pub fn new(group: G, weight: Weight, idle: bool) -> VmCpu<G, V> {
        let share = if idle { Share::Idle } else { Share::Together };
        VmCpu { group, divisible: false, vcpus: Vec::new(), share, weight }
    }

    /// Returns how its vCPUs share its CPU time.
    pub fn share(&self) -> Share {
        self.share
    }

    /// Returns its weight; in the idle class and in turns, the one that it has outside the class.
    pub fn weight(&self) -> Weight {
        self.weight
    }

    /// Whether its vCPUs have groups of their own.
    pub fn is_divided(&self) -> bool {
        matches!(self.share, Share::PerVcpu { .. })
    }

    /// Whether its group is in the idle class, other than by turns.
    pub fn is_idle(&self) -> bool {
        matches!(self.share, Share::Idle | Share::PerVcpu { idle: true, .. })
    }

    /// Whether it takes turns.
    pub fn takes_turns(&self) -> bool {
        self.share == Share::Rotation
    }

    /// Returns a vCPU.
    pub fn vcpu(&self, id: VcpuId) -> Option<&VcpuCpu<G, V>> {
        self.vcpus.iter().find(|vcpu| vcpu.id == id)
    }

    fn vcpu_mut(&mut self, id: VcpuId) -> Option<&mut VcpuCpu<G, V>> {
        self.vcpus.iter_mut().find(|vcpu| vcpu.id == id)
    }

    /// Returns its current values for policies, under this limit in pCPUs.
    pub fn settings(&self, quota: Option<f64>) -> VmSettings {
        VmSettings {
            weight: self.weight,
            idle: self.is_idle(),
            quota,
            rotating: self.takes_turns(),
            left_turns: self.share == Share::Ended { slept: true },
        }
    }

    /// Takes in the group's current weight and idle class, as one group.
    pub fn on_read(&mut self, weight: Weight, idle: bool) {
        self.weight = weight;
        self.share = if idle { Share::Idle } else { Share::Together };
    }

    /// Takes in a move of the group into the idle class, or out of it to this weight, by others.
    pub fn on_idle(&mut self, idle: bool, weight: Weight) {
        match &mut self.share {
            Share::PerVcpu { empty, idle: now } => (*empty, *now) = (weight, idle),
            share if idle => *share = Share::Idle,
            share => (*share, self.weight) = (Share::Together, weight),
        }
    }

    /// Returns the weight that its group should have now; `None` in the idle class and in turns.
    pub fn group_weight(&self) -> Option<Weight> {
        match self.share {
            Share::Together => Some(self.weight),
            Share::PerVcpu { empty, idle: false } => Some(empty),
            Share::PerVcpu { idle: true, .. }
            | Share::Idle
            | Share::Rotation
            | Share::Ended { .. } => None,
        }
    }

    /// Takes in a weight of the group that others set.
    pub fn on_weight(&mut self, weight: Weight) {
        match &mut self.share {
            // The groups of the vCPUs hold parts of the VM's weight.
            Share::PerVcpu { empty, .. } => *empty = weight,
            _ => self.weight = weight,
        }
    }
}
