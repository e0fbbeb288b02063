//! Sums of synthetic intervals.

use proptest::prelude::*;

use super::*;
use crate::states::State;
use crate::states::interval::{HostTotals, SourceName};
use crate::states::programs::Programs;

/// Activity of a vCPU in an interval.
#[derive(Clone, Debug)]
struct Doing {
    vm: u64,
    vcpu: u32,
    wall: u64,
    parts: Vec<(State, u64)>,
    culprit: u64,
    waited: u64,
}

fn doing() -> impl Strategy<Value = Doing> {
    let states = [State::Run, State::Poll, State::Vmm, State::Ready, State::Limited, State::Costop];
    let parts = proptest::sample::subsequence(states.to_vec(), 0..=6);
    let parts = parts.prop_flat_map(|states| {
        let times = proptest::collection::vec(0..500u64, states.len());
        times.prop_map(move |times| states.clone().into_iter().zip(times).collect())
    });
    (0..3u64, 0..3u32, 0..2_000u64, parts, 0..4u64, 0..50u64).prop_map(
        |(vm, vcpu, wall, parts, culprit, waited)| Doing { vm, vcpu, wall, parts, culprit, waited },
    )
}

fn interval(start: u64, doings: &[Doing], idle: Option<u64>) -> Interval {
    let mut vms: BTreeMap<u64, BTreeMap<u32, VcpuInterval>> = BTreeMap::new();
    let mut edges = EdgesBuilder::new();
    for doing in doings {
        let parts = doing.parts.iter().map(|(state, time)| (*state, Nanos(*time)));
        let vcpu = VcpuInterval {
            vcpu: VcpuId(doing.vcpu),
            times: VcpuTimes::from_parts(Nanos(doing.wall), parts).unwrap(),
            ran: Nanos(doing.wall / 2),
            waited: Nanos(doing.waited),
            runs: 1,
            wakeups: (doing.wall % 3 != 0).then_some(2),
            runnable: doing.wall % 2 == 0,
            allowed: "0-1".parse().unwrap(),
        };
        vms.entry(doing.vm).or_default().insert(doing.vcpu, vcpu);
        let victim = edges.party(&Party::Vcpu { vm: VmId(doing.vm), vcpu: VcpuId(doing.vcpu) });
        let culprit = edges.party(&Party::Vm(VmId(doing.culprit)));
        let amount = Amount::time(Nanos(doing.waited));
        edges.add(victim, culprit, EdgeKind::Pcpu, Evidence::Estimated, amount);
    }
    let vms = vms.into_iter().map(|(vm, vcpus)| VmInterval {
        vm: VmId(vm),
        vcpus: vcpus.into_values().collect(),
        threads: vec![ThreadTime { name: format!("io{}", vm % 2), time: Nanos(start) }],
    });
    Interval {
        source: SourceName::Plain,
        start: Nanos(start),
        length: Nanos(1_000),
        vms: vms.collect(),
        edges: edges.all(),
        host: HostTotals {
            pcpus: 2,
            idle: idle.map(Nanos),
            tasks: Nanos(5),
            top_tasks: vec![ProcessTime {
                name: "make".to_owned(),
                pid: start as u32 % 3,
                cgroup: None,
                time: Nanos(5),
            }],
            ..HostTotals::default()
        },
        missing: Vec::new(),
        programs: None,
    }
}

fn sum<'a>(intervals: impl IntoIterator<Item = &'a Interval>) -> Option<Interval> {
    let mut sum = IntervalSum::new();
    intervals.into_iter().for_each(|interval| sum.add(interval));
    sum.finish()
}

fn walls(interval: &Interval) -> BTreeMap<(VmId, VcpuId), u64> {
    let mut walls = BTreeMap::new();
    for vm in &interval.vms {
        for vcpu in &vm.vcpus {
            *walls.entry((vm.vm, vcpu.vcpu)).or_insert(0) += vcpu.times.wall().0;
        }
    }
    walls
}

