//! What it costs to halt and be woken: the least retention that is worth it.
//!
//! Two threads, each bound to a vCPU of its own, hand each other a token and block in between. One hand-over
//! is a halt, an interrupt, an exit on either side, and a turn on the host. Measured at the start, for a few milliseconds;
//! the median, since other work in the VM makes single hand-overs long.

use std::sync::mpsc::Receiver;
use std::sync::mpsc::Sender;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use tandem_linux::affinity::set_affinity;
use tandem_linux::thread::Tid;
use tandem_policy::Nanos;
use tandem_policy::PcpuSet;
use tandem_policy::units::PcpuId;

/// Hand-overs that are measured.
const ROUNDS: usize = 50;

/// No more than this is spent.
const LIMIT: Duration = Duration::from_millis(50);

/// The median time from waking a thread on another vCPU until it runs; `None` with a single vCPU, or where
/// threads cannot be bound.
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
        let measured = measure(&all);
        assert_eq!(measured.is_some(), all.len() > 1);
        assert!(measured.is_none_or(|time| time > Nanos::ZERO));
        assert_eq!(measure(&[PcpuId(0)].into_iter().collect()), None);
    }
}
