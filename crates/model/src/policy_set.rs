//! Sets of policies that may act on a VM, by position in the registry of host policies (`tandem_policy::host::registry`).
//!
//! Only the registry has their names.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A policy, by its position in the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyId(pub u8);

/// A set of policies. At most 32 can be registered.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PolicySet(u32);

impl PolicySet {
    /// Every policy.
    pub const ALL: PolicySet = PolicySet(u32::MAX);
    /// No policy: the VM is only measured.
    pub const NONE: PolicySet = PolicySet(0);

    /// Returns true if the policy is in the set.
    pub fn contains(self, policy: PolicyId) -> bool {
        self.0 >> policy.0 & 1 == 1
    }

    /// Adds a policy.
    pub fn insert(&mut self, policy: PolicyId) {
        self.0 |= 1 << policy.0;
    }

    /// Returns the policies in both sets.
    #[must_use]
    pub fn and(self, other: PolicySet) -> PolicySet {
        PolicySet(self.0 & other.0)
    }

    /// Returns the policies in either set.
    #[must_use]
    pub fn or(self, other: PolicySet) -> PolicySet {
        PolicySet(self.0 | other.0)
    }
}

impl Default for PolicySet {
    fn default() -> PolicySet {
        PolicySet::ALL
    }
}

impl FromIterator<PolicyId> for PolicySet {
    fn from_iter<I: IntoIterator<Item = PolicyId>>(policies: I) -> PolicySet {
        let mut set = PolicySet::NONE;
        for policy in policies {
            set.insert(policy);
        }
        set
    }
}

impl fmt::Debug for PolicySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PolicySet({:#b})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_contains_inserted_policies() {
        let set: PolicySet = [PolicyId(0), PolicyId(3)].into_iter().collect();
        assert!(set.contains(PolicyId(0)) && set.contains(PolicyId(3)));
        assert!(!set.contains(PolicyId(1)));
        assert!(PolicySet::ALL.contains(PolicyId(31)));

        assert_eq!(PolicySet::NONE.or(set), set);
    }
}
