//! Measurements on live hosts, and the demo: real VMs, the daemon beside them, the agent in front of programs.
//!
//! ```text
//! plan ──► VM processes ──► daemon or cgroups ──► CPU time, work ──► account ──► figures ──► tables
//! ```
//!
//! What all experiments on VMs share:
//!
//! - [`range`], [`vm_spec`], [`mode`] and [`plan`]: what is to be done, checked before anything starts.
//! - [`host_facts`] and [`state_dir`]: the host, and where an experiment works.
//! - [`child`], [`vm_process`] and [`daemon_process`]: processes that never outlive their owner. They are this very
//!   program, started again with other arguments (`tandem vm run --control-stdio`, `tandem host run`), which the
//!   binary must so understand. [`vm_run`] is what the first of them does; [`control`] is what both sides say.
//! - [`mod@boot`] and [`alone`]: VMs together, and each alone first, which its work is compared with.
//! - [`mode_in_force`], over [`groups`], [`batch`] and [`mod@put_back`]: modes by hand, and everything as it was before.
//! - [`cpu_time`] and [`account`]: from readings to shares, fair shares and lags; [`timeslices`] and [`windows`]: the same
//!   over short windows, and waits; [`completion`]: how long bursts and requests took. [`spread`]: the same figure over several runs.
//!
//! The experiments: [`demo`], [`fairness`] over [`mixes`], [`work`], [`flexs`], [`overhead`], [`changes`], [`churn`]; [`guest`], programs
//! under the agent; [`what_if`], the simulator's answers for recorded hosts against the hosts; [`simulator`], how fast the simulator is; [`why_trial`], how often `tandem host why` is right. They print nothing but progress, and what went wrong
//! with a daemon that is stopped on the way out of another error: figures go back to the caller, and [`tables`] shows
//! them. They judge nothing: a figure outside its promise is shown as it is.

pub mod account;
pub mod alone;
mod argument;
pub mod batch;
pub mod boot;
pub mod changes;
pub mod child;
mod child_log;
pub mod churn;
pub mod completion;
pub mod control;
pub mod cpu_time;
pub mod daemon_process;
pub mod demo;
pub mod demo_words;
pub mod fairness;
pub mod flexs;
pub mod groups;
pub mod guest;
pub mod host_facts;
pub mod mixes;
pub mod mode;
pub mod mode_in_force;
pub mod overhead;
pub mod plan;
pub mod put_back;
pub mod range;
pub mod record_trial;
pub mod simulator;
pub mod spread;
pub mod state_dir;
pub mod tables;
#[cfg(test)]
mod test_plan;
pub mod timeslices;
pub mod traces;
pub mod vm_process;
pub mod vm_run;
pub mod vm_spec;
pub mod vm_tables;
pub mod what_if;
pub mod why_trial;
pub mod windows;
pub mod work;

pub use argument::is_of_an_argument;
