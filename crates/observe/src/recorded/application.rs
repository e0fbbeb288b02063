//! Converts a recorded program to the text of a scenario: a VM that runs it, alone or next to one that computes.
//!
//! Each thread recorded by `tandem guest record` ([`Profile`]) becomes a role with one thread. If its steps were traced, they repeat forever:
//! it runs, waits until another thread wakes it, and wakes others. A wake-up is a unit of a semaphore that only the woken thread waits for.
//! So a wake-up before the wait is not lost, threads keep their order, and no order of threads deadlocks. Without steps, a
//! thread runs and sleeps as on average, like a vCPU of a recorded host ([`Demand`]).
//!
//! The kernel's work for the program is part of its bursts, so costs are 0 here, except the costs of notifying and waking an idle CPU, if they
//! were measured.

use std::collections::BTreeMap;
use std::fmt::Write;

use tandem_model::Nanos;
use tandem_model::application::{Profile, Step, ThreadProfile};

use super::Names;
use super::pattern::{Demand, Regularity};
use super::text::{COSTS, in_a_line, program, quoted, time};

/// Properties that no record of a program contains.
const NOT_KNOWN: &str = "\
# Throughput of the VM is its `useful` time: a unit of work is a pass through all that was recorded. A record does not tell:
# - computing from spinning for something: both are bursts
# - locks that were free, and items that were there, when they were taken: on fewer CPUs more of them might be waited for, or fewer
# - how far a thread may be ahead of another that it need not wait for
# - what the program would do on more CPUs, if it asks how many there are
# - memory and caches: bursts are as long as they were next to the other load of that time
";

/// Number of steps per line.
const IN_A_LINE: usize = 6;

/// Minimum part of the time, in hundredths, that a permanent thread existed.
const ALL_THE_TIME: u64 = 90;

/// Waiting time relative to run time above which threads waited for other programs, if the program used less than [`MAX_USED`] of its CPUs.
const MUCH_WAITED: f64 = 0.2;

/// See [`MUCH_WAITED`].
const MAX_USED: f64 = 0.75;

/// Computing time of a thread without any time in its steps, which avoids an endless loop.
const MIN_COMPUTE: Nanos = Nanos(10_000);

/// The simulated environment of a recorded program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// vCPUs of its VM, and pCPUs of the host: vCPU v on pCPU v.
    pub vcpus: u32,
    /// Whether another VM of the same weight computes on the same pCPUs.
    pub has_hog: bool,
    /// The scheduler of host and guest: `eevdf` or `cfs`.
    pub scheduler: &'static str,
    /// The clock tick of both; `None`: the simulator's default.
    pub tick: Option<Nanos>,
    /// Simulated time, including warm-up.
    pub duration: Nanos,
    /// Warm-up time, which is not counted.
    pub warmup: Nanos,
}

impl Setting {
    /// Returns a setting without other load, with as many vCPUs as the program could use while it was recorded.
    pub fn recorded(profile: &Profile) -> Setting {
        Setting {
            vcpus: u32::try_from(profile.cpus).unwrap_or(u32::MAX).clamp(1, 64),
            has_hog: false,
            scheduler: "eevdf",
            tick: None,
            duration: Nanos::from_secs(6),
            warmup: Nanos::from_secs(1),
        }
    }
}

/// Returns the name of the program's VM in the scenario.
pub fn vm_name(profile: &Profile) -> String {
    let word = profile.program.split_whitespace().next().unwrap_or_default();
    let name = word.rsplit('/').next().unwrap_or_default();
    match name {
        "hog" => "program".to_owned(),
        name => Names::default().unique(name),
    }
}

/// Returns a warning if other programs occupied the CPUs during the recording, since the simulated program then gets more done.
pub fn waited_for_others(profile: &Profile) -> Option<String> {
    let waited: Nanos = profile.threads.iter().map(|thread| thread.waited).sum();
    let part = |time: Nanos, of: f64| time.as_secs_f64() / of.max(f64::MIN_POSITIVE);
    let for_its_time = part(waited, profile.ran.as_secs_f64());
    let used = part(profile.ran, profile.wall.as_secs_f64() * profile.cpus as f64);
    (for_its_time > MUCH_WAITED && used < MAX_USED).then(|| {
        format!(
            "Others had the CPUs while it was recorded: its threads waited {for_its_time:.1} times as long as they ran. Simulated alone it gets more done than it did; record it on a quiet machine"
        )
    })
}

