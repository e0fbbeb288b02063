//! Runs the cells: each run of a cell is a demo with fresh VMs that goes through all modes.
//!
//! Run 1 of all modes is followed by run 2 of all modes, so a drift over minutes affects all modes alike.
//! A run in which a VM fails is omitted, with its reason; a failure of the first run ends the bench.
//!
//! A server alternately computes and serves requests.
//! Cells with a server are counted over whole rounds of it, so that all windows have the same proportion of both.

use std::time::Duration;

use tandem_linux::interrupt::Interrupt;
use tandem_report::experiment::Experiment;
use tandem_report::progress::Progress;
use thiserror::Error;

use super::cell::{Cell, CellError, Choice};
use super::figures::{Work, against_stock, summarize};
use crate::flexs::measure::is_vm_error;
use tandem_demo::alone::AloneResults;
use tandem_demo::demo::DemoError;
use tandem_demo::mode::Mode;
use tandem_demo::plan::Plan;
use tandem_demo::{account, alone, demo, host_facts};

/// Default modes, in the order of measurement.
pub const MODES: &str = "stock,hard-cap,pinning,nice,batch,tandem";

/// Estimated time to boot and stop the VMs of a run.
const BOOT: Duration = Duration::from_millis(500);

/// Estimated time to enter and leave a mode.
const CHANGE: Duration = Duration::from_millis(400);

/// Error in the settings.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SettingsError {
    /// Invalid choice of cells.
    #[error(transparent)]
    Cell(#[from] CellError),
    /// No cell has a mode to measure.
    #[error(
        "nothing to measure: mode pinning changes nothing with --placements pinned; add modes, or --placements free"
    )]
    OnlyPinning,
}

/// Settings of the measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    runs: u32,
    /// Settings shared by all cells.
    plan: Plan,
    cells: Vec<(Cell, Plan)>,
}

impl Settings {
    /// `runs` runs of each cell of `choice`, whose VMs replace those of `plan`.
    /// Omits mode `pinning` for cells with pinned vCPUs.
    pub fn new(runs: u32, choice: &Choice, plan: Plan) -> Result<Settings, SettingsError> {
        let mut cells = Vec::new();
        for cell in choice.cells() {
            let vms = cell.vms(&plan.pcpus)?;
            let pinned = vms.iter().all(|vm| !vm.pins.is_empty());
            let modes = plan.modes.iter().copied();
            let modes: Vec<Mode> =
                modes.filter(|&mode| !(pinned && mode == Mode::Pinning)).collect();
            if !modes.is_empty() {
                let rounds = vms.iter().map(|vm| vm.whole_rounds(plan.window));
                let window = rounds.max().unwrap_or(plan.window);
                let plan = Plan { vms, modes, window, ..plan.clone() };
                cells.push((cell, plan));
            }
        }
        if cells.is_empty() {
            Err(SettingsError::OnlyPinning)
        } else {
            Ok(Settings { runs, plan, cells })
        }
    }

    /// Number of progress steps.
    pub fn steps(&self) -> u64 {
        let plans = self.cells.iter().map(|(_, plan)| plan);
        let runs = plans.clone().map(demo::steps).sum::<u64>() * u64::from(self.runs);
        demo::steps_alone(plans) + runs
    }

    /// Estimated duration.
    pub fn estimate(&self) -> Duration {
        let plans = self.cells.iter().map(|(_, plan)| plan);
        let alone = self.plan.alone.unwrap_or_default() + alone::SETTLE + BOOT;
        let kinds = match self.plan.alone {
            Some(_) => alone::distinct(plans.clone()),
            None => 0,
        };
        let mode = |plan: &Plan| plan.settle + plan.window + CHANGE;
        let runs = plans.map(|plan| BOOT + mode(plan) * plan.modes.len() as u32);
        alone * kinds as u32 + runs.sum::<Duration>() * self.runs
    }

    /// Describes the measurement in one line.
    pub fn announce(&self) -> String {
        let minutes = self.estimate().as_secs().div_ceil(60);
        let time = match (minutes / 60, minutes % 60) {
            (0, 1) => "1 minute".to_owned(),
            (0, minutes) => format!("{minutes} minutes"),
            (hours, minutes) => format!("{hours} h {minutes:02} min"),
        };
        let plural = |count: usize, what: &str| match count {
            1 => format!("1 {what}"),
            count => format!("{count} {what}s"),
        };
        format!(
            "{} in {}, {}: about {time}",
            plural(self.cells.len(), "cell"),
            plural(self.plan.modes.len(), "mode"),
            plural(self.runs as usize, "run"),
        )
    }

    /// Notes cells without contention, which have a pCPU for each vCPU.
    fn notes(&self) -> Vec<String> {
        let pcpus = self.plan.pcpus.len() as u32;
        let enough = |plan: &Plan| plan.vms.iter().map(|vm| vm.vcpus).sum::<u32>() <= pcpus;
        let count = self.cells.iter().filter(|(_, plan)| enough(plan)).count();
        match count {
            0 => Vec::new(),
            count => vec![format!(
                "{count} of {} cells have a pCPU for each vCPU, so nothing is contended there; taskset -c takes pCPUs away.",
                self.cells.len()
            )],
        }
    }
}

