//! The columns of a segment, and frames as rows and back.
//!
//! A row describes one item, whose kind is in the column `item`. Columns that do not apply to this kind, and unmeasured values, are null. Rows
//! are sorted by kind, then by interval, so that nulls and repeating numbers take little space. Times are ns within the interval.
//!
//! | `item` | columns |
//! |---|---|
//! | all | `number` of the interval, from 0 at the begin of the record |
//! | `interval` | `at` (begin, ns since 1970), `start` (the same by CLOCK_MONOTONIC), `length`, `source`, `unreadable` (unreadable VMMs), `failed` (failed readings since the previous interval) and `failure` (the last error), `settings` (JSON: configuration of the host); of the host `pcpus`, and summed over them `idle`, `vcpus`, `vm_threads`, `tasks`, `kernel` |
//! | `vm` | `vm` (unique id within the record), `name`, `pid`, `program`, `weight`, `due`, `settings` (JSON: its cgroup, quotas and the like); `measured` is 1 if it existed for the whole interval |
//! | `vcpu` | `vm`, `vcpu`, `tid`, `allowed` (pCPUs), `wall`, and of it `run`, `poll`, `vmm`, `ready`, `limited`, `costop`, `halted`; `ran`, `waited`, `runs`, `wakeups`, `runnable` (at the end). Without `wall`: known, but not measured |
//! | `thread` | another thread of a VM: `vm`, `name`, `time` |
//! | `edge` | waiting time: `victim` (its kind: `vcpu`, `vm`, `vm-thread`, `process`, `kernel-thread`, `unseen`, `others`) with `vm`, `vcpu`, `name`, `cgroup`; `culprit` with `culprit_vm`, `culprit_vcpu`, `culprit_name`, `culprit_cgroup`; `kind` (`pcpu`, `sibling`, `yield-taken`, `yield-useless`), `evidence`, `time`, `count` |
//! | `process` | a process that is no VM: `name`, `pid`, `cgroup`, `time` |
//! | `missing` | unmeasured column: `what`, for `vms` VMs out of `of`; `want` is the missing requirement |
//! | `programs` | BPF programs measured this interval |
//! | `not-counted` | `name` (`waits`, `edges`, `links`, `events`): `count` of them, with `time`, could not be counted |
//! | `not-seen` | the event `name` is not seen, so `what` is unknown, because `want` is missing |
//! | `estimated` | `what` is estimated; `want` describes how |
//! | `latency` | `time` is the sum of wake-up latencies of `vm` |
//! | `latency-bucket` | `count` wake-ups of `vm` took at least `time`, and less than twice as long |

use std::collections::BTreeMap;

use serde::Serialize;
use tandem_model::states::edges::{Amount, EdgeKind, EdgesBuilder, Evidence, Party};
use tandem_model::states::interval::{
    HostTotals, Interval, Missing, ProcessTime, SourceName, ThreadTime, VcpuInterval, VmInterval,
};
use tandem_model::{Nanos, PcpuSet, State, VcpuId, VcpuTimes, VmId, Weight};

use super::frame::{Frame, RecordedVm};

mod cells;
mod programs;

pub(super) use cells::{Cells, Int, Real, Table, Text};
use cells::{Row, name, set};

/// The columns of the states, in the order of [`State::ALL`].
const STATES: [Int; 7] =
    [Int::Run, Int::Poll, Int::Vmm, Int::Ready, Int::Limited, Int::Costop, Int::Halted];

impl Table {
    /// Converts consecutive frames, the first with this number, to rows.
    pub(super) fn of(first: u64, frames: &[Frame]) -> Table {
        let mut table = Table::new();
        for rows in [
            interval_row,
            vm_rows,
            vcpu_rows,
            thread_rows,
            edge_rows,
            process_rows,
            missing_rows,
            programs::rows,
        ] {
            for (frame, number) in frames.iter().zip(first..) {
                rows(&mut table, number, frame);
            }
        }
        table.fill();
        table
    }
}

fn interval_row(table: &mut Table, number: u64, frame: &Frame) {
    let (interval, host) = (&frame.interval, &frame.interval.host);
    let row = table.row("interval", number);
    if let Some(failure) = &frame.failure {
        row.text(Text::Failure, failure);
    }
    if let Some(settings) = &frame.host {
        row.text(Text::Settings, &json(settings));
    }
    row.int(Int::Failed, frame.failed)
        .text(Text::Source, &name(&interval.source))
        .time(Int::At, frame.at)
        .time(Int::Start, interval.start)
        .time(Int::Length, interval.length)
        .int(Int::Unreadable, frame.unreadable as u64)
        .int(Int::Pcpus, host.pcpus as u64)
        .time(Int::Idle, host.idle)
        .time(Int::Vcpus, host.vcpus)
        .time(Int::VmThreads, host.vm_threads)
        .time(Int::Tasks, host.tasks)
        .time(Int::Kernel, host.kernel);
}

