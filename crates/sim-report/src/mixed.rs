//! Mixed hosts as tables and a picture: the distribution of deserved work under each policy, by program,
//! and the worst VMs with the use of their time.

use tandem_experiment::mixed::{Hosts, LIMITS, Mixed, PolicyFigures, VmFigures, geometric_mean_of};
use tandem_model::Nanos;
use tandem_report::chart::LineChart;
use tandem_report::chart::line::LineSeries;
use tandem_report::chart::picture::{self, Panel};
use tandem_report::figure;
use tandem_report::table::{Align, Cell, Table, Tone};

/// Size of a chart in a picture.
const SIZE: (f64, f64) = (1000.0, 300.0);

/// Returns the tables of all hosts; `worst` is the number of worst VMs to show for each policy.
pub fn text(mixed: &Mixed, worst: usize) -> String {
    let mut text = String::new();
    for hosts in &mixed.hosts {
        let Nanos(measured) = mixed.measured;
        let vms = hosts.policies.first().map_or(0, |policy| policy.vms.len());
        text.push_str(&format!(
            "{}: {vms} VMs on {}, {} each\n\n{}\n\n{}\n\n",
            name(hosts),
            number_of_hosts(mixed),
            figure::time(measured as f64),
            policies(hosts),
            programs(hosts),
        ));
        if worst > 0 {
            text.push_str(&format!("Worst VMs, time in pCPUs:\n\n{}\n\n", worst_vms(hosts, worst)));
        }
        let missing = hosts.policies.iter().map(|policy| policy.all.not_measured).max();
        if let Some(missing) = missing.filter(|missing| *missing > 0) {
            text.push_str(&format!(
                "Not measured: {missing} VMs that did no work alone, or did not end.\n\n"
            ));
        }
    }
    text.trim_end().to_owned()
}

fn number_of_hosts(mixed: &Mixed) -> String {
    match mixed.seeds.len() {
        1 => "1 host".to_owned(),
        many => format!("{many} hosts"),
    }
}

fn name(hosts: &Hosts) -> String {
    format!("{} pCPUs, overcommit {}", hosts.pcpus, figure::plain(hosts.overcommit))
}

/// Returns a row for each policy.
fn policies(hosts: &Hosts) -> Table {
    let below: Vec<String> = LIMITS.iter().map(|limit| format!("< {limit}")).collect();

    let mut headings = vec!["policies", "deserved work"];
    headings.extend(below.iter().map(String::as_str));
    headings.extend(["p99 no worse", "p99 ratio", "useful", "spinning", "exits", "idle"]);
    let mut table = with_numbers(&headings, 1);
    for policy in &hosts.policies {
        let part = |names: &[&str]| -> Cell {
            let sum = names.iter().filter_map(|name| policy.time.get(name)).sum();
            figure::percent(sum).into()
        };
        let mut cells: Vec<Cell> =
            vec![Cell::toned(&policy.policy, Tone::Strong), mean(policy.all.geometric_mean)];
        cells.extend(policy.all.below.iter().map(|count| Cell::from(count.to_string())));
        cells.extend(match &policy.requests {
            Some(requests) => [
                format!("{} of {}", requests.no_worse, requests.vms).into(),
                format!("{:.2}", requests.ratio).into(),
            ],
            None => [Cell::default(), Cell::default()],
        });
        cells.extend([
            part(&["useful"]),
            part(&["spin_user", "spin_kernel", "shootdown_wait"]),
            part(&["exits"]),
            part(&["idle", "polling", "idle_poll"]),
        ]);
        table.row(cells);
    }
    table
}

/// Returns a table with numbers after the first `texts` columns.
fn with_numbers(headings: &[&str], texts: usize) -> Table {
    let align = |at| if at < texts { Align::Left } else { Align::Right };
    let headings = headings.iter().enumerate().map(|(at, text)| (*text, align(at)));
    Table::new(&headings.collect::<Vec<(&str, Align)>>())
}

fn mean(mean: Option<f64>) -> Cell {
    match mean {
        Some(mean) => format!("{mean:.3}").into(),
        None => Cell::toned(figure::NOT_MEASURED, Tone::Faint),
    }
}

