//! Maps the columns of an interval to the kernel events that they need.
//!
//! If the kernel lacks an event or refuses its program, the columns of that event come from the plain source, or are reported as missing
//! with the reason. All other columns stay.
//! Only `sched_switch` is indispensable, so it has no row here.
//! Counters (exits, IPIs) are not columns: `Bpf` omits them, and [`MissingEvent`] reports them.

use tandem_model::State;
use tandem_model::states::edges::EdgeKind;
use tandem_model::states::interval::{Column, Missing};

use super::MissingEvent;

/// Events and the columns that need them.
const COLUMNS: &[(&str, &[Column])] = &[
    (
        "sched_wakeup",
        &[
            Column::State(State::Ready),
            Column::State(State::Costop),
            Column::Edges(EdgeKind::Sibling),
        ],
    ),
    ("sched_waking", &[Column::State(State::Costop), Column::Edges(EdgeKind::Sibling)]),
    ("sched_migrate_task", &[Column::Edges(EdgeKind::Pcpu)]),
    ("kvm_entry", &[Column::State(State::Vmm)]),
    ("kvm_exit", &[Column::State(State::Vmm)]),
    ("kvm_vcpu_wakeup", &[Column::State(State::Poll)]),
    ("cfs_bandwidth", &[Column::State(State::Limited)]),
    (
        "kvm_vcpu_yield_to",
        &[Column::Edges(EdgeKind::YieldTaken), Column::Edges(EdgeKind::YieldUseless)],
    ),
];

/// Columns that the plain source never has.
const ONLY_BPF: [Column; 3] = [
    Column::Edges(EdgeKind::Sibling),
    Column::Edges(EdgeKind::YieldTaken),
    Column::Edges(EdgeKind::YieldUseless),
];

/// Returns the columns that need an event, such as `tracepoint sched_wakeup`.
fn columns_of(event: &str) -> &'static [Column] {
    let name = event.rsplit(' ').next().unwrap_or(event);
    let row = COLUMNS.iter().find(|(event, _)| *event == name);
    row.map_or(&[], |(_, columns)| *columns)
}

/// Returns the first missing event that a column needs.
fn cause(what: Column, here: &[MissingEvent]) -> Option<&MissingEvent> {
    here.iter().find(|missing| columns_of(&missing.event).contains(&what))
}

/// Whether the programs measure a column.
pub fn is_measured(what: Column, here: &[MissingEvent]) -> bool {
    let is_known = COLUMNS.iter().any(|(_, columns)| columns.contains(&what));
    is_known && cause(what, here).is_none()
}

/// Returns the missing event of a column and the reason, as text.
pub fn want(what: Column, here: &[MissingEvent]) -> Option<String> {
    cause(what, here).map(|event| format!("{} ({})", event.event, event.because))
}

/// Returns the columns that neither source has.
pub fn missing(here: &[MissingEvent]) -> Vec<Missing> {
    let missing = ONLY_BPF.iter();
    missing.filter_map(|what| Some(Missing::of_all(*what, want(*what, here)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Absence;
    use super::*;

    fn without(event: &str) -> Vec<MissingEvent> {
        vec![MissingEvent {
            event: event.to_owned(),
            lacks: "x",
            absence: Absence::Refused,
            because: "the kernel refused the program".to_owned(),
        }]
    }

    /// Returns the columns of the table that are not measured.
    fn lost(event: &str) -> Vec<Column> {
        let here = without(event);
        let mut lost: Vec<Column> = Vec::new();
        for what in COLUMNS.iter().flat_map(|(_, columns)| *columns) {
            if !is_measured(*what, &here) && !lost.contains(what) {
                lost.push(*what);
            }
        }
        lost
    }

    #[test]
    fn refused_program_costs_only_its_columns() {
        use Column::{Edges, State as Time};
        let costop = [Time(State::Costop), Edges(EdgeKind::Sibling)];
        let wakeup = [Time(State::Ready), Time(State::Costop), Edges(EdgeKind::Sibling)];
        let yields = [Edges(EdgeKind::YieldTaken), Edges(EdgeKind::YieldUseless)];
        assert_eq!(lost("tracepoint sched_wakeup"), wakeup);
        assert_eq!(lost("tracepoint sched_waking"), costop);
        assert_eq!(lost("tracepoint sched_migrate_task"), [Edges(EdgeKind::Pcpu)]);
        assert_eq!(lost("tracepoint kvm_entry"), [Time(State::Vmm)]);
        assert_eq!(lost("tracepoint kvm_exit"), [Time(State::Vmm)]);
        assert_eq!(lost("tracepoint kvm_vcpu_wakeup"), [Time(State::Poll)]);
        assert_eq!(lost("structure cfs_bandwidth"), [Time(State::Limited)]);
        assert_eq!(lost("function kvm_vcpu_yield_to"), yields);
        for event in
            ["tracepoint sched_wakeup_new", "tracepoint sched_process_exit", "program settle"]
        {
            assert_eq!(lost(event), [], "{event}");
        }
    }

    #[test]
    fn rows_name_events_of_programs() {
        #[cfg(with_bpf)]
        for (name, _) in COLUMNS.iter().filter(|(name, _)| *name != "cfs_bandwidth") {
            let mut events = super::super::events::EVENTS.iter();
            assert!(events.any(|event| event.place.name() == *name), "{name}");
        }
        assert!(is_measured(Column::State(State::Ready), &[]));
        assert!(!is_measured(Column::State(State::Run), &[]), "no program of its own");
    }

    #[test]
    fn missing_columns_name_event_and_reason() {
        let here = without("tracepoint sched_wakeup");
        let kinds: Vec<Column> = missing(&here).into_iter().map(|missing| missing.what).collect();
        assert_eq!(kinds, [Column::Edges(EdgeKind::Sibling)]);
        let said = want(Column::State(State::Costop), &here).expect("it is missing");
        assert_eq!(said, "tracepoint sched_wakeup (the kernel refused the program)");
        assert!(missing(&[]).is_empty());
        let yields = missing(&without("function kvm_vcpu_yield_to"));
        assert_eq!(yields.len(), 2);
        assert!(yields[0].want.contains("kvm_vcpu_yield_to"));
    }
}
