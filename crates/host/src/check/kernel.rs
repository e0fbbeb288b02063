//! The kernel's properties: release, scheduler, tick, sched_ext.
//!
//! The tunables in debugfs, if mounted, show the scheduler of ordinary threads: EEVDF has `base_slice_ns`, CFS `latency_ns`.
//! Otherwise the release does: EEVDF came with 6.6.
//! The tick is the resolution of CLOCK_MONOTONIC_COARSE, which the kernel advances once per tick (`KTIME_LOW_RES`).

use std::path::Path;

use rustix::time::{ClockId, clock_getres};
use tandem_linux::cgroup::CpuController;
use tandem_linux::kernel_release;
use tandem_linux::procfs::{ProcFs, read_text};
use tandem_model::Nanos;

use super::report::{Finding, Kernel, Subject, Verdict};

const TUNABLES: &str = "/sys/kernel/debug/sched";

const SCHED_EXT: &str = "/sys/kernel/sched_ext";

/// The first release with EEVDF.
const EEVDF: (u32, u32) = (6, 6);

/// Reads all properties.
pub fn read(procfs: &ProcFs, controller: &dyn CpuController) -> Kernel {
    let release = kernel_release::running();
    let (scheduler, scheduler_from) = scheduler(procfs, &release);
    Kernel {
        release,
        scheduler,
        scheduler_from,
        tick: tick(),
        cgroup: controller.version(),
        mount: controller.mount().display().to_string(),
    }
}

/// The clock tick.
fn tick() -> Nanos {
    let resolution = clock_getres(ClockId::MonotonicCoarse);
    Nanos(resolution.tv_sec as u64 * 1_000_000_000 + resolution.tv_nsec as u64)
}

fn scheduler(procfs: &ProcFs, release: &str) -> (Option<String>, String) {
    let has = |file: &str| procfs.resolve(Path::new(TUNABLES).join(file)).exists();
    for (file, name) in [("base_slice_ns", "EEVDF"), ("latency_ns", "CFS")] {
        if has(file) {
            return (Some(name.to_owned()), format!("{TUNABLES}/{file}"));
        }
    }
    let name = kernel_release::numbers(release)
        .map(|version| if version >= EEVDF { "EEVDF".to_owned() } else { "CFS".to_owned() });
    (name, "the release".to_owned())
}

/// The first release that carries lag, inflated, over a change of a queued group's weight (6d71a9c61604).
/// A revert is on its way; the release does not show whether a kernel has it.
const INFLATES_LAG: (u32, u32) = (6, 13);

/// Whether the running kernel may give a group that is reweighted while queued far more or less than its weight.
pub fn may_inflate_lag() -> bool {
    kernel_release::is_since(INFLATES_LAG)
}

/// Whether a BPF scheduler is loaded. The tests of the weights show its effect on them.
pub fn sched_ext(procfs: &ProcFs) -> Finding {
    let read = |file: &str| {
        let text = read_text(&procfs.resolve(Path::new(SCHED_EXT).join(file)));
        text.map(|text| text.trim().to_owned())
    };
    let found = |verdict, figure: String| Finding::new(Subject::SchedExt, verdict).figure(figure);
    match read("state") {
        Ok(state) if state == "disabled" => found(Verdict::Absent, "none is loaded".to_owned()),
        Ok(state) => {
            let name = read("root/ops").unwrap_or_else(|_| "one without a name".to_owned());
            found(Verdict::Present, format!("{name} is loaded: {state}"))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            found(Verdict::Absent, "this kernel has no sched_ext".to_owned())
        }
        Err(error) => {
            let why = format!("cannot read {SCHED_EXT}/state: {error}");
            Finding::new(Subject::SchedExt, Verdict::NotMeasured(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn tunables_precede_the_release() {
        let dir = tempfile::tempdir().unwrap();
        let procfs = ProcFs::at(dir.path());
        let by = |release: &str| scheduler(&procfs, release).0;
        assert_eq!(by("6.1.0-28-amd64").as_deref(), Some("CFS"));
        assert_eq!(by("6.12.9").as_deref(), Some("EEVDF"));
        assert_eq!(by("10.0-rc1").as_deref(), Some("EEVDF"));
        assert_eq!(by("custom"), None);
        let folder = procfs.resolve(TUNABLES);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("latency_ns"), "6000000").unwrap();
        assert_eq!(by("6.12.9").as_deref(), Some("CFS"));
    }

    #[test]
    fn a_loaded_scheduler_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let procfs = ProcFs::at(dir.path());
        assert_eq!(sched_ext(&procfs).verdict, Verdict::Absent);
        let folder = procfs.resolve(SCHED_EXT);
        fs::create_dir_all(folder.join("root")).unwrap();
        fs::write(folder.join("state"), "disabled\n").unwrap();
        assert_eq!(sched_ext(&procfs).verdict, Verdict::Absent);
        fs::write(folder.join("state"), "enabled\n").unwrap();
        fs::write(folder.join("root/ops"), "lavd_1.0\n").unwrap();
        let found = sched_ext(&procfs);
        assert_eq!(found.verdict, Verdict::Present);
        assert_eq!(found.figure, "lavd_1.0 is loaded: enabled");
    }

    #[test]
    fn tick_is_plausible() {
        let tick = tick();
        assert!((1_000_000..=10_000_000).contains(&tick.0), "{tick:?}");
    }
}
