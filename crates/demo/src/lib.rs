//! VMs and daemons as processes, and the demo that measures them.
//!
//! ```text
//! plan ──► VM processes ──► daemon or cgroups ──► CPU time, work ──► account ──► figures
//! ```
//!
//! - [`range`], [`vm_spec`], [`mode`] and [`plan`]: a plan, checked before anything starts.
//! - [`host_facts`] and [`state_dir`]: the host, and the directory in which an experiment works.
//! - [`child`], [`vm_process`] and [`daemon_process`]: processes that never outlive their owner: this program,
//!   started again with other arguments (`tandem vm run --control-stdio`, `tandem host run`). [`vm_run`] is the first of
//!   them; [`control`] is the protocol between both sides.
//! - [`mod@boot`] and [`alone`]: VMs together, and each VM alone first, the baseline of its work.
//! - [`mode_in_force`], over [`groups`], [`batch`] and [`mod@put_back`]: settings by hand, and their revert.
//! - [`cpu_time`] and [`account`]: from readings to shares, fair shares and lags; [`timeslices`] and [`windows`]: the same
//!   over short windows, and waits; [`completion`]: durations of bursts and requests.
//! - [`demo`] and [`demo_words`]: the demo.

pub mod account;
pub mod alone;
pub mod batch;
pub mod boot;
pub mod child;
mod child_log;
pub mod completion;
pub mod control;
pub mod cpu_time;
pub mod daemon_process;
pub mod demo;
pub mod demo_words;
pub mod groups;
pub mod host_facts;
pub mod mode;
pub mod mode_in_force;
pub mod plan;
pub mod put_back;
pub mod range;
pub mod state_dir;
pub mod test_plan;
pub mod timeslices;
pub mod vm_process;
pub mod vm_run;
pub mod vm_spec;
pub mod vm_tables;
pub mod windows;

use std::error::Error;

/// Returns whether an error reports an invalid argument; its causes are not considered.
pub fn is_of_an_argument(error: &(dyn Error + 'static)) -> bool {
    error.is::<range::RangeError>()
        || error.is::<mode::ModeError>()
        || error.is::<plan::PlanError>()
}
