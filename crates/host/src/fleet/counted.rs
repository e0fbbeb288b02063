//! Branch counters of a fleet.

use std::collections::BTreeSet;

use tandem_linux::branch_counters::BranchCounters;
use tandem_policy::flexs::CounterSource;
use tandem_policy::host::flexs;
use tandem_policy::host::registry;

use super::Fleet;

impl Fleet {
    /// With counters of what VMs' branches are, for the policy `flexs`.
    #[must_use]
    pub fn with_counters(mut self, source: Box<dyn BranchCounters>) -> Fleet {
        self.counters.source = Some(source);
        self.counters.policy = registry::find(flexs::ENTRY.name).ok();
        self
    }

    /// Where counters come from; `None`: there are none.
    pub fn counter_source(&self) -> Option<CounterSource> {
        let source = self.counters.source.as_ref();
        source.map(|source| source.source())
    }

    /// What went wrong with counters since the last call.
    pub(crate) fn counter_errors(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.counters.errors)
    }
}
