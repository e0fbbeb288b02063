//! Tests of journal, actuator and procfs on fake hosts.
//!
//! Tests with a global allocator and live tests are separate programs.

mod busy_groups;
mod cgroup_files;
mod fault_every_call;
mod foreign_costs;
mod foreign_writes;
mod journal_shares;
mod many_end;
mod restore_is_identity;
mod swapped_groups;
mod thread_churn;
mod upgrade;
