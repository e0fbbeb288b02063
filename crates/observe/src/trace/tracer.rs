//! Runs the programs and collects their events.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use libbpf_rs::{
    ErrorKind, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, RingBufferBuilder,
};
use tandem_linux::affinity::affinity;
use tandem_linux::procfs::ProcFs;
use tandem_linux::thread::{Pid, Tid};
use tandem_model::states::edges::Party;
use tandem_model::states::trace::HostTrace;
use tandem_model::{Nanos, PcpuId, VmId};

use super::TraceOptions;
use super::event::{Event, Task, decode};
use super::story::{Seen, Traced, build};
use crate::bpf::parties::Parties;
use crate::bpf::{BpfError, Culprit, kernel};
use crate::source::WatchedVm;

/// `bpf/trace.bpf.c`
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/trace.bpf.o"));

/// Maximum wait for events, after which `is_enough` is called.
const SLICE: Duration = Duration::from_millis(50);

/// Maximum number of traced threads.
const MAX_VCPUS: u32 = 16_384;

/// The loaded programs; they are attached while [`Tracer::trace`] runs.
#[derive(Debug)]
pub struct Tracer {
    object: Object,
    procfs: ProcFs,
    options: TraceOptions,
}

impl Tracer {
    /// Loads the programs, without tracing yet.
    pub fn open(procfs: ProcFs, options: TraceOptions) -> Result<Tracer, BpfError> {
        kernel::check_permissions()?;
        let types = kernel::KernelTypes::load()?;
        let before = libbpf_rs::set_print(None);
        let object = load(options, &types);
        libbpf_rs::set_print(before);
        Ok(Tracer {
            object: object
                .map_err(|source| BpfError::Load { source: source.into(), log: String::new() })?,
            procfs,
            options,
        })
    }

