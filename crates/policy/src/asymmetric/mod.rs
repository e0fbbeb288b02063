//! Dynamic asymmetric vCPUs: a VM's CPU time goes to those of its vCPUs that need it, when they need it.
//!
//! Source: Shan, "Efficient Virtualization of Multicore Platforms" (dissertation, NJIT 2018), chapter 5. A VM's time is split evenly over its
//! vCPUs; its work is not. Once per period, within each VM and without changing what it gets as a whole:
//!
//! - [`time`]: each vCPU is allocated time by its demand, what it used or a tenth more than its allocation was.
//! - [`latency`]: a vCPU that wanted to run and did not get to use its allocation got it too late, so it is to run sooner after it wakes;
//!   and a VM is charged for the switches that this costs the host ([`charge`]).
//! - [`resolver`]: vCPUs of different VMs swap pCPUs where too much time is allocated on one, or too many are urgent.
//!
//! Each part is pure and usable alone. Which knobs of a host they turn is the policy's business ([`crate::host::asymmetric`]).

pub mod charge;
pub mod latency;
pub mod report;
pub mod resolver;
pub mod time;

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Which parts act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AsymmetricConfig {
    /// CPU time by demand. Default: yes.
    pub time: bool,
    /// Latency by urgency. Default: yes.
    pub latency: bool,
    /// Swaps of vCPUs between pCPUs, where the operator allows that vCPUs are moved (`--placement rebalance`). Default: yes.
    pub resolver: bool,
}

impl Default for AsymmetricConfig {
    fn default() -> AsymmetricConfig {
        AsymmetricConfig { time: true, latency: true, resolver: true }
    }
}

/// A list of parts names something that is none.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{0}' is no part of the policy asymmetric: they are time, latency and resolver")]
pub struct UnknownPart(pub String);

impl AsymmetricConfig {
    /// The parts of a list such as `time,latency`.
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
            "'speed' is no part of the policy asymmetric: they are time, latency and resolver"
        );
    }
}
