//! Roaming members: VMs without a fixed slot, used if fixed slots are too tight.
//!
//! Two VMs that share a slot get half of it each, even if other pCPUs are free.
//! Example: two pCPUs, VM A of two vCPUs, and VMs B, C, D of one; each has a fair share of half a pCPU.
//! With fixed slots two of B, C, D share three quarters of a pCPU, and the third has as much alone.
//! With the rows B C, B D, C D, and A alone, all get their fair shares.
//! So a VM of one vCPU that may run on several pCPUs gets its slot with each row ([`super::rotor`]).
//! A VM of more vCPUs does not roam: it has more in caches, and its vCPUs would move together.

use super::Member;
use super::candidate::Candidate;
use super::demand::{max_demand, scale};

/// Maximum number of pCPUs over which a VM roams, as the daemon's journal has a line for each.
const MAX_PCPUS: usize = 16;

/// Returns the members with every VM roaming that can; `None` if none can.
pub(super) fn roam(members: &[Member], candidates: &[&Candidate]) -> Option<Vec<Member>> {
    let mut members = members.to_vec();
    for member in &mut members {
        let candidate = candidates.iter().find(|c| c.vm == member.vm)?;
        member.due = candidate.due / member.pcpus().len().max(1) as f64;
        member.roams = match candidate.vcpus.as_slice() {
            [(_, pcpus)] if (2..=MAX_PCPUS).contains(&pcpus.len()) => Some(pcpus.clone()),
            _ => None,
        };
    }
    if members.iter().all(|member| member.roams.is_none()) {
        return None;
    }
    let most = max_demand(&members);
    scale(&mut members, most.min(1.0));
    Some(members)
}