/// Returns the scenario.
pub fn scenario(profile: &Profile, setting: &Setting) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let _ = write(&mut out, profile, setting);
    out
}

fn write(out: &mut String, profile: &Profile, setting: &Setting) -> std::fmt::Result {
    let program = in_a_line(&profile.program);
    let seconds = profile.wall.as_secs_f64();
    let cpus = profile.ran.as_secs_f64() / seconds.max(f64::MIN_POSITIVE);
    writeln!(
        out,
        "# A recorded program: {program}, {seconds:.1} s on {} CPUs, of which it used {cpus:.2}.",
        profile.cpus
    )?;
    if let Some(waited) = waited_for_others(profile) {
        writeln!(out, "# {waited}")?;
    }
    out.push_str(NOT_KNOWN);
    write_seen(out, profile)?;
    let short: String = program.chars().take(80).collect();
    writeln!(out, "\nabout = \"{}\"", quoted(&format!("recorded: {short}")))?;
    writeln!(out, "duration = \"{}\"", time(setting.duration))?;
    writeln!(out, "warmup = \"{}\"", time(setting.warmup))?;
    writeln!(out, "\n[machine]\npcpus = {}", setting.vcpus)?;
    writeln!(out, "\n[machine.costs] # in the bursts already")?;
    for cost in COSTS {
        match profile.idle_send {
            Some(send) if cost == "ipi_send_exit" => writeln!(
                out,
                "{cost} = {} # measured: waking a thread on an idle CPU keeps the waker so much longer",
                send.0
            )?,
            _ => writeln!(out, "{cost} = 0")?,
        }
    }
    if let Some(wake) = profile.idle_wake {
        writeln!(
            out,
            "idle_pcpu_wake = {} # measured: a thread that was woken on an idle CPU ran so much later",
            wake.0
        )?;
    }
    writeln!(out, "\n[host]\nscheduler = \"{}\"", setting.scheduler)?;
    if let Some(tick) = setting.tick {
        writeln!(out, "tick = \"{}\"", time(tick))?;
    }
    writeln!(out, "halt_poll = \"0ns\"")?;
    let name = vm_name(profile);
    write_vm(out, &name, setting)?;
    if setting.has_hog {
        write_vm(out, "hog", setting)?;
        out.push_str("\n[[workload]]\nname = \"hog\"\n[[workload.role]]\nname = \"hog\"\nthreads = \"1 per vcpu\"\n");
        out.push_str("program = [{ forever = [{ compute = \"1ms\" }, \"work\"] }]\n");
    }
    writeln!(out, "\n[[workload]]\nname = \"{name}\"\nunit = \"passes\"")?;
    if profile.threads.iter().any(|thread| !thread.steps.is_empty()) {
        write_steps(out, profile)
    } else {
        write_patterns(out, profile)
    }
}

fn write_vm(out: &mut String, name: &str, setting: &Setting) -> std::fmt::Result {
    out.push_str("\n# Each vCPU has a pCPU. With other numbers of vCPUs set machine.pcpus and pins too, such as pins = \"0-3\" for any of four.\n");
    let pins: Vec<String> = (0..setting.vcpus).map(|vcpu| format!("\"{vcpu}\"")).collect();
    writeln!(out, "[[vm]]\nname = \"{name}\"\nvcpus = {}", setting.vcpus)?;
    writeln!(out, "pins = [{}]\nworkload = \"{name}\"", pins.join(", "))?;
    writeln!(out, "scheduler = \"{}\"", setting.scheduler)?;
    match setting.tick {
        Some(tick) => writeln!(out, "tick = \"{}\"", time(tick)),
        None => Ok(()),
    }
}

