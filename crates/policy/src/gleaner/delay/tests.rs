//! Worked cases of delayed scheduling.

use super::super::{ThreadPeriod, VcpuPeriod};
use super::*;

const PERIOD: Nanos = Nanos::from_millis(100);

/// A period: busy fraction of the vCPU, its idle periods, calls, wake-ups, and the wait per wake-up.
#[derive(Clone, Copy)]
struct Seen {
    busy: f64,
    idle_periods: u64,
    calls: u64,
    wakes: u64,
    wait_us: u64,
}

const TIMERS: Seen = Seen { busy: 0.2, idle_periods: 180, calls: 0, wakes: 200, wait_us: 5 };

fn observed(seen: Seen) -> Observation {
    let busy = Nanos((PERIOD.0 as f64 * seen.busy) as u64);
    Observation {
        period: PERIOD,
        vcpus: vec![VcpuPeriod {
            work: busy,
            idle: PERIOD - busy,
            idle_periods: seen.idle_periods,
            stolen: Nanos::ZERO,
        }],
        calls: seen.calls,
        wakes: seen.wakes,
        waiting: Nanos(seen.wakes * seen.wait_us * 1_000),
        ..Observation::default()
    }
}

/// Decides until there is a verdict, on observations that depend on the means that are on.
fn until_decided(delay: &mut Delay, react: impl Fn(Held) -> Seen) -> Because {
    for _ in 0..1_000 {
        let because = delay.decide(&observed(react(delay.held())));
        if matches!(
            because,
            Because::Kept { .. } | Because::Lost { .. } | Because::Late { .. } | Because::Changed
        ) {
            return because;
        }
    }
    panic!("nothing was decided in 1000 periods: {delay:?}");
}

/// Observations with slack, and without.
fn slack(on: Seen, off: Seen) -> impl Fn(Held) -> Seen + Copy {
    move |held| if held.slack > Nanos::ZERO { on } else { off }
}

/// The first verdict on a trial.
fn verdict(delay: &mut Delay, react: impl Fn(Held) -> Observation) -> Because {
    loop {
        let because = delay.decide(&react(delay.held()));
        if matches!(because, Because::Kept { .. } | Because::Lost { .. }) {
            return because;
        }
    }
}

#[test]
fn useful_slack_is_kept_useless_batch_rejected() {
    let mut delay = Delay::new(DelayConfig::default());
    let react = slack(Seen { busy: 0.18, idle_periods: 100, wait_us: 20, ..TIMERS }, TIMERS);
    let kept = until_decided(&mut delay, react);
    assert!(matches!(kept, Because::Kept { means: Means::Slack, .. }), "{kept}");
    let batch = until_decided(&mut delay, react);
    assert!(matches!(batch, Because::Lost { means: Means::Batch, .. }), "{batch}");
    let held = Held { slack: Nanos(500_000), batch: false };
    assert_eq!(delay.held(), held);
    for _ in 0..50 {
        assert_eq!(delay.decide(&observed(react(held))), Because::Settled);
    }
}

#[test]
fn harmful_means_is_reverted_and_rest_doubles() {
    let mut delay = Delay::new(DelayConfig::default());
    // Sleeps after each piece of work: fewer idle periods, and fewer pieces.
    let react = slack(Seen { busy: 0.12, idle_periods: 100, wakes: 120, ..TIMERS }, TIMERS);
    let mut rests = Vec::new();
    for _ in 0..2 {
        let lost = until_decided(&mut delay, react);
        assert!(matches!(lost, Because::Lost { means: Means::Slack, .. }), "{lost}");
        until_decided(&mut delay, react);
        assert_eq!(delay.held(), Held::default());
        let mut rest = 0;
        while delay.decide(&observed(TIMERS)) == Because::Resting {
            rest += 1;
        }
        rests.push(rest);
    }
    assert_eq!(rests, [101, 201]);
}

