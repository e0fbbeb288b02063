//! Synthetic intervals: a VM of each type, and missing figures.

use std::path::PathBuf;

use serde_json::{Value, json};
use tandem_model::states::interval::HostTotals;
use tandem_observe::record::{DEFAULT_MAX_BYTES, Recorder};

use super::text::text;
use super::*;
use crate::columns::Style;
use crate::fixtures::intervals::{self as fixtures, vcpu_on, vm_interval};

const SECOND: Nanos = Nanos::from_secs(1);

/// A VM's number, the times of each of its vCPUs, and the number of times that each was put on a pCPU.
type VmDid<'a> = (u64, &'a [(State, u64)], u64);

/// VMs of four equal vCPUs, on four pCPUs.
fn interval(vms: &[VmDid<'_>]) -> Interval {
    let vms = vms.iter().map(|(vm, parts, runs)| {
        vm_interval(*vm, (0..4).map(|n| vcpu_on("0-3", n, parts, *runs)).collect())
    });
    let host = HostTotals { pcpus: 4, ..HostTotals::default() };
    fixtures::interval(Nanos(5), vms.collect(), Default::default(), host)
}

fn known(name: &str, blocks: Blocks) -> KnownVm {
    KnownVm {
        name: name.to_owned(),
        pid: 7,
        weight: Weight::constant(100.0),
        levels: Vec::new(),
        blocks,
    }
}

fn alone(parts: &[(State, u64)], runs: u64, blocks: Blocks) -> VmScalability {
    let known = BTreeMap::from([(VmId(1), known("db", blocks))]);
    let analysis = analyze(&interval(&[(1, parts, runs)]), &known, |_| true);
    analysis.vms.into_iter().next().expect("one VM")
}

#[test]
fn slice_grows_up_to_eight_pcpus() {
    let ns = [1, 2, 4, 8, 64].map(|pcpus| timeslice(pcpus).0);
    assert_eq!(ns, [750_000, 1_500_000, 2_250_000, 3_000_000, 3_000_000]);
}

#[test]
fn equal_names_are_shown_with_pids() {
    let parts: [(State, u64); 1] = [(State::Run, 500)];
    let of = |pid| KnownVm { pid, ..known("db", Blocks::Unknown) };
    let known = BTreeMap::from([(VmId(1), of(7)), (VmId(2), of(8))]);
    let did = interval(&[(1, &parts, 10), (2, &parts, 10)]);
    let text = text(&analyze(&did, &known, |_| true), Style::default());
    for called in ["db (7)", "db (8)"] {
        let lines = text.lines().filter(|line| line.starts_with(called));
        assert_eq!(lines.count(), 2, "{text}");
    }
}

/// A slice is 2.25 ms, so 444 blocks of a vCPU per second are frequent.
#[test]
fn each_of_the_four_types_is_found() {
    let busy = [(State::Run, 900), (State::Vmm, 20)];
    let idle = [(State::Run, 200), (State::Vmm, 20)];
    for (parts, blocks, number, class) in [
        (&busy, 4 * 100, 1, Type::ScalesOnBoth),
        (&idle, 4 * 600, 2, Type::PoorOnBoth),
        (&busy, 4 * 600, 3, Type::WorseOnVm),
        (&idle, 4 * 100, 4, Type::BetterOnVm),
    ] {
        let vm = alone(parts, 10, Blocks::Counted(blocks));
        assert_eq!((vm.types.as_slice(), vm.class), (&[number][..], Some(class)));
        assert_eq!(vm.synchronization, Some(blocks as f64 / 4.0));
    }
}

#[test]
fn lone_vm_loses_exits_and_unused_time() {
    let parts = [(State::Run, 500), (State::Poll, 100), (State::Vmm, 100)];
    let vm = alone(&parts, 10, Blocks::Counted(0));
    // Each vCPU works for 600 ms of a second.
    assert!((vm.parallelism.unwrap() - 2.4).abs() < 1e-9);
    assert!((vm.hardware.unwrap().speedup.0 - 2.4).abs() < 1e-9);
    let inside = vm.vm.unwrap();
    assert_eq!((inside.share, inside.received), (4.0, 2.8));
    // 4 − 4 × (0.8 s of exits and polls + 1.2 s unused) ÷ 4 s.
    assert!((inside.scaling.speedup.0 - 2.0).abs() < 1e-9);
    assert!((inside.potential_efficiency.unwrap().get() - 0.6).abs() < 1e-9);
}

/// Next to a VM that never sleeps: waits do not count as idle time, and the VM can use its half completely.
#[test]
fn waits_are_excluded_and_shares_follow_weights() {
    let vms: [VmDid<'_>; 2] = [
        (1, &[(State::Run, 300), (State::Ready, 400)], 10),
        (2, &[(State::Run, 600), (State::Ready, 400)], 10),
    ];
    let mut names = BTreeMap::from([
        (VmId(1), known("db", Blocks::Counted(40))),
        (VmId(2), known("web", Blocks::Counted(0))),
    ]);
    let analysis = analyze(&interval(&vms), &names, |vm| vm == VmId(1));
    assert_eq!(analysis.vms.len(), 1, "the other was not selected");
    let vm = &analysis.vms[0];
    assert!((vm.parallelism.unwrap() - 2.0).abs() < 1e-9, "300 of 600 ms");
    // 40 blocks in 4 × 600 ms.
    assert!((vm.synchronization.unwrap() - 40.0 / 2.4).abs() < 1e-9);
    let inside = vm.vm.unwrap();
    assert!((inside.share - 2.0).abs() < 1e-6, "{inside:?}");
    assert!((inside.potential_efficiency.unwrap().get() - 1.0).abs() < 1e-6);
    // The rest of its half is unused.
    assert!((inside.scaling.efficiency.get() - 0.6).abs() < 1e-6);
    if let Some(vm) = names.get_mut(&VmId(1)) {
        vm.weight = Weight::constant(300.0);
    }
    let heavy = analyze(&interval(&vms), &names, |vm| vm == VmId(1));
    assert!((heavy.vms[0].vm.unwrap().share - 3.0).abs() < 1e-6);
    // In a cgroup next to the other VM's, it receives that cgroup's share, whatever its own weight.
    for (vm, weight) in [(1, 100.0), (2, 300.0)] {
        if let Some(known) = names.get_mut(&VmId(vm)) {
            let weight = Weight::constant(weight);
            let group = vm as u32;
            known.levels = vec![Level { group, weight, quota: None }];
        }
    }
    let within = analyze(&interval(&vms), &names, |vm| vm == VmId(1));
    assert!((within.vms[0].vm.unwrap().share - 1.0).abs() < 1e-6);
}

#[test]
fn uncounted_blocks_give_type_if_runs_are_few() {
    let busy = [(State::Run, 900)];
    let vm = alone(&busy, 1_000, Blocks::Unknown);
    assert_eq!((vm.types.as_slice(), vm.class), (&[1, 3][..], None));
    let lacks = |vm: &VmScalability, what: &str| {
        let of = vm.not_measured.iter().find(|lack| lack.what == what);
        of.map(|lack| lack.want.clone())
    };
    assert!(lacks(&vm, "blocks").unwrap().contains("without --from"));
    let seldom = alone(&busy, 50, Blocks::Unknown);
    assert_eq!(seldom.class, Some(Type::ScalesOnBoth));
    assert_eq!(seldom.synchronization, None, "and is not called a figure");
    let never = alone(&[(State::Run, 600), (State::Ready, 400)], 1_000, Blocks::Unknown);
    assert_eq!(never.class, Some(Type::ScalesOnBoth), "it was preempted, and never halted");
    let idle = alone(&[(State::Run, 100)], 1_000, Blocks::Unknown);
    assert_eq!(idle.types, [2, 4]);
    for vm in [&vm, &seldom, &never, &idle] {
        assert!(lacks(vm, "spinning").unwrap().contains("at most"));
        assert!(lacks(vm, "co-stop").unwrap().contains("--source bpf"));
    }
}

#[test]
fn vm_that_only_waited_has_no_figures() {
    let vm = alone(&[(State::Ready, 1_000)], 0, Blocks::Counted(0));
    assert_eq!((vm.parallelism, vm.synchronization, vm.class), (None, None, None));
    assert_eq!((vm.hardware, vm.types.len()), (None, 0));
    let inside = vm.vm.unwrap();
    assert_eq!((inside.received, inside.potential_efficiency), (0.0, None));
    assert_eq!(inside.scaling.efficiency.get(), 0.0);
    assert!(vm.not_measured.iter().any(|lack| lack.what == "parallelism"));
}

#[test]
fn text_has_a_line_per_vm() {
    let vms: [VmDid<'_>; 2] = [
        (1, &[(State::Run, 900), (State::Poll, 0), (State::Vmm, 20)], 10),
        (2, &[(State::Ready, 1_000)], 0),
    ];
    let names = BTreeMap::from([
        (VmId(1), known("db", Blocks::Counted(4_000))),
        (VmId(2), known("web", Blocks::Counted(0))),
    ]);
    let analysis = analyze(&interval(&vms), &names, |_| true);
    let said = text(&analysis, Style::default());
    let row = |name: &str| {
        let line = said.lines().find(|line| line.starts_with(&format!("{name} ")));
        let line = line.unwrap_or_else(|| panic!("{name}: {said}"));
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let expected = ["db", "4", "3.68", "1000", "3", "≤3.7", "2.00", "3.68", "≤3.9", "4.0"];
    assert_eq!(row("db"), expected);
    assert_eq!(row("web")[..6], ["web", "4", "–", "–", "–", "–"]);
    for expected in [
        "db: type 3,",
        "web: its type is not known: it never ran",
        "not measured: spinning: it is in RUN",
        "not measured: halt polling of web: it counts as work",
        "often from once in 2.250 ms",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    assert_eq!(said.matches("not measured: spinning").count(), 1);
    let none = analyze(&interval(&[]), &names, |_| true);
    assert_eq!(text(&none, Style::default()), "no VM was measured");
}

fn recorder() -> (tempfile::TempDir, PathBuf, Recorder) {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("record");
    let recorder = Recorder::create(&folder, DEFAULT_MAX_BYTES).unwrap();
    (dir, folder, recorder)
}

fn recorded(name: &str, pid: u64, tids: Value) -> Value {
    json!({ "name": name, "pid": pid, "program": "qemu", "weight": "100", "tids": tids })
}

/// Adds the `n`-th second in the format of a recorder of another version.
fn add(recorder: &mut Recorder, n: u64, did: &[VmDid<'_>], vms: Value) {
    let at = (1_700_000_000 + n) * SECOND.0;
    let frame = json!({ "at": at, "interval": interval(did), "vms": vms, "unreadable": 0 });
    recorder.add(serde_json::from_value(frame).unwrap()).unwrap();
}

#[test]
fn a_record_is_analyzed_as_one_interval() {
    let (dir, folder, mut recorder) = recorder();
    for (n, run) in [(0, 1_000), (1, 500)] {
        let tids = json!({ "0": 71, "1": 72, "2": 73, "3": 74 });
        let vms = json!({ "1": recorded("db", 70, tids) });
        add(&mut recorder, n, &[(1, &[(State::Run, run)], 20)], vms);
    }
    recorder.finish(None).unwrap();
    for asked in [vec![], vec!["db"], vec!["70", "d*"]] {
        let asked: Vec<VmPattern> = asked.iter().map(|text| text.parse().unwrap()).collect();
        let (analysis, damages) = of_record(&folder, &asked).unwrap();
        assert_eq!(damages, []);
        assert_eq!((analysis.seconds, analysis.schema), (2.0, SCHEMA));
        let vm = &analysis.vms[0];
        assert_eq!((vm.name.as_str(), vm.pid, vm.n), ("db", 70, 4));
        assert!((vm.parallelism.unwrap() - 3.0).abs() < 1e-9);
        assert_eq!(vm.class, Some(Type::ScalesOnBoth), "20 runs a second are seldom");
    }
    let error = of_record(&folder, &[VmPattern::Name("web".to_owned())]).unwrap_err().to_string();
    assert!(error.contains("'web'") && error.contains("db"), "{error}");
    let empty = dir.path().join("empty");
    Recorder::create(&empty, DEFAULT_MAX_BYTES).unwrap().finish(None).unwrap();
    let error = of_record(&empty, &[]).unwrap_err().to_string();
    assert!(error.contains("no interval yet"), "{error}");
}

#[test]
fn vms_of_different_times_do_not_compete() {
    let (_dir, folder, mut recorder) = recorder();
    let parts = [(State::Run, 1_000)];
    for (vms, n) in [vec![1], vec![2], vec![1, 3]].iter().zip(0..) {
        let did: Vec<VmDid<'_>> = vms.iter().map(|vm| (*vm, &parts[..], 20)).collect();
        let known = |vm: &u64| recorded(&format!("vm{vm}"), 70 + vm, json!({}));
        let names = vms.iter().map(|vm| (vm.to_string(), known(vm)));
        add(&mut recorder, n, &did, Value::Object(names.collect()));
    }
    recorder.finish(None).unwrap();
    let (analysis, _) = of_record(&folder, &[]).unwrap();
    let shares: Vec<f64> = analysis.vms.iter().map(|vm| vm.vm.unwrap().share).collect();
    // The whole host while alone, half of it while both run.
    assert_eq!(shares, [3.0, 4.0, 2.0]);
}

#[test]
fn share_covers_presence_only() {
    let mut half = interval(&[(1, &[(State::Run, 1_000)], 5)]);
    half.length = Nanos::from_secs(2);
    let known = BTreeMap::from([(VmId(1), known("db", Blocks::Counted(0)))]);
    let vm = &analyze(&half, &known, |_| true).vms[0];
    let inside = vm.vm.unwrap();
    assert_eq!((inside.share, inside.received), (4.0, 4.0));
    assert_eq!(inside.scaling.efficiency, Fraction::ALL);
}

#[test]
fn blocks_are_known_if_wakeups_were_counted() {
    let vm = |wakeups: &[Option<u64>]| {
        let mut vm = interval(&[(1, &[(State::Run, 900)], 5)]).vms.remove(0);
        vm.vcpus.truncate(wakeups.len());
        for (vcpu, wakeups) in vm.vcpus.iter_mut().zip(wakeups) {
            vcpu.wakeups = *wakeups;
        }
        vm
    };
    let counted = blocks(Some(&vm(&[Some(120), Some(3)])));
    assert!(matches!(counted, Blocks::Counted(123)), "{counted:?}");
    let partly = blocks(Some(&vm(&[Some(120), None])));
    assert!(matches!(partly, Blocks::Unknown), "{partly:?}");
    assert!(matches!(blocks(None), Blocks::Unknown), "it was not seen");
}

#[test]
fn damages_are_reported_and_rest_is_analyzed() {
    let (_dir, folder, mut recorder) = recorder();
    for n in 0..3 {
        let vms = json!({ "1": recorded("db", 70, json!({})) });
        add(&mut recorder, n, &[(1, &[(State::Run, 1_000)], 20)], vms);
    }
    // As after a kill: the intervals are still in the journal.
    drop(recorder);
    let files = std::fs::read_dir(&folder).unwrap();
    let mut files = files.map(|file| file.unwrap().path());
    let journal = files.find(|path| path.extension().is_some_and(|end| end == "jsonl")).unwrap();
    let text = std::fs::read_to_string(&journal).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    let (second, of) = (lines.len() - 2, lines.len());
    assert!(of >= 3, "{text}");
    lines[second] = "{";
    std::fs::write(&journal, lines.join("\n") + "\n").unwrap();
    let (analysis, damages) = of_record(&folder, &[]).unwrap();
    assert_eq!((analysis.seconds, damages.len()), (2.0, 1), "{damages:?}");
    std::fs::write(&journal, "{\n{\n").unwrap();
    let error = of_record(&folder, &[]).unwrap_err().to_string();
    assert!(error.contains("nothing can be read"), "{error}");
}
