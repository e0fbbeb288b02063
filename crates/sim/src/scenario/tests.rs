//! Reading scenarios: defaults, replacements and errors.

use tandem_model::{Nanos, PolicySet};
use tandem_policy::host::registry;
use tandem_policy::settings::Settings;

use super::load::{Setting, Source};
use super::{GovernorConfig, IdleLoop, Scenario, load};
use crate::host::{HostScheduler, PauseLoop};
use crate::machine::Costs;
use crate::sched::fair::{CfsAge, Discipline};

const SMALL: &str = "duration = \"1s\"\n\
    [machine]\npcpus = 4\n\
    [[workload]]\nname = \"w\"\n[[workload.role]]\nprogram = [ { compute = \"1ms\" } ]\n\
    [[vm]]\nname = \"a\"\nvcpus = 2\nworkload = \"w\"\n";

fn with(settings: &[&str]) -> Result<Scenario, String> {
    let mut source = Source::from_text("s.toml", SMALL).map_err(|error| error.to_string())?;
    for setting in settings {
        source.set(Setting::parse(setting).map_err(|error| error.to_string())?);
    }
    source.scenario().map_err(|error| error.to_string())
}

#[test]
fn command_line_words_need_no_quotes() {
    let unquoted = with(&["host.scheduler=eevdf", "host.eevdf.reweight=6.13"]).unwrap();
    let quoted = with(&["host.scheduler=eevdf", "host.eevdf.reweight=\"6.13\""]).unwrap();
    assert_eq!(unquoted, quoted);
    let reverted = with(&["host.scheduler=eevdf", "host.eevdf.reweight=reverted"]).unwrap();
    assert_ne!(unquoted, reverted);
}

#[test]
fn omitted_settings_have_defaults() {
    let scenario = with(&[]).unwrap();
    assert_eq!((scenario.name.as_str(), scenario.seed), ("s", 1));
    assert_eq!(scenario.machine.costs, Costs::default());
    assert_eq!(scenario.machine.pcpus_per_llc, 4);
    assert_eq!(scenario.policies.host.controller.period, Nanos::from_millis(100));
    assert_eq!(scenario.policies.host.controller.policies, PolicySet::NONE);
    let host = &scenario.host;
    assert_eq!(
        host.scheduler,
        HostScheduler::Linux(Discipline::Eevdf {
            cgroup_mode: None,
            // 0.75 ms × (1 + log₂ 4)
            base_slice: Nanos(2_250_000),
            reweight: crate::sched::fair::Reweight::Kept
        })
    );
    assert!(matches!(host.pause_loop, PauseLoop::Stock { base: 4096, .. }));
    assert!(host.apicv && !host.cap);
    let vm = &scenario.vms[0];
    assert_eq!((vm.weight.value(), vm.pins.len()), (1024.0, 0));
    assert_eq!(vm.guest.idle, IdleLoop::Halt);
}

#[test]
fn topology_sets_pcpus_and_caches() {
    let text = SMALL.replace("pcpus = 4", "topology = { like = \"epyc-7763\", sockets = 1 }");
    let read = |text: &str| load::from_text("s.toml", text);
    let machine = read(&text).unwrap().machine;
    assert_eq!((machine.pcpus, machine.pcpus_per_llc), (128, 16));
    assert_eq!(machine.topology().len(), 128);
    let text = text.replace("[machine]", "[machine]\npcpus = 128\npcpus_per_llc = 16");
    let error = read(&text).unwrap_err().to_string();
    assert!(error.contains("s.toml:4") && error.contains("leave it out"), "{error}");
}

