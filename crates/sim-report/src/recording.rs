//! The start of the recording of a run, and the window that a picture shows.
//!
//! By default, a picture shows [`WINDOW`] from the end of the warm-up, because the warm-up is not counted in results.
//! Recording then starts there as well, unless a trace is also requested: a trace covers the whole run.

use tandem_model::Nanos;
use tandem_sim::Scenario;
use tandem_sim::scenario::load;
use thiserror::Error;

/// Default length of the window of a picture.
pub const WINDOW: Nanos = Nanos::from_millis(20);

/// An invalid recording option.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RecordingError {
    /// The start is not a time.
    #[error("--trace-from {text} is not possible: write a time such as 2s: {cause}")]
    NoTime {
        /// The given text.
        text: String,
        /// The reason, with the valid form.
        cause: String,
    },
    /// The start is after the end of the simulation.
    #[error("--trace-from {text} is not possible: the simulation ends after {duration}")]
    TooLate {
        /// The given text.
        text: String,
        /// Simulated duration.
        duration: Nanos,
    },
    /// The window is not two times in ascending order.
    #[error("--window {0} is not possible: write FROM-TO, such as 10ms-12ms")]
    NoWindow(String),
    /// The window ends before recording starts.
    #[error("--window {window} is over before recording begins (--trace-from {from})")]
    Over {
        /// The given text.
        window: String,
        /// Start of the recording.
        from: Nanos,
    },
}

/// The recorded interval, in simulated time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recording {
    /// Start of the recording.
    pub from: Nanos,
    /// Start and end of the picture.
    pub window: (Nanos, Nanos),
}

impl Recording {
    /// Parses `--trace-from` and `--window`; `is_traced`: a trace is also requested.
    pub fn of(
        from: Option<&str>,
        window: Option<&str>,
        is_traced: bool,
        scenario: &Scenario,
    ) -> Result<Recording, RecordingError> {
        let begin = from.map(|text| begin(text, scenario.duration)).transpose()?;
        let first = begin.unwrap_or(scenario.warmup);
        let from = match (begin, window) {
            (Some(begin), _) => begin,
            (None, None) if !is_traced => first,
            (None, _) => Nanos::ZERO,
        };
        let Some(text) = window else {
            let window = (first, Nanos(first.0.saturating_add(WINDOW.0)));
            return Ok(Recording { from, window });
        };
        let window = ends(text).ok_or_else(|| RecordingError::NoWindow(text.to_owned()))?;
        if window.1 <= from {
            let window = text.to_owned();
            return Err(RecordingError::Over { window, from });
        }
        Ok(Recording { from, window })
    }
}

fn begin(text: &str, duration: Nanos) -> Result<Nanos, RecordingError> {
    let (text, time) = (text.to_owned(), load::time(text));
    match time {
        Ok(from) if from < duration => Ok(from),
        Ok(_) => Err(RecordingError::TooLate { text, duration }),
        Err(cause) => Err(RecordingError::NoTime { text, cause }),
    }
}

/// Parses a window such as `10ms-12ms`.
fn ends(text: &str) -> Option<(Nanos, Nanos)> {
    let (from, to) = text.split_once('-')?;
    let (from, to) = (load::time(from).ok()?, load::time(to).ok()?);
    (from < to).then_some((from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_millis(1000);

    /// Returns the recording of a run of one second, the first 100 ms of which are warm-up.
    fn recording(
        from: Option<&str>,
        window: Option<&str>,
        is_traced: bool,
    ) -> Result<Recording, String> {
        let text = "duration = \"1s\"\nwarmup = \"100ms\"\n[machine]\npcpus = 1\n\
            [[vm]]\nname = \"a\"\nvcpus = 1\nworkload = \"burn\"\n";
        let scenario = load::from_text("s.toml", text).unwrap();
        assert_eq!(scenario.duration, SECOND);
        let recording = Recording::of(from, window, is_traced, &scenario);
        recording.map_err(|error| error.to_string())
    }

    fn millis(from: u64, window: (u64, u64)) -> Result<Recording, String> {
        let window = (Nanos::from_millis(window.0), Nanos::from_millis(window.1));
        let from = Nanos::from_millis(from);
        Ok(Recording { from, window })
    }

    #[test]
    fn default_picture_starts_after_warmup() {
        assert_eq!(recording(None, None, false), millis(100, (100, 120)));
        assert_eq!(recording(None, None, true), millis(0, (100, 120)));
        assert_eq!(recording(Some("50ms"), None, true), millis(50, (50, 70)));
        let window = Some("10ms-12ms");
        assert_eq!(recording(None, window, false), millis(0, (10, 12)));
        assert_eq!(recording(Some("11ms"), window, false), millis(11, (10, 12)));
    }

    #[test]
    fn window_is_two_ascending_times() {
        for text in ["10ms", "12ms-10ms", "10-12", ""] {
            let error = recording(None, Some(text), false).unwrap_err();
            assert!(error.contains("FROM-TO"), "{error}");
        }
        let error = recording(Some("900ms"), Some("10ms-12ms"), false).unwrap_err();
        assert!(error.contains("--trace-from 900.000 ms"), "{error}");
    }

    #[test]
    fn recording_starts_within_the_simulation() {
        for text in ["1s", "2s", "soon"] {
            let error = recording(Some(text), None, false).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }
}
