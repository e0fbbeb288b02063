//! [`HostStatus`] as text: one line for each VM, or each vCPU too.

use std::ops::Add;
use std::path::Path;

use crate::columns::Columns;
use crate::columns::Field;
use crate::columns::Style;
use crate::config::DEFAULT_STATE_DIR;
use crate::status::DaemonState;
use crate::status::HostStatus;
use crate::status::VmStatus;

/// What is shown: of each vCPU too, if `with_vcpus`.
pub fn text(status: &HostStatus, with_vcpus: bool, state_dir: &Path, style: Style) -> String {
    let table = table(status, with_vcpus, style);
    let state_dir = match state_dir == Path::new(DEFAULT_STATE_DIR) {
        true => String::new(),
        false => format!(" --state-dir {}", state_dir.display()),
    };
    let elsewhere = match status.vms.iter().filter(|vm| vm.elsewhere).count() {
        0 => String::new(),
        vms => format!(
            "a daemon that keeps its state elsewhere looks after {vms} of these VMs: what is configured for them, and due to them, is not known here; \
             give its --state-dir\n"
        ),
    };
    match (status.daemon, status.unrestored) {
        (DaemonState::Gone, true) => format!(
            "the daemon is gone; `tandem host restore{state_dir}` puts back what it changed\n{elsewhere}{table}"
        ),
        (DaemonState::Gone, false) => {
            format!("the daemon is gone; nothing that it changed is left\n{table}")
        }
        (DaemonState::Elsewhere | DaemonState::Running | DaemonState::None, _) => {
            format!("{elsewhere}{table}")
        }
    }
}

fn table(status: &HostStatus, with_vcpus: bool, style: Style) -> String {
    if status.vms.is_empty() {
        return "no VM found".to_owned();
    }
    let mut headings = vec![
        "<VM", "pid", "vCPU", "CPU%", "wait%", "wait ms", "weight", "due", "received", "lag%",
        "<turns", "<apart",
    ];
    if with_vcpus {
        headings.extend(["<pCPUs", "urgency", "wants"]);
    }
    let mut columns = Columns::new(&headings);
    for vm in &status.vms {
        columns.row(of_vm(vm));
        for vcpu in vm.vcpus.iter().filter(|_| with_vcpus) {
            let of_wanted = |say: &dyn Fn(crate::status::Wanted) -> String| {
                Field::from(vcpu.wanted.map(say).unwrap_or_default())
            };
            columns.row([
                "".into(),
                vcpu.tid.to_string().into(),
                vcpu.index.to_string().into(),
                format!("{:.1}", vcpu.cpu * 100.0).into(),
                format!("{:.1}", vcpu.wait * 100.0).into(),
                wait_ms(vcpu.wait_ms).into(),
                "".into(),
                of_wanted(&|wanted| format!("{:.3}", wanted.due)),
                "".into(),
                "".into(),
                "".into(),
                "".into(),
                vcpu.allowed.to_string().into(),
                of_wanted(&|wanted| wanted.urgency.to_string()),
                of_wanted(&|wanted| format!("{:.3}", wanted.demand)),
            ]);
        }
    }
    let turns = status.turns.as_ref().map_or_else(String::new, |turns| {
        let late = match turns.lateness_us(0.99) {
            Some(us) => format!("99 % at most {us} us late"),
            None => "more than 1 % later than 20 ms".to_owned(),
        };
        format!(
            "\n{} turns since the daemon started, {} later than 1 ms; {late}",
            turns.turns, turns.late
        )
    });
    let idle = match status.idle {
        Some(idle) => format!("{idle:.2} pCPUs idle"),
        None => "idle time not measured".to_owned(),
    };
    let off = status.flexs_off.iter();
    let off = off.map(|why| format!("\nthe policy flexs is off: {why}"));
    let spins = status.vms.iter().filter_map(|vm| {
        let account = vm.flexs.as_ref()?;
        Some(format!("\nVM {}: {}", vm.name, account.in_words()))
    });
    let flexs: String = off.chain(spins).collect();
    format!(
        "{}\n{idle} over {:.2} s{turns}{flexs}",
        columns.text(style),
        status.seconds
    )
}

fn of_vm(vm: &VmStatus) -> [Field; 12] {
    // Not `sum`, which is -0.0 of none.
    let sum =
        |of: fn(&crate::status::VcpuStatus) -> f64| vm.vcpus.iter().map(of).fold(0.0, Add::add);
    let weight = match (vm.weight, vm.configured) {
        (Some(weight), Some(configured)) if weight != configured => {
            format!("{weight:.0} ({configured:.0})")
        }
        (Some(weight), _) => format!("{weight:.0}"),
        (None, _) if vm.idle => "idle".to_owned(),
        (None, _) => "none".to_owned(),
    };
    let yes = |is: bool| Field::from(if is { "yes" } else { "no" });
    [
        vm.name.as_str().into(),
        vm.pid.to_string().into(),
        vm.vcpus.len().to_string().into(),
        format!("{:.1}", sum(|vcpu| vcpu.cpu) * 100.0).into(),
        format!("{:.1}", sum(|vcpu| vcpu.wait) * 100.0).into(),
        wait_ms(vm.wait_ms).into(),
        weight.into(),
        known(vm.due, |due| format!("{due:.3}")).into(),
        format!("{:.3}", vm.received).into(),
        known(vm.lag, |lag| format!("{:+.1}", lag * 100.0)).into(),
        yes(vm.turns),
        yes(vm.apart),
    ]
}

