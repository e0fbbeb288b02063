//! How far the programs of a scenario scale, as a table.
//!
//! Columns "done" hold the measured speedups, on hardware and in the VM; unavailable values are empty.

use tandem_experiment::scalability::{Analysis, VmScaling};
use tandem_policy::scalability::Speedup;
use tandem_sim::Scenario;

use tandem_report::figure;
use tandem_report::table::{Cell, Table, Tone};

/// Returns the analysis as a table, with an explanation of its columns.
pub fn text(scenario: &Scenario, analysis: &Analysis) -> String {
    let mut table = Table::new(&[
        "VM",
        "workload",
        "N",
        "active",
        "blocks/s",
        "type",
        "on hardware",
        "done",
        "share",
        "received",
        "in the VM",
        "done",
        "possible",
    ]);
    let speedup = |speedup: Option<Speedup>| {
        speedup.map_or_else(String::new, |speedup| format!("{:.1}", speedup.0))
    };
    for vm in &analysis.vms {
        let of_vm = |cell: fn(&VmScaling) -> String| vm.vm.as_ref().map_or_else(String::new, cell);
        table.row([
            Cell::toned(&vm.name, Tone::Strong),
            vm.workload.as_str().into(),
            vm.n.to_string().into(),
            figure::pcpus(vm.parallelism).into(),
            figure::rate(vm.synchronization).into(),
            vm.number.to_string().into(),
            speedup(Some(vm.hardware.speedup)).into(),
            speedup(vm.hardware.measured).into(),
            of_vm(|vm| figure::pcpus(vm.share)).into(),
            of_vm(|vm| figure::pcpus(vm.received)).into(),
            Cell::from(speedup(vm.vm.as_ref().map(|vm| vm.scaling.speedup))),
            speedup(vm.vm.as_ref().and_then(|vm| vm.scaling.measured)).into(),
            match &vm.vm {
                None => Cell::default(),
                Some(of) => {
                    let possible = of.potential_efficiency.get() * f64::from(vm.n);
                    format!("{possible:.1}").into()
                }
            },
        ]);
    }
    let about = match scenario.about.as_str() {
        "" => String::new(),
        about => format!(": {about}"),
    };
    format!(
        "{}, seed {}{about}\n\n{table}\n\n\
         active: CPUs that run the program alone on hardware, of N; high from 75 % on. blocks/s: voluntary\n\
         switches of a thread; often from once in {} on. Type 1 scales on both, 2 on neither, 3 worse in a VM,\n\
         4 better in a VM. Speedups are N × the part of the CPU time available (in a VM: allocated) that was\n\
         used; done: by the work done, against one CPU; possible: what the VM's share allows.",
        analysis.scenario, analysis.seed, analysis.timeslice,
    )
}
