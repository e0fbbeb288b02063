//! A recorded host compared with its simulation, as a table: how the vCPUs of each VM spent their time in both.

use tandem_experiment::beside_record::{Shares, VmComparison};

use tandem_report::figure;
use tandem_report::table::{Cell, Table, Tone};

/// Returns a table with a row for each VM; figures are in pCPUs, summed over its vCPUs.
pub fn table(vms: &[VmComparison]) -> Table {
    let mut table = Table::new(&[
        "VM",
        "vCPUs",
        "ran: recorded",
        "simulated",
        "waited: recorded",
        "simulated",
        "halted: recorded",
        "simulated",
    ]);
    for vm in vms {
        let both = |of: fn(&Shares) -> f64| {
            [of(&vm.recorded), of(&vm.simulated)].map(|part| Cell::from(figure::pcpus(part)))
        };
        let mut cells = vec![Cell::toned(&vm.vm, Tone::Strong), vm.vcpus.to_string().into()];
        cells.extend(both(|shares| shares.ran));
        cells.extend(both(|shares| shares.waited));
        cells.extend(both(|shares| shares.halted));
        table.row(cells);
    }
    table
}
