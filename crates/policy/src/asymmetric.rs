//! Dynamic asymmetric vCPUs: divides a VM's CPU time among its vCPUs by demand.
//!
//! Source: Shan, "Efficient Virtualization of Multicore Platforms" (dissertation, NJIT 2018), chapter 5.
//! A host splits a VM's time evenly over its vCPUs, but its work is uneven.
//! Once per period, within each VM and without changing the VM's total:
//!
//! - [`time`]: each vCPU is allocated time by its demand: the time it used, or a tenth more than its last allocation.
//! - [`latency`]: a vCPU that was ready but did not use up its allocation got it too late, so it
//!   runs sooner after its next wake-ups.
//!   A VM is charged for the switches that this costs the host ([`charge`]).
//! - [`resolver`]: vCPUs of different VMs swap pCPUs if one has too much allocated time, or too many urgent vCPUs.
//!
//! Each part is pure and usable alone. [`crate::host::asymmetric`] maps them to the knobs of a host.

pub mod charge;
pub mod latency;
pub mod report;
pub mod resolver;
pub mod time;

use std::fmt;

use thiserror::Error;

use crate::settings::settings;

settings! {
    /// Enabled parts of the policy.
    #[derive(Copy, Eq)]
    pub struct AsymmetricConfig {
        /// CPU time by demand.
        pub time: bool = true;
        /// Latency by urgency.
        pub latency: bool = true;
        /// Swaps of vCPUs between pCPUs, if the operator allows moving vCPUs (`--placement rebalance`).
        pub resolver: bool = true;
    }
}

/// A list of parts contains an unknown name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown part '{0}' of the asymmetric policy: expected time, latency or resolver")]
pub struct UnknownPart(pub String);

impl AsymmetricConfig {
    /// Parses a list such as `time,latency`.
    pub fn parse(text: &str) -> Result<AsymmetricConfig, UnknownPart> {
        let mut parts = AsymmetricConfig { time: false, latency: false, resolver: false };
        for part in text.split(',').map(str::trim) {
            match part {
                "time" => parts.time = true,
                "latency" => parts.latency = true,
                "resolver" => parts.resolver = true,
                other => return Err(UnknownPart(other.to_owned())),
            }
        }
        Ok(parts)
    }
}

impl fmt::Display for AsymmetricConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [(self.time, "time"), (self.latency, "latency"), (self.resolver, "resolver")];
        let acting = parts.iter().filter(|(acts, _)| *acts);
        let names: Vec<&str> = acting.map(|(_, name)| *name).collect();
        f.write_str(&names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_named() {
        let parts = AsymmetricConfig::parse("time, resolver").unwrap();
        assert!(parts.time && !parts.latency && parts.resolver);
        assert_eq!(parts.to_string(), "time,resolver");
        let error = AsymmetricConfig::parse("time,speed").unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown part 'speed' of the asymmetric policy: expected time, latency or resolver"
        );
    }
}
