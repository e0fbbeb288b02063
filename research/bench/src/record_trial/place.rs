//! Where a program runs: on how many CPUs, and beside whom.

/// CPUs of the recorded setting.
pub(super) const CPUS: usize = 2;

/// Where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// On so many CPUs.
    pub cpus: usize,
    /// Beside a hog on each of them.
    pub has_hog: bool,
}

/// As it is recorded.
pub(super) const RECORDED: Place = Place { cpus: CPUS, has_hog: false };

/// The other settings.
pub const PLACES: [Place; 3] = [
    Place { cpus: 1, has_hog: false },
    Place { cpus: CPUS, has_hog: true },
    Place { cpus: 1, has_hog: true },
];

impl Place {
    /// In words.
    pub fn words(self) -> String {
        let cpus = if self.cpus == 1 { "1 CPU" } else { "2 CPUs" };
        if self.has_hog { format!("{cpus}, beside a hog") } else { format!("{cpus}, alone") }
    }

    /// What one would say without recording anything: work goes with the CPUs that are left.
    pub fn naive(self) -> f64 {
        let share = if self.has_hog { 0.5 } else { 1.0 };
        share * self.cpus as f64 / CPUS as f64
    }
}
