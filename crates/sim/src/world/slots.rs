//! The numbers of the event queue's slots.
//!
//! Every possible pending event has a slot of its own, numbered by kind: first the vCPUs' own next events (slot `v` for vCPU `v`),
//! then one range per kind.
//! Messages come last, because their number grows while the world runs.

/// The first slot of each kind of event.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slots {
    pub guest_ticks: u32,
    pub timers: u32,
    pub host_ticks: u32,
    pub polls: u32,
    pub starts: u32,
    pub caps: u32,
    pub cap_period: u32,
    pub policies: u32,
    pub turns: u32,
    pub plugs: u32,
    pub flexs: u32,
    pub agents: u32,
    pub rescheds: u32,
    pub delays: u32,
    pub second_looks: u32,
    pub messages: u32,
}
