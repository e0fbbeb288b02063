//! What a record holds, as text.

use tandem_policy::Nanos;

use crate::columns::Columns;
use crate::columns::Style;
use crate::moment::printed;
use crate::replay::Listing;

/// When it was recorded, whether it is complete, its gaps; and a line for each VM.
pub fn text(listing: &Listing, style: Style) -> String {
    let time = |at: Option<Nanos>| at.map_or_else(|| "–".to_owned(), printed);
    let state = match (listing.complete, listing.written) {
        (_, true) => "being written",
        (true, false) => "complete",
        (false, false) => "not ended properly: up to the last interval that was written",
    };
    let mut text = format!(
        "from {} to {}: {} intervals, {} bytes, {state}",
        time(listing.from),
        time(listing.to),
        listing.intervals,
        listing.bytes
    );
    if listing.dropped > 0 {
        let dropped = listing.dropped;
        text.push_str(&format!(
            "\nthe first {dropped} intervals went to make room"
        ));
    }
    for gap in &listing.gaps {
        let (from, to) = (printed(gap.from), printed(gap.to));
        text.push_str(&format!("\ngap from {from} to {to}"));
    }
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
    let table = columns.text(style);
    format!("{text}\n{table}")
}
