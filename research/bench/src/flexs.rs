//! FlexS on a live host: VMs with a spin barrier compete with VMs that compute on one of their pCPUs.
//!
//! ```text
//! mixes ──► demo runs, mode by mode ──► work, shares, verdicts against the truth ──► medians, sums ──► tables, JSON
//! ```
//!
//! Each run of a mix is a separate demo with fresh VMs ([`tandem_demo::demo`]) that goes through three modes:
//!
//! - stock: a cgroup of equal weight per VM, as libvirt makes it;
//! - the daemon with the policy `fair`;
//! - the daemon with `fair,flexs` on synthetic counters ([`tandem_linux::branch_counters::microvm`]).
//!
//! The synthetic counters derive from the guests' own counts, which also serve as ground truth for the daemon's verdicts.
//! A vCPU spun in a period if it completed no step of its work in it.
//! The bench measures the whole loop (count, judge, choose of two, swap, gain), not how well hardware counters tell spinning from work.
//!
//! [`mix`] defines the mixes, [`measure`] runs them, [`figures`] is the JSON form, [`output`] prints it; [`verdicts`] has sums and rates.

pub mod figures;
pub mod measure;
pub mod mix;
pub mod output;
pub mod verdicts;
