//! Mixed hosts: VMs of many sizes and programs, drawn at random ([`mix`]), on overcommitted hosts under several policies.
//!
//! The *deserved work* of a VM is its work relative to the work that its fair share allows:
//! work ÷ (work alone × min(1, fair share ÷ use alone)), at most 1.
//! Alone means the only VM on the host, under the scenario's settings without the policy's.
//! Fair shares result from water-filling over VMs of equal weight, with a demand of the use alone.
//! Work is assumed to be proportional to CPU time, so co-scheduled or less contended VMs may exceed their deserved work.
//!
//! With SMT, a VM alone has whole cores: where all threads are busy, deserved work is at most about `smt_working_percent`.
//!
//! A program that ends is compared by its run time.
//! VMs whose work could not be measured are counted, and excluded from all other figures.
//!
//! Each seed is a host; all policies run the same hosts.

pub mod mix;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use tandem_model::averages::geometric_mean;
use tandem_model::{Layout, Nanos, Weight};
use tandem_policy::fair_share::{Claim, fair_shares};
use tandem_sim::results::{Results, VmResults};
use tandem_sim::scenario::load::{LoadError, Setting, Source};
use tandem_sim::{Scenario, results};
use thiserror::Error;

use self::mix::{Drawn, Mix, MixError};
use crate::execute::{self, ExecuteError, Job};
use crate::metrics;
use crate::progress::Progress;
use crate::vary::Combination;

/// Limits of deserved work below which VMs are counted.
pub const LIMITS: [f64; 4] = [0.9, 0.7, 0.5, 0.2];

/// Minimum of a deserved work in a geometric mean, so that one VM without work does not make it zero.
const MIN_IN_MEAN: f64 = 0.001;

/// Factor up to which a latency counts as no worse: quantiles are interpolated within powers of two.
const NO_WORSE: f64 = 1.05;

/// Error of the experiment.
#[derive(Debug, Error)]
pub enum MixedError {
    /// The mix is invalid.
    #[error(transparent)]
    Mix(#[from] MixError),
    /// A setting or a program is invalid.
    #[error(transparent)]
    Scenario(#[from] LoadError),
    /// The runs did not end.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
}

/// Hosts and policies to run.
#[derive(Clone, Debug)]
pub struct Request {
    /// Distribution of VMs.
    pub mix: Mix,
    /// Numbers of pCPUs.
    pub pcpus: Vec<u32>,
    /// Topology of hosts with its number of pCPUs; `None`: caches of the mix's size.
    pub topology: Option<Layout>,
    /// vCPUs per pCPU.
    pub overcommit: Vec<f64>,
    /// Seeds, one host each.
    pub seeds: Vec<u64>,
    /// Policies; the first is the baseline of latencies.
    pub policies: Vec<Combination>,
    /// Settings of all scenarios, in addition to the mix's.
    pub settings: Vec<Setting>,
    /// Simulated time, warm-up included.
    pub duration: Nanos,
    /// Warm-up.
    pub warmup: Nanos,
}

/// Results, as stored in JSON.
#[derive(Debug, Serialize)]
pub struct Mixed {
    /// [`Mixed::SCHEMA`].
    pub schema: u32,
    /// The seeds.
    pub seeds: Vec<u64>,
    /// Measured time of each run in ns.
    pub measured: Nanos,
    /// Topology of the hosts: sockets, nodes, caches, cores and threads, such as `2:1:8:8:2`; absent without SMT and NUMA.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
    /// Each size of host and overcommit.
    pub hosts: Vec<Hosts>,
}

impl Mixed {
    /// Version of the JSON format (`docs/schemas`): increased when a field changes its meaning or is removed; fields may be added.
    pub const SCHEMA: u32 = 1;
}

/// Hosts of one size and overcommit.
#[derive(Debug, Serialize)]
pub struct Hosts {
    /// pCPUs of each host.
    pub pcpus: u32,
    /// vCPUs per pCPU.
    pub overcommit: f64,
    /// Figures by policy.
    pub policies: Vec<PolicyFigures>,
}

/// All hosts under one policy.
#[derive(Debug, Serialize)]
pub struct PolicyFigures {
    /// Name of the policy.
    pub policy: String,
    /// Deserved work of all VMs.
    pub all: Distribution,
    /// Deserved work by class of program.
    pub classes: BTreeMap<String, Distribution>,
    /// Request latencies compared with the first policy; absent for that policy, and if no VM has requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<Requests>,
    /// Time of the pCPUs by use, as a fraction of all time: the VMs' parts, `polling` and `idle`.
    pub time: BTreeMap<&'static str, f64>,
    /// The VMs, host by host.
    pub vms: Vec<VmFigures>,
}

/// Distribution of deserved work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Distribution {
    /// Number of measured VMs.
    pub vms: usize,
    /// VMs without a measured figure.
    pub not_measured: usize,
    /// Geometric mean; absent without measured VMs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub geometric_mean: Option<f64>,
    /// Number of VMs below each of [`LIMITS`].
    pub below: [usize; 4],
}

/// Latencies of requests compared with a baseline: 99th percentiles of each VM.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Requests {
    /// Number of VMs with requests under both policies.
    pub vms: usize,
    /// Number of these whose 99th percentile is at most 1.05 times the baseline's.
    pub no_worse: usize,
    /// Geometric mean of the ratios to the baseline.
    pub ratio: f64,
}

