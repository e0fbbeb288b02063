//! A small host for policy tests: pinned vCPUs, group weights divided per pCPU, slices, noise.
//!
//! Each VM's weight is split evenly over its runnable vCPUs, and each pCPU divides its period by
//! the weights queued there, as CFS and EEVDF do with task groups. Received time wobbles by up to a
//! slice per period and carries the remainder over, as accounting at ticks does. The wobble is
//! seeded. A VM with a hard cap is throttled for the rest of the period once that is used up.

#![allow(dead_code)]

use std::collections::BTreeMap;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use tandem_model::{
    Decision, Nanos, PcpuId, Target, VcpuId, VcpuObservation, VmId, VmObservation, Weight,
};
use tandem_policy::flexw::Round;
use tandem_policy::host::HostObservation;
use tandem_policy::{FlexW, FlexWConfig};

pub const PERIOD: Nanos = Nanos::from_millis(100);
/// EEVDF's base slice on two CPUs is 1.4 ms, and preemption happens at 4 ms ticks.
const SLICE: f64 = 4_000_000.0;

#[derive(Clone, Debug)]
pub struct TestVcpu {
    pub pcpu: u32,
    /// Part of the time it wants to run.
    pub demand: f64,
    carry: f64,
}

#[derive(Clone, Debug)]
pub struct TestVm {
    pub id: u64,
    pub configured: f64,
    pub weight: f64,
    pub vcpus: Vec<TestVcpu>,
    /// Hard cap in pCPUs, and whether the policy knows it.
    pub cap: Option<f64>,
    pub cap_is_known: bool,
}

pub struct TestHost {
    pub pcpus: u32,
    pub vms: Vec<TestVm>,
    pub policy: FlexW,
    pub noise: f64,
    rng: Pcg32,
}

impl TestHost {
    pub fn new(pcpus: u32) -> TestHost {
        TestHost::with(pcpus, FlexWConfig::default())
    }

    pub fn with(pcpus: u32, config: FlexWConfig) -> TestHost {
        let rng = Pcg32::seed_from_u64(7);
        TestHost { pcpus, vms: Vec::new(), policy: FlexW::new(config), noise: 1.0, rng }
    }

    /// Adds a VM with `vcpus` burning vCPUs, vCPU i pinned to pCPU i mod P.
    pub fn vm(mut self, vcpus: u32, weight: f64) -> TestHost {
        let pins: Vec<u32> = (0..vcpus).map(|i| i % self.pcpus).collect();
        self.add(&pins, weight);
        self
    }

    /// Adds a VM with one burning vCPU per pin.
    pub fn pinned(mut self, pins: &[u32], weight: f64) -> TestHost {
        self.add(pins, weight);
        self
    }

    pub fn add(&mut self, pins: &[u32], weight: f64) {
        let vcpus = pins.iter().map(|&pcpu| TestVcpu { pcpu, demand: 1.0, carry: 0.0 }).collect();
        let id = self.vms.last().map_or(1, |vm| vm.id + 1);
        self.vms.push(TestVm {
            id,
            configured: weight,
            weight,
            vcpus,
            cap: None,
            cap_is_known: true,
        });
    }

    /// Sets a hard cap on the VM that was added last.
    pub fn capped(mut self, pcpus: f64) -> TestHost {
        self.vms.last_mut().unwrap().cap = Some(pcpus);
        self
    }

