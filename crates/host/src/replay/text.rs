//! The contents of a record as text.

use tandem_model::Nanos;

use crate::columns::{Columns, Style};
use crate::replay::{ClockSet, Gap, Listing};
use tandem_observe::moment::printed;

/// Formats its time, completeness and gaps, and one line per VM.
pub fn text(listing: &Listing, style: Style) -> String {
    let time = |at: Option<Nanos>| at.map_or_else(|| "–".to_owned(), printed);
    let state = match (listing.complete, listing.written, &listing.error) {
        (_, true, _) => "being written".to_owned(),
        (true, false, _) => "complete".to_owned(),
        (false, false, Some(error)) => format!("ended by an error: {error}"),
        (false, false, None) if listing.was_ended => "damaged".to_owned(),
        (false, false, None) => "cut off: up to the last interval that was written".to_owned(),
    };
    let mut lines = vec![format!(
        "from {} to {}: {} intervals, {} bytes, {state}",
        time(listing.from),
        time(listing.to),
        listing.intervals,
        listing.bytes
    )];
    lines.extend(remarks(listing));
    let mut columns = Columns::new(&["<VM", "pid", "vCPU", "intervals", "<from", "<to"]);
    for vm in &listing.vms {
        columns.row([
            vm.name.as_str().into(),
            vm.pid.to_string().into(),
            vm.vcpus.to_string().into(),
            vm.intervals.to_string().into(),
            printed(vm.from).into(),
            printed(vm.to).into(),
        ]);
    }
    lines.push(columns.text(style));
    lines.join("\n")
}

/// Returns remarks on its times: dropped, failed, missing and damaged parts.
pub fn remarks(listing: &Listing) -> Vec<String> {
    let mut lines = Vec::new();
    if listing.dropped > 0 {
        let dropped = listing.dropped;
        lines.push(format!("the first {dropped} intervals were dropped to make room"));
    }
    if listing.failed > 0 {
        let why = listing.failure.as_deref().unwrap_or("not known");
        lines.push(format!("{} intervals failed, the last: {why}", listing.failed));
    }
    lines.extend(listing.gaps.iter().map(gap));
    lines.extend(listing.clock_set.iter().map(clock));
    let damaged = listing.damaged.iter();
    lines.extend(damaged.map(|damage| format!("cannot be read: {damage}")));
    lines
}

fn gap(gap: &Gap) -> String {
    let times = format!("gap from {} to {}", printed(gap.from), printed(gap.to));
    match (gap.failed, &gap.why) {
        (0, _) | (_, None) => times,
        (failed, Some(why)) => format!("{times}: {failed} intervals failed, the last: {why}"),
    }
}

fn clock(set: &ClockSet) -> String {
    let seconds = set.by.unsigned_abs() as f64 / 1e9;
    let at = printed(set.at);
    if set.by < 0 {
        format!(
            "the clock was set back by {seconds:.1} s, to {at}, so earlier times occur twice; intervals stay in the order in which they were recorded"
        )
    } else {
        format!("the clock was set forward by {seconds:.1} s, or the host slept, to {at}")
    }
}
