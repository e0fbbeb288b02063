//! Totals of the exporter: intervals, added up.
//!
//! Times are summed in ns from the first sight of a VM, so a scraper that misses intervals loses no time.
//! Figures that the last interval did not measure are absent; their totals are kept until they are measured again.
//! A VM that has gone is forgotten.
//! While intervals fail, no VM is exported.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tandem_model::states::edges::{EdgeKind, Edges, Evidence, Party};
use tandem_model::states::interval::{Column, HostColumn, ProcessTime, VmInterval};
use tandem_model::states::latency::Latency;
use tandem_model::states::programs::NotSeen;
use tandem_model::{Nanos, State, VcpuId, VcpuTimes, VmId};
use tandem_observe::Interval;
use tandem_policy::Assessment;

use crate::discovery::{Scan, Vm};
use crate::metrics::MAX_VMS;
use crate::top::{Culprit, CulpritKind, culprit};

use super::metric::{Measured, VmFigures};
use super::ranked::{Ranked, faded};

/// Input of one interval.
pub(super) struct Look<'a> {
    /// The discovered VMs.
    pub(super) scan: &'a Scan,
    /// The measurement of all VMs.
    pub(super) interval: &'a Interval,
    /// Fair share of each VM.
    pub(super) assessed: &'a BTreeMap<VmId, Assessment>,
    /// The selected VMs.
    pub(super) selected: &'a BTreeSet<VmId>,
}

/// Level of detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detail {
    /// Maximum number of series for the culprits of a VM, and for host processes.
    pub culprits: usize,
    /// Whether each vCPU has series.
    pub vcpus: bool,
    /// Whether host processes have series by name and cgroup.
    pub process_names: bool,
}

/// Time constant of [`Lasting`]: after 300 s, a third of a wait still counts.
const LASTING: Nanos = Nanos::from_secs(300);

/// Ready time of a vCPU relative to its recent time. Both fade alike, so their ratio is a mean over some minutes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lasting {
    ready: Nanos,
    wall: Nanos,
}

impl Lasting {
    fn add(&mut self, times: &VcpuTimes) {
        let Some(ready) = times.get(State::Ready) else {
            *self = Lasting::default();
            return;
        };
        self.ready = faded(self.ready, times.wall(), LASTING) + ready;
        self.wall = faded(self.wall, times.wall(), LASTING) + times.wall();
    }

    /// Returns `None` if ready time is not measured.
    fn ratio(self) -> Option<f64> {
        (self.wall > Nanos::ZERO).then(|| self.ready.0 as f64 / self.wall.0 as f64)
    }
}

/// Times by state.
#[derive(Clone, Debug, Default)]
pub(super) struct States {
    totals: BTreeMap<State, Nanos>,
    last: VcpuTimes,
}

impl States {
    fn add(&mut self, times: &VcpuTimes) {
        for state in State::ALL {
            *self.totals.entry(state).or_default() += times.get(state).unwrap_or_default();
        }
        self.last = *times;
    }

    /// Returns the states that the last interval measured.
    pub(super) fn measured(&self) -> impl Iterator<Item = (State, Nanos)> {
        let totals = self.totals.iter().map(|(state, total)| (*state, *total));
        totals.filter(|(state, _)| self.last.get(*state).is_some())
    }
}

/// Labels of a culprit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CulpritKey {
    pub(super) kind: String,
    pub(super) name: String,
    /// Empty if there is none.
    pub(super) cgroup: String,
    pub(super) evidence: String,
}

/// Processes of one name in one cgroup.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ProcessKey {
    pub(super) name: String,
    /// Empty if it is unknown.
    pub(super) cgroup: String,
}

/// Figures of a VM in the last interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) vcpus: usize,
    /// Whether the times of other threads are measured.
    pub(super) has_threads: bool,
    /// Whether wake-up latency is known.
    pub(super) has_latency: bool,
    /// Largest RDY share of a vCPU, of its wall time; `None` if it is not measured.
    pub(super) worst_ready: Option<f64>,
    /// Largest RDY share of a single vCPU over the last minutes.
    pub(super) lasting_ready: Option<f64>,
    pub(super) figures: VmFigures,
}

