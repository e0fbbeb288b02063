//! Small worlds for tests, from TOML.
#![allow(dead_code)]

use tandem_sim::results::VmResults;
use tandem_sim::scenario::load::{Setting, Source};
use tandem_sim::trace::TraceEvent;
use tandem_sim::{Results, World};

/// A machine without costs, to test scheduling alone.
pub const FREE: &str = "
[machine.costs]
vm_exit = 0
halt_exit = 0
halt_wake = 0
halt_poll_wake = 0
ipi_send_exit = 0
interrupt_exit = 0
posted_interrupt = 0
eoi_exit = 0
ple_exit = 0
kick_hypercall = 0
vcpu_switch = 0
jitter_percent = 0
timer_exit = 0
nested_switch = 0
ipi_flight = 0
native_ipi_send = 0
native_idle_wake = 0
interrupt_handler = 0
thread_switch = 0
wakeup = 0
syscall = 0
futex_work = 0
tick_work = 0
tlb_flush = 0
queue_work = 0
timer_slack = 0
timer_work = 0
lock_free = 0
lock_handoff = 0
ticket_per_waiter = 0
refill_per_kib = 0
refill_kernel_per_kib = 0
refill_far_per_kib = 0
";

/// Threads that always compute, in steps of 1 ms.
pub const HOG: &str = "
[[workload]]
name = \"hog\"
[[workload.role]]
threads = \"1 per vcpu\"
program = [ { forever = [ { compute = \"1ms\" }, \"work\" ] } ]
";

/// Parses a scenario from text, with settings as on the command line.
pub fn scenario(text: &str, settings: &[&str]) -> tandem_sim::Scenario {
    let mut source = Source::from_text("test.toml", text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    for setting in settings {
        source.set(Setting::parse(setting).unwrap_or_else(|e| panic!("{setting}: {e}")));
    }
    source.scenario().unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// Runs a scenario.
pub fn run(text: &str, settings: &[&str]) -> Results {
    World::new(&scenario(text, settings)).run()
}

/// Runs a scenario and records its trace.
pub fn traced(text: &str, settings: &[&str]) -> (Results, Vec<TraceEvent>) {
    let mut world = World::new(&scenario(text, settings));
    world.record_trace(10_000_000);
    let results = world.run();
    (results, world.take_trace().1)
}

/// CPU time of a VM, in pCPUs.
pub fn pcpus(results: &Results, vm: usize) -> f64 {
    results.vms[vm].received.0 as f64 / results.measured.0 as f64
}

/// Finds a VM by its name.
pub fn vm<'a>(results: &'a Results, name: &str) -> &'a VmResults {
    let found = results.vms.iter().find(|vm| vm.name == name);
    found.unwrap_or_else(|| panic!("no VM {name}"))
}

/// Fails unless `value` is within `part` of `wanted`.
#[track_caller]
pub fn near(what: &str, value: f64, wanted: f64, part: f64) {
    let off = (value / wanted - 1.0).abs();
    assert!(
        off <= part,
        "{what}: {value:.4}, {:.2} % off {wanted:.4} (at most {:.2} %)",
        off * 100.0,
        part * 100.0
    );
}

/// Wait of a VM for pCPUs per unit of its work.
#[derive(Debug)]
pub struct Latency {
    /// ns.
    pub mean: f64,
}

impl Latency {
    /// Computes it from the steal time of a VM with one wake-up per unit of work.
    pub fn of_steal(results: &Results, vm: usize) -> Latency {
        let vm = &results.vms[vm];
        let steal: u64 = vm.vcpus.iter().map(|vcpu| vcpu.steal.0).sum();
        assert!(vm.work > 0, "the VM did work");
        Latency { mean: steal as f64 / vm.work as f64 }
    }
}
