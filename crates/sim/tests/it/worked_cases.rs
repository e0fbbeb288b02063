//! The worked cases of the specifications, by name, on the simulated machine.

use crate::common::{FREE, HOG, near, pcpus, run, traced};
use tandem_sim::trace::{ThreadState, TraceEvent, VcpuState};

/// Spec 10: 4 pCPUs, VM A with 4 vCPUs and VM B with 3, of equal weight.
fn unfair_host() -> String {
    format!(
        "duration = \"12s\"\nwarmup = \"4s\"\n[machine]\npcpus = 4\n{FREE}
        [host]\nplacement = \"pin\"\n{HOG}
        [[vm]]\nname = \"a\"\nvcpus = 4\nworkload = \"hog\"\n
        [[vm]]\nname = \"b\"\nvcpus = 3\nworkload = \"hog\"\n"
    )
}

#[test]
fn spec_10_larger_vm_wins_on_unfair_host() {
    for scheduler in ["cfs", "eevdf"] {
        let results = run(&unfair_host(), &[&format!("host.scheduler={scheduler}")]);
        near(scheduler, pcpus(&results, 0), 2.286, 0.01);
        near(scheduler, pcpus(&results, 1), 1.714, 0.01);
    }
}

#[test]
fn spec_10_flexw_makes_it_fair() {
    let results = run(&unfair_host(), &["host.scheduler=eevdf", "policies.flexw=true"]);
    near("a", pcpus(&results, 0), 2.0, 0.02);
    near("b", pcpus(&results, 1), 2.0, 0.02);
}

