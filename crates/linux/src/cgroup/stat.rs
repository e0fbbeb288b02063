//! Throttling of a cgroup by its quota, from `cpu.stat`: its time and the number of periods.
//!
//! v1 has `throttled_time` in ns, v2 `throttled_usec`.
//! Both are sums over pCPUs: throttling on two of them for a second counts two seconds.
//! They count throttling by the cgroup's own quota, not by one above it.
//! On v2 they exist only if the cpu controller is enabled for the cgroup.
//!
//! Source: kernel/sched/core.c, cpu_cfs_stat_show() and cpu_extra_stat_show(); Documentation/scheduler/sched-bwc.rst.

use tandem_model::Nanos;

/// Throttling by a cgroup's quota so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttled {
    /// Throttled time, summed over pCPUs; the kernel updates it at the end of each throttling.
    pub time: Nanos,
    /// Periods of the quota in which the cgroup ran.
    pub periods: u64,
    /// Periods that began while the cgroup was throttled; the kernel updates them at once.
    pub throttled_periods: u64,
}

/// Parses `cpu.stat`; `None` if it has no throttled time.
pub(crate) fn throttled(text: &str) -> Option<Throttled> {
    let mut throttled = Throttled::default();
    let mut has_time = false;
    for line in text.lines() {
        let Some((key, value)) = line.split_once(' ') else {
            continue;
        };
        let value: Option<u64> = value.trim().parse().ok();
        match key {
            "nr_periods" => throttled.periods = value?,
            "nr_throttled" => throttled.throttled_periods = value?,
            "throttled_time" => (throttled.time, has_time) = (Nanos(value?), true),
            "throttled_usec" => {
                (throttled.time, has_time) = (Nanos(value?.checked_mul(1000)?), true);
            }
            _ => {}
        }
    }
    has_time.then_some(throttled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_parsed() {
        let v1 = "nr_periods 10\nnr_throttled 3\nthrottled_time 1234567\nwait_sum 9\n";
        let expected = |time| Throttled { time: Nanos(time), periods: 10, throttled_periods: 3 };
        assert_eq!(throttled(v1), Some(expected(1_234_567)));
        let v2 = "usage_usec 7\nnr_periods 10\nnr_throttled 3\nthrottled_usec 1234\n";
        assert_eq!(throttled(v2), Some(expected(1_234_000)));
    }

    #[test]
    fn missing_time_is_not_zero() {
        for text in ["", "usage_usec 7\n", "throttled_time\n", "throttled_usec x\n"] {
            assert_eq!(throttled(text), None, "{text}");
        }
        assert_eq!(throttled("throttled_usec 18446744073709551615\n"), None);
    }
}
