//! Texts of the demo: the announcement with its estimated duration, and the next steps on the user's own host.

use std::time::Duration;

use crate::alone;
use crate::plan::Plan;

/// Overhead of starting VMs, and of entering and leaving a mode.
const OVERHEAD: Duration = Duration::from_millis(500);

/// Returns the announcement: the steps of the demo, its duration and its changes.
pub fn announce(plan: &Plan) -> String {
    let vms: Vec<String> = plan
        .vms
        .iter()
        .map(|vm| match vm.vcpus {
            1 => format!("{} (1 vCPU)", vm.name),
            vcpus => format!("{} ({vcpus} vCPUs)", vm.name),
        })
        .collect();
    let modes: Vec<String> = plan.modes.iter().map(ToString::to_string).collect();
    let first = match plan.alone {
        Some(_) => "runs each VM alone first, then all of them together",
        None => "runs them together",
    };
    format!(
        "The demo boots its own small VMs, {}, on the {} pCPUs that it may use. It {first} in {} of sharing the host: {}. \
         This takes about {}. It changes only its own VMs and cgroups, and removes them at the end; Ctrl-C stops it.",
        vms.join(", "),
        plan.pcpus.len(),
        match modes.len() {
            1 => "one way".to_owned(),
            ways => format!("{ways} ways"),
        },
        modes.join(", "),
        in_words(estimate(plan)),
    )
}

/// Estimates the duration of the demo.
fn estimate(plan: &Plan) -> Duration {
    let kinds = alone::distinct([plan]) as u32;
    let alone = plan.alone.map_or(Duration::ZERO, |time| (time + OVERHEAD) * kinds);
    alone + (plan.settle + plan.window + OVERHEAD) * plan.modes.len() as u32
}

fn in_words(time: Duration) -> String {
    match time.as_secs_f64().ceil() as u64 {
        1 => "a second".to_owned(),
        seconds @ ..=90 => format!("{seconds} seconds"),
        seconds => format!("{} minutes", seconds.div_ceil(60)),
    }
}

/// Returns the next steps after the demo, with the program as it was called.
pub fn next(program: &str) -> String {
    format!(
        "Next, on a host with VMs of your own (only the last command changes anything):\n\
         \x20 sudo {program} host why                                           # why VMs are slow, and what to do\n\
         \x20 sudo {program} host top                                           # CPU time of every VM by state\n\
         \x20 sudo {program} host run --select-all --dry-run --duration 10s      # print the actions of the daemon\n\
         \x20 sudo {program} host run --select-all                              # start the daemon; Ctrl-C reverts its changes\n\
         docs/README.md explains them, and 'make deb' builds a Debian package with units of systemd."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up() {
        let words = |seconds| in_words(Duration::from_secs_f64(seconds));
        assert_eq!(words(0.2), "a second");
        assert_eq!(words(41.5), "42 seconds");
        assert_eq!(words(91.0), "2 minutes");
    }
}
