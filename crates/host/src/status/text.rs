//! [`HostStatus`] as text: the service, and a line for each VM.

use std::path::Path;
use std::time::Duration;

use crate::columns::{Columns, Field, Style, Tone};
use crate::config::restore_command;
use crate::status::{DaemonState, HostStatus, ManagedStatus, ServiceStatus};

/// Returns the status; with `with_vcpus`, a line for each vCPU whose demand is known.
pub fn text(status: &HostStatus, with_vcpus: bool, state_dir: &Path, style: Style) -> String {
    match &status.service {
        Some(service) => running(service, with_vcpus, style),
        None => absent(status, state_dir),
    }
}

/// Why there is no service, and the next step.
fn absent(status: &HostStatus, state_dir: &Path) -> String {
    let mut lines = vec![match (status.daemon, status.unrestored) {
        (DaemonState::Gone, true) => {
            let restore = restore_command(state_dir);
            format!(
                "no daemon runs, and changes are left (by a killed daemon or 'host why --try'); '{restore}' reverts them"
            )
        }
        (DaemonState::Gone, false) => "no daemon runs; all changes are reverted".to_owned(),
        (DaemonState::Running, _) => {
            "a daemon runs without a control socket; restart it, or see its log".to_owned()
        }
        (DaemonState::Elsewhere | DaemonState::None, _) => {
            format!("no daemon runs with the state directory {}", state_dir.display())
        }
    }];
    if status.elsewhere > 0 {
        lines.push(format!(
            "a daemon with another state directory manages {} VMs of this host; give its --state-dir",
            status.elsewhere
        ));
    }
    lines.push("'tandem host top' shows the VMs without a daemon".to_owned());
    lines.join("\n")
}

fn running(service: &ServiceStatus, with_vcpus: bool, style: Style) -> String {
    let mode = if service.dry_run { ", dry run: it changes nothing" } else { "" };
    let file = match &service.settings_file {
        Some(file) => format!("settings {}", file.display()),
        None => "no settings file".to_owned(),
    };
    let policies =
        if service.policies.is_empty() { "none".to_owned() } else { service.policies.join(", ") };
    let mut lines = vec![format!(
        "tandem {} running for {} (pid {}), {file}, policies {policies}{mode}",
        service.version,
        uptime(service.uptime),
        service.pid
    )];
    match (service.vms.is_empty(), service.selects) {
        (true, false) => lines.push(
            "no VM is selected; add VMs to the section [host.select] of the settings file and reload the service".to_owned(),
        ),
        (true, true) => lines.push("no VM of this host is selected; 'tandem host list' lists them".to_owned()),
        (false, _) => lines.push(table(service, with_vcpus, style)),
    }
    lines.extend(service.turns.as_ref().map(|turns| {
        let late = match turns.lateness_us(0.99) {
            Some(us) => format!("99 % at most {us} us late"),
            None => "more than 1 % later than 20 ms".to_owned(),
        };
        format!("{} turns since the start, {} later than 1 ms; {late}", turns.turns, turns.late)
    }));
    lines.extend(service.flexs_off.iter().map(|why| format!("the policy flexs is off: {why}")));
    lines.extend(service.vms.iter().filter_map(|vm| {
        let account = vm.flexs.as_ref()?;
        Some(format!("VM {}: {account}", vm.name))
    }));
    lines.join("\n")
}

/// `3d 4h`, `5m 7s`
fn uptime(seconds: f64) -> String {
    let seconds = Duration::try_from_secs_f64(seconds).unwrap_or_default().as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, ..) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

