//! Accounting groups: VMs that compete for pCPUs, directly or through others.
//!
//! Two VMs whose allowed pCPU sets overlap belong to one group, as does every VM that overlaps either.
//! Within a group the fair share is computed over the union of its pCPUs; groups share nothing.
//! The Flex paper (Rao & Zhou, PPoPP 2014, section 4) has one system-wide group and leaves several to future work.
//! Splitting by overlap is the coarsest division in which no group can take CPU time from another.

use std::collections::BTreeMap;

use crate::pcpu_set::PcpuSet;
use crate::units::PcpuId;

/// Members that overlap, and the pCPUs they share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    /// Indices into the given list, ascending.
    pub members: Vec<usize>,
    /// Union of the members' pCPU sets.
    pub pcpus: PcpuSet,
}

/// Divides pCPU sets into the components of "overlaps", ordered by smallest member.
///
/// A member with an empty set is in no component.
pub fn components(sets: &[&PcpuSet]) -> Vec<Component> {
    let mut parent: Vec<usize> = (0..sets.len()).collect();
    let mut alike: BTreeMap<&PcpuSet, usize> = BTreeMap::new();
    let mut owner: BTreeMap<PcpuId, usize> = BTreeMap::new();
    for (member, &set) in sets.iter().enumerate() {
        // Most vCPUs of a host share a few sets, so only a new set is iterated.
        if let Some(&other) = alike.get(set) {
            unite(&mut parent, member, other);
            continue;
        }
        alike.insert(set, member);
        for pcpu in set.iter() {
            match owner.get(&pcpu) {
                Some(&other) => unite(&mut parent, member, other),
                None => {
                    owner.insert(pcpu, member);
                }
            }
        }
    }
    let mut found: BTreeMap<usize, Component> = BTreeMap::new();
    for (member, set) in sets.iter().enumerate().filter(|(_, set)| !set.is_empty()) {
        let component = found
            .entry(root(&mut parent, member))
            .or_insert_with(|| Component { members: Vec::new(), pcpus: PcpuSet::default() });
        component.members.push(member);
        component.pcpus.extend(set);
    }
    found.into_values().collect()
}

/// Joins two components; the smallest member is the root, which orders the components.
fn unite(parent: &mut [usize], a: usize, b: usize) {
    let (a, b) = (root(parent, a), root(parent, b));
    parent[a.max(b)] = a.min(b);
}

fn root(parent: &mut [usize], mut member: usize) -> usize {
    while parent[member] != member {
        parent[member] = parent[parent[member]];
        member = parent[member];
    }
    member
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(lists: &[&str]) -> Vec<(Vec<usize>, String)> {
        let sets: Vec<PcpuSet> = lists.iter().map(|list| list.parse().unwrap()).collect();
        components(&sets.iter().collect::<Vec<_>>())
            .into_iter()
            .map(|component| (component.members, component.pcpus.to_string()))
            .collect()
    }

    #[test]
    fn overlapping_sets_form_one_group() {
        assert_eq!(groups(&["0-1", "1-2", "2-3"]), [(vec![0, 1, 2], "0-3".to_owned())]);
    }

    #[test]
    fn disjoint_sets_form_separate_groups() {
        let expected = [(vec![0, 2], "0-1".to_owned()), (vec![1], "2-3".to_owned())];
        assert_eq!(groups(&["0", "2-3", "0-1"]), expected);
    }

    #[test]
    fn late_bridge_joins_two_groups() {
        assert_eq!(groups(&["0", "1", "0-1"]), [(vec![0, 1, 2], "0-1".to_owned())]);
    }

    #[test]
    fn member_without_pcpus_is_in_no_group() {
        assert_eq!(groups(&["", "1"]), [(vec![1], "1".to_owned())]);
    }
}