    /// Runs one period without the policy; returns the times of each vCPU, and idle times.
    pub fn run_period(&mut self) -> (Vec<VmObservation>, BTreeMap<PcpuId, Nanos>) {
        let t = PERIOD.0 as f64;
        let wants = |vm: &TestVm| vm.vcpus.iter().map(|vcpu| vcpu.demand * t).collect();
        let mut wants: Vec<Vec<f64>> = self.vms.iter().map(wants).collect();
        let (mut ran, mut idle) = self.divide_all(t, &wants);
        // Time for which each VM is not throttled, and runs as without a cap.
        let mut active = vec![t; self.vms.len()];
        for (i, vm) in self.vms.iter().enumerate() {
            let all: f64 = ran[i].iter().sum();
            if let Some(cap) = vm.cap.filter(|cap| all > cap * t) {
                let part = cap * t / all;
                wants[i] = ran[i].iter().map(|ran| ran * part).collect();
                active[i] = t * part;
            }
        }
        if active.iter().any(|active| *active < t) {
            (ran, idle) = self.divide_all(t, &wants);
        }
        let mut observed = Vec::new();
        for ((vm, ran), active) in self.vms.iter_mut().zip(&ran).zip(active) {
            let mut vcpus = Vec::new();
            for ((vcpu, &ran), number) in vm.vcpus.iter_mut().zip(ran).zip(0..) {
                let due = ran + vcpu.carry;
                let wobble =
                    self.noise * SLICE * (self.rng.next_u32() as f64 / 2f64.powi(31) - 1.0);
                let seen = if ran >= t * 0.999 { ran } else { (due + wobble).clamp(0.0, t) };
                vcpu.carry = due - seen;
                let waited = ((t - ran) * if vcpu.demand > 0.0 { 1.0 } else { 0.0 }).min(
                    (vcpu.demand * t - seen).max(0.0) * if vcpu.demand < 1.0 { 1.5 } else { 1.0 },
                );
                let limited = if vm.cap_is_known { (t - active).min(waited) } else { 0.0 };
                let allowed = [PcpuId(vcpu.pcpu)].into_iter().collect();
                vcpus.push(VcpuObservation {
                    ran: Nanos(seen as u64),
                    waited: Nanos((waited - limited) as u64),
                    limited: Nanos(limited as u64),
                    runnable: vcpu.demand >= 1.0,
                    ..VcpuObservation::new(VcpuId(number), allowed)
                });
            }
            let mut observation =
                VmObservation::new(VmId(vm.id), Weight::saturating(vm.configured), vcpus);
            observation.in_force.weight = Weight::saturating(vm.weight);
            observation.in_force.quota = vm.cap.filter(|_| vm.cap_is_known);
            observed.push(observation);
        }
        (observed, idle)
    }

    /// Running time of each vCPU, and idle time of each pCPU.
    fn divide_all(&self, t: f64, wants: &[Vec<f64>]) -> (Vec<Vec<f64>>, BTreeMap<PcpuId, Nanos>) {
        let mut ran: Vec<Vec<f64>> = wants.iter().map(|vcpus| vec![0.0; vcpus.len()]).collect();
        let mut idle = BTreeMap::new();
        for pcpu in 0..self.pcpus {
            let left = self.divide(pcpu, t, wants, &mut ran);
            idle.insert(PcpuId(pcpu), Nanos(left as u64));
        }
        (ran, idle)
    }

    /// Water-fills one pCPU by group weight; returns its idle time.
    fn divide(&self, pcpu: u32, t: f64, wants: &[Vec<f64>], ran: &mut [Vec<f64>]) -> f64 {
        let mut open: Vec<(usize, usize, f64, f64)> = Vec::new();
        for (i, vm) in self.vms.iter().enumerate() {
            let runnable = vm.vcpus.iter().filter(|vcpu| vcpu.demand > 0.0).count().max(1);
            for (j, vcpu) in vm.vcpus.iter().enumerate() {
                if vcpu.pcpu == pcpu && vcpu.demand > 0.0 {
                    open.push((i, j, vm.weight / runnable as f64, wants[i][j]));
                }
            }
        }
        let mut left = t;
        while !open.is_empty() {
            let sum: f64 = open.iter().map(|entry| entry.2).sum();
            let level = left / sum;
            let (done, rest): (Vec<_>, Vec<_>) =
                open.into_iter().partition(|entry| entry.2 * level >= entry.3);
            if done.is_empty() {
                for (i, j, weight, _) in rest {
                    ran[i][j] = weight * level;
                }
                return 0.0;
            }
            for (i, j, _, wants) in done {
                ran[i][j] = wants;
                left -= wants;
            }
            open = rest;
        }
        left
    }

    /// Runs one period and applies the policy's decisions.
    pub fn step(&mut self) -> (Vec<VmObservation>, Round) {
        let (observed, idle) = self.run_period();
        let host = HostObservation::with_any_knobs(PERIOD, observed.clone(), idle);
        let round = self.policy.decide(&host, |_| true);
        for decision in &round.decisions {
            if let Decision::SetWeight { target: Target::Vm(vm), weight, .. } = decision {
                let vm = self.vms.iter_mut().find(|sim| sim.id == vm.0).unwrap();
                vm.weight = weight.value();
            }
        }
        (observed, round)
    }

    /// Runs `periods` periods and returns each VM's mean share in pCPUs.
    pub fn shares_over(&mut self, periods: u32) -> Vec<f64> {
        let mut total = vec![0.0; self.vms.len()];
        for _ in 0..periods {
            let (observed, _) = self.step();
            for (sum, vm) in total.iter_mut().zip(&observed) {
                *sum += vm.received().0 as f64;
            }
        }
        total.iter().map(|sum| sum / f64::from(periods) / PERIOD.0 as f64).collect()
    }
}
