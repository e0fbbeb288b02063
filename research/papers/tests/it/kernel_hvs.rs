//! HVS and its variants: worked cases of their source, and a comparison with a plain model.
//!
//! The cases preempt a few vCPUs at fixed times and check the chosen candidate.
//! The model keeps the three lists as sorted lists and the marks as a set; it shares no code with the C.
//! Both receive the same random events, with frequently tied times.
//!
//! Not covered here: layouts (unit tests), undefined behaviour and records out of range (the fuzzer).

use std::collections::BTreeSet;

use proptest::prelude::*;
use tandem_kpolicy::{Cause, Hvs, HvsError, List, MAX_VCPUS, Order};

const ORDERS: [Order; 4] = [Order::Hvs, Order::CpthR, Order::CpthL, Order::Cch];

/// vCPU 0 spins; 1 and 2 are resource-waiters since 10 and 20, 3 and 4 lock-waiters since 30 and 40.
///
/// 5 and 6 are on the yielded list since 50 and 60; 7 runs.
fn all_lists(order: Order) -> Hvs {
    let mut hvs = Hvs::new(8, order).unwrap();
    for yielded in [6, 5] {
        hvs.preempted(yielded, Cause::Slice, 1);
        assert_eq!(hvs.candidate(0), Some(yielded));
        hvs.running(yielded);
    }
    hvs.preempted(1, Cause::Slice, 10);
    hvs.preempted(2, Cause::Slice, 20);
    hvs.preempted(3, Cause::Spinning, 30);
    hvs.preempted(4, Cause::Spinning, 40);
    hvs.preempted(5, Cause::Slice, 50);
    hvs.preempted(6, Cause::Slice, 60);
    hvs
}

/// Returns the candidates of vCPU 0 in order; each chosen vCPU then runs, until no candidate is left.
fn chosen_in_turn(hvs: &mut Hvs) -> Vec<usize> {
    std::iter::from_fn(|| {
        let chosen = hvs.candidate(0)?;
        hvs.running(chosen);
        Some(chosen)
    })
    .collect()
}

#[test]
fn lists_are_used_in_order() {
    let mut hvs = all_lists(Order::Hvs);
    let lists: Vec<_> = (0..8).map(|vcpu| hvs.list(vcpu)).collect();
    let (resource, lock, yielded) =
        (Some(List::ResourceWaiter), Some(List::LockWaiter), Some(List::Yielded));
    assert_eq!(lists, [None, resource, resource, lock, lock, yielded, yielded, None]);
    assert_eq!(chosen_in_turn(&mut hvs), [2, 1, 3, 4, 5, 6]);
}

