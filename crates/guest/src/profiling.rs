//! Schedules code samples of the workload: for one period at a time, at the controller's request.
//!
//! The profiler is opened at the first request.
//! If that or sampling fails, the agent reports it once and continues without samples.

use std::io;
use std::time::Instant;

use tandem_linux::thread::Pid;
use tandem_model::Nanos;
use tandem_policy::gleaner::Code;
use tandem_policy::gleaner::consolidation::SamplingDetail;

use crate::profiler::Profiler;

/// State of sampling.
#[derive(Default)]
pub(crate) enum Profiling {
    /// No request yet.
    #[default]
    NotOpened,
    /// The profiler is open and idle.
    Ready(Box<Profiler>),
    /// Sampling since this time.
    Sampling(Box<Profiler>, Instant),
    /// Sampling failed.
    Unavailable,
}

impl Profiling {
    /// Returns true while samples are taken.
    pub(crate) fn is_sampling(&self) -> bool {
        matches!(self, Profiling::Sampling(..))
    }

    /// Stops sampling and returns the code that these processes ran; `None` if sampling was off.
    /// An error makes sampling unavailable.
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

    /// Starts sampling at this level of detail; `open` creates the profiler at the first call.
    /// An error makes sampling unavailable.
    pub(crate) fn start(
        &mut self,
        closely: SamplingDetail,
        open: impl FnOnce() -> io::Result<Profiler>,
    ) -> io::Result<()> {
        let mut profiler = match std::mem::replace(self, Profiling::Unavailable) {
            Profiling::Ready(profiler) => profiler,
            Profiling::NotOpened => Box::new(open()?),
            // `finish` precedes the controller's decision, so sampling is off.
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
    fn failed_profiler_is_not_reopened() {
        let mut profiling = Profiling::default();
        assert!(profiling.finish(&[]).unwrap().is_none());
        let refused = || Err(io::Error::other("no perf events"));
        assert!(profiling.start(SamplingDetail::Rough, refused).is_err());
        let untried = || panic!("opened again");
        assert!(profiling.start(SamplingDetail::Rough, untried).is_ok());
        assert!(profiling.finish(&[]).unwrap().is_none());
        assert!(!profiling.is_sampling());
    }
}
