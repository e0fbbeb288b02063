//! Steps of synthetic events.

use super::*;

fn event(at: u64, cpu: u32, by: u32, kind: Kind) -> Event {
    Event { at: Nanos(at), cpu, by: Tid(by), in_interrupt: false, kind }
}

fn switch(at: u64, cpu: u32, prev: u32, sleeps: bool, next: u32) -> Event {
    let kind = Kind::Switch { prev: Tid(prev), sleeps, next: Tid(next) };
    event(at, cpu, prev, kind)
}

fn clock(at: u64, whom: u32) -> Event {
    Event { in_interrupt: true, ..event(at, 0, 0, Kind::Waking(Tid(whom))) }
}

fn waking(at: u64, by: u32, whom: u32) -> Event {
    event(at, 0, by, Kind::Waking(Tid(whom)))
}

fn story(threads: &[u32], end: u64, events: &[Event]) -> Story {
    let mut story = Story::default();
    let threads: Vec<_> = threads.iter().map(|tid| (Tid(*tid), Nanos(0))).collect();
    story.window(&threads, (Nanos(0), Nanos(end)), events, 1000);
    story
}

fn run(ns: u64) -> Step {
    Step::Run(Nanos(ns))
}

/// Returns true if each row has as many waits as wake-ups.
fn is_balanced(story: &Story) -> bool {
    (0..story.rows.len()).all(|row| {
        let waits = story.rows[row].steps.iter();
        let waits = waits.filter(|step| **step == Step::Wait).count();
        let all = story.rows.iter().flat_map(|other| &other.steps);
        waits == all.filter(|step| **step == Step::Wake(row)).count()
    })
}

#[test]
fn ping_pong_alternates_waits_and_wakes() {
    let mut events = vec![switch(0, 0, 0, false, 1)];
    for round in 0..10u64 {
        let at = round * 100;
        events.push(waking(at + 10, 1, 2));
        events.push(switch(at + 15, 1, 0, false, 2));
        events.push(switch(at + 20, 0, 1, true, 0));
        events.push(waking(at + 40, 2, 1));
        events.push(switch(at + 45, 1, 2, true, 0));
        events.push(switch(at + 50, 0, 0, false, 1));
    }
    let story = story(&[1, 2], 1000, &events);
    assert!(is_balanced(&story));
    assert_eq!(
        story.rows[0].steps[..6],
        [run(10), Step::Wake(1), run(10), Step::Wait, run(60), Step::Wake(1)]
    );
    assert_eq!(story.rows[1].steps[..5], [Step::Wait, run(25), Step::Wake(0), run(5), Step::Wait]);
    assert_eq!(story.rows[1].bursts, [Nanos(30); 10]);
    let edges: Vec<_> =
        story.wake_edges().iter().map(|edge| (edge.from, edge.to, edge.count)).collect();
    assert_eq!(edges, [(0, 1, 10), (1, 0, 10)]);
    // Both ran on idle CPUs: after 5 and after 10 ns.
    assert_eq!(story.idle_wakes.len(), 20);
    assert!(story.idle_wakes.contains(&Nanos(5)) && story.idle_wakes.contains(&Nanos(10)));
}

#[test]
fn waiting_for_cpu_is_no_step() {
    // A foreign thread preempts it from 10 to 90.
    let events = [
        switch(0, 0, 0, false, 1),
        switch(10, 0, 1, false, 9),
        switch(90, 0, 9, false, 1),
        switch(100, 0, 1, true, 0),
        clock(150, 1),
        switch(170, 0, 9, false, 1),
    ];
    let story = story(&[1], 200, &events);
    assert_eq!(story.rows[0].steps, [run(20), Step::Sleep(Nanos(50)), run(30)]);
    assert_eq!(story.idle_wakes, []);
}

#[test]
fn wake_before_sleep_counts_as_wait() {
    let events = [
        switch(0, 0, 0, false, 1),
        switch(0, 1, 0, false, 2),
        waking(50, 2, 1),
        switch(80, 0, 1, false, 9),
    ];
    let story = story(&[1, 2], 100, &events);
    assert!(is_balanced(&story));
    assert_eq!(story.rows[0].steps, [run(50), Step::Wait, run(30)]);
    assert_eq!(story.rows[1].steps, [run(50), Step::Wake(0), run(50)]);
}

#[test]
fn children_reuse_rows_of_exited_threads() {
    let mut events = vec![switch(0, 0, 0, false, 1)];
    for child in 0..5u32 {
        let at = u64::from(child) * 100;
        let tid = 10 + child;
        events.push(event(at + 10, 0, 1, Kind::Fork(Tid(tid))));
        events.push(switch(at + 20, 0, 1, true, tid));
        events.push(event(at + 70, 0, tid, Kind::Exit));
        events.push(waking(at + 80, tid, 1));
        events.push(switch(at + 90, 0, tid, true, 1));
    }
    let story = story(&[1], 500, &events);
    assert_eq!(story.rows.len(), 2, "one row for all children");
    assert_eq!(story.rows[1].tids.len(), 5);
    assert!(is_balanced(&story));
    assert_eq!(story.rows[1].steps[..5], [Step::Wait, run(60), Step::Wake(0), run(10), Step::Wait]);
    assert_eq!(story.rows[0].steps[..5], [run(10), Step::Wake(1), run(10), Step::Wait, run(20)]);
}