/// One VM on one host.
#[derive(Clone, Debug, Serialize)]
pub struct VmFigures {
    /// Seed of the host.
    pub seed: u64,
    /// Name.
    pub vm: String,
    /// Class of the program.
    pub class: String,
    /// Program.
    pub program: String,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// pCPUs used alone.
    pub alone: f64,
    /// Fair share in pCPUs.
    pub fair_share: f64,
    /// pCPUs received.
    pub received: f64,
    /// Deserved work, 0 … 1; absent if not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deserved: Option<f64>,
    /// 99th percentile of the time of requests in ns; absent without requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_p99: Option<f64>,
    /// Time of its vCPUs by use and state, in pCPUs.
    pub time: BTreeMap<&'static str, f64>,
}

/// Figures of a VM in one run.
#[derive(Clone, Debug)]
struct Outcome {
    work_rate: f64,
    finished: Option<Nanos>,
    received: f64,
    request_p99: Option<f64>,
    time: BTreeMap<&'static str, f64>,
}

/// A run: figures of its VMs in order, and unused fractions of the pCPUs' time.
#[derive(Clone, Debug)]
struct Run {
    vms: Vec<Outcome>,
    polling: f64,
    idle: f64,
}

/// A host with its VMs.
#[derive(Clone, Debug)]
struct Host {
    seed: u64,
    vms: Vec<Drawn>,
    /// By policy.
    scenarios: Vec<Scenario>,
}

/// All runs of a request.
#[derive(Debug)]
pub struct Plan {
    request: Request,
    /// By pCPUs and overcommit, in this order.
    hosts: Vec<(u32, f64, Vec<Host>)>,
    /// Scenarios of VMs alone, by pCPUs, program and vCPUs.
    alone: BTreeMap<(u32, String, u32), Scenario>,
}