/// Totals of a VM.
#[derive(Clone, Debug)]
pub(super) struct VmAccount {
    pub(super) name: String,
    pub(super) pid: String,
    pub(super) states: States,
    /// Empty unless vCPUs have series.
    pub(super) vcpus: BTreeMap<VcpuId, States>,
    lasting: BTreeMap<VcpuId, Lasting>,
    pub(super) runs: u64,
    pub(super) latency: Latency,
    pub(super) culprits: BTreeMap<Evidence, Ranked<CulpritKey>>,
    /// The VM's threads other than vCPUs, by kind.
    pub(super) threads: BTreeMap<&'static str, Nanos>,
    /// `None` if the VM was not in the last interval.
    pub(super) now: Option<Now>,
}

/// Totals of the host and of the exporter itself.
#[derive(Clone, Debug)]
pub(super) struct HostAccount {
    pub(super) pcpus: usize,
    pub(super) uses: BTreeMap<&'static str, Nanos>,
    /// Keys of `uses` that the last interval measured.
    pub(super) measured: Vec<&'static str>,
    pub(super) processes: Ranked<ProcessKey>,
    pub(super) found: usize,
    /// Selected VMs without series, because [`MAX_VMS`] others have them.
    pub(super) without_series: usize,
    pub(super) unreadable: usize,
    pub(super) left_out: usize,
    pub(super) unidentified: usize,
    /// Part of the VMs without a measurement, by the measurement and its requirement.
    pub(super) missing: BTreeMap<(String, String), f64>,
    /// Events that the BPF programs did not get.
    pub(super) not_seen: BTreeSet<NotSeen>,
    /// Counts that the BPF programs dropped; empty without programs.
    pub(super) not_counted: BTreeMap<&'static str, u64>,
    pub(super) source: String,
    pub(super) length: Nanos,
}

/// Totals of the exporter.
#[derive(Clone, Debug)]
pub(super) struct Accounts {
    detail: Detail,
    pub(super) vms: BTreeMap<VmId, VmAccount>,
    totals: HostAccount,
    /// Whether the last interval could be read.
    is_current: bool,
    pub(super) intervals: u64,
    pub(super) errors: u64,
    /// How long reading the last interval took.
    pub(super) took: Nanos,
    /// CPU time of this process.
    pub(super) cpu: Nanos,
    /// When the last interval ended, since 1970; `None` before the first.
    pub(super) last: Option<Nanos>,
}

/// Returns the label of a VM's thread that is not a vCPU.
fn thread_kind(name: &str) -> &'static str {
    // Before Linux 6.4, sources use this name for the kernel's thread.
    if name == "vhost" || name.starts_with("vhost-") { "vhost" } else { "emulator" }
}

