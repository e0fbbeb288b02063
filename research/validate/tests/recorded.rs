//! Round trips: a simulated host is recorded, and the scenario derived from its record is simulated again.

use serde_json::json;
use tandem_model::states::edges::EdgesBuilder;
use tandem_model::states::interval::{ProcessTime, SourceName, ThreadTime, VcpuInterval};
use tandem_model::{State, VcpuTimes};
use tandem_sim::scenario::load;
use tandem_sim::{Results, World};

use tandem_experiment::beside_record::compare;
use tandem_model::states::interval::{HostTotals, Interval, VmInterval};
use tandem_model::{Nanos, PcpuSet, VcpuId, VmId, Weight};
use tandem_observe::recorded::*;
use tandem_validate::what_if;

const fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

/// Returns a scenario without costs; each VM is `(name, vcpus, pins, program)` and has a role for each vCPU.
fn scenario(pcpus: u32, policies: &str, vms: &[(&str, u32, &str, &str)]) -> String {
    let mut text = format!(
        "duration = \"14s\"\n[machine]\npcpus = {pcpus}\n[machine.costs]\n{}\n\
         [host]\nhalt_poll = \"0ns\"\n{policies}\n",
        [
            "vm_exit",
            "halt_exit",
            "halt_wake",
            "timer_exit",
            "thread_switch",
            "nested_switch",
            "wakeup",
            "syscall",
            "tick_work",
            "timer_slack",
            "timer_work",
            "interrupt_handler",
            "posted_interrupt",
        ]
        .map(|cost| format!("{cost} = 0"))
        .join("\n")
    );
    for (name, vcpus, pins, program) in vms {
        text += &format!(
            "[[vm]]\nname = \"{name}\"\nvcpus = {vcpus}\nworkload = \"{name}\"\ntick = \"100ms\"\nbalance = false\n"
        );
        if !pins.is_empty() {
            text += &format!("pins = {pins}\n");
        }
        text += &format!("[[workload]]\nname = \"{name}\"\n");
        for vcpu in 0..*vcpus {
            text += &format!(
                "[[workload.role]]\nname = \"r{vcpu}\"\npins = [{vcpu}]\nprogram = {program}\n"
            );
        }
    }
    text
}

const BURN: &str = "[{ forever = [{ compute = \"1ms\" }, \"work\"] }]";
const BURSTS: &str =
    "[{ forever = [{ compute = \"exp(2ms)\" }, { sleep = \"exp(6ms)\" }, \"work\"] }]";
const CLOCK: &str =
    "[{ forever = [{ every = \"10ms\" }, { compute = \"uniform(1ms, 3ms)\" }, \"work\"] }]";

fn world(text: &str) -> World {
    World::new(
        &load::from_text("test.toml", text).unwrap_or_else(|error| panic!("{error}\n{text}")),
    )
}

fn interval(start: Nanos, length: Nanos, vms: Vec<VmInterval>, host: HostTotals) -> Interval {
    let interval = json!({
        "source": SourceName::Simulator,
        "start": start,
        "length": length,
        "vms": vms,
        "edges": EdgesBuilder::new().all(),
        "host": host,
        "missing": [],
    });
    serde_json::from_value(interval).unwrap()
}

/// Returns the interval between two readings of a simulation, in the form of a live host's record.
fn between(before: &Results, now: &Results) -> Interval {
    let length = now.measured - before.measured;
    let mut used = Nanos::ZERO;
    let vms = now.vms.iter().enumerate().map(|(v, vm)| {
        let then = before.vms.get(v);
        let vcpus = vm.vcpus.iter().enumerate().map(|(n, vcpu)| {
            let last = then.map(|vm| &vm.vcpus[n]);
            let ran = vcpu.ran.total() - last.map_or(Nanos::ZERO, |last| last.ran.total());
            let waited = vcpu.steal - last.map_or(Nanos::ZERO, |last| last.steal);
            let work = vm.roles[n].work - then.map_or(0, |vm| vm.roles[n].work);
            used += ran;
            VcpuInterval {
                vcpu: VcpuId(n as u32),
                times: VcpuTimes::from_parts(length, [(State::Run, ran), (State::Ready, waited)])
                    .unwrap(),
                ran,
                waited,
                runs: work * 3,
                wakeups: Some(work),
                runnable: true,
                allowed: PcpuSet::default(),
            }
        });
        VmInterval { vm: VmId(v as u64), vcpus: vcpus.collect(), threads: Vec::new() }
    });
    let vms = vms.collect();
    let pcpus = now.pcpus.len();
    let host = HostTotals {
        pcpus,
        idle: Some(Nanos(length.0 * pcpus as u64).saturating_sub(used)),
        vcpus: used,
        ..HostTotals::default()
    };
    interval(before.measured, length, vms, host)
}

