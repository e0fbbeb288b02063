//! Whether threads of this process may be real-time, and how late one wakes next to a burning thread.
//!
//! The check's process measures this in its own cgroup, like a thread of the daemon.
//! Cgroups v1 without a real-time budget refuse it.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use tandem_linux::affinity::set_affinity;
use tandem_linux::real_time::make_real_time;
use tandem_model::PcpuSet;

use super::burner::{Burner, this_thread};
use super::report::{Finding, Subject, Verdict};

const SLEEPS: u32 = 100;

const SLEEP: Duration = Duration::from_millis(1);

/// Sleeps for 1 ms a hundred times on a busy pCPU.
pub fn measure(pcpus: &PcpuSet) -> Finding {
    let subject = Subject::RealTime;
    let Some(pcpu) = pcpus.iter().next().map(|pcpu| PcpuSet::from_iter([pcpu])) else {
        return Finding::new(subject, Verdict::NotMeasured("there is no pCPU".to_owned()));
    };
    let burner = match Burner::start(&pcpu, |_| Ok(())) {
        Ok(burner) => burner,
        Err(error) => return Finding::new(subject, Verdict::NotMeasured(error.to_string())),
    };
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let pinned = set_affinity(this_thread().tid, &pcpu);
        let outcome = make_real_time().map(|()| {
            let latest = (0..SLEEPS).map(|_| {
                let due = Instant::now() + SLEEP;
                std::thread::sleep(SLEEP);
                due.elapsed()
            });
            latest.max().unwrap_or_default()
        });
        let _ = sender.send((pinned.is_ok(), outcome));
    });
    let finding = match receiver.recv() {
        Ok((true, Ok(worst))) => {
            let ms = worst.as_secs_f64() * 1e3;
            Finding::new(subject, Verdict::Acts)
                .figure(format!(
                    "wakes {ms:.2} ms late at worst, of {SLEEPS}, on a busy pCPU"
                ))
                .value("worst_ms", ms)
        }
        Ok((false, _)) => Finding::new(
            subject,
            Verdict::NotMeasured("its thread could not be pinned".to_owned()),
        ),
        Ok((_, Err(error))) => Finding::new(subject, Verdict::DoesNotAct).figure(format!(
            "not permitted here: {error}; cgroups v1 need a real-time budget (cpu.rt_runtime_us), and systemd units no \
             RestrictRealtime=yes"
        )),
        Err(_) => Finding::new(
            subject,
            Verdict::NotMeasured("its thread ended early".to_owned()),
        ),
    };
    drop(burner);
    finding
}
