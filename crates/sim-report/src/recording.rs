//! From when on a run is recorded, and which window of it a picture shows.
//!
//! A picture whose window is not said shows [`WINDOW`] from the end of the warm-up on: what is not counted is seldom what a picture
//! is for. Nothing before it is recorded then, unless a trace is wanted too, which is whole.

use tandem_model::Nanos;
use tandem_sim::Scenario;
use tandem_sim::scenario::load;
use thiserror::Error;

/// How long a picture is unless it is said.
pub const WINDOW: Nanos = Nanos::from_millis(20);

/// What is wrong with what is to be recorded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RecordingError {
    /// A begin is no time.
    #[error("--trace-from {text} is not possible: write a time such as 2s: {cause}")]
    NoTime {
        /// What was given.
        text: String,
        /// What a time is.
        cause: String,
    },
    /// A begin after the end.
    #[error("--trace-from {text} is not possible: the simulation ends after {duration}")]
    TooLate {
        /// What was given.
        text: String,
        /// How long is simulated.
        duration: Nanos,
    },
    /// A window is no two times in order.
    #[error("--window {0} is not possible: write FROM-TO, such as 10ms-12ms")]
    NoWindow(String),
    /// A window before the begin.
    #[error("--window {window} is over before recording begins (--trace-from {from})")]
    Over {
        /// What was given.
        window: String,
        /// When recording begins.
        from: Nanos,
    },
}

/// What is recorded, in simulated time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recording {
    /// From when on.
    pub from: Nanos,
    /// Begin and end of the picture.
    pub window: (Nanos, Nanos),
}

impl Recording {
    /// As `--trace-from` and `--window` say; `is_traced` where a trace is wanted too.
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

/// The two times of a window such as `10ms-12ms`.
fn ends(text: &str) -> Option<(Nanos, Nanos)> {
    let (from, to) = text.split_once('-')?;
    let (from, to) = (load::time(from).ok()?, load::time(to).ok()?);
    (from < to).then_some((from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_millis(1000);

    /// Of a second, a tenth of which is warm-up.
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
    fn a_picture_is_of_what_is_counted_unless_it_is_said() {
        assert_eq!(recording(None, None, false), millis(100, (100, 120)));
        assert_eq!(recording(None, None, true), millis(0, (100, 120)));
        assert_eq!(recording(Some("50ms"), None, true), millis(50, (50, 70)));
        let window = Some("10ms-12ms");
        assert_eq!(recording(None, window, false), millis(0, (10, 12)));
        assert_eq!(recording(Some("11ms"), window, false), millis(11, (10, 12)));
    }

    #[test]
    fn windows_are_two_times_in_order() {
        for text in ["10ms", "12ms-10ms", "10-12", ""] {
            let error = recording(None, Some(text), false).unwrap_err();
            assert!(error.contains("FROM-TO"), "{error}");
        }
        let error = recording(Some("900ms"), Some("10ms-12ms"), false).unwrap_err();
        assert!(error.contains("--trace-from 900.000 ms"), "{error}");
    }

    #[test]
    fn recording_begins_within_the_simulation() {
        for text in ["1s", "2s", "soon"] {
            let error = recording(Some(text), None, false).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }
}
