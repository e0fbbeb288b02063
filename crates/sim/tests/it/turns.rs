//! The policy `turns` on the simulated host, with the production controller: gains of VMs that never sleep, unchanged shares of all VMs,
//! and the reverting of all changes.
//!
//! Work is relative to the same VM alone on the host.
//! Under CFS, a VM that enters the idle class gains much virtual time until the next tick.
//! The wrong VM therefore sometimes gets a tick of a turn, which makes turns less effective (see `docs/model.md`).

use std::collections::BTreeSet;

use crate::common::{HOG, scenario};
use tandem_model::{Decision, Nanos, PcpuSet, VmId};
use tandem_policy::flexw::Round;
use tandem_policy::host::{Host, HostObservation};
use tandem_sim::results::VmResults;
use tandem_sim::{Results, World};

/// Threads that meet at a spinning barrier in user space after every 45 µs of work.
const SPIN: &str = "
[[workload]]
name = \"spin\"
[workload.objects]
all = { kind = \"barrier\", wait = \"spin\" }
[[workload.role]]
threads = \"1 per vcpu\"
program = [ { forever = [ { compute = \"45us\" }, \"work\", { barrier = \"all\" } ] } ]
";

/// Threads that compute for 1.5 s of CPU time each, and then mostly sleep.
const TIRES: &str = "
[[workload]]
name = \"tires\"
[[workload.role]]
threads = \"1 per vcpu\"
program = [ { repeat = 1500, do = [ { compute = \"1ms\" } ] },
            { forever = [ { sleep = \"5ms\" }, { compute = \"200us\" }, \"work\" ] } ]
";

/// Threads that are mostly asleep.
const BURSTY: &str = "
[[workload]]
name = \"bursty\"
[[workload.role]]
threads = \"1 per vcpu\"
program = [ { forever = [ { sleep = \"exp(3ms)\" }, { compute = \"uniform(100us, 300us)\" }, \"work\" ] } ]
";

/// With turns, and without.
const TURNS: &str = "policies = [\"fair\", \"turns\"]";
const STOCK: &str = "policies = []";

/// A world of VMs, given as (vCPUs, workload, weight); `head` precedes the scenario's text.
fn world_of(head: &str, pcpus: u32, host: &str, vms: &[(u32, &str, u32)]) -> World {
    let mut text = format!(
        "{head}\nduration = \"6s\"\nwarmup = \"2s\"\n[machine]\npcpus = {pcpus}\n[host]\n{host}\n"
    );
    for (at, (vcpus, workload, weight)) in vms.iter().enumerate() {
        let name = format!("{workload}-{at}");
        text += &format!(
            "[[vm]]\nname = \"{name}\"\nvcpus = {vcpus}\nworkload = \"{workload}\"\nweight = {weight}\n"
        );
    }
    text += SPIN;
    text += TIRES;
    text += BURSTY;
    World::new(&scenario(&(text + HOG), &[]))
}

fn run(head: &str, pcpus: u32, host: &str, vms: &[(u32, &str, u32)]) -> Results {
    world_of(head, pcpus, host, vms).run()
}

/// CPU time that each VM received, in pCPUs.
fn received(results: &Results) -> Vec<f64> {
    let seconds = results.measured.as_secs_f64();
    let vms = results.vms.iter();
    vms.map(|vm| vm.received.as_secs_f64() / seconds).collect()
}

fn near(got: &[f64], due: &[f64], within: f64) {
    let is_near = |(got, due): (&f64, &f64)| (got / due - 1.0).abs() <= within;
    assert!(got.iter().zip(due).all(is_near), "{got:?}, not {due:?}");
}

/// Work of the spinning barrier next to other VMs, relative to its work alone.
fn work(head: &str, host: &str, others: &[(u32, &str, u32)]) -> f64 {
    let alone = run(STOCK, 2, host, &[(2, "spin", 1024)]).vms[0].work;
    let vms = [&[(2, "spin", 1024)], others].concat();
    run(head, 2, host, &vms).vms[0].work as f64 / alone as f64
}

const EEVDF: &str = "scheduler = \"eevdf\"";
const CFS: &str = "scheduler = \"cfs\"";
const CREDIT: &str = "scheduler = \"credit\"";
const LONG: &str = "policies = { fair = true, turns = { turn = \"40ms\" } }";
const BURN: [(u32, &str, u32); 1] = [(2, "hog", 1024)];

#[test]
fn turns_restore_spinning_barrier_work() {
    let (turns, stock) = (work(TURNS, EEVDF, &BURN), work(STOCK, EEVDF, &BURN));
    assert!(turns >= 0.40, "{turns}");
    assert!(stock < 0.30, "{stock}");
    let shares = received(&run(TURNS, 2, EEVDF, &[(2, "spin", 1024), (2, "hog", 1024)]));
    near(&shares, &[1.0, 1.0], 0.03);
}

#[test]
fn turns_help_among_more_neighbours() {
    let two = [(2, "hog", 1024), (2, "hog", 1024)];
    let (turns, stock) = (work(TURNS, EEVDF, &two), work(STOCK, EEVDF, &two));
    assert!(turns >= 0.29 && stock < 0.15, "{turns}, {stock}");
    let other = [(2, "spin", 1024)];
    let (turns, stock) = (work(TURNS, EEVDF, &other), work(STOCK, EEVDF, &other));
    assert!(turns >= 0.42 && stock < 0.30, "{turns}, {stock}");
}

#[test]
fn cfs_needs_longer_turns() {
    let (turns, long) = (work(TURNS, CFS, &BURN), work(LONG, CFS, &BURN));
    assert!(turns >= 0.33, "{turns}");
    assert!(long >= 0.40, "{long}");
    let shares = received(&run(TURNS, 2, CFS, &[(2, "spin", 1024), (2, "hog", 1024)]));
    near(&shares, &[1.0, 1.0], 0.03);
}

#[test]
fn credit_takes_no_turns() {
    let vms = [(2, "spin", 1024), (2, "hog", 1024)];
    let mut world = world_of(TURNS, 2, CREDIT, &vms);
    world.record_decisions();
    let with = world.run();
    let decided = world.take_decisions();
    assert!(!decided.is_empty());
    for (host, round) in decided {
        assert!(round.rotation.is_some_and(|rotation| rotation.is_empty()));
        assert!(host.vms.iter().all(|vm| !vm.in_force.idle && !vm.in_force.rotating));
    }
    let without = run("policies = [\"fair\"]", 2, CREDIT, &vms);
    assert!(with == without, "turns change something");
}

#[test]
fn shares_follow_weights_of_three_to_one() {
    for host in [EEVDF, CFS] {
        let shares = received(&run(TURNS, 2, host, &[(2, "spin", 3072), (2, "hog", 1024)]));
        near(&shares, &[1.5, 0.5], 0.05);
    }
    let alone = run(STOCK, 2, EEVDF, &[(2, "spin", 1024)]).vms[0].work as f64;
    let shared = run(TURNS, 2, EEVDF, &[(2, "spin", 3072), (2, "hog", 1024)]).vms[0].work as f64;
    assert!(shared / alone > 0.65, "{}", shared / alone);
}

/// Wake-ups of a VM's threads with a latency above 4 ms, and the maximum latency.
fn long_wakes(vm: &VmResults) -> (u64, Nanos) {
    let long = vm.wake_latency.buckets.iter().skip(23);
    (long.sum(), vm.wake_latency.max)
}

#[test]
fn sleeping_vm_leaves_within_a_turn() {
    let vms = [(2, "tires", 1024), (2, "spin", 1024), (2, "hog", 1024)];
    let mut world = world_of(TURNS, 2, EEVDF, &vms);
    world.record_decisions();
    // Its first wake-up is after about 4.5 s.
    let results = world.run();
    let decided = world.take_decisions();
    let rotates = |vm: u64| {
        let periods = decided.iter();
        periods.map(|(host, _)| host.vm(VmId(vm)).unwrap().in_force.rotating).collect::<Vec<bool>>()
    };
    let of_first = rotates(0);
    let (first, last) = (
        of_first.iter().position(|&rotates| rotates).unwrap(),
        of_first.iter().rposition(|&rotates| rotates).unwrap(),
    );
    assert!(first < 10 && last < of_first.len() - 5, "{of_first:?}");
    assert!(of_first[first..=last].iter().all(|&rotates| rotates));
    assert!(rotates(1).last().unwrap(), "the others continue");
    let left = decided.iter().filter(|(host, _)| host.vm(VmId(0)).unwrap().in_force.left_turns);
    assert_eq!(left.count(), 1);
    // Each of its two threads waits for at most the rest of one rotation of three turns.
    let (long, longest) = long_wakes(&results.vms[0]);
    assert!(results.vms[0].wake_latency.count > 200);
    assert!(long <= 6, "{long} waits of more than 4 ms");
    assert!(longest <= Nanos::from_millis(70), "{longest}");
}

#[test]
fn departed_vm_wakes_as_under_stock() {
    let vms = [(2, "tires", 1024), (2, "spin", 1024), (2, "hog", 1024)];
    let latency = |head: &str| {
        let mut world = world_of(head, 2, EEVDF, &vms);
        world.run_until(Nanos::from_millis(5200));
        let (before, after) = (world.results(), world.run());
        let (before, after) = (&before.vms[0].wake_latency, &after.vms[0].wake_latency);
        let count = after.count - before.count;
        (after.sum.0 - before.sum.0) / count
    };
    let (turns, stock) = (latency(TURNS), latency(STOCK));
    assert!(turns as f64 <= 1.2 * stock as f64, "{turns} ns, {stock} ns");
}

#[test]
fn resident_gets_its_fair_share() {
    let rotating = [(2, "spin", 1024), (2, "hog", 1024)];
    let vms = [&[(2, "bursty", 1024)], &rotating[..]].concat();
    for host in [EEVDF, CFS] {
        let alone = run(STOCK, 2, host, &vms[..1]);
        let turns = run(TURNS, 2, host, &vms);
        let stock = run(STOCK, 2, host, &vms);
        let bursts = |results: &Results| results.vms[0].work as f64;
        // Its demand is far below a third of the host.
        let part = bursts(&turns) / bursts(&alone);
        assert!(part >= 0.95 || bursts(&turns) >= bursts(&stock), "{host}: {part}");
        let shares = received(&turns);
        near(&shares[1..], &[(2.0 - shares[0]) / 2.0; 2], 0.05);
    }
}

/// CPU time of VMs of equal weight with these numbers of vCPUs on `pcpus` pCPUs, relative to their fair shares.
fn parts(pcpus: u32, vcpus: &[u32]) -> Vec<f64> {
    let vms: Vec<(u32, &str, u32)> = vcpus.iter().map(|&n| (n, "hog", 1024)).collect();
    let due = f64::from(pcpus) / vcpus.len() as f64;
    let shares = received(&run(TURNS, pcpus, EEVDF, &vms));
    shares.into_iter().map(|share| share / due).collect()
}

#[test]
fn unequal_vms_share_16_pcpus() {
    // No rotation gives each of the four a quarter of the host, so the smallest is a resident and gets its fair share by weight.
    near(&parts(16, &[16, 8, 8, 4]), &[1.0; 4], 0.07);
}

#[test]
fn unequal_vms_share_64_pcpus() {
    // Busy pCPUs of such a host compare loads once per second (docs/decisions/030).
    // After six seconds, the largest VM is therefore still below its fair share.
    near(&parts(64, &[64, 32, 32, 16]), &[1.0; 4], 0.15);
}

#[test]
fn spinning_vm_gains_on_16_pcpus() {
    let vms = [(16, "spin", 1024), (8, "hog", 1024), (8, "hog", 1024)];
    let work = |head: &str| run(head, 16, EEVDF, &vms).vms[0].work as f64;
    let alone = run(STOCK, 16, EEVDF, &vms[..1]).vms[0].work as f64;
    // A third of the host is a third of the rotation, minus the time until the last of 16 pCPUs has its tick.
    let (turns, stock) = (work(TURNS) / alone, work(STOCK) / alone);
    assert!(turns > 0.15 && turns > 10.0 * stock, "{turns}, {stock}");
}

#[test]
fn affinity_reverts_when_a_vm_leaves() {
    let vms = [(2, "tires", 1024), (2, "spin", 1024), (2, "hog", 1024)];
    let mut world = world_of(TURNS, 2, EEVDF, &vms);
    world.record_decisions();
    world.run();
    let everywhere: PcpuSet = "0-1".parse().unwrap();
    let mut seen = BTreeSet::new();
    for (host, round) in world.take_decisions() {
        for vm in &host.vms {
            for vcpu in &vm.vcpus {
                assert_eq!(*vcpu.granted(), everywhere);
                assert_eq!(vcpu.granted, None, "slots are no pins");
                seen.insert((vm.vm, vm.in_force.rotating));
            }
        }
        let mut decisions = round.decisions.iter();
        assert!(!decisions.any(|decision| matches!(decision, Decision::SetAffinity { .. })));
    }
    let first = VmId(0);
    assert!(seen.contains(&(first, true)) && seen.contains(&(first, false)), "{seen:?}");
    let last = world.observe(Nanos(1), Nanos(1), true);
    assert!(last[0].vcpus.iter().all(|vcpu| vcpu.allowed == everywhere && vcpu.granted.is_none()));
}

/// One computing VM of two vCPUs and three of one, for two pCPUs.
const TIGHT: [(u32, &str, u32); 4] =
    [(2, "hog", 1024), (1, "hog", 1024), (1, "hog", 1024), (1, "hog", 1024)];

/// Minimum CPU time of any of these VMs in a second, after the first two, relative to its fair share of half a pCPU.
fn min_share_in_a_second(head: &str, vms: &[(u32, &str, u32)]) -> f64 {
    let mut world = world_of(head, 2, EEVDF, vms);
    let mut least = f64::MAX;
    let mut before: Option<Vec<Nanos>> = None;
    for second in 2..=6 {
        world.run_until(Nanos::from_secs(second));
        let now: Vec<Nanos> = world.results().vms.iter().map(|vm| vm.received).collect();
        if let Some(before) = before {
            let received = now.iter().zip(&before).map(|(now, then)| now.0 - then.0);
            least = received.fold(least, |least, ns| least.min(ns as f64 / 0.5e9));
        }
        before = Some(now);
    }
    least
}

#[test]
fn split_vm_gets_its_fair_share() {
    let mut world = world_of(TURNS, 2, EEVDF, &TIGHT);
    world.record_decisions();
    near(&received(&world.run()), &[0.5; 4], 0.02);
    let decided = world.take_decisions();
    let last = &decided.last().unwrap().1;
    let members = &last.rotation.as_ref().unwrap().members;
    let slots: Vec<usize> = members.iter().map(|member| member.slots.len()).collect();
    assert_eq!(slots, [1, 1, 2, 1]);
    let least = min_share_in_a_second(TURNS, &TIGHT);
    assert!(least >= 0.95, "{least}");
}

#[test]
fn sleeping_vm_regains_its_affinity() {
    let mut vms = TIGHT;
    vms[3].1 = "tires";
    let mut world = world_of(TURNS, 2, EEVDF, &vms);
    world.record_decisions();
    world.run();
    let decided = world.take_decisions();
    let rotates = |(host, _): &&(HostObservation, Round)| host.vms[3].in_force.rotating;
    assert!(decided.iter().any(|period| rotates(&period)));
    let (host, round) = decided.last().unwrap();
    assert!(!host.vms[3].in_force.rotating);
    let members = &round.rotation.as_ref().unwrap().members;
    assert!(members.iter().all(|member| member.vm != VmId(3)));
    assert!(host.vms.iter().all(|vm| vm.vcpus[0].allowed.len() == 2));
}

#[test]
fn concurrent_simulations_give_equal_results() {
    let vms = [(4, "spin", 1024), (2, "hog", 1024), (2, "bursty", 512)];
    let once = run(TURNS, 4, EEVDF, &vms);
    let again = || std::thread::spawn(move || run(TURNS, 4, EEVDF, &vms));
    let threads: Vec<_> = (0..3).map(|_| again()).collect();
    for thread in threads {
        assert!(thread.join().unwrap() == once, "the results differ");
    }
}
