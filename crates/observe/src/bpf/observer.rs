//! Watches threads and reads the sums of the programs.

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libbpf_rs::{ErrorKind, Iter, MapCore, MapFlags, MapHandle, ProgramInput};
use tandem_linux::procfs::ProcFs;
use tandem_linux::thread::{Pid, ThreadStat, Tid};
use tandem_model::Nanos;
use tandem_model::states::programs::NotCounted;

use super::layout::{
    EDGE_KERNEL, EDGE_NAMED, ENDED, NO_VCPU, RawEdge, RawEdgeKey, RawLink, RawLinkKey, RawLost,
    RawSettings, RawSibling, RawVcpu, Shared, decode, encode,
};
use super::programs::{DoubleBuffer, Programs};
use super::reading::{Absence, BpfReading, Culprit, EdgeReading, LinkReading, VcpuReading};
use super::slots::{Slots, Supported};
use super::{BpfCost, BpfError, MissingEvent, Options, Watch, kernel, programs};

/// Number of map entries per read.
const BATCH: u32 = 4096;

/// The loaded programs; dropping it unloads them.
pub struct Bpf {
    programs: Programs,
    slots: Slots,
    /// KVM's maximum halt-polling time in ns, as last written to the programs.
    max_poll: u64,
    lost_before: RawLost,
    events_lost_before: u64,
    /// Whether any KVM event was seen, and whether a guest exit was.
    sees_kvm: bool,
    sees_exits: bool,
    counts_costs: Option<OwnedFd>,
}

impl Bpf {
    /// Loads and attaches the programs.
    pub fn open(options: Options) -> Result<Bpf, BpfError> {
        let mut bpf = Bpf {
            programs: Programs::load(options)?,
            slots: Slots::new(options.max_vcpus.max(1)),
            max_poll: u64::MAX,
            lost_before: RawLost::default(),
            events_lost_before: 0,
            sees_kvm: false,
            sees_exits: false,
            counts_costs: None,
        };
        bpf.write_settings()?;
        Ok(bpf)
    }

    /// Returns the missing events with their consequences. More can appear once vCPUs ran.
    pub fn missing(&self) -> Vec<MissingEvent> {
        let mut missing = self.programs.missing.clone();
        let is_known = missing.iter().any(|m| m.event.ends_with(" kvm_exit"));
        if self.sees_kvm && !self.sees_exits && !is_known {
            missing.push(MissingEvent {
                event: "tracepoint kvm_exit".to_owned(),
                lacks: "RUN holds the part of VMM that the kernel does itself",
                absence: Absence::NeverComes,
                because: "this KVM has it, but it never comes".to_owned(),
            });
        }
        missing
    }

    /// Sets the watched threads. A thread that was watched with the same index, VM and vCPU continues.
    /// A thread that exited is reported as ended in the next reading.
    pub fn watch(&mut self, threads: &[Watch]) -> Result<(), BpfError> {
        let change = self.slots.change(threads)?;
        let maps = &self.programs.maps;
        for (place, watch) in &change.gone {
            delete(&maps.watched, "watched", &watch.thread.tid.0)?;
            delete(&maps.siblings, "siblings", &sibling(watch))?;
            let ended = RawVcpu { state: ENDED as u32, ..RawVcpu::default() };
            update(&maps.vcpus, "vcpus", place, &ended, MapFlags::LOCK)?;
            self.slots.retire(*place);
        }
        for (place, watch) in &change.new {
            let raw = self.slots.fill(*place, *watch, now());
            update(&maps.vcpus, "vcpus", place, &raw, MapFlags::LOCK)?;
            update(&maps.siblings, "siblings", &sibling(watch), place, MapFlags::ANY)?;
            let tid = watch.thread.tid.0;
            update(&maps.watched, "watched", &tid, place, MapFlags::ANY)?;
        }
        if change.gone.is_empty() && change.new.is_empty() {
            return Ok(());
        }
        for (word, bits) in (0u32..).zip(self.slots.filter()) {
            update(&maps.filter, "filter", &word, &bits, MapFlags::ANY)?;
        }
        if change.new.is_empty() {
            return Ok(());
        }
        if self.has("find_out") {
            self.find_out()?;
        }
        for (place, watch) in &change.new {
            self.end_unless_found(*place, watch)?;
        }
        Ok(())
    }