#[test]
fn cpth_r_takes_resource_waiters_earliest_first() {
    let mut hvs = all_lists(Order::CpthR);
    assert_eq!(chosen_in_turn(&mut hvs), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn cpth_l_takes_lock_waiters_latest_first() {
    let mut hvs = all_lists(Order::CpthL);
    assert_eq!(chosen_in_turn(&mut hvs), [2, 1, 4, 3, 5, 6]);
}

#[test]
fn cch_takes_lock_waiters_before_resource_waiters() {
    let mut hvs = all_lists(Order::Cch);
    assert_eq!(chosen_in_turn(&mut hvs), [3, 4, 2, 1, 5, 6]);
}

#[test]
fn expired_candidate_joins_yielded_list() {
    let mut hvs = Hvs::new(3, Order::Hvs).unwrap();
    hvs.preempted(1, Cause::Slice, 10);
    assert_eq!(hvs.candidate(0), Some(1));
    assert!(hvs.is_marked(1));
    hvs.running(1);
    hvs.preempted(1, Cause::Slice, 20);
    assert_eq!(hvs.list(1), Some(List::Yielded), "not the resource list");
    assert!(!hvs.is_marked(1), "and the mark is cleared");
    // An older resource-waiter and a lock-waiter are preferred to it.
    hvs.preempted(2, Cause::Slice, 5);
    assert_eq!(hvs.candidate(0), Some(2));
    hvs.running(2);
    hvs.preempted(2, Cause::Spinning, 30);
    assert_eq!(hvs.candidate(0), Some(2));
    hvs.running(2);
    assert_eq!(hvs.candidate(0), Some(1));
}

#[test]
fn displaced_vcpu_joins_yielded_list() {
    let mut hvs = Hvs::new(4, Order::Hvs).unwrap();
    hvs.preempted(1, Cause::Slice, 10);
    hvs.preempted(2, Cause::Slice, 20);
    assert_eq!(hvs.candidate(0), Some(2));
    // 3 ran on the pCPU that 2 runs on now.
    hvs.preempted(3, Cause::Displaced, 21);
    hvs.running(2);
    assert_eq!(hvs.list(3), Some(List::Yielded));
    assert_eq!(hvs.candidate(0), Some(1), "not 3, the latest of all");
    hvs.running(1);
    assert_eq!(hvs.candidate(0), Some(3), "the only candidate left");
}

#[test]
fn unmarked_vcpu_returns_to_resource_waiters() {
    let mut hvs = Hvs::new(2, Order::Hvs).unwrap();
    hvs.preempted(1, Cause::Slice, 10);
    assert_eq!(hvs.candidate(0), Some(1));
    hvs.running(1);
    hvs.preempted(1, Cause::Slice, 20);
    assert_eq!(hvs.list(1), Some(List::Yielded));
    // It runs without having been chosen.
    hvs.running(1);
    hvs.preempted(1, Cause::Slice, 30);
    assert_eq!(hvs.list(1), Some(List::ResourceWaiter));
}

#[test]
fn candidate_from_yielded_list_returns_to_it() {
    let mut hvs = Hvs::new(2, Order::Hvs).unwrap();
    hvs.preempted(1, Cause::Slice, 10);
    for now in [20, 30, 40] {
        assert_eq!(hvs.candidate(0), Some(1));
        hvs.running(1);
        hvs.preempted(1, Cause::Slice, now);
        assert_eq!(hvs.list(1), Some(List::Yielded));
    }
}

#[test]
fn mark_persists_until_slice_expires() {
    let mut hvs = Hvs::new(2, Order::Hvs).unwrap();
    hvs.preempted(1, Cause::Slice, 10);
    assert_eq!(hvs.candidate(0), Some(1));
    hvs.running(1);
    hvs.preempted(1, Cause::Spinning, 20);
    assert_eq!(hvs.list(1), Some(List::LockWaiter));
    assert!(hvs.is_marked(1));
    hvs.running(1);
    hvs.blocked(1);
    assert!(hvs.is_marked(1));
    hvs.running(1);
    hvs.preempted(1, Cause::Slice, 30);
    assert_eq!(hvs.list(1), Some(List::Yielded));
    assert!(!hvs.is_marked(1));
}

#[test]
fn yielded_list_is_earliest_first() {
    for order in ORDERS {
        let chosen = chosen_in_turn(&mut all_lists(order));
        assert_eq!(chosen[4..], [5, 6], "{order:?}");
    }
}

#[test]
fn spinner_is_never_chosen() {
    for order in ORDERS {
        let mut hvs = Hvs::new(2, order).unwrap();
        // If events race, the spinner may still be on a list.
        hvs.preempted(0, Cause::Slice, 10);
        assert_eq!(hvs.candidate(0), None, "{order:?}");
        assert!(!hvs.is_marked(0));
        hvs.preempted(1, Cause::Spinning, 5);
        assert_eq!(hvs.candidate(0), Some(1), "{order:?}");
    }
}

#[test]
fn no_candidate_without_ready_vcpu() {
    for order in ORDERS {
        let mut hvs = Hvs::new(4, order).unwrap();
        assert_eq!(hvs.candidate(0), None);
        for vcpu in 1..4 {
            hvs.preempted(vcpu, Cause::Slice, 10);
        }
        hvs.running(1);
        hvs.blocked(2);
        hvs.running(3);
        assert_eq!(hvs.candidate(0), None, "running and blocked are not ready");
        assert_eq!(Hvs::new(1, order).unwrap().candidate(0), None);
        assert_eq!(Hvs::new(0, order).unwrap().candidate(0), None);
    }
}

#[test]
fn lowest_index_wins_tie() {
    for order in ORDERS {
        for cause in [Cause::Slice, Cause::Spinning, Cause::Displaced] {
            let mut hvs = Hvs::new(5, order).unwrap();
            for vcpu in [4, 2, 3] {
                hvs.preempted(vcpu, cause, 7);
            }
            assert_eq!(chosen_in_turn(&mut hvs), [2, 3, 4], "{order:?} {cause:?}");
        }
    }
}

#[test]
fn list_order_precedes_time() {
    let in_turn = [
        (Order::Hvs, [2, 1, 4, 3]),
        (Order::CpthR, [1, 2, 4, 3]),
        (Order::CpthL, [2, 1, 3, 4]),
        (Order::Cch, [4, 3, 2, 1]),
    ];
    for (order, expected) in in_turn {
        let mut hvs = Hvs::new(5, order).unwrap();
        hvs.preempted(1, Cause::Slice, 0);
        hvs.preempted(2, Cause::Slice, u64::MAX);
        hvs.preempted(3, Cause::Spinning, u64::MAX);
        hvs.preempted(4, Cause::Spinning, 0);
        assert_eq!(chosen_in_turn(&mut hvs), expected, "{order:?}");
    }
}

#[test]
fn vcpu_limit_is_1024() {
    let mut hvs = Hvs::new(MAX_VCPUS, Order::Hvs).unwrap();
    for vcpu in 1..MAX_VCPUS {
        hvs.preempted(vcpu, Cause::Slice, vcpu as u64);
    }
    let in_turn: Vec<usize> = (1..MAX_VCPUS).rev().collect();
    assert_eq!(chosen_in_turn(&mut hvs), in_turn);
    let refused = Hvs::new(1025, Order::Hvs);
    assert_eq!(refused, Err(HvsError::TooManyVcpus { vcpus: 1025 }));
    assert_eq!(
        refused.unwrap_err().to_string(),
        "1025 vCPUs in one VM; HVS chooses among at most 1024"
    );
}

#[test]
fn out_of_range_indices_are_ignored() {
    let mut hvs = Hvs::new(2, Order::Hvs).unwrap();
    let before = hvs.clone();
    for vcpu in [2, 1 << 32, usize::MAX] {
        hvs.preempted(vcpu, Cause::Slice, 1);
        hvs.running(vcpu);
        hvs.blocked(vcpu);
        assert_eq!(hvs.list(vcpu), None);
        assert!(!hvs.is_marked(vcpu));
        assert!(!hvs.is_better(vcpu, 0));
    }
    assert_eq!(hvs, before);
    hvs.preempted(0, Cause::Slice, 1);
    assert_eq!(hvs.candidate(1 << 32), Some(0), "which is not vCPU 0 by its low bits");
}

/// Plain model of the description.
#[derive(Default)]
struct Model {
    resource: Vec<(u64, usize)>,
    lock: Vec<(u64, usize)>,
    yielded: Vec<(u64, usize)>,
    marked: BTreeSet<usize>,
}

impl Model {
    fn leave(&mut self, vcpu: usize) {
        for list in [&mut self.resource, &mut self.lock, &mut self.yielded] {
            list.retain(|&(_, on_it)| on_it != vcpu);
        }
    }

    fn preempted(&mut self, vcpu: usize, cause: Cause, now: u64) {
        self.leave(vcpu);
        match cause {
            Cause::Spinning => self.lock.push((now, vcpu)),
            Cause::Displaced => self.yielded.push((now, vcpu)),
            Cause::Slice if self.marked.remove(&vcpu) => self.yielded.push((now, vcpu)),
            Cause::Slice => self.resource.push((now, vcpu)),
        }
    }

    /// Returns all candidates, best first.
    fn in_order(&self, order: Order) -> Vec<usize> {
        let earliest = |list: &[(u64, usize)]| {
            let mut list = list.to_vec();
            list.sort_unstable();
            list
        };
        let latest = |list: &[(u64, usize)]| {
            let mut list = list.to_vec();
            list.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
            list
        };
        let resource = match order {
            Order::CpthR => earliest(&self.resource),
            _ => latest(&self.resource),
        };
        let lock = match order {
            Order::CpthL => latest(&self.lock),
            _ => earliest(&self.lock),
        };
        let (first, second) = match order {
            Order::Cch => (lock, resource),
            _ => (resource, lock),
        };
        let third = earliest(&self.yielded);
        let all = first.into_iter().chain(second).chain(third);
        all.map(|(_, vcpu)| vcpu).collect()
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Preempted(usize, Cause, u64),
    Running(usize),
    Blocked(usize),
    /// A spinning vCPU chooses a candidate, which runs if the flag is set.
    Choice(usize, bool),
}

fn events(vcpus: usize) -> impl Strategy<Value = Vec<Event>> {
    let cause = prop_oneof![Just(Cause::Slice), Just(Cause::Spinning), Just(Cause::Displaced)];
    let event = prop_oneof![
        4 => (0..vcpus, cause, 0_u64..3)
            .prop_map(|(vcpu, cause, later)| Event::Preempted(vcpu, cause, later)),
        1 => (0..vcpus).prop_map(Event::Running),
        1 => (0..vcpus).prop_map(Event::Blocked),
        3 => (0..vcpus, any::<bool>()).prop_map(|(vcpu, runs)| Event::Choice(vcpu, runs)),
    ];
    prop::collection::vec(event, 1..400)
}

fn matches_the_model(
    vcpus: usize,
    order: Order,
    began: u64,
    events: Vec<Event>,
) -> Result<(), TestCaseError> {
    let mut hvs = Hvs::new(vcpus, order).unwrap();
    let mut model = Model::default();
    let mut now = began;
    for event in events {
        match event {
            Event::Preempted(vcpu, cause, later) => {
                now += later;
                hvs.preempted(vcpu, cause, now);
                model.preempted(vcpu, cause, now);
            }
            Event::Running(vcpu) => {
                hvs.running(vcpu);
                model.leave(vcpu);
            }
            Event::Blocked(vcpu) => {
                hvs.blocked(vcpu);
                model.leave(vcpu);
            }
            Event::Choice(spinner, runs) => {
                let mut in_order = model.in_order(order);
                in_order.retain(|&vcpu| vcpu != spinner);
                for pair in in_order.windows(2) {
                    prop_assert!(!hvs.is_better(pair[1], pair[0]), "{pair:?}");
                }
                let chosen = in_order.first().copied();
                prop_assert_eq!(hvs.candidate(spinner), chosen);
                model.marked.extend(chosen);
                if let (Some(chosen), true) = (chosen, runs) {
                    hvs.running(chosen);
                    model.leave(chosen);
                }
            }
        }
        for vcpu in 0..vcpus {
            prop_assert_eq!(hvs.is_marked(vcpu), model.marked.contains(&vcpu));
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn random_events_match_the_model(
        began in prop::sample::select(&[0, u64::MAX / 2 - 200, u64::MAX - 1200][..]),
        (vcpus, order, events) in (1_usize..20, prop::sample::select(&ORDERS[..]))
            .prop_flat_map(|(vcpus, order)| (Just(vcpus), Just(order), events(vcpus))),
    ) {
        matches_the_model(vcpus, order, began, events)?;
    }

    #[test]
    fn better_is_a_strict_order(
        order in prop::sample::select(&ORDERS[..]),
        waiting in prop::collection::vec((0_u8..4, 0_u64..4), 3),
    ) {
        let mut hvs = Hvs::new(4, order).unwrap();
        for (vcpu, _) in waiting.iter().enumerate().filter(|(_, waiter)| waiter.0 == 3) {
            hvs.preempted(vcpu, Cause::Slice, 0);
            prop_assert_eq!(hvs.candidate(3), Some(vcpu));
            hvs.running(vcpu);
        }
        for (vcpu, &(list, at)) in waiting.iter().enumerate() {
            match list {
                0 => {}
                2 => hvs.preempted(vcpu, Cause::Spinning, at),
                _ => hvs.preempted(vcpu, Cause::Slice, at),
            }
        }
        for a in 0..3 {
            prop_assert!(!hvs.is_better(a, a));
            for b in 0..3 {
                prop_assert!(!(hvs.is_better(a, b) && hvs.is_better(b, a)));
                for c in 0..3 {
                    if hvs.is_better(a, b) && hvs.is_better(b, c) {
                        prop_assert!(hvs.is_better(a, c));
                    }
                }
            }
        }
    }
}
