//! The BPF source: times and edges of vCPUs from the programs, all other figures from the plain source.
//!
//! States that the programs cannot measure on this kernel come from the plain source too, if it has them: VMM from sampled guest time,
//! POLL from KVM statistics, LIM from throttled time.
//! They then are a part of the time that the programs measured, at most all of it.

use std::collections::{BTreeMap, BTreeSet};

use tandem_linux::procfs::ProcFs;
use tandem_linux::thread::{Pid, ThreadRef};
use tandem_model::states::edges::{Amount, EdgeKind, Edges, EdgesBuilder, Evidence, Party, TOP};
use tandem_model::states::interval::{Column, Interval, Missing, SourceName};
use tandem_model::states::latency::Latency;
use tandem_model::states::programs::{Estimated, NotSeen, Programs};
use tandem_model::{Nanos, State, VcpuId, VcpuTimes, VmId};

use super::columns::{self, is_measured};
use super::parties::Parties;
use super::{
    Bpf, BpfError, BpfReading, Culprit, MissingEvent, Options, StateTimes, VcpuReading, Watch,
};
use crate::plain::Plain;
use crate::source::{ObserveError, Source, WatchedVm};

/// The definition of CSTP in this source.
const COSTOP_IS: &str = "the part of halts that a sibling ended in which that sibling waited for a pCPU (its last wait); spinning for a \
                         sibling is not in it";

/// The identity of a vCPU for users.
type Name = (VmId, VcpuId);

/// The BPF programs combined with the plain source.
pub struct BpfSource {
    bpf: Bpf,
    options: Options,
    plain: Plain,
    parties: Parties,
    /// The watched threads with their indices.
    watched: BTreeMap<ThreadRef, (u32, Name)>,
    next: u32,
    /// Threads that exited but are still listed by the caller.
    ended: BTreeSet<ThreadRef>,
}

impl Source for BpfSource {
    fn name(&self) -> SourceName {
        SourceName::Bpf
    }

    fn count_wakeups(&mut self) {
        self.plain.count_wakeups();
    }

    fn begin(&mut self, vms: &[WatchedVm]) -> Result<(), ObserveError> {
        self.plain.begin(vms)?;
        self.watch(vms)?;
        let reading = self.bpf.read()?;
        self.forget_ended(&reading);
        Ok(())
    }

    fn missing(&self) -> Vec<Missing> {
        let here = self.bpf.missing();
        let plain = self.plain.missing();
        let mut missing: Vec<Missing> =
            plain.into_iter().filter(|missing| !is_measured(missing.what, &here)).collect();
        missing.extend(columns::missing(&here));
        missing
    }

    fn interval(&mut self, vms: &[WatchedVm]) -> Result<Interval, ObserveError> {
        let mut interval = self.plain.interval(vms)?;
        let reading = self.bpf.read()?;
        self.parties.begin();
        let names: BTreeMap<u32, Name> = self.watched.values().copied().collect();
        let readings: BTreeMap<Name, &VcpuReading> = reading
            .vcpus
            .iter()
            .filter_map(|vcpu| Some((*names.get(&vcpu.index)?, vcpu)))
            .collect();
        let here = self.bpf.missing();
        let sees_wakeups = is_measured(Column::State(State::Ready), &here);
        interval.source = SourceName::Bpf;
        for vm in &mut interval.vms {
            // A vCPU without a reading is new and is omitted from this interval.
            vm.vcpus.retain(|vcpu| readings.contains_key(&(vm.vm, vcpu.vcpu)));
            for vcpu in &mut vm.vcpus {
                let reading = readings[&(vm.vm, vcpu.vcpu)];
                let mut told = reading.times;
                if !sees_wakeups {
                    add_ready(&mut told, &vcpu.times);
                }
                vcpu.times = times(reading.wall, told, &vcpu.times);
                vcpu.ran = told.on_pcpu();
                vcpu.waited = told.ready + told.limited.unwrap_or_default();
                vcpu.runs = reading.runs;
            }
        }
        interval.vms.retain(|vm| !vm.vcpus.is_empty());
        interval.edges = self.edges(vms, &interval, &reading, &names, &here);
        interval.missing.retain(|missing| !is_measured(missing.what, &here));
        for missing in &mut interval.missing {
            if let Some(want) = columns::want(missing.what, &here)
                && missing.what == Column::State(State::Costop)
            {
                missing.want = want;
            }
        }
        interval.missing.extend(columns::missing(&here));
        interval.programs = Some(self.programs(&interval, &reading, &names, &here));
        self.forget_ended(&reading);
        self.watch(vms)?;
        Ok(interval)
    }
}

