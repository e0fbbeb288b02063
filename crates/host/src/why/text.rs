//! [`WhyInterval`] as text: a few lines for each finding, the costliest first.
//!
//! ```text
//! 1  db (process 812): its vCPUs are stacked while pCPUs idle
//!    costs 1000 ms per second, 100 % of what it runs
//!    vCPUs 0, 1 want 2.00 pCPUs and may run on pCPU 0 only
//!    do: sudo taskset -cp 0-1 815
//!    (lets the host's scheduler spread them)
//! ```

use std::collections::BTreeMap;
use std::fmt::Write;

use tandem_observe::findings::{Cure, Finding};

use super::WhyInterval;

/// Formats the findings, or states that nothing is wrong; then the causes that were not looked for.
pub fn text(interval: &WhyInterval) -> String {
    let mut text = String::new();
    let mut said = BTreeMap::new();
    for (finding, number) in interval.findings.iter().zip(1..) {
        text += &one(finding, number, &mut said);
    }
    if interval.findings.is_empty() {
        text += &quiet(interval);
    }
    let not: Vec<String> =
        interval.not_looked_for.iter().map(|not| format!("{} ({})", not.what, not.want)).collect();
    if !not.is_empty() {
        let _ = writeln!(text, "not looked for: {}", not.join("; "));
    }
    for note in &interval.notes {
        let _ = writeln!(text, "{}", shown(note));
    }
    text.trim_end().to_owned()
}

/// Replaces control characters, line breaks and characters that change the writing direction by `?`.
/// Tenants choose the names of VMs, processes and threads, so these are not trusted.
pub(super) fn shown(text: &str) -> String {
    let is_hidden = |c: char| {
        let hides = ['\u{200b}'..='\u{200f}', '\u{2028}'..='\u{202e}', '\u{2060}'..='\u{206f}'];
        c.is_control() || c == '\u{feff}' || hides.iter().any(|range| range.contains(&c))
    };
    let shown = text.chars().map(|c| if is_hidden(c) { '?' } else { c });
    shown.collect()
}

/// Formats one finding. `said` maps each command to the number of the finding that printed it first.
fn one<'a>(
    finding: &'a Finding,
    number: usize,
    said: &mut BTreeMap<&'a [String], usize>,
) -> String {
    let margin = " ".repeat(number.to_string().len() + 2);
    let mut text = format!(
        "{number}  {} (process {}): {}\n",
        shown(&finding.vm),
        finding.pid,
        finding.kind.words()
    );
    let _ = match finding.burned_per_second {
        Some(burned) => writeln!(
            text,
            "{margin}burns {:.0} ms per second of the host's time, and takes none of its own",
            burned.0 as f64 / 1e6
        ),
        None => {
            let of_run = finding.lost_of_run.map_or_else(
                || "and it does not run".to_owned(),
                |part| format!("{:.0} % of what it runs", part * 100.0),
            );
            writeln!(
                text,
                "{margin}costs {:.0} ms per second, {of_run}",
                finding.lost_per_second.0 as f64 / 1e6
            )
        }
    };
    for line in &finding.evidence {
        let _ = writeln!(text, "{margin}{}", shown(line));
    }
    let Cure { commands, undo, .. } = &finding.cure;
    match said.get(commands.as_slice()).filter(|_| !commands.is_empty()) {
        // A repeated command would be applied twice by users who paste them all.
        Some(first) => {
            let _ = writeln!(text, "{margin}do: see {first}, once for both");
        }
        None => {
            said.insert(commands, number);
            for (verb, commands) in [("do", commands), ("undo", undo)] {
                for command in commands {
                    let _ = writeln!(text, "{margin}{verb}: {}", shown(command));
                }
            }
        }
    }
    let _ = writeln!(text, "{margin}({})\n", shown(&finding.cure.remark));
    text
}

