//! FlexS on a live host: VMs that wait for themselves with a spin barrier, beside VMs that compute on one of their pCPUs.
//!
//! ```text
//! mixes ──► demo runs, mode by mode ──► work, shares, verdicts against the truth ──► medians, sums ──► tables, JSON
//! ```
//!
//! Each run of a mix is a demo of its own with fresh VMs ([`tandem_demo::demo`]) that goes through the modes: stock (a cgroup of equal weight per VM, as
//! libvirt makes it), the daemon with the policy `fair`, and the daemon with `fair,flexs` on synthetic counters
//! ([`tandem_linux::branch_counters::microvm`]). The counters are made up from what guests count of themselves, and that is also the truth which the
//! daemon's verdicts are held against: a vCPU spun in a period if it did not one step of its work in it. So this measures the whole loop (count,
//! judge, choose of two, swap, gain), and not how well hardware counters tell spinning from work.
//!
//! [`mix`] has what is run, [`measure`] runs it, [`figures`] are the JSON form, [`output`] shows it; [`verdicts`] are sums and rates.

pub mod figures;
pub mod measure;
pub mod mix;
pub mod output;
pub mod verdicts;