/// Measured VMs come first, in the order of the interval.
fn vm_rows(table: &mut Table, number: u64, frame: &Frame) {
    let measured: Vec<VmId> = frame.interval.vms.iter().map(|vm| vm.vm).collect();
    let others = frame.vms.keys().filter(|vm| !measured.contains(vm));
    let all = measured.iter().map(|vm| (vm, 1));
    for (vm, is_measured) in all.chain(others.map(|vm| (vm, 0))) {
        let row = table.row("vm", number);
        row.int(Int::Vm, vm.0).int(Int::Measured, is_measured);
        let Some(known) = frame.vms.get(vm) else {
            continue;
        };
        row.text(Text::Name, &known.name)
            .text(Text::Program, &known.program)
            .int(Int::Pid, known.pid.into())
            .time(Int::Due, known.due);
        if let Some(settings) = &known.settings {
            row.text(Text::Settings, &json(settings));
        }
        if let Some(weight) = known.weight {
            let cells = &mut row.reals[Real::Weight as usize];
            set(cells, row.rows, weight.value());
        }
    }
}

fn vcpu_rows(table: &mut Table, number: u64, frame: &Frame) {
    for vm in &frame.interval.vms {
        let tids = frame.vms.get(&vm.vm).map(|known| &known.tids);
        for vcpu in &vm.vcpus {
            let row = table.row("vcpu", number);
            row.int(Int::Vm, vm.vm.0)
                .int(Int::Vcpu, vcpu.vcpu.0.into())
                .text(Text::Allowed, &vcpu.allowed.to_string())
                .time(Int::Wall, vcpu.times.wall())
                .time(Int::Ran, vcpu.ran)
                .time(Int::Waited, vcpu.waited)
                .int(Int::Runs, vcpu.runs)
                .int(Int::Runnable, vcpu.runnable.into());
            for (state, column) in State::ALL.into_iter().zip(STATES) {
                row.time(column, vcpu.times.get(state));
            }
            if let Some(wakeups) = vcpu.wakeups {
                row.int(Int::Wakeups, wakeups);
            }
            if let Some(tid) = tids.and_then(|tids| tids.get(&vcpu.vcpu)) {
                row.int(Int::Tid, (*tid).into());
            }
        }
    }
    for (vm, known) in &frame.vms {
        let measured = frame.interval.vms.iter().find(|other| other.vm == *vm);
        let is_measured = |vcpu: &VcpuId| {
            measured.is_some_and(|vm| vm.vcpus.iter().any(|other| other.vcpu == *vcpu))
        };
        for (vcpu, tid) in known.tids.iter().filter(|(vcpu, _)| !is_measured(vcpu)) {
            table
                .row("vcpu", number)
                .int(Int::Vm, vm.0)
                .int(Int::Vcpu, vcpu.0.into())
                .int(Int::Tid, (*tid).into());
        }
    }
}

fn thread_rows(table: &mut Table, number: u64, frame: &Frame) {
    for vm in &frame.interval.vms {
        for thread in &vm.threads {
            table
                .row("thread", number)
                .int(Int::Vm, vm.vm.0)
                .text(Text::Name, &thread.name)
                .time(Int::Time, thread.time);
        }
    }
}

/// The columns of a party: kind, VM, vCPU, name, cgroup.
type PartyColumns = (Text, Int, Int, Text, Text);

const VICTIM: PartyColumns = (Text::Victim, Int::Vm, Int::Vcpu, Text::Name, Text::Cgroup);
const CULPRIT: PartyColumns =
    (Text::Culprit, Int::CulpritVm, Int::CulpritVcpu, Text::CulpritName, Text::CulpritCgroup);

fn edge_rows(table: &mut Table, number: u64, frame: &Frame) {
    for edge in frame.interval.edges.iter() {
        let row = table.row("edge", number);
        party(row, edge.victim, VICTIM);
        party(row, edge.culprit, CULPRIT);
        row.text(Text::Kind, &name(&edge.kind))
            .text(Text::Evidence, &name(&edge.evidence))
            .time(Int::Time, edge.amount.time);
        if let Some(count) = edge.amount.count {
            row.int(Int::Count, count);
        }
    }
}