impl BpfSource {
    /// Loads the programs. The set of watched threads is empty.
    pub fn open(procfs: ProcFs, options: Options) -> Result<BpfSource, BpfError> {
        Ok(BpfSource {
            bpf: Bpf::open(options)?,
            options,
            parties: Parties::new(procfs.clone()),
            plain: Plain::new(procfs),
            watched: BTreeMap::new(),
            next: 0,
            ended: BTreeSet::new(),
        })
    }

    /// Returns the figures of the programs other than times and edges.
    fn programs(
        &self,
        interval: &Interval,
        reading: &BpfReading,
        names: &BTreeMap<u32, Name>,
        here: &[MissingEvent],
    ) -> Programs {
        let mut latency: BTreeMap<VmId, Latency> = BTreeMap::new();
        for vm in &interval.vms {
            latency.insert(vm.vm, Latency::default());
        }
        for vcpu in &reading.vcpus {
            let vm = names.get(&vcpu.index).map(|(vm, _)| vm);
            if let Some(sum) = vm.and_then(|vm| latency.get_mut(vm)) {
                *sum += vcpu.latency;
            }
        }
        let costop = Column::State(State::Costop);
        let estimated = is_measured(costop, here)
            .then(|| Estimated { what: costop, how: COSTOP_IS.to_owned() });
        Programs {
            not_seen: here.iter().map(NotSeen::from).collect(),
            not_counted: reading.lost,
            estimated: estimated.into_iter().collect(),
            latency,
        }
    }

    /// Records the threads that exited, so that they are not watched again while they are listed.
    fn forget_ended(&mut self, reading: &BpfReading) {
        let ended: BTreeSet<u32> =
            reading.vcpus.iter().filter_map(|vcpu| vcpu.ended.then_some(vcpu.index)).collect();
        let watched = self.watched.iter();
        let threads = watched.filter(|(_, (index, _))| ended.contains(index));
        self.ended.extend(threads.map(|(thread, _)| *thread));
    }

    /// Watches the vCPUs of these VMs. If there are too many, reopens the programs with larger maps:
    /// the data since the last reading is then lost, and the next interval starts now.
    fn watch(&mut self, vms: &[WatchedVm]) -> Result<(), BpfError> {
        let mut watched = BTreeMap::new();
        let mut threads = Vec::new();
        let mut ended = BTreeSet::new();
        for vm in vms {
            for vcpu in &vm.vcpus {
                if self.ended.contains(&vcpu.thread) {
                    ended.insert(vcpu.thread);
                    continue;
                }
                let name = (vm.vm, vcpu.vcpu);
                let known = self.watched.get(&vcpu.thread).filter(|(_, n)| *n == name);
                let index = known.map_or(self.next, |(index, _)| *index);
                if index == self.next {
                    self.next = self.next.wrapping_add(1);
                }
                // A thread that two VMs claim belongs to the first.
                if watched.contains_key(&vcpu.thread) {
                    continue;
                }
                watched.insert(vcpu.thread, (index, name));
                threads.push(Watch { index, thread: vcpu.thread, vm: vm.vm, vcpu: vcpu.vcpu });
            }
        }
        self.ended = ended;
        match self.bpf.watch(&threads) {
            Err(BpfError::TooMany { given, .. }) => {
                self.options.max_vcpus = (given as u32).saturating_mul(2);
                self.bpf = Bpf::open(self.options)?;
                self.bpf.watch(&threads)?;
            }
            other => other?,
        }
        self.watched = watched;
        Ok(())
    }

