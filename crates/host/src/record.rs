//! `tandem host record`: records the intervals of `top` for [`tandem_observe::record`].
//!
//! All VMs of the host are recorded, because any may be a culprit.
//! A VM found at the end of an interval is in it with its name, weight and fair share.
//! The settings of VMs and host that `why` needs are read every [`SETTINGS_EVERY`].
//!
//! A failed look is counted, and its time is a gap in the record; only a failed write ends the record.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use tandem_linux::interrupt::Interrupt;
use tandem_model::{Nanos, VmId};
use tandem_observe::findings::{KnownHost, KnownVm};
use tandem_observe::record::{Finished, Frame, RecordError, RecordedVm, Recorder};
use tandem_observe::{Interval, Source};
use thiserror::Error;
use tracing::error;

use crate::discovery::{DiscoveryOptions, Scan};
use crate::watch::assessed;
use crate::weights::Weights;
use crate::why::{Why, WhyError};
use tandem_observe::moment;

/// Interval between reads of the settings: the cgroups and quotas of all VMs, costly on a host of a thousand.
pub const SETTINGS_EVERY: Duration = Duration::from_secs(10);

/// The source of a record: one frame per interval.
pub trait Frames {
    /// Begins the next interval now; the time since the last one does not count.
    fn begin(&mut self) -> Result<(), WhyError>;

    /// Returns the frame since the last call, or since the beginning.
    fn frame(&mut self) -> Result<Frame, WhyError>;
}

/// Settings other than weights.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) vms: BTreeMap<VmId, KnownVm>,
    pub(crate) host: Option<KnownHost>,
}

/// Observes the host repeatedly and changes nothing.
pub struct HostFrames {
    why: Why,
    settings: Settings,
    settings_at: Option<Instant>,
}

impl HostFrames {
    /// Opens the source, and begins the first interval.
    pub fn begin(
        source: Box<dyn Source>,
        options: DiscoveryOptions,
        state_dir: &Path,
    ) -> Result<HostFrames, WhyError> {
        let mut frames = HostFrames {
            why: Why::open(source, options, state_dir)?,
            settings: Settings::default(),
            settings_at: None,
        };
        // The record may become a scenario, which needs wake-ups.
        frames.why.look.source.count_wakeups();
        Frames::begin(&mut frames)?;
        Ok(frames)
    }

    fn read_settings(&mut self, scan: &Scan, interval: &Interval) {
        let is_new = |read: Instant| read.elapsed() < SETTINGS_EVERY;
        if self.settings_at.is_some_and(is_new) {
            return;
        }
        // Unreadable settings are not recorded; `replay` reports that.
        self.settings = match self.why.situation(&scan.vms, interval) {
            Ok(situation) => Settings { vms: situation.vms, host: Some(situation.host) },
            Err(_) => Settings::default(),
        };
        self.settings_at = Some(Instant::now());
    }
}

impl Frames for HostFrames {
    fn begin(&mut self) -> Result<(), WhyError> {
        self.why.look.begin()?;
        Ok(())
    }

    fn frame(&mut self) -> Result<Frame, WhyError> {
        let scan = self.why.look.scan()?;
        // An interval ends when its source begins to read.
        let now = moment::now();
        let interval = self.why.look.interval_with(&scan.vms)?;
        let weights = self.why.look.weights(&scan.vms);
        self.read_settings(&scan, &interval);
        Ok(frame(&scan, interval, &weights, &self.settings, now))
    }
}

/// Why a recording ended early.
#[derive(Debug, Error)]
pub enum RecordingError {
    /// The record cannot be written any more.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The record has no interval.
    #[error("nothing was recorded: all {looks} intervals failed, the last because: {why}")]
    Nothing {
        /// Number of intervals.
        looks: u64,
        /// The last error.
        why: String,
    },
}