/// Mean wait per run; a dash for what did not run.
fn wait_ms(wait: Option<f64>) -> String {
    known(wait, |wait| format!("{wait:.2}"))
}

/// A figure, or a dash where it is not known.
fn known(figure: Option<f64>, shown: impl FnOnce(f64) -> String) -> String {
    figure.map_or_else(|| "–".to_owned(), shown)
}

#[cfg(test)]
mod tests {
    use tandem_linux::cgroup::Version;
    use tandem_policy::VcpuId;

    use super::*;
    use crate::status::VcpuStatus;
    use crate::status::Wanted;

    fn status() -> HostStatus {
        let vcpu = |index: u32| VcpuStatus {
            index: VcpuId(index),
            tid: 101 + index,
            cpu: 0.5,
            wait: 0.25,
            wait_ms: None,
            allowed: "0-1".parse().unwrap(),
            wanted: (index == 0).then_some(Wanted {
                due: 0.75,
                demand: 0.9,
                urgency: 3,
            }),
        };
        HostStatus {
            cgroup: Version::V2,
            seconds: 1.0,
            idle: Some(0.5),
            daemon: DaemonState::None,
            unrestored: false,
            turns: None,
            flexs_off: None,
            vms: vec![VmStatus {
                name: "web".to_owned(),
                pid: 100,
                vmm: "qemu".to_owned(),
                cgroup: None,
                managed: false,
                elsewhere: false,
                configured: Some(100.0),
                weight: None,
                idle: false,
                turns: false,
                apart: true,
                flexs: None,
                received: 1.0,
                due: Some(1.25),
                lag: Some(0.2),
                wait_ms: Some(2.5),
                vcpus: vec![vcpu(0), vcpu(1)],
            }],
            found: 1,
        }
    }

    fn shown(status: &HostStatus, with_vcpus: bool) -> String {
        text(
            status,
            with_vcpus,
            Path::new(DEFAULT_STATE_DIR),
            Style::default(),
        )
    }

    #[test]
    fn a_vm_is_one_line_that_fits_a_terminal() {
        let text = shown(&status(), false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(
            lines[1].starts_with("web 100    2 100.0  50.0    2.50"),
            "{text}"
        );
        assert!(
            lines.iter().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        assert!(lines[2].starts_with("0.50 pCPUs idle"), "{text}");
    }

    #[test]
    fn with_vcpus_each_has_a_line_with_what_it_wants() {
        let text = shown(&status(), true);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        let words: Vec<&str> = lines[2].split_whitespace().collect();
        assert_eq!(
            words,
            [
                "101", "0", "50.0", "25.0", "–", "0.750", "0-1", "3", "0.900"
            ]
        );
        assert!(
            lines[3].ends_with("0-1"),
            "nothing is known of its wants: {text}"
        );
    }

    #[test]
    fn who_spins_and_why_nobody_is_looked_at_have_lines_of_their_own() {
        let mut status = status();
        status.flexs_off = Some("needs a PMU".to_owned());
        status.vms[0].flexs = serde_json::from_str(
            r#"{"counters": "synthetic", "spinning": [0, 1], "judged": 9, "spun": 4, "swaps": 2, "failed": 0}"#,
        )
        .unwrap();
        let text = shown(&status, false);
        let lines: Vec<&str> = text.lines().skip(3).collect();
        let wanted = [
            "the policy flexs is off: needs a PMU",
            "VM web: by synthetic counters a vCPU spun in 4 of 9 periods that were judged; swaps: 2; vCPUs 0, 1 spin now",
        ];
        assert_eq!(lines, wanted);
    }

    #[test]
    fn what_is_not_known_of_a_vm_is_a_dash() {
        let mut status = status();
        status.daemon = DaemonState::Elsewhere;
        let vm = &mut status.vms[0];
        (vm.elsewhere, vm.idle) = (true, true);
        (vm.configured, vm.due, vm.lag) = (None, None, None);
        let text = shown(&status, false);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("looks after 1 of these VMs"), "{text}");
        let words: Vec<&str> = lines[2].split_whitespace().collect();
        assert_eq!(words[6..10], ["idle", "–", "1.000", "–"], "{text}");
    }

    #[test]
    fn a_vm_without_vcpus_uses_nothing() {
        let mut status = status();
        status.vms[0].vcpus.clear();
        let text = shown(&status, false);
        let words: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(words[2..5], ["0", "0.0", "0.0"], "{text}");
    }

    #[test]
    fn a_daemon_that_is_gone_is_said_first() {
        let (mut status, mut empty) = (status(), status());
        empty.vms.clear();
        assert_eq!(shown(&empty, false), "no VM found");
        (status.daemon, status.unrestored) = (DaemonState::Gone, true);
        status.vms[0].elsewhere = true;
        let beside_another = shown(&status, false);
        let lines: Vec<&str> = beside_another.lines().collect();
        assert!(lines[0].starts_with("the daemon is gone"));
        assert!(lines[1].contains("looks after 1 of these VMs"));
        status.vms.clear();
        let text = text(&status, false, Path::new("/tmp/x"), Style::default());
        assert!(
            text.contains("restore --state-dir /tmp/x` puts back"),
            "{text}"
        );
    }
}