    /// Returns the measured edges, or estimated waits for pCPUs if migrations are not seen.
    /// RDY of a victim without an edge, because maps were full or were read a moment earlier, is attributed to [`Party::Unseen`].
    fn edges(
        &mut self,
        vms: &[WatchedVm],
        interval: &Interval,
        reading: &BpfReading,
        names: &BTreeMap<u32, Name>,
        here: &[MissingEvent],
    ) -> Edges {
        let vm_of: BTreeMap<Pid, VmId> = vms.iter().map(|vm| (vm.process.pid, vm.vm)).collect();
        let mut builder = EdgesBuilder::new();
        let party = |(vm, vcpu): Name| Party::Vcpu { vm, vcpu };
        let mut waited: BTreeMap<Name, Nanos> = BTreeMap::new();
        if is_measured(Column::Edges(EdgeKind::Pcpu), here) {
            for edge in &reading.edges {
                let Some(name) = names.get(&edge.victim) else {
                    continue;
                };
                let culprit = match &edge.culprit {
                    Culprit::Watched(index) => {
                        names.get(index).map_or(Party::Unseen, |n| party(*n))
                    }
                    other => self.parties.of(other, &vm_of),
                };
                let (victim, culprit) = (builder.party(&party(*name)), builder.party(&culprit));
                let amount = Amount::time(edge.time);
                builder.add(victim, culprit, EdgeKind::Pcpu, Evidence::Measured, amount);
                *waited.entry(*name).or_default() += edge.time;
            }
            let unseen = builder.party(&Party::Unseen);
            for vm in &interval.vms {
                for vcpu in &vm.vcpus {
                    let name = (vm.vm, vcpu.vcpu);
                    let ready = vcpu.times.get(State::Ready).unwrap_or_default();
                    let rest = ready.saturating_sub(waited.get(&name).copied().unwrap_or_default());
                    let victim = builder.party(&party(name));
                    let amount = Amount::time(rest);
                    builder.add(victim, unseen, EdgeKind::Pcpu, Evidence::Measured, amount);
                }
            }
        } else {
            for edge in interval.edges.iter().filter(|edge| edge.kind == EdgeKind::Pcpu) {
                let (victim, culprit) = (builder.party(edge.victim), builder.party(edge.culprit));
                builder.add(victim, culprit, edge.kind, edge.evidence, edge.amount);
            }
        }
        for link in &reading.links {
            let (Some(from), Some(to)) = (names.get(&link.from), names.get(&link.to)) else {
                continue;
            };
            let [from, to] = [from, to].map(|name| builder.party(&party(*name)));
            if is_measured(Column::Edges(EdgeKind::Sibling), here) {
                let costop = Amount { time: link.costop_time, count: Some(link.costops) };
                builder.add(to, from, EdgeKind::Sibling, Evidence::Estimated, costop);
            }
            let useless = link.yields - link.yields_made;
            for (kind, count) in
                [(EdgeKind::YieldTaken, link.yields_made), (EdgeKind::YieldUseless, useless)]
            {
                let amount = Amount { time: Nanos::ZERO, count: Some(count) };
                builder.add(from, to, kind, Evidence::Measured, amount);
            }
        }
        builder.top(TOP)
    }
}

/// Returns the times of a vCPU, with states from the plain source that the programs cannot measure.
fn times(wall: Nanos, told: StateTimes, plain: &VcpuTimes) -> VcpuTimes {
    let (mut run, mut ready) = (told.run, told.ready);
    // If POLL is not available from the plain source, the plain VMM includes it.
    let poll_in_vmm = match plain.get(State::Poll) {
        Some(_) => Nanos::ZERO,
        None => told.poll.unwrap_or_default(),
    };
    let plain_vmm = plain.get(State::Vmm).map(|vmm| vmm.saturating_sub(poll_in_vmm));
    let mut vmm = told.vmm.or_else(|| part_of(&mut run, plain_vmm));
    let around_poll = match &mut vmm {
        Some(vmm) if told.vmm.is_some() => vmm,
        _ => &mut run,
    };
    let poll = told.poll.or_else(|| part_of(around_poll, plain.get(State::Poll)));
    let limited = told.limited.or_else(|| part_of(&mut ready, plain.get(State::Limited)));
    let measured = [
        (State::Run, Some(run)),
        (State::Vmm, vmm),
        (State::Poll, poll),
        (State::Ready, Some(ready)),
        (State::Limited, limited),
        (State::Costop, told.costop),
    ];
    let parts = measured.into_iter().filter_map(|(state, time)| Some((state, time?)));
    VcpuTimes::from_parts(wall, parts).expect("each state once, and HALT is the rest")
}

