//! The simulator against formulas.

mod common;

use common::{FREE, HOG, near, pcpus, run};

/// The machine-repairman queue M/M/1//N: N customers think for a time that is exponential with mean
/// 1 ÷ λ, then queue for one server with exponential service of mean 1 ÷ μ. With a = λ ÷ μ the
/// probability that nobody is there is p₀ = 1 ÷ Σ N! ÷ (N − k)! aᵏ, and throughput is μ (1 − p₀).
fn repairman(n: u32, think: f64, service: f64) -> (f64, f64) {
    let a = service / think;
    let (mut term, mut sum) = (1.0, 1.0);
    for k in 1..=n {
        term *= f64::from(n - k + 1) * a;
        sum += term;
    }
    let throughput = (1.0 - 1.0 / sum) / service;
    // Little's law over the whole circle: N = throughput × (think + wait + service).
    let wait = f64::from(n) / throughput - think - service;
    (throughput, wait)
}

#[test]
fn a_single_server_queue_is_within_1_percent_of_its_formula() {
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
fn gps_shares_within_1_percent_for_feasible_weights_on_one_pcpu_under_each_scheduler() {
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
fn guest_threads_share_a_cpu_by_their_weights() {
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
fn a_hard_cap_leaves_idle_what_is_not_used() {
    let text = format!(
        "duration = \"6s\"\nwarmup = \"1s\"\n[machine]\npcpus = 2\n{FREE}
        [host]\ncap = true\nplacement = \"pin\"\n{HOG}
        [[vm]]\nname = \"a\"\nvcpus = 2\nworkload = \"hog\"
        [[vm]]\nname = \"b\"\nvcpus = 1\nworkload = \"hog\"\n"
    );
    let results = run(&text, &[]);
    // Fair is 1 and 1; on pCPU 0 they share half and half, so b gets no more than there is.
    assert!(pcpus(&results, 0) <= 1.01, "{}", pcpus(&results, 0));
    let idle: u64 = results.pcpus.iter().map(|pcpu| pcpu.idle.0).sum();
    assert!(idle > 0);
    for vm in &results.vms {
        assert!(vm.work > 0);
    }
}

/// Two VMs of four and three vCPUs that compute, on four of 16 pCPUs.
fn on_a_part_of_the_host(more: &str) -> String {
    format!(
        "duration = \"6s\"\nwarmup = \"1s\"\n[machine]\npcpus = 16\n{FREE}{HOG}{more}
        [[vm]]\nname = \"a\"\nvcpus = 4\npins = \"0-3\"\nworkload = \"hog\"
        [[vm]]\nname = \"b\"\nvcpus = 3\npins = \"0-3\"\nworkload = \"hog\"\n"
    )
}

#[test]
fn a_cap_divides_the_pcpus_that_vms_may_use_and_no_others() {
    for scheduler in ["cfs", "credit"] {
        let host = format!("[host]\nscheduler = \"{scheduler}\"\ncap = true\n");
        let results = run(&on_a_part_of_the_host(&host), &[]);
        for vm in [0, 1] {
            let received = pcpus(&results, vm);
            assert!((1.85..2.02).contains(&received), "{scheduler}: {received}");
        }
    }
}

#[test]
fn before_xen_4_1_weights_mean_little_to_vms_on_a_part_of_the_host() {
    let host = "[host]\nscheduler = \"credit\"\ncredit = { as_of = \"4.0\" }\n";
    let text = on_a_part_of_the_host(host);
    let weights = ["vm.a.weight=256", "vm.b.weight=512"];
    // Credits for 16 pCPUs are more than four can use: nobody is ever OVER, and queues stay as they began, with two
    // vCPUs on three pCPUs and one of a alone on the fourth.
    let results = run(&text, &weights);
    near("a, confined", pcpus(&results, 0), 2.5, 0.03);
    near("b, confined", pcpus(&results, 1), 1.5, 0.03);
    // Where the four pCPUs are the host, credits are scarce: b is due 2.67 pCPUs.
    let whole = ["machine.pcpus=4", weights[0], weights[1]];
    let results = run(&text, &whole);
    assert!(pcpus(&results, 1) > 2.3, "{}", pcpus(&results, 1));
}