/// Writes the recorded wake-ups and locks as comments.
fn write_seen(out: &mut String, profile: &Profile) -> std::fmt::Result {
    if profile.traced > Nanos::ZERO {
        writeln!(
            out,
            "# Traced for {}; bursts were {:.2} times as long then, and are shortened by that.",
            time(profile.traced),
            profile.tracing_cost
        )?;
    }
    let name = |at: usize| profile.threads.get(at).map_or("", |thread| &thread.name);
    let mut wakes = profile.wakes.clone();
    wakes.sort_by_key(|edge| std::cmp::Reverse(edge.count));
    for edge in wakes.iter().take(10) {
        writeln!(
            out,
            "# t{} ({}) woke t{} ({}) {} times, which had slept for {} on average",
            edge.from,
            in_a_line(name(edge.from)),
            edge.to,
            in_a_line(name(edge.to)),
            edge.count,
            time(Nanos(edge.slept.0 / edge.count.max(1)))
        )?;
    }
    for lock in &profile.lock_like {
        writeln!(
            out,
            "# like a lock: {} threads both wait and wake at a futex, {} and {} times",
            lock.threads, lock.waits, lock.wakes
        )?;
    }
    let missing = profile.missing.iter();
    missing
        .map(|missing| in_a_line(missing))
        .try_for_each(|missing| writeln!(out, "# Not recorded: {missing}"))
}

/// Formats the measurements of a thread for a comment.
fn seen(thread: &ThreadProfile) -> String {
    let wall = thread.wall.0.max(1) as f64;
    let part = |time: Nanos| time.0 as f64 / wall * 100.0;
    let mut text = format!(
        "{}: ran {:.1} %, waited {:.1} %, {:.1} sleeps a second",
        in_a_line(&thread.name),
        part(thread.ran),
        part(thread.waited),
        thread.sleeps as f64 / (wall / 1e9)
    );
    if thread.lives > 1 {
        let _ = write!(text, "; {} threads, one after the other", thread.lives);
    }
    let bursts = &thread.bursts;
    if bursts.count > 0 {
        let _ = write!(
            text,
            "; bursts {}, {} and {} (10, 50, 90 %)",
            time(bursts.p10),
            time(bursts.p50),
            time(bursts.p90)
        );
    }
    let asleep = thread.asleep_in.iter().max_by_key(|asleep| asleep.samples);
    if let Some(asleep) = asleep {
        let _ = write!(text, "; mostly asleep in {}", asleep.what);
    }
    text
}

/// Writes a role with its steps for each thread.
fn write_steps(out: &mut String, profile: &Profile) -> std::fmt::Result {
    let waits = |thread: &ThreadProfile| thread.steps.contains(&Step::Wait);
    if profile.threads.iter().any(waits) {
        out.push_str("\n[workload.objects]\n");
    }
    for (number, thread) in profile.threads.iter().enumerate() {
        if waits(thread) {
            writeln!(out, "wake{number} = {{ kind = \"semaphore\", units = 0 }}")?;
        }
    }
    for (number, thread) in profile.threads.iter().enumerate() {
        if thread.steps.is_empty() {
            continue;
        }
        writeln!(out, "\n[[workload.role]] # {}", seen(thread))?;
        writeln!(out, "name = \"t{number}\"\nprogram = [{{ forever = [")?;
        let steps = steps(thread, number);
        for line in steps.chunks(IN_A_LINE) {
            writeln!(out, "    {},", line.join(", "))?;
        }
        writeln!(out, "    \"work\",\n] }}]")?;
    }
    Ok(())
}

/// Returns the steps of a thread in scenario syntax.
fn steps(thread: &ThreadProfile, number: usize) -> Vec<String> {
    let (mut steps, mut run) = (Vec::new(), Nanos::ZERO);
    let computes = |run: Nanos| format!("{{ compute = \"{}\" }}", time(run));
    let mut has_time = false;
    for step in &thread.steps {
        let text = match step {
            Step::Run(time) => {
                run += *time;
                has_time = true;
                continue;
            }
            Step::Wait => format!("{{ acquire = \"wake{number}\" }}"),
            Step::Wake(other) => format!("{{ release = \"wake{other}\" }}"),
            Step::Sleep(time) => {
                let time = Nanos(time.0.max(1));
                match thread.period {
                    Some(period) => format!("{{ every = \"{}\" }}", self::time(period)),
                    None => format!("{{ sleep = \"{}\" }}", self::time(time)),
                }
            }
            Step::Yield => "\"yield\"".to_owned(),
        };
        if run > Nanos::ZERO {
            steps.push(computes(std::mem::take(&mut run)));
        }
        steps.push(text);
    }
    if run > Nanos::ZERO || !has_time {
        steps.push(computes(run.max(MIN_COMPUTE)));
    }
    steps
}