/// Returns a row for each class and each of its programs: the geometric mean under each policy.
fn programs(hosts: &Hosts) -> Table {
    let mut headings = vec!["class", "program", "VMs"];
    headings.extend(hosts.policies.iter().map(|policy| policy.policy.as_str()));
    let mut table = with_numbers(&headings, 2);
    let Some(first) = hosts.policies.first() else { return table };
    let mut programs: Vec<(&str, &str)> =
        first.vms.iter().map(|vm| (vm.class.as_str(), vm.program.as_str())).collect();
    programs.sort_unstable();
    programs.dedup();
    for class in first.classes.keys() {
        let own = |policy: &PolicyFigures| policy.classes.get(class)?.geometric_mean;
        let vms = first.vms.iter().filter(|vm| vm.class == *class).count();
        if vms == 0 {
            continue;
        }
        let mut cells =
            vec![Cell::toned(class, Tone::Strong), Cell::default(), Cell::from(vms.to_string())];
        cells.extend(hosts.policies.iter().map(|policy| mean(own(policy))));
        table.row(cells);
        for (_, program) in programs.iter().filter(|(of, _)| of == class) {
            let is_own = |vm: &&VmFigures| vm.class == *class && vm.program == *program;
            let vms = first.vms.iter().filter(is_own).count();
            let mut cells =
                vec![Cell::default(), Cell::from(*program), Cell::from(vms.to_string())];
            cells.extend(
                hosts
                    .policies
                    .iter()
                    .map(|policy| mean(geometric_mean_of(policy.vms.iter().filter(is_own)))),
            );
            table.row(cells);
        }
    }
    table
}

/// Returns the worst VMs of each policy.
fn worst_vms(hosts: &Hosts, worst: usize) -> Table {
    let headings = [
        "policies",
        "VM",
        "seed",
        "deserved work",
        "fair share",
        "received",
        "useful",
        "spinning",
        "kernel",
        "exits",
        "caches",
        "steal",
        "halted",
    ];
    let mut table = with_numbers(&headings, 2);
    for policy in &hosts.policies {
        let mut vms: Vec<(f64, &VmFigures)> =
            policy.vms.iter().filter_map(|vm| Some((vm.deserved?, vm))).collect();
        vms.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut policy = Cell::toned(&policy.policy, Tone::Strong);
        for (deserved, vm) in vms.into_iter().take(worst) {
            let part = |names: &[&str]| -> Cell {
                let sum: f64 = names.iter().filter_map(|name| vm.time.get(name)).sum();
                format!("{sum:.2}").into()
            };
            table.row([
                std::mem::take(&mut policy),
                vm.vm.as_str().into(),
                vm.seed.to_string().into(),
                format!("{deserved:.3}").into(),
                format!("{:.2}", vm.fair_share).into(),
                format!("{:.2}", vm.received).into(),
                part(&["useful"]),
                part(&["spin_user", "spin_kernel", "shootdown_wait"]),
                part(&["guest_kernel"]),
                part(&["exits"]),
                part(&["cache"]),
                part(&["steal"]),
                part(&["halted"]),
            ]);
        }
    }
    table
}

/// Returns a picture: for each size of host the distribution of deserved work under each policy.
pub fn picture(mixed: &Mixed) -> String {
    let panel = |hosts: &Hosts| {
        let series = |(colour, policy): (usize, &PolicyFigures)| LineSeries {
            name: policy.policy.clone(),
            colour,
            points: distribution(policy),
            guide: None,
        };
        let chart = LineChart {
            title: format!("Deserved work, {}", name(hosts)),
            x_unit: "deserved work".to_owned(),
            y_unit: "fraction of VMs with at most this deserved work".to_owned(),
            series: hosts.policies.iter().enumerate().map(series).collect(),
            y_max: 1.0,
            before_zero: None,
            size: SIZE,
        };
        Panel { caption: name(hosts), chart: chart.svg(), size: SIZE }
    };
    let panels: Vec<Panel> = mixed.hosts.iter().map(panel).collect();
    let Nanos(measured) = mixed.measured;
    let hosts = number_of_hosts(mixed);
    let subtitle = format!("{hosts} simulated per size, {} each", figure::time(measured as f64));
    picture::svg("Work of VMs relative to their fair share", &subtitle, &panels)
}

/// Returns the steps of the cumulative distribution.
fn distribution(policy: &PolicyFigures) -> Vec<(f64, f64)> {
    let mut deserved: Vec<f64> = policy.vms.iter().filter_map(|vm| vm.deserved).collect();
    deserved.sort_by(f64::total_cmp);
    let all = deserved.len() as f64;
    let mut points = vec![(0.0, 0.0)];
    for (at, &value) in deserved.iter().enumerate() {
        points.push((value, at as f64 / all));
        points.push((value, (at + 1) as f64 / all));
    }
    points
}
