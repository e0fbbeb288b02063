//! The host schedulers alone: vCPUs that always run, wake or wait, without a guest inside.
//!
//! Time advances in steps of 1 ms on all pCPUs at once, with a clock tick after each step.
//! As in the world, an idle pCPU pulls, and a busy one balances at its tick.
//! Switching costs nothing here.

use tandem_model::PcpuId;

use super::*;
use crate::sched::fair::CgroupMode;

const MS: u64 = 1_000_000;

struct TestHost {
    host: AnyScheduler,
    pcpus: u32,
    current: Vec<Option<u32>>,
    vm_of: Vec<u32>,
    received: Vec<u64>,
    idle: u64,
    now: u64,
}

fn set(pcpus: &[u32]) -> PcpuSet {
    pcpus.iter().map(|&p| PcpuId(p)).collect()
}

fn linux(discipline: Discipline) -> HostScheduler {
    HostScheduler::Linux(discipline)
}

fn credit() -> HostScheduler {
    HostScheduler::Credit(CreditConfig::default())
}

fn credit_of(age: CreditAge) -> HostScheduler {
    HostScheduler::Credit(CreditConfig::of(age))
}

fn flat(cpus: u32) -> Discipline {
    Discipline::eevdf_flat(cpus, CgroupMode::Smp)
}

fn all() -> [HostScheduler; 4] {
    [linux(Discipline::cfs(2)), linux(Discipline::eevdf(2)), linux(flat(2)), credit()]
}

impl TestHost {
    /// `vms` holds the weight of each VM and the affinity of each of its vCPUs.
    fn new(scheduler: &HostScheduler, pcpus: u32, vms: &[(f64, &[&[u32]])]) -> TestHost {
        let vcpus =
            || vms.iter().enumerate().flat_map(|(vm, (_, v))| v.iter().map(move |a| (vm, a)));
        let vm_of: Vec<u32> = vcpus().map(|(vm, _)| vm as u32).collect();
        let shape = Shape {
            pcpus,
            topology: Topology::of_caches(pcpus, pcpus),
            follows_topology: false,
            vm_of: vm_of.clone(),
            weights: vms.iter().map(|&(weight, _)| weight).collect(),
            vcpu_weights: vcpus().map(|_| 1024).collect(),
            allowed: vcpus().map(|(_, allowed)| set(allowed)).collect(),
            placement: Placement::LoadBalancing,
            busy_factor: BUSY_FACTOR,
        };
        TestHost {
            host: build(scheduler, shape),
            pcpus,
            current: vec![None; pcpus as usize],
            received: vec![0; vm_of.len()],
            vm_of,
            idle: 0,
            now: 0,
        }
    }

    fn start(mut self, queued: &[(u32, u32)]) -> TestHost {
        for &(v, p) in queued {
            self.host.enqueue(v, p, Enqueue::New, 0);
        }
        self
    }

    fn choose(&mut self, p: u32) {
        if let Some(v) = self.current[p as usize].take() {
            self.host.put_back(v, p, self.now);
        }
        self.current[p as usize] = self.host.pick(p, self.now);
        if self.current[p as usize].is_none()
            && let Some(moved) = self.host.pull(p, self.now)
        {
            self.carry_out(moved);
            self.current[p as usize] = self.host.pick(p, self.now);
        }
    }

    fn carry_out(&mut self, moved: Move) {
        assert_ne!(self.current[moved.from as usize], Some(moved.vcpu));
        self.host.dequeue(moved.vcpu, moved.from, false, self.now);
        self.host.enqueue(moved.vcpu, moved.to, Enqueue::Migrated, self.now);
    }

    fn step(&mut self) {
        for p in 0..self.pcpus {
            if self.current[p as usize].is_none() {
                self.choose(p);
            }
        }
        self.now += MS;
        for p in 0..self.pcpus {
            match self.current[p as usize] {
                Some(v) => {
                    self.host.account(v, p, MS, self.now);
                    self.received[v as usize] += MS;
                }
                None => self.idle += MS,
            }
        }
        for p in 0..self.pcpus {
            if self.current[p as usize].is_none() {
                continue;
            }
            let mut gives_way = self.host.tick(p, self.now);
            if let Some(moved) = self.host.balance(p, self.now) {
                self.carry_out(moved);
                gives_way |= self.host.preempts(moved.vcpu, p, self.now);
            }
            if gives_way {
                self.choose(p);
            }
        }
    }

    fn run(&mut self, ms: u64) {
        for _ in 0..ms {
            self.step();
        }
    }

    fn of_vm(&self, vm: u32) -> u64 {
        let of_vm = |&(_, &owner): &(&u64, &u32)| owner == vm;
        self.received.iter().zip(&self.vm_of).filter(of_vm).map(|(ran, _)| ran).sum()
    }