#[test]
fn values_are_replaced_before_they_are_read() {
    let scenario = with(&[
        "host.scheduler=cfs",
        "host.cfs.latency=12ms",
        "host.cfs.as_of='5.13'",
        "host.pause_loop.policy=fixed",
        "host.pause_loop.window=8192",
        "machine.costs.vm_exit=900",
        "vm.*.count=3",
        "vm.a.idle=haltpoll(100us)",
        "vm.a.pins=[\"0-1\", \"3\"]",
        "policies.flexw=true",
        "workload.w.role.0.threads=7",
    ])
    .unwrap();
    assert_eq!(
        scenario.host.scheduler,
        HostScheduler::Linux(Discipline::Cfs {
            as_of: CfsAge::AltPeriod,
            latency: Nanos::from_millis(12),
            min_granularity: Nanos(2_250_000),
            wakeup_granularity: Nanos::from_millis(3),
            own_granularity: false,
        })
    );
    assert_eq!(scenario.host.pause_loop, PauseLoop::Fixed(8192));
    assert_eq!(scenario.machine.costs.vm_exit, 900);
    let fair = PolicySet::from_iter([registry::find("fair").unwrap()]);
    assert_eq!(scenario.policies.host.controller.policies, fair);
    let names: Vec<&str> = scenario.vms.iter().map(|vm| vm.name.as_str()).collect();
    assert_eq!(names, ["a-1", "a-2", "a-3"]);
    let vm = &scenario.vms[2];
    assert_eq!(vm.guest.idle, IdleLoop::HaltPoll(Nanos(100_000)));
    assert_eq!(vm.pins[0].to_string(), "0-1");
    assert_eq!(vm.workload.roles[0].threads.count(2), 7);
}

