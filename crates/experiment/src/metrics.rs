//! All metrics of a simulation, by name: the long form that `compare`, JSON and Parquet use.
//!
//! Accumulated times (useful, spinning, steal) are in pCPUs: ns per measured ns.
//! Latencies are in ns.
//! A metric whose event did not occur, such as a latency without wake-ups, is absent.
//! Metrics of the host have an empty VM name.

use serde::Serialize;
use tandem_model::Nanos;
use tandem_sim::results::{Counts, Histogram, VcpuTime, VmResults};
use tandem_sim::{Results, Scenario};

/// The names of all metrics.
pub const NAMES: [&str; 63] = [
    // Host.
    "busy",
    "polling",
    "idle",
    "energy",
    "measured",
    "events",
    // VMs; `work_rate` also of all VMs together.
    "work_rate",
    "work",
    "work_per_cpu_second",
    "finished",
    "threads",
    "received",
    "useful",
    "spin_user",
    "spin_kernel",
    "shootdown_wait",
    "guest_kernel",
    "exits",
    "cache",
    "idle_poll",
    "steal",
    "halted",
    "ple_exits",
    "yields",
    "useless_searches",
    "halts",
    "halt_polls_hit",
    "reschedule_ipis",
    "shootdown_ipis",
    "shootdowns",
    "thread_switches",
    "voluntary_switches",
    "thread_migrations",
    "vcpu_switches",
    "swaps",
    "vcpu_migrations",
    "holder_preemptions",
    "waiter_preemptions",
    "locks",
    "contended",
    "involuntary_switches",
    "ple_window",
    "ple_inefficiency",
    "request_mean",
    "request_p50",
    "request_p99",
    "request_max",
    "wake_mean",
    "wake_p50",
    "wake_p99",
    "wake_max",
    "ipi_mean",
    "ipi_p50",
    "ipi_p99",
    "ipi_max",
    "shootdown_mean",
    "shootdown_p50",
    "shootdown_p99",
    "shootdown_max",
    "lock_wait_mean",
    "lock_wait_p50",
    "lock_wait_p99",
    "lock_wait_max",
];

/// The units of all metrics.
pub const UNITS: [&str; 7] = ["pCPUs", "1/s", "J", "s", "1", "cycles", "ns"];

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Metric {
    /// The VM; empty: the host or all VMs together.
    pub vm: String,
    /// The metric.
    pub metric: &'static str,
    /// The unit.
    pub unit: &'static str,
    /// The value.
    pub value: f64,
}

impl Metric {
    /// Creates a figure from a file; `None` if the metric or unit is unknown.
    pub fn read(vm: &str, metric: &str, unit: &str, value: f64) -> Option<Metric> {
        let metric = NAMES.into_iter().find(|known| *known == metric)?;
        let unit = UNITS.into_iter().find(|known| *known == unit)?;
        let vm = vm.to_owned();
        Some(Metric { vm, metric, unit, value })
    }
}

/// Returns all figures of a run.
pub fn of(scenario: &Scenario, results: &Results) -> Vec<Metric> {
    let mut list = List {
        vm: String::new(),
        measured: results.measured.0.max(1) as f64,
        cycles_per_ns: scenario.machine.costs.cycles_per_us as f64 / 1e3,
        metrics: Vec::new(),
    };
    list.host(scenario, results);
    for vm in &results.vms {
        list.vm.clone_from(&vm.name);
        list.of_vm(vm);
    }
    list.metrics
}

/// Returns the CPU time of all vCPUs of a VM, by purpose.
pub fn ran(vm: &VmResults) -> VcpuTime {
    let mut sum = VcpuTime::default();
    for vcpu in &vm.vcpus {
        sum.useful += vcpu.ran.useful;
        sum.spin_user += vcpu.ran.spin_user;
        sum.spin_kernel += vcpu.ran.spin_kernel;
        sum.shootdown_wait += vcpu.ran.shootdown_wait;
        sum.guest_kernel += vcpu.ran.guest_kernel;
        sum.exits += vcpu.ran.exits;
        sum.cache += vcpu.ran.cache;
        sum.idle_poll += vcpu.ran.idle_poll;
    }
    sum
}

