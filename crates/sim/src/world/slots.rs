//! The numbers of the event queue's slots.
//!
//! Everything that can be pending has a slot of its own, numbered kind by kind: first the vCPUs' own next
//! events (slot `v` for vCPU `v`), then one range after the other. Messages come last, since their number
//! grows while the world runs.

/// Where each kind of event has its slots.
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
