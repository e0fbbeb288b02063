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
use tandem_linux::service::{ReportOnce, Reporter};
use tandem_model::{Nanos, VmId};
use tandem_observe::findings::{KnownHost, KnownVm};
use tandem_observe::record::{Finished, Frame, RecordError, RecordedVm, Recorder};
use tandem_observe::{Interval, Source};
use thiserror::Error;

use crate::discovery::{DiscoveryOptions, Scan};
use crate::watch::assessed;
use crate::weights::Weights;
use crate::why::{Why, WhyError};
use tandem_observe::moment;

/// How often settings are read: cgroups and quotas of all VMs, which is dear on a host of a thousand.
pub const SETTINGS_EVERY: Duration = Duration::from_secs(10);

/// What is recorded: one frame for each interval.
pub trait Frames {
    /// Begins the next interval now: what happened since the last one does not count.
    fn begin(&mut self) -> Result<(), WhyError>;

    /// What happened since the last call, or the beginning.
    fn frame(&mut self) -> Result<Frame, WhyError>;
}

/// What is configured beside weights.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) vms: BTreeMap<VmId, KnownVm>,
    pub(crate) host: Option<KnownHost>,
}

/// Looks at the host again and again; nothing is changed.
pub struct HostFrames {
    why: Why,
    settings: Settings,
    settings_at: Option<Instant>,
}

impl HostFrames {
    /// Opens what is needed to look with this source, and begins the first interval.
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
        // What is made of the record later may be a scenario.
        frames.why.look.source.count_wakeups();
        Frames::begin(&mut frames)?;
        Ok(frames)
    }

    fn read_settings(&mut self, scan: &Scan, interval: &Interval) {
        let is_new = |read: Instant| read.elapsed() < SETTINGS_EVERY;
        if self.settings_at.is_some_and(is_new) {
            return;
        }
        // What cannot be read is not in the record, and whoever asks is told so.
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

/// Why a recording ended before it was asked to.
#[derive(Debug, Error)]
pub enum RecordingError {
    /// Nothing more can be written.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// There is a record, and nothing in it.
    #[error("nothing was recorded: all {looks} looks failed, the last because: {why}")]
    Nothing {
        /// How many.
        looks: u64,
        /// What the last one said.
        why: String,
    },
}

/// Records intervals that began when this is called, until `end` or a signal; what is left of an interval then is recorded, too. Looks that fail
/// are told once each, and the record says how many there were. The record is ended, whatever happened.
pub fn run(
    frames: &mut dyn Frames,
    mut recorder: Recorder,
    interval: Duration,
    end: Option<Instant>,
    interrupt: &Interrupt,
    reporter: &mut dyn Reporter,
) -> Result<Finished, RecordingError> {
    let mut looks = Looks::default();
    let mut next = Instant::now();
    loop {
        // At the pace that was asked for; one that took too long is not made up for.
        next = (next + interval).max(Instant::now());
        let until = end.map_or(next, |end| end.min(next));
        let is_last = interrupt.sleep_until(until).is_err() || end == Some(until);
        if let Err(error) = looks.look(frames, &mut recorder, reporter) {
            // What was recorded before stays readable; that it says so itself is worth a try.
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

/// What a record came to, in a line.
pub fn summary(finished: &Finished) -> String {
    let dropped = match finished.dropped {
        0 => String::new(),
        dropped => format!(", of which the first {dropped} went to make room"),
    };
    let failed = match finished.failed {
        0 => String::new(),
        failed => format!("; {failed} looks failed, which are gaps"),
    };
    format!("{} intervals{dropped}, {} bytes{failed}", finished.intervals, finished.bytes)
}

/// Looks, and those that failed.
#[derive(Default)]
struct Looks {
    /// What the last that failed said.
    failure: Option<String>,
    /// Whether no interval was begun since.
    is_broken: bool,
    said: ReportOnce,
}

impl Looks {
    /// Looks once; an error is one that ends the recording.
    fn look(
        &mut self,
        frames: &mut dyn Frames,
        recorder: &mut Recorder,
        reporter: &mut dyn Reporter,
    ) -> Result<(), RecordError> {
        if self.is_broken {
            // Of an interval that was not begun nothing can be told: this one begins it, for the next.
            match frames.begin() {
                Ok(()) => self.is_broken = false,
                Err(error) => self.fail(&error.to_string(), recorder, reporter),
            }
            return Ok(());
        }
        let why = match frames.frame() {
            Ok(frame) => match recorder.add(frame) {
                // The next one may be smaller.
                Err(error @ RecordError::TooSmall { .. }) => error.to_string(),
                other => return other,
            },
            Err(error) => error.to_string(),
        };
        self.fail(&why, recorder, reporter);
        self.is_broken = frames.begin().is_err();
        Ok(())
    }

    fn fail(&mut self, why: &str, recorder: &mut Recorder, reporter: &mut dyn Reporter) {
        self.failure = Some(why.to_owned());
        recorder.failed(why);
        self.said.error(format!("a look failed, and recording goes on: {why}"), reporter);
    }
}

/// Puts together what was found, measured and configured; the interval ended `now`, in ns since 1970.
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
