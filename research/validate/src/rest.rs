//! Background load of this machine: kernel threads, daemons and monitoring.
//!
//! It takes little time but affects scheduling: each preemption makes the pCPU pick its next thread again.
//! So pCPUs that switch in step lose their synchronization.
//! Threads that only compute, each alone on its pCPU, measure its rate and length by their waits.
//! In a scenario it is a VM of the default weight with a vCPU on each pCPU.

use std::io;

use serde::Serialize;

/// Background load of a pCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rest {
    /// Mean period of its preemptions, ns.
    pub every_ns: u64,
    /// Mean length of its preemptions, ns.
    pub for_ns: u64,
}

/// Waits of threads for their pCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Number of times that they were scheduled.
    pub times: u64,
    /// Total wait time, ns.
    pub waited_ns: u64,
    /// Total wall time of the threads, ns.
    pub wall_ns: u64,
}

impl Waits {
    /// Reads the waits of a thread so far from its folder in `/proc`; `wall_ns` is 0.
    pub fn of_task(folder: &str) -> io::Result<Waits> {
        let path = format!("{folder}/schedstat");
        let text = std::fs::read_to_string(&path)
            .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
        let fields: Option<Vec<u64>> =
            text.split_ascii_whitespace().map(|field| field.parse().ok()).collect();
        match fields.as_deref() {
            Some(&[_, waited_ns, times]) => Ok(Waits { times, waited_ns, wall_ns: 0 }),
            _ => Err(io::Error::other(format!(
                "{path}: \"{}\": expected three numbers",
                text.trim()
            ))),
        }
    }

    /// Returns the waits since `earlier`, over a wall time of `wall_ns`.
    #[must_use]
    pub fn since(self, earlier: Waits, wall_ns: u64) -> Waits {
        Waits {
            times: self.times.saturating_sub(earlier.times),
            waited_ns: self.waited_ns.saturating_sub(earlier.waited_ns),
            wall_ns,
        }
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn and(self, other: Waits) -> Waits {
        Waits {
            times: self.times + other.times,
            waited_ns: self.waited_ns + other.waited_ns,
            wall_ns: self.wall_ns + other.wall_ns,
        }
    }
}

impl Rest {
    /// Derives the load from the waits of threads that compute alone. `None`: they were never preempted.
    pub fn of(waits: Waits) -> Option<Rest> {
        Some(Rest {
            every_ns: waits.wall_ns.checked_div(waits.times)?,
            for_ns: waits.waited_ns.checked_div(waits.times)?.max(1),
        })
    }

    /// Describes the load for a report.
    pub fn describe(rest: Option<Rest>) -> String {
        match rest {
            None => "no background load".to_owned(),
            Some(rest) => format!(
                "background load takes each pCPU for {:.0} µs every {:.1} ms",
                rest.for_ns as f64 / 1e3,
                rest.every_ns as f64 / 1e6
            ),
        }
    }

    /// Returns the load as a VM of a scenario with `pcpus` pCPUs.
    pub fn vm(self, pcpus: u32) -> String {
        let pins: Vec<String> = (0..pcpus).map(|pcpu| format!("\"{pcpu}\"")).collect();
        let vcpus: Vec<String> = (0..pcpus).map(|vcpu| vcpu.to_string()).collect();
        format!(
            "\n[[vm]]\nname = \"rest\"\nvcpus = {pcpus}\nworkload = \"rest\"\nspin_locks = \"queued\"\ntick = \"100ms\"\nbalance = false\n\
             pins = [{}]\n\n[[workload]]\nname = \"rest\"\n[[workload.role]]\nname = \"host\"\nthreads = {pcpus}\n\
             pins = [{}]\nprogram = [{{ forever = [{{ sleep = \"exp({}ns)\" }}, {{ compute = \"exp({}ns)\" }}] }}]\n",
            pins.join(", "),
            vcpus.join(", "),
            self.every_ns.saturating_sub(self.for_ns).max(1),
            self.for_ns
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn background_load_has_period_and_length() {
        let (before, after) = (
            Waits { times: 10, waited_ns: 1_000_000, wall_ns: 0 },
            Waits { times: 30, waited_ns: 2_000_000, wall_ns: 0 },
        );
        let one = after.since(before, 1_000_000_000);
        let rest = Rest::of(one.and(one)).unwrap();
        assert_eq!((rest.every_ns, rest.for_ns), (50_000_000, 50_000));
        assert_eq!(
            Rest::describe(Some(rest)),
            "background load takes each pCPU for 50 µs every 50.0 ms"
        );
        assert_eq!(Rest::of(Waits::default()), None);
    }

    #[test]
    fn waits_are_read_from_schedstat() {
        let begin = Waits::of_task("/proc/thread-self").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(5));
        let waits = Waits::of_task("/proc/thread-self").unwrap();
        assert!(waits.since(begin, 5_000_000).times >= 1, "it slept");
        let error = Waits::of_task("/proc/self/fd").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
