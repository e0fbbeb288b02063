//! Parameters of the running kernel for the simulator, and the machine's load average for reports.

use rustix::time::{ClockId, clock_getres};
use tandem_model::{Nanos, PcpuSet};
use tandem_sim::sched::fair::Discipline;
use thiserror::Error;

/// The release does not start with a version.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the kernel's release is \"{0}\": expected one like 6.12.3")]
pub struct UnknownRelease(String);

/// Returns the scheduler of a kernel of this release: EEVDF since 6.6, CFS before.
pub fn scheduler(release: &str) -> Result<&'static str, UnknownRelease> {
    let is_eevdf = version(release)? >= (6, 6);
    Ok(if is_eevdf { "eevdf" } else { "cfs" })
}

/// Returns the treatment of lag when a group's weight changes, as in a scenario's `eevdf.reweight`: inflated since 6.13.
pub fn reweight(release: &str) -> Result<&'static str, UnknownRelease> {
    let is_inflated = version(release)? >= (6, 13);
    Ok(if is_inflated { "6.13" } else { "reverted" })
}

/// Returns the fair scheduler's settings, as in a scenario's `[host]` and VMs.
///
/// They scale with the online CPUs of the machine, not with those in use (`get_update_sysctl_factor`).
pub fn fair(release: &str) -> Result<String, UnknownRelease> {
    fair_on(release, online_cpus())
}

fn fair_on(release: &str, cpus: u32) -> Result<String, UnknownRelease> {
    let release_is = version(release)?;
    let discipline = match scheduler(release)? {
        "cfs" => Discipline::cfs(cpus),
        _ => Discipline::eevdf(cpus),
    };
    Ok(match discipline {
        Discipline::Cfs { latency, min_granularity, wakeup_granularity, .. } => {
            let as_of = match release_is {
                (..=4, _) | (5, ..=12) => "3.15",
                (5, 13) => "5.13",
                _ => "5.14",
            };
            let times = [latency, min_granularity, wakeup_granularity].map(|time| time.0);
            let [latency, least, granularity] = times;
            format!(
                "cfs = {{ as_of = \"{as_of}\", latency = \"{latency}ns\", min_granularity = \"{least}ns\", wakeup_granularity = \"{granularity}ns\" }}\n"
            )
        }
        Discipline::Eevdf { base_slice, .. } => {
            let slice = if release_is >= (6, 15) {
                // Since 2ae891b82695, "sched: Reduce the default slice to avoid tasks getting an extra tick".
                700_000 * Discipline::scaling(cpus)
            } else {
                base_slice.0
            };
            let reweight = reweight(release)?;
            format!("eevdf = {{ base_slice = \"{slice}ns\", reweight = \"{reweight}\" }}\n")
        }
    })
}

/// Returns the number of online CPUs, or else of the CPUs that this process may use.
fn online_cpus() -> u32 {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online");
    let online = text.ok().and_then(|text| text.trim().parse::<PcpuSet>().ok());
    let count = online.map_or(0, |set| set.iter().count());
    match u32::try_from(count) {
        Ok(0) | Err(_) => std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
        Ok(count) => count,
    }
}

fn version(release: &str) -> Result<(u32, u32), UnknownRelease> {
    let mut numbers = release.split(['.', '-']).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
        _ => Err(UnknownRelease(release.to_owned())),
    }
}

/// Returns the kernel's clock tick, the resolution of its coarse clocks.
pub fn tick() -> Nanos {
    let resolution = clock_getres(ClockId::MonotonicCoarse);
    let nanos = resolution.tv_sec as u64 * 1_000_000_000 + resolution.tv_nsec as u64;
    Nanos(nanos.clamp(100_000, 100_000_000))
}

/// KVM's default `halt_poll_ns`, for kernels that do not export it.
const HALT_POLL_NS: u64 = 200_000;

/// Returns KVM's maximum halt polling from its module parameter, ns.
pub fn halt_poll() -> u64 {
    let text = std::fs::read_to_string("/sys/module/kvm/parameters/halt_poll_ns");
    let value = text.ok().and_then(|text| text.trim().parse().ok());
    value.unwrap_or(HALT_POLL_NS)
}

/// Returns `/proc/loadavg`, or an empty text if it cannot be read.
pub fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_determines_scheduler_settings() {
        assert_eq!(scheduler("6.12.3-cloud-amd64"), Ok("eevdf"));
        assert_eq!(scheduler("6.6-rc1"), Ok("eevdf"));
        assert_eq!(scheduler("6.1.0"), Ok("cfs"));
        assert_eq!(reweight("6.12.3"), Ok("reverted"));
        assert_eq!(reweight("6.18.5"), Ok("6.13"));
        assert_eq!(
            fair_on("6.18.5", 2),
            Ok("eevdf = { base_slice = \"1400000ns\", reweight = \"6.13\" }\n".to_owned())
        );
        assert_eq!(
            fair_on("6.12.3", 16),
            Ok("eevdf = { base_slice = \"3000000ns\", reweight = \"reverted\" }\n".to_owned())
        );
        let cfs = fair_on("6.1.0", 4).unwrap();
        assert_eq!(
            cfs,
            "cfs = { as_of = \"5.14\", latency = \"18000000ns\", min_granularity = \"2250000ns\", \
             wakeup_granularity = \"3000000ns\" }\n"
        );
        for (release, as_of) in [("3.19.8", "3.15"), ("5.12.0", "3.15"), ("5.13.1", "5.13")] {
            let cfs = fair_on(release, 1).unwrap();
            assert!(cfs.contains(&format!("as_of = \"{as_of}\"")), "{cfs}");
        }
        let error = scheduler("sixth").unwrap_err().to_string();
        assert!(error.contains("\"sixth\": expected one like"), "{error}");
    }
}
