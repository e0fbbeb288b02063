//! Figures of an experiment: the same VMs on the same host under several modes of dividing it.
//!
//! `tandem demo` measures the figures; this module defines how they are stored, compared and published.
//! Shares, fair shares and idle time are in pCPUs (mean over the window).
//! Lag is the fraction (fair − received) ÷ fair: 0.127 is 12.7 % less than the fair share, a negative lag is more than it.
//! Work is in items of the workload.
//!
//! The JSON form is flat: a mode that could not be measured has `"measured": false` and a `"reason"`, and no figures.
//! Zero never means "unknown".

use serde::{Serialize, Serializer};

use crate::service::{Alone, Completion, SpinFigures, Waits, WindowFigures};

/// The baseline mode: a cgroup per VM with the VM's weight, as in clouds.
pub const STOCK: &str = "equal-weights";

/// Several modes of one host.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Experiment {
    /// Backend of the vCPUs: `kvm` or `threads`.
    pub backend: String,
    /// Number of pCPUs that were online.
    pub pcpus: usize,
    /// Length of each mode's window, in seconds.
    pub seconds: f64,
    /// Time between entering a mode and the start of its window, in seconds.
    pub settle_seconds: f64,
    /// vCPUs of each VM.
    pub mix: Vec<u32>,
    /// Weight of each VM, 1 = the kernel's default.
    pub weights: Vec<f64>,
    /// Whether vCPUs were pinned, one pCPU each.
    pub pinned: bool,
    /// The host.
    pub host: Host,
    /// The VMs, in the order of the figures.
    pub vms: Vec<VmDescription>,
    /// Notes for the interpretation of the figures.
    pub notes: Vec<String>,
    /// The results of the modes.
    pub modes: Vec<ModeResult>,
}

/// Host of an experiment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Host {
    /// Kernel release, as `uname -r` prints it.
    pub kernel: String,
    /// CPU model, as the kernel names it.
    pub cpu: String,
    /// cgroup version of the cpu controller: `v1`, `v2`, or `none`.
    pub cgroup: String,
}

/// One VM of the experiment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VmDescription {
    /// Name.
    pub name: String,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Weight, 1 = the kernel's default.
    pub weight: f64,
    /// Workload of the guest.
    pub workload: String,
    /// The pCPU that each vCPU is pinned to; empty if vCPUs are not pinned.
    pub pins: Vec<u32>,
    /// Share by weight if every VM always wants CPU, in pCPUs; a hard cap is set to it.
    pub entitlement: f64,
    /// Figures alone on this host; absent if not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alone: Option<Alone>,
}

/// Result of a mode.
#[derive(Clone, Debug, PartialEq)]
pub struct ModeResult {
    /// Name, such as `as-is`, `equal-weights`, `hard-cap` or `tandem`.
    pub mode: String,
    /// The figures, or the reason why there are none.
    pub outcome: Result<Figures, String>,
}

impl Serialize for ModeResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Flat<'a> {
            mode: &'a str,
            measured: bool,
            #[serde(skip_serializing_if = "Option::is_none")]
            reason: Option<&'a str>,
            #[serde(flatten)]
            figures: Option<&'a Figures>,
        }
        Flat {
            mode: &self.mode,
            measured: self.outcome.is_ok(),
            reason: self.outcome.as_ref().err().map(String::as_str),
            figures: self.outcome.as_ref().ok(),
        }
        .serialize(serializer)
    }
}

/// Figures of a mode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Figures of the VMs, in the order of [`Experiment::vms`].
    pub vms: Vec<VmFigures>,
    /// Idle time, in pCPUs.
    pub idle: f64,
    /// Mean over the VMs of the absolute lag, as a fraction.
    pub mean_abs_lag: f64,
    /// Largest absolute lag of a VM, as a fraction.
    pub max_abs_lag: f64,
    /// Work of all VMs together, in items per second; comparable only if all VMs run the same workload.
    pub total_work_per_second: f64,
    /// Work relative to [`STOCK`]: 0.99 is 1 % less; absent if stock was not measured.
    ///
    /// Each VM's work is weighted by its CPU time per item in stock, so that different workloads add up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_vs_stock: Option<f64>,
    /// Each VM's share over time.
    pub series: Vec<Sample>,
}

/// One VM in one mode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VmFigures {
    /// Name.
    pub name: String,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Weight, 1 = the kernel's default.
    pub weight: f64,
    /// Received CPU time, in pCPUs.
    pub share: f64,
    /// Fair share of the CPU time that all VMs received, in pCPUs.
    pub fair: f64,
    /// (fair − share) ÷ fair, as a fraction.
    pub lag: f64,
    /// Items of work finished in the window.
    pub work: u64,
    /// Items of work per second.
    pub work_per_second: f64,
    /// Work relative to the same VM alone on the host; absent if it was not measured alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_of_alone: Option<f64>,
    /// CPU time relative to the fair share over windows of 250 ms and 1 s, if the mode lasted as long.
    pub windows: Vec<WindowFigures>,
    /// Waits of its vCPUs for a pCPU.
    pub waits: Waits,
    /// Completion times of its bursts or requests; absent if its workload has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion: Option<Completion>,
    /// Results of the policy `flexs`; absent if it was not active.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spins: Option<SpinFigures>,
}