proptest! {
    /// Each vCPU's states sum to its wall time, the sum over its intervals, for any measured states and present vCPUs.
    #[test]
    fn times_sum_to_the_wall_time(
        all in proptest::collection::vec(proptest::collection::vec(doing(), 0..6), 1..6),
    ) {
        let intervals: Vec<Interval> =
            all.iter().zip(0..).map(|(doings, at)| interval(at, doings, Some(7))).collect();
        let whole = sum(&intervals).unwrap();
        let mut expected = BTreeMap::new();
        for (vcpu, wall) in intervals.iter().flat_map(walls) {
            *expected.entry(vcpu).or_insert(0) += wall;
        }
        prop_assert_eq!(walls(&whole), expected);
        for vcpu in whole.vms.iter().flat_map(|vm| &vm.vcpus) {
            let measured: u64 =
                State::ALL.iter().filter_map(|state| vcpu.times.get(*state)).map(|time| time.0).sum();
            prop_assert_eq!(measured, vcpu.times.wall().0);
        }
        let waited = |interval: &Interval| interval.edges.total(EdgeKind::Pcpu).0;
        prop_assert_eq!(waited(&whole), intervals.iter().map(waited).sum::<u64>());
        prop_assert_eq!(whole.length.0, 1_000 * intervals.len() as u64);
        prop_assert_eq!(whole.host.idle, Some(Nanos(7 * intervals.len() as u64)));
    }

    /// Sums of partial sums equal the total sum.
    #[test]
    fn sums_of_sums_are_the_sum(
        all in proptest::collection::vec(proptest::collection::vec(doing(), 0..6), 2..6),
        cut in 1..5usize,
    ) {
        let intervals: Vec<Interval> =
            all.iter().zip(0..).map(|(doings, at)| interval(at, doings, Some(at))).collect();
        let (first, rest) = intervals.split_at(cut.min(intervals.len() - 1));
        let parts = [sum(first).unwrap(), sum(rest).unwrap()];
        prop_assert_eq!(sum(&parts), sum(&intervals));
    }
}

#[test]
fn sum_of_none_and_of_one_interval() {
    assert_eq!(sum([]), None);
    let doing = Doing {
        vm: 1,
        vcpu: 0,
        wall: 900,
        parts: vec![(State::Run, 100), (State::Poll, 3)],
        culprit: 2,
        waited: 9,
    };
    let one = interval(3, &[doing], None);
    assert_eq!(sum([&one]), Some(one));
}

#[test]
fn part_missing_once_is_missing_in_sum() {
    let mut one = interval(0, &[], Some(4));
    let two = interval(1, &[], None);
    let missing =
        |vms, of| Missing { what: Column::State(State::Poll), vms, of, want: "root".to_owned() };
    one.missing = vec![missing(1, 2)];
    let mut three = one.clone();
    three.missing = vec![missing(2, 4)];
    let whole = sum([&one, &two, &three]).unwrap();
    assert_eq!(whole.host.idle, None);
    assert_eq!(whole.missing, [missing(2, 4)]);
    three.missing = vec![missing(0, 0)];
    assert_eq!(sum([&three, &one]).unwrap().missing, [missing(0, 0)]);
    let named: Vec<(u32, u64)> =
        whole.host.top_tasks.iter().map(|process| (process.pid, process.time.0)).collect();
    assert_eq!(named, [(0, 10), (1, 5)], "descending time");
}

#[test]
fn program_information_needs_all_intervals() {
    let with = |waits: u64| {
        let mut one = interval(waits, &[], None);
        let mut programs = Programs::default();
        programs.not_counted.waits = waits;
        programs.latency.entry(VmId(3)).or_default().counts[9] = waits;
        one.programs = Some(programs);
        one
    };
    let whole = sum([&with(1), &with(2), &with(4)]).unwrap();
    let programs = whole.programs.unwrap();
    assert_eq!(programs.not_counted.waits, 7);
    assert_eq!(programs.latency[&VmId(3)].count(), 7);
    let without = interval(9, &[], None);
    assert_eq!(sum([&with(1), &without]).unwrap().programs, None);
    assert_eq!(sum([&without, &with(1)]).unwrap().programs, None);
}