/// Heading and field of a VM.
type Column = (&'static str, fn(&ManagedStatus) -> Field);

const COLUMNS: [Column; 11] = [
    ("<VM", |vm| vm.name.as_str().into()),
    ("pid", |vm| vm.pid.to_string().into()),
    ("vCPU", |vm| vm.vcpus.to_string().into()),
    ("share", |vm| known(vm.fair_share, |share| format!("{share:.3}"))),
    ("received", |vm| known(vm.received, |received| format!("{received:.3}"))),
    ("lag%", |vm| known(vm.lag, |lag| format!("{:+.1}", lag * 100.0))),
    ("wait ms", |vm| known(vm.wait_ms, |wait| format!("{wait:.2}"))),
    ("weight", weight),
    ("<turns", |vm| yes(vm.turns)),
    ("<apart", |vm| yes(vm.apart)),
    ("<state", state),
];

fn table(service: &ServiceStatus, with_vcpus: bool, style: Style) -> String {
    let mut columns = Columns::new(&COLUMNS.map(|(heading, _)| heading));
    for vm in &service.vms {
        columns.row(COLUMNS.map(|(_, field)| field(vm)));
        for (vcpu, demand) in vm.demands.iter().filter(|_| with_vcpus) {
            let state = format!("wants {:.3}, urgency {}", demand.demand, demand.urgency);
            columns.row(COLUMNS.map(|(heading, _)| match heading {
                "vCPU" => vcpu.to_string().into(),
                "share" => format!("{:.3}", demand.due).into(),
                "<state" => state.as_str().into(),
                _ => Field::default(),
            }));
        }
    }
    columns.text(style)
}

fn weight(vm: &ManagedStatus) -> Field {
    match (vm.weight, vm.configured_weight) {
        (Some(weight), Some(configured)) if weight.round() != configured.round() => {
            format!("{weight:.0} ({configured:.0})").into()
        }
        (weight, _) => known(weight, |weight| format!("{weight:.0}")),
    }
}

fn state(vm: &ManagedStatus) -> Field {
    match (vm.paused, vm.policies.is_empty()) {
        (true, _) => Field::toned("paused", Tone::Warn),
        (false, true) => "measured only".into(),
        (false, false) => "managed".into(),
    }
}

fn yes(is: bool) -> Field {
    if is { "yes" } else { "no" }.into()
}

/// Formats a figure, or a dash if it is unknown.
fn known(figure: Option<f64>, shown: impl FnOnce(f64) -> String) -> Field {
    figure.map_or_else(|| "–".to_owned(), shown).into()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::config::DEFAULT_STATE_DIR;
    use crate::status::{SCHEMA, Wanted};

    fn vm(name: &str) -> ManagedStatus {
        let wants = Wanted { due: 0.75, demand: 0.9, urgency: 3 };
        ManagedStatus {
            name: name.to_owned(),
            pid: 100,
            vcpus: 2,
            cgroup: None,
            policies: vec!["fair".to_owned()],
            fair_share: Some(1.25),
            received: Some(1.0),
            lag: Some(0.2),
            wait_ms: Some(2.5),
            weight: Some(130.0),
            configured_weight: Some(100.0),
            turns: true,
            apart: false,
            paused: false,
            flexs: None,
            demands: [(0, wants)].into(),
        }
    }

    fn status(vms: Vec<ManagedStatus>) -> HostStatus {
        HostStatus {
            schema: SCHEMA,
            daemon: DaemonState::Running,
            unrestored: false,
            elsewhere: 0,
            service: Some(ServiceStatus {
                pid: 7,
                version: "0.2.0".to_owned(),
                started: 1_700_000_000,
                uptime: 3_700.0,
                settings_file: Some(PathBuf::from("/etc/tandem.toml")),
                dry_run: false,
                selects: true,
                policies: vec!["fair".to_owned(), "turns".to_owned()],
                turns: None,
                flexs_off: None,
                vms,
            }),
        }
    }

    fn shown(status: &HostStatus, with_vcpus: bool) -> String {
        text(status, with_vcpus, Path::new(DEFAULT_STATE_DIR), Style::default())
    }

    #[test]
    fn service_and_each_vm_have_a_line() {
        let mut paused = vm("web");
        (paused.paused, paused.weight, paused.fair_share) = (true, None, None);
        let text = shown(&status(vec![vm("db"), paused]), false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "tandem 0.2.0 running for 1h 1m (pid 7), settings /etc/tandem.toml, policies fair, turns"
        );
        let words: Vec<&str> = lines[2].split_whitespace().collect();
        assert_eq!(
            words,
            [
                "db", "100", "2", "1.250", "1.000", "+20.0", "2.50", "130", "(100)", "yes", "no",
                "managed"
            ]
        );
        assert!(lines[3].ends_with("paused") && lines[3].contains('–'), "{text}");
        assert!(lines[1..].iter().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn vcpu_demands_have_lines() {
        let status = status(vec![vm("db")]);
        assert_eq!(shown(&status, true).lines().count(), shown(&status, false).lines().count() + 1);
        assert!(shown(&status, true).contains("wants 0.900, urgency 3"));
    }

    #[test]
    fn a_daemon_without_vms_names_the_next_step() {
        let mut none = status(Vec::new());
        assert!(shown(&none, false).contains("host list"));
        let service = none.service.as_mut().unwrap();
        (service.selects, service.dry_run) = (false, true);
        let text = shown(&none, false);
        assert!(text.contains("[host.select]") && text.contains("dry run"), "{text}");
    }

    #[test]
    fn absent_daemon_names_leftovers() {
        let mut none =
            HostStatus { daemon: DaemonState::None, service: None, ..status(Vec::new()) };
        let text = shown(&none, false);
        assert!(text.starts_with("no daemon runs") && text.contains("host top"), "{text}");
        (none.daemon, none.unrestored, none.elsewhere) = (DaemonState::Gone, true, 2);
        let text = super::text(&none, false, Path::new("/tmp/x"), Style::default());
        assert!(text.contains("restore --state-dir /tmp/x' reverts"), "{text}");
        assert!(text.contains("manages 2 VMs"), "{text}");
    }
}