/// Records 11 s of a simulation after 2 s, each second; `pins` are those of each VM's vCPUs in the scenario.
fn record(text: &str, pins: &[&[&str]]) -> Recorded {
    let mut world = world(text);
    let mut recorded = Recorded::new();
    world.run_until(Nanos::from_secs(2));
    let mut before = world.results();
    for (n, vm) in before.vms.iter().enumerate() {
        recorded.name(VmId(n as u64), &vm.name, Some(Weight::constant(1024.0)));
    }
    for second in 3..14 {
        world.run_until(Nanos::from_secs(second));
        let now = world.results();
        let mut interval = between(&before, &now);
        for (vm, pins) in interval.vms.iter_mut().zip(pins) {
            for (vcpu, pins) in vm.vcpus.iter_mut().zip(*pins) {
                vcpu.allowed = pins.parse().unwrap();
            }
        }
        recorded.add(&interval);
        before = now;
    }
    recorded
}

/// Returns RUN, RDY and HALT of a VM as fractions of its vCPUs' time.
fn shares(results: &Results, name: &str) -> [f64; 3] {
    let vm = results.vms.iter().find(|vm| vm.name == name).unwrap();
    let whole = results.measured.as_secs_f64() * vm.vcpus.len() as f64;
    let sum = |of: fn(&tandem_sim::results::VcpuResults) -> Nanos| {
        vm.vcpus.iter().map(of).sum::<Nanos>().as_secs_f64() / whole
    };
    [sum(|v| v.ran.total()), sum(|v| v.steal), sum(|v| v.halted)]
}

#[track_caller]
fn near(what: &str, one: &Results, other: &Results, names: &[&str], by: f64) {
    for name in names {
        let (one, other) = (shares(one, name), shares(other, name));
        for ((one, other), state) in one.iter().zip(other).zip(["RUN", "RDY", "HALT"]) {
            assert!(
                (one - other).abs() <= by,
                "{what}: {state} of {name}: {one:.3} and {other:.3}"
            );
        }
    }
}

fn simulate(host: &RecordedHost) -> Results {
    world(&host.toml()).run()
}

#[test]
fn record_of_quiet_host_reproduces_shares() {
    let vms = [("a", 2, "", BURSTS), ("b", 1, "", CLOCK)];
    let text = scenario(4, "", &vms);
    let host = record(&text, &[]).host("a test").unwrap();
    assert_eq!(host.vms.len(), 2, "no background: {:?}", host.vms);
    let Pattern::Bursts { run, sleep, varies } = host.vms[0].vcpus[0].demand.pattern() else {
        panic!("{host:?}");
    };
    assert!(varies && run > Nanos(1_700_000) && run < Nanos(2_300_000), "{run}");
    assert!(sleep > Nanos(5_400_000) && sleep < Nanos(6_600_000), "{sleep}");
    let Pattern::Periodic { period, .. } = host.vms[1].vcpus[0].demand.pattern() else {
        panic!("{host:?}");
    };
    assert!((period.0 as f64 / 1e7 - 1.0).abs() < 0.01, "{period}");
    near("again", &world(&text).run(), &simulate(&host), &["a", "b"], 0.02);
}

#[test]
fn record_of_overcommitted_host_reproduces_shares() {
    let vms = [("a", 1, "\"0\"", BURSTS), ("burn", 2, "\"0\"", BURN), ("b", 1, "\"0\"", BURSTS)];
    let text = scenario(2, "", &vms);
    let pins: [&[&str]; 3] = [&["0"], &["0", "0"], &["0"]];
    let host = record(&text, &pins).host("a test").unwrap();
    let all = ["a", "burn", "b"];
    let first = world(&text).run();
    assert!(shares(&first, "a")[1] > 0.03, "it does wait: {:?}", shares(&first, "a"));
    let again = simulate(&host);
    near("again", &first, &again, &all, 0.03);
    // Recorded and simulated figures side by side: the whole time of each vCPU, and the waits.
    let both = compare(&host, &again);
    assert_eq!(both.iter().map(|vm| &vm.vm).collect::<Vec<_>>(), all);
    for vm in &both {
        for of in [vm.recorded, vm.simulated] {
            let all = of.ran + of.waited + of.halted;
            assert!((all - vm.vcpus as f64).abs() < 1e-6, "{vm:?}");
        }
        let gap = vm.recorded.waited - vm.simulated.waited;
        assert!(vm.recorded.waited > 0.03 && gap.abs() < 0.03 * vm.vcpus as f64, "{vm:?}");
    }
}