impl Plan {
    /// Draws all hosts and reads their scenarios without running them.
    pub fn new(request: Request) -> Result<Plan, MixedError> {
        let mut plan = Plan { request, hosts: Vec::new(), alone: BTreeMap::new() };
        let request = &plan.request;
        for &pcpus in &request.pcpus {
            for &overcommit in &request.overcommit {
                let mut hosts = Vec::new();
                for &seed in &request.seeds {
                    let vms = request.mix.draw(pcpus, overcommit, seed)?;
                    let source = request.source(pcpus, seed, &vms)?;
                    let scenario = |policy: &Combination| policy.scenario(&source);
                    let scenarios = request.policies.iter().map(scenario);
                    let scenarios = scenarios.collect::<Result<Vec<Scenario>, LoadError>>()?;
                    for vm in &vms {
                        let key = (pcpus, vm.program.clone(), vm.vcpus);
                        if let std::collections::btree_map::Entry::Vacant(entry) =
                            plan.alone.entry(key)
                        {
                            let source = request.source(pcpus, 1, std::slice::from_ref(vm))?;
                            entry.insert(source.scenario()?);
                        }
                    }
                    hosts.push(Host { seed, vms, scenarios });
                }
                plan.hosts.push((pcpus, overcommit, hosts));
            }
        }
        Ok(plan)
    }

    /// Returns the scenario files of all hosts, with names, for runs with `tandem-sim run`.
    pub fn sources(&self) -> impl Iterator<Item = (String, String)> + '_ {
        self.hosts.iter().flat_map(move |(pcpus, overcommit, hosts)| {
            hosts.iter().map(move |host| {
                let name = format!("mixed-{pcpus}-{overcommit}x-{}.toml", host.seed);
                (name, self.request.text(*pcpus, host.seed, &host.vms))
            })
        })
    }

    /// Runs all hosts under all policies.
    pub fn run(self, workers: usize, progress: &dyn Progress) -> Result<Mixed, MixedError> {
        let hosts = self.hosts.iter().flat_map(|(_, _, hosts)| hosts);
        let scenarios = hosts.flat_map(|host| &host.scenarios).chain(self.alone.values());
        let jobs: Vec<Job<'_>> =
            scenarios.map(|scenario| Job { scenario, seed: scenario.seed }).collect();
        let keep = |_, _: &Scenario, results: Results| Run::of(&results);
        let mut runs = execute::each(&jobs, workers, progress, |_, _| {}, keep)?.into_iter();
        let number = jobs.len() - self.alone.len();
        let of_hosts: Vec<Run> = runs.by_ref().take(number).collect();
        let keys = self.alone.keys().cloned();
        let alone: BTreeMap<_, Outcome> =
            keys.zip(runs.filter_map(|run| run.vms.into_iter().next())).collect();
        let mut runs = of_hosts.into_iter();
        let hosts = self.hosts.iter().map(|(pcpus, overcommit, hosts)| {
            let runs: Vec<(&Host, Vec<Run>)> = hosts
                .iter()
                .map(|host| (host, runs.by_ref().take(host.scenarios.len()).collect()))
                .collect();
            self.figures(*pcpus, *overcommit, &runs, &alone)
        });
        Ok(Mixed {
            schema: Mixed::SCHEMA,
            seeds: self.request.seeds.clone(),
            measured: self.request.duration.saturating_sub(self.request.warmup),
            topology: self.request.topology.map(|layout| layout.to_string()),
            hosts: hosts.collect(),
        })
    }

    fn figures(
        &self,
        pcpus: u32,
        overcommit: f64,
        hosts: &[(&Host, Vec<Run>)],
        alone: &BTreeMap<(u32, String, u32), Outcome>,
    ) -> Hosts {
        let mut policies: Vec<PolicyFigures> = Vec::new();
        for (at, policy) in self.request.policies.iter().enumerate() {
            let mut vms = Vec::new();
            let mut time: BTreeMap<&'static str, f64> = BTreeMap::new();
            for (host, runs) in hosts {
                let Some(run) = runs.get(at) else { continue };
                let of_host = self.of_host(pcpus, host, run, alone);
                let all = f64::from(pcpus) * hosts.len() as f64;
                let parts =
                    run.vms.iter().flat_map(|vm| &vm.time).filter(|(name, _)| is_used(name));
                for (name, used) in parts {
                    *time.entry(name).or_default() += used / all;
                }
                *time.entry("polling").or_default() += run.polling / all;
                *time.entry("idle").or_default() += run.idle / all;
                vms.extend(of_host);
            }
            let classes = self.request.mix.class.iter().map(|class| {
                let own = vms.iter().filter(|vm| vm.class == class.name);
                (class.name.clone(), Distribution::of(own))
            });
            policies.push(PolicyFigures {
                policy: policy.name(),
                all: Distribution::of(vms.iter()),
                classes: classes.collect(),
                requests: policies.first().and_then(|first| Requests::of(&vms, &first.vms)),
                time,
                vms,
            });
        }
        Hosts { pcpus, overcommit, policies }
    }

    fn of_host(
        &self,
        pcpus: u32,
        host: &Host,
        run: &Run,
        alone: &BTreeMap<(u32, String, u32), Outcome>,
    ) -> Vec<VmFigures> {
        let of = |vm: &Drawn| alone.get(&(pcpus, vm.program.clone(), vm.vcpus));
        let used: Vec<f64> =
            host.vms.iter().map(|vm| of(vm).map_or(0.0, |alone| alone.received)).collect();
        let shares = fair_share(pcpus, &used);
        let vms = host.vms.iter().zip(&run.vms).zip(used.iter().zip(shares));
        vms.map(|((vm, outcome), (&used, fair_share))| VmFigures {
            seed: host.seed,
            vm: vm.name.clone(),
            class: self.request.mix.class[vm.class].name.clone(),
            program: vm.program.clone(),
            vcpus: vm.vcpus,
            alone: used,
            fair_share,
            received: outcome.received,
            deserved: of(vm).and_then(|alone| deserved(outcome, alone, fair_share)),
            request_p99: outcome.request_p99,
            time: outcome.time.clone(),
        })
        .collect()
    }
}