/// Runs all cells.
pub fn measure(
    settings: &Settings,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<Work, DemoError> {
    let mut alone = AloneResults::default();
    let mut notes = settings.notes();
    let mut backend = String::new();
    let mut disturbed = Disturbed::default();
    let mut cells = Vec::with_capacity(settings.cells.len());
    for (cell, plan) in &settings.cells {
        let (mut runs, mut failures) = (Vec::new(), Vec::new());
        for run in 1..=settings.runs {
            let plan = Plan { seed: u64::from(run), ..plan.clone() };
            let part = progress.within(&format!("{cell}, run {run}"));
            match demo::run(&plan, &mut alone, &part, interrupt) {
                Ok(experiment) => {
                    backend.clone_from(&experiment.backend);
                    disturbed.add(&experiment);
                    runs.push(experiment);
                }
                Err(error) if backend.is_empty() || !is_vm_error(&error) => return Err(error),
                Err(error) => {
                    let reason = tandem_report::explain(&error);
                    part.note(&format!("not measured: {reason}"));
                    failures.push(reason);
                }
            }
        }
        cells.push(summarize(cell, plan, &runs, &failures));
    }
    notes.extend(alone.notes().iter().cloned());
    notes.extend(disturbed.note(settings.plan.pcpus.len()));
    Ok(Work {
        host: host_facts::read(),
        backend,
        pcpus: settings.plan.pcpus.len(),
        runs: settings.runs,
        seconds: settings.plan.window.as_secs_f64(),
        settle_seconds: settings.plan.settle.as_secs_f64(),
        alone_seconds: settings.plan.alone.unwrap_or_default().as_secs_f64(),
        tandem_vs_stock: against_stock(&cells),
        cells,
        notes,
    })
}

/// Runs of modes in which the rest of the host took CPU time.
#[derive(Default)]
struct Disturbed {
    modes: usize,
    disturbed: usize,
    most: f64,
}

impl Disturbed {
    fn add(&mut self, experiment: &Experiment) {
        for figures in experiment.modes.iter().flat_map(|mode| &mode.outcome) {
            self.modes += 1;
            if let Some(others) = account::others_in(experiment.pcpus, figures) {
                self.disturbed += 1;
                self.most = self.most.max(others);
            }
        }
    }

    fn note(&self, pcpus: usize) -> Option<String> {
        let (modes, disturbed, most) = (self.modes, self.disturbed, self.most);
        (disturbed > 0).then(|| {
            format!(
                "In {disturbed} of {modes} runs of a mode, CPU time went to the rest of the host, up to {most:.2} of {pcpus} pCPUs; \
                 those cannot be compared with others."
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::cell::SUBJECTS;
    use tandem_demo::{mode, test_plan};

    fn settings(placements: &str, modes: &str, runs: u32) -> Result<Settings, SettingsError> {
        let choice =
            Choice::parse(&SUBJECTS, Some("barrier-spin,burn"), "2", placements, "burn1,burn2");
        let plan = Plan {
            modes: mode::list(modes).unwrap(),
            window: Duration::from_secs(3),
            settle: Duration::from_secs(1),
            alone: Some(Duration::from_secs(2)),
            ..test_plan::plan("1", "1", "burn", "0-1")
        };
        Settings::new(runs, &choice.unwrap(), plan)
    }

    #[test]
    fn pinned_cells_omit_mode_pinning() {
        let both = settings("free,pinned", MODES, 1).unwrap();
        let modes: Vec<usize> = both.cells.iter().map(|(_, plan)| plan.modes.len()).collect();
        assert_eq!(modes, [6, 6, 6, 6, 5, 5, 5, 5]);
        let error = settings("pinned", "pinning", 1).unwrap_err().to_string();
        assert!(error.contains("--placements free"), "{error}");
    }

    #[test]
    fn estimate_counts_runs_modes_and_alone() {
        // Two distinct VMs alone with 3 s each, and 5 runs of 4 cells with 2 modes of 4.4 s and half a second to boot.
        let settings = settings("free", "stock,tandem", 5).unwrap();
        assert_eq!(
            settings.estimate(),
            Duration::from_secs(6 + 5 * 4 * 9) + Duration::from_millis(5 * 4 * 300)
        );
        assert_eq!(settings.announce(), "4 cells in 2 modes, 5 runs: about 4 minutes");
        assert_eq!(settings.steps(), 2 + 5 * 4 * 2 * 80);
    }

    #[test]
    fn server_cells_cover_whole_rounds() {
        let choice =
            Choice::parse(&SUBJECTS, Some("server,mutex"), "2", "free", "burn1,pairs").unwrap();
        let plan = |window| Plan {
            modes: mode::list("stock").unwrap(),
            window: Duration::from_millis(window),
            ..test_plan::plan("1", "1", "burn", "0-1")
        };
        let windows = |window| -> Vec<u128> {
            let settings = Settings::new(1, &choice, plan(window)).unwrap();
            let windows = settings.cells.iter().map(|(_, plan)| plan.window);
            windows.map(|window| window.as_millis()).collect()
        };
        // Server and mutex with a computing VM; server with server, with mutex; mutex with mutex.
        assert_eq!(windows(3_000), [4_500, 3_000, 4_500, 4_500, 3_000]);
        assert_eq!(windows(4_501)[0], 9_000);
    }

    #[test]
    fn cells_without_contention_are_noted() {
        let mut settings = settings("free", "stock", 1).unwrap();
        assert!(settings.notes().is_empty());
        settings.plan.pcpus = "0-3".parse().unwrap();
        let notes = settings.notes();
        assert!(notes[0].starts_with("2 of 4 cells have a pCPU for each vCPU"), "{notes:?}");
    }
}