/// Moves waits that the plain source measured but no program saw from HALT to RDY.
fn add_ready(told: &mut StateTimes, plain: &VcpuTimes) {
    let get = |state| plain.get(state).unwrap_or_default();
    let waited = get(State::Ready) + get(State::Limited);
    let seen = told.ready + told.limited.unwrap_or_default();
    let unseen = part_of(&mut told.halted, Some(waited.saturating_sub(seen)));
    told.ready += unseen.unwrap_or_default();
}

/// Takes a part out of a time, at most all of it.
fn part_of(whole: &mut Nanos, part: Option<Nanos>) -> Option<Nanos> {
    let part = part?.min(*whole);
    *whole = *whole - part;
    Some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(parts: &[(State, u64)]) -> VcpuTimes {
        let parts = parts.iter().map(|(state, time)| (*state, Nanos(*time)));
        VcpuTimes::from_parts(Nanos(1000), parts).unwrap()
    }

    #[test]
    fn plain_states_are_parts_of_measured_ones() {
        let told = StateTimes {
            run: Nanos(500),
            ready: Nanos(100),
            halted: Nanos(400),
            ..StateTimes::default()
        };
        let all = plain(&[
            (State::Run, 300),
            (State::Vmm, 120),
            (State::Poll, 70),
            (State::Limited, 900),
        ]);
        let mixed = times(Nanos(1000), told, &all);
        let get = |state| mixed.get(state).map(|time| time.0);
        assert_eq!(mixed.wall(), Nanos(1000));
        assert_eq!(get(State::Run), Some(310));
        assert_eq!((get(State::Vmm), get(State::Poll)), (Some(120), Some(70)));
        assert_eq!((get(State::Ready), get(State::Limited)), (Some(0), Some(100)));
        assert_eq!(get(State::Halted), Some(400));
        let nothing = times(Nanos(1000), told, &plain(&[]));
        for state in [State::Vmm, State::Poll, State::Limited, State::Costop] {
            assert_eq!(nothing.get(state), None, "{state}");
        }
        assert_eq!(nothing.get(State::Run), Some(Nanos(500)));
    }

    #[test]
    fn co_stop_is_part_of_the_halt() {
        let told = StateTimes {
            run: Nanos(500),
            costop: Some(Nanos(120)),
            halted: Nanos(380),
            ..StateTimes::default()
        };
        let mixed = times(Nanos(1000), told, &plain(&[(State::Run, 500)]));
        assert_eq!(mixed.get(State::Costop), Some(Nanos(120)));
        assert_eq!(mixed.get(State::Halted), Some(Nanos(380)));
    }

    #[test]
    fn measured_polling_is_subtracted_from_plain_vmm() {
        let told = StateTimes {
            run: Nanos(500),
            poll: Some(Nanos(100)),
            halted: Nanos(400),
            ..StateTimes::default()
        };
        let mixed = times(Nanos(1000), told, &plain(&[(State::Run, 400), (State::Vmm, 150)]));
        assert_eq!(mixed.get(State::Vmm), Some(Nanos(50)));
        assert_eq!(mixed.get(State::Run), Some(Nanos(450)));
        assert_eq!(mixed.get(State::Poll), Some(Nanos(100)));
    }

    #[test]
    fn unseen_waits_are_part_of_the_halt() {
        let mut told = StateTimes {
            run: Nanos(500),
            ready: Nanos(50),
            halted: Nanos(450),
            ..StateTimes::default()
        };
        let all = plain(&[(State::Run, 500), (State::Ready, 170), (State::Limited, 30)]);
        add_ready(&mut told, &all);
        assert_eq!((told.ready, told.halted), (Nanos(200), Nanos(300)));
        let mixed = times(Nanos(1000), told, &all);
        assert_eq!(mixed.get(State::Ready), Some(Nanos(170)));
        assert_eq!(mixed.get(State::Limited), Some(Nanos(30)));
        // At most the time that the vCPU was off all pCPUs.
        add_ready(&mut told, &plain(&[(State::Ready, 900)]));
        assert_eq!((told.ready, told.halted), (Nanos(500), Nanos(0)));
    }
}