impl Request {
    /// Returns the scenario of some VMs, with the settings of mix and request.
    fn source(&self, pcpus: u32, seed: u64, vms: &[Drawn]) -> Result<Source, LoadError> {
        let mut source = Source::from_text("mixed host", &self.text(pcpus, seed, vms))?;
        for setting in &self.mix.set {
            source.set(Setting::parse(setting)?);
        }
        for setting in &self.settings {
            source.set(setting.clone());
        }
        Ok(source)
    }

    fn text(&self, pcpus: u32, seed: u64, vms: &[Drawn]) -> String {
        let Nanos(duration) = self.duration;
        let Nanos(warmup) = self.warmup;
        let mut text = format!(
            "name = \"mixed-{pcpus}\"\nseed = {seed}\nduration = \"{duration}ns\"\n\
             warmup = \"{warmup}ns\"\n\n[machine]\npcpus = {pcpus}\n"
        );
        if let Some(layout) = self.topology {
            let _ = writeln!(
                text,
                "\n[machine.topology]\nsockets = {}\nnodes_per_socket = {}\ncaches_per_node = {}\n\
                 cores_per_cache = {}\nthreads_per_core = {}",
                layout.sockets,
                layout.nodes_per_socket,
                layout.caches_per_node,
                layout.cores_per_cache,
                layout.threads_per_core
            );
        } else if let Some(shared) = self.mix.pcpus_per_llc {
            let _ = writeln!(text, "pcpus_per_llc = {}", shared.min(pcpus));
        }
        for Drawn { name, program, vcpus, .. } in vms {
            let _ = write!(
                text,
                "\n[[vm]]\nname = \"{name}\"\nvcpus = {vcpus}\nworkload = \"{program}\"\n"
            );
        }
        text
    }
}