#[test]
fn large_loss_ends_trial_early() {
    // Sleeps for 50 us after each piece of work, which takes 500 us more with slack.
    let on_trial = |of_before: f64| {
        let mut delay = Delay::new(DelayConfig::default());
        let react = slack(Seen { wakes: (200.0 * of_before) as u64, ..TIMERS }, TIMERS);
        let mut periods = 0;
        for _ in 0..100 {
            let because = delay.decide(&observed(react(delay.held())));
            periods += u32::from(delay.held().slack > Nanos::ZERO);
            if matches!(because, Because::Lost { .. }) {
                break;
            }
        }
        periods
    };
    // Otherwise three blocks, half of which have the means.
    assert_eq!([0.24, 0.7, 0.9].map(on_trial), [1, 2, 12]);
}

#[test]
fn program_start_is_no_effect() {
    // Threads are still being started: each period does more than the one before, and slack costs 3 % of the work.
    let mut delay = Delay::new(DelayConfig::default());
    let mut started = 0;
    let mut because = Because::Off;
    while !matches!(because, Because::Lost { .. } | Because::Kept { .. }) {
        started = (started + 1).min(20);
        let on = Seen { idle_periods: 100, wakes: 970, ..TIMERS };
        let seen = slack(on, Seen { wakes: 1000, ..TIMERS })(delay.held());
        let part = |count: u64| count * started / 20;
        because = delay.decide(&observed(Seen {
            idle_periods: seen.idle_periods.min(part(seen.idle_periods) + 40),
            wakes: part(seen.wakes),
            ..seen
        }));
    }
    let Because::Lost { effect, .. } = because else {
        panic!("{because}");
    };
    assert!((effect.progress - 0.97).abs() < 0.01, "{effect}");
}

#[test]
fn changing_verdict_needs_more_blocks() {
    // Idle periods in the blocks with slack, of 180 without. Returns the verdict, the number of blocks, and the ratio.
    let of = |blocks: [u64; 6]| {
        let mut delay = Delay::new(DelayConfig::default());
        let mut periods: usize = 0;
        loop {
            // Two periods before the trial.
            let block = periods.saturating_sub(2) / 8;
            periods += 1;
            let is_on = delay.held().slack > Nanos::ZERO;
            let because = delay.decide(&observed(Seen {
                idle_periods: if is_on { blocks[block] } else { 180 },
                ..TIMERS
            }));
            if let Because::Kept { effect, .. } | Because::Lost { effect, .. } = because {
                let is_kept = matches!(because, Because::Kept { .. });
                return (is_kept, (periods - 2) / 8, effect.transitions);
            }
        }
    };
    let (is_kept, blocks, transitions) = of([180, 120, 120, 120, 120, 120]);
    // 150 of 180 after two, 140 after three.
    assert_eq!((is_kept, blocks), (true, 3));
    assert!((transitions - 140.0 / 180.0).abs() < 1e-9, "{transitions}");
    // 150 of 180 after two, 165 after three, 160.5 after four, 163.8 after five, 160.5 after six.
    let (is_kept, blocks, transitions) = of([150, 150, 195, 147, 177, 144]);
    assert_eq!((is_kept, blocks), (true, 6));
    assert!((transitions - 160.5 / 180.0).abs() < 1e-9, "{transitions}");
}

/// Twelve clients that wake 20 times a period each, and a server that wakes for each of their requests.
fn served(of_clients: f64, of_server: [f64; 2]) -> impl Fn(Held) -> Observation {
    move |held: Held| {
        let is_on = held.slack > Nanos::ZERO;
        let part = |part: f64| if is_on { part } else { 1.0 };
        let thread = |id: u64, wakes: f64, ran: f64| ThreadPeriod {
            id,
            wakes: wakes as u64,
            turns: wakes as u64,
            ran: Nanos(ran as u64),
            waited: Nanos::ZERO,
        };
        let client = |id| thread(id, 20.0 * part(of_clients), 1e5 * part(of_clients));
        let server = thread(99, 240.0 * part(of_server[0]), 8e6 * part(of_server[1]));
        Observation {
            threads: (1..=12).map(client).chain([server]).collect(),
            ..observed(Seen { idle_periods: if is_on { 120 } else { 180 }, ..TIMERS })
        }
    }
}

