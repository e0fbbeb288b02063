//! The figures of one experiment: the same VMs on the same host under several modes of dividing it.
//!
//! Source of the figures is whoever measures (`tandem demo`); this is the form they are kept,
//! compared and published in. Units: shares, fair shares and idle time in pCPUs (mean over the
//! window); lag as a fraction, (fair − received) ÷ fair, so 0.127 is a VM that received 12.7 % less
//! than its fair share and a negative lag one that received more; work in the workload's own items.
//!
//! The JSON form is flat: a mode that could not be measured has `"measured": false` and a
//! `"reason"`, and none of the figures; there is no zero that means "unknown".

use serde::{Serialize, Serializer};

use crate::service::{Alone, Completion, SpinFigures, Waits, WindowFigures};

/// The mode that others are compared against: a cgroup per VM with the VM's weight, as clouds do it.
pub const STOCK: &str = "equal-weights";

/// Several modes, side by side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Experiment {
    /// What runs the vCPUs: `kvm` or `threads`.
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
    /// What a reader must know to judge the figures.
    pub notes: Vec<String>,
    /// What was measured.
    pub modes: Vec<ModeResult>,
}

/// What the experiment ran on.
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
    /// Its name.
    pub name: String,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Its weight, 1 = the kernel's default.
    pub weight: f64,
    /// What its guest does.
    pub workload: String,
    /// The pCPU each vCPU is pinned to; empty where vCPUs are free.
    pub pins: Vec<u32>,
    /// Its share by weight if every VM always wants CPU, in pCPUs: what a hard cap is set to.
    pub entitlement: f64,
    /// What it does alone on this host; absent where that was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alone: Option<Alone>,
}

/// One mode: its name, and its figures or the reason why there are none.
#[derive(Clone, Debug, PartialEq)]
pub struct ModeResult {
    /// `as-is`, `equal-weights`, `hard-cap` or `tandem`.
    pub mode: String,
    /// The figures, or why there are none.
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

/// What one mode gave.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Per VM, in the order of [`Experiment::vms`].
    pub vms: Vec<VmFigures>,
    /// pCPU time in which nothing ran, in pCPUs.
    pub idle: f64,
    /// Mean over the VMs of the absolute lag, as a fraction.
    pub mean_abs_lag: f64,
    /// Largest absolute lag of a VM, as a fraction.
    pub max_abs_lag: f64,
    /// Work of all VMs together, in items per second; comparable only where all VMs run the same
    /// workload.
    pub total_work_per_second: f64,
    /// Work against [`STOCK`]: 1 is as much, 0.99 is 1 % less. Each VM's work counts by the CPU time
    /// that as much work took in stock, so that different workloads add up. Absent where stock was
    /// not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_vs_stock: Option<f64>,
    /// Each VM's share over time.
    pub series: Vec<Sample>,
}

/// One VM in one mode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VmFigures {
    /// Its name.
    pub name: String,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Its weight, 1 = the kernel's default.
    pub weight: f64,
    /// CPU time received, in pCPUs.
    pub share: f64,
    /// Its fair share of what all VMs received, in pCPUs.
    pub fair: f64,
    /// (fair − share) ÷ fair, as a fraction.
    pub lag: f64,
    /// Items of work finished in the window.
    pub work: u64,
    /// Items of work per second.
    pub work_per_second: f64,
    /// Work relative to the same VM alone on the host: 1 is as much. Absent where it was not measured alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_of_alone: Option<f64>,
    /// CPU time against its due over 250 ms and over 1 s, where the mode lasted as long.
    pub windows: Vec<WindowFigures>,
    /// How long its vCPUs waited before they ran.
    pub waits: Waits,
    /// How long its bursts or requests took; absent where its workload has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion: Option<Completion>,
    /// What the policy `flexs` found and did; absent where it was not in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spins: Option<SpinFigures>,
}

/// The VMs' shares over a short time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Middle of the interval, in seconds since the mode's window began; negative while settling.
    pub t: f64,
    /// Share of each VM in the interval, in pCPUs.
    pub shares: Vec<f64>,
}

impl Experiment {
    /// The figures of a mode, if it was measured.
    pub fn figures(&self, mode: &str) -> Option<&Figures> {
        let found = self.modes.iter().find(|result| result.mode == mode)?;
        found.outcome.as_ref().ok()
    }

    /// Whether all VMs run the same workload, so that their items of work can be added up.
    pub fn one_workload(&self) -> bool {
        self.vms.windows(2).all(|two| two[0].workload == two[1].workload)
    }

    /// What each VM did in a mode of what its share deserves, as a part of it; none where a VM was not measured, or not alone.
    pub fn deserved_work(&self, mode: &str) -> Option<Vec<f64>> {
        let of_vm = |(described, vm): (&VmDescription, &VmFigures)| {
            let deserved = described.alone?.deserved;
            (deserved > 0.0).then_some(vm.work_of_alone? / deserved)
        };
        let vms = &self.figures(mode)?.vms;
        self.vms.iter().zip(vms).map(of_vm).collect()
    }

    /// Fills in [`Figures::work_vs_stock`] of every mode, once all are measured.
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

/// Σ work_i × c_i ÷ Σ stock work_i × c_i, with c_i the CPU time of one item of VM i in stock. A VM
/// that did nothing in stock has no such price and is left out.
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

/// Mean and maximum of the VMs' absolute lags.
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
    fn shifting_cpu_time_between_equal_burners_loses_no_work() {
        let stock = figures(&[(1.5, 1500.0), (0.5, 500.0)]);
        let fair = figures(&[(1.0, 1000.0), (1.0, 1000.0)]);
        assert_eq!(work_against(&stock, &fair), Some(1.0));
    }

    #[test]
    fn items_of_different_size_count_by_their_cpu_time() {
        // VM 0 makes 10 items per CPU second, VM 1 makes 1000: the same CPU time moved from one to
        // the other must not look like a hundredfold gain.
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
    fn nothing_to_compare_with_is_no_figure() {
        assert_eq!(work_against(&figures(&[(0.0, 0.0)]), &figures(&[(1.0, 1.0)])), None);
    }

    #[test]
    fn lags_count_by_their_size() {
        assert_eq!(mean_and_max([0.1, -0.3]), (0.2, 0.3));
        assert_eq!(mean_and_max([]), (0.0, 0.0));
    }

    #[test]
    fn a_mode_that_was_not_measured_has_a_reason_and_no_figures() {
        let result =
            ModeResult { mode: "hard-cap".to_owned(), outcome: Err("no cfs quota".to_owned()) };
        let json = serde_json::to_string(&result).unwrap();
        assert_eq!(json, r#"{"mode":"hard-cap","measured":false,"reason":"no cfs quota"}"#);
    }
}
