//! From what the simulator measured to pages: [`comparison`], [`run`], [`claims`] and [`survey`] fill the plain data
//! that `tandem_report` draws; what they share is here.
//!
//! Pages show VMs one by one up to [`MOST_VMS`], like the table of `compare`; beyond, only all of them
//! together, and a note says so. A page carries the command that makes it again.

pub mod claims;
pub mod comparison;
pub mod run;
pub mod survey;

use tandem_report::simulation::Square;
use tandem_report::simulation::Threshold;
use tandem_report::simulation::TimeOf;
use tandem_report::simulation::WaitsOf;
use tandem_sim::Results;
use tandem_sim::results::VcpuTime;
use tandem_sim::results::VmResults;
use tandem_sim::results::WaitMatrix;

use super::metrics;

/// VMs are shown one by one up to this many.
pub const MOST_VMS: usize = 8;

/// What stands below every page.
pub fn footer() -> String {
    format!(
        "tandem {}. Simulated: docs/model.md says what the model leaves out.",
        env!("CARGO_PKG_VERSION")
    )
}

/// The command that is running, as it can be given to a shell again.
pub fn command() -> String {
    let arguments: Vec<String> = std::env::args().skip(1).map(|word| quoted(&word)).collect();
    format!("tandem {}", arguments.join(" "))
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Time as numbers of pCPUs: the parts that were received, and what was waited for a pCPU.
fn time_of(name: &str, ran: &VcpuTime, steal: f64, measured: f64) -> TimeOf {
    let mut parts = [0.0; 9];
    for (part, (_, time)) in parts.iter_mut().zip(metrics::parts(ran)) {
        *part = time.0 as f64 / measured;
    }
    parts[8] = steal / measured;
    TimeOf {
        name: name.to_owned(),
        parts,
    }
}

/// The windows that APLE set for the first VMs; `None` if it set none.
fn threshold(combination: &str, results: &Results, warmup: f64) -> Option<Threshold> {
    let changes = |vm: &VmResults| {
        let changes = vm.windows.iter();
        changes
            .map(|&(at, window)| (at.as_secs_f64(), f64::from(window)))
            .collect()
    };
    let vms: Vec<(String, Vec<(f64, f64)>)> = results
        .vms
        .iter()
        .filter(|vm| !vm.windows.is_empty())
        .take(MOST_VMS)
        .map(|vm| (vm.name.clone(), changes(vm)))
        .collect();
    let ends = vms.iter().filter_map(|(_, changes)| changes.last());
    let until = ends
        .map(|&(at, _)| at)
        .fold(warmup + results.measured.as_secs_f64(), f64::max);
    (!vms.is_empty()).then(|| Threshold {
        combination: combination.to_owned(),
        vms,
        until,
    })
}

/// Who waited for whom in the first VMs.
fn waits(combination: &str, results: &Results) -> Vec<WaitsOf> {
    let of = |vm: &VmResults| {
        let waits = vm.waits.as_ref()?;
        Some(WaitsOf {
            combination: combination.to_owned(),
            vm: vm.name.clone(),
            locks: square(&waits.locks),
            free: waits.free.iter().map(|time| time.0).sum(),
            flushes: square(&waits.flushes),
            measured: results.measured.0,
        })
    };
    results.vms.iter().take(MOST_VMS).filter_map(of).collect()
}

fn square(matrix: &WaitMatrix) -> Square {
    let rows = |rows: &[Vec<tandem_policy::Nanos>]| {
        let row = |row: &Vec<tandem_policy::Nanos>| row.iter().map(|time| time.0).collect();
        rows.iter().map(row).collect()
    };
    Square {
        running: rows(&matrix.running),
        off: rows(&matrix.off),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_a_shell_would_change_are_quoted() {
        assert_eq!(
            quoted("host.pause_loop.policy=aple,stock"),
            "host.pause_loop.policy=aple,stock"
        );
        assert_eq!(
            quoted("vm.*.idle=haltpoll(100us)"),
            "'vm.*.idle=haltpoll(100us)'"
        );
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