/// Records intervals until `end` or a signal; the last one may be shorter.
/// Each kind of failure is logged once, and the record counts them.
/// The record is finished in all cases.
pub fn run(
    frames: &mut dyn Frames,
    mut recorder: Recorder,
    interval: Duration,
    end: Option<Instant>,
    interrupt: &Interrupt,
) -> Result<Finished, RecordingError> {
    let mut looks = Looks::default();
    let mut next = Instant::now();
    loop {
        // At the requested pace; a late interval is not made up for.
        next = (next + interval).max(Instant::now());
        let until = end.map_or(next, |end| end.min(next));
        let is_last = interrupt.sleep_until(until).is_err() || end == Some(until);
        if let Err(error) = looks.look(frames, &mut recorder) {
            // The record stays readable without this; try to store the error in it.
            let _ = recorder.finish(Some(error.to_string()));
            return Err(error.into());
        }
        if is_last {
            break;
        }
    }
    let finished = recorder.finish(None)?;
    match (finished.intervals, looks.failure) {
        (0, Some(why)) => Err(RecordingError::Nothing { looks: finished.failed, why }),
        _ => Ok(finished),
    }
}

/// Returns a summary of the record in one line.
pub fn summary(finished: &Finished) -> String {
    let dropped = match finished.dropped {
        0 => String::new(),
        dropped => format!(", of which the first {dropped} were dropped to make room"),
    };
    let failed = match finished.failed {
        0 => String::new(),
        failed => format!("; {failed} intervals failed and are gaps"),
    };
    format!("{} intervals{dropped}, {} bytes{failed}", finished.intervals, finished.bytes)
}

/// Attempts to measure, and their failures.
#[derive(Default)]
struct Looks {
    /// The error of the last failure.
    failure: Option<String>,
    /// Whether no interval has begun since.
    is_broken: bool,
}

impl Looks {
    /// Measures once; returns an error only if it ends the recording.
    fn look(
        &mut self,
        frames: &mut dyn Frames,
        recorder: &mut Recorder,
    ) -> Result<(), RecordError> {
        if self.is_broken {
            // An interval that was not begun has no figures; begin it for the next one.
            match frames.begin() {
                Ok(()) => self.is_broken = false,
                Err(error) => self.fail(&error.to_string(), recorder),
            }
            return Ok(());
        }
        let why = match frames.frame() {
            Ok(frame) => match recorder.add(frame) {
                // The next frame may be smaller.
                Err(error @ RecordError::TooSmall { .. }) => error.to_string(),
                other => return other,
            },
            Err(error) => error.to_string(),
        };
        self.fail(&why, recorder);
        self.is_broken = frames.begin().is_err();
        Ok(())
    }

    fn fail(&mut self, why: &str, recorder: &mut Recorder) {
        self.failure = Some(why.to_owned());
        recorder.failed(why);
        error!(once = true, "an interval failed, and recording continues: {why}");
    }
}

/// Combines discovery, measurement and settings; the interval ended `now`, in ns since 1970.
pub(crate) fn frame(
    scan: &Scan,
    interval: Interval,
    weights: &Weights,
    settings: &Settings,
    now: Nanos,
) -> Frame {
    let accounts = assessed(&interval, weights);
    let vms = scan.vms.iter().map(|vm| {
        let tids = vm.vcpus.iter();
        let known = RecordedVm {
            name: vm.name.clone(),
            pid: vm.process.pid.0,
            program: vm.vmm.to_string(),
            weight: weights.get(&vm.id).copied(),
            due: accounts.get(&vm.id).map(|account| account.fair),
            tids: tids.map(|vcpu| (vcpu.index, vcpu.thread.tid.0)).collect(),
            settings: settings.vms.get(&vm.id).cloned().map(KnownVm::settings),
        };
        (vm.id, known)
    });
    Frame {
        at: now.saturating_sub(interval.length),
        vms: vms.collect(),
        interval,
        unreadable: scan.unreadable_vmms,
        failed: 0,
        failure: None,
        host: settings.host.clone(),
    }
}

#[cfg(test)]
mod tests;