fn quiet(interval: &WhyInterval) -> String {
    let mut text = match &interval.vms[..] {
        [] => "no VM was measured".to_owned(),
        [only] => format!("nothing is wrong: {} gets the pCPUs that it wants", shown(only)),
        vms => format!("nothing is wrong: {} VMs get the pCPUs that they want", vms.len()),
    };
    let _ = write!(text, ", over {:.1} s", interval.seconds);
    if let Some(idle) = interval.host.idle {
        let idle = idle.as_secs_f64() / interval.seconds.max(1e-9);
        let _ = write!(text, "; {idle:.2} of {} pCPUs idled", interval.host.pcpus);
    }
    if interval.unreadable > 0 {
        let _ = write!(text, "; {} VMs could not be looked into", interval.unreadable);
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use tandem_model::states::interval::{HostTotals, SourceName};
    use tandem_model::{Nanos, VmId};
    use tandem_observe::findings::{Kind, NotLookedFor, Severity};

    use super::*;

    fn interval(findings: Vec<Finding>) -> WhyInterval {
        WhyInterval {
            schema: super::super::SCHEMA,
            start: Nanos::ZERO,
            seconds: 2.0,
            source: SourceName::Plain,
            vms: vec!["db".to_owned()],
            unreadable: 0,
            findings,
            not_looked_for: vec![NotLookedFor {
                what: "halt polling",
                want: "run as root".to_owned(),
            }],
            notes: Vec::new(),
            host: HostTotals {
                pcpus: 2,
                idle: Some(Nanos::from_millis(3000)),
                ..HostTotals::default()
            },
        }
    }

    fn finding() -> Finding {
        Finding {
            vm: "db".to_owned(),
            pid: 812,
            id: VmId(1),
            kind: Kind::HostProcess,
            severity: Severity::Bad,
            lost_per_second: Nanos::from_millis(500),
            lost_of_run: Some(1.0),
            burned_per_second: None,
            evidence: vec!["it waits for \x1b[31mcc1\ndo: sh /tmp/x".to_owned()],
            cure: Cure {
                commands: vec!["sudo renice -n 19 -p 77".to_owned()],
                undo: Vec::new(),
                remark: "stands back".to_owned(),
                changes: Vec::new(),
            },
        }
    }

    #[test]
    fn finding_has_command_to_paste() {
        assert_eq!(
            text(&interval(vec![finding()])),
            "1  db (process 812): processes of the host take its time\n   costs 500 ms per second, 100 % of what it runs\n   \
             it waits for ?[31mcc1?do: sh /tmp/x\n   do: sudo renice -n 19 -p 77\n   (stands back)\n\n\
             not looked for: halt polling (run as root)"
        );
    }

    #[test]
    fn repeated_command_is_printed_once() {
        let set = |weight: u32| format!("echo {weight} | sudo tee /cg/build/cpu.weight");
        let slow = |vm: &str| Finding {
            vm: vm.to_owned(),
            cure: Cure {
                commands: vec![set(10)],
                undo: vec![set(100)],
                remark: "weight 10 instead of 100".to_owned(),
                changes: Vec::new(),
            },
            ..finding()
        };
        let said = text(&interval(vec![slow("db"), finding(), slow("web")]));
        let lines = |start: &str| -> Vec<&str> {
            let lines = said.lines().map(str::trim_start);
            lines.filter(|line| line.starts_with(start)).collect()
        };
        let done = format!("do: {}", set(10));
        let renice = "do: sudo renice -n 19 -p 77";
        let again = "do: see 1, once for both";
        assert_eq!(lines("do: "), [done.as_str(), renice, again], "{said}");
        assert_eq!(lines("undo: "), [format!("undo: {}", set(100))], "{said}");
    }

    #[test]
    fn burned_host_time_is_not_a_cost() {
        let said = text(&interval(vec![Finding {
            lost_per_second: Nanos::ZERO,
            lost_of_run: None,
            burned_per_second: Some(Nanos::from_millis(300)),
            ..finding()
        }]));
        assert!(said.contains("burns 300 ms per second of the host's time"), "{said}");
        assert!(!said.contains("costs") && !said.contains("does not run"), "{said}");
    }

    #[test]
    fn quiet_host_has_no_findings() {
        let said = text(&interval(Vec::new()));
        let first = "nothing is wrong: db gets the pCPUs that it wants, over 2.0 s; 1.50 of 2 pCPUs idled\n";
        assert!(said.starts_with(first), "{said}");
        let mut noted = interval(Vec::new());
        noted.notes = vec!["not counted: 2 waits".to_owned()];
        assert!(text(&noted).ends_with("\nnot counted: 2 waits"), "{said}");
        let mut empty = interval(Vec::new());
        empty.vms.clear();
        empty.unreadable = 3;
        let said = text(&empty);
        assert!(said.starts_with("no VM was measured"), "{said}");
        assert!(said.contains("3 VMs could not be looked into"), "{said}");
    }
}
