//! What else runs on this machine, beside what is compared: kernel threads, daemons, whoever looks on.
//!
//! It takes little time, and yet it decides much: each time it has had a pCPU, that chooses anew among those that take turns there, so
//! that pCPUs whose turns are in step fall out of it. How often and for how long is measured by threads that only compute, each alone on
//! its pCPU: what they wait for is the rest. In a scenario it is a VM of the usual weight with a vCPU on each pCPU.

use std::io;

use serde::Serialize;

/// How often the rest takes a pCPU, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rest {
    /// Mean time from one such time to the next, ns.
    pub every_ns: u64,
    /// Their mean length, ns.
    pub for_ns: u64,
}

/// What threads waited for their pCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// How often they came onto a pCPU.
    pub times: u64,
    /// For how long they had waited for that, ns.
    pub waited_ns: u64,
    /// In how much time of all of them, ns.
    pub wall_ns: u64,
}

impl Waits {
    /// Up to now, of a thread whose folder in /proc this is; its time is not in it.
    pub fn of_task(folder: &str) -> io::Result<Waits> {
        let path = format!("{folder}/schedstat");
        let text = std::fs::read_to_string(&path)
            .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
        let fields: Option<Vec<u64>> =
            text.split_ascii_whitespace().map(|field| field.parse().ok()).collect();
        match fields.as_deref() {
            Some(&[_, waited_ns, times]) => Ok(Waits { times, waited_ns, wall_ns: 0 }),
            _ => Err(io::Error::other(format!(
                "{path}: \"{}\" is not three numbers, as the kernel writes",
                text.trim()
            ))),
        }
    }

    /// What came since `earlier`, in a time of so many ns.
    #[must_use]
    pub fn since(self, earlier: Waits, wall_ns: u64) -> Waits {
        Waits {
            times: self.times.saturating_sub(earlier.times),
            waited_ns: self.waited_ns.saturating_sub(earlier.waited_ns),
            wall_ns,
        }
    }

    /// Both together.
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
    /// By what threads waited that compute alone. `None`: they never did.
    pub fn of(waits: Waits) -> Option<Rest> {
        Some(Rest {
            every_ns: waits.wall_ns.checked_div(waits.times)?,
            for_ns: waits.waited_ns.checked_div(waits.times)?.max(1),
        })
    }

    /// What there is of it, for a report.
    pub fn say(rest: Option<Rest>) -> String {
        match rest {
            None => "what else runs on the machine took no pCPU".to_owned(),
            Some(rest) => format!(
                "what else runs on the machine takes a pCPU for {:.0} µs every {:.1} ms",
                rest.for_ns as f64 / 1e3,
                rest.every_ns as f64 / 1e6
            ),
        }
    }

    /// As a VM of a scenario whose machine has so many pCPUs.
    pub fn vm(self, pcpus: u32) -> String {
        let pins: Vec<String> = (0..pcpus).map(|pcpu| format!("\"{pcpu}\"")).collect();
        let vcpus: Vec<String> = (0..pcpus).map(|vcpu| vcpu.to_string()).collect();
        format!(
            "\n[[vm]]\nname = \"rest\"\nvcpus = {pcpus}\nworkload = \"rest\"\ntick = \"100ms\"\nbalance = false\n\
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
    fn the_rest_is_a_rate_and_a_length() {
        let (before, after) = (
            Waits { times: 10, waited_ns: 1_000_000, wall_ns: 0 },
            Waits { times: 30, waited_ns: 2_000_000, wall_ns: 0 },
        );
        let one = after.since(before, 1_000_000_000);
        let rest = Rest::of(one.and(one)).unwrap();
        assert_eq!((rest.every_ns, rest.for_ns), (50_000_000, 50_000));
        assert_eq!(
            Rest::say(Some(rest)),
            "what else runs on the machine takes a pCPU for 50 µs every 50.0 ms"
        );
        assert_eq!(Rest::of(Waits::default()), None);
    }

    #[test]
    fn what_a_thread_waited_is_read_from_the_kernel() {
        let begin = Waits::of_task("/proc/thread-self").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(5));
        let waits = Waits::of_task("/proc/thread-self").unwrap();
        assert!(waits.since(begin, 5_000_000).times >= 1, "it slept");
        let error = Waits::of_task("/proc/self/fd").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
