//! Worked cases of deserved work, and small runs: figures add up and do not depend on the number of workers.

use super::*;
use crate::policies;
use crate::progress::Silent;

fn outcome(work_rate: f64, received: f64, finished: Option<u64>) -> Outcome {
    let time = BTreeMap::new();
    Outcome { work_rate, finished: finished.map(Nanos), received, request_p99: None, time }
}

#[test]
fn deserved_work_matches_worked_cases() {
    // Half of the pCPUs that it uses alone: half of the work is deserved.
    let alone = outcome(100.0, 4.0, None);
    assert_eq!(deserved(&outcome(50.0, 2.0, None), &alone, 2.0), Some(1.0));
    assert_eq!(deserved(&outcome(10.0, 2.0, None), &alone, 2.0), Some(0.2));
    // More than deserved counts as 1, and a share above the use alone as the use alone.
    assert_eq!(deserved(&outcome(90.0, 3.6, None), &alone, 2.0), Some(1.0));
    assert_eq!(deserved(&outcome(80.0, 3.2, None), &alone, 8.0), Some(0.8));
    // A program that ends: run times; one that only ended alone is not measured.
    let ended = outcome(0.0, 4.0, Some(1_000));
    assert_eq!(deserved(&outcome(0.0, 1.0, Some(4_000)), &ended, 2.0), Some(0.5));
    assert_eq!(deserved(&outcome(5.0, 1.0, None), &ended, 2.0), None);
    // No work alone: not measured.
    assert_eq!(deserved(&outcome(0.0, 1.0, None), &outcome(0.0, 1.0, None), 1.0), None);
}

#[test]
fn unused_share_goes_to_other_vms() {
    assert_eq!(fair_share(16, &[16.0, 16.0]), [8.0, 8.0]);
    assert_eq!(fair_share(16, &[6.0, 16.0]), [6.0, 10.0]);
    assert_eq!(fair_share(16, &[2.0, 3.0, 16.0, 16.0]), [2.0, 3.0, 5.5, 5.5]);
    assert_eq!(fair_share(16, &[1.0, 2.0]), [1.0, 2.0], "every demand is met");
}

fn request(policies: &[&str]) -> Request {
    let names: Vec<String> = policies.iter().map(|name| (*name).to_owned()).collect();
    Request {
        mix: Mix::read(None).unwrap(),
        pcpus: vec![4],
        topology: None,
        overcommit: vec![2.0],
        seeds: vec![1, 2],
        policies: policies::combinations(&names).unwrap(),
        settings: Vec::new(),
        duration: Nanos::from_millis(400),
        warmup: Nanos::from_millis(200),
    }
}

#[test]
fn results_do_not_depend_on_workers() {
    let json = |workers| {
        let plan = Plan::new(request(&["stock", "fair"])).unwrap();
        serde_json::to_string(&plan.run(workers, &Silent).unwrap()).unwrap()
    };
    assert_eq!(json(1), json(2));
}

#[test]
fn figures_add_up() {
    let mixed = Plan::new(request(&["stock", "fair"])).unwrap().run(2, &Silent).unwrap();
    let [hosts] = &mixed.hosts[..] else { panic!("{:?}", mixed.hosts) };
    for figures in &hosts.policies {
        let all = figures.all.vms + figures.all.not_measured;
        assert_eq!(all, figures.vms.len());
        let classes = figures.classes.values().map(|class| class.vms + class.not_measured);
        assert_eq!(classes.sum::<usize>(), all);
        let time: f64 = figures.time.values().sum();
        assert!((time - 1.0).abs() < 0.01, "{time}: {:?}", figures.time);
        for seed in [1, 2] {
            let own = || figures.vms.iter().filter(|vm| vm.seed == seed);
            assert!(own().map(|vm| vm.fair_share).sum::<f64>() <= 4.0 + 1e-6);
            assert_eq!(own().map(|vm| vm.vcpus).sum::<u32>(), 8);
            for vm in own() {
                let time: f64 = vm.time.values().sum();
                assert!((time - f64::from(vm.vcpus)).abs() < 0.01, "{}: {time}", vm.vm);
            }
        }
    }
    assert!(hosts.policies[0].requests.is_none());
}

#[test]
fn topology_reaches_hosts_and_vms_alone() {
    let mut smt = request(&["stock"]);
    smt.topology = Some("2:1:1:1:2".parse().unwrap());
    let plan = Plan::new(smt).unwrap();
    let of_hosts =
        plan.hosts.iter().flat_map(|(_, _, hosts)| hosts).flat_map(|host| &host.scenarios);
    for scenario in of_hosts.chain(plan.alone.values()) {
        assert_eq!(scenario.machine.topology().siblings(tandem_model::PcpuId(1)).to_string(), "3");
    }
    let mixed = plan.run(2, &Silent).unwrap();
    assert_eq!(mixed.topology.as_deref(), Some("2:1:1:1:2"));
}

#[test]
fn settings_and_unknown_programs_are_checked() {
    let mut wrong = request(&["stock"]);
    wrong.mix.class[0].programs = vec!["no-such-program".to_owned()];
    let error = Plan::new(wrong).unwrap_err().to_string();
    assert!(error.contains("no-such-program"), "{error}");
    let mut wrong = request(&["stock"]);
    wrong.settings.push(Setting::parse("host.shceduler=cfs").unwrap());
    let error = Plan::new(wrong).unwrap_err().to_string();
    assert!(error.contains("scheduler"), "{error}");
}
