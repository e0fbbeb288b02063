//! The policy `turns` on the simulated host, by the controller that ships: what VMs that never sleep gain, what nobody loses, and that
//! everything is put back.
//!
//! Work is relative to the same VM alone on the host. Under CFS a VM that enters the idle class gains so much virtual time until the
//! next tick that now and then the wrong VM has a tick of a turn, so turns are worth less there (see `docs/model.md`).

use std::collections::BTreeSet;

use crate::common::{HOG, scenario};
use tandem_model::{Decision, Nanos, PcpuSet, VmId};
use tandem_policy::flexw::Round;
use tandem_policy::host::{Host, HostObservation};
use tandem_sim::results::VmResults;
use tandem_sim::{Results, World};

/// Threads that meet at a barrier for which they spin in user space, every 45 µs of work.
const SPIN: &str = "
[[workload]]
name = \"spin\"
[workload.objects]
all = { kind = \"barrier\", wait = \"spin\" }
[[workload.role]]
threads = \"1 per vcpu\"
program = [ { forever = [ { compute = \"45us\" }, \"work\", { barrier = \"all\" } ] } ]
";

/// Threads that compute for 1.5 s of CPU each, and then mostly sleep.
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

/// VMs as (vCPUs, workload, weight) on so many pCPUs; `head` goes first.
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

/// pCPUs that each VM received.
fn received(results: &Results) -> Vec<f64> {
    let seconds = results.measured.as_secs_f64();
    let vms = results.vms.iter();
    vms.map(|vm| vm.received.as_secs_f64() / seconds).collect()
}

fn near(got: &[f64], due: &[f64], within: f64) {
    let is_near = |(got, due): (&f64, &f64)| (got / due - 1.0).abs() <= within;
    assert!(got.iter().zip(due).all(is_near), "{got:?}, not {due:?}");
}

/// A spinning barrier's work beside others, relative to alone.
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
fn a_spinning_barrier_beside_a_computing_vm_does_almost_half_of_what_it_does_alone() {
    let (turns, stock) = (work(TURNS, EEVDF, &BURN), work(STOCK, EEVDF, &BURN));
    assert!(turns >= 0.40, "{turns}");
    assert!(stock < 0.30, "{stock}");
    let shares = received(&run(TURNS, 2, EEVDF, &[(2, "spin", 1024), (2, "hog", 1024)]));
    near(&shares, &[1.0, 1.0], 0.03);
}

#[test]
fn beside_more_vms_it_does_nine_tenths_of_what_its_share_deserves() {
    let two = [(2, "hog", 1024), (2, "hog", 1024)];
    let (turns, stock) = (work(TURNS, EEVDF, &two), work(STOCK, EEVDF, &two));
    assert!(turns >= 0.29 && stock < 0.15, "{turns}, {stock}");
    let other = [(2, "spin", 1024)];
    let (turns, stock) = (work(TURNS, EEVDF, &other), work(STOCK, EEVDF, &other));
    assert!(turns >= 0.42 && stock < 0.30, "{turns}, {stock}");
}

#[test]
fn under_cfs_it_does_so_with_longer_turns() {
    let (turns, long) = (work(TURNS, CFS, &BURN), work(LONG, CFS, &BURN));
    assert!(turns >= 0.33, "{turns}");
    assert!(long >= 0.40, "{long}");
    let shares = received(&run(TURNS, 2, CFS, &[(2, "spin", 1024), (2, "hog", 1024)]));
    near(&shares, &[1.0, 1.0], 0.03);
}

#[test]
fn credit_has_no_idle_class_and_so_no_turns() {
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
    let beside = run(TURNS, 2, EEVDF, &[(2, "spin", 3072), (2, "hog", 1024)]).vms[0].work as f64;
    assert!(beside / alone > 0.65, "{}", beside / alone);
}

/// How often and how long threads of a VM waited for a pCPU when they woke: longer than 4 ms, and the longest.
fn long_wakes(vm: &VmResults) -> (u64, Nanos) {
    let long = vm.wake_latency.buckets.iter().skip(23);
    (long.sum(), vm.wake_latency.max)
}

#[test]
fn a_vm_that_begins_to_sleep_leaves_within_a_turn() {
    let vms = [(2, "tires", 1024), (2, "spin", 1024), (2, "hog", 1024)];
    let mut world = world_of(TURNS, 2, EEVDF, &vms);
    world.record_decisions();
    // It wakes for the first time after about 4.5 s.
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
    assert!(rotates(1).last().unwrap(), "the others go on");
    let left = decided.iter().filter(|(host, _)| host.vm(VmId(0)).unwrap().in_force.left_turns);
    assert_eq!(left.count(), 1);
    // Each of its two threads waits for the rest of one rotation at most: three turns.
    let (long, longest) = long_wakes(&results.vms[0]);
    assert!(results.vms[0].wake_latency.count > 200);
    assert!(long <= 6, "{long} waits of more than 4 ms");
    assert!(longest <= Nanos::from_millis(70), "{longest}");
}

#[test]
fn its_wakeups_are_then_as_under_stock() {
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
fn a_vm_always_on_has_its_due_beside_the_rotation() {
    let rotating = [(2, "spin", 1024), (2, "hog", 1024)];
    let vms = [&[(2, "bursty", 1024)], &rotating[..]].concat();
    for host in [EEVDF, CFS] {
        let alone = run(STOCK, 2, host, &vms[..1]);
        let beside = run(TURNS, 2, host, &vms);
        let stock = run(STOCK, 2, host, &vms);
        let bursts = |results: &Results| results.vms[0].work as f64;
        // What it wants is far less than a third of the host.
        let part = bursts(&beside) / bursts(&alone);
        assert!(part >= 0.95 || bursts(&beside) >= bursts(&stock), "{host}: {part}");
        let shares = received(&beside);
        near(&shares[1..], &[(2.0 - shares[0]) / 2.0; 2], 0.05);
    }
}

/// What each of these VMs, all equal, received on so many pCPUs, relative to what it is due.
fn parts(pcpus: u32, vcpus: &[u32]) -> Vec<f64> {
    let vms: Vec<(u32, &str, u32)> = vcpus.iter().map(|&n| (n, "hog", 1024)).collect();
    let due = f64::from(pcpus) / vcpus.len() as f64;
    let shares = received(&run(TURNS, pcpus, EEVDF, &vms));
    shares.into_iter().map(|share| share / due).collect()
}

#[test]
fn vms_of_16_8_8_and_4_vcpus_share_16_pcpus() {
    // In rows the four cannot all have a quarter of the host, so the smallest stays on and has its due by weight.
    near(&parts(16, &[16, 8, 8, 4]), &[1.0; 4], 0.07);
}

#[test]
fn vms_of_64_32_32_and_16_vcpus_share_64_pcpus() {
    // Busy pCPUs of such a host compare loads once a second (docs/decisions/030), so in six seconds the largest VM has not yet all of its due.
    near(&parts(64, &[64, 32, 32, 16]), &[1.0; 4], 0.15);
}

#[test]
fn spinning_vms_gain_on_16_pcpus_too() {
    let vms = [(16, "spin", 1024), (8, "hog", 1024), (8, "hog", 1024)];
    let work = |head: &str| run(head, 16, EEVDF, &vms).vms[0].work as f64;
    let alone = run(STOCK, 16, EEVDF, &vms[..1]).vms[0].work as f64;
    // A third of the host is a third of the rows, less what it takes until the last of 16 pCPUs has its tick.
    let (turns, stock) = (work(TURNS) / alone, work(STOCK) / alone);
    assert!(turns > 0.2 && turns > 10.0 * stock, "{turns}, {stock}");
}

#[test]
fn affinities_are_put_back_when_a_vm_leaves() {
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
                seen.insert((vm.vm, vm.in_force.rotating, vcpu.allowed.len()));
            }
        }
        let seats = round.decisions.iter().filter_map(|decision| match decision {
            Decision::SetAffinity { pcpus, .. } => Some(pcpus.len()),
            _ => None,
        });
        assert!(seats.into_iter().all(|size| size == 1 || size == 2));
    }
    let first = VmId(0);
    // In the rotation on one pCPU each, and out of it anywhere again.
    assert!(seen.contains(&(first, true, 1)) && seen.contains(&(first, false, 2)), "{seen:?}");
    let last = world.observe(Nanos(1), Nanos(1), true);
    assert!(last[0].vcpus.iter().all(|vcpu| vcpu.allowed == everywhere && vcpu.granted.is_none()));
}

/// One VM of two vCPUs and three of one that compute, on two pCPUs.
const TIGHT: [(u32, &str, u32); 4] =
    [(2, "hog", 1024), (1, "hog", 1024), (1, "hog", 1024), (1, "hog", 1024)];

/// The least that any of these VMs, due half a pCPU each, received of it in a second, after two.
fn least_in_a_second(head: &str, vms: &[(u32, &str, u32)]) -> f64 {
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
fn vms_of_one_vcpu_for_which_fixed_seats_are_too_tight_roam_and_have_their_dues() {
    let mut world = world_of(TURNS, 2, EEVDF, &TIGHT);
    world.record_decisions();
    near(&received(&world.run()), &[0.5; 4], 0.02);
    let decided = world.take_decisions();
    let last = &decided.last().unwrap().1;
    let members = &last.rotation.as_ref().unwrap().members;
    let roams: Vec<bool> = members.iter().map(|m| m.roams.is_some()).collect();
    assert_eq!(roams, [false, true, true, true]);
    // No policy has to move them, and where they may run is what the operator allowed.
    let everywhere: PcpuSet = "0-1".parse().unwrap();
    for (host, round) in &decided[decided.len() / 2..] {
        let moves = round.decisions.iter();
        assert!(!moves.into_iter().any(|d| matches!(d, Decision::SetAffinity { .. })));
        for vm in &host.vms[1..] {
            assert_eq!(vm.vcpus[0].allowed, everywhere);
            assert_eq!(vm.vcpus[0].granted, None);
        }
    }
    let least = least_in_a_second(TURNS, &TIGHT);
    assert!(least >= 0.95, "{least}");
}

#[test]
fn one_that_roams_and_begins_to_sleep_may_run_everywhere_again() {
    let mut vms = TIGHT;
    vms[3].1 = "tires";
    let mut world = world_of(TURNS, 2, EEVDF, &vms);
    world.record_decisions();
    world.run();
    let decided = world.take_decisions();
    let rotates = |(host, _): &&(HostObservation, Round)| host.vms[3].in_force.rotating;
    assert!(decided.iter().any(|period| rotates(&period)));
    assert!(!rotates(&decided.last().unwrap()));
    // The other two fit on fixed seats then.
    let (host, round) = decided.last().unwrap();
    let members = &round.rotation.as_ref().unwrap().members;
    assert_eq!(members.len(), 3);
    assert!(members.iter().all(|member| member.roams.is_none()));
    let seats: Vec<usize> = host.vms.iter().map(|vm| vm.vcpus[0].allowed.len()).collect();
    assert_eq!(seats, [1, 1, 1, 2]);
    let granted: Vec<usize> = host.vms.iter().map(|vm| vm.vcpus[0].granted().len()).collect();
    assert_eq!(granted, [2; 4]);
}

#[test]
fn whoever_else_simulates_meanwhile_changes_nothing() {
    let vms = [(4, "spin", 1024), (2, "hog", 1024), (2, "bursty", 512)];
    let once = run(TURNS, 4, EEVDF, &vms);
    let again = || std::thread::spawn(move || run(TURNS, 4, EEVDF, &vms));
    let threads: Vec<_> = (0..3).map(|_| again()).collect();
    for thread in threads {
        assert!(thread.join().unwrap() == once, "another result");
    }
}