    /// Ends a new slot whose thread `find_out` did not find: it exited before it was watched, and another may have its number.
    /// Counts of that other thread are dropped.
    fn end_unless_found(&mut self, place: u32, watch: &Watch) -> Result<(), BpfError> {
        let maps = &self.programs.maps;
        let raw: Option<RawVcpu> = lookup(&maps.vcpus, "vcpus", &place)?;
        if raw.is_none_or(|raw| raw.is_found != 0) {
            return Ok(());
        }
        if !self.has("find_out") && watch.thread.is_alive(&ProcFs::host()) {
            return Ok(());
        }
        delete(&maps.watched, "watched", &watch.thread.tid.0)?;
        let Some(ended) = self.slots.disown(place) else {
            return Ok(());
        };
        update(&maps.vcpus, "vcpus", &place, &ended, MapFlags::LOCK)
    }

    /// Writes settings that only user space can read to the programs.
    fn write_settings(&mut self) -> Result<(), BpfError> {
        let max_poll = kernel::max_poll();
        if max_poll == self.max_poll {
            return Ok(());
        }
        let settings = RawSettings { max_poll };
        let map = &self.programs.maps.settings;
        update(map, "settings", &0u32, &settings, MapFlags::ANY)?;
        self.max_poll = max_poll;
        Ok(())
    }

    /// Returns the changes since the last reading.
    pub fn read(&mut self) -> Result<BpfReading, BpfError> {
        self.write_settings()?;
        if self.has("settle") {
            self.settle()?;
        }
        let at = now();
        let mut vcpus = self.read_vcpus(at)?;
        if !self.has("on_exit") {
            self.find_ended(&mut vcpus)?;
        }
        let edges = self.take_edges()?;
        let links = self.take_links()?;
        let lost = self.read_lost()?;
        self.slots.free_retired();
        for place in self.ended(&vcpus) {
            self.forget(place)?;
        }
        Ok(BpfReading { at, vcpus, edges, links, lost })
    }

    /// Makes the kernel count the run time of all BPF programs on this host while `self` lives.
    /// This slows each of them slightly.
    pub fn count_costs(&mut self) -> Result<(), BpfError> {
        let counts = programs::count_costs().map_err(|source| BpfError::Run {
            program: "BPF_ENABLE_STATS",
            source: source.into(),
        })?;
        self.counts_costs = Some(counts);
        Ok(())
    }

    /// Returns the cost of each program since [`Bpf::count_costs`].
    pub fn cost(&self) -> Vec<BpfCost> {
        self.programs.cost()
    }

    /// Reads the state of threads without events so far from the kernel, by a task iterator.
    fn find_out(&mut self) -> Result<(), BpfError> {
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| BpfError::Run {
            program: "find_out",
            source,
        };
        let program = programs::find_program(&self.programs.object, "find_out");
        let link = program.attach().map_err(|error| failed(error.into()))?;
        let mut tasks = Iter::new(&link).map_err(|error| failed(error.into()))?;
        // The program prints nothing: reading runs it.
        let mut nothing = [0; 64];
        while tasks.read(&mut nothing).map_err(|error| failed(error.into()))? > 0 {}
        Ok(())
    }

    /// Detaches `on_switch` during a call, since some kernels miss switches. For tests.
    #[doc(hidden)]
    pub fn without_switches<T>(&mut self, what: impl FnOnce() -> T) -> Result<T, BpfError> {
        self.programs.detach("on_switch");
        let done = what();
        self.programs.attach_again("on_switch")?;
        Ok(done)
    }