    /// Traces all pCPUs and these VMs for this time, or until `is_enough` returns true.
    pub fn trace(
        self,
        vms: &[WatchedVm],
        length: Duration,
        mut is_enough: impl FnMut() -> bool,
    ) -> Result<HostTrace, BpfError> {
        let mut traced = self.traced(vms);
        let map = self.map("traced")?;
        for one in &traced {
            map.update(&one.tid.0.to_ne_bytes(), &[0; 4], MapFlags::ANY)
                .map_err(failed("traced", "write"))?;
        }
        let (events, too_many) = (RefCell::new(Vec::<Event>::new()), Cell::new(0u64));
        // The first dropped event of each pCPU: all earlier ones are complete.
        let beyond = RefCell::new(BTreeMap::<PcpuId, Event>::new());
        let most = self.options.most_events;
        let take = |bytes: &[u8]| {
            let mut events = events.borrow_mut();
            match decode(bytes) {
                Some(event) if events.len() < most => events.push(event),
                event => {
                    too_many.set(too_many.get() + 1);
                    if let Some(event) = event {
                        let mut beyond = beyond.borrow_mut();
                        beyond.entry(event.seen_on).or_insert(event);
                    }
                }
            }
            0
        };
        let ring_map = self.map("events")?;
        let mut builder = RingBufferBuilder::new();
        let read = failed("events", "read");
        builder.add(&ring_map, take).map_err(&read)?;
        let ring = builder.build().map_err(&read)?;
        let links = self.attach()?;
        let begin = now();
        // Read now, since threads that fall asleep or wake later have events.
        self.read_sleep_states(&mut traced, vms);
        let deadline = Instant::now() + length;
        while Instant::now() < deadline && !is_enough() && too_many.get() == 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            match ring.poll(left.min(SLICE).max(Duration::from_millis(1))) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(read(error)),
                _ => {}
            }
        }
        // If there was no space for more events, the trace ends at the last one.
        let last = events.borrow().last().map(|event| event.at);
        let end = match too_many.get() {
            0 => now(),
            _ => last.unwrap_or(begin),
        };
        drop(links);
        match ring.consume() {
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(read(error)),
            _ => {}
        }
        drop(ring);
        let lost = self.dropped()? + too_many.get();
        let mut events = events.take();
        events.extend(beyond.take().into_values());
        let seen = Seen { events, counts: self.counts()?, lost };
        let names = self.namer(vms);
        Ok(build(seen, &traced, (begin, end), names))
    }

    fn attach(&self) -> Result<Vec<libbpf_rs::Link>, BpfError> {
        let programs = self.object.progs_mut().filter(|program| program.autoload());
        let links = programs.map(|program| {
            program.attach().map_err(|source| BpfError::Attach {
                event: program.name().to_string_lossy().into_owned(),
                source: source.into(),
            })
        });
        links.collect()
    }

    /// Returns the threads of all vCPUs.
    fn traced(&self, vms: &[WatchedVm]) -> Vec<Traced> {
        let all = vms.iter().flat_map(|vm| {
            vm.vcpus.iter().map(|vcpu| Traced {
                tid: vcpu.thread.tid,
                vm: vm.vm,
                vcpu: vcpu.vcpu,
                allowed: affinity(vcpu.thread.tid).unwrap_or_default(),
                slept: false,
            })
        });
        all.take(MAX_VCPUS as usize).collect()
    }

    /// Reads whether each of them sleeps now.
    fn read_sleep_states(&self, traced: &mut [Traced], vms: &[WatchedVm]) {
        let threads = vms.iter().flat_map(|vm| &vm.vcpus);
        for (traced, vcpu) in traced.iter_mut().zip(threads) {
            let stat = vcpu.thread.stat(&self.procfs);
            traced.slept = stat.is_ok_and(|stat| !stat.state.is_runnable());
        }
    }

    /// Returns the number of events of each pCPU.
    fn counts(&self) -> Result<BTreeMap<PcpuId, u32>, BpfError> {
        let map = self.map("written")?;
        let values = map.lookup_percpu(&[0; 4], MapFlags::ANY);
        let values = values.map_err(failed("written", "read"))?.unwrap_or_default();
        let counts = (0..).map(PcpuId).zip(values).filter_map(|(pcpu, value)| {
            let count = u64::from_ne_bytes(value.get(..8)?.try_into().ok()?);
            (count > 0).then_some((pcpu, count as u32))
        });
        Ok(counts.collect())
    }

    /// Returns a function that names threads other than vCPUs.
    fn namer(&self, vms: &[WatchedVm]) -> impl FnMut(Tid, Option<&Task>) -> Party {
        let mut parties = Parties::new(self.procfs.clone());
        let vms: BTreeMap<Pid, VmId> = vms.iter().map(|vm| (vm.process.pid, vm.vm)).collect();
        move |tid, task| {
            let culprit = match task {
                None => Culprit::Task { tid, pid: None, comm: comm_of(tid), cgroup: None },
                Some(task) if task.is_kernel => Culprit::Kernel { tid, comm: task.name() },
                Some(task) => {
                    Culprit::Task { tid, pid: Some(task.pid), comm: task.name(), cgroup: None }
                }
            };
            parties.of(&culprit, &vms)
        }
    }

    fn dropped(&self) -> Result<u64, BpfError> {
        let map = self.map("dropped")?;
        let value = map.lookup(&[0; 4], MapFlags::ANY);
        let value = value.map_err(failed("dropped", "read"))?.unwrap_or_default();
        Ok(value.try_into().map_or(0, u64::from_ne_bytes))
    }

    fn map(&self, name: &'static str) -> Result<MapHandle, BpfError> {
        let map = self
            .object
            .maps()
            .find(|map| map.name() == name)
            .unwrap_or_else(|| panic!("bpf/trace.bpf.c has the map {name}"));
        MapHandle::try_from(&map).map_err(failed(name, "open"))
    }
}

/// Loads the programs, with the variant of the waking program that this kernel accepts.
fn load(options: TraceOptions, types: &kernel::KernelTypes) -> libbpf_rs::Result<Object> {
    let mut open = ObjectBuilder::default().open_memory(OBJECT)?;
    let unwanted = if types.exposes_interrupts() { "trace_waking_unsure" } else { "trace_waking" };
    for mut program in open.progs_mut() {
        let is_unwanted = program.name() == unwanted;
        program.set_autoload(!is_unwanted);
    }
    for mut map in open.maps_mut() {
        match map.name().to_str().unwrap_or_default() {
            "events" => map.set_max_entries(options.ring_bytes)?,
            "traced" => map.set_max_entries(MAX_VCPUS)?,
            _ => {}
        }
    }
    open.load()
}

fn failed(map: &'static str, action: &'static str) -> impl Fn(libbpf_rs::Error) -> BpfError {
    move |source| BpfError::Map { map, action, source: source.into() }
}

/// Returns the name of a thread without events; empty if it exited.
fn comm_of(tid: Tid) -> String {
    let name = std::fs::read_to_string(format!("/proc/{tid}/comm"));
    name.unwrap_or_default().trim_end().to_owned()
}

/// Returns CLOCK_MONOTONIC, the clock of the programs.
fn now() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
