//! Limits on managed VMs, per user and per host.
//!
//! Users are user IDs: a tenant with several (subuid(5)) has the limit of each, so the host has limits of its own.
//! They also bound the memory of managed VMs, of which the service has 256 MB.
//! If these do not suffice for all, the users with the least go first.
//! A VM precedes another if its user holds less with it, in that user's largest part of the three limits.
//! This is dominant resource fairness (Ghodsi et al., NSDI 2011).
//! A user with few VMs therefore keeps them, however many others start.
//! Within a user, and among equals, older VMs come first.
//! Root's VMs precede all others.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use tandem_model::VmId;

/// Maximum number of managed VMs of a user.
pub const MAX_VMS_OF_USER: usize = 4096;

/// Maximum number of managed vCPUs of a user.
pub const MAX_VCPUS_OF_USER: usize = 16_384;

/// Maximum number of managed VMs on the host.
pub const MAX_VMS_OF_HOST: usize = 8192;

/// Maximum number of managed vCPUs on the host.
pub const MAX_VCPUS_OF_HOST: usize = 65_536;

/// Maximum number of threads of managed VMMs on the host, vCPUs included.
pub const MAX_THREADS_OF_HOST: usize = 262_144;

/// A VM that asks for admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) user: Option<u32>,
    pub(super) vm: VmId,
    pub(super) size: Size,
}

/// Resources of VMs, as far as they are limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) vms: usize,
    pub(super) vcpus: usize,
    /// All threads of the process; its first VM counts them.
    pub(super) threads: usize,
}

/// The limit that a VM exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Bound {
    User,
    Host,
}

impl Size {
    const OF_HOST: Size =
        Size { vms: MAX_VMS_OF_HOST, vcpus: MAX_VCPUS_OF_HOST, threads: MAX_THREADS_OF_HOST };

    const OF_USER: Size =
        Size { vms: MAX_VMS_OF_USER, vcpus: MAX_VCPUS_OF_USER, threads: MAX_THREADS_OF_HOST };

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

    /// Returns the dominant part of the host's limits, in threads.
    fn dominant(self) -> usize {
        let in_threads = |part: usize, most: usize| part * (MAX_THREADS_OF_HOST / most);
        in_threads(self.vms, MAX_VMS_OF_HOST)
            .max(in_threads(self.vcpus, MAX_VCPUS_OF_HOST))
            .max(self.threads)
    }
}

/// Returns the limit that each VM exceeds, in the order of the claims; `None` if it is managed.
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
            if fits {
                held = size;
            } else {
                verdicts[at] = Some(Bound::User);
            }
            fits
        });
        // The next VM of a user is the last of the list.
        vms.reverse();
        waiting.push((user, Size::default(), vms));
    }
    // Order of the users, by their dominant part with their next VM.
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

    /// Adds VMs of a user, with this many vCPUs each.
    fn start(claims: &mut Vec<Claim>, user: u32, vms: usize, vcpus: usize) {
        for _ in 0..vms {
            claims.push(Claim {
                user: Some(user),
                vm: VmId(claims.len() as u64),
                size: Size { vms: 1, vcpus, threads: vcpus + 3 },
            });
        }
    }

    /// Returns the number of managed VMs of a user.
    fn held(claims: &[Claim], user: u32) -> usize {
        let verdicts = admit(claims);
        let both = claims.iter().zip(&verdicts);
        both.filter(|(claim, verdict)| claim.user == Some(user) && verdict.is_none()).count()
    }

    #[test]
    fn user_limit_keeps_oldest_vms() {
        let mut claims = Vec::new();
        start(&mut claims, 1000, MAX_VMS_OF_USER + 2, 1);
        start(&mut claims, 1001, 2, 8);
        let verdicts = admit(&claims);
        for (at, verdict) in verdicts.iter().enumerate() {
            let is_over = (MAX_VMS_OF_USER..MAX_VMS_OF_USER + 2).contains(&at);
            assert_eq!(*verdict, is_over.then_some(Bound::User), "{at}");
        }
        // A VM that exceeds the limit leaves room for a smaller one.
        let mut claims = Vec::new();
        start(&mut claims, 1000, 3, 4096);
        start(&mut claims, 1000, 1, 4000);
        start(&mut claims, 1000, 1, 4096);
        start(&mut claims, 1000, 1, 96);
        let over = Some(Bound::User);
        assert_eq!(admit(&claims), [None, None, None, None, over, None]);
    }

    #[test]
    fn hostile_users_do_not_displace_small_ones() {
        let mut claims = Vec::new();
        for user in 0..16 {
            start(&mut claims, 100_000 + user, MAX_VMS_OF_USER, 2);
        }
        start(&mut claims, 1000, 20, 4);
        start(&mut claims, 0, 30, 16);
        assert_eq!(held(&claims, 1000), 20);
        assert_eq!(held(&claims, 0), 30);
        let verdicts = admit(&claims);
        let all = verdicts.iter().filter(|verdict| verdict.is_none()).count();
        assert_eq!(all, MAX_VMS_OF_HOST);
        let of_each = (MAX_VMS_OF_HOST - 50) / 16;
        for user in 100_000..100_016 {
            let held = held(&claims, user);
            assert!((of_each..=of_each + 1).contains(&held), "{user}: {held}");
        }
        assert!(verdicts.iter().flatten().all(|bound| *bound == Bound::Host));
    }

    #[test]
    fn hostile_vm_sizes_do_not_displace_small_vms() {
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
        assert!(all.fits(Size::OF_HOST) && all.vcpus > MAX_VCPUS_OF_HOST - 4096);
        // The same with threads that are not vCPUs.
        for claim in &mut claims {
            if claim.user != Some(1000) {
                claim.size.vcpus = 1;
                claim.size.threads = 8192;
            }
        }
        assert_eq!(held(&claims, 1000), 20);
        let all = admitted(&claims);
        assert!(all.fits(Size::OF_HOST) && all.threads > MAX_THREADS_OF_HOST - 8192);
    }

    #[test]
    fn oldest_of_equal_vms_are_admitted() {
        let mut claims = Vec::new();
        for user in 0..MAX_VMS_OF_HOST as u32 + 5 {
            start(&mut claims, 1 + user, 1, 1);
        }
        let verdicts = admit(&claims);
        assert!(verdicts[..MAX_VMS_OF_HOST].iter().all(Option::is_none));
        assert!(verdicts[MAX_VMS_OF_HOST..].iter().all(Option::is_some));
    }
}
