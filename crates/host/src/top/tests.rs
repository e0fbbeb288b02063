//! Figures of synthetic intervals.

use tandem_model::State;
use tandem_model::states::edges::{Amount, EdgesBuilder};
use tandem_model::states::interval::{Column, ProcessTime, VcpuInterval};

use super::*;
use crate::columns::Style;
use crate::fixtures::intervals::{interval, vcpu_on, vm_interval};
use crate::fixtures::{ms, vm};
use crate::weights::Weights;

/// A vCPU that ran and waited for this many ms of a second.
fn vcpu(n: u32, ran: u64, waited: u64) -> VcpuInterval {
    vcpu_on("0-1", n, &[(State::Run, ran), (State::Ready, waited)], 7)
}

fn edges(of: &[(u64, u32, Party, u64)]) -> Edges {
    let mut builder = EdgesBuilder::new();
    for (vm, vcpu, culprit, time) in of {
        let (vm, vcpu) = (VmId(*vm), VcpuId(*vcpu));
        let victim = builder.party(&Party::Vcpu { vm, vcpu });
        let culprit = builder.party(culprit);
        let amount = Amount::time(ms(*time));
        builder.add(victim, culprit, EdgeKind::Pcpu, Evidence::Estimated, amount);
    }
    builder.all()
}

/// Two VMs on two pCPUs: `calm` waits little, `hurt` waits for `calm`, for itself and for make.
fn example() -> (Scan, Interval) {
    let scan = Scan {
        vms: vec![vm(1, "calm", 1), vm(2, "hurt", 2), vm(3, "silent", 0)],
        unreadable: 9,
        unreadable_vmms: 2,
        ..Scan::default()
    };
    let make = Party::Process { name: "make".to_owned(), cgroup: Some("/build".to_owned()) };
    let edges = edges(&[
        (2, 0, Party::Vm(VmId(1)), 150),
        (2, 1, Party::Vm(VmId(1)), 150),
        (2, 1, Party::Vm(VmId(2)), 60),
        (2, 0, make, 40),
    ]);
    let mut vms = vec![
        vm_interval(1, vec![vcpu(0, 900, 60)]),
        vm_interval(2, vec![vcpu(0, 300, 200), vcpu(1, 400, 200)]),
    ];
    vms[1].threads = vec![ThreadTime { name: "IO".to_owned(), time: ms(10) }];
    let make = ProcessTime {
        name: "make".to_owned(),
        pid: 9,
        cgroup: Some("/build".to_owned()),
        time: ms(140),
    };
    let host = HostTotals {
        pcpus: 2,
        idle: Some(ms(200)),
        vcpus: ms(1_600),
        vm_threads: ms(10),
        tasks: ms(150),
        top_tasks: vec![make],
        kernel: ms(40),
    };
    let costop = Column::State(State::Costop);
    let missing = vec![Missing { what: costop, vms: 2, of: 2, want: "BPF".to_owned() }];
    (scan, Interval { missing, ..interval(ms(7), vms, edges, host) })
}

pub(super) fn all() -> TopInterval {
    let (scan, interval) = example();
    shown(&scan, &interval, &assessed(&interval, &Weights::default()), |_| true)
}

#[test]
fn worst_vm_comes_first_with_its_culprits() {
    let top = all();
    let names: Vec<&str> = top.vms.iter().map(|vm| vm.name.as_str()).collect();
    assert_eq!(names, ["hurt", "calm"]);
    let hurt = &top.vms[0];
    assert_eq!(hurt.times.share(State::Ready), Some(0.2));
    let culprits: Vec<_> = hurt
        .culprits
        .iter()
        .map(|culprit| (culprit.kind, culprit.name.as_str(), culprit.time))
        .collect();
    assert_eq!(
        culprits,
        [
            (CulpritKind::Vm, "calm", ms(300)),
            (CulpritKind::Itself, "itself", ms(60)),
            (CulpritKind::Process, "make", ms(40)),
        ]
    );
    let first = &hurt.vcpus[0];
    assert_eq!((first.tid, first.culprits[1].name.as_str()), (201, "make"));
    assert_eq!((top.found, top.unreadable, top.unidentified), (3, 2, 1));
    // Each wants more than half of the received sum: equal weights, equal shares of 1.6 pCPUs.
    assert!(hurt.figures.due > hurt.figures.received && hurt.figures.lag > 0.0, "{hurt:?}");
    assert!(top.vms[1].figures.lag < 0.0);
}

#[test]
fn unselected_vms_remain_culprits() {
    let (scan, interval) = example();
    let top =
        shown(&scan, &interval, &assessed(&interval, &Weights::default()), |vm| vm.name == "hurt");
    assert_eq!(top.vms.len(), 1);
    assert_eq!(top.vms[0].culprits[0].name, "calm");
    let everybody = all();
    assert_eq!(top.vms[0].figures, everybody.vms[0].figures, "the fair share counts all VMs");
    assert_eq!(top.unidentified, 0);
}

#[test]
fn equal_names_are_shown_with_pids() {
    let (mut scan, interval) = example();
    scan.vms[0].name = "hurt".to_owned();
    let top = shown(&scan, &interval, &assessed(&interval, &Weights::default()), |_| true);
    assert!(top.vms.iter().all(|vm| vm.name == "hurt"));
    let text = text::text(&top, false, Style::default());
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].starts_with("hurt (200)"), "{text}");
    assert!(lines[1].ends_with("hurt (100) 75%"), "{text}");
    assert!(lines[2].starts_with("hurt (100)"), "{text}");
}

