//! Waits in an interval by victim and culprit, live, recorded or simulated.
//!
//! Each kind of wait with times has a matrix by VM, and one by vCPU if it fits.
//! A table has the longest pairs, including kinds that are counted without times.
//! A cell is the fraction of the time of the victim's vCPUs that it lost to the culprit.
//! Rows and columns are those with the most time.
//! The column `others` has the remaining culprits, and a remark counts the omitted rows.
//! Notes list the waits that the source does not observe.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use maud::{Markup, html};
use tandem_model::states::edges::{Edge, EdgeKind, Edges, Evidence, Party};
use tandem_model::states::interval::{Column, Interval};
use tandem_model::{Nanos, VmId};

use crate::chart::Matrix;
use crate::chart::matrix::MatrixCell;
use crate::figure;
use crate::table::{Align, Cell, Table, Tone};

/// Maximum number of rows and of columns of a matrix.
pub const MAX_SIDE: usize = 24;

/// Maximum number of pairs in the table.
pub const MAX_PAIRS: usize = 200;

/// Returns the whole section, with VMs by name, or by number if they have none.
///
/// It is empty if there are no waits and the source observes all kinds of waits.
pub fn section(interval: &Interval, names: &BTreeMap<VmId, String>) -> Markup {
    let unseen: Vec<String> = interval
        .missing
        .iter()
        .filter(|missing| matches!(missing.what, Column::Edges(_)))
        .map(ToString::to_string)
        .collect();
    if interval.edges.is_empty() && unseen.is_empty() {
        return html! {};
    }
    let waits = Waits { walls: walls(interval), names };
    let of_vms = interval.edges.by_vm();
    let is_estimated = |edge: Edge<'_>| edge.evidence == Evidence::Estimated;
    html! {
        h2 { "Waits by victim and culprit" }
        p.faint {
            "Rows waited; columns held the resource. A cell is the fraction of the time of the row's vCPUs that it waited for the column."
            @if interval.edges.iter().any(is_estimated) {
                " Estimated waits are divided among the culprits by their run time on the pCPUs where the victim may run."
            }
        }
        @if !unseen.is_empty() {
            ul.notes { @for note in &unseen { li { (note) } } }
        }
        @for kind in [EdgeKind::Pcpu, EdgeKind::Sibling] {
            @if let Some((matrix, left_out)) = waits.matrix(&of_vms, kind) {
                (figure(&format!("{}, by VM", caption(kind)), left_out, &matrix))
            }
            // If each VM has one vCPU, the matrix would be the same.
            @if interval.edges.len() > of_vms.len()
                && let Some((matrix, 0)) = waits.matrix(&interval.edges, kind) {
                (figure(&format!("{}, by vCPU", caption(kind)), 0, &matrix))
            }
        }
        (waits.table(&of_vms).html("Waits by victim and culprit, the longest first"))
        @if of_vms.len() > MAX_PAIRS {
            p.faint { "The longest " (MAX_PAIRS) " of " (of_vms.len()) " pairs." }
        }
    }
}

fn figure(caption: &str, left_out: usize, matrix: &Matrix) -> Markup {
    html! {
        figure {
            figcaption {
                (caption)
                @if left_out > 0 { div.faint { (left_out) " more with shorter waits" } }
            }
            div.wide { (matrix.svg()) }
        }
    }
}

fn caption(kind: EdgeKind) -> &'static str {
    match kind {
        EdgeKind::Pcpu => "For pCPUs",
        EdgeKind::Sibling => "For siblings that did not run",
        EdgeKind::YieldTaken => "Yields that helped",
        EdgeKind::YieldUseless => "Yields that did not",
    }
}

/// Returns the total time of each VM and vCPU.
fn walls(interval: &Interval) -> BTreeMap<Party, Nanos> {
    let mut walls = BTreeMap::new();
    for vm in &interval.vms {
        for vcpu in &vm.vcpus {
            let wall = vcpu.times.wall();
            let party = Party::Vcpu { vm: vm.vm, vcpu: vcpu.vcpu };
            *walls.entry(party).or_default() += wall;
            *walls.entry(Party::Vm(vm.vm)).or_default() += wall;
        }
    }
    walls
}

struct Waits<'a> {
    walls: BTreeMap<Party, Nanos>,
    names: &'a BTreeMap<VmId, String>,
}