/// Returns the parts of a CPU time, by name.
pub fn parts(ran: &VcpuTime) -> [(&'static str, Nanos); 8] {
    [
        ("useful", ran.useful),
        ("spin_user", ran.spin_user),
        ("spin_kernel", ran.spin_kernel),
        ("shootdown_wait", ran.shootdown_wait),
        ("guest_kernel", ran.guest_kernel),
        ("exits", ran.exits),
        ("cache", ran.cache),
        ("idle_poll", ran.idle_poll),
    ]
}

/// Returns the counts of events, by name.
fn counts(counts: &Counts) -> [(&'static str, u64); 19] {
    [
        ("ple_exits", counts.ple_exits),
        ("yields", counts.yields),
        ("useless_searches", counts.useless_searches),
        ("halts", counts.halts),
        ("halt_polls_hit", counts.halt_polls_hit),
        ("reschedule_ipis", counts.reschedule_ipis),
        ("shootdown_ipis", counts.shootdown_ipis),
        ("shootdowns", counts.shootdowns),
        ("thread_switches", counts.thread_switches),
        ("voluntary_switches", counts.voluntary_switches),
        ("thread_migrations", counts.thread_migrations),
        ("vcpu_switches", counts.vcpu_switches),
        ("swaps", counts.swaps),
        ("vcpu_migrations", counts.vcpu_migrations),
        ("holder_preemptions", counts.holder_preemptions),
        ("waiter_preemptions", counts.waiter_preemptions),
        ("locks", counts.locks),
        ("contended", counts.contended),
        ("involuntary_switches", counts.thread_switches.saturating_sub(counts.voluntary_switches)),
    ]
}

struct List {
    vm: String,
    measured: f64,
    cycles_per_ns: f64,
    metrics: Vec<Metric>,
}

impl List {
    fn add(&mut self, metric: &'static str, unit: &'static str, value: f64) {
        self.metrics.push(Metric { vm: self.vm.clone(), metric, unit, value });
    }

    fn pcpus(&mut self, metric: &'static str, time: Nanos) {
        self.add(metric, "pCPUs", time.0 as f64 / self.measured);
    }

    fn per_second(&mut self, metric: &'static str, count: u64) {
        self.add(metric, "1/s", count as f64 * 1e9 / self.measured);
    }

    fn host(&mut self, scenario: &Scenario, results: &Results) {
        let mut units = scenario.vms.iter().map(|vm| &vm.workload.unit);
        let first = units.next();
        // Only work of one unit adds up.
        if units.all(|unit| Some(unit) == first) {
            self.per_second("work_rate", results.vms.iter().map(|vm| vm.work).sum());
        }
        let pcpus = || results.pcpus.iter();
        self.pcpus("busy", pcpus().map(|pcpu| pcpu.busy).sum());
        self.pcpus("polling", pcpus().map(|pcpu| pcpu.polling).sum());
        self.pcpus("idle", pcpus().map(|pcpu| pcpu.idle).sum());
        self.add("energy", "J", results.energy_mj as f64 / 1e3);
        self.add("measured", "s", results.measured.as_secs_f64());
        self.add("events", "1", results.events as f64);
    }

    fn of_vm(&mut self, vm: &VmResults) {
        self.add("work", "1", vm.work as f64);
        self.per_second("work_rate", vm.work);
        if vm.received > Nanos::ZERO {
            let value = vm.work as f64 / vm.received.as_secs_f64();
            self.add("work_per_cpu_second", "1/s", value);
        }
        if let Some(finished) = vm.finished {
            self.add("finished", "s", finished.as_secs_f64());
        }
        let threads: u32 = vm.roles.iter().map(|role| role.threads).sum();
        self.add("threads", "1", f64::from(threads));
        self.pcpus("received", vm.received);
        for (name, time) in parts(&ran(vm)) {
            self.pcpus(name, time);
        }
        self.pcpus("steal", vm.vcpus.iter().map(|vcpu| vcpu.steal).sum());
        self.pcpus("halted", vm.vcpus.iter().map(|vcpu| vcpu.halted).sum());
        for (name, count) in counts(&vm.counts) {
            self.per_second(name, count);
        }
        if vm.counts.ple_exits > 0 {
            let cycles = vm.counts.ple_window_cycles as f64;
            self.add("ple_window", "cycles", cycles / vm.counts.ple_exits as f64);
            let lost = cycles / self.cycles_per_ns + vm.counts.ple_handling_ns as f64;
            let received = vm.received.0.max(1) as f64;
            self.add("ple_inefficiency", "1", lost / received);
        }
        self.latency(
            ["request_mean", "request_p50", "request_p99", "request_max"],
            &vm.request_time,
        );
        self.latency(["wake_mean", "wake_p50", "wake_p99", "wake_max"], &vm.wake_latency);
        self.latency(["ipi_mean", "ipi_p50", "ipi_p99", "ipi_max"], &vm.ipi_latency);
        self.latency(
            ["shootdown_mean", "shootdown_p50", "shootdown_p99", "shootdown_max"],
            &vm.shootdown_latency,
        );
        self.latency(
            ["lock_wait_mean", "lock_wait_p50", "lock_wait_p99", "lock_wait_max"],
            &vm.lock_wait,
        );
    }

    fn latency(&mut self, names: [&'static str; 4], times: &Histogram) {
        let [mean, p50, p99, max] = names;
        if let (Some(average), Some(half), Some(most)) =
            (times.mean(), times.quantile(0.5), times.quantile(0.99))
        {
            self.add(mean, "ns", average.0 as f64);
            self.add(p50, "ns", half.0 as f64);
            self.add(p99, "ns", most.0 as f64);
            self.add(max, "ns", times.max.0 as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use tandem_sim::World;
    use tandem_sim::scenario::load;

    #[test]
    fn run_has_exactly_the_named_metrics() {
        // Two VMs of a program that ends, on two pCPUs: locks, flushes, pause loops and IPIs.
        let text = r#"
            duration = "200ms"
            [machine]
            pcpus = 2
            [host]
            scheduler = "cfs"
            [[workload]]
            name = "w"
            [workload.objects]
            s = "spin"
            m = "mutex"
            [[workload.role]]
            threads = 4
            program = [{ repeat = 200, do = ["request", { lock = "s" }, { compute = "exp(20us)" }, { unlock = "s" }, { lock = "m" }, { compute = "exp(20us)" }, { unlock = "m" }, { unmap = "1us" }, { sleep = "exp(50us)" }, "work"] }]
            [[vm]]
            name = "a"
            count = 2
            vcpus = 2
            workload = "w"
        "#;
        let scenario = load::from_text("s", text).unwrap();
        let mut world = World::new(&scenario);
        world.run_until(scenario.duration);
        let metrics = of(&scenario, &world.results());
        let had: BTreeSet<&str> = metrics.iter().map(|metric| metric.metric).collect();
        let named: BTreeSet<&str> = NAMES.into_iter().collect();
        assert_eq!(had, named);
        for metric in metrics {
            let read = Metric::read(&metric.vm, metric.metric, metric.unit, metric.value);
            assert_eq!(read, Some(metric));
        }
    }
}
