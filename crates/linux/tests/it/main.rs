//! Tests of journal, actuator and procfs on fake hosts. Programs of their own have a global allocator, or are live tests.

mod busy_groups;
mod cgroup_files;
mod fake_host;
mod fault_every_call;
mod faulty;
mod foreign_costs;
mod foreign_writes;
mod journal_shares;
mod many_end;
mod restore_is_identity;
mod swapped_groups;
mod thread_churn;
mod upgrade;