/// Writes a role for each permanent thread, and one for all others of the same name.
fn write_patterns(out: &mut String, profile: &Profile) -> std::fmt::Result {
    let wall = profile.wall;
    let stayed = |thread: &ThreadProfile| {
        thread.wall.0.saturating_mul(100) >= wall.0.saturating_mul(ALL_THE_TIME)
    };
    let mut others: BTreeMap<&str, ThreadProfile> = BTreeMap::new();
    let mut number = 0;
    for thread in &profile.threads {
        if stayed(thread) {
            write_pattern(out, number, 1, thread, demand(thread))?;
            number += 1;
            continue;
        }
        let all = others.entry(&thread.name).or_default();
        all.name.clone_from(&thread.name);
        all.lives += thread.lives;
        all.wall += thread.wall;
        all.ran += thread.ran;
        all.waited += thread.waited;
        all.sleeps += thread.sleeps;
    }
    for all in others.values() {
        // The minimum number of concurrent threads; they sleep while there was none.
        let threads = (all.ran + all.waited).0.div_ceil(wall.0.max(1)).max(1);
        let each = |time: Nanos| Nanos(time.0 / threads);
        let one = ThreadProfile {
            wall,
            ran: each(all.ran),
            waited: each(all.waited),
            sleeps: (all.sleeps + all.lives).div_ceil(threads),
            ..ThreadProfile::default()
        };
        write_pattern(out, number, threads, all, demand(&one))?;
        number += 1;
    }
    Ok(())
}

fn write_pattern(
    out: &mut String,
    number: usize,
    threads: u64,
    thread: &ThreadProfile,
    demand: Demand,
) -> std::fmt::Result {
    writeln!(out, "\n[[workload.role]] # {}", seen(thread))?;
    writeln!(out, "name = \"t{number}\"\nthreads = {threads}")?;
    writeln!(out, "program = {}", program(demand.pattern()))
}

/// Returns a thread's demand of its CPU.
fn demand(thread: &ThreadProfile) -> Demand {
    let mut regularity = Regularity::default();
    for part in &thread.by_time {
        regularity.add(Some(part.sleeps), part.wall);
    }
    Demand {
        wall: thread.wall,
        ran: thread.ran,
        slept: thread.slept(),
        waited: thread.waited,
        cycles: thread.sleeps.max(thread.wall.0 / 1_000_000_000).max(1),
        is_regular: regularity.is_regular(),
        is_throttled: false,
    }
}

#[cfg(test)]
mod tests {
    use tandem_model::application::Sleeps;
    use tandem_sim::World;
    use tandem_sim::scenario::load;

    use super::*;

    fn us(us: u64) -> Nanos {
        Nanos(us * 1000)
    }

    fn profile(threads: Vec<ThreadProfile>) -> Profile {
        Profile {
            program: "/usr/bin/some-program --with \"quotes\"\nand lines".to_owned(),
            cpus: 2,
            wall: Nanos::from_secs(1),
            ran: Nanos::from_secs(1),
            threads,
            ..Profile::default()
        }
    }

    fn thread(steps: &[Step]) -> ThreadProfile {
        ThreadProfile {
            name: "a] \"b".to_owned(),
            lives: 1,
            wall: Nanos::from_secs(1),
            steps: steps.to_vec(),
            ..ThreadProfile::default()
        }
    }

