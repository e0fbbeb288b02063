//! A recorded host beside its simulation, as a table: where the time of each VM's vCPUs went in both.

use tandem_experiment::beside_record::{Beside, Shares};

use tandem_report::figure;
use tandem_report::table::{Cell, Table, Tone};

/// A row for each VM; figures are in pCPUs, all vCPUs together.
pub fn table(vms: &[Beside]) -> Table {
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
