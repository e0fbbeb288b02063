//! Pause-loop exiting: the time at which the hardware makes a spinning vCPU exit.
//!
//! Intel (SDM volume 3, "Changes to instruction behavior in VMX non-root operation", PAUSE), only at CPL 0:
//! two PAUSEs at most `PLE_Gap` apart belong to one loop.
//! A PAUSE more than `PLE_Window` cycles after the loop's first one exits.
//!
//! AMD counts PAUSEs (APM volume 2, 15.14.4, pause intercept filtering).
//! Each PAUSE within the threshold of the last one decrements the count, and at zero the vCPU exits.
//!
//! A spin loop is modelled as PAUSEs at even distances.
//! An exit or an interrupt ends the loop: the next PAUSE starts another.

/// Hardware that detects pause loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detector {
    /// Intel, with gap and window in cycles.
    Cycles {
        /// Maximum distance of PAUSEs in one loop.
        gap: u64,
        /// Maximum duration of a loop.
        window: u64,
    },
    /// AMD, with a threshold in cycles and a count of PAUSEs.
    Count {
        /// Maximum distance of PAUSEs; a longer one restarts the count.
        threshold: u64,
        /// PAUSEs until the exit.
        count: u64,
    },
}

impl Detector {
    /// Cycles from the first PAUSE to the exit of a loop with a PAUSE every `pause` cycles; `None`: never.
    pub fn exits_after(self, pause: u64) -> Option<u64> {
        let pause = pause.max(1);
        match self {
            Detector::Cycles { gap, .. } if pause > gap => None,
            // The first PAUSE after the window.
            Detector::Cycles { window, .. } => Some((window / pause + 1) * pause),
            Detector::Count { threshold, .. } if pause > threshold => None,
            Detector::Count { count, .. } => Some(count.saturating_sub(1) * pause),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intel(gap: u64, window: u64) -> Detector {
        Detector::Cycles { gap, window }
    }

    #[test]
    fn gap_is_inclusive() {
        assert_eq!(intel(128, 4096).exits_after(128), Some(4224));
        assert_eq!(intel(128, 4096).exits_after(129), None);
    }

    #[test]
    fn exit_at_first_pause_after_window() {
        assert_eq!(intel(128, 4096).exits_after(40), Some(4120), "not at 4080");
        assert_eq!(intel(128, 4000).exits_after(40), Some(4040), "4000 is not more than 4000");
        assert_eq!(intel(128, 3999).exits_after(40), Some(4000));
        assert_eq!(intel(128, 0).exits_after(40), Some(40), "with the second PAUSE");
    }

    #[test]
    fn amd_counts_pauses_not_cycles() {
        let amd = |threshold, count| Detector::Count { threshold, count };
        assert_eq!(amd(128, 3000).exits_after(40), Some(2999 * 40));
        assert_eq!(amd(128, 3000).exits_after(10), Some(2999 * 10));
        assert_eq!(amd(30, 3000).exits_after(40), None);
        assert_eq!(amd(128, 1).exits_after(40), Some(0));
    }
}
