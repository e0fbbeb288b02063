//! Measures the cost of a halt and a wake-up, which is the minimum useful retention.
//!
//! Two threads, each bound to its own vCPU, pass a token back and forth and block in between.
//! Each hand-over takes a halt, an interrupt, an exit on either side, and a wait on the host's run queue.
//! It is measured at the start, for a few milliseconds.
//! The result is the median, as other work in the VM prolongs single hand-overs.
//! If other work leaves room for too few hand-overs, the cost counts as not measured.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use tandem_linux::affinity::set_affinity;
use tandem_linux::thread::Tid;
use tandem_model::units::PcpuId;
use tandem_model::{Nanos, PcpuSet};

/// Maximum number of measured round trips.
const ROUNDS: usize = 50;

/// Minimum number of round trips for a result.
const MIN_ROUNDS: usize = 20;

/// Maximum duration of the measurement.
const LIMIT: Duration = Duration::from_millis(50);

/// Returns the median time from waking a thread on another vCPU until it runs.
/// Returns `None` with a single vCPU, or if the vCPUs are too busy with other work.
pub fn measure(vcpus: &PcpuSet) -> Option<Nanos> {
    let mut vcpus = vcpus.iter();
    let (first, second) = (vcpus.next()?, vcpus.next()?);
    let (there, from_here) = channel();
    let (back, from_there) = channel();
    let echo = thread::spawn(move || echo(second, &from_here, &back));
    let measured = thread::spawn(move || send(first, there, &from_there));
    let times = measured.join().ok()?;
    echo.join().ok()?;
    median(times)
}

fn echo(vcpu: PcpuId, tokens: &Receiver<()>, back: &Sender<()>) {
    bind(vcpu);
    while tokens.recv().is_ok() {
        if back.send(()).is_err() {
            return;
        }
    }
}

fn send(vcpu: PcpuId, there: Sender<()>, back: &Receiver<()>) -> Vec<Duration> {
    bind(vcpu);
    let begin = Instant::now();
    let mut times = Vec::with_capacity(ROUNDS);
    while times.len() < ROUNDS && begin.elapsed() < LIMIT {
        let sent = Instant::now();
        if there.send(()).is_err() || back.recv().is_err() {
            break;
        }
        // A round trip is two hand-overs.
        times.push(sent.elapsed() / 2);
    }
    times
}

/// Binds the calling thread; without it the measured time is at most too short, which is harmless.
fn bind(vcpu: PcpuId) {
    let one: PcpuSet = [vcpu].into_iter().collect();
    let _ = set_affinity(Tid(0), &one);
}

fn median(mut times: Vec<Duration>) -> Option<Nanos> {
    if times.len() < MIN_ROUNDS {
        return None;
    }
    times.sort_unstable();
    let middle = times.get(times.len() / 2)?;
    u64::try_from(middle.as_nanos()).ok().map(Nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurement_needs_two_vcpus() {
        let all = tandem_linux::affinity::affinity(Tid(0)).unwrap();
        // Other tests may prevent the measurement.
        let measured = measure(&all);
        assert!(measured.is_none() || all.len() > 1);
        assert!(
            measured.is_none_or(|time| time > Nanos::ZERO && time < Nanos(LIMIT.as_nanos() as u64))
        );
        assert_eq!(measure(&[PcpuId(0)].into_iter().collect()), None);
    }

    #[test]
    fn few_samples_give_no_result() {
        let noisy = Duration::from_nanos(10_010_900);
        assert_eq!(median(vec![noisy; 3]), None);
        let mut times = vec![Duration::from_micros(5); MIN_ROUNDS];
        times.push(noisy);
        assert_eq!(median(times), Some(Nanos(5_000)));
    }
}
