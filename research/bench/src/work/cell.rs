//! Cells of the bench: a subject, its neighbours, and the placement of their vCPUs.
//!
//! Subjects are the nine workloads with their default sizes, the barrier twice.
//! Neighbours are one or two computing VMs with two vCPUs each, or another subject.
//! In such a pair both VMs are subjects, and each pair occurs once.
//! The first VM of a cell is its subject: modes `nice` and `batch` act on the others.

use std::fmt;

use tandem_microvm::{MAX_VCPUS, Workload};
use tandem_model::PcpuSet;
use thiserror::Error;

use tandem_demo::plan::{Pinning, PlanError, VmPlan, place};
use tandem_demo::vm_spec::VmSpec;

/// vCPUs of a computing neighbour.
const NEIGHBOUR_VCPUS: u32 = 2;

/// A workload of this bench with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Name in arguments and reports.
    pub name: &'static str,
    /// The workload.
    pub workload: Workload,
    /// Settings that differ from the defaults.
    settings: &'static [&'static str],
}

const fn subject(
    name: &'static str,
    workload: Workload,
    settings: &'static [&'static str],
) -> Subject {
    Subject { name, workload, settings }
}

/// All subjects.
pub const SUBJECTS: [Subject; 10] = [
    subject("barrier-spin", Workload::Barrier, &["wait=spin"]),
    subject("barrier-block", Workload::Barrier, &["wait=block"]),
    subject("spinlock", Workload::Spinlock, &[]),
    subject("mutex", Workload::Mutex, &[]),
    subject("forkjoin", Workload::Forkjoin, &[]),
    subject("pipeline", Workload::Pipeline, &[]),
    subject("shootdown", Workload::Shootdown, &[]),
    subject("bursty", Workload::Bursty, &[]),
    subject("burn", Workload::Burn, &[]),
    subject("server", Workload::Server, &[]),
];

/// Returns whether a subject of that name waits by spinning, so that its CPU time does not reflect its work.
pub fn waits_by_spinning(subject: &str) -> bool {
    matches!(subject, "barrier-spin" | "spinlock")
}

/// Subjects whose vCPUs need unequal CPU time, and two whose vCPUs need equal CPU time.
pub const UNEQUAL: [Subject; 6] = [
    subject("serial", Workload::Forkjoin, &["serial=2000000", "parallel=200000"]),
    subject(
        "serial-rotating",
        Workload::Forkjoin,
        &["serial=2000000", "parallel=200000", "rotate=yes"],
    ),
    subject("map-reduce", Workload::Forkjoin, &["serial=20000000", "parallel=40000000"]),
    subject("unequal-stages", Workload::Pipeline, &["step=200"]),
    subject("barrier-block", Workload::Barrier, &["wait=block"]),
    subject("mutex", Workload::Mutex, &[]),
];

/// Placement of vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freedom {
    /// Not pinned.
    Free,
    /// vCPU i of each VM on pCPU i mod P.
    Pinned,
}

impl Freedom {
    /// Name in arguments and reports.
    pub fn name(self) -> &'static str {
        match self {
            Freedom::Free => "free",
            Freedom::Pinned => "pinned",
        }
    }
}

/// Kind of a subject's neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// One computing VM.
    Burn1,
    /// Two computing VMs.
    Burn2,
    /// Each subject in turn, itself included.
    Pairs,
    /// Another VM of the same subject.
    Itself,
}

impl Beside {
    /// Name in arguments.
    pub fn name(self) -> &'static str {
        match self {
            Beside::Burn1 => "burn1",
            Beside::Burn2 => "burn2",
            Beside::Pairs => "pairs",
            Beside::Itself => "itself",
        }
    }
}

/// Error in the choice of cells.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum CellError {
    /// A list has an unknown name.
    #[error("{flag} {text}: '{part}' is not known; it takes a list of {known}")]
    Unknown {
        /// The option.
        flag: &'static str,
        /// The whole list.
        text: String,
        /// The unknown name.
        part: String,
        /// Known names.
        known: String,
    },
    /// A list has a name twice.
    #[error("{flag} {text}: '{part}' is there twice; each is measured once")]
    Twice {
        /// The option.
        flag: &'static str,
        /// The whole list.
        text: String,
        /// The repeated name.
        part: String,
    },
    /// An invalid number of vCPUs.
    #[error(
        "--vcpus {text}: '{part}' is no number of vCPUs; a VM has 1 to {MAX_VCPUS}, as in --vcpus 2,4"
    )]
    Vcpus {
        /// The whole list.
        text: String,
        /// The invalid number.
        part: String,
    },
    /// A workload needs more vCPUs.
    #[error(
        "--vcpus {vcpus}: {name} needs {least} vCPUs or more; give more, or leave it out of --workloads"
    )]
    TooFew {
        /// Given number of vCPUs.
        vcpus: u32,
        /// The subject.
        name: &'static str,
        /// Minimum number of vCPUs.
        least: u32,
    },
    /// The VMs do not fit this host.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// Chosen subjects, sizes, placements and neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The subjects.
    pub subjects: Vec<Subject>,
    /// vCPUs of the subjects.
    pub vcpus: Vec<u32>,
    /// Placements of vCPUs.
    pub freedoms: Vec<Freedom>,
    /// Kinds of neighbours.
    pub beside: Vec<Beside>,
}

