//! When samples of the workload's code are taken: for a period at a time, if the controller asks for them.
//!
//! The profiler is opened the first time that it is needed. Where that fails, or sampling does, there are no samples
//! from then on: the agent goes on without a profiler and says so once.

use std::io;
use std::time::Instant;

use tandem_linux::thread::Pid;
use tandem_model::Nanos;
use tandem_policy::gleaner::Code;
use tandem_policy::gleaner::consolidation::SamplingDetail;

use crate::profiler::Profiler;

/// Whether samples can be, and are being, taken.
#[derive(Default)]
pub(crate) enum Profiling {
    /// Nobody has asked for them yet.
    #[default]
    NotOpened,
    /// They can be taken.
    Ready(Box<Profiler>),
    /// They have been taken since then.
    Sampling(Box<Profiler>, Instant),
    /// They cannot be had here.
    Unavailable,
}

impl Profiling {
    /// Whether samples are being taken.
    pub(crate) fn is_sampling(&self) -> bool {
        matches!(self, Profiling::Sampling(..))
    }

    /// Ends sampling, if any goes on: where these processes were since its start. After an error there are no samples.
    pub(crate) fn finish(&mut self, processes: &[Pid]) -> io::Result<Option<Code>> {
        match std::mem::replace(self, Profiling::Unavailable) {
            Profiling::Sampling(mut profiler, since) => {
                let period = Nanos(u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX));
                let code = profiler.stop(processes, period)?;
                *self = Profiling::Ready(profiler);
                Ok(Some(code))
            }
            other => {
                *self = other;
                Ok(None)
            }
        }
    }

    /// Takes samples from now on, so closely, where that is possible; `open` makes the profiler the first time. After an
    /// error there are no samples.
    pub(crate) fn start(
        &mut self,
        closely: SamplingDetail,
        open: impl FnOnce() -> io::Result<Profiler>,
    ) -> io::Result<()> {
        let mut profiler = match std::mem::replace(self, Profiling::Unavailable) {
            Profiling::Ready(profiler) => profiler,
            Profiling::NotOpened => Box::new(open()?),
            // Sampling was finished before the controller decided.
            Profiling::Unavailable | Profiling::Sampling(..) => return Ok(()),
        };
        profiler.start(closely)?;
        *self = Profiling::Sampling(profiler, Instant::now());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_profiler_it_is_said_once_and_never_tried_again() {
        let mut profiling = Profiling::default();
        assert!(profiling.finish(&[]).unwrap().is_none());
        let refused = || Err(io::Error::other("no perf events"));
        assert!(profiling.start(SamplingDetail::Rough, refused).is_err());
        let untried = || panic!("it is not opened again");
        assert!(profiling.start(SamplingDetail::Rough, untried).is_ok());
        assert!(profiling.finish(&[]).unwrap().is_none());
        assert!(!profiling.is_sampling());
    }
}
