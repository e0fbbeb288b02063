//! The host schedulers by themselves: vCPUs that always run, wake or wait, without a guest inside.
//!
//! Time goes in steps of 1 ms on all pCPUs at once, with a clock tick after each; an idle pCPU pulls
//! and a busy one balances at its tick, as the world does it. Switching costs nothing here.

use tandem_model::PcpuId;

use super::*;

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

fn all() -> [HostScheduler; 3] {
    [linux(Discipline::cfs(2)), linux(Discipline::eevdf(2)), credit()]
}

impl TestHost {
    /// `vms` has for each VM its weight, and for each of its vCPUs where it may run.
    fn new(scheduler: &HostScheduler, pcpus: u32, vms: &[(f64, &[&[u32]])]) -> TestHost {
        let vcpus =
            || vms.iter().enumerate().flat_map(|(vm, (_, v))| v.iter().map(move |a| (vm, a)));
        let vm_of: Vec<u32> = vcpus().map(|(vm, _)| vm as u32).collect();
        let shape = Shape {
            pcpus,
            pcpus_per_llc: pcpus,
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
            self.host.enqueue(v, p, Arrival::New, 0);
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
        self.host.enqueue(moved.vcpu, moved.to, Arrival::Migrated, self.now);
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
fn shares_on_one_pcpu_go_by_weight_within_1_percent() {
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
fn credit_shares_on_two_pcpus_with_stealing_go_by_weight_within_1_percent() {
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
fn a_weight_is_the_vms_up_to_xen_4_0_and_each_of_its_vcpus_later() {
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
fn no_pcpu_is_idle_while_a_vcpu_that_may_run_there_waits() {
    for scheduler in all() {
        // On pCPU 0 nothing can be moved and the load is the largest; pCPU 1 has two to spare.
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
fn four_vcpus_each_on_a_pcpu_of_their_own_weigh_a_quarter_each() {
    // One VM on all four pCPUs against four VMs on one each: 256 against 1024.
    for discipline in [Discipline::cfs(4), Discipline::eevdf(4)] {
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
fn a_vcpu_that_wakes_runs_before_hogs_under_credit() {
    let one: &[&[u32]] = &[&[0]];
    let mut host =
        TestHost::new(&credit(), 1, &[(1024.0, one); 4]).start(&[(1, 0), (2, 0), (3, 0)]);
    host.run(500);
    host.host.enqueue(0, 0, Arrival::Wakeup, host.now);
    assert!(host.host.preempts(0, 0, host.now));
    host.choose(0);
    assert_eq!(host.current[0], Some(0));
    // Its boost ends with the first tick that finds it running, and then it is one of four.
    host.run(11);
    host.sleep(0, 0);
    host.choose(0);
    host.host.enqueue(0, 0, Arrival::Wakeup, host.now);
    host.received.fill(0);
    host.run(4000);
    assert!(host.received[0] < 1100 * MS, "{:?}", host.received);
}

#[test]
fn the_rate_limit_delays_a_boosted_vcpu_and_no_more() {
    let one: &[&[u32]] = &[&[0]];
    let mut host = TestHost::new(&credit(), 1, &[(1024.0, one); 3]).start(&[(1, 0), (2, 0)]);
    host.run(500);
    host.choose(0);
    assert_eq!(host.current[0].map(|v| v > 0), Some(true));
    host.host.enqueue(0, 0, Arrival::Wakeup, host.now);
    assert!(!host.host.preempts(0, 0, host.now), "within the rate limit");
    let limit = CreditConfig::default().ratelimit.0;
    assert_eq!(host.host.looks_again_after(0), Some(limit));
    assert!(!host.host.looks_again(0), "nothing ran yet");
    host.run(3);
    assert!(host.received[0] >= MS, "it still waits after {:?}", host.received);
}

#[test]
fn a_boosted_vcpu_is_next_within_the_current_group_and_outside() {
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
fn a_directed_yield_runs_the_candidate_and_refuses_one_that_runs() {
    for scheduler in all() {
        let all: &[&[u32]] = &[&[0], &[0]];
        let mut host = TestHost::new(&scheduler, 1, &[(1024.0, all)]);
        // Not as new ones, which CFS sets further apart than a buddy may be.
        host.host.enqueue(0, 0, Arrival::Wakeup, 0);
        host.host.enqueue(1, 0, Arrival::Wakeup, 0);
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
fn a_woken_vcpu_goes_where_it_was_else_near_else_far_else_where_it_was() {
    for scheduler in [linux(Discipline::cfs(4)), linux(Discipline::eevdf(4))] {
        let shape = Shape {
            pcpus: 4,
            pcpus_per_llc: 2,
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
            assert_eq!(host.select(0, 2, &set(idle), 0), wanted, "idle: {idle:?}");
        }
    }
}

#[test]
fn a_capped_vm_gets_its_cap_and_no_more_under_credit() {
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
        // What waiting saves beyond a slice is lost, so it may be less.
        assert!((0.9..1.02).contains(&(part / cap)), "VM {vm}: {part}");
    }
    assert!(host.idle > 40_000 * MS, "what is left is nobody's");
}
