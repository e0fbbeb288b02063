//! Tests of the simulator.
//!
//! They form one program, because each test program is linked with the whole crate.
//! Tests with a global allocator, and tests that also run in a release build, are programs of their own.

mod address_space;
mod apart;
mod caches;
mod common;
mod delayed;
mod every;
mod fair_queue;
mod gleaner;
mod invariants;
mod linux_7;
mod policies;
mod recorded;
mod scenario_files;
mod scenario_fuzz;
mod scenario_mix;
mod states;
mod topology;
mod turns;
mod waits;
mod wakeups;
mod worked_cases;
