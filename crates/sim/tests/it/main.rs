//! Tests of the simulator. One program, since each one is linked with the whole crate; programs of their own have a global allocator, or
//! run in a release build too.

mod address_space;
mod apart;
mod caches;
mod common;
mod delayed;
mod every;
mod fair_queue;
mod gleaner;
mod invariants;
mod policies;
mod recorded;
mod scenario_files;
mod scenario_fuzz;
mod scenario_mix;
mod states;
mod turns;
mod waits;
mod wakeups;
mod worked_cases;