    /// Charges all waiting threads up to now.
    fn settle(&mut self) -> Result<(), BpfError> {
        // The minimum packet size of the kernel.
        let packet = [0; 64];
        let program = programs::find_program(&self.programs.object, "settle");
        loop {
            let input = ProgramInput {
                data_in: Some(&packet),
                repeat: self.programs.pcpus + 1,
                ..ProgramInput::default()
            };
            match program.test_run(input) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(BpfError::Run { program: "settle", source: error.into() });
                }
            }
        }
    }

    fn read_vcpus(&mut self, at: Nanos) -> Result<Vec<VcpuReading>, BpfError> {
        let used = self.slots.used();
        let mut readings = Vec::new();
        if used == 0 {
            return Ok(readings);
        }
        let all: Vec<(u32, RawVcpu)> =
            batch(&self.programs.maps.vcpus, "vcpus", MapFlags::LOCK, false, used)?;
        for (_, raw) in &all {
            self.sees_kvm |= raw.halts + raw.user_exits > 0;
            self.sees_exits |= raw.exits > 0;
        }
        let supported = self.supported();
        for (place, raw) in all {
            readings.extend(self.slots.read(place, raw, at, supported));
        }
        readings.sort_by_key(|reading| reading.index);
        Ok(readings)
    }

    /// Marks threads that exited unseen, and removes their numbers, which other threads may reuse, from the programs' table.
    fn find_ended(&self, vcpus: &mut [VcpuReading]) -> Result<(), BpfError> {
        let procfs = ProcFs::host();
        for (_, slot) in self.slots.taken() {
            let Watch { index, thread, .. } = slot.watch;
            let mut of_slot = vcpus.iter_mut().filter(|vcpu| vcpu.index == index && !vcpu.ended);
            if let Some(vcpu) = of_slot.next().filter(|_| !thread.is_alive(&procfs)) {
                vcpu.ended = true;
                delete(&self.programs.maps.watched, "watched", &thread.tid.0)?;
            }
        }
        Ok(())
    }

    /// Whether the kernel accepted a program.
    fn has(&self, program: &str) -> bool {
        self.programs.attached.contains(&program)
    }

    fn supported(&self) -> Supported {
        let has = |program: &str| self.has(program);
        let all_exits =
            has("on_entry") && has("on_kvm_exit") && (self.sees_exits || !self.sees_kvm);
        let exits = self.sees_exits || all_exits;
        Supported {
            vmm: exits || has("on_userspace_exit") && has("on_run"),
            poll: has("on_kvm_wakeup"),
            limited: self.programs.has_quotas,
            costop: has("on_waking") && has("on_wakeup"),
            exits,
            user_exits: has("on_userspace_exit"),
            halts: has("on_kvm_wakeup"),
            ipis: has("on_ipi"),
            spins: has("on_spin"),
        }
    }

    fn take_edges(&mut self) -> Result<Vec<EdgeReading>, BpfError> {
        let all: Vec<(RawEdgeKey, RawEdge)> = take(&mut self.programs.maps.edges)?;
        let mut edges: Vec<EdgeReading> = Vec::with_capacity(all.len());
        for (key, edge) in all {
            let RawEdgeKey { victim, culprit } = key;
            // Edges of slots that are no longer watched are dropped.
            if let Some(victim) = self.slots.owner(victim) {
                edges.push(EdgeReading {
                    victim: victim.index,
                    culprit: self.culprit(culprit, &edge),
                    time: Nanos(edge.time),
                });
            }
        }
        edges.sort_by(|a, b| (a.victim, &a.culprit).cmp(&(b.victim, &b.culprit)));
        Ok(edges)
    }

    fn culprit(&self, tid: u32, edge: &RawEdge) -> Culprit {
        if tid == 0 {
            return Culprit::Idle;
        }
        let is_watched = |watch: &Watch| edge.index != NO_VCPU && watch.thread.tid.0 == tid;
        if let Some(watch) = self.slots.owner(edge.index).filter(is_watched) {
            return Culprit::Watched(watch.index);
        }
        let tid = Tid(tid);
        // The programs name the culprits. The name of one that exited at that moment may be missing.
        if edge.flags & EDGE_NAMED == 0 {
            return look_up(&ProcFs::host(), tid);
        }
        let comm = text(&edge.comm);
        if edge.flags & EDGE_KERNEL != 0 {
            Culprit::Kernel { tid, comm }
        } else {
            Culprit::Task {
                tid,
                pid: Some(Pid(edge.tgid)),
                comm,
                cgroup: (edge.cgroup != 0).then_some(edge.cgroup),
            }
        }
    }

    fn take_links(&mut self) -> Result<Vec<LinkReading>, BpfError> {
        let all: Vec<(RawLinkKey, RawLink)> = take(&mut self.programs.maps.links)?;
        let mut links: Vec<LinkReading> = Vec::with_capacity(all.len());
        for (RawLinkKey { from, to }, link) in all {
            if let (Some(from), Some(to)) = (self.slots.owner(from), self.slots.owner(to)) {
                links.push(LinkReading {
                    from: from.index,
                    to: to.index,
                    wakes: link.wakes,
                    ipis: link.ipis,
                    yields: link.yields,
                    yields_made: link.yields_made,
                    costops: link.costops,
                    costop_time: Nanos(link.costop_time),
                });
            }
        }
        links.sort_by_key(|link| (link.from, link.to));
        Ok(links)
    }

    fn read_lost(&mut self) -> Result<NotCounted, BpfError> {
        let lost: RawLost = lookup(&self.programs.maps.lost, "lost", &0u32)?.unwrap_or_default();
        let events = self.programs.events_lost();
        let before = std::mem::replace(&mut self.lost_before, lost);
        let events_before = std::mem::replace(&mut self.events_lost_before, events);
        Ok(NotCounted {
            waits: lost.waits - before.waits,
            wait_time: Nanos(lost.wait_time - before.wait_time),
            edges: lost.edges - before.edges,
            edge_time: Nanos(lost.edge_time - before.edge_time),
            links: lost.links - before.links,
            events: events - events_before + (lost.switches - before.switches),
        })
    }

    fn ended(&self, vcpus: &[VcpuReading]) -> Vec<u32> {
        let is_ended =
            |watch: &Watch| vcpus.iter().any(|vcpu| vcpu.ended && vcpu.index == watch.index);
        let taken = self.slots.taken();
        taken.filter(|(_, slot)| is_ended(&slot.watch)).map(|(place, _)| place).collect()
    }

    /// Retires a slot whose thread exited; the programs already removed it from `watched`.
    fn forget(&mut self, place: u32) -> Result<(), BpfError> {
        if let Some(watch) = self.slots.watch(place) {
            delete(&self.programs.maps.siblings, "siblings", &sibling(&watch))?;
            self.slots.retire(place);
        }
        Ok(())
    }
}

