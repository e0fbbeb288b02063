//! Pending events by kind and number.
//!
//! Every possible pending event has a slot of its own in the queue.
//! Each kind has a range of slots: first the vCPUs' own next events (slot `v` for vCPU `v`), then the others.
//! Messages come last, because their number grows while the world runs.

use crate::queue::{EventQueue, Slot};

use super::simulation::World;

macro_rules! events {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Kinds of events, in the order of their slots.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Event {
            $($(#[$doc])* $name,)*
        }

        impl Event {
            const ALL: [Event; [$(Event::$name),*].len()] = [$(Event::$name),*];
        }
    };
}

events! {
    /// A vCPU's own next event.
    Execution,
    /// Tick of a vCPU's guest.
    GuestTick,
    /// End of a thread's sleep.
    Timer,
    /// Tick of a pCPU.
    HostTick,
    /// End of halt polling on a pCPU.
    PollEnd,
    /// Start of a VM.
    Start,
    /// A VM may have used up its quota.
    Quota,
    /// Start of a cap period.
    CapPeriod,
    /// End of a period of the policies.
    Policies,
    /// End of a turn.
    Turn,
    /// A change of a VM's vCPUs.
    Hotplug,
    /// FlexS's tick on a pCPU.
    FlexS,
    /// End of a period of a VM's agent.
    Agent,
    /// Sample of a VM's steal governor.
    Governor,
    /// Arrival of a pCPU's rescheduling interrupt.
    Reschedule,
    /// End of a vCPU's wake-up delay.
    DelayEnd,
    /// A pCPU's scheduler looks again.
    SecondLook,
    /// Arrival of a message.
    Message,
}

/// The pending events.
#[derive(Clone, Debug)]
pub(super) struct Calendar {
    queue: EventQueue,
    /// The first slot of each kind.
    first: [u32; Event::ALL.len()],
}

impl Calendar {
    /// A calendar without events, for these numbers of VMs, vCPUs, threads and pCPUs.
    pub fn new(vms: usize, vcpus: usize, threads: usize, pcpus: usize) -> Calendar {
        let mut next = 0;
        let first = Event::ALL.map(|event| {
            let count = match event {
                Event::Execution | Event::GuestTick | Event::DelayEnd => vcpus,
                Event::Timer => threads,
                Event::HostTick | Event::PollEnd | Event::FlexS => pcpus,
                Event::Reschedule | Event::SecondLook => pcpus,
                Event::Start | Event::Quota | Event::Hotplug => vms,
                Event::Agent | Event::Governor => vms,
                Event::CapPeriod | Event::Policies | Event::Turn => 1,
                Event::Message => 0,
            };
            let first = next;
            next += count as u32;
            first
        });
        Calendar { queue: EventQueue::new(next as usize), first }
    }

    #[inline]
    fn slot(&self, event: Event, number: u32) -> Slot {
        match event {
            // The first kind begins at slot 0.
            Event::Execution => Slot(number),
            _ => Slot(self.first[event as usize] + number),
        }
    }

    /// Sets the time of an event.
    #[inline]
    pub fn set(&mut self, event: Event, number: u32, at: u64) {
        self.queue.set(self.slot(event, number), at);
    }

    /// Cancels an event.
    #[inline]
    pub fn cancel(&mut self, event: Event, number: u32) {
        self.queue.cancel(self.slot(event, number));
    }

    /// Whether an event is pending.
    #[inline]
    pub fn is_set(&self, event: Event, number: u32) -> bool {
        self.queue.is_set(self.slot(event, number))
    }

    /// Makes room for one more message.
    pub fn add_message(&mut self) {
        self.queue.add_slot();
    }

    /// Number of pending events.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Removes the next event up to a time, and returns its time and slot.
    #[inline]
    pub fn pop_until(&mut self, limit: u64) -> Option<(u64, Slot)> {
        self.queue.pop_until(limit)
    }
}

impl World {
    /// Handles the event of a slot.
    #[inline(always)]
    pub(super) fn handle(&mut self, Slot(slot): Slot) {
        if slot < self.calendar.first[Event::GuestTick as usize] {
            self.executed(slot);
        } else {
            self.dispatch(slot);
        }
    }

    /// Handles an event that is not a vCPU's own.
    #[inline(never)]
    fn dispatch(&mut self, slot: u32) {
        let first = &self.calendar.first;
        let kind = first.partition_point(|&first| first <= slot) - 1;
        let number = slot - first[kind];
        match Event::ALL[kind] {
            // A second call would keep the compiler from inlining the hot one in `handle`.
            Event::Execution => debug_assert!(false, "handled by the caller"),
            Event::GuestTick => self.guest_tick(number),
            Event::Timer => self.timer(number),
            Event::HostTick => self.host_tick(number),
            Event::PollEnd => self.halt_poll_over(number),
            Event::Start => self.start_vm(number),
            Event::Quota => self.cap_used_up(number),
            Event::CapPeriod => self.cap_period(),
            Event::Policies => self.policies(),
            Event::Turn => self.turn(),
            Event::Hotplug => self.plug(number),
            Event::FlexS => self.flexs_tick(number),
            Event::Agent => self.agent(number),
            Event::Governor => self.governor(number),
            Event::Reschedule => self.host_resched_arrived(number),
            Event::DelayEnd => self.delay_over(number),
            Event::SecondLook => self.second_look(number),
            Event::Message => self.message(number),
        }
    }
}
