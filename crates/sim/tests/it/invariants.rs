//! Invariants of every world: small random worlds run, with checks between events.

use proptest::prelude::*;
use tandem_model::Nanos;
use tandem_sim::World;

/// A step of a random program, which always releases its locks.
fn step() -> impl Strategy<Value = String> {
    let time =
        prop_oneof![Just("exp(20us)"), Just("1us"), Just("uniform(10us, 200us)"), Just("2ms")];
    prop_oneof![
        time.clone().prop_map(|t| format!("{{ compute = \"{t}\" }}")),
        (
            time.clone(),
            prop_oneof![
                Just("spin[random]"),
                Just("tas"),
                Just("mutex[random]"),
                Just("user"),
                Just("pv")
            ]
        )
            .prop_map(|(t, lock)| format!(
                "{{ locked = \"{lock}\", do = [ {{ compute = \"{t}\" }} ] }}"
            )),
        time.clone().prop_map(|t| format!("{{ sleep = \"{t}\" }}")),
        time.clone().prop_map(|t| format!("{{ io = \"{t}\" }}")),
        time.prop_map(|t| format!("{{ unmap = \"{t}\" }}")),
        Just("\"yield\"".to_owned()),
        Just("{ acquire = \"sem\" }, { compute = \"30us\" }, { release = \"sem\" }".to_owned()),
        Just("{ barrier = \"meet\" }".to_owned()),
        Just("{ put = \"pipe\" }, { get = \"pipe\" }".to_owned()),
    ]
}

fn world() -> impl Strategy<Value = (String, Vec<String>)> {
    let program = prop::collection::vec(step(), 1..6).prop_map(|steps| steps.join(", "));
    let settings = (
        prop_oneof![
            Just(("cfs", "6.12")),
            Just(("eevdf", "6.12")),
            Just(("eevdf", "7.3")),
            Just(("credit", "6.12"))
        ],
        prop_oneof![Just("load-balancing"), Just("pin")],
        prop_oneof![Just("no"), Just("gang"), Just("demand")],
        any::<bool>(),
        prop_oneof![Just("off"), Just("fixed"), Just("stock")],
        prop_oneof![Just("halt"), Just("poll"), Just("haltpoll(200us)")],
        prop_oneof![Just("ipi"), Just("paravirtual")],
        any::<bool>(),
    )
        .prop_map(|(scheduler, placement, together, cap, pause, idle, tlb, flexw)| {
            [
                format!("host.scheduler={}", scheduler.0),
                format!("host.eevdf.as_of={}", scheduler.1),
                format!("host.placement={placement}"),
                format!("host.together={together}"),
                format!("host.cap={cap}"),
                format!("host.pause_loop.policy={pause}"),
                format!("vm.0.idle={idle}"),
                format!("vm.0.tlb={tlb}"),
                format!("policies.flexw={flexw}"),
            ]
            .to_vec()
        });
    let smt = |(sockets, cores): (u32, u32)| {
        format!(
            "topology = {{ sockets = {sockets}, cores_per_cache = {cores}, threads_per_core = 2 }}"
        )
    };
    let machine = prop_oneof![
        (1u32..4).prop_map(|pcpus| format!("pcpus = {pcpus}")),
        (1u32..3, 1u32..3).prop_map(smt),
    ];
    (machine, 1u32..4, 1u32..5, program, settings, any::<u32>()).prop_map(
        |(machine, vms, vcpus, program, mut settings, seed)| {
            let is_credit = settings.iter().any(|setting| setting.ends_with("credit"));
            if machine.starts_with("topology") && !is_credit && seed % 2 == 0 {
                settings.push("host.core_scheduling=vm".to_owned());
            }
            let text = format!(
                "seed = {seed}\nduration = \"60ms\"\n[machine]\n{machine}\n
                [[workload]]\nname = \"w\"
                [workload.objects]
                spin = {{ kind = \"spin\", lock = \"ticket\", count = 2 }}
                tas = {{ kind = \"spin\", lock = \"test-and-set\" }}
                pv = {{ kind = \"spin\", lock = \"paravirtual\" }}
                user = {{ kind = \"spin\", lock = \"test-and-set\", space = \"user\" }}
                mutex = {{ kind = \"mutex\", count = 2 }}
                sem = {{ kind = \"semaphore\", units = 1 }}
                meet = {{ kind = \"barrier\", wait = \"block\" }}
                pipe = {{ kind = \"queue\", capacity = 100 }}
                [[workload.role]]\nthreads = \"1.5 per vcpu\"
                program = [ {{ forever = [ {{ compute = \"5us\" }}, {program}, \"work\" ] }} ]
                [[vm]]\nname = \"a\"\ncount = {vms}\nvcpus = {vcpus}\nworkload = \"w\"\n"
            );
            (text, settings)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn random_worlds_keep_invariants((text, settings) in world()) {
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let scenario = crate::common::scenario(&text, &settings);
        let mut world = World::new(&scenario);
        for step in 1..=60 {
            world.run_until(Nanos(step * 1_000_000));
            world.check_all().map_err(|broken| TestCaseError::fail(format!("{broken}\n{text}")))?;
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_results((text, settings) in world()) {
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let once = crate::common::run(&text, &settings);
        let again = crate::common::run(&text, &settings);
        prop_assert_eq!(once, again);
    }
}
