//! Runs one or many simulations and reports their progress.
//!
//! Worker threads take runs, the longest first (`order`).
//! Results are in the order of the request, so they do not depend on the number of workers.
//! A simulation runs in portions, which end between two events and do not affect the results.

mod order;

use std::sync::Mutex;
use std::time::Instant;

use tandem_model::Nanos;
use tandem_sim::{Results, Scenario, World};
use thiserror::Error;

use self::order::Order;
use crate::metrics;
use crate::metrics::Metric;
use crate::progress::Progress;

/// Portions of a run; progress is reported after each.
const PORTIONS: u64 = 500;

/// Maximum portion, ns: large hosts take over a second to simulate 10 ms, and Ctrl-C takes effect between portions.
const MAX_PORTION: u64 = 2_000_000;

/// Error of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ExecuteError {
    /// The runs were interrupted.
    #[error("interrupted before the end")]
    Cancelled,
    /// A worker thread did not complete a run.
    #[error("a run did not end")]
    Lost,
}

/// A run to execute.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The scenario.
    pub scenario: &'a Scenario,
    /// The seed, which replaces the scenario's.
    pub seed: u64,
}

/// Runs a world to its end; `duration` is the maximum simulated time, for progress.
pub fn run(
    world: &mut World,
    duration: Nanos,
    progress: &dyn Progress,
) -> Result<Results, ExecuteError> {
    let portion = (duration.0 / PORTIONS).clamp(1, MAX_PORTION);
    let mut counted = Nanos::ZERO;
    loop {
        if progress.is_cancelled() {
            return Err(ExecuteError::Cancelled);
        }
        let until = Nanos(world.now().0.saturating_add(portion));
        let over = world.run_until(until);
        let now = world.now().min(duration);
        progress.add(now.saturating_sub(counted));
        counted = now;
        if over {
            // Counts the remaining time of a run that ended early.
            progress.add(duration.saturating_sub(counted));
            return Ok(world.results());
        }
    }
}

/// Runs all jobs and returns their figures in order of the jobs.
pub fn all(
    jobs: &[Job<'_>],
    workers: usize,
    progress: &dyn Progress,
) -> Result<Vec<Vec<Metric>>, ExecuteError> {
    each(jobs, workers, progress, |_, _| {}, |_, scenario, results| metrics::of(scenario, &results))
}

/// Runs all jobs with two hooks, which receive the job's index.
///
/// `watch` may enable recording in a job's world before the run; `keep` extracts the value to return from the results.
pub fn each<T: Send>(
    jobs: &[Job<'_>],
    workers: usize,
    progress: &dyn Progress,
    watch: impl Fn(usize, &mut World) + Sync,
    keep: impl Fn(usize, &Scenario, Results) -> T + Sync,
) -> Result<Vec<T>, ExecuteError> {
    progress.begin(jobs.iter().map(|job| job.scenario.duration).sum());
    progress.say(&format!("{} runs", jobs.len()));
    let done: Vec<Mutex<Option<T>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
    let order = Mutex::new(Order::new(jobs.iter().map(|job| job.scenario)));
    let next = || {
        let at = order.lock().ok()?.next()?;
        Some((at, jobs.get(at)?, done.get(at)?))
    };
    std::thread::scope(|scope| {
        for _ in 0..workers.min(jobs.len()) {
            scope.spawn(|| {
                while let Some((at, job, place)) = next() {
                    let began = Instant::now();
                    let scenario = Scenario { seed: job.seed, ..job.scenario.clone() };
                    let mut world = World::new(&scenario);
                    watch(at, &mut world);
                    let Ok(results) = run(&mut world, scenario.duration, progress) else {
                        return;
                    };
                    if let Ok(mut place) = place.lock() {
                        *place = Some(keep(at, &scenario, results));
                    }
                    if let Ok(mut order) = order.lock() {
                        order.ended(at, began.elapsed());
                    }
                }
            });
        }
    });
    let missing =
        if progress.is_cancelled() { ExecuteError::Cancelled } else { ExecuteError::Lost };
    done.into_iter().map(|place| place.into_inner().ok().flatten().ok_or(missing)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Silent;
    use std::sync::atomic::{AtomicU64, Ordering};
    use tandem_sim::scenario::load;

    pub(super) fn scenario() -> Scenario {
        let text = r#"
            duration = "5ms"
            [machine]
            pcpus = 1
            [host]
            scheduler = "cfs"
            [[workload]]
            name = "w"
            [[workload.role]]
            threads = 1
            program = [{ forever = [{ compute = "exp(100us)" }, "work"] }]
            [[vm]]
            name = "a"
            vcpus = 1
            workload = "w"
        "#;
        load::from_text("s", text).unwrap()
    }

    /// Sums up the progress, and cancels after `enough` ns of simulated time.
    struct Counter {
        total: AtomicU64,
        counted: AtomicU64,
        enough: u64,
    }

    impl Counter {
        fn until(enough: u64) -> Counter {
            Counter { total: AtomicU64::new(0), counted: AtomicU64::new(0), enough }
        }
    }

    impl Progress for Counter {
        fn begin(&self, total: Nanos) {
            self.total.store(total.0, Ordering::Relaxed);
        }

        fn say(&self, _what: &str) {}

        fn add(&self, time: Nanos) {
            self.counted.fetch_add(time.0, Ordering::Relaxed);
        }

        fn is_cancelled(&self) -> bool {
            self.counted.load(Ordering::Relaxed) >= self.enough
        }
    }

    #[test]
    fn progress_adds_up_to_the_time_simulated() {
        let (scenario, counter) = (scenario(), Counter::until(u64::MAX));
        let jobs = [1, 2, 3].map(|seed| Job { scenario: &scenario, seed });
        let two = all(&jobs, 2, &counter).unwrap();
        assert_eq!(counter.total.into_inner(), 15_000_000);
        assert_eq!(counter.counted.into_inner(), 15_000_000);
        assert_eq!(two, all(&jobs, 1, &Silent).unwrap());
    }

    #[test]
    fn cancelled_jobs_have_no_results() {
        let (scenario, counter) = (scenario(), Counter::until(2_000_000));
        let jobs = [1, 2].map(|seed| Job { scenario: &scenario, seed });
        let outcome = all(&jobs, 1, &counter);
        assert_eq!(outcome, Err(ExecuteError::Cancelled));
        let counted = counter.counted.into_inner();
        assert!(counted < 5_000_000, "{counted} ns were simulated");
    }
}