#[test]
fn invalid_replacements_name_the_option() {
    for (setting, said) in [
        ("host.schedulr=cfs", "did you mean `scheduler`"),
        ("host.scheduler=o1", "\"cfs\", \"eevdf\", \"credit\""),
        ("vm.0.vcpus=0", "vm[0].vcpus = 0 is not possible: 1 … 4096"),
        ("vm.1.vcpus=1", "no element `1`"),
        ("machine.costs.vm_exti=1", "did you mean `vm_exit`"),
        ("machine.costs.vm_exit=-1", "0 … "),
        ("machine.costs.cycles_per_us=0", "1 … "),
        ("machine.pcpus=0", "1 … 4096"),
        ("machine.pcpus_per_llc=8", "1 … 4"),
        ("machine.topology={}", "has no `cores_per_cache`"),
        (
            "machine.topology={ cores_per_cache = 3 }",
            "machine.pcpus = 4 is not possible: machine.topology sets it to 3",
        ),
        ("machine.topology={ cores_per_cache = 2, threads_per_core = 4 }", "1 … 2"),
        ("machine.topology={ like = \"epyc-7736\" }", "did you mean \"epyc-7763\"?"),
        (
            "machine.topology={ like = \"epyc-7763\", sockets = 64 }",
            "64:1:8:8:2 are too many pCPUs",
        ),
        ("machine.topology={ llcs = 2 }", "`cores_per_cache`"),
        ("machine.costs.smt_working_percent=0", "1 … 100"),
        ("machine.costs.remote_memory_percent=99", "100 … "),
        ("machine.mode=native", "leave it out or write 4"),
        ("warmup=1s", "over before"),
        ("warmup=1", "with its unit"),
        ("duration=soon", "a number and a unit"),
        ("vm.a.pins=[\"0\"]", "1 sets of pCPUs for the 2 vCPUs"),
        ("vm.a.pins=4", "the machine has the pCPUs 0 … 3"),
        ("vm.a.pins=\"0-4\"", "pCPUs 0 … 3"),
        ("vm.a.pins=\"\"", "at least one"),
        ("vm.a.pins=\"3-1\"", "backwards"),
        ("vm.a.begins_on=[0]", "1 pCPUs for the 2 vCPUs of `a`"),
        ("vm.a.begins_on=[0, 4]", "0 … 3"),
        ("host.core_scheduling=vm", "needs machine.topology.threads_per_core = 2"),
        ("host.ticks=together", "\"spread\", \"in-step\""),
        ("vm.a.weight=0", "1 … 262144"),
        ("vm.a.workload=v", "add a [[workload]]"),
        ("vm.a.idle=sleep", "haltpoll(200us)"),
        ("vm.a.idle=haltpoll(2)", "unit"),
        ("vm.a.starts=2s", "0ns … 1s"),
        ("vm.a.count=100000", "1 … 10000"),
        ("vm=[]", "at least one VM"),
        ("workload.w.role.0.pins=[2]", "this VM has the vCPUs 0 … 1"),
        ("host.cfs.latency=1ms", "longer than latency"),
        ("host.cfs.as_of='6.1'", "\"3.15\", \"5.13\", \"5.14\""),
        ("host.credit.tick=50ms", "longer than timeslice"),
        ("host.pause_loop.most=1", "below window"),
        ("host.busy_factor=0", "host.busy_factor = 0 is not possible: 1 … 1024"),
        ("host.busy_factor=2000", "host.busy_factor = 2000 is not possible: 1 … 1024"),
        ("host.pause_loop.aple={ initial = 1 }", "aple.initial = 1 is not possible: 4096 … 32768"),
        ("host.pause_loop.aple={ step = 0 }", "1 … "),
        ("host.pause_loop.candidate=best", "\"cch\""),
        ("policies.flexw.gain=2", "0.001 … 1"),
        (
            "policies.turns={ turn = \"1ms\" }",
            "policies.turns.turn = \"1ms\" is not possible: 5ms … 100ms",
        ),
        ("policies.turns={ turn = \"1s\" }", "5ms … 100ms"),
        ("policies.turns={ longest_wait = \"1ms\" }", "5ms … 10s"),
        ("policies.turns={ periods = 0 }", "1 … 100"),
        ("policies.turns={ turns = 3 }", "did you mean `turn`"),
        ("policies.placement=move", "\"turns\""),
        ("host.eevdf.reweight=6.12", "\"6.13\", \"reverted\""),
        ("host.eevdf.reweight=[6.13]", "one of \"6.13\""),
        ("policies.flexs={ choices = 0 }", "policies.flexs.choices = 0 is not possible: 1 … 64"),
        ("workload.w.branches={ tight = 1 }", "0 … 0.9"),
        ("vm.a.preferred={ interval = \"10ms\" }", "100ms … 60s"),
        ("vm.a.preferred={ low = 0.1 }", "high"),
        ("vm.a.preferred=2", "a table"),
        ("seed=-1", "0 … "),
        ("nothing=1", "possible are `name`"),
    ] {
        let error = with(&[setting]).unwrap_err();
        assert!(error.contains(said), "{setting}: {error}");
        if !setting.starts_with("workload.") && !error.starts_with("s.toml:") {
            assert!(error.starts_with(&format!("--set {setting}")), "{error}");
        }
    }
    let error = with(&["host.placement=pin", "vm.a.pins=\"0\""]).unwrap_err();
    assert!(error.contains("leave pins out"), "{error}");
    let error = with(&["host.placement=pin", "vm.a.begins_on=[0, 0]"]).unwrap_err();
    assert!(error.contains("pins every vCPU itself"), "{error}");
    let error = with(&["host.placement=no-stacking", "vm.a.begins_on=[0, 0]"]).unwrap_err();
    assert!(error.contains("name each once"), "{error}");
    let picked = ["host.scheduler=credit", "host.credit.starts=picked", "vm.a.begins_on=[0, 1]"];
    let error = with(&picked).unwrap_err();
    assert!(error.contains("has Xen pick them"), "{error}");
    let error = with(&["vm.a.pins=0-1", "vm.a.begins_on=[0, 3]"]).unwrap_err();
    assert!(error.contains("vCPU 1 may run on the pCPUs 0-1 only"), "{error}");
    let error = with(&["host.placement=no-stacking", "vm.a.vcpus=5"]).unwrap_err();
    assert!(error.contains("5 vCPUs, the machine 4"), "{error}");
    let error = with(&["host.scheduler=cfs", "host.pause_loop.lag_credit=100us"]).unwrap_err();
    assert!(error.contains("set host.scheduler = \"eevdf\""), "{error}");
    let error = with(&["vm.a.gleaner=true", "vm.a.preferred=true"]).unwrap_err();
    assert!(error.contains("leave one of them out"), "{error}");
    let hotplug = "vm.a.hotplug=[{ at = \"10ms\", vcpus = 1 }]";
    let error = with(&["vm.a.preferred=true", hotplug]).unwrap_err();
    assert!(error.contains("gleaner, preferred or per_thread"), "{error}");
}

