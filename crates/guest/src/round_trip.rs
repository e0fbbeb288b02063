//! What it costs to halt and be woken: the least retention that is worth it.
//!
//! Two threads, each bound to a vCPU of its own, hand each other a token and block in between. One hand-over
//! is a halt, an interrupt, an exit on either side, and a turn on the host. Measured at the start, for a few milliseconds;
//! the median, since other work in the VM makes single hand-overs long. Where so much else is done that few come about in that time,
//! it is not what a wake-up costs, and counts as not measured.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use tandem_linux::affinity::set_affinity;
use tandem_linux::thread::Tid;
use tandem_model::units::PcpuId;
use tandem_model::{Nanos, PcpuSet};

/// Hand-overs that are measured.
const ROUNDS: usize = 50;

/// Fewer do not tell.
const LEAST_ROUNDS: usize = 20;

/// No more than this is spent.
const LIMIT: Duration = Duration::from_millis(50);

/// The median time from waking a thread on another vCPU until it runs; `None` with a single vCPU, or where they are too busy with
/// other work.
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
        // There and back: two hand-overs.
        times.push(sent.elapsed() / 2);
    }
    times
}

/// A thread that cannot be bound measures something smaller, which is no harm.
fn bind(vcpu: PcpuId) {
    let one: PcpuSet = [vcpu].into_iter().collect();
    let _ = set_affinity(Tid(0), &one);
}

fn median(mut times: Vec<Duration>) -> Option<Nanos> {
    if times.len() < LEAST_ROUNDS {
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
    fn two_vcpus_have_a_round_trip_and_one_has_none() {
        let all = tandem_linux::affinity::affinity(Tid(0)).unwrap();
        // Beside other tests it may not be measured.
        let measured = measure(&all);
        assert!(measured.is_none() || all.len() > 1);
        assert!(
            measured.is_none_or(|time| time > Nanos::ZERO && time < Nanos(LIMIT.as_nanos() as u64))
        );
        assert_eq!(measure(&[PcpuId(0)].into_iter().collect()), None);
    }

    #[test]
    fn a_few_noisy_samples_are_no_measurement() {
        let noisy = Duration::from_nanos(10_010_900);
        assert_eq!(median(vec![noisy; 3]), None);
        let mut times = vec![Duration::from_micros(5); LEAST_ROUNDS];
        times.push(noisy);
        assert_eq!(median(times), Some(Nanos(5_000)));
    }
}
