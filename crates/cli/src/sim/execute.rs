//! Runs simulations under a progress bar.
//!
//! The bar counts simulated time. It appears on a terminal once two seconds have gone by, so that
//! short runs stay quiet; elsewhere there is none. Running in portions changes nothing in the
//! results: a portion ends between two events.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use anyhow::ensure;
use indicatif::ProgressBar;
use indicatif::ProgressDrawTarget;
use indicatif::ProgressStyle;
use tandem_policy::Nanos;
use tandem_sim::Results;
use tandem_sim::Scenario;
use tandem_sim::World;

use super::metrics;
use super::metrics::Metric;

/// What runs shorter needs no bar.
const QUIET: Duration = Duration::from_secs(2);

/// Portions of a run, between which the bar moves.
const PORTIONS: u64 = 500;

/// Progress of one or more simulations, in simulated time.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    began: Instant,
}

impl Progress {
    /// Begins; `total` is the simulated time of all runs together.
    pub fn begin(total: Nanos) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(total.0), ProgressDrawTarget::hidden());
        let style = "{bar:32.cyan} {percent:>3} %  {elapsed_precise}, {eta} to go  {msg}";
        // The template is a constant; should it not parse, the default style serves as well.
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style.progress_chars("━╸─"));
        }
        Progress {
            bar,
            began: Instant::now(),
        }
    }

    /// What is being done from now on.
    pub fn say(&self, what: String) {
        self.bar.set_message(what);
    }

    /// So much simulated time has gone by.
    fn add(&self, time: Nanos) {
        self.bar.inc(time.0);
        if self.bar.is_hidden() && self.began.elapsed() >= QUIET && std::io::stderr().is_terminal()
        {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Runs a world to its end, at most `duration` away.
pub fn run(world: &mut World, duration: Nanos, progress: &Progress) -> Results {
    let portion = (duration.0 / PORTIONS).max(1);
    let mut counted = Nanos::ZERO;
    loop {
        let until = Nanos(world.now().0.saturating_add(portion));
        let over = world.run_until(until);
        let now = world.now().min(duration);
        progress.add(now.saturating_sub(counted));
        counted = now;
        if over {
            // What ended early is done as well.
            progress.add(duration.saturating_sub(counted));
            return world.results();
        }
    }
}

/// How many worker threads are meant; refuses numbers of runs and workers that are not possible.
pub fn workers(runs: u32, workers: Option<usize>) -> anyhow::Result<usize> {
    ensure!(
        (1..=1000).contains(&runs),
        "--runs {runs} is not possible: 1 … 1000"
    );
    let Some(workers) = workers else {
        return Ok(std::thread::available_parallelism().map_or(1, usize::from));
    };
    ensure!(
        (1..=1024).contains(&workers),
        "--workers {workers} is not possible: 1 … 1024"
    );
    Ok(workers)
}

/// The figures of scenarios, each with a seed, in their order whatever the number of workers.
pub fn all(jobs: &[(&Scenario, u64)], workers: usize) -> anyhow::Result<Vec<Vec<Metric>>> {
    each(
        jobs,
        workers,
        |_, _| {},
        |_, scenario, results| metrics::of(scenario, &results),
    )
}

/// The same with a hand in it: `watch` gets each job's world before it runs and may switch on what is
/// recorded, `keep` says what is kept of its results. Both get the job's number.
pub fn each<T: Send>(
    jobs: &[(&Scenario, u64)],
    workers: usize,
    watch: impl Fn(usize, &mut World) + Sync,
    keep: impl Fn(usize, &Scenario, Results) -> T + Sync,
) -> anyhow::Result<Vec<T>> {
    let progress = Progress::begin(jobs.iter().map(|(scenario, _)| scenario.duration).sum());
    progress.say(format!("{} runs", jobs.len()));
    let next = AtomicUsize::new(0);
    let done: Vec<Mutex<Option<T>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..workers.min(jobs.len()) {
            scope.spawn(|| {
                while let Some((at, &(scenario, seed), place)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    jobs.get(at)
                        .zip(done.get(at))
                        .map(|(job, place)| (at, job, place))
                } {
                    let scenario = Scenario {
                        seed,
                        ..scenario.clone()
                    };
                    let mut world = World::new(&scenario);
                    watch(at, &mut world);
                    let results = run(&mut world, scenario.duration, &progress);
                    if let Ok(mut place) = place.lock() {
                        *place = Some(keep(at, &scenario, results));
                    }
                }
            });
        }
    });
    done.into_iter()
        .map(|place| {
            let kept = place.into_inner().ok().flatten();
            kept.context("a run did not end")
        })
        .collect()
}