/// Returns the JSON name of a plain value.
pub(super) fn word(value: impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

fn is_measured(interval: &Interval, column: HostColumn) -> bool {
    let mut missing = interval.missing.iter();
    !missing.any(|missing| missing.what == Column::Host(column) && missing.vms == missing.of)
}

impl Accounts {
    pub(super) fn new(detail: Detail) -> Accounts {
        Accounts {
            detail,
            vms: BTreeMap::new(),
            totals: HostAccount {
                pcpus: 0,
                uses: BTreeMap::new(),
                measured: Vec::new(),
                processes: Ranked::new(detail.culprits),
                found: 0,
                without_series: 0,
                unreadable: 0,
                left_out: 0,
                unidentified: 0,
                missing: BTreeMap::new(),
                not_seen: BTreeSet::new(),
                not_counted: BTreeMap::new(),
                source: String::new(),
                length: Nanos::ZERO,
            },
            is_current: false,
            intervals: 0,
            errors: 0,
            took: Nanos::ZERO,
            cpu: Nanos::ZERO,
            last: None,
        }
    }

    /// Returns the host if the last interval could be read.
    pub(super) fn host(&self) -> Option<&HostAccount> {
        self.is_current.then_some(&self.totals)
    }

    /// Returns the exported VMs in the order of their ids.
    pub(super) fn told(&self) -> impl Iterator<Item = (&VmAccount, &Now)> {
        let vms = self.vms.values().filter(|_| self.is_current);
        vms.filter_map(|vm| Some((vm, vm.now.as_ref()?)))
    }

    /// Counts an interval that could not be read.
    pub(super) fn failed(&mut self) {
        self.errors += 1;
        self.is_current = false;
    }

    /// Adds an interval.
    pub(super) fn add(&mut self, look: &Look<'_>) {
        self.intervals += 1;
        self.is_current = true;
        let by_id: BTreeMap<VmId, &Vm> = look.scan.vms.iter().map(|vm| (vm.id, vm)).collect();
        self.vms.retain(|id, _| look.selected.contains(id));
        for account in self.vms.values_mut() {
            account.now = None;
        }
        let of_vms = look.interval.edges.by_vm();
        let mut without_series = 0;
        for measured in &look.interval.vms {
            let vm = by_id.get(&measured.vm);
            let assessment = look.assessed.get(&measured.vm);
            let (Some(vm), Some(assessment)) = (vm, assessment) else {
                continue;
            };
            if !look.selected.contains(&vm.id) {
                continue;
            }
            if !self.vms.contains_key(&vm.id) && self.vms.len() >= MAX_VMS {
                without_series += 1;
                continue;
            }
            let account = self.vms.entry(vm.id).or_insert_with(|| VmAccount::new(vm));
            account.add(measured, assessment, look.interval, self.detail);
            account.add_latency(look.interval, vm.id);
            account.add_culprits(&of_vms, vm.id, look.interval.length, &by_id, self.detail);
        }
        self.totals.add(look, self.detail);
        self.totals.without_series = without_series;
    }
}

impl VmAccount {
    fn new(vm: &Vm) -> VmAccount {
        VmAccount {
            name: vm.name.clone(),
            pid: vm.process.pid.to_string(),
            states: States::default(),
            vcpus: BTreeMap::new(),
            lasting: BTreeMap::new(),
            runs: 0,
            latency: Latency::default(),
            culprits: BTreeMap::new(),
            threads: BTreeMap::new(),
            now: None,
        }
    }

    fn add(
        &mut self,
        measured: &VmInterval,
        account: &Assessment,
        interval: &Interval,
        detail: Detail,
    ) {
        self.states.add(&measured.times().unwrap_or_default());
        let there = |id: &VcpuId| measured.vcpus.iter().any(|vcpu| vcpu.vcpu == *id);
        self.lasting.retain(|id, _| there(id));
        for vcpu in &measured.vcpus {
            self.lasting.entry(vcpu.vcpu).or_default().add(&vcpu.times);
        }
        if detail.vcpus {
            self.vcpus.retain(|id, _| there(id));
            for vcpu in &measured.vcpus {
                self.vcpus.entry(vcpu.vcpu).or_default().add(&vcpu.times);
            }
        }
        self.runs += measured.vcpus.iter().map(|vcpu| vcpu.runs).sum::<u64>();
        for kind in ["emulator", "vhost"] {
            self.threads.entry(kind).or_default();
        }
        for thread in &measured.threads {
            *self.threads.entry(thread_kind(&thread.name)).or_default() += thread.time;
        }
        let ready = measured.vcpus.iter().filter_map(|vcpu| vcpu.times.share(State::Ready));
        self.now = Some(Now {
            vcpus: measured.vcpus.len(),
            has_threads: is_measured(interval, HostColumn::VmThreads),
            has_latency: false,
            worst_ready: ready.reduce(f64::max),
            lasting_ready: {
                let lasting = self.lasting.values();
                lasting.filter_map(|lasting| lasting.ratio()).reduce(f64::max)
            },
            figures: VmFigures::of(&Measured { vm: measured, account, length: interval.length }),
        });
    }

    fn add_latency(&mut self, interval: &Interval, id: VmId) {
        let programs = interval.programs.as_ref();
        let latency = programs.and_then(|programs| programs.latency.get(&id));
        if let (Some(latency), Some(now)) = (latency, &mut self.now) {
            self.latency += *latency;
            now.has_latency = true;
        }
    }

    fn add_culprits(
        &mut self,
        of_vms: &Edges,
        id: VmId,
        length: Nanos,
        by_id: &BTreeMap<VmId, &Vm>,
        detail: Detail,
    ) {
        let mut named: BTreeMap<Evidence, Vec<(CulpritKey, Nanos)>> = BTreeMap::new();
        let mut rest: BTreeMap<Evidence, Nanos> = BTreeMap::new();
        for edge in of_vms.of(&Party::Vm(id), EdgeKind::Pcpu) {
            match edge.culprit {
                Party::Others => *rest.entry(edge.evidence).or_default() += edge.time(),
                _ => {
                    let name = |vm: &VmId| by_id.get(vm).map(|vm| vm.name.as_str());
                    let culprit = culprit(edge, id, name);
                    let of_evidence = named.entry(edge.evidence).or_default();
                    of_evidence.push((CulpritKey::of(&culprit, detail), culprit.time));
                }
            }
        }
        for evidence in [Evidence::Measured, Evidence::Estimated] {
            let named = named.remove(&evidence).unwrap_or_default();
            let rest = rest.remove(&evidence).unwrap_or_default();
            let is_new = !self.culprits.contains_key(&evidence);
            // Sources usually have one kind of evidence; the other has no counters until it occurs.
            if is_new && named.is_empty() && rest == Nanos::ZERO {
                continue;
            }
            let ranked = self.culprits.entry(evidence);
            let ranked = ranked.or_insert_with(|| Ranked::new(detail.culprits));
            ranked.add(length, named, rest);
        }
    }
}

impl CulpritKey {
    fn of(culprit: &Culprit, detail: Detail) -> CulpritKey {
        if culprit.kind == CulpritKind::Process && !detail.process_names {
            return CulpritKey {
                kind: word(culprit.kind),
                name: "processes".to_owned(),
                cgroup: String::new(),
                evidence: word(culprit.evidence),
            };
        }
        CulpritKey {
            kind: word(culprit.kind),
            name: culprit.name.clone(),
            cgroup: culprit.cgroup.clone().unwrap_or_default(),
            evidence: word(culprit.evidence),
        }
    }

    /// The key of all culprits without a name.
    pub(super) fn others(evidence: Evidence) -> CulpritKey {
        CulpritKey {
            kind: "others".to_owned(),
            name: "others".to_owned(),
            cgroup: String::new(),
            evidence: word(evidence),
        }
    }
}

impl HostAccount {
    fn add(&mut self, look: &Look<'_>, detail: Detail) {
        let Look { scan, interval, .. } = look;
        let host = &interval.host;
        let threads = interval.vms.iter().flat_map(|vm| &vm.threads);
        let vhost = threads.filter(|thread| thread_kind(&thread.name) == "vhost");
        let vhost: Nanos = vhost.map(|thread| thread.time).sum();
        let mut uses = vec![("vcpus", Some(host.vcpus)), ("idle", host.idle)];
        let has_threads = is_measured(interval, HostColumn::VmThreads);
        let has_processes = is_measured(interval, HostColumn::Processes);
        if has_threads {
            uses.push(("emulator", Some(host.vm_threads.saturating_sub(vhost))));
            uses.push(("vhost", Some(vhost)));
        }
        if has_processes {
            uses.push(("tasks", Some(host.tasks)));
            uses.push(("kernel", Some(host.kernel)));
            let told: &[ProcessTime] = if detail.process_names { &host.top_tasks } else { &[] };
            let top = told.iter().map(|process| {
                let key = ProcessKey {
                    name: process.name.clone(),
                    cgroup: process.cgroup.clone().unwrap_or_default(),
                };
                (key, process.time)
            });
            let of_top: Nanos = told.iter().map(|process| process.time).sum();
            let rest = host.tasks.saturating_sub(of_top);
            self.processes.add(interval.length, top, rest);
        }
        if has_threads && has_processes {
            uses.push(("unseen", host.unseen(interval.length)));
        }
        self.measured.clear();
        for (what, time) in uses {
            if let Some(time) = time {
                *self.uses.entry(what).or_default() += time;
                self.measured.push(what);
            }
        }
        self.pcpus = host.pcpus;
        self.found = scan.vms.len();
        self.unreadable = scan.unreadable_vmms;
        self.left_out = scan.left_out;
        let unidentified = scan.vms.iter().filter(|vm| vm.vcpus.is_empty());
        self.unidentified = unidentified.filter(|vm| look.selected.contains(&vm.id)).count();
        self.missing.clear();
        for missing in &interval.missing {
            let part = match missing.of {
                0 => 1.0,
                of => missing.vms as f64 / of as f64,
            };
            let key = (word(missing.what), missing.want.clone());
            let known = self.missing.entry(key).or_insert(0.0);
            *known = part.max(*known);
        }
        self.not_seen.clear();
        match &interval.programs {
            Some(programs) => {
                self.not_seen.extend(programs.not_seen.iter().cloned());
                let counts = &programs.not_counted;
                for (what, count) in [
                    ("waits", counts.waits),
                    ("edges", counts.edges),
                    ("links", counts.links),
                    ("events", counts.events),
                ] {
                    *self.not_counted.entry(what).or_default() += count;
                }
            }
            None => self.not_counted.clear(),
        }
        self.source = word(interval.source);
        self.length = interval.length;
    }
}