#[test]
fn foreign_wakes_are_sleeps_and_clock_is_detected() {
    let mut events = Vec::new();
    for period in 0..20u64 {
        let at = period * 1000;
        // It runs for 100 and 300 ns alternately, and wakes every 1,000 ns.
        let ran = if period % 2 == 0 { 100 } else { 300 };
        events.push(clock(at + 500, 1));
        events.push(switch(at + 500, 0, 0, false, 1));
        events.push(switch(at + 500 + ran, 0, 1, true, 0));
    }
    let by_clock = story(&[1], 20_000, &events);
    assert_eq!(by_clock.rows[0].period(), Some(Nanos(1000)));
    assert_eq!(by_clock.rows[0].steps[0], Step::Sleep(Nanos(500)));
    // The last sleep is cut at the window's end.
    assert_eq!(by_clock.rows[0].steps.last(), Some(&Step::Sleep(Nanos(200))));

    // A thread that always sleeps for 700 ns has no clock.
    let (mut events, mut at) = (Vec::new(), 0);
    for period in 0..20u64 {
        events.push(clock(at, 1));
        events.push(switch(at, 0, 0, false, 1));
        at += if period % 2 == 0 { 10 } else { 30 };
        events.push(switch(at, 0, 1, true, 0));
        at += 700;
    }
    assert_eq!(story(&[1], 20_000, &events).rows[0].period(), None);
    // A foreign waker gets no step.
    let events = [switch(10, 0, 1, true, 0), waking(60, 77, 1), switch(60, 0, 77, false, 1)];
    let stranger = story(&[1], 100, &events);
    assert_eq!(stranger.rows[0].steps, [run(10), Step::Sleep(Nanos(50)), run(40)]);
    assert_eq!(stranger.wake_edges(), []);
}

#[test]
fn yields_are_steps_and_shared_futexes_are_locks() {
    let wait = |at, by| event(at, 0, by, Kind::FutexWait(64));
    let wake = |at, by| event(at, 0, by, Kind::FutexWake(64));
    let events = [
        switch(0, 0, 0, false, 1),
        event(10, 0, 1, Kind::Yield),
        switch(12, 0, 1, false, 2),
        wait(20, 2),
        wake(25, 2),
        wait(30, 1),
        wake(35, 1),
        wait(36, 99),
    ];
    let story = story(&[1, 2], 40, &events);
    assert_eq!(story.rows[0].steps, [run(10), Step::Yield, run(2)]);
    let like = story.lock_like();
    assert_eq!((like.len(), like[0].threads, like[0].waits, like[0].wakes), (1, 2, 2, 2));
}

#[test]
fn windows_append_and_stop_at_maximum() {
    let events: Vec<Event> = (0..100)
        .flat_map(|n| {
            [
                switch(n * 10, 0, 0, false, 1),
                switch(n * 10 + 5, 0, 1, true, 0),
                clock(n * 10 + 8, 1),
            ]
        })
        .collect();
    let mut story = Story::default();
    for _ in 0..2 {
        story.window(&[(Tid(1), Nanos(0))], (Nanos(0), Nanos(1000)), &events, 20);
    }
    assert!((40..60).contains(&story.steps()), "{}", story.steps());
    assert!(story.traced < Nanos(400), "{:?}", story.traced);
    assert_eq!(story.rows.len(), 1);
}

#[test]
fn silent_threads_count_their_run_time() {
    let mut story = Story::default();
    let ran = [(Tid(1), Nanos(990)), (Tid(2), Nanos(0)), (Tid(3), Nanos(500))];
    story.window(&ran, (Nanos(0), Nanos(1000)), &[], 10);
    let steps: Vec<_> = story.rows.iter().map(|row| row.steps.clone()).collect();
    assert_eq!(steps, [vec![run(990)], vec![], vec![run(500)]]);
}

#[test]
fn notifying_idle_cpu_is_not_in_burst() {
    let woken = |at, by, whom, cpu| event(at, 0, by, Kind::Woken(Tid(whom), cpu));
    let events = [
        switch(0, 0, 0, false, 1),
        switch(100, 1, 2, true, 0),
        waking(1_000, 1, 2),
        woken(6_700, 1, 2, 1),
        switch(7_000, 1, 0, false, 2),
        switch(8_000, 1, 2, true, 0),
        // Its own CPU needs no notification.
        waking(9_000, 1, 2),
        woken(9_900, 1, 2, 0),
        switch(10_000, 0, 1, true, 2),
    ];
    let story = story(&[1, 2], 10_000, &events);
    assert_eq!(story.idle_sends, [Nanos(5_000)]);
    let ran: u64 = story.rows[0]
        .steps
        .iter()
        .map(|step| if let Step::Run(time) = step { time.0 } else { 0 })
        .sum();
    assert_eq!(ran, 5_000, "{:?}", story.rows[0].steps);
}
