//! Pause-loop exiting: when the hardware makes a spinning vCPU exit.
//!
//! Intel (SDM volume 3, "Changes to instruction behavior in VMX non-root operation", PAUSE): two
//! PAUSEs no further apart than `PLE_Gap` belong to one loop; when a PAUSE is executed more than
//! `PLE_Window` cycles after the loop's first, the vCPU exits. Only at CPL 0. AMD counts PAUSEs:
//! each that follows the last within the threshold takes one off the count, and at zero the vCPU
//! exits (APM volume 2, 15.14.4, pause intercept filtering).
//!
//! A spin loop is modelled as PAUSEs at even distances. An exit or an interrupt ends the loop: the
//! next PAUSE is the first of another.

/// Which hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detector {
    /// Intel, with gap and window in cycles.
    Cycles {
        /// PAUSEs further apart belong to two loops.
        gap: u64,
        /// The loop may last so long.
        window: u64,
    },
    /// AMD, with the distance up to which PAUSEs count, in cycles, and the count.
    Count {
        /// PAUSEs further apart start the count again.
        threshold: u64,
        /// The exit comes with so many PAUSEs.
        count: u64,
    },
}

impl Detector {
    /// After how many cycles a loop with a PAUSE every `pause` cycles exits, counted from its first
    /// PAUSE; `None`: never.
    pub fn exits_after(self, pause: u64) -> Option<u64> {
        let pause = pause.max(1);
        match self {
            Detector::Cycles { gap, .. } if pause > gap => None,
            // The first PAUSE that is later than the window.
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
    fn pauses_exactly_a_gap_apart_belong_to_one_loop_and_one_cycle_more_to_two() {
        assert_eq!(intel(128, 4096).exits_after(128), Some(4224));
        assert_eq!(intel(128, 4096).exits_after(129), None);
    }

    #[test]
    fn the_exit_comes_with_the_first_pause_later_than_the_window() {
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
