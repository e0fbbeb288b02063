//! `[[vm]] preferred`: the guest kernel's steal governor, and its settings.
//!
//! Source: drivers/virt/steal_governor.c of Linux 7.4 (`CONFIG_STEAL_GOVERNOR`), whose parameters are `interval_ms`,
//! `low_threshold` and `high_threshold`, here as a time and as fractions of the vCPUs' time.
//! `crate::world` acts on them.
//!
//! A guest with Gleaner has no governor: both would choose the vCPUs of the threads, and each would count the other's effect as its own.
//! The number of plugged vCPUs stays constant, because the model keeps the preferred vCPUs as a number, the first ones.

use tandem_model::Nanos;
use tandem_policy::settings::settings;

use super::policies;
use crate::document::place::LoadError;
use crate::document::read::Table;

settings! {
    /// The steal governor.
    #[derive(Copy)]
    pub struct GovernorConfig as its {
        /// Time between two samples of steal time.
        pub interval: Nanos = Nanos::from_millis(1000), (Nanos::from_millis(100), Nanos::from_secs(60));
        /// Fraction of stolen time up to which a vCPU becomes preferred again.
        pub low: f64 = 0.02, (0.0, 1.0);
        /// Fraction of stolen time above which a vCPU is no longer preferred.
        pub high: f64 = 0.05, (its.low, 1.0);
    }
}

/// Reads `preferred = true`, or a table of its settings.
pub fn read(vm: &Table<'_>) -> Result<Option<GovernorConfig>, LoadError> {
    let mut config = GovernorConfig::default();
    if !policies::acts(vm, "preferred", &mut config)? {
        return Ok(None);
    }
    match vm.get("preferred") {
        Some(field) if super::agent::read(vm)?.is_some() => Err(field.wrong(
            "gleaner and preferred would both choose the vCPUs of the threads: leave one of them out",
        )),
        _ => Ok(Some(config)),
    }
}