    /// Returns the program's progress per second, as CPU time.
    fn done(profile: &Profile, vcpus: u32, has_hog: bool) -> f64 {
        let setting = Setting {
            vcpus,
            has_hog,
            duration: Nanos::from_secs(2),
            warmup: Nanos::from_millis(200),
            ..Setting::recorded(profile)
        };
        let text = scenario(profile, &setting);
        let scenario =
            load::from_text("test", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let results = World::new(&scenario).run();
        results.throughput(&vm_name(profile)).unwrap()
    }

    fn near(one: f64, other: f64) -> bool {
        (one - other).abs() <= 0.03 * other
    }

    #[test]
    fn computing_pair_shares_cpus_with_a_hog() {
        let compute = thread(&[Step::Run(Nanos::from_millis(50))]);
        let pair = profile(vec![compute.clone(), compute]);
        let alone = done(&pair, 2, false);
        assert!(near(alone, 2.0), "{alone}");
        assert!(near(done(&pair, 1, false), 1.0));
        assert!(near(done(&pair, 2, true), 1.0));
        assert!(near(done(&pair, 1, true), 0.5));
    }

    #[test]
    fn ping_pong_pays_for_idle_cpu_wakeups() {
        let ping = thread(&[Step::Run(us(10)), Step::Wake(1), Step::Wait]);
        let pong = thread(&[Step::Wait, Step::Run(us(30)), Step::Wake(0)]);
        let mut pair = profile(vec![ping, pong]);
        let two = done(&pair, 2, false);
        assert!(near(two, 1.0), "{two}");
        assert!(near(done(&pair, 1, false), 1.0));
        // Each of the two threads finds its CPU idle: 40 us more for 20 us of work, on average.
        pair.idle_wake = Some(us(40));
        let slower = done(&pair, 2, false);
        assert!((0.3..0.4).contains(&slower), "{slower}");
        let one = done(&pair, 1, false);
        assert!(near(one, 1.0), "one CPU is never idle: {one}");
    }

    #[test]
    fn early_wakes_are_kept_without_deadlock() {
        // Each thread wakes the other before it waits, and one runs much longer.
        let one = thread(&[Step::Wake(1), Step::Run(us(5)), Step::Wait, Step::Yield]);
        let two = thread(&[Step::Wake(0), Step::Run(us(500)), Step::Wait]);
        let pair = profile(vec![one, two]);
        for vcpus in [1, 2] {
            assert!(done(&pair, vcpus, true) > 0.2);
        }
        // Waiting and waking alone is no loop without time.
        let pair = profile(vec![
            thread(&[Step::Wait, Step::Wake(1)]),
            thread(&[Step::Wake(0), Step::Wait]),
        ]);
        assert!(done(&pair, 2, false) > 0.0);
    }

    #[test]
    fn periodic_thread_keeps_its_period() {
        let mut timer =
            thread(&[Step::Sleep(Nanos::from_millis(8)), Step::Run(Nanos::from_millis(2))]);
        timer.period = Some(Nanos::from_millis(10));
        let timer = profile(vec![timer]);
        assert!(near(done(&timer, 1, false), 0.2));
        assert!(near(done(&timer, 1, true), 0.2));
    }

    #[test]
    fn threads_without_steps_follow_their_averages() {
        let second = Nanos::from_secs(1);
        let part = Sleeps { sleeps: 50, wall: Nanos::from_millis(500) };
        let stays = ThreadProfile {
            ran: Nanos::from_millis(250),
            sleeps: 100,
            by_time: vec![part; 10],
            wall: second,
            ..thread(&[])
        };
        let child = ThreadProfile {
            name: "child".to_owned(),
            lives: 1,
            wall: Nanos::from_millis(50),
            ran: Nanos::from_millis(50),
            ..ThreadProfile::default()
        };
        let mut threads = vec![stays];
        threads.extend(vec![child; 10]);
        let profile = profile(threads);
        let text = scenario(&profile, &Setting::recorded(&profile));
        assert_eq!(text.matches("[[workload.role]]").count(), 2, "{text}");
        assert!(text.contains("every = \"10ms\""), "{text}");
        let all = done(&profile, 2, false);
        assert!((0.7..0.8).contains(&all), "{all}");
    }

    #[test]
    fn vm_names_are_valid() {
        assert_eq!(vm_name(&profile(vec![])), "some-program");
        for (program, name) in [("", "vm"), ("hog -x", "program"), ("/a/b\u{e4}", "b-")] {
            let profile = Profile { program: program.to_owned(), ..profile(vec![]) };
            assert_eq!(vm_name(&profile), name);
        }
    }
}
