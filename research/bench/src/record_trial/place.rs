//! Settings of the trial: the number of CPUs, and whether a hog competes.

/// CPUs of the recorded setting.
pub(super) const CPUS: usize = 2;

/// A setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of CPUs.
    pub cpus: usize,
    /// Whether a hog computes on each of them.
    pub has_hog: bool,
}

/// The recorded setting.
pub(super) const RECORDED: Place = Place { cpus: CPUS, has_hog: false };

/// The other settings.
pub const PLACES: [Place; 3] = [
    Place { cpus: 1, has_hog: false },
    Place { cpus: CPUS, has_hog: true },
    Place { cpus: 1, has_hog: true },
];

impl Place {
    /// Describes the setting.
    pub fn words(self) -> String {
        let cpus = if self.cpus == 1 { "1 CPU" } else { "2 CPUs" };
        if self.has_hog { format!("{cpus}, beside a hog") } else { format!("{cpus}, alone") }
    }

    /// Returns the prediction without a recording: throughput is proportional to the available CPU time.
    pub fn naive(self) -> f64 {
        let share = if self.has_hog { 0.5 } else { 1.0 };
        share * self.cpus as f64 / CPUS as f64
    }
}
