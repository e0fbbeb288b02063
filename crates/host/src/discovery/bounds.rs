//! How much may be under care: of one user, and on the host.
//!
//! Who may start processes under many numbers could have as many times a user's bound (see [`tandem_linux::tenants`] for the usual way), and what is under care takes memory, of
//! which the service has 256 MB. So the host has bounds of its own. Where they do not suffice for all, they are filled from the small ends: a VM
//! goes before another if its user has less with it, in that of the three bounds of which he has most (dominant resource fairness, Ghodsi et al., NSDI 2011).
//! So who has few VMs keeps them, whoever starts how many. Of one user, and among equals, those go first that were there first. Root's go before all.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use tandem_model::VmId;

/// The most VMs that a user may have under care.
pub const MOST_VMS_OF_USER: usize = 4096;

/// The most vCPUs that a user may have under care.
pub const MOST_VCPUS_OF_USER: usize = 16_384;

/// The most VMs of all users under care.
pub const MOST_VMS_OF_HOST: usize = 8192;

/// The most vCPUs of all users under care.
pub const MOST_VCPUS_OF_HOST: usize = 65_536;

/// The most threads that the VMMs under care have, those of vCPUs among them.
pub const MOST_THREADS_OF_HOST: usize = 262_144;

/// A VM that is to be under care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) user: Option<u32>,
    pub(super) vm: VmId,
    pub(super) size: Size,
}

/// What VMs take of the bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) vms: usize,
    pub(super) vcpus: usize,
    /// All that the process has; of several VMs in one the first has them.
    pub(super) threads: usize,
}

/// What a VM did not fit into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Bound {
    User,
    Host,
}

impl Size {
    const OF_HOST: Size =
        Size { vms: MOST_VMS_OF_HOST, vcpus: MOST_VCPUS_OF_HOST, threads: MOST_THREADS_OF_HOST };

    const OF_USER: Size =
        Size { vms: MOST_VMS_OF_USER, vcpus: MOST_VCPUS_OF_USER, threads: MOST_THREADS_OF_HOST };

    fn and(self, other: Size) -> Size {
        Size {
            vms: self.vms + other.vms,
            vcpus: self.vcpus + other.vcpus,
            threads: self.threads + other.threads,
        }
    }

    fn fits(self, most: Size) -> bool {
        self.vms <= most.vms && self.vcpus <= most.vcpus && self.threads <= most.threads
    }

    /// The largest part of what the host has, in threads.
    fn dominant(self) -> usize {
        let in_threads = |part: usize, most: usize| part * (MOST_THREADS_OF_HOST / most);
        in_threads(self.vms, MOST_VMS_OF_HOST)
            .max(in_threads(self.vcpus, MOST_VCPUS_OF_HOST))
            .max(self.threads)
    }
}