#[test]
fn batching_server_keeps_progress() {
    let of = |react: &dyn Fn(Held) -> Observation| {
        verdict(&mut Delay::new(DelayConfig::default()), react)
    };
    // 240 wake-ups of clients and 240 or 160 of the server, which takes nine tenths of its CPU
    // time for the same requests.
    let same = of(&served(1.0, [2.0 / 3.0, 0.9]));
    assert!(matches!(same, Because::Kept { effect, .. } if effect.progress == 1.0), "{same}");
    // Clients send 15 % fewer requests.
    let less = of(&served(0.85, [2.0 / 3.0, 0.9]));
    assert!(matches!(less, Because::Lost { effect, .. } if effect.progress == 0.85), "{less}");
    // The server is woken less often because it has less to do.
    let idle = of(&served(1.0, [0.5, 0.55]));
    assert!(matches!(idle, Because::Lost { effect, .. } if effect.progress == 0.75), "{idle}");
}

#[test]
fn preemption_by_server_counts_as_progress() {
    let of = |server: [f64; 2], turns: f64| {
        verdict(&mut Delay::new(DelayConfig::default()), |held| {
            let is_on = held.slack > Nanos::ZERO;
            let mut seen = served(0.91, server)(held);
            for thread in &mut seen.threads {
                thread.turns = (240.0 * if is_on { turns } else { 1.0 }) as u64;
            }
            seen
        })
    };
    let serves_more_at_once = [2.0 / 3.0, 0.9];
    assert!(matches!(of(serves_more_at_once, 1.0), Because::Kept { .. }));
    assert!(matches!(of(serves_more_at_once, 0.95), Because::Lost { .. }));
    // Without such a server turns are preemptions, and wake-ups show that less is done.
    let less = of([1.0, 1.0], 1.0);
    assert!(
        matches!(less, Because::Lost { effect, .. } if (effect.progress - 0.9).abs() < 0.02),
        "{less}"
    );
}

#[test]
fn foreign_messages_do_not_hide_loss() {
    // The workload sleeps for a time after each piece of work, next to another server on the same vCPU.
    let of = |wakes: f64, ran: f64| {
        verdict(&mut Delay::new(DelayConfig::default()), |held| Observation {
            messages: 300,
            ..served(wakes, [wakes, ran])(held)
        })
    };
    let less = of(0.85, 0.86);
    assert!(
        matches!(less, Because::Lost { effect, .. } if (effect.progress - 0.85).abs() < 0.01),
        "{less}"
    );
    // Its own messages: pieces of work came together, and took most of their former CPU time.
    let same = of(0.7, 0.9);
    assert!(matches!(same, Because::Kept { effect, .. } if effect.progress == 1.0), "{same}");
}

/// Ten threads with 20 wake-ups a period that wait `wait_us` each time, and one with a single
/// wake-up that waits and runs this long.
fn with_rare_thread(wait_us: u64, one_waits_us: u64, one_runs_us: u64, held: Held) -> Observation {
    let thread = |id: u64, wakes: u64, waited_us: u64, ran_us: u64| ThreadPeriod {
        id,
        wakes,
        turns: wakes,
        ran: Nanos(ran_us * 1_000),
        waited: Nanos(waited_us * 1_000),
    };
    let many = (1..=10).map(|id| thread(id, 20, 20 * wait_us, 1_000));
    let one = thread(11, 1, one_waits_us, one_runs_us);
    let threads: Vec<ThreadPeriod> = many.chain([one]).collect();
    let idle_periods = match (held.slack > Nanos::ZERO, held.batch) {
        (false, _) => 180,
        (true, false) => 120,
        (true, true) => 90,
    };
    Observation {
        wakes: threads.iter().map(|thread| thread.wakes).sum(),
        waiting: threads.iter().map(|thread| thread.waited).sum(),
        threads,
        ..observed(Seen { idle_periods, ..TIMERS })
    }
}