impl Choice {
    /// Parses the lists of `--workloads` (default: all `known` subjects), `--vcpus`, `--placements` and `--with`.
    pub fn parse(
        known: &[Subject],
        workloads: Option<&str>,
        vcpus: &str,
        placements: &str,
        beside: &str,
    ) -> Result<Choice, CellError> {
        let subjects = match workloads {
            None => known.to_vec(),
            Some(text) => list("--workloads", text, known, |subject| subject.name)?,
        };
        let all = [Freedom::Free, Freedom::Pinned];
        let freedoms = list("--placements", placements, &all, |freedom| freedom.name())?;
        let all = [Beside::Burn1, Beside::Burn2, Beside::Pairs, Beside::Itself];
        let beside = list("--with", beside, &all, |beside| beside.name())?;
        let vcpus = numbers(vcpus)?;
        for &vcpus in &vcpus {
            if let Some(subject) = subjects.iter().find(|s| s.workload.least_vcpus() > vcpus) {
                return Err(CellError::TooFew {
                    vcpus,
                    name: subject.name,
                    least: subject.workload.least_vcpus(),
                });
            }
        }
        Ok(Choice { subjects, vcpus, freedoms, beside })
    }

    /// Returns all cells, in the order in which they run.
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &freedom in &self.freedoms {
            for &vcpus in &self.vcpus {
                for &beside in &self.beside {
                    for (i, &subject) in self.subjects.iter().enumerate() {
                        let cell = |neighbours| Cell { subject, vcpus, freedom, neighbours };
                        match beside {
                            Beside::Burn1 => cells.push(cell(Neighbours::Burn(1))),
                            Beside::Burn2 => cells.push(cell(Neighbours::Burn(2))),
                            Beside::Pairs => {
                                let others = self.subjects[i..].iter();
                                cells.extend(others.map(|&other| cell(Neighbours::Other(other))));
                            }
                            Beside::Itself => cells.push(cell(Neighbours::Other(subject))),
                        }
                    }
                }
            }
        }
        cells
    }
}

fn list<T: Copy + PartialEq>(
    flag: &'static str,
    text: &str,
    all: &[T],
    name: impl Fn(&T) -> &'static str,
) -> Result<Vec<T>, CellError> {
    let mut chosen = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (text, part) = (text.to_owned(), part.to_owned());
        let Some(item) = all.iter().find(|item| name(item) == part) else {
            let known: Vec<&str> = all.iter().map(&name).collect();
            return Err(CellError::Unknown { flag, text, part, known: known.join(",") });
        };
        if chosen.contains(item) {
            return Err(CellError::Twice { flag, text, part });
        }
        chosen.push(*item);
    }
    Ok(chosen)
}

fn numbers(text: &str) -> Result<Vec<u32>, CellError> {
    let mut chosen = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (text, part) = (text.to_owned(), part.to_owned());
        match part.parse() {
            Ok(vcpus) if chosen.contains(&vcpus) => {
                let flag = "--vcpus";
                return Err(CellError::Twice { flag, text, part });
            }
            Ok(vcpus) if (1..=MAX_VCPUS).contains(&vcpus) => chosen.push(vcpus),
            _ => return Err(CellError::Vcpus { text, part }),
        }
    }
    Ok(chosen)
}

/// The neighbours of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbours {
    /// This number of computing VMs.
    Burn(usize),
    /// A VM of the same size, which is a subject too.
    Other(Subject),
}

/// A VM and its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The first VM.
    pub subject: Subject,
    /// Its vCPUs.
    pub vcpus: u32,
    /// Placement of all vCPUs.
    pub freedom: Freedom,
    /// The other VMs.
    pub neighbours: Neighbours,
}

impl Cell {
    /// Names the neighbours.
    pub fn beside(&self) -> String {
        match self.neighbours {
            Neighbours::Burn(count) => format!("{count} burn"),
            Neighbours::Other(other) => other.name.to_owned(),
        }
    }

    /// Returns the number of its subjects, which come first.
    pub fn subjects(&self) -> usize {
        match self.neighbours {
            Neighbours::Burn(_) => 1,
            Neighbours::Other(_) => 2,
        }
    }