/// Amdahl: 20 % of the work is serial.
fn amdahl(threads: u32) -> String {
    let parallel = 80 / threads;
    format!(
        "duration = \"100s\"\n[machine]\npcpus = 4\nmode = \"native\"\n{FREE}
        [[workload]]\nname = \"amdahl\"
        [workload.objects]
        begin = {{ kind = \"barrier\", wait = \"block\" }}
        end = {{ kind = \"barrier\", wait = \"block\" }}
        [[workload.role]]\nname = \"first\"
        program = [ {{ repeat = 20, do = [ {{ compute = \"20ms\" }}, {{ barrier = \"begin\" }},
            {{ compute = \"{parallel}ms\" }}, {{ barrier = \"end\" }} ] }} ]
        [[workload.role]]\nname = \"others\"\nthreads = {others}
        program = [ {{ repeat = 20, do = [ {{ barrier = \"begin\" }}, {{ compute = \"{parallel}ms\" }},
            {{ barrier = \"end\" }} ] }} ]
        [[vm]]\nname = \"a\"\nworkload = \"amdahl\"\n",
        others = threads - 1,
    )
}

#[test]
fn spec_60_amdahl_speedup_is_2_5() {
    let alone = "duration = \"100s\"\n[machine]\npcpus = 4\nmode = \"native\"\n".to_owned()
        + FREE
        + "[[workload]]\nname = \"serial\"\n[[workload.role]]
        program = [ { repeat = 20, do = [ { compute = \"100ms\" } ] } ]
        [[vm]]\nname = \"a\"\nworkload = \"serial\"\n";
    let one = run(&alone, &[]).vms[0].finished.unwrap().0 as f64;
    let four = run(&amdahl(4), &[]);
    let elapsed = four.vms[0].finished.unwrap().0 as f64;
    near("by run times", one / elapsed, 2.5, 0.01);

    let busy: u64 = four.pcpus.iter().map(|pcpu| pcpu.busy.0).sum();
    let utilization = busy as f64 / (4.0 * elapsed);
    near("utilization", utilization, 0.625, 0.01);
    near("by utilization", 4.0 * utilization, 2.5, 0.01);
}

/// Three vCPUs on two pCPUs with one contended lock.
fn one_lock(kind: &str, pause_loop: &str) -> String {
    format!(
        "duration = \"1s\"\n[machine]\npcpus = 2\n{FREE}
        [host]\nscheduler = \"cfs\"\n[host.pause_loop]\npolicy = \"{pause_loop}\"
        [[workload]]\nname = \"lock\"
        [workload.objects]
        lock = {{ kind = \"spin\", lock = \"{kind}\" }}
        [[workload.role]]\nthreads = \"1 per vcpu\"
        program = [ {{ forever = [ {{ lock = \"lock\" }}, {{ compute = \"2us\" }}, {{ unlock = \"lock\" }},
            {{ compute = \"1us\" }}, \"work\" ] }} ]
        [[vm]]\nname = \"a\"\nvcpus = 3\nworkload = \"lock\"\n"
    )
}

#[test]
fn preempted_next_waiter_stalls_ticket_lock() {
    let ticket = run(&one_lock("ticket", "off"), &[]);
    let tas = run(&one_lock("test-and-set", "off"), &[]);
    let vm = &ticket.vms[0];
    assert!(vm.counts.waiter_preemptions > 60, "{:?}", vm.counts);
    assert!(
        vm.lock_wait.max.0 > 2_000_000,
        "a waiter waits until the next one is back: {}",
        vm.lock_wait.max
    );
    assert!(
        tas.vms[0].work > 10 * vm.work,
        "a test-and-set lock passes to a running waiter: {} against {}",
        tas.vms[0].work,
        vm.work
    );
}

#[test]
fn ticket_lock_passes_to_preempted_vcpu() {
    let (_, events) = traced(&one_lock("ticket", "off"), &["duration=200ms"]);
    // While the vCPU that holds the ticket waits for a pCPU, no thread computes under the lock.
    // Another thread therefore spins for milliseconds.
    let long_spin = events.iter().any(|event| {
        matches!(event, TraceEvent::Thread { state: ThreadState::Spinning(Some(0)), from, to, .. }
            if to - from > 1_000_000)
    });
    assert!(long_spin);
}

#[test]
fn pause_loop_exits_shorten_ticket_stall() {
    let without = run(&one_lock("ticket", "off"), &[]);
    let with = run(&one_lock("ticket", "fixed"), &[]);
    assert!(with.vms[0].counts.yields > 100, "{:?}", with.vms[0].counts);
    assert!(with.vms[0].work > 2 * without.vms[0].work);
}

#[test]
fn pauses_beyond_the_gap_never_exit() {
    let caught = run(&one_lock("ticket", "fixed"), &["machine.costs.pause_cycles=128"]);
    let missed = run(&one_lock("ticket", "fixed"), &["machine.costs.pause_cycles=129"]);
    assert!(caught.vms[0].counts.ple_exits > 0);
    assert_eq!(missed.vms[0].counts.ple_exits, 0);
}

#[test]
fn spin_below_the_window_never_exits() {
    // Two vCPUs on pCPUs of their own wait at most for the 2 µs of the other's critical section.
    let text = one_lock("ticket", "fixed").replace("vcpus = 3", "vcpus = 2");
    let short = run(&text, &["host.pause_loop.window=5200"]);
    assert_eq!(short.vms[0].counts.ple_exits, 0, "5200 cycles are 2 µs");
    let longer = run(&text, &["host.pause_loop.window=2500"]);
    assert!(longer.vms[0].counts.ple_exits > 1000, "2500 are not 1 µs");
    let text = text.replace("2us", "200us");
    assert!(run(&text, &[]).vms[0].counts.ple_exits > 0);
}

#[test]
fn user_space_spinning_causes_no_ple_exits() {
    let text = format!(
        "duration = \"2s\"\n[machine]\npcpus = 2\n{FREE}
        [host.pause_loop]\npolicy = \"fixed\"
        [[workload]]\nname = \"w\"
        [workload.objects]\nmeet = {{ kind = \"barrier\", wait = \"spin\" }}
        [[workload.role]]\nthreads = \"1 per vcpu\"
        program = [ {{ forever = [ {{ compute = \"exp(100us)\" }}, {{ barrier = \"meet\" }}, \"work\" ] }} ]
        [[vm]]\nname = \"a\"\nvcpus = 4\nworkload = \"w\"\n"
    );
    let results = run(&text, &[]);
    let vm = &results.vms[0];
    assert_eq!(vm.counts.ple_exits, 0);
    let spun: u64 = vm.vcpus.iter().map(|vcpu| vcpu.ran.spin_user.0).sum();
    assert!(
        spun * 4 > vm.received.0,
        "four vCPUs on two pCPUs waste much: {spun} of {}",
        vm.received
    );
}

fn shootdown(flush: &str) -> String {
    format!(
        "duration = \"4s\"\n[machine]\npcpus = 2\n
        [host]\nscheduler = \"cfs\"\n{HOG}
        [[workload]]\nname = \"unmap\"
        [[workload.role]]\nname = \"asker\"\npins = [0]
        program = [ {{ forever = [ {{ compute = \"200us\" }}, {{ unmap = \"1us\" }}, \"work\" ] }} ]
        [[workload.role]]\nname = \"other\"\npins = [1]
        program = [ {{ forever = [ {{ compute = \"1ms\" }} ] }} ]
        [[vm]]\nname = \"a\"\nvcpus = 2\npins = [\"0\", \"1\"]\nworkload = \"unmap\"\ntlb = \"{flush}\"
        [[vm]]\nname = \"hog\"\nvcpus = 1\npins = [\"1\"]\nworkload = \"hog\"\n"
    )
}

#[test]
fn paravirtual_flush_skips_descheduled_vcpu() {
    let ipi = run(&shootdown("ipi"), &[]);
    let paravirtual = run(&shootdown("paravirtual"), &[]);
    let (slow, quick) = (&ipi.vms[0], &paravirtual.vms[0]);
    assert!(
        slow.shootdown_latency.max.0 > 2_000_000,
        "up to the hog's slice: {}",
        slow.shootdown_latency.max
    );
    // Only a vCPU preempted between the sending and the arrival delays the asker.
    let most = quick.shootdown_latency.quantile(0.99).unwrap();
    assert!(most.0 < 100_000, "{most}");
    assert!(quick.work > 2 * slow.work, "{} {}", quick.work, slow.work);
    assert!(quick.counts.shootdown_ipis < slow.counts.shootdowns);
}

#[test]
fn no_stacking_keeps_siblings_apart() {
    let text = format!(
        "duration = \"4s\"\n[machine]\npcpus = 4\n
        [host]\nscheduler = \"cfs\"\n{HOG}
        [[workload]]\nname = \"nap\"\n[[workload.role]]\nthreads = \"1 per vcpu\"
        program = [ {{ forever = [ {{ compute = \"exp(2ms)\" }}, {{ sleep = \"exp(1ms)\" }} ] }} ]
        [[vm]]\nname = \"a\"\nvcpus = 4\nworkload = \"nap\"
        [[vm]]\nname = \"b\"\nvcpus = 4\nworkload = \"hog\"
        [[vm]]\nname = \"c\"\nvcpus = 4\nworkload = \"nap\"\n"
    );
    let stacked = |placement: &str| {
        let (_, events) = traced(&text, &[&format!("host.placement={placement}")]);
        // The trace has the pCPU of a vCPU only while that runs.
        // If a sibling ran on its pCPU throughout a vCPU's wait, both were queued there together.
        siblings_in_turn(&events)
    };
    let (free, apart) = (stacked("load-balancing"), stacked("no-stacking"));
    assert!(free > 20, "{free}");
    assert_eq!(apart, 0);
}

/// Number of waits of a vCPU for a pCPU on which a sibling ran meanwhile.
fn siblings_in_turn(events: &[TraceEvent]) -> usize {
    let runs: Vec<(u32, u32, u64, u64)> = events
        .iter()
        .filter_map(|event| match *event {
            TraceEvent::PcpuRan { pcpu, vcpu, from, to } => Some((pcpu, vcpu, from, to)),
            _ => None,
        })
        .collect();
    let mut count = 0;
    for event in events {
        let TraceEvent::Vcpu { vcpu, state: VcpuState::Ready, from, to } = *event else {
            continue;
        };
        // A vCPU waits on the pCPU on which it next runs, as migrations go to idle pCPUs.
        let Some(&(pcpu, ..)) = runs.iter().find(|run| run.1 == vcpu && run.2 == to) else {
            continue;
        };
        count += usize::from(runs.iter().any(|&(p, other, begin, end)| {
            p == pcpu && other != vcpu && other / 4 == vcpu / 4 && begin <= from && end == to
        }));
    }
    count
}

/// A sleeper of one VM and a hog of another on one pCPU.
fn wake_onto_busy(scheduler: &str) -> crate::common::Latency {
    let text = format!(
        "duration = \"10s\"\n[machine]\npcpus = 1\n{FREE}
        [host]\nscheduler = \"{scheduler}\"\n{HOG}
        [[workload]]\nname = \"nap\"\n[[workload.role]]
        program = [ {{ forever = [ {{ sleep = \"20ms\" }}, {{ compute = \"100us\" }}, \"work\" ] }} ]
        [[vm]]\nname = \"nap\"\nvcpus = 1\nworkload = \"nap\"
        [[vm]]\nname = \"hog\"\nvcpus = 1\nworkload = \"hog\"\n"
    );
    crate::common::Latency::of_steal(&run(&text, &[]), 0)
}

#[test]
fn wakeup_preempts_under_cfs_and_credit() {
    // CFS places a sleeper half a latency before the queue, which exceeds the wake-up granularity, so it preempts.
    // Credit boosts a waking vCPU that has credits left, so it preempts.
    for scheduler in ["cfs", "credit"] {
        let latency = wake_onto_busy(scheduler);
        assert_eq!(latency.mean, 0.0, "{scheduler}");
    }
}

#[test]
fn eevdf_wakeup_waits_at_most_a_slice() {
    // Its deadline is a slice after its eligible time, like the hog's, and run to parity lets the hog finish its slice.
    let latency = wake_onto_busy("eevdf");
    assert!((1_000.0..1_000_000.0).contains(&latency.mean), "{latency:?}");
}

/// A phase of 10 pieces of work of a millisecond each, after a serial one of 2 ms.
fn shared_turns(vcpus: u32) -> String {
    format!(
        "duration = \"12s\"\n[machine]\npcpus = {vcpus}\nmode = \"native\"\n{FREE}
        [[workload]]\nname = \"shared\"
        [workload.objects]\nbegin = \"barrier\"\nend = \"barrier\"
        [[workload.role]]\nthreads = \"1 per vcpu\"\nprogram = [ {{ forever = [
            {{ repeat = \"1 / threads\", do = [ {{ compute = \"2ms\" }}, \"work\" ] }},
            {{ barrier = \"begin\" }},
            {{ repeat = \"10 / threads\", do = [ {{ compute = \"1ms\" }} ] }},
            {{ barrier = \"end\" }} ] }} ]
        [[vm]]\nname = \"a\"\nworkload = \"shared\"\n"
    )
}

#[test]
fn shared_iterations_do_equal_total_work() {
    // With 4 threads, the first ones do 3 of the 10 pieces; with 16, the last ones do none.
    for (vcpus, phase) in [(1, 12.0), (4, 5.0), (16, 3.0)] {
        let results = run(&shared_turns(vcpus), &[]);
        let phases = results.vms[0].work as f64;
        near(&vcpus.to_string(), phases, 12_000.0 / phase, 0.01);
    }
}

/// 4 threads at a barrier, of which the first arrives `late` after the others.
fn late_arrival(barrier: &str, late: &str) -> String {
    format!(
        "duration = \"100ms\"\n[machine]\npcpus = 4\nmode = \"native\"\n{FREE}
        [[workload]]\nname = \"late\"
        [workload.objects]\nmeet = {{ kind = \"barrier\", {barrier} }}
        [[workload.role]]\nthreads = \"1 per vcpu\"\nprogram = [ {{ forever = [
            {{ compute = \"100us\" }},
            {{ repeat = \"1 / threads\", do = [ {{ compute = \"{late}\" }} ] }},
            {{ barrier = \"meet\" }}, \"work\" ] }} ]
        [[vm]]\nname = \"a\"\nworkload = \"late\"\n"
    )
}

#[test]
fn barrier_waiters_block_after_spin_limit() {
    let spun = |late: &str| {
        let results = run(&late_arrival("wait = \"spin(50us)\"", late), &[]);
        let vm = &results.vms[0];
        let rounds = vm.work as f64 / 4.0;
        let spun: u64 = vm.vcpus.iter().map(|vcpu| vcpu.ran.spin_user.0).sum();
        let spun = spun as f64 / rounds / 3.0;
        (spun, vm.counts.voluntary_switches)
    };
    let (soon, blocked) = spun("30us");
    near("spinning for an early arrival", soon, 30_000.0, 0.01);
    assert_eq!(blocked, 0);
    let (late, blocked) = spun("80us");
    near("spinning for a late arrival", late, 50_000.0, 0.01);
    assert!(blocked > 1_000, "{blocked}");
}

#[test]
fn one_by_one_wakeups_start_in_sequence() {
    // Each thread runs 10 µs after its waker, and the others meanwhile compute for 100 µs.
    let rounds = |wake: &str| {
        let text = late_arrival(&format!("wait = \"block\", wake = \"{wake}\""), "80us");
        let results = run(&text, &["machine.costs.native_idle_wake=10000"]);
        results.vms[0].work as f64 / 4.0
    };
    near("all", rounds("all"), 100_000.0 / 180.0, 0.01);
    near("one by one", rounds("one-by-one"), 100_000.0 / 180.0, 0.01);
    let rounds = |wake: &str| {
        let text = late_arrival(&format!("wait = \"block\", wake = \"{wake}\""), "1us");
        let results = run(&text, &["machine.costs.native_idle_wake=10000"]);
        results.vms[0].work as f64 / 4.0
    };
    near("all, and none is late", rounds("all"), 100_000.0 / 110.0, 0.01);
    let third = rounds("one-by-one");
    near("one by one, and none is late", third, 100_000.0 / 130.0, 0.01);
}

/// 4 threads that repeatedly change their address space.
fn one_address_space() -> String {
    format!(
        "duration = \"100ms\"\n[machine]\npcpus = 4\nmode = \"native\"\n{FREE}
        [[workload]]\nname = \"maps\"
        [[workload.role]]\nthreads = \"1 per vcpu\"\nprogram = [ {{ forever = [
            {{ compute = \"1us\" }}, {{ unmap = \"10us\" }}, \"work\" ] }} ]
        [[vm]]\nname = \"a\"\nworkload = \"maps\"\n"
    )
}

#[test]
fn handed_over_lock_stalls_during_wakeup() {
    let each = |lock: &str| {
        let settings = ["machine.costs.native_idle_wake=20000", &format!("vm.a.mm_lock={lock}")];
        100_000.0 / run(&one_address_space(), &settings).vms[0].work as f64
    };
    // A spinner gets the lock at once, a woken owner 20 µs later.
    // A running thread takes a free lock, but its TLB flush then waits for the vCPU that wakes up for nothing.
    near("spinning", each("spinning"), 10.0, 0.02);
    near("handed over", each("handed-over"), 30.0, 0.02);
    let stealing = each("stealing");
    assert!((10.0..25.0).contains(&stealing), "{stealing}");
}

#[test]
fn first_flush_wakes_idle_vcpu_without_lazy_tlb() {
    // One thread changes the address space, the other computes and sleeps.
    // In old kernels, one flush per sleep asks the idle vCPU.
    // Leaving the idle state takes 50 µs here, and the flush waits for it.
    let text = format!(
        "duration = \"100ms\"\n[machine]\npcpus = 2\nmode = \"native\"\n{FREE}
        [[workload]]\nname = \"maps\"
        [[workload.role]]\nname = \"map\"\nprogram = [ {{ forever = [
            {{ compute = \"90us\" }}, {{ unmap = \"10us\" }}, \"work\" ] }} ]
        [[workload.role]]\nname = \"nap\"\nprogram = [ {{ forever = [
            {{ compute = \"100us\" }}, {{ sleep = \"900us\" }} ] }} ]
        [[vm]]\nname = \"a\"\nworkload = \"maps\"\n"
    );
    let flushes = |idle: &str| {
        let settings = ["machine.costs.native_idle_wake=50000", &format!("vm.a.idle_tlb={idle}")];
        let vm = run(&text, &settings).vms.remove(0);
        (vm.counts.shootdown_ipis, vm.shootdown_latency.max.0)
    };
    let (left_out, latency) = flushes("left-out");
    assert!(left_out <= 200 && latency < 1_000_000, "{left_out}, {latency}");
    let (asked, longest) = flushes("asked");
    assert!((80..=120).contains(&(asked - left_out)), "{asked}, {left_out}");
    assert!(longest >= 50_000, "{longest}");
}

/// One thread flushes, the others compute on every other vCPU; an exit to send costs 5 µs.
fn one_flushes(vcpus: u32, apic: &str) -> (f64, u64) {
    let text = format!(
        "duration = \"200ms\"\n[machine]\npcpus = {vcpus}\n{FREE}
        [[workload]]\nname = \"maps\"
        [[workload.role]]\nname = \"map\"\nprogram = [ {{ forever = [ {{ compute = \"90us\" }}, {{ unmap = \"10us\" }}, \"work\" ] }} ]
        [[workload.role]]\nname = \"hog\"\nthreads = {others}\nprogram = [ {{ forever = [ {{ compute = \"1ms\" }} ] }} ]
        [[vm]]\nname = \"a\"\nvcpus = {vcpus}\nworkload = \"maps\"\n",
        others = vcpus - 1,
    );
    let settings = [
        "machine.costs.ipi_send_exit=5000",
        "host.apicv=false",
        "machine.costs.interrupt_exit=3000",
        &format!("vm.a.apic={apic}"),
    ];
    let vm = run(&text, &settings).vms.remove(0);
    let asked = vm.counts.shootdown_ipis / vm.counts.shootdowns.max(1);
    let each = 200_000.0 / vm.work as f64;
    (each, asked)
}

#[test]
fn apic_mode_limits_vcpus_per_ipi_write() {
    // A round takes 100 µs without the flush, which needs one write for all, or one for each of 11 or 3 others.
    // An asked vCPU exits for 3 µs, of which only the last one's adds to the round.
    for (vcpus, apic, writes, exit) in [
        (12, "cluster", 1.0, 3.0),
        (12, "xapic", 11.0, 3.0),
        (12, "x2apic", 11.0, 3.0),
        (12, "posted", 11.0, 0.0),
        (4, "xapic", 1.0, 3.0),
        (4, "x2apic", 3.0, 3.0),
    ] {
        let (each, asked) = one_flushes(vcpus, apic);
        assert_eq!(asked, u64::from(vcpus) - 1, "{apic}");
        let wanted = 100.0 + 5.0 * writes + exit;
        near(&format!("{apic} with {vcpus}"), each, wanted, 0.01);
    }
}

#[test]
fn peer_is_any_thread_of_the_role() {
    // Only three of the eight queues have a consumer.
    let results = run(
        &format!(
            "duration = \"200ms\"\n[machine]\npcpus = 3\nmode = \"native\"\n{FREE}
            [[workload]]\nname = \"ring\"
            [workload.objects]\nitems = {{ kind = \"queue\", count = 8, capacity = 100 }}
            [[workload.role]]\nname = \"begin\"\nprogram = [ {{ repeat = 3, do = [ {{ put = \"items[0]\" }} ] }} ]
            [[workload.role]]\nname = \"pass\"\nthreads = \"1 per vcpu\"\nprogram = [ {{ forever = [
                {{ get = \"items[own]\" }}, {{ compute = \"exp(10us)\" }}, {{ put = \"items[peer]\" }}, \"work\" ] }} ]
            [[vm]]\nname = \"a\"\nworkload = \"ring\"\n"
        ),
        &[],
    );
    // Three items, three stations, random routing: a station is busy for 3 ÷ (3 + 3 − 1) of the time
    // (a closed network of exponential servers).
    let passed = results.vms[0].work as f64 / 200_000.0 * 10.0;
    near("stations busy", passed, 1.8, 0.03);
}

#[test]
fn semaphore_spinners_get_units_in_turn() {
    // One thread releases a unit every 100 µs, and two spinners each get half of the units.
    let results = run(
        &format!(
            "duration = \"100ms\"\n[machine]\npcpus = 3\nmode = \"native\"\n{FREE}
            [[workload]]\nname = \"flag\"
            [workload.objects]\nflag = {{ kind = \"semaphore\", units = 0, wait = \"spin\" }}
            [[workload.role]]\nname = \"giver\"\nprogram = [ {{ forever = [
                {{ compute = \"100us\" }}, {{ release = \"flag\" }} ] }} ]
            [[workload.role]]\nname = \"takers\"\nthreads = 2\nprogram = [ {{ forever = [
                {{ acquire = \"flag\" }}, {{ compute = \"10us\" }}, \"work\" ] }} ]
            [[vm]]\nname = \"a\"\nworkload = \"flag\"\n"
        ),
        &[],
    );
    let vm = &results.vms[0];
    near("units taken", vm.work as f64, 1_000.0, 0.01);
    assert_eq!(vm.counts.voluntary_switches, 0);
    let spun: u64 = vm.vcpus.iter().map(|vcpu| vcpu.ran.spin_user.0).sum();
    // Two takers spin, except for their computing time.
    near("spun", spun as f64, 2.0 * 100e6 - 1_000.0 * 10e3, 0.01);
}
