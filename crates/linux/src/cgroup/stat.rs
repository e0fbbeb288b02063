//! What a cgroup's `cpu.stat` says of its quota: for how long it was throttled.
//!
//! v1 has `throttled_time` in ns, v2 `throttled_usec`. Both are sums over pCPUs: a cgroup throttled on two of them for a
//! second was throttled for two. They count throttling by the cgroup's own quota, not by one above it. On v2 the figure is
//! there only where the cpu controller reaches.
//!
//! Source: kernel/sched/core.c, cpu_cfs_stat_show() and cpu_extra_stat_show(); Documentation/scheduler/sched-bwc.rst.

use tandem_policy::Nanos;

/// The time throttled so far; `None` if the text has none.
pub(crate) fn throttled(text: &str) -> Option<Nanos> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(' ')?;
        let value: u64 = value.trim().parse().ok()?;
        match key {
            "throttled_time" => Some(Nanos(value)),
            "throttled_usec" => value.checked_mul(1000).map(Nanos),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_read() {
        let v1 = "nr_periods 10\nnr_throttled 3\nthrottled_time 1234567\nwait_sum 9\n";
        assert_eq!(throttled(v1), Some(Nanos(1_234_567)));
        let v2 = "usage_usec 7\nnr_periods 10\nnr_throttled 3\nthrottled_usec 1234\n";
        assert_eq!(throttled(v2), Some(Nanos(1_234_000)));
    }

    #[test]
    fn what_is_not_there_is_not_zero() {
        for text in [
            "",
            "usage_usec 7\n",
            "throttled_time\n",
            "throttled_usec x\n",
        ] {
            assert_eq!(throttled(text), None, "{text}");
        }
        assert_eq!(throttled("throttled_usec 18446744073709551615\n"), None);
    }
}