impl Run {
    fn of(results: &Results) -> Run {
        let measured = results.measured.0.max(1) as f64;
        let pcpus = |time: Nanos| time.0 as f64 / measured;
        let outcome = |vm: &VmResults| {
            let parts = metrics::parts(&metrics::ran(vm)).map(|(name, time)| (name, pcpus(time)));
            let vcpus = || vm.vcpus.iter();
            let states = [
                ("steal", pcpus(vcpus().map(|vcpu| vcpu.steal).sum())),
                ("halted", pcpus(vcpus().map(|vcpu| vcpu.halted).sum())),
            ];
            Outcome {
                work_rate: vm.work as f64 * 1e9 / measured,
                finished: vm.finished,
                received: pcpus(vm.received),
                request_p99: vm.request_time.interpolated(0.99),
                time: parts.into_iter().chain(states).collect(),
            }
        };
        let sum =
            |time: fn(&results::PcpuResults) -> Nanos| pcpus(results.pcpus.iter().map(time).sum());
        Run {
            vms: results.vms.iter().map(outcome).collect(),
            polling: sum(|pcpu| pcpu.polling),
            idle: sum(|pcpu| pcpu.idle),
        }
    }
}

/// Returns whether a part of a VM's time is time on pCPUs.
fn is_used(name: &str) -> bool {
    !["steal", "halted"].contains(&name)
}

/// Returns the fair share of each VM on a host of `pcpus` pCPUs, given the pCPUs that each uses alone.
pub fn fair_share(pcpus: u32, alone: &[f64]) -> Vec<f64> {
    // An arbitrary period, to express fractions of pCPUs as integers.
    const PERIOD: Nanos = Nanos::from_secs(1);
    let time = |pcpus: f64| Nanos((pcpus * PERIOD.0 as f64).round() as u64);
    let claim = |&alone: &f64| Claim::always_runnable(Weight::constant(1.0), time(alone), PERIOD);
    let claims: Vec<Claim> = alone.iter().map(claim).collect();
    fair_shares(time(f64::from(pcpus)), PERIOD, &claims)
        .into_iter()
        .map(|share| share.0 as f64 / PERIOD.0 as f64)
        .collect()
}

/// Returns a VM's deserved work; `None` if it cannot be measured.
fn deserved(outcome: &Outcome, alone: &Outcome, fair_share: f64) -> Option<f64> {
    let relative = match (outcome.finished, alone.finished) {
        (Some(took), Some(alone)) => alone.0 as f64 / took.0.max(1) as f64,
        (None, None) if alone.work_rate > 0.0 => outcome.work_rate / alone.work_rate,
        _ => return None,
    };
    let part = if alone.received > fair_share { fair_share / alone.received } else { 1.0 };
    (part > 0.0).then(|| (relative / part).min(1.0))
}

impl Distribution {
    fn of<'a>(vms: impl Iterator<Item = &'a VmFigures>) -> Distribution {
        let vms: Vec<&VmFigures> = vms.collect();
        let measured: Vec<f64> = vms.iter().filter_map(|vm| vm.deserved).collect();
        let below = |limit: f64| measured.iter().filter(|&&deserved| deserved < limit).count();
        Distribution {
            vms: measured.len(),
            not_measured: vms.len() - measured.len(),
            geometric_mean: geometric_mean_of(vms.into_iter()),
            below: LIMITS.map(below),
        }
    }
}

impl Requests {
    /// Compares VMs in the same order.
    fn of(vms: &[VmFigures], base: &[VmFigures]) -> Option<Requests> {
        let pairs = vms.iter().zip(base);
        let ratio = |(vm, base): (&VmFigures, &VmFigures)| {
            Some(vm.request_p99? / base.request_p99.filter(|base| *base > 0.0)?)
        };
        let ratios: Vec<f64> = pairs.filter_map(ratio).collect();
        Some(Requests {
            vms: ratios.len(),
            no_worse: ratios.iter().filter(|&&ratio| ratio <= NO_WORSE).count(),
            ratio: geometric_mean(ratios)?,
        })
    }
}

/// Returns the geometric mean of the deserved work of VMs; `None` if none is measured.
pub fn geometric_mean_of<'a>(vms: impl Iterator<Item = &'a VmFigures>) -> Option<f64> {
    geometric_mean(vms.filter_map(|vm| vm.deserved).map(|part| part.max(MIN_IN_MEAN)))
}

#[cfg(test)]
mod tests;