fn verdicts(react: impl Fn(Held) -> Observation) -> [Because; 2] {
    let mut delay = Delay::new(DelayConfig::default());
    [(); 2].map(|()| verdict(&mut delay, &react))
}

#[test]
fn rare_long_waits_are_not_hidden() {
    // With SCHED_BATCH one wake-up in forty waits for half of 2.5 ms: 31 us on average, and 1.5
    // ms or more in one of a hundred.
    let [slack, batch] =
        verdicts(|held| with_rare_thread(if held.batch { 31 } else { 5 }, 0, 2_500, held));
    assert!(matches!(slack, Because::Kept { .. }), "{slack}");
    assert!(matches!(batch, Because::Lost { effect, .. } if effect.latency > 1.9e6), "{batch}");
    // In turns of 100 us no thread waits for long.
    let [_, short] = verdicts(|held| with_rare_thread(5, 0, 100, held));
    assert!(matches!(short, Because::Kept { .. }), "{short}");
}

#[test]
fn longest_waiting_thread_counts() {
    let [late, _] = verdicts(|held| {
        with_rare_thread(5, if held.slack > Nanos::ZERO { 2_500 } else { 5 }, 100, held)
    });
    assert!(matches!(late, Because::Lost { effect, .. } if effect.latency > 1e6), "{late}");
    // A kept means is watched, too; a single late period is tolerated.
    let mut delay = Delay::new(DelayConfig::default());
    let mut kept = 0;
    while kept < 2 {
        let because = delay.decide(&with_rare_thread(5, 5, 100, delay.held()));
        kept += u32::from(matches!(because, Because::Kept { .. }));
    }
    (0..20).for_each(|_| {
        let _ = delay.decide(&with_rare_thread(5, 5, 100, delay.held()));
    });
    let once = delay.decide(&with_rare_thread(5, 9_000, 100, delay.held()));
    assert_eq!(once, Because::Settled);
    let late = (0..20)
        .map(|_| delay.decide(&with_rare_thread(5, 2_500, 100, delay.held())))
        .find(|because| *because != Because::Settled);
    assert!(matches!(late, Some(Because::Late { .. })), "{late:?}");
    assert_eq!(delay.held(), Held::default());
}

#[test]
fn refused_means_is_not_judged() {
    let mut delay = Delay::new(DelayConfig::default());
    while !delay.held().is_any() {
        delay.decide(&observed(TIMERS));
    }
    assert_eq!(delay.refused(), Because::Refused);
    assert_eq!(delay.held(), Held::default());
    assert!(!delay.is_trying());
    let next = delay.decide(&observed(TIMERS));
    assert_eq!(next, Because::Resting);
}

#[test]
fn trial_ends_when_vcpu_idles_seldom() {
    let mut delay = Delay::new(DelayConfig::default());
    for _ in 0..5 {
        delay.decide(&observed(TIMERS));
    }
    assert!(delay.is_trying());
    let calm = Seen { idle_periods: 10, ..TIMERS };
    // The rest of the first block, half of which was still idle often, and the second.
    let until = (1..=13).find(|_| matches!(delay.decide(&observed(calm)), Because::Seldom { .. }));
    assert_eq!(until, Some(13));
    assert_eq!(delay.held(), Held::default());
    assert!(!delay.is_trying());
}