#[test]
fn every_key_is_documented() {
    use crate::workload::parse;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/scenarios.md");
    let text = std::fs::read_to_string(path).unwrap();
    let lists: [&[&str]; 15] = [
        &load::KEYS,
        &super::machine::KEYS,
        &super::machine::TOPOLOGY_KEYS,
        &super::host::KEYS,
        &super::host::PAUSE_LOOP_KEYS,
        &super::host::CFS_KEYS,
        &super::host::EEVDF_KEYS,
        &super::vm::KEYS,
        &super::agent::KEYS,
        GovernorConfig::KEYS,
        &parse::KEYS,
        &parse::ROLE_KEYS,
        &parse::objects::KEYS,
        &parse::program::VERBS,
        &parse::program::WORDS,
    ];
    for key in lists.into_iter().flatten() {
        let written = [
            format!("`{key}`"),
            format!("`{key}."),
            format!("`cfs.{key}`"),
            format!("`eevdf.{key}`"),
            format!("[host.{key}]"),
            format!("[{key}]"),
            format!("{{ {key} = "),
            format!("`\"{key}\"`"),
        ];
        assert!(
            written.iter().any(|form| text.contains(form)),
            "`{key}` is not in docs/reference/scenarios.md"
        );
    }
}

#[test]
fn workloads_are_found_in_scenario_folders() {
    let dir = std::env::temp_dir().join(format!("tandem-scenario-{}", std::process::id()));
    let folder = dir.join("scenarios");
    std::fs::create_dir_all(dir.join("workloads")).unwrap();
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(
        dir.join("workloads/spin.toml"),
        "[[role]]\nprogram = [ { compute = \"1ms\" } ]\n",
    )
    .unwrap();
    let path = folder.join("s.toml");
    let text = |workload: &str| {
        format!(
            "duration = \"1s\"\nmachine = {{ pcpus = 1 }}\n\
             [[vm]]\nname = \"a\"\nvcpus = 1\nworkload = \"{workload}\"\n"
        )
    };
    let read = |workload: &str| {
        std::fs::write(&path, text(workload)).unwrap();
        load::read(&path).map_err(|error| error.to_string())
    };
    assert_eq!(read("spin").unwrap().vms[0].workload.name, "spin");
    let by_path = read("../workloads/spin.toml").unwrap();
    assert_eq!(by_path.vms[0].workload.name, "spin");
    let error = read("spni").unwrap_err();
    assert!(error.contains("s.toml:6: ") && error.contains("spni.toml"), "{error}");
    std::fs::write(dir.join("workloads/spin.toml"), "[[rule]]\n").unwrap();
    let error = read("spin").unwrap_err();
    assert!(error.contains("spin.toml:1: ") && error.contains("`role`"), "{error}");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn workloads_of_the_repository_are_built_in() {
    let text = "duration = \"1ms\"\n[machine]\npcpus = 1\n\
        [[vm]]\nname = \"a\"\nvcpus = 1\nworkload = \"fine-locks\"\n";
    let scenario = load::from_text("s.toml", text).unwrap();
    assert_eq!(scenario.vms[0].workload.name, "fine-locks");
    let error = load::from_text("s.toml", &text.replace("fine-locks", "fine-lock"));
    let error = error.unwrap_err().to_string();
    assert!(
        error.starts_with("s.toml:7: ") && error.contains("did you mean \"fine-locks\"?"),
        "{error}"
    );
}

#[test]
fn deep_nesting_is_rejected_before_parsing() {
    // A parser that miscounts closing brackets would overflow its stack here.
    let closed = ["{}"; 30_000].join(", ");
    let deep = format!("{{ {closed}, b = {}", "{a=".repeat(30_000));
    let error = Source::from_text("s.toml", &format!("\na = {deep}\n")).unwrap_err();
    let wanted = "s.toml:2: tables and lists may nest 100 deep at most";
    assert_eq!(error.to_string(), wanted);
    // On the command line, invalid TOML is a string, even this one.
    assert!(with(&[&format!("host.scheduler={deep}")]).is_err());
}