impl Waits<'_> {
    fn name(&self, party: &Party) -> String {
        let vm = |vm: &VmId| {
            let name = self.names.get(vm);
            name.map_or_else(|| format!("VM {vm}"), String::clone)
        };
        match party {
            Party::Vcpu { vm: of, vcpu } => format!("{} vCPU {vcpu}", vm(of)),
            Party::Vm(of) => vm(of),
            Party::VmThread { vm: of, name } => format!("{}: {name}", vm(of)),
            other => other.to_string(),
        }
    }

    /// Returns a wait as a fraction of the victim's time; `None` if that is unknown.
    fn part(&self, victim: &Party, time: Nanos) -> Option<f64> {
        let wall = self.walls.get(victim).filter(|wall| wall.0 > 0)?;
        Some(time.0 as f64 / wall.0 as f64)
    }

    /// Returns the matrix of a kind, and the number of victims without a row; `None` if there are no such waits.
    fn matrix(&self, edges: &Edges, kind: EdgeKind) -> Option<(Matrix, usize)> {
        let of_kind = || edges.iter().filter(|edge| edge.kind == kind);
        let victims = longest(of_kind().map(|edge| (edge.victim, edge.time())));
        let named = of_kind().filter(|edge| *edge.culprit != Party::Others);
        let culprits = longest(named.map(|edge| (edge.culprit, edge.time())));
        if victims.is_empty() {
            return None;
        }
        let left_out = victims.len().saturating_sub(MAX_SIDE);
        let rows = &victims[..victims.len().min(MAX_SIDE)];
        let mut columns: Vec<&Party> = culprits.iter().take(MAX_SIDE - 1).copied().collect();
        let has_others =
            culprits.len() >= MAX_SIDE || of_kind().any(|edge| *edge.culprit == Party::Others);
        if has_others {
            columns.push(&Party::Others);
        }
        let place = |party: &Party| columns.iter().position(|column| *column == party);
        let cells = rows.iter().map(|victim| {
            let mut times = vec![Nanos::ZERO; columns.len()];
            for edge in edges.of(victim, kind) {
                // Culprits without a column count in the last one, `others`.
                let column = place(edge.culprit).unwrap_or(columns.len() - 1);
                times[column] += edge.time();
            }
            let cell = |(column, time): (usize, Nanos)| self.cell(victim, columns[column], time);
            times.into_iter().enumerate().map(cell).collect()
        });
        let matrix = Matrix {
            title: format!("{}: time that each row lost to each column", caption(kind)),
            rows_are: "waited".to_owned(),
            columns_are: match kind {
                EdgeKind::Pcpu => "had the pCPU",
                _ => "was waited for",
            }
            .to_owned(),
            cells: cells.collect(),
            rows: rows.iter().map(|party| self.name(party)).collect(),
            columns: columns.iter().map(|party| self.name(party)).collect(),
            series: match kind {
                EdgeKind::Pcpu => 7,
                _ => 4,
            },
            width: 1000.0,
        };
        Some((matrix, left_out))
    }

    fn cell(&self, victim: &Party, culprit: &Party, time: Nanos) -> Option<MatrixCell> {
        if time == Nanos::ZERO {
            return None;
        }
        let part = self.part(victim, time);
        let duration = figure::time(time.0 as f64);
        let target = if victim == culprit { "itself".to_owned() } else { self.name(culprit) };
        let of = part.map_or_else(String::new, |part| {
            format!(", {} of the time of its vCPUs", figure::percent(part))
        });
        Some(MatrixCell {
            value: part.unwrap_or(0.0),
            label: part.map_or_else(|| duration.clone(), figure::percent),
            tooltip: format!("{} waited {duration} for {target}{of}", self.name(victim)),
        })
    }

    /// Returns the table of pairs, the longest first, and by frequency for those without times.
    fn table(&self, edges: &Edges) -> Table {
        let mut table = Table::new(&[
            ("waited", Align::Left),
            ("for", Align::Left),
            ("what", Align::Left),
            ("time", Align::Right),
            ("of its vCPUs' time", Align::Right),
            ("times", Align::Right),
            ("known by", Align::Left),
        ]);
        let mut all: Vec<Edge<'_>> = edges.iter().collect();
        all.sort_by_key(|edge| Reverse((edge.time(), edge.amount.count)));
        for edge in all.into_iter().take(MAX_PAIRS) {
            let time = match edge.time() {
                Nanos::ZERO => Cell::default(),
                time => figure::time(time.0 as f64).into(),
            };
            let part = self.part(edge.victim, edge.time());
            let part = part.filter(|_| edge.time() > Nanos::ZERO);
            let count = edge.amount.count;
            table.row([
                Cell::toned(self.name(edge.victim), Tone::Strong),
                self.name(edge.culprit).into(),
                caption(edge.kind).into(),
                time,
                part.map_or_else(Cell::default, |part| figure::percent(part).into()),
                count.map_or_else(Cell::default, |count| count.to_string().into()),
                match edge.evidence {
                    Evidence::Measured => "seen",
                    Evidence::Estimated => "estimated",
                }
                .into(),
            ]);
        }
        table
    }
}

/// Returns the distinct parties in descending order of their total time; ties are in the order of parties.
fn longest<'a>(times: impl Iterator<Item = (&'a Party, Nanos)>) -> Vec<&'a Party> {
    let mut sums: BTreeMap<&Party, Nanos> = BTreeMap::new();
    for (party, time) in times.filter(|(_, time)| *time > Nanos::ZERO) {
        *sums.entry(party).or_default() += time;
    }
    let mut parties: Vec<(&Party, Nanos)> = sums.into_iter().collect();
    parties.sort_by_key(|(_, time)| Reverse(*time));
    parties.into_iter().map(|(party, _)| party).collect()
}

