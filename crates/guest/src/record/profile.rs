//! Builds a [`Profile`] from counters of threads and their steps in traced windows.
//!
//! Tracing lengthens bursts, so they are divided by its cost: the mean run time between two sleeps within traced windows, relative to outside.
//! If anything was traced, the profile has the threads of the windows only; the run time of the others counts as unseen.
//!
//! This module does no I/O.

use std::collections::HashMap;

use tandem_linux::thread::Tid;
use tandem_model::Nanos;
use tandem_model::application::{Profile, SCHEMA, Spread, Step, ThreadProfile};

use super::story::Story;
use super::tree::Did;

/// Minimum number of sleeps, both within and outside of windows, to estimate the cost of tracing.
const MIN_SLEEPS: u64 = 500;

/// Upper bound of the cost of tracing.
const MAX_COST: f64 = 3.0;

/// Observations of a recording.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Command, or name of the process.
    pub program: String,
    /// Number of CPUs that it could use.
    pub cpus: usize,
    /// Length of the recording.
    pub wall: Nanos,
    /// All observed threads.
    pub threads: Vec<(Tid, ThreadProfile)>,
    /// Activity of all threads within traced windows.
    pub within: Did,
    /// Activity of all threads outside of traced windows.
    pub outside: Did,
    /// CPU time of the command and its reaped children, from wait4(2).
    pub used: Option<Nanos>,
    /// Descriptions of missing information.
    pub missing: Vec<String>,
}

/// Builds the profile.
pub fn profile(seen: Seen, story: Option<Story>) -> Profile {
    let sum = |threads: &[(Tid, ThreadProfile)]| -> Nanos {
        threads.iter().map(|(_, thread)| thread.ran).sum()
    };
    let of_seen = sum(&seen.threads);
    let ran = seen.used.unwrap_or(of_seen).max(of_seen);
    let mut profile = Profile {
        schema: SCHEMA,
        program: seen.program.clone(),
        cpus: seen.cpus,
        wall: seen.wall,
        ran,
        unseen: ran.saturating_sub(of_seen),
        tracing_cost: 1.0,
        missing: seen.missing.clone(),
        ..Profile::default()
    };
    match story.filter(|story| story.steps() > 0) {
        Some(story) => add_story(&mut profile, &seen, story),
        None => {
            let ran = seen.threads.into_iter().map(|(_, thread)| thread);
            profile.threads = ran.filter(|thread| thread.ran > Nanos::ZERO).collect();
        }
    }
    profile
}

fn add_story(profile: &mut Profile, seen: &Seen, story: Story) {
    let cost = cost(seen.within, seen.outside);
    profile.tracing_cost = cost;
    profile.traced = story.traced;
    profile.wakes = story.wake_edges();
    profile.lock_like = story.lock_like();
    profile.idle_wake = median(&story.idle_wakes);
    profile.idle_send = median(&story.idle_sends);
    let by_tid: HashMap<Tid, &ThreadProfile> =
        seen.threads.iter().map(|(tid, thread)| (*tid, thread)).collect();
    let mut told = Nanos::ZERO;
    for row in &story.rows {
        let mut thread = ThreadProfile::default();
        for tid in &row.tids {
            thread.lives += 1;
            if let Some(one) = by_tid.get(tid) {
                add(&mut thread, one);
            }
        }
        told += thread.ran;
        let shorter = |time: Nanos| Nanos(((time.0 as f64 / cost) as u64).max(1));
        let period = row.period();
        thread.period = period;
        thread.bursts = Spread::of(row.bursts.iter().copied().map(shorter).collect());
        thread.steps = row.steps.clone();
        for step in &mut thread.steps {
            if let Step::Run(time) = step {
                *time = shorter(*time);
            }
        }
        profile.threads.push(thread);
    }
    profile.unseen = profile.ran.saturating_sub(told);
}

fn median(times: &[Nanos]) -> Option<Nanos> {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

/// Returns the length of bursts within traced windows relative to outside.
fn cost(within: Did, outside: Did) -> f64 {
    if within.sleeps < MIN_SLEEPS || outside.sleeps < MIN_SLEEPS {
        return 1.0;
    }
    let burst = |did: Did| did.ran.0 as f64 / did.sleeps as f64;
    (burst(within) / burst(outside)).clamp(1.0, MAX_COST)
}

/// Adds a thread to a row that stands for several.
fn add(all: &mut ThreadProfile, one: &ThreadProfile) {
    if all.name.is_empty() {
        all.name.clone_from(&one.name);
    }
    all.wall += one.wall;
    all.ran += one.ran;
    all.waited += one.waited;
    all.sleeps += one.sleeps;
    all.preempted += one.preempted;
    all.by_time.extend(&one.by_time);
    for asleep in &one.asleep_in {
        match all.asleep_in.iter_mut().find(|other| other.what == asleep.what) {
            Some(other) => other.samples += asleep.samples,
            None => all.asleep_in.push(asleep.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::event::{Event, Kind};

    fn thread(tid: u32, ran: u64) -> (Tid, ThreadProfile) {
        let thread = ThreadProfile {
            name: format!("t{tid}"),
            lives: 1,
            wall: Nanos(1000),
            ran: Nanos(ran),
            ..ThreadProfile::default()
        };
        (Tid(tid), thread)
    }

    fn did(ran: u64, sleeps: u64) -> Did {
        Did { ran: Nanos(ran), sleeps }
    }

    #[test]
    fn untraced_profile_has_threads_that_ran() {
        let seen = Seen {
            threads: vec![thread(1, 500), thread(2, 0)],
            used: Some(Nanos(700)),
            ..Seen::default()
        };
        let profile = profile(seen, None);
        assert_eq!(profile.threads.len(), 1);
        assert_eq!((profile.ran, profile.unseen), (Nanos(700), Nanos(200)));
        assert_eq!(profile.idle_wake, None);
    }

    #[test]
    fn bursts_are_divided_by_tracing_cost() {
        let switch = |at, prev, sleeps, next| Event {
            at: Nanos(at),
            cpu: 0,
            by: Tid(prev),
            in_interrupt: false,
            kind: Kind::Switch { prev: Tid(prev), sleeps, next: Tid(next) },
        };
        let mut story = Story::default();
        let events = [switch(0, 0, false, 1), switch(300, 1, true, 0)];
        story.window(&[(Tid(1), Nanos(300))], (Nanos(0), Nanos(400)), &events, 100);
        let seen = Seen {
            threads: vec![thread(1, 500), thread(2, 100)],
            within: did(3000, 1000),
            outside: did(2000, 1000),
            ..Seen::default()
        };
        let profile = profile(seen, Some(story));
        assert_eq!(profile.tracing_cost, 1.5);
        assert_eq!(profile.threads.len(), 1);
        let one = &profile.threads[0];
        assert_eq!((one.name.as_str(), one.lives, one.ran), ("t1", 1, Nanos(500)));
        assert_eq!(one.steps, [Step::Run(Nanos(200))]);
        assert_eq!(one.bursts.p50, Nanos(200));
        assert_eq!(profile.unseen, Nanos(100), "of thread 2");
    }

    #[test]
    fn tracing_cost_needs_sleeps_and_is_bounded() {
        assert_eq!(cost(did(3000, 10), did(1000, 10)), 1.0);
        assert_eq!(cost(did(9_000, 1000), did(1_000, 1000)), MAX_COST);
        assert_eq!(cost(did(500, 1000), did(1_000, 1000)), 1.0);
    }
}