/// What each VM does not fit into, in the order of the claims; `None`: it is under care.
pub(super) fn admit(claims: &[Claim]) -> Vec<Option<Bound>> {
    let mut verdicts = vec![Some(Bound::Host); claims.len()];
    let mut users: BTreeMap<Option<u32>, Vec<(VmId, usize)>> = BTreeMap::new();
    for (at, claim) in claims.iter().enumerate() {
        users.entry(claim.user).or_default().push((claim.vm, at));
    }
    let mut waiting = Vec::with_capacity(users.len());
    for (user, mut vms) in users {
        vms.sort_unstable();
        let mut held = Size::default();
        vms.retain(|&(_, at)| {
            let size = held.and(claims[at].size);
            let fits = size.fits(Size::OF_USER);
            match fits {
                true => held = size,
                false => verdicts[at] = Some(Bound::User),
            }
            fits
        });
        // The next is the last.
        vms.reverse();
        waiting.push((user, Size::default(), vms));
    }
    // Whose turn it is, by what he has with his next VM.
    let turn = |(user, held, vms): &(Option<u32>, Size, Vec<(VmId, usize)>)| {
        let &(vm, at) = vms.last()?;
        let size = held.and(claims[at].size);
        Some((*user != Some(0), size.dominant(), vm))
    };
    let turns = waiting.iter().enumerate();
    let turns = turns.filter_map(|(nth, user)| Some(Reverse((turn(user)?, nth))));
    let mut turns: BinaryHeap<_> = turns.collect();
    let mut all = Size::default();
    while let Some(Reverse((_, nth))) = turns.pop() {
        let user = &mut waiting[nth];
        if let Some((_, at)) = user.2.pop() {
            let size = all.and(claims[at].size);
            if size.fits(Size::OF_HOST) {
                all = size;
                user.1 = user.1.and(claims[at].size);
                verdicts[at] = None;
            }
        }
        turns.extend(turn(user).map(|turn| Reverse((turn, nth))));
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many VMs of a user, of so many vCPUs each, added to those there are.
    fn start(claims: &mut Vec<Claim>, user: u32, vms: usize, vcpus: usize) {
        for _ in 0..vms {
            claims.push(Claim {
                user: Some(user),
                vm: VmId(claims.len() as u64),
                size: Size { vms: 1, vcpus, threads: vcpus + 3 },
            });
        }
    }

    /// How many VMs of a user are under care.
    fn held(claims: &[Claim], user: u32) -> usize {
        let verdicts = admit(claims);
        let both = claims.iter().zip(&verdicts);
        both.filter(|(claim, verdict)| claim.user == Some(user) && verdict.is_none()).count()
    }

    #[test]
    fn a_user_has_so_many_and_keeps_those_that_were_there_first() {
        let mut claims = Vec::new();
        start(&mut claims, 1000, MOST_VMS_OF_USER + 2, 1);
        start(&mut claims, 1001, 2, 8);
        let verdicts = admit(&claims);
        for (at, verdict) in verdicts.iter().enumerate() {
            let is_over = (MOST_VMS_OF_USER..MOST_VMS_OF_USER + 2).contains(&at);
            assert_eq!(*verdict, is_over.then_some(Bound::User), "{at}");
        }
        // One that does not fit leaves room for a smaller one.
        let mut claims = Vec::new();
        start(&mut claims, 1000, 3, 4096);
        start(&mut claims, 1000, 1, 4000);
        start(&mut claims, 1000, 1, 4096);
        start(&mut claims, 1000, 1, 96);
        let over = Some(Bound::User);
        assert_eq!(admit(&claims), [None, None, None, None, over, None]);
    }

    #[test]
    fn hostile_numbers_of_users_fill_the_host_and_who_has_few_vms_keeps_them() {
        let mut claims = Vec::new();
        for user in 0..16 {
            start(&mut claims, 100_000 + user, MOST_VMS_OF_USER, 2);
        }
        start(&mut claims, 1000, 20, 4);
        start(&mut claims, 0, 30, 16);
        assert_eq!(held(&claims, 1000), 20);
        assert_eq!(held(&claims, 0), 30);
        let verdicts = admit(&claims);
        let all = verdicts.iter().filter(|verdict| verdict.is_none()).count();
        assert_eq!(all, MOST_VMS_OF_HOST);
        let of_each = (MOST_VMS_OF_HOST - 50) / 16;
        for user in 100_000..100_016 {
            let held = held(&claims, user);
            assert!((of_each..=of_each + 1).contains(&held), "{user}: {held}");
        }
        assert!(verdicts.iter().flatten().all(|bound| *bound == Bound::Host));
    }

    #[test]
    fn hostile_numbers_of_vcpus_and_threads_fill_the_host_and_small_vms_are_in() {
        let mut claims = Vec::new();
        for user in 0..100 {
            start(&mut claims, 100_000 + user, 4, 4096);
        }
        start(&mut claims, 1000, 20, 4);
        assert_eq!(held(&claims, 1000), 20);
        let admitted = |claims: &[Claim]| {
            let verdicts = admit(claims);
            let both = claims.iter().zip(verdicts).filter(|(_, v)| v.is_none());
            both.fold(Size::default(), |all, (claim, _)| all.and(claim.size))
        };
        let all = admitted(&claims);
        assert!(all.fits(Size::OF_HOST) && all.vcpus > MOST_VCPUS_OF_HOST - 4096);
        // The same with threads that are no vCPUs.
        for claim in &mut claims {
            if claim.user != Some(1000) {
                claim.size.vcpus = 1;
                claim.size.threads = 8192;
            }
        }
        assert_eq!(held(&claims, 1000), 20);
        let all = admitted(&claims);
        assert!(all.fits(Size::OF_HOST) && all.threads > MOST_THREADS_OF_HOST - 8192);
    }

    #[test]
    fn among_equals_those_are_in_that_were_there_first() {
        let mut claims = Vec::new();
        for user in 0..MOST_VMS_OF_HOST as u32 + 5 {
            start(&mut claims, 1 + user, 1, 1);
        }
        let verdicts = admit(&claims);
        assert!(verdicts[..MOST_VMS_OF_HOST].iter().all(Option::is_none));
        assert!(verdicts[MOST_VMS_OF_HOST..].iter().all(Option::is_some));
    }
}
