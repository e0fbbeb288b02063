//! Parsers for the output of the programs: units of work, and the time by the program's own clock.
//!
//! Sources: captured output of perf 6.1, hackbench of rt-tests 2.4, sysbench 1.0.20, dbench 4.0,
//! stress-ng 0.15 and of `tandem vm run --json`; the tests contain real lines of each.
//! Every parser takes the whole output, stdout and stderr.
//! It returns `None` if the line is missing or invalid, such as a time of zero.

use serde::Deserialize;

/// Work of a program in its own unit, and its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Units of work.
    pub units: f64,
    /// Seconds.
    pub seconds: f64,
}

impl Work {
    /// Returns `None` unless both numbers are finite and positive.
    pub fn new(units: f64, seconds: f64) -> Option<Work> {
        let good = |value: f64| value.is_finite() && value > 0.0;
        (good(units) && good(seconds)).then_some(Work { units, seconds })
    }

    /// Returns the units per second.
    pub fn rate(self) -> f64 {
        self.units / self.seconds
    }
}

/// Returns the number after the first occurrence of `key`.
fn number_after(text: &str, key: &str) -> Option<f64> {
    let rest = &text[text.find(key)? + key.len()..];
    let rest = rest.trim_start();
    let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// `perf bench sched …`, for the `units` given to it.
pub fn perf(text: &str, units: f64) -> Option<Work> {
    Work::new(units, number_after(text, "Total time:")?)
}

/// `hackbench`, for the `units` given to it.
pub fn hackbench(text: &str, units: f64) -> Option<Work> {
    Work::new(units, number_after(text, "\nTime:")?)
}

/// Events of `sysbench threads` and other tests that run for a fixed time.
pub fn sysbench_events(text: &str) -> Option<Work> {
    Work::new(number_after(text, "total number of events:")?, number_after(text, "total time:")?)
}

/// `sysbench mutex`, whose threads take `units` locks together.
pub fn sysbench_mutex(text: &str, units: f64) -> Option<Work> {
    Work::new(units, number_after(text, "total time:")?)
}

/// Transactions of `sysbench oltp_read_write`.
pub fn sysbench_transactions(text: &str) -> Option<Work> {
    Work::new(number_after(text, "transactions:")?, number_after(text, "total time:")?)
}

/// Megabytes of `dbench`, which runs for `seconds` and prints only the rate.
pub fn dbench(text: &str, seconds: f64) -> Option<Work> {
    Work::new(number_after(text, "\nThroughput")? * seconds, seconds)
}

/// Bogo operations of one `stressor` of `stress-ng --metrics`.
pub fn stress_ng(text: &str, stressor: &str) -> Option<Work> {
    text.lines().find_map(|line| {
        // stress-ng: metrc: [7890] futex  19049  1.00  0.17 …
        let mut words = line.split_once("] ")?.1.split_ascii_whitespace();
        if words.next()? != stressor {
            return None;
        }
        let units = words.next()?.parse().ok()?;
        Work::new(units, words.next()?.parse().ok()?)
    })
}

/// Rounds of `tandem-lab bench guest-token`.
pub fn token(text: &str) -> Option<Work> {
    Work::new(number_after(text, "passes:")?, number_after(text, "seconds:")?)
}

/// Pieces of work of `tandem-lab bench guest-paced`.
pub fn paced(text: &str) -> Option<Work> {
    Work::new(number_after(text, "done:")?, number_after(text, "seconds:")?)
}

/// Returns the printed 99th percentile of latencies, in ns.
pub fn latency_p99(text: &str) -> Option<f64> {
    Some(number_after(text, "latency_p99_us:")? * 1e3)
}

/// `tandem vm run --json`.
pub fn microvm(text: &str) -> Option<Work> {
    #[derive(Deserialize)]
    struct Report {
        seconds: f64,
        work_per_second: f64,
    }
    // Lines of stderr may precede and follow the report.
    let report = serde_json::Deserializer::from_str(&text[text.find("{\n")?..])
        .into_iter::<Report>()
        .next()?
        .ok()?;
    Work::new(report.work_per_second * report.seconds, report.seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(units: f64, seconds: f64) -> Option<Work> {
        Some(Work { units, seconds })
    }

    #[test]
    fn perf_bench_sched_pipe() {
        let text = "# Running 'sched/pipe' benchmark:\n\
                    # Executed 20000 pipe operations between two processes\n\n     \
                    Total time: 1.537 [sec]\n\n      76.854000 usecs/op\n          13011 ops/sec\n";
        assert_eq!(perf(text, 20_000.0), work(20_000.0, 1.537));
    }

    #[test]
    fn perf_bench_sched_messaging() {
        let text = "# Running 'sched/messaging' benchmark:\n\
                    # 20 sender and receiver threads per group\n# 4 groups == 160 threads run\n\n     \
                    Total time: 0.110 [sec]\n";
        assert_eq!(perf(text, 160_000.0), work(160_000.0, 0.110));
    }

    #[test]
    fn hackbench_prints_only_its_time() {
        let text = "Running in process mode with 2 groups using 40 file descriptors each (== 80 \
                    tasks)\nEach sender will pass 500 messages of 100 bytes\nTime: 0.922\n";
        assert_eq!(hackbench(text, 400_000.0), work(400_000.0, 0.922));
    }

    const SYSBENCH: &str = "Threads started!\n\n\nGeneral statistics:\n    total time:               \
                            2.0026s\n    total number of events:              1708\n\nLatency \
                            (ms):\n         min:                                    0.61\n";

    #[test]
    fn sysbench_counts_events_or_given_locks() {
        assert_eq!(sysbench_events(SYSBENCH), work(1708.0, 2.0026));
        assert_eq!(sysbench_mutex(SYSBENCH, 8e6), work(8e6, 2.0026));
    }

    #[test]
    fn sysbench_oltp_counts_transactions() {
        let text = "        other:                           2828\n        total:                \
                    28280\n    transactions:                        1414   (705.09 per sec.)\n    \
                    queries:                             28280  (14101.77 per sec.)\n\nGeneral \
                    statistics:\n    total time:                          2.0046s\n    total \
                    number of events:              1414\n";
        assert_eq!(sysbench_transactions(text), work(1414.0, 2.0046));
    }

    #[test]
    fn dbench_prints_a_rate() {
        let text = "   2    106710  1181.44 MB/sec  execute   1 sec  latency 4.049 ms\n Flush     \
                    5452     0.001     0.173\n\nThroughput 1181.44 MB/sec  2 clients  2 procs  \
                    max_latency=4.049 ms\n";
        assert_eq!(dbench(text, 2.0), work(2362.88, 2.0));
    }

    #[test]
    fn stress_ng_has_a_table() {
        let text = "stress-ng: info:  [1380] dispatching hogs: 2 futex\n\
                    stress-ng: metrc: [1380] stressor       bogo ops real time  usr time  sys time\n\
                    stress-ng: metrc: [1380]                           (secs)    (secs)    (secs)\n\
                    stress-ng: metrc: [1380] futex             73471      2.00      0.40      3.56\n";
        assert_eq!(stress_ng(text, "futex"), work(73471.0, 2.0));
        assert_eq!(stress_ng(text, "mutex"), None);
    }

    #[test]
    fn microvm_report_may_have_surrounding_lines() {
        let text = "tandem: a {warning}\n{\n  \"name\": \"vm0\",\n  \"seconds\": 2.0,\n  \
                    \"work_per_second\": 150.5,\n  \"vcpus\": []\n}\nbye\n";
        assert_eq!(microvm(text), work(301.0, 2.0));
    }

    #[test]
    fn tokens_are_counted() {
        assert_eq!(token("passes: 120000\nseconds: 3.0001\n"), work(1.2e5, 3.0001));
    }

    #[test]
    fn paced_programs_print_latency() {
        let text = "done: 27000\nseconds: 10.000000\nlatency_p99_us: 812.4\n";
        assert_eq!(paced(text), work(27_000.0, 10.0));
        assert_eq!(latency_p99(text), Some(812_400.0));
        assert_eq!(latency_p99("done: 0\nseconds: 10.0\n"), None);
    }

    #[test]
    fn invalid_output_yields_no_work() {
        for text in ["", "Total time: x", "Total time: 0.000 [sec]", "{", "{}"] {
            assert_eq!(perf(text, 10.0), None, "{text}");
            assert_eq!(microvm(text), None, "{text}");
            assert_eq!(hackbench(text, 10.0), None, "{text}");
        }
        assert_eq!(sysbench_events("total time: 1.0s\ntotal number of events: 0"), None);
    }
}