fn sibling(watch: &Watch) -> RawSibling {
    RawSibling { vm: watch.vm.0, vcpu: watch.vcpu.0, pad: 0 }
}

/// Returns CLOCK_MONOTONIC, the clock of the programs.
fn now() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Decodes a kernel name, which ends at the first zero byte.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}

fn failed(map: &'static str, action: &'static str) -> impl Fn(libbpf_rs::Error) -> BpfError {
    move |source| BpfError::Map { map, action, source: source.into() }
}

fn update<K: Shared, V: Shared>(
    map: &MapHandle,
    name: &'static str,
    key: &K,
    value: &V,
    flags: MapFlags,
) -> Result<(), BpfError> {
    map.update(encode(key), encode(value), flags).map_err(failed(name, "write"))
}

/// Deletes an entry that may already be gone.
fn delete<K: Shared>(map: &MapHandle, name: &'static str, key: &K) -> Result<(), BpfError> {
    match map.delete(encode(key)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(name, "write")(error)),
        _ => Ok(()),
    }
}

fn lookup<K: Shared, V: Shared>(
    map: &MapHandle,
    name: &'static str,
    key: &K,
) -> Result<Option<V>, BpfError> {
    let bytes = map.lookup(encode(key), MapFlags::ANY).map_err(failed(name, "read"))?;
    Ok(bytes.as_deref().and_then(decode))
}

