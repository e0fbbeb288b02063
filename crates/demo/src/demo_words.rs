//! What the demo says before it begins and after its end: what it will do, how long that takes, and what to do next on one's own host.

use std::time::Duration;

use crate::alone;
use crate::plan::Plan;

/// Starting VMs, entering and leaving modes, each time.
const BESIDE: Duration = Duration::from_millis(500);

/// What will happen, for how long, and what it changes.
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
        Some(_) => "runs each alone first, then all of them together",
        None => "runs them together",
    };
    format!(
        "The demo boots small VMs of its own, {}, on the {} pCPUs that it may use. It {first} in {} of sharing the host: {}. \
         That takes about {}. It changes nothing but cgroups of its own and its own VMs, and leaves nothing behind; Ctrl-C ends it.",
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

/// How long the demo takes, about.
fn estimate(plan: &Plan) -> Duration {
    let kinds = alone::distinct([plan]) as u32;
    let alone = plan.alone.map_or(Duration::ZERO, |time| (time + BESIDE) * kinds);
    alone + (plan.settle + plan.window + BESIDE) * plan.modes.len() as u32
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
        "Next, on a host with VMs of your own (none of these changes anything but the last):\n\
         \x20 sudo {program} host why                                           # why VMs are slow, and what to do\n\
         \x20 sudo {program} host top                                           # where the time of every VM goes\n\
         \x20 sudo {program} host run --select-all --dry-run --duration 10s      # what the daemon would do\n\
         \x20 sudo {program} host run --select-all                              # do it, until Ctrl-C; then all is as it was\n\
         docs/README.md explains them, and 'make deb' builds a Debian package with units of systemd."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_said_as_people_say_them() {
        let said = |seconds| in_words(Duration::from_secs_f64(seconds));
        assert_eq!(said(0.2), "a second");
        assert_eq!(said(41.5), "42 seconds");
        assert_eq!(said(91.0), "2 minutes");
    }
}
