//! Sorting, merging and truncation of edges.

use super::*;
use crate::units::VcpuId;

fn vcpu(vm: u64, vcpu: u32) -> Party {
    Party::Vcpu { vm: VmId(vm), vcpu: VcpuId(vcpu) }
}

fn process(name: &str) -> Party {
    Party::Process { name: name.to_owned(), cgroup: Some("/system.slice".to_owned()) }
}

fn ms(ms: u64) -> Amount {
    Amount::time(Nanos::from_millis(ms))
}

fn built(edges: &[(Party, Party, u64)]) -> EdgesBuilder {
    let mut builder = EdgesBuilder::new();
    for (victim, culprit, time) in edges {
        let (victim, culprit) = (builder.party(victim), builder.party(culprit));
        builder.add(victim, culprit, EdgeKind::Pcpu, Evidence::Estimated, ms(*time));
    }
    builder
}

fn example() -> Vec<(Party, Party, u64)> {
    vec![
        (vcpu(1, 0), vcpu(2, 0), 10),
        (vcpu(1, 1), vcpu(2, 1), 20),
        (vcpu(1, 0), vcpu(1, 1), 5),
        (vcpu(1, 0), process("make"), 12),
        (vcpu(2, 0), Party::KernelThread("ksoftirqd/0".to_owned()), 1),
    ]
}

fn culprits(edges: &Edges, victim: &Party) -> Vec<(Party, u64)> {
    let edges = edges.of(victim, EdgeKind::Pcpu);
    edges.map(|edge| (edge.culprit.clone(), edge.time().0 / 1_000_000)).collect()
}

#[test]
fn edge_order_is_independent_of_insertion() {
    let mut backwards = example();
    backwards.reverse();
    assert_eq!(built(&example()).all(), built(&backwards).all());
    assert_eq!(
        culprits(&built(&backwards).all(), &vcpu(1, 0)),
        [(process("make"), 12), (vcpu(2, 0), 10), (vcpu(1, 1), 5)]
    );
    let equal = [4, 2, 3].map(|vm| (vcpu(1, 0), vcpu(vm, 0), 9));
    let of_one = culprits(&built(&equal).all(), &vcpu(1, 0));
    assert_eq!(of_one, [2, 3, 4].map(|vm| (vcpu(vm, 0), 9)));
    assert!(culprits(&built(&equal).all(), &vcpu(9, 9)).is_empty());
}

#[test]
fn edges_add_up_per_kind_and_evidence() {
    let mut builder = built(&example());
    let (victim, culprit) = (builder.party(&vcpu(1, 0)), builder.party(&vcpu(2, 0)));
    let estimated = Evidence::Estimated;
    builder.add(victim, culprit, EdgeKind::Pcpu, estimated, ms(7));
    builder.add(victim, culprit, EdgeKind::Pcpu, estimated, ms(0));
    builder.add(victim, culprit, EdgeKind::Pcpu, Evidence::Measured, ms(1));
    builder.add(victim, culprit, EdgeKind::Sibling, estimated, ms(3));
    let edges = builder.all();
    assert_eq!(edges.len(), example().len() + 2);
    assert_eq!(culprits(&edges, &vcpu(1, 0))[0], (vcpu(2, 0), 17));
    assert_eq!(edges.total(EdgeKind::Pcpu), Nanos::from_millis(56));
    assert_eq!(edges.total(EdgeKind::Sibling), Nanos::from_millis(3));
}

#[test]
fn edges_without_time_keep_counts() {
    let yields = |counts: &[Option<u64>]| {
        let mut builder = EdgesBuilder::new();
        let (one, two) = (builder.party(&vcpu(1, 0)), builder.party(&vcpu(1, 1)));
        for &count in counts {
            let amount = Amount { time: Nanos::ZERO, count };
            builder.add(one, two, EdgeKind::YieldTaken, Evidence::Measured, amount);
        }
        let edges = builder.all();
        let count = edges.iter().next().map(|edge| edge.amount.count);
        (edges.len(), count)
    };
    assert_eq!(yields(&[Some(3), Some(4)]), (1, Some(Some(7))));
    assert_eq!(yields(&[Some(0), None]), (0, None));
}

#[test]
fn top_merges_short_edges_into_others() {
    let mut edges: Vec<_> = (2..40).map(|vm| (vcpu(1, 0), Party::Vm(VmId(vm)), vm)).collect();
    edges.push((vcpu(1, 0), Party::Vm(VmId(1)), 1));
    let whole = built(&edges).all();
    let short = built(&edges).top(3);
    assert_eq!(short.total(EdgeKind::Pcpu), whole.total(EdgeKind::Pcpu));
    let rest: u64 = (2..37).sum();
    let of_one = culprits(&short, &vcpu(1, 0));
    assert_eq!(of_one[0], (Party::Others, rest));
    let named: Vec<u64> = of_one[1..].iter().map(|(_, time)| *time).collect();
    assert_eq!(named, [39, 38, 37, 1], "the own VM is always named");
    // An edge to `Others` stays one, and does not count towards `k`.
    edges.push((vcpu(1, 0), Party::Others, 1_000));
    let of_one = culprits(&built(&edges).top(3), &vcpu(1, 0));
    assert_eq!(of_one[0], (Party::Others, 1_000 + rest));
}

#[test]
fn by_vm_merges_vcpus_and_keeps_time() {
    let edges = built(&example()).all();
    let whole = edges.by_vm();
    assert_eq!(whole.total(EdgeKind::Pcpu), edges.total(EdgeKind::Pcpu));
    let (one, two) = (Party::Vm(VmId(1)), Party::Vm(VmId(2)));
    let expected = [(two, 30), (process("make"), 12), (one.clone(), 5)];
    assert_eq!(culprits(&whole, &one), expected);
}