    /// Returns the name of each VM's workload.
    pub fn workloads(&self) -> Vec<&'static str> {
        let mut names = vec![self.subject.name];
        match self.neighbours {
            Neighbours::Burn(count) => names.extend(std::iter::repeat_n("burn", count)),
            Neighbours::Other(other) => names.push(other.name),
        }
        names
    }

    /// Places its VMs on this host, the subject first.
    pub fn vms(&self, pcpus: &PcpuSet) -> Result<Vec<VmPlan>, CellError> {
        let spec = |name: &str, subject: &Subject, vcpus| VmSpec {
            name: name.to_owned(),
            vcpus,
            weight: 1.0,
            workload: subject.workload.name().to_owned(),
            settings: subject.settings.iter().map(|&s| s.to_owned()).collect(),
            pcpus: None,
        };
        let burn = subject("burn", Workload::Burn, &[]);
        let mut specs = vec![spec("subject", &self.subject, self.vcpus)];
        match self.neighbours {
            Neighbours::Burn(count) => {
                specs.extend((1..=count).map(|i| spec(&format!("burn{i}"), &burn, NEIGHBOUR_VCPUS)))
            }
            Neighbours::Other(other) => specs.push(spec("other", &other, self.vcpus)),
        }
        let pinning = match self.freedom {
            Freedom::Free => Pinning::None,
            Freedom::Pinned => Pinning::RoundRobin,
        };
        Ok(place(specs, pcpus, pinning)?)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, vcpus) = (self.subject.name, self.vcpus);
        let (freedom, beside) = (self.freedom.name(), self.beside());
        write!(f, "{name}, {vcpus} vCPUs, {freedom}, beside {beside}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(workloads: Option<&str>, vcpus: &str, placements: &str, beside: &str) -> Choice {
        Choice::parse(&SUBJECTS, workloads, vcpus, placements, beside).unwrap()
    }

    #[test]
    fn every_workload_is_a_subject() {
        for workload in Workload::ALL {
            assert!(SUBJECTS.iter().any(|subject| subject.workload == workload));
        }
    }

    #[test]
    fn cells_cover_subjects_and_pairs_once() {
        let count = |beside: &str| choice(None, "2", "free", beside).cells().len();
        assert_eq!((count("burn1"), count("burn1,burn2"), count("pairs")), (10, 20, 55));
        assert_eq!(choice(None, "2,4", "free,pinned", "burn1").cells().len(), 40);
    }

    #[test]
    fn subject_comes_first_in_cell() {
        let pcpus: PcpuSet = "0-1".parse().unwrap();
        let cells = choice(Some("barrier-spin"), "4", "pinned", "burn2,pairs").cells();
        assert_eq!(cells[0].to_string(), "barrier-spin, 4 vCPUs, pinned, beside 2 burn");
        let vms = cells[0].vms(&pcpus).unwrap();
        let sizes: Vec<(&str, u32)> = vms.iter().map(|vm| (vm.name.as_str(), vm.vcpus)).collect();
        assert_eq!(sizes, [("subject", 4), ("burn1", 2), ("burn2", 2)]);
        assert!(vms[0].never_sleeps() && vms.iter().all(|vm| !vm.pins.is_empty()));
        assert_eq!(cells[0].workloads(), ["barrier-spin", "burn", "burn"]);
        let pair = cells[1].vms(&pcpus).unwrap();
        assert_eq!((pair.len(), pair[1].vcpus, cells[1].subjects()), (2, 4, 2));
    }

    #[test]
    fn bad_lists_name_option_and_valid_values() {
        let error = |workloads, vcpus, placements, beside| {
            let parsed = Choice::parse(&SUBJECTS, workloads, vcpus, placements, beside);
            parsed.unwrap_err().to_string()
        };
        let text = error(Some("barrier"), "2", "free", "burn1");
        assert!(
            text.starts_with(
                "--workloads barrier: 'barrier' is not known; it takes a list of barrier-spin,"
            ),
            "{text}"
        );
        let text = error(Some("burn,burn"), "2", "free", "burn1");
        assert!(text.contains("--workloads burn,burn: 'burn' is there twice"), "{text}");
        for bad in ["0", "65", "x", "", "-1"] {
            let text = error(None, bad, "free", "burn1");
            assert!(text.contains("a VM has 1 to 64, as in --vcpus 2,4"), "{text}");
        }
        assert!(error(None, "2,2", "free", "burn1").contains("--vcpus 2,2: '2' is there twice"));
        let text = error(None, "1", "free", "burn1");
        assert!(text.contains("--vcpus 1: shootdown needs 2 vCPUs or more"), "{text}");
        let text = error(None, "2", "loose", "burn1");
        assert!(text.contains("it takes a list of free,pinned"), "{text}");
        let text = error(None, "2", "free", "burn3");
        assert!(text.contains("it takes a list of burn1,burn2,pairs,itself"), "{text}");
    }
}