fn party(row: &mut Table, party: &Party, columns: PartyColumns) {
    let (kind, vm_column, vcpu_column, name, cgroup_column) = columns;
    if let Some(vm) = party.vm() {
        row.int(vm_column, vm.0);
    }
    match party {
        Party::Vcpu { vcpu, .. } => row.text(kind, "vcpu").int(vcpu_column, vcpu.0.into()),
        Party::Vm(_) => row.text(kind, "vm"),
        Party::VmThread { name: of, .. } => row.text(kind, "vm-thread").text(name, of),
        Party::Process { name: of, cgroup } => {
            if let Some(cgroup) = cgroup {
                row.text(cgroup_column, cgroup);
            }
            row.text(kind, "process").text(name, of)
        }
        Party::KernelThread(of) => row.text(kind, "kernel-thread").text(name, of),
        Party::Unseen => row.text(kind, "unseen"),
        Party::Others => row.text(kind, "others"),
    };
}

fn process_rows(table: &mut Table, number: u64, frame: &Frame) {
    for process in &frame.interval.host.top_tasks {
        let row = table.row("process", number);
        row.text(Text::Name, &process.name)
            .int(Int::Pid, process.pid.into())
            .time(Int::Time, process.time);
        if let Some(cgroup) = &process.cgroup {
            row.text(Text::Cgroup, cgroup);
        }
    }
}

fn missing_rows(table: &mut Table, number: u64, frame: &Frame) {
    for missing in &frame.interval.missing {
        table
            .row("missing", number)
            .text(Text::What, &name(&missing.what))
            .text(Text::Want, &missing.want)
            .int(Int::Vms, missing.vms as u64)
            .int(Int::Of, missing.of as u64);
    }
}

/// Settings, which only Tandem interprets.
fn json(settings: &impl Serialize) -> String {
    serde_json::to_string(settings)
        .unwrap_or_else(|error| unreachable!("plain data can be written as JSON: {error}"))
}

/// A frame under construction.
struct Growing {
    frame: Frame,
    edges: EdgesBuilder,
}

/// Converts a table to frames by number; the error names the invalid row. All columns must have the length of the table.
pub(super) fn frames(table: &Table) -> Result<BTreeMap<u64, Frame>, String> {
    let mut frames: BTreeMap<u64, Growing> = BTreeMap::new();
    let mut row = Row {
        table,
        row: 0,
        texts: vec![0; table.texts.len()],
        ints: vec![0; table.ints.len()],
        reals: vec![0; table.reals.len()],
    };
    while row.row < table.rows {
        let number: u64 = row.wanted(Int::Number)?;
        match row.wanted_text(Text::Item)? {
            "interval" => {
                frames.insert(number, interval_of(&row)?);
            }
            kind => {
                let Some(growing) = frames.get_mut(&number) else {
                    return Err(row.wrong("number", format!("nothing is known of {number}")));
                };
                read_row(kind, &row, growing)?;
            }
        }
        row.next();
    }
    let finished = frames.into_iter().map(|(number, growing)| {
        let mut frame = growing.frame;
        frame.interval.edges = growing.edges.all();
        (number, frame)
    });
    Ok(finished.collect())
}

fn interval_of(row: &Row<'_>) -> Result<Growing, String> {
    let host = HostTotals {
        pcpus: row.wanted(Int::Pcpus)?,
        idle: row.time(Int::Idle),
        vcpus: row.wanted_time(Int::Vcpus)?,
        vm_threads: row.wanted_time(Int::VmThreads)?,
        tasks: row.wanted_time(Int::Tasks)?,
        top_tasks: Vec::new(),
        kernel: row.wanted_time(Int::Kernel)?,
    };
    let interval = Interval {
        source: row.named::<SourceName>(Text::Source)?,
        start: row.wanted_time(Int::Start)?,
        length: row.wanted_time(Int::Length)?,
        vms: Vec::new(),
        edges: EdgesBuilder::new().all(),
        host,
        missing: Vec::new(),
        programs: None,
    };
    Ok(Growing {
        frame: Frame {
            at: row.wanted_time(Int::At)?,
            interval,
            vms: BTreeMap::new(),
            unreadable: row.wanted(Int::Unreadable)?,
            failed: row.int(Int::Failed).unwrap_or(0),
            failure: row.text(Text::Failure)?.map(str::to_owned),
            host: row.settings()?,
        },
        edges: EdgesBuilder::new(),
    })
}

