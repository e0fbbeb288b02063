//! Comparison of the simulator with formulas.

mod common;

use common::{FREE, HOG, near, pcpus, run};

/// Returns the throughput and the mean wait of the machine-repairman queue M/M/1//N.
///
/// N customers think for an exponential time with mean 1 ÷ λ, then queue for one server with exponential service of mean 1 ÷ μ.
/// With a = λ ÷ μ, the probability of an empty server is p₀ = 1 ÷ Σ N! ÷ (N − k)! aᵏ, and the throughput is μ (1 − p₀).
fn repairman(n: u32, think: f64, service: f64) -> (f64, f64) {
    let a = service / think;
    let (mut term, mut sum) = (1.0, 1.0);
    for k in 1..=n {
        term *= f64::from(n - k + 1) * a;
        sum += term;
    }
    let throughput = (1.0 - 1.0 / sum) / service;
    // Little's law over the whole cycle: N = throughput × (think + wait + service).
    let wait = f64::from(n) / throughput - think - service;
    (throughput, wait)
}

#[test]
fn single_server_queue_matches_formula() {
    let text = format!(
        "duration = \"62s\"\nwarmup = \"2s\"\n[machine]\npcpus = 8\nmode = \"native\"\n{FREE}
        [[workload]]\nname = \"queue\"
        [workload.objects]\nserver = {{ kind = \"spin\", lock = \"ticket\" }}
        [[workload.role]]\nthreads = 8\npins = [0, 1, 2, 3, 4, 5, 6, 7]
        program = [ {{ forever = [ {{ compute = \"exp(100us)\" }}, {{ lock = \"server\" }},
            {{ compute = \"exp(20us)\" }}, {{ unlock = \"server\" }}, \"work\" ] }} ]
        [[vm]]\nname = \"a\"\nworkload = \"queue\"\n"
    );
    let results = run(&text, &[]);
    let (throughput, wait) = repairman(8, 100e-6, 20e-6);
    let vm = &results.vms[0];
    near("throughput", vm.work as f64 / results.measured.as_secs_f64(), throughput, 0.01);
    let waited = vm.lock_wait.sum.as_secs_f64() / vm.counts.locks as f64;
    near("wait", waited, wait, 0.01);
}

#[test]
fn schedulers_match_gps_shares_on_one_pcpu() {
    let weights = [1024.0, 2048.0, 512.0, 3072.0];
    let sum: f64 = weights.iter().sum();
    let vms: String = weights
        .iter()
        .enumerate()
        .map(|(n, weight)| {
            format!("[[vm]]\nname = \"vm{n}\"\nvcpus = 1\nweight = {weight}\nworkload = \"hog\"\n")
        })
        .collect();
    let text = format!(
        "duration = \"62s\"\nwarmup = \"2s\"\n[machine]\npcpus = 1\n{FREE}\n[host]\ntick = \"1ms\"\n{HOG}{vms}"
    );
    for scheduler in ["cfs", "eevdf", "credit"] {
        let results = run(&text, &[&format!("host.scheduler={scheduler}")]);
        for (n, weight) in weights.iter().enumerate() {
            let what = format!("{scheduler}, weight {weight}");
            near(&what, pcpus(&results, n), weight / sum, 0.01);
        }
    }
}

#[test]
fn guest_threads_share_cpu_by_weight() {
    let text = format!(
        "duration = \"30s\"\n[machine]\npcpus = 1\nmode = \"native\"\n{FREE}
        [[workload]]\nname = \"nice\"
        [[workload.role]]\nname = \"heavy\"\nweight = 3072
        program = [ {{ forever = [ {{ compute = \"1ms\" }}, \"work\" ] }} ]
        [[workload.role]]\nname = \"light\"\nweight = 1024
        program = [ {{ forever = [ {{ compute = \"1ms\" }}, \"work\" ] }} ]
        [[vm]]\nname = \"a\"\nworkload = \"nice\"\n"
    );
    for scheduler in ["cfs", "eevdf"] {
        let results = run(&text, &[&format!("vm.0.scheduler={scheduler}")]);
        let roles = &results.vms[0].roles;
        let ratio = roles[0].computed.0 as f64 / roles[1].computed.0 as f64;
        near(scheduler, ratio, 3.0, 0.01);
    }
}

#[test]
fn hard_cap_leaves_unused_time_idle() {
    let text = format!(
        "duration = \"6s\"\nwarmup = \"1s\"\n[machine]\npcpus = 2\n{FREE}
        [host]\ncap = true\nplacement = \"pin\"\n{HOG}
        [[vm]]\nname = \"a\"\nvcpus = 2\nworkload = \"hog\"
        [[vm]]\nname = \"b\"\nvcpus = 1\nworkload = \"hog\"\n"
    );
    let results = run(&text, &[]);
    // The fair share is 1 pCPU each; both VMs share pCPU 0, so b cannot use all of its share.
    assert!(pcpus(&results, 0) <= 1.01, "{}", pcpus(&results, 0));
    let idle: u64 = results.pcpus.iter().map(|pcpu| pcpu.idle.0).sum();
    assert!(idle > 0);
    for vm in &results.vms {
        assert!(vm.work > 0);
    }
}

/// Two VMs of four and three vCPUs that compute, on four of 16 pCPUs.
fn confined(more: &str) -> String {
    format!(
        "duration = \"6s\"\nwarmup = \"1s\"\n[machine]\npcpus = 16\n{FREE}{HOG}{more}
        [[vm]]\nname = \"a\"\nvcpus = 4\npins = \"0-3\"\nworkload = \"hog\"
        [[vm]]\nname = \"b\"\nvcpus = 3\npins = \"0-3\"\nworkload = \"hog\"\n"
    )
}

#[test]
fn cap_divides_usable_pcpus_only() {
    for scheduler in ["cfs", "credit"] {
        let host = format!("[host]\nscheduler = \"{scheduler}\"\ncap = true\n");
        let results = run(&confined(&host), &[]);
        for vm in [0, 1] {
            let received = pcpus(&results, vm);
            assert!((1.85..2.02).contains(&received), "{scheduler}: {received}");
        }
    }
}

#[test]
fn xen_4_0_weights_matter_little_if_confined() {
    let host = "[host]\nscheduler = \"credit\"\ncredit = { as_of = \"4.0\" }\n";
    let text = confined(host);
    let weights = ["vm.a.weight=256", "vm.b.weight=512"];
    // Credits for 16 pCPUs exceed the capacity of four, so no vCPU is ever OVER.
    // Queues stay as at the start: two vCPUs on each of three pCPUs, and one of a alone on the fourth.
    let results = run(&text, &weights);
    near("a, confined", pcpus(&results, 0), 2.5, 0.03);
    near("b, confined", pcpus(&results, 1), 1.5, 0.03);
    // On a host of four pCPUs, credits are scarce: b's fair share is 2.67 pCPUs.
    let whole = ["machine.pcpus=4", weights[0], weights[1]];
    let results = run(&text, &whole);
    assert!(pcpus(&results, 1) > 2.3, "{}", pcpus(&results, 1));
}