    fn sleep(&mut self, v: u32, p: u32) {
        if self.current[p as usize] == Some(v) {
            self.current[p as usize] = None;
        }
        self.host.dequeue(v, p, true, self.now);
    }
}

fn assert_share(got: u64, wanted: f64, what: &str) {
    assert!((got as f64 / wanted - 1.0).abs() < 0.01, "{what}: {got} ns, not {wanted}");
}

#[test]
fn one_pcpu_shares_follow_weights() {
    let weights = [1024.0, 2048.0, 512.0, 3072.0];
    for scheduler in all() {
        let one: &[&[u32]] = &[&[0]];
        let vms: Vec<_> = weights.iter().map(|&w| (w, one)).collect();
        let queued: Vec<_> = (0..4).map(|v| (v, 0)).collect();
        let mut host = TestHost::new(&scheduler, 1, &vms).start(&queued);
        host.run(60_000);
        assert_eq!(host.idle, 0);
        for (vm, weight) in weights.iter().enumerate() {
            let wanted = 60_000.0 * MS as f64 * weight / 6656.0;
            assert_share(host.of_vm(vm as u32), wanted, &format!("{scheduler:?}, VM {vm}"));
        }
    }
}

#[test]
fn credit_shares_with_stealing_follow_weights() {
    let one: &[&[u32]] = &[&[0, 1]];
    let weights = [1024.0, 2048.0, 512.0, 2560.0];
    let vms: Vec<_> = weights.iter().map(|&w| (w, one)).collect();
    let mut host = TestHost::new(&credit(), 2, &vms).start(&[(0, 0), (1, 0), (2, 0), (3, 0)]);
    host.run(120_000);
    assert_eq!(host.idle, 0);
    for (vm, weight) in weights.iter().enumerate() {
        let wanted = 240_000.0 * MS as f64 * weight / 6144.0;
        assert_share(host.of_vm(vm as u32), wanted, &format!("VM {vm}"));
    }
}

#[test]
fn credit_weight_applies_per_vm_or_vcpu() {
    let all: &[u32] = &[0, 1, 2, 3];
    let (four, one): (&[&[u32]], &[&[u32]]) = (&[all; 4], &[all]);
    let vms = [(1024.0, four), (1024.0, one), (1024.0, one), (1024.0, one)];
    let queued = [(0, 0), (1, 1), (2, 2), (3, 3), (4, 0), (5, 1), (6, 2)];
    for (age, of_four) in [(CreditAge::Xen40, 0.25), (CreditAge::Xen42, 4.0 / 7.0)] {
        let mut host = TestHost::new(&credit_of(age), 4, &vms).start(&queued);
        host.run(60_000);
        assert_eq!(host.idle, 0);
        let part = host.of_vm(0) as f64 / (240_000.0 * MS as f64);
        assert!((part / of_four - 1.0).abs() < 0.05, "{age:?}: {part}");
    }
}

#[test]
fn idle_pcpu_pulls_an_allowed_vcpu() {
    for scheduler in all() {
        // pCPU 0 has the largest load and no movable vCPU; pCPU 1 has two movable ones.
        let mut host = TestHost::new(
            &scheduler,
            3,
            &[(4096.0, &[&[0], &[0], &[0], &[0]]), (1024.0, &[&[1, 2], &[1, 2], &[1, 2]])],
        )
        .start(&[(0, 0), (1, 0), (2, 0), (3, 0), (4, 1), (5, 1), (6, 1)]);
        host.run(1000);
        assert_eq!(host.idle, 0, "{scheduler:?}");
    }
}

#[test]
fn spread_vcpus_split_group_weight() {
    // One VM on all four pCPUs competes with one VM on each: 256 against 1024.
    for discipline in [Discipline::cfs(4), Discipline::eevdf(4), flat(4)] {
        let mut host = TestHost::new(
            &linux(discipline),
            4,
            &[
                (1024.0, &[&[0], &[1], &[2], &[3]]),
                (1024.0, &[&[0]]),
                (1024.0, &[&[1]]),
                (1024.0, &[&[2]]),
                (1024.0, &[&[3]]),
            ],
        )
        .start(&[(0, 0), (1, 1), (2, 2), (3, 3), (4, 0), (5, 1), (6, 2), (7, 3)]);
        host.run(60_000);
        assert_share(host.of_vm(0), 4.0 * 60_000.0 * MS as f64 / 5.0, "the wide VM");
    }
}

#[test]
fn credit_boosts_woken_vcpu() {
    let one: &[&[u32]] = &[&[0]];
    let mut host =
        TestHost::new(&credit(), 1, &[(1024.0, one); 4]).start(&[(1, 0), (2, 0), (3, 0)]);
    host.run(500);
    host.host.enqueue(0, 0, Enqueue::Wakeup, host.now);
    assert!(host.host.preempts(0, 0, host.now));
    host.choose(0);
    assert_eq!(host.current[0], Some(0));
    // The first tick while it runs ends its boost; then it is one of four.
    host.run(11);
    host.sleep(0, 0);
    host.choose(0);
    host.host.enqueue(0, 0, Enqueue::Wakeup, host.now);
    host.received.fill(0);
    host.run(4000);
    assert!(host.received[0] < 1100 * MS, "{:?}", host.received);
}

