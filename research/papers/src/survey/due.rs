//! What a VM is due of the host, and whether a policy takes of that.
//!
//! Where one VM sleeps at times, stock may give another far more than its share. A policy that gives the first what it is due takes that
//! from the second, which does less than under stock and yet has no less than it is due. So a VM's work is also held against what stock
//! does of it with no more than the VM is due: its work under stock, times due ÷ received there where that is below 1.
//! That takes work to be proportional to CPU time, which for a VM that only computes it is.
//!
//! Due is GPS service at equal weights (all VMs of the survey have the usual one), of VMs that want what they use alone. A VM that
//! uses six pCPUs on average, and sixteen now and then, would receive fewer than six beside others; so what it is due is
//! taken for a little too much, and what the others are due for a little too little.

use tandem_model::{Nanos, Weight};
use tandem_policy::fair_share::{Claim, fair_shares};

/// What VMs are due of so many pCPUs, in pCPUs, by what each uses alone.
pub fn due(pcpus: u32, alone: &[f64]) -> Vec<f64> {
    // A length of time that only makes pCPUs whole numbers.
    const PERIOD: Nanos = Nanos::from_secs(1);
    let time = |pcpus: f64| Nanos((pcpus * PERIOD.0 as f64).round() as u64);
    let claim = |&alone: &f64| Claim::always_runnable(Weight::constant(1.0), time(alone), PERIOD);
    let claims: Vec<Claim> = alone.iter().map(claim).collect();
    fair_shares(time(f64::from(pcpus)), PERIOD, &claims)
        .into_iter()
        .map(|share| share.0 as f64 / PERIOD.0 as f64)
        .collect()
}

/// A VM's work relative to what stock does with no more than it is due: `gain` is that relative to all it does under stock, where
/// it received `received` pCPUs.
pub fn against_due(gain: f64, received: f64, due: f64) -> f64 {
    if received > due { gain * received / due } else { gain }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wants_less_leaves_it_to_the_others() {
        assert_eq!(due(16, &[16.0, 16.0]), [8.0, 8.0]);
        assert_eq!(due(16, &[6.0, 16.0]), [6.0, 10.0]);
        assert_eq!(due(16, &[2.0, 3.0, 16.0, 16.0]), [2.0, 3.0, 5.5, 5.5]);
        assert_eq!(due(16, &[1.0, 2.0]), [1.0, 2.0], "nobody goes short");
    }

    #[test]
    fn what_stock_gave_beyond_the_due_is_no_loss() {
        // 12 pCPUs under stock where 8 are due: two thirds of the work are what it is due.
        assert!((against_due(2.0 / 3.0, 12.0, 8.0) - 1.0).abs() < 1e-12);
        // It had less than it is due: stock is what it is held against.
        assert_eq!(against_due(0.9, 5.0, 8.0), 0.9);
    }
}
