//! Members that roam: without a fixed seat, because fixed ones would be too tight.
//!
//! Two VMs that share a seat leave each other half of it, whatever is free elsewhere: of three VMs of one vCPU beside one of two, each due
//! half a pCPU of two, two would have three quarters of a pCPU between them, and the third as much alone. In rows B C, B D, C D, and A
//! alone, all have their due. So a VM of one vCPU that may run on several pCPUs gets its seat with each row ([`super::rotor`]). One of more
//! vCPUs does not roam: what it has in caches is more, and its vCPUs would move together.

use super::Member;
use super::candidate::Candidate;
use super::demand::{most_demand, scale};

/// Nobody roams over more pCPUs than this: the daemon's journal has a line for each.
const MOST_PCPUS: usize = 16;

/// These members with all of them roaming that can; `None` if nobody can.
pub(super) fn roam(members: &[Member], candidates: &[&Candidate]) -> Option<Vec<Member>> {
    let mut members = members.to_vec();
    for member in &mut members {
        let candidate = candidates.iter().find(|c| c.vm == member.vm)?;
        member.due = candidate.due / member.pcpus().len().max(1) as f64;
        member.roams = match candidate.vcpus.as_slice() {
            [(_, pcpus)] if (2..=MOST_PCPUS).contains(&pcpus.len()) => Some(pcpus.clone()),
            _ => None,
        };
    }
    if members.iter().all(|member| member.roams.is_none()) {
        return None;
    }
    let most = most_demand(&members);
    scale(&mut members, most.min(1.0));
    Some(members)
}