fn read_row(kind: &str, row: &Row<'_>, growing: &mut Growing) -> Result<(), String> {
    let frame = &mut growing.frame;
    let interval = &mut frame.interval;
    match kind {
        "vm" => {
            let vm = row.vm()?;
            if row.wanted::<u64>(Int::Measured)? == 1 {
                interval.vms.push(VmInterval { vm, vcpus: Vec::new(), threads: Vec::new() });
            }
            if let Some(name) = row.text(Text::Name)? {
                let known = RecordedVm {
                    name: name.to_owned(),
                    pid: row.wanted(Int::Pid)?,
                    program: row.wanted_text(Text::Program)?.to_owned(),
                    weight: row.real(Real::Weight).and_then(Weight::new),
                    due: row.time(Int::Due),
                    tids: BTreeMap::new(),
                    settings: row.settings()?,
                };
                frame.vms.insert(vm, known);
            }
        }
        "vcpu" => {
            let (vm, vcpu) = (row.vm()?, VcpuId(row.wanted(Int::Vcpu)?));
            if row.int(Int::Tid).is_some() {
                let known = frame.vms.get_mut(&vm);
                let known = known.ok_or_else(|| row.wrong("vm", format!("{vm} has no name")))?;
                known.tids.insert(vcpu, row.wanted(Int::Tid)?);
            }
            if let Some(wall) = row.time(Int::Wall) {
                let vcpu = vcpu_of(row, vcpu, wall)?;
                measured(row, &mut interval.vms)?.vcpus.push(vcpu);
            }
        }
        "thread" => {
            let thread = ThreadTime {
                name: row.wanted_text(Text::Name)?.to_owned(),
                time: row.wanted_time(Int::Time)?,
            };
            measured(row, &mut interval.vms)?.threads.push(thread);
        }
        "edge" => {
            let victim = growing.edges.party(&party_of(row, VICTIM)?);
            let culprit = growing.edges.party(&party_of(row, CULPRIT)?);
            let kind: EdgeKind = row.named(Text::Kind)?;
            let evidence: Evidence = row.named(Text::Evidence)?;
            let amount = Amount { time: row.wanted_time(Int::Time)?, count: row.int(Int::Count) };
            growing.edges.add(victim, culprit, kind, evidence, amount);
        }
        "process" => interval.host.top_tasks.push(ProcessTime {
            name: row.wanted_text(Text::Name)?.to_owned(),
            pid: row.wanted(Int::Pid)?,
            cgroup: row.text(Text::Cgroup)?.map(str::to_owned),
            time: row.wanted_time(Int::Time)?,
        }),
        "missing" => interval.missing.push(Missing {
            what: row.named(Text::What)?,
            vms: row.wanted(Int::Vms)?,
            of: row.wanted(Int::Of)?,
            want: row.wanted_text(Text::Want)?.to_owned(),
        }),
        other => {
            let is_known = programs::read(other, row, &mut interval.programs)?;
            if !is_known {
                return Err(row.wrong("item", format!("'{other}' is not known")));
            }
        }
    }
    Ok(())
}

/// Returns the VM of a row among the measured ones.
fn measured<'a>(row: &Row<'_>, vms: &'a mut [VmInterval]) -> Result<&'a mut VmInterval, String> {
    let vm = row.vm()?;
    // Rows of one VM are adjacent, in the order of VMs.
    let found = vms.iter_mut().find(|other| other.vm == vm);
    found.ok_or_else(|| row.wrong("vm", format!("{vm} was not measured")))
}

fn vcpu_of(row: &Row<'_>, vcpu: VcpuId, wall: Nanos) -> Result<VcpuInterval, String> {
    let times = VcpuTimes::from_all(wall, STATES.map(|column| row.time(column)));
    let allowed = row.wanted_text(Text::Allowed)?.parse::<PcpuSet>();
    Ok(VcpuInterval {
        vcpu,
        times: times.map_err(|error| row.wrong("wall", error))?,
        ran: row.wanted_time(Int::Ran)?,
        waited: row.wanted_time(Int::Waited)?,
        runs: row.wanted(Int::Runs)?,
        wakeups: row.int(Int::Wakeups),
        runnable: row.wanted::<u64>(Int::Runnable)? == 1,
        allowed: allowed.map_err(|error| row.wrong("allowed", error))?,
    })
}

fn party_of(row: &Row<'_>, columns: PartyColumns) -> Result<Party, String> {
    let (kind, vm, vcpu, name, cgroup) = columns;
    let vm = || row.wanted(vm).map(VmId);
    let name = || row.wanted_text(name).map(str::to_owned);
    Ok(match row.wanted_text(kind)? {
        "vcpu" => Party::Vcpu { vm: vm()?, vcpu: VcpuId(row.wanted(vcpu)?) },
        "vm" => Party::Vm(vm()?),
        "vm-thread" => Party::VmThread { vm: vm()?, name: name()? },
        "process" => Party::Process { name: name()?, cgroup: row.text(cgroup)?.map(str::to_owned) },
        "kernel-thread" => Party::KernelThread(name()?),
        "unseen" => Party::Unseen,
        "others" => Party::Others,
        other => return Err(row.wrong(kind.name(), format!("'{other}' is not a party"))),
    })
}
