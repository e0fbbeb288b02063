//! Fair shares of VMs, and whether a policy takes CPU time below a VM's fair share ("due" in figures and files).
//!
//! If a VM sleeps at times, stock may give its neighbour far more than the neighbour's fair share.
//! A policy that gives the first VM its fair share takes that time from the neighbour.
//! The neighbour then does less work than under stock although it still receives its fair share.
//! So a VM's work is also compared with stock's work scaled to the fair share: work under stock × min(1, due ÷ received).
//! The scaling assumes that work is proportional to CPU time, which holds for a VM that only computes.
//!
//! The fair share is GPS service at equal weights (all VMs of the survey have the default weight), with a demand equal to the use alone.
//! A VM that uses six pCPUs on average, with peaks of sixteen, would receive fewer than six with neighbours.
//! So its share is slightly overestimated, and the neighbours' shares are slightly underestimated.

/// Returns a VM's work relative to stock's work scaled to the fair share `due`.
///
/// `gain` is the work relative to stock, under which the VM received `received` pCPUs.
pub fn against_due(gain: f64, received: f64, due: f64) -> f64 {
    if received > due { gain * received / due } else { gain }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_above_fair_share_does_not_count() {
        // 12 pCPUs under stock with a fair share of 8: two thirds of the work correspond to the share.
        assert!((against_due(2.0 / 3.0, 12.0, 8.0) - 1.0).abs() < 1e-12);
        // Less than the fair share under stock: the baseline is stock itself.
        assert_eq!(against_due(0.9, 5.0, 8.0), 0.9);
    }
}