#[cfg(test)]
mod tests {
    use tandem_model::states::edges::{Amount, EdgesBuilder};
    use tandem_model::states::interval::{
        HostTotals, Missing, SourceName, VcpuInterval, VmInterval,
    };
    use tandem_model::{State, VcpuId, VcpuTimes};

    use super::*;

    const SECOND: Nanos = Nanos::from_secs(1);

    fn vcpu(vm: u64, vcpu: u32) -> Party {
        Party::Vcpu { vm: VmId(vm), vcpu: VcpuId(vcpu) }
    }

    /// An interval of one second with VMs of two vCPUs and these waits in ms.
    fn interval(vms: u64, waits: &[(Party, Party, u64)]) -> Interval {
        let one = |index| VcpuInterval {
            vcpu: VcpuId(index),
            times: VcpuTimes::from_parts(SECOND, [(State::Run, Nanos(5))]).unwrap(),
            ran: Nanos(5),
            waited: Nanos(0),
            runs: 1,
            wakeups: None,
            runnable: true,
            allowed: "0".parse().unwrap(),
        };
        let mut edges = EdgesBuilder::new();
        for (victim, culprit, ms) in waits {
            let (victim, culprit) = (edges.party(victim), edges.party(culprit));
            let amount = Amount::time(Nanos::from_millis(*ms));
            edges.add(victim, culprit, EdgeKind::Pcpu, Evidence::Estimated, amount);
        }
        Interval {
            source: SourceName::Plain,
            start: Nanos(0),
            length: SECOND,
            vms: (1..=vms)
                .map(|vm| VmInterval {
                    vm: VmId(vm),
                    vcpus: vec![one(0), one(1)],
                    threads: Vec::new(),
                })
                .collect(),
            edges: edges.all(),
            host: HostTotals::default(),
            missing: Vec::new(),
            programs: None,
        }
    }

    fn names() -> BTreeMap<VmId, String> {
        BTreeMap::from([(VmId(1), "db".to_owned()), (VmId(2), "<web>".to_owned())])
    }

    #[test]
    fn cells_are_fractions_of_victims_time() {
        let waits = [
            (vcpu(1, 0), vcpu(2, 0), 300),
            (vcpu(1, 1), vcpu(2, 1), 100),
            (vcpu(1, 0), vcpu(1, 1), 50),
            (vcpu(2, 0), vcpu(3, 0), 20),
        ];
        let page = section(&interval(3, &waits), &names()).into_string();
        // 400 ms of two vCPUs' second each.
        for expected in [
            "db waited 400 ms for &lt;web&gt;, 20.0 % of the time of its vCPUs",
            "db waited 50.0 ms for itself, 2.5 %",
            "&lt;web&gt; waited 20.0 ms for VM 3, 1.0 %",
            "db vCPU 0 waited 300 ms for &lt;web&gt; vCPU 0, 30.0 %",
            "For pCPUs, by VM",
            "Estimated waits",
        ] {
            assert!(page.contains(expected), "{expected}: {page}");
        }
        assert_eq!(page.matches("<svg").count(), 2);
        assert!(!page.contains("<web>"));
    }

    #[test]
    fn culprits_without_column_are_in_others() {
        let waits: Vec<(Party, Party, u64)> =
            (2..60).map(|vm| (vcpu(1, 0), vcpu(vm, 0), vm)).collect();
        let all = interval(1, &waits);
        let names = names();
        let waits = Waits { walls: walls(&all), names: &names };
        let (matrix, left_out) = waits.matrix(&all.edges.by_vm(), EdgeKind::Pcpu).unwrap();
        assert_eq!((matrix.columns.len(), left_out), (MAX_SIDE, 0));
        assert_eq!(matrix.columns.last().map(String::as_str), Some("others"));
        assert_eq!(matrix.columns[0], "VM 59");
        let sum: f64 = matrix.cells[0].iter().flatten().map(|cell| cell.value).sum();
        let expected = (2..60).sum::<u64>() as f64 / 2_000.0;
        assert!((sum - expected).abs() < 1e-9, "{sum} {expected}");
    }

    #[test]
    fn omitted_victims_are_counted() {
        let waits: Vec<(Party, Party, u64)> =
            (2..40).map(|vm| (vcpu(vm, 0), vcpu(1, 0), vm)).collect();
        let page = section(&interval(40, &waits), &names()).into_string();
        assert!(page.contains("14 more with shorter waits"), "{page}");
    }

    #[test]
    fn section_without_waits_lists_unobserved_kinds() {
        let mut quiet = interval(2, &[]);
        assert_eq!(section(&quiet, &names()).into_string(), "");
        let what = Column::Edges(EdgeKind::Pcpu);
        quiet.missing = vec![Missing::of_all(what, "run as root")];
        let page = section(&quiet, &names()).into_string();
        assert!(page.contains("who takes pCPUs not measured: run as root"), "{page}");
    }
}
