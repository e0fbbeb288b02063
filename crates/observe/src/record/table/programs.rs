//! Rows for the figures of BPF programs other than times and edges.

use tandem_model::Nanos;
use tandem_model::states::interval::Column;
use tandem_model::states::latency::{BUCKETS, Latency};
use tandem_model::states::programs::{Estimated, NotCounted, NotSeen, Programs};

use super::cells::{Int, Row, Table, Text, name};
use crate::record::frame::Frame;

/// Writes the rows of an interval; none if it had no programs.
pub(super) fn rows(table: &mut Table, number: u64, frame: &Frame) {
    let Some(programs) = &frame.interval.programs else {
        return;
    };
    table.row("programs", number);
    for (what, count, time, _) in programs.not_counted.parts() {
        table
            .row("not-counted", number)
            .text(Text::Name, what)
            .int(Int::Count, count)
            .time(Int::Time, time);
    }
    for not_seen in &programs.not_seen {
        table
            .row("not-seen", number)
            .text(Text::Name, &not_seen.event)
            .text(Text::What, &not_seen.lacks)
            .text(Text::Want, &not_seen.because);
    }
    for estimated in &programs.estimated {
        table
            .row("estimated", number)
            .text(Text::What, &name(&estimated.what))
            .text(Text::Want, &estimated.how);
    }
    for (vm, latency) in &programs.latency {
        table.row("latency", number).int(Int::Vm, vm.0).time(Int::Time, latency.time);
        let buckets = latency.counts.iter().enumerate();
        for (power, count) in buckets.filter(|(_, count)| **count > 0) {
            table
                .row("latency-bucket", number)
                .int(Int::Vm, vm.0)
                .time(Int::Time, Nanos(1 << power))
                .int(Int::Count, *count);
        }
    }
}

/// Reads such a row; `false` if its kind is a different one.
pub(super) fn read(
    kind: &str,
    row: &Row<'_>,
    programs: &mut Option<Programs>,
) -> Result<bool, String> {
    if kind == "programs" {
        *programs = Some(Programs::default());
        return Ok(true);
    }
    let programs = programs.get_or_insert_default();
    match kind {
        "not-counted" => not_counted(row, &mut programs.not_counted)?,
        "not-seen" => programs.not_seen.push(NotSeen {
            event: row.wanted_text(Text::Name)?.to_owned(),
            lacks: row.wanted_text(Text::What)?.to_owned(),
            because: row.wanted_text(Text::Want)?.to_owned(),
        }),
        "estimated" => programs.estimated.push(Estimated {
            what: row.named::<Column>(Text::What)?,
            how: row.wanted_text(Text::Want)?.to_owned(),
        }),
        "latency" => {
            let time = row.wanted_time(Int::Time)?;
            let latency = Latency { time, ..Latency::default() };
            programs.latency.insert(row.vm()?, latency);
        }
        "latency-bucket" => {
            let from = row.wanted_time(Int::Time)?;
            let power = from.0.trailing_zeros() as usize;
            if !from.0.is_power_of_two() || power >= BUCKETS {
                return Err(row.wrong("time", format!("{} begins no bucket", from.0)));
            }
            let latency = programs.latency.entry(row.vm()?).or_default();
            latency.counts[power] = row.wanted(Int::Count)?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn not_counted(row: &Row<'_>, not_counted: &mut NotCounted) -> Result<(), String> {
    let count: u64 = row.wanted(Int::Count)?;
    let time = row.time(Int::Time).unwrap_or_default();
    match row.wanted_text(Text::Name)? {
        "waits" => (not_counted.waits, not_counted.wait_time) = (count, time),
        "edges" => (not_counted.edges, not_counted.edge_time) = (count, time),
        "links" => not_counted.links = count,
        "events" => not_counted.events = count,
        other => return Err(row.wrong("name", format!("'{other}' is not known"))),
    }
    Ok(())
}