#[test]
fn removed_neighbour_matches_simulation_without_it() {
    let vms = [("a", 2, "", BURSTS), ("burn", 2, "", BURN), ("more", 2, "", BURN)];
    let mut host = record(&scenario(2, "", &vms), &[]).host("a test").unwrap();
    what_if::remove(&mut host, "more").unwrap();
    let without = world(&scenario(2, "", &vms[..2])).run();
    near("without", &without, &simulate(&host), &["a", "burn"], 0.03);
    let error = what_if::remove(&mut host, "more").unwrap_err().to_string();
    assert!(error.contains("'more'; there are a, burn"), "{error}");
}

#[test]
fn added_vcpu_and_policy_change_throughput() {
    let text = scenario(
        4,
        "",
        &[
            ("large", 4, "[\"0\", \"1\", \"2\", \"3\"]", BURN),
            ("small", 3, "[\"0\", \"1\", \"2\"]", BURN),
        ],
    );
    let pins: [&[&str]; 2] = [&["0", "1", "2", "3"], &["0", "1", "2"]];
    let mut host = record(&text, &pins).host("a test").unwrap();
    let small = |host: &RecordedHost| simulate(host).throughput("small").unwrap();
    let before = small(&host);
    assert!((before - 1.714).abs() < 0.03, "{before}");
    host.policies = vec!["fair".to_owned()];
    (host.warmup, host.duration) = (Nanos::from_secs(4), Nanos::from_secs(14));
    let after = small(&host);
    assert!((after - 2.0).abs() < 0.05, "{after}");
    assert_eq!(simulate(&host).throughput("nobody"), None);
    let mut more = record(&scenario(2, "", &[("a", 2, "", BURSTS)]), &[]).host("a test").unwrap();
    let before = simulate(&more).throughput("a").unwrap();
    what_if::add_vcpu(&mut more, "a", None).unwrap();
    let after = simulate(&more).throughput("a").unwrap();
    assert!((after / before - 1.5).abs() < 0.1, "{before} {after}");
}

#[test]
fn identical_vcpus_share_a_role() {
    let text =
        record(&scenario(4, "", &[("a", 2, "", BURSTS)]), &[]).host("a test").unwrap().toml();
    let mut source = load::Source::from_text("test.toml", &text).unwrap();
    source.set(load::Setting::new("vm.a.vcpus", "3"));
    let results = World::new(&source.scenario().unwrap()).run();
    assert!(results.vms[0].vcpus.iter().all(|vcpu| vcpu.ran.useful > ms(1_000)));
}

/// A second of a vCPU with its times running, waiting and throttled, ms.
fn vcpu(
    number: u32,
    [ran, waited, limited]: [u64; 3],
    wakeups: Option<u64>,
    allowed: &str,
) -> VcpuInterval {
    let parts = [(State::Run, ran), (State::Ready, waited), (State::Limited, limited)];
    let parts = parts.map(|(state, time)| (state, ms(time)));
    VcpuInterval {
        vcpu: VcpuId(number),
        times: VcpuTimes::from_parts(ms(1_000), parts).unwrap(),
        ran: ms(ran),
        waited: ms(waited + limited),
        runs: 50,
        wakeups,
        runnable: false,
        allowed: allowed.parse().unwrap(),
    }
}

fn recorded(vms: Vec<VmInterval>, host: HostTotals) -> Recorded {
    let mut recorded = Recorded::new();
    recorded.add(&interval(Nanos::ZERO, ms(1_000), vms, host));
    recorded
}

fn vm(number: u64, vcpus: Vec<VcpuInterval>) -> VmInterval {
    VmInterval { vm: VmId(number), vcpus, threads: Vec::new() }
}

fn pcpus(pcpus: usize) -> HostTotals {
    HostTotals { pcpus, ..HostTotals::default() }
}

