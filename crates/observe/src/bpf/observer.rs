//! Watches threads and reads what the programs added up.

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libbpf_rs::{ErrorKind, Iter, MapCore, MapFlags, MapHandle, ProgramInput};
use tandem_linux::procfs::ProcFs;
use tandem_linux::thread::{Pid, ThreadStat, Tid};
use tandem_model::Nanos;
use tandem_model::states::programs::NotCounted;

use super::layout::{
    EDGE_KERNEL, EDGE_NAMED, ENDED, NOBODY, RawEdge, RawEdgeKey, RawLink, RawLinkKey, RawLost,
    RawSettings, RawSibling, RawVcpu, Shared, decode, encode,
};
use super::programs::{Programs, TakenAway};
use super::reading::{Absence, BpfReading, Culprit, EdgeReading, LinkReading, VcpuReading};
use super::slots::{Slots, Tells};
use super::{BpfCost, BpfError, MissingEvent, Options, Watch, kernel, programs};

/// Entries of a map that are read at once.
const BATCH: u32 = 4096;

/// The programs in the kernel; gone when it is dropped.
pub struct Bpf {
    programs: Programs,
    slots: Slots,
    /// For how long KVM polls at most, as the programs know it.
    most_poll: u64,
    lost_before: RawLost,
    events_lost_before: u64,
    /// Whether anything of KVM was seen, and whether an exit was.
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
            most_poll: u64::MAX,
            lost_before: RawLost::default(),
            events_lost_before: 0,
            sees_kvm: false,
            sees_exits: false,
            counts_costs: None,
        };
        bpf.write_settings()?;
        Ok(bpf)
    }

    /// What this kernel does not tell, and what is not known for want of it. There can be more once vCPUs were seen to run.
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

    /// Watches these threads and no others. A thread that was watched, with the same index, VM and vCPU, goes on. One that is gone is in the
    /// next reading, as one that ended.
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

    /// Ends what was looked for and is not there: its thread ended before it was watched, and another may have its number. What was counted
    /// of that one meanwhile is dropped.
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

    /// Tells the programs what only user space can read.
    fn write_settings(&mut self) -> Result<(), BpfError> {
        let most_poll = kernel::most_poll();
        if most_poll == self.most_poll {
            return Ok(());
        }
        let settings = RawSettings { most_poll };
        let map = &self.programs.maps.settings;
        update(map, "settings", &0u32, &settings, MapFlags::ANY)?;
        self.most_poll = most_poll;
        Ok(())
    }

    /// What happened since the last reading.
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

    /// Has the kernel count what BPF programs cost, all that run on this host, as long as this lives. It makes each of them a little
    /// slower.
    pub fn count_costs(&mut self) -> Result<(), BpfError> {
        let counts = programs::count_costs().map_err(|source| BpfError::Run {
            program: "BPF_ENABLE_STATS",
            source: source.into(),
        })?;
        self.counts_costs = Some(counts);
        Ok(())
    }

    /// What each program cost since [`Bpf::count_costs`].
    pub fn cost(&self) -> Vec<BpfCost> {
        self.programs.cost()
    }

    /// Asks the kernel what threads do of which nothing was seen yet.
    fn find_out(&mut self) -> Result<(), BpfError> {
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| BpfError::Run {
            program: "find_out",
            source,
        };
        let program = programs::find_program(&self.programs.object, "find_out");
        let link = program.attach().map_err(|error| failed(error.into()))?;
        let mut tasks = Iter::new(&link).map_err(|error| failed(error.into()))?;
        // The program prints nothing: to read is to have it run.
        let mut nothing = [0; 64];
        while tasks.read(&mut nothing).map_err(|error| failed(error.into()))? > 0 {}
        Ok(())
    }

    /// Has switches not told while something is done, as some kernels do: for tests.
    #[doc(hidden)]
    pub fn without_switches<T>(&mut self, what: impl FnOnce() -> T) -> Result<T, BpfError> {
        self.programs.detach("on_switch");
        let done = what();
        self.programs.attach_again("on_switch")?;
        Ok(done)
    }

    /// Charges all who wait up to now.
    fn settle(&mut self) -> Result<(), BpfError> {
        // The least that the kernel takes for a packet.
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
        let tells = self.tells();
        for (place, raw) in all {
            readings.extend(self.slots.read(place, raw, at, tells));
        }
        readings.sort_by_key(|reading| reading.index);
        Ok(readings)
    }

    /// Marks threads that ended unseen, and keeps the programs from taking others with their numbers for them.
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

    /// Whether the kernel took a program.
    fn has(&self, program: &str) -> bool {
        self.programs.attached.contains(&program)
    }

    fn tells(&self) -> Tells {
        let has = |program: &str| self.has(program);
        let all_exits =
            has("on_entry") && has("on_kvm_exit") && (self.sees_exits || !self.sees_kvm);
        let exits = self.sees_exits || all_exits;
        Tells {
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
            // Nobody asks any more about one that is not watched any more.
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
        let is_watched = |watch: &Watch| edge.index != NOBODY && watch.thread.tid.0 == tid;
        if let Some(watch) = self.slots.owner(edge.index).filter(is_watched) {
            return Culprit::Watched(watch.index);
        }
        let tid = Tid(tid);
        // The programs name whom they charge. One that ended at that moment may be without, unless it is still there.
        if edge.flags & EDGE_NAMED == 0 {
            return look_up(&ProcFs::host(), tid);
        }
        let comm = text(&edge.comm);
        match edge.flags & EDGE_KERNEL != 0 {
            true => Culprit::Kernel { tid, comm },
            false => Culprit::Task {
                tid,
                pid: Some(Pid(edge.tgid)),
                comm,
                cgroup: (edge.cgroup != 0).then_some(edge.cgroup),
            },
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

    /// Its thread is gone, and the programs took it off their list.
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

/// CLOCK_MONOTONIC, which the programs read too.
fn now() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// A name of the kernel's: up to the first zero byte.
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

/// Deletes what may be gone already.
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

/// Who a culprit is whose thread the programs did not name, if that is still there.
fn look_up(procfs: &ProcFs, tid: Tid) -> Culprit {
    // `/proc` has each thread under its own number too, though it lists processes only.
    let folder = procfs.process(Pid(tid.0));
    let Ok(stat) = ThreadStat::read(&folder) else {
        return Culprit::Task { tid, pid: None, comm: String::new(), cgroup: None };
    };
    let comm = stat.comm;
    match stat.kernel_thread {
        true => Culprit::Kernel { tid, comm },
        false => {
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
}

/// Takes away what the programs wrote: puts the other map in the place of the one that is written. The kernel returns when no program
/// uses that any more (`maybe_wait_bpf_programs` in kernel/bpf/syscall.c).
fn take<K: Shared, V: Shared>(map: &mut TakenAway) -> Result<Vec<(K, V)>, BpfError> {
    let written = map.active;
    map.active = 1 - written;
    let file = map.maps[map.active].as_fd().as_raw_fd() as u32;
    update(&map.place, map.name, &0u32, &file, MapFlags::ANY)?;
    batch(&map.maps[written], map.name, MapFlags::ANY, true, usize::MAX)
}

/// The first entries of a map; with `take`, all are deleted.
fn batch<K: Shared, V: Shared>(
    map: &MapHandle,
    name: &'static str,
    flags: MapFlags,
    take: bool,
    most: usize,
) -> Result<Vec<(K, V)>, BpfError> {
    let count = BATCH.min(map.max_entries()).min(most as u32);
    let read = |(key, value): (Vec<u8>, Vec<u8>)| decode(&key).zip(decode(&value));
    let all = match take {
        true => map
            .lookup_and_delete_batch(count, flags, MapFlags::ANY)
            .map(|entries| entries.map(read).collect()),
        false => map
            .lookup_batch(count, flags, MapFlags::ANY)
            .map(|entries| entries.take(most).map(read).collect()),
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
    fn who_was_not_named_is_looked_up_with_its_process() {
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
        // Where there are other threads of the kernel than this one: kthreadd.
        if let Culprit::Kernel { comm, .. } = look_up(&ProcFs::host(), Tid(2)) {
            assert_eq!(comm, "kthreadd");
        }
    }
}