#[test]
fn vm_line_has_at_most_80_columns() {
    let text = text::text(&all(), false, Style::default());
    let lines: Vec<&str> = text.lines().collect();
    let words =
        |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
    assert_eq!(
        words(lines[0]),
        [
            "VM", "vCPU", "RUN", "POLL", "VMM", "RDY", "LIM", "HALT", "due", "recv", "lag%",
            "waits", "for"
        ]
    );
    let hurt = words(lines[1]);
    assert_eq!(hurt[..8], ["hurt", "2", "35", "–", "–", "20", "–", "45"]);
    assert_eq!(hurt[11..], ["calm", "75%"]);
    assert_eq!(words(lines[3])[..4], ["2", "VMs", "3", "53"], "all together");
    assert!(!text.contains('\x1b'), "{text}");
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
    assert_eq!(
        lines[4..],
        [
            "2 pCPUs over 1.00 s: vCPUs 1.60, other threads of VMs 0.01, idle 0.20",
            "kernel threads 0.04, host tasks 0.15 (make 0.14)",
        ]
    );
    let cut = Style { width: Some(60), colour: false };
    let text = text::text(&all(), true, cut);
    assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
}

#[test]
fn ready_is_marked_above_5_and_10_percent() {
    let colour = Style { colour: true, width: None };
    let text = text::text(&all(), false, colour);
    assert!(text.contains("\x1b[1;31m20\x1b[0m"), "20 % is bad: {text:?}");
    assert!(text.contains("\x1b[33m6.0\x1b[0m"), "6 % is worth a look: {text:?}");
}

#[test]
fn vcpus_have_lines_of_their_own() {
    let text = text::text(&all(), true, Style::default());
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 1 + 2 + 3 + 1 + 2, "{text}");
    assert!(lines[2].starts_with("  0-1"), "where it may run: {text}");
    assert!(lines[2].ends_with("calm 75%"), "{text}");
}

#[test]
fn notes_name_missing_figures_and_remedies() {
    let notes = text::notes(&all(), false);
    assert_eq!(
        notes,
        [
            "CSTP not measured: BPF",
            "2 VMs not readable: run as root",
            "1 VM without known vCPU threads: give a QMP socket or a thread pattern",
        ]
    );
}

#[test]
fn unaccounted_time_is_shown() {
    let mut top = all();
    top.host.vcpus = ms(1_500);
    let text = text::text(&top, false, Style::default());
    let last = text.lines().last().unwrap();
    assert!(
        last.ends_with("(make 0.14), 0.10 not seen (tasks that ended, interrupts, steal)"),
        "{text}"
    );
    top.host.idle = None;
    let text = text::text(&top, false, Style::default());
    assert!(text.contains("idle not measured") && !text.contains("not seen"), "{text}");
}

#[test]
fn without_vms_there_are_totals() {
    let (scan, interval) = example();
    let top = shown(&scan, &interval, &assessed(&interval, &Weights::default()), |_| false);
    let text = text::text(&top, false, Style::default());
    assert!(text.starts_with("no VM to show\n2 pCPUs over"), "{text}");
}

#[test]
fn json_has_schema_and_null_for_unmeasured() {
    let json = serde_json::to_value(all()).unwrap();
    assert_eq!((&json["schema"], &json["start"]), (&2.into(), &7_000_000.into()));
    let times = &json["vms"][0]["times"];
    assert_eq!(times["wall"], 2_000_000_000u64);
    assert_eq!(times["run"], 700_000_000u64);
    assert_eq!(times["ready"], 400_000_000u64);
    assert!(times["poll"].is_null() && times["costop"].is_null(), "{times}");
    assert_eq!(json["vms"][0]["culprits"][0]["kind"], "vm");
    assert_eq!(json["vms"][0]["culprits"][0]["evidence"], "estimated");
    assert_eq!(json["vms"][0]["culprits"][2]["cgroup"], "/build");
    assert_eq!(json["vms"][0]["vcpus"][1]["allowed"], "0-1");
    assert_eq!(json["missing"][0]["what"], "costop");
    assert_eq!(json["host"]["idle"], 200_000_000u64);
}

#[test]
fn vms_beyond_limits_are_counted() {
    let (mut scan, interval) = example();
    scan.left_out = 4;
    let top = shown(&scan, &interval, &assessed(&interval, &Weights::default()), |_| true);
    assert_eq!(top.left_out, 4);
    let notes = text::notes(&top, true);
    let told = notes.iter().find(|note| note.starts_with("4 VMs not shown"));
    assert!(told.is_some(), "{notes:?}");
}

#[test]
fn notes_of_bpf_programs_are_shown() {
    let (scan, mut interval) = example();
    let mut programs = Programs::default();
    programs.not_counted.waits = 3;
    let latency = programs.latency.entry(VmId(2)).or_default();
    (latency.counts[10], latency.time) = (7, ms(1));
    interval.programs = Some(programs);
    let top = shown(&scan, &interval, &assessed(&interval, &Weights::default()), |_| true);
    let notes = text::notes(&top, true);
    let not_counted = notes.iter().find(|note| note.starts_with("not counted: 3 waits"));
    assert!(not_counted.is_some(), "{notes:?}");
    let json = serde_json::to_value(&top).unwrap();
    let latency = &json["vms"][0]["wakeup_latency"];
    assert_eq!((&latency["count"], &latency["p99"]), (&7.into(), &2048.into()));
    // The programs saw nothing of the other VM.
    assert!(json["vms"][1]["wakeup_latency"].is_null(), "{json}");
}