#[test]
fn slack_gain_needs_fewer_idle_periods() {
    let of = |idle_periods: u64, busy: f64| {
        let mut delay = Delay::new(DelayConfig::default());
        until_decided(&mut delay, slack(Seen { busy, idle_periods, ..TIMERS }, TIMERS))
    };
    // Compared with 180 idle periods and 20 % busy.
    assert!(matches!(of(180, 0.19), Because::Lost { .. }), "chance");
    assert!(matches!(of(168, 0.19), Because::Kept { .. }));
    assert!(matches!(of(90, 0.202), Because::Kept { .. }), "within the tolerance");
    assert!(matches!(of(90, 0.21), Because::Lost { .. }));
}

#[test]
fn calls_show_progress_despite_fewer_wakeups() {
    let of = |calls: u64| {
        let mut delay = Delay::new(DelayConfig::default());
        let on = Seen { busy: 0.17, idle_periods: 90, wakes: 90, calls, ..TIMERS };
        until_decided(&mut delay, slack(on, Seen { calls, ..TIMERS }))
    };
    assert!(matches!(of(200), Because::Kept { .. }));
    assert!(matches!(of(0), Because::Lost { .. }), "nothing tells that it does");
}

#[test]
fn latency_beyond_bound_rejects_and_reverts() {
    let slow = Seen { busy: 0.18, idle_periods: 100, wait_us: 300, ..TIMERS };
    let good = Seen { wait_us: 20, ..slow };
    let react = |with: Seen| slack(with, TIMERS);
    let mut delay = Delay::new(DelayConfig::default());
    let lost = until_decided(&mut delay, react(slow));
    // 500 us of slack and twice 300.
    assert!(
        matches!(lost, Because::Lost { effect, .. } if effect.latency == 1_100_000.0),
        "{lost}"
    );
    let mut delay = Delay::new(DelayConfig::default());
    until_decided(&mut delay, react(good));
    until_decided(&mut delay, react(good));
    let late = until_decided(&mut delay, react(slow));
    assert!(matches!(late, Because::Late { .. }), "{late}");
    assert_eq!(delay.held(), Held::default());
}

#[test]
fn kept_means_is_watched_with_longer_periods() {
    let react = |wait_us| slack(Seen { busy: 0.18, idle_periods: 100, wait_us, ..TIMERS }, TIMERS);
    let mut delay = Delay::new(DelayConfig::default());
    until_decided(&mut delay, react(20));
    until_decided(&mut delay, react(20));
    let long = |delay: &Delay| {
        let mut seen = observed(react(300)(delay.held()));
        (0..3).for_each(|_| seen.merge(&observed(react(300)(delay.held()))));
        seen
    };
    // A block is eight periods of 100 ms: two of 400 ms.
    let first = delay.decide(&long(&delay));
    assert_eq!(first, Because::Settled);
    let second = delay.decide(&long(&delay));
    assert!(matches!(second, Because::Late { .. }), "{second}");
}

#[test]
fn changed_workload_starts_over() {
    let mut delay = Delay::new(DelayConfig::default());
    let react = slack(Seen { busy: 0.18, idle_periods: 100, ..TIMERS }, TIMERS);
    until_decided(&mut delay, react);
    until_decided(&mut delay, react);
    for _ in 0..8 {
        delay.decide(&observed(react(delay.held())));
    }
    let other = Seen { wakes: 20, idle_periods: 20, ..TIMERS };
    assert_eq!(until_decided(&mut delay, |_| other), Because::Changed);
    assert_eq!(delay.held(), Held::default());
}

#[test]
fn seldom_idle_or_zero_bound_changes_nothing() {
    let mut delay = Delay::new(DelayConfig::default());
    for seen in [Seen { idle_periods: 10, ..TIMERS }, Seen { busy: 1.0, ..TIMERS }] {
        for _ in 0..50 {
            let because = delay.decide(&observed(seen));
            assert!(matches!(because, Because::Seldom { .. }), "{because}");
        }
    }
    let mut off = Delay::new(DelayConfig { bound: Nanos::ZERO, ..DelayConfig::default() });
    for _ in 0..50 {
        assert_eq!(off.decide(&observed(TIMERS)), Because::Off);
    }
    assert_eq!(off.held(), Held::default());
}