/// Looks up a culprit that the programs did not name, if it still lives.
fn look_up(procfs: &ProcFs, tid: Tid) -> Culprit {
    // `/proc` has a folder for each thread too, although it lists only processes.
    let folder = procfs.process(Pid(tid.0));
    let Ok(stat) = ThreadStat::read(&folder) else {
        return Culprit::Task { tid, pid: None, comm: String::new(), cgroup: None };
    };
    let comm = stat.comm;
    if stat.kernel_thread {
        Culprit::Kernel { tid, comm }
    } else {
        let status = std::fs::read_to_string(folder.join("status")).unwrap_or_default();
        let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
        Culprit::Task {
            tid,
            pid: process.and_then(|text| text.trim().parse().ok().map(Pid)),
            comm,
            cgroup: None,
        }
    }
}

/// Swaps the maps and empties the one that the programs wrote. The kernel returns from the swap when no program
/// uses the old map any more (`maybe_wait_bpf_programs` in kernel/bpf/syscall.c).
fn take<K: Shared, V: Shared>(map: &mut DoubleBuffer) -> Result<Vec<(K, V)>, BpfError> {
    let written = map.active;
    map.active = 1 - written;
    let file = map.maps[map.active].as_fd().as_raw_fd() as u32;
    update(&map.place, map.name, &0u32, &file, MapFlags::ANY)?;
    batch(&map.maps[written], map.name, MapFlags::ANY, true, usize::MAX)
}

/// Reads the first `most` entries of a map. With `take`, reads and deletes all.
fn batch<K: Shared, V: Shared>(
    map: &MapHandle,
    name: &'static str,
    flags: MapFlags,
    take: bool,
    most: usize,
) -> Result<Vec<(K, V)>, BpfError> {
    let count = BATCH.min(map.max_entries()).min(most as u32);
    let read = |(key, value): (Vec<u8>, Vec<u8>)| decode(&key).zip(decode(&value));
    let all = if take {
        map.lookup_and_delete_batch(count, flags, MapFlags::ANY)
            .map(|entries| entries.map(read).collect())
    } else {
        map.lookup_batch(count, flags, MapFlags::ANY)
            .map(|entries| entries.take(most).map(read).collect())
    };
    let all: Option<Vec<(K, V)>> = all.map_err(failed(name, "read"))?;
    all.ok_or_else(|| BpfError::Map {
        map: name,
        action: "read",
        source: "its entries are not as long as expected".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unnamed_culprit_is_looked_up_in_procfs() {
        let (tell, told) = std::sync::mpsc::channel();
        let (_keep, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("hog/7".to_owned());
        thread
            .spawn(move || {
                let tid = rustix::thread::gettid().as_raw_nonzero().get();
                tell.send(tid as u32).expect("the test waits");
                let _ = wait.recv();
            })
            .expect("a thread");
        let tid = Tid(told.recv().expect("it starts"));
        let culprit = look_up(&ProcFs::host(), tid);
        assert_eq!(
            culprit,
            Culprit::Task {
                tid,
                pid: Some(Pid(std::process::id())),
                comm: "hog/7".to_owned(),
                cgroup: None,
            }
        );
        let gone = look_up(&ProcFs::host(), Tid(u32::MAX));
        assert!(matches!(gone, Culprit::Task { pid: None, .. }), "{gone:?}");
        // kthreadd, if this PID namespace shows kernel threads.
        if let Culprit::Kernel { comm, .. } = look_up(&ProcFs::host(), Tid(2)) {
            assert_eq!(comm, "kthreadd");
        }
    }
}