#[test]
fn all_vcpu_patterns_are_written_and_read() {
    let vcpus = vec![
        vcpu(3, [400, 0, 550], Some(0), "8-9"),
        vcpu(0, [0, 0, 0], Some(0), "0-3"),
        vcpu(1, [300, 700, 0], None, "9"),
        vcpu(2, [100, 100, 0], Some(40), "8"),
    ];
    let mut io = vm(7, vcpus);
    io.threads = vec![ThreadTime { name: "vhost".to_owned(), time: ms(250) }];
    let host = HostTotals {
        idle: Some(ms(100)),
        vcpus: ms(800),
        vm_threads: ms(250),
        tasks: ms(1_400),
        kernel: ms(50),
        top_tasks: vec![ProcessTime {
            name: "mak\"e\n".to_owned(),
            pid: 1,
            cgroup: None,
            time: ms(1_300),
        }],
        ..pcpus(4)
    };
    let mut recorded =
        recorded(vec![io, vm(8, vec![vcpu(0, [1_000, 0, 0], Some(3), "0-3")])], host);
    recorded.name(VmId(7), "db \"1\"\n", Some(Weight::constant(200.0)));
    recorded.name(VmId(8), "db \"1\"\n", Some(Weight::constant(100.0)));
    let host = recorded.host("a \"record\"\nof nobody").unwrap();
    let names: Vec<&str> = host.vms.iter().map(|vm| vm.name.as_str()).collect();
    let expected = ["db--1--", "db--1---2", "db--1---threads", "host-mak-e-", "host-others"];
    assert_eq!(names, expected);
    let patterns: Vec<Pattern> =
        host.vms[0].vcpus.iter().map(|vcpu| vcpu.demand.pattern()).collect();
    let bursts = |run, sleep| Pattern::Bursts { run: ms(run), sleep: ms(sleep), varies: false };
    assert_eq!(
        patterns[..3],
        [
            Pattern::Idle,
            Pattern::Always,
            Pattern::Bursts { run: Nanos(2_500_000), sleep: ms(20), varies: false }
        ]
    );
    assert_eq!(patterns[3], bursts(40, 60), "the quota's periods of 100 ms");
    assert_eq!((host.vms[0].weight, host.vms[1].weight), (2048.0, 1024.0), "of cpu.weight");
    assert_eq!(host.vms[3].vcpus.len(), 2, "1.3 pCPUs");
    let text = host.toml();
    let scenario =
        load::from_text("test.toml", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let pins: Vec<String> = scenario.vms[0].pins.iter().map(ToString::to_string).collect();
    assert_eq!(pins, ["0-3", "1", "0", "0-1"]);
    assert!(text.contains("8 is 0, 9 is 1"), "{text}");
    assert!(text.contains("its wake-ups were not recorded"), "{text}");
    assert!(
        scenario.vms[3].policies.is_some_and(|policies| policies == tandem_model::PolicySet::NONE)
    );
    assert_eq!(scenario.vms[2].vcpus, 1);
    assert!(World::new(&scenario).run().vms[0].received > ms(1_000));
}

#[test]
fn starved_vcpu_computes_and_sleeping_one_does_not() {
    // RUN 1.6 %, RDY 95 %, HALT 3.4 %; the same without the waits; and RUN 4 %, RDY 81 %, HALT 15 %.
    let starved = vcpu(0, [16, 950, 0], Some(40), "0-1");
    let alone = vcpu(0, [16, 0, 0], Some(40), "0-1");
    let sleeps = vcpu(0, [40, 810, 0], Some(40), "0-1");
    let pattern = |vcpu: &VcpuInterval| Demand::of(vcpu, false).pattern();
    assert_eq!(pattern(&starved), Pattern::Always);
    assert!(matches!(pattern(&alone), Pattern::Bursts { .. }));
    assert!(matches!(pattern(&sleeps), Pattern::Bursts { .. }));
    let vms = vec![vm(1, vec![starved]), vm(2, vec![vcpu(0, [900, 100, 0], Some(40), "0-1")])];
    let text = recorded(vms, pcpus(2)).host("x").unwrap().toml();
    assert!(text.contains("it is taken to compute without a pause"), "{text}");
    assert!(text.contains("shares of the host's cgroups"), "{text}");
}

#[test]
fn restarted_vm_occurs_once() {
    let mut recorded = Recorded::new();
    // VM 1 ends after the first second and restarts as VM 3; VM 2 and VM 4, of the same name, run all the time.
    for (second, db) in [(0, 1), (1, 3), (2, 3)] {
        let one = |number, ran| vm(number, vec![vcpu(0, [ran, 0, 0], Some(40), "0-1")]);
        let ran = if db == 1 { 100 } else { 700 };
        let vms = vec![one(db, ran), one(2, 300), one(4, 200)];
        recorded.add(&interval(ms(1_000 * second), ms(1_000), vms, pcpus(2)));
    }
    for (number, name) in [(1, "db"), (3, "db"), (2, "web"), (4, "web")] {
        recorded.name(VmId(number), name, Some(Weight::constant(1024.0)));
    }
    let host = recorded.host("x").unwrap();
    let names: Vec<&str> = host.vms.iter().map(|vm| vm.name.as_str()).collect();
    assert_eq!(names, ["web", "web-2", "db"]);
    let db = &host.vms[2];
    let demand = db.vcpus[0].demand;
    assert_eq!((demand.wall, demand.ran), (ms(2_000), ms(1_400)));
    assert!(db.remarks[0].contains("started anew 1 times"), "{:?}", db.remarks);
    assert!(db.remarks[1].contains("for 66 % of the time"), "{:?}", db.remarks);
    assert!(host.vms[0].remarks.is_empty(), "{:?}", host.vms[0].remarks);
}

#[test]
fn removing_vm_removes_its_threads() {
    let mut io = vm(7, vec![vcpu(0, [100, 0, 0], Some(40), "0-1")]);
    io.threads = vec![ThreadTime { name: "vhost".to_owned(), time: ms(250) }];
    let mut other = vm(8, vec![vcpu(0, [100, 0, 0], Some(40), "0-1")]);
    other.threads.clone_from(&io.threads);
    let mut host = recorded(vec![io, other], pcpus(2)).host("x").unwrap();
    let names = |host: &RecordedHost| -> Vec<String> {
        host.vms.iter().map(|vm| vm.name.clone()).collect()
    };
    let all = ["vm7", "vm8", "vm7-threads", "vm8-threads"];
    assert_eq!(names(&host), all);
    what_if::remove(&mut host, "vm7").unwrap();
    assert_eq!(names(&host), ["vm8", "vm8-threads"]);
}

#[test]
fn pcpus_of_a_cache_are_consecutive() {
    let set = |text: &str| text.parse::<PcpuSet>().unwrap();
    let host = |caches: &[&str], cores: &[&str]| {
        let vms = vec![
            vm(1, vec![vcpu(0, [900, 0, 0], Some(40), "0,2")]),
            vm(2, vec![vcpu(0, [900, 0, 0], Some(40), "0-3")]),
        ];
        let mut recorded = recorded(vms, pcpus(4));
        recorded.topology(Topology {
            caches: caches.iter().map(|text| set(text)).collect(),
            cores: cores.iter().map(|text| set(text)).collect(),
        });
        recorded.host("x").unwrap()
    };
    let alone = ["0", "1", "2", "3"];
    let paired = host(&["0,2", "1,3"], &alone);
    assert_eq!(paired.pcpus_per_llc, Some(2));
    assert_eq!(paired.vms[0].vcpus[0].pins, Some(set("0-1")));
    assert_eq!(paired.remarks, ["pCPUs have other numbers here: 1 is 2, 2 is 1"]);
    let scenario = load::from_text("test.toml", &paired.toml()).unwrap();
    assert_eq!(scenario.machine.pcpus_per_llc, 2);
    let in_order = host(&["0-1", "2-3"], &["0-1", "2-3"]);
    assert_eq!(in_order.vms[0].vcpus[0].pins, Some(set("0,2")));
    assert!(
        matches!(&in_order.remarks[..], [smt] if smt.contains("2 pCPUs share a core")),
        "{:?}",
        in_order.remarks
    );
    // Caches of different sizes, caches that miss some pCPUs, and a record without caches.
    for caches in [&["0-2", "3"][..], &["0-1"], &[]] {
        let host = host(caches, &alone);
        assert_eq!(host.pcpus_per_llc, None, "{caches:?}");
        let scenario = load::from_text("test.toml", &host.toml()).unwrap();
        assert_eq!(scenario.machine.pcpus_per_llc, 4);
        let text = host.toml();
        let remark = if caches.is_empty() {
            "does not tell which pCPUs share a cache"
        } else {
            "caches of the host are not alike"
        };
        assert!(text.contains(remark), "{text}");
    }
    let bare = recorded(vec![vm(1, vec![vcpu(0, [9, 0, 0], None, "0-3")])], pcpus(4));
    let text = bare.host("x").unwrap().toml();
    assert!(text.contains("does not tell which pCPUs share a core"), "{text}");
}

#[test]
fn records_without_pcpus_or_vms_are_rejected() {
    let error = |recorded: Recorded| recorded.host("x").unwrap_err();
    assert_eq!(error(Recorded::new()), RecordedError::Empty);
    let one = || vec![vm(1, vec![vcpu(0, [1, 0, 0], None, "0")])];
    assert_eq!(error(recorded(one(), pcpus(0))), RecordedError::NoPcpus);
    assert_eq!(error(recorded(vec![vm(1, Vec::new())], pcpus(1))), RecordedError::NoVm);
    assert!(recorded(one(), pcpus(1)).host("x").is_ok());
}