/// The VMs' shares in a short interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Middle of the interval, in seconds since the mode's window began; negative while settling.
    pub t: f64,
    /// Share of each VM in the interval, in pCPUs.
    pub shares: Vec<f64>,
}

impl Experiment {
    /// Returns the figures of a mode, if it was measured.
    pub fn figures(&self, mode: &str) -> Option<&Figures> {
        let found = self.modes.iter().find(|result| result.mode == mode)?;
        found.outcome.as_ref().ok()
    }

    /// Returns whether all VMs run the same workload, so that their items of work add up.
    pub fn one_workload(&self) -> bool {
        self.vms.windows(2).all(|two| two[0].workload == two[1].workload)
    }

    /// Returns each VM's work in a mode relative to its deserved work ([`Alone::deserved`]).
    ///
    /// Returns `None` if a VM was not measured, or not measured alone.
    pub fn deserved_work(&self, mode: &str) -> Option<Vec<f64>> {
        let of_vm = |(described, vm): (&VmDescription, &VmFigures)| {
            let deserved = described.alone?.deserved;
            (deserved > 0.0).then_some(vm.work_of_alone? / deserved)
        };
        let vms = &self.figures(mode)?.vms;
        self.vms.iter().zip(vms).map(of_vm).collect()
    }

    /// Sets [`Figures::work_vs_stock`] of every mode, after all have been measured.
    pub fn compare_with_stock(&mut self) {
        let Some(stock) = self.figures(STOCK).cloned() else {
            return;
        };
        for result in &mut self.modes {
            if let Ok(figures) = &mut result.outcome {
                figures.work_vs_stock = work_against(&stock, figures);
            }
        }
    }
}

/// Returns Σ work_i × c_i ÷ Σ stock work_i × c_i, with c_i the CPU time per item of VM i in stock.
///
/// A VM without work in stock has no c_i and is omitted.
fn work_against(stock: &Figures, other: &Figures) -> Option<f64> {
    let (mut there, mut here) = (0.0, 0.0);
    for (before, after) in stock.vms.iter().zip(&other.vms) {
        if before.work_per_second > 0.0 {
            there += before.share;
            here += before.share * after.work_per_second / before.work_per_second;
        }
    }
    (there > 0.0).then_some(here / there)
}

/// Returns the mean and the maximum of the VMs' absolute lags.
pub fn mean_and_max(lags: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let (mut sum, mut max, mut count) = (0.0, 0.0f64, 0usize);
    for lag in lags {
        sum += lag.abs();
        max = max.max(lag.abs());
        count += 1;
    }
    match count {
        0 => (0.0, 0.0),
        _ => (sum / count as f64, max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(vms: &[(f64, f64)]) -> Figures {
        let vms = vms
            .iter()
            .enumerate()
            .map(|(i, &(share, work_per_second))| VmFigures {
                spins: None,
                name: format!("vm{i}"),
                vcpus: 1,
                weight: 1.0,
                share,
                fair: share,
                lag: 0.0,
                work: (work_per_second * 10.0) as u64,
                work_per_second,
                work_of_alone: None,
                windows: Vec::new(),
                waits: Waits { runs: 0, mean_ns: None },
                completion: None,
            })
            .collect();
        Figures {
            vms,
            idle: 0.0,
            mean_abs_lag: 0.0,
            max_abs_lag: 0.0,
            total_work_per_second: 0.0,
            work_vs_stock: None,
            series: Vec::new(),
        }
    }

    #[test]
    fn shifted_cpu_time_loses_no_work() {
        let stock = figures(&[(1.5, 1500.0), (0.5, 500.0)]);
        let fair = figures(&[(1.0, 1000.0), (1.0, 1000.0)]);
        assert_eq!(work_against(&stock, &fair), Some(1.0));
    }

    #[test]
    fn items_are_weighted_by_cpu_time() {
        // VM 0 makes 10 items per CPU second, VM 1 makes 1000: moving CPU time from one to the other
        // must not count as a hundredfold gain.
        let stock = figures(&[(1.5, 15.0), (0.5, 500.0)]);
        let fair = figures(&[(1.0, 10.0), (1.0, 1000.0)]);
        assert_eq!(work_against(&stock, &fair), Some(1.0));
    }

    #[test]
    fn idle_pcpus_show_as_lost_work() {
        let stock = figures(&[(1.0, 100.0), (1.0, 100.0)]);
        let capped = figures(&[(0.9, 90.0), (0.9, 90.0)]);
        let ratio = work_against(&stock, &capped).unwrap();
        assert!((ratio - 0.9).abs() < 1e-12, "{ratio}");
    }

    #[test]
    fn missing_baseline_yields_no_figure() {
        assert_eq!(work_against(&figures(&[(0.0, 0.0)]), &figures(&[(1.0, 1.0)])), None);
    }

    #[test]
    fn lags_are_absolute() {
        assert_eq!(mean_and_max([0.1, -0.3]), (0.2, 0.3));
        assert_eq!(mean_and_max([]), (0.0, 0.0));
    }

    #[test]
    fn unmeasured_mode_has_reason_only() {
        let result =
            ModeResult { mode: "hard-cap".to_owned(), outcome: Err("no cfs quota".to_owned()) };
        let json = serde_json::to_string(&result).unwrap();
        assert_eq!(json, r#"{"mode":"hard-cap","measured":false,"reason":"no cfs quota"}"#);
    }
}