#[test]
fn rate_limit_only_delays_boosted_vcpu() {
    let one: &[&[u32]] = &[&[0]];
    let mut host = TestHost::new(&credit(), 1, &[(1024.0, one); 3]).start(&[(1, 0), (2, 0)]);
    host.run(500);
    host.choose(0);
    assert_eq!(host.current[0].map(|v| v > 0), Some(true));
    host.host.enqueue(0, 0, Enqueue::Wakeup, host.now);
    assert!(!host.host.preempts(0, 0, host.now), "within the rate limit");
    let limit = CreditConfig::default().ratelimit.0;
    assert_eq!(host.host.looks_again_after(0), Some(limit));
    assert!(!host.host.looks_again(0), "no run time yet");
    host.run(3);
    assert!(host.received[0] >= MS, "still waiting after {:?}", host.received);
}

#[test]
fn boosted_vcpu_runs_next() {
    for scheduler in all() {
        let all: &[&[u32]] = &[&[0], &[0], &[0]];
        let mut host = TestHost::new(&scheduler, 1, &[(1024.0, all); 2]).start(&[
            (0, 0),
            (1, 0),
            (2, 0),
            (3, 0),
            (4, 0),
            (5, 0),
        ]);
        for step in 0..300 {
            host.step();
            let v = (step * 5) % 6;
            if host.current[0] != Some(v) {
                host.host.boost(v, 0, host.now);
                host.choose(0);
                assert_eq!(host.current[0], Some(v), "{scheduler:?}, step {step}");
            }
        }
    }
}

#[test]
fn directed_yield_needs_a_waiting_candidate() {
    for scheduler in all() {
        let all: &[&[u32]] = &[&[0], &[0]];
        let mut host = TestHost::new(&scheduler, 1, &[(1024.0, all)]);
        // As wake-ups: CFS places new entities too far apart for a buddy.
        host.host.enqueue(0, 0, Enqueue::Wakeup, 0);
        host.host.enqueue(1, 0, Enqueue::Wakeup, 0);
        host.run(1);
        let from = host.current[0].unwrap();
        let to = 1 - from;
        assert!(!host.host.yield_to(from, 0, from, 0, host.now), "{scheduler:?}");
        assert!(host.host.yield_to(from, 0, to, 0, host.now), "{scheduler:?}");
        host.choose(0);
        assert_eq!(host.current[0], Some(to), "{scheduler:?}");
    }
}

#[test]
fn wakeup_prefers_last_then_near_then_far() {
    for scheduler in [linux(Discipline::cfs(4)), linux(Discipline::eevdf(4)), linux(flat(4))] {
        let shape = Shape {
            pcpus: 4,
            topology: Topology::of_caches(4, 2),
            follows_topology: false,
            vm_of: vec![0],
            weights: vec![1024.0],
            vcpu_weights: vec![1024],
            allowed: vec![set(&[0, 1, 2, 3])],
            placement: Placement::LoadBalancing,
            busy_factor: BUSY_FACTOR,
        };
        let mut host = build(&scheduler, shape);
        for (idle, wanted) in
            [(&[1u32, 2, 3][..], 2), (&[0, 1, 2], 2), (&[0, 3], 3), (&[0, 1], 0), (&[], 2)]
        {
            assert_eq!(host.select(0, 2, None, &set(idle), 0), wanted, "idle: {idle:?}");
        }
    }
}

#[test]
fn credit_enforces_caps() {
    let both: &[u32] = &[0, 1];
    let two: &[&[u32]] = &[&[0], &[1]];
    let vms: [(f64, &[&[u32]]); 2] = [(1024.0, two), (1024.0, &[both])];
    let mut host = TestHost::new(&credit(), 2, &vms).start(&[(0, 0), (1, 1), (2, 0)]);
    for _ in 0..2000 {
        host.host.set_caps(&[0.5, 0.8], host.now);
        for p in 0..2 {
            if host.current[p as usize].is_some_and(|v| host.host.parked(v)) {
                host.choose(p);
            }
        }
        host.run(30);
    }
    for (vm, cap) in [(0, 0.5), (1, 0.8)] {
        let part = host.of_vm(vm) as f64 / (60_000.0 * MS as f64);
        // A waiting vCPU loses its credits beyond a slice, so the time may be less.
        assert!((0.9..1.02).contains(&(part / cap)), "VM {vm}: {part}");
    }
    assert!(host.idle > 40_000 * MS, "the rest of the time is idle");
}
