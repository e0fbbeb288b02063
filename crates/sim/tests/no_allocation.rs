//! In the steady state, no event allocates memory.
//!
//! The allocator of this test counts allocations.
//! The world first runs until its buffers have grown, and then for ten times as long with counting.

#[path = "it/common.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use tandem_model::Nanos;
use tandem_sim::World;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every call is passed unchanged to the system's allocator; counting has no effect on memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the same contract as `System` requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` above with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn steady_state_events_do_not_allocate() {
    let text = "duration = \"10s\"\n[machine]\npcpus = 4\npcpus_per_llc = 2
        [[workload]]\nname = \"w\"
        [workload.objects]
        spin = { kind = \"spin\", lock = \"ticket\", count = 4 }
        mutex = { kind = \"mutex\", count = 2 }
        pipe = { kind = \"queue\", capacity = 8 }
        [[workload.role]]\nname = \"worker\"\nthreads = \"1.5 per vcpu\"
        program = [ { forever = [ { compute = \"exp(20us)\" }, { locked = \"spin[random]\", do = [ { compute = \"1us\" } ] },
            { locked = \"mutex[random]\", do = [ { compute = \"2us\" } ] }, { put = \"pipe\" }, { get = \"pipe\" },
            { unmap = \"1us\" }, { sleep = \"exp(50us)\" }, \"work\" ] } ]
        [[vm]]\nname = \"a\"\ncount = 3\nvcpus = 3\nworkload = \"w\"\n";
    let smt = text.replace(
        "pcpus = 4\npcpus_per_llc = 2",
        "topology = { sockets = 2, cores_per_cache = 1, threads_per_core = 2 }",
    );
    let cases = [
        (text, "cfs", false),
        (text, "eevdf", false),
        (text, "eevdf", true),
        (&smt, "eevdf", false),
    ];
    for (text, scheduler, waits) in cases {
        let scenario = common::scenario(text, &[&format!("host.scheduler={scheduler}")]);
        let mut world = World::new(&scenario);
        world.without_checks();
        if waits {
            world.record_waits();
        }
        world.run_until(Nanos::from_millis(500));
        let (events, before) = (world.events(), ALLOCATIONS.load(Ordering::Relaxed));
        world.run_until(Nanos::from_millis(5000));
        let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
        let events = world.events() - events;
        assert!(events > 100_000, "{events} events");
        // Buffers may still double occasionally, but no event allocates regularly.
        assert!(
            allocations * 10_000 < events,
            "{scheduler}: {allocations} allocations in {events} events"
        );
    }
}
