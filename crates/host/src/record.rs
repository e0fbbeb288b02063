//! `tandem host record`: what `top` sees, interval after interval, for [`tandem_observe::record`].
//!
//! All VMs of the host are recorded, selected by nobody: any may be a culprit, and who is asked about later is not known yet. A VM that
//! is found at the end of an interval is in it by name, with its weight and what it was due; quotas and pins are in it as far as they
//! show: LIM, and where each vCPU may run.

use std::collections::BTreeMap;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;
use std::time::Instant;
use std::time::SystemTime;

use tandem_linux::cgroup;
use tandem_linux::cgroup::CpuController;
use tandem_linux::interrupt::Interrupt;
use tandem_linux::procfs::ProcFs;
use tandem_observe::Interval;
use tandem_observe::Source;
use tandem_observe::record::Frame;
use tandem_observe::record::RecordError;
use tandem_observe::record::RecordedVm;
use tandem_observe::record::Recorder;
use tandem_policy::Nanos;
use tandem_policy::VmId;
use tandem_policy::Weight;
use thiserror::Error;

use crate::discovery::Discovery;
use crate::discovery::DiscoveryOptions;
use crate::discovery::Scan;
use crate::status::configured_weights;
use crate::top::TopError;
use crate::watch::assessed;
use crate::watch::watched;

/// Looks at the host again and again; nothing is changed.
pub struct Frames {
    discovery: Discovery,
    controller: Box<dyn CpuController>,
    state_dir: PathBuf,
    source: Box<dyn Source>,
}

impl Frames {
    /// Opens what is needed to look with this source, and begins the first interval.
    pub fn begin(
        source: Box<dyn Source>,
        options: DiscoveryOptions,
        state_dir: &Path,
    ) -> Result<Frames, TopError> {
        let procfs = ProcFs::host();
        let mut frames = Frames {
            discovery: Discovery::new(options, procfs.clone())?,
            controller: cgroup::open(&procfs)?,
            source,
            state_dir: state_dir.to_owned(),
        };
        let vms = frames.discovery.scan()?.vms;
        // What is made of the record later may be a scenario.
        frames.source.count_wakeups();
        frames.source.begin(&watched(&vms))?;
        Ok(frames)
    }

    /// What happened since the last call, or the beginning.
    pub fn frame(&mut self) -> Result<Frame, TopError> {
        let scan = self.discovery.scan()?;
        // An interval ends when its source begins to read.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = Nanos(now.map_or(0, |now| now.as_nanos() as u64));
        let interval = self.source.interval(&watched(&scan.vms))?;
        let weights = configured_weights(self.controller.as_ref(), &self.state_dir, &scan.vms);
        Ok(frame(&scan, interval, &weights, now))
    }
}

/// Why a recording ended before it was asked to.
#[derive(Debug, Error)]
pub enum RecordingError {
    /// The host cannot be looked at.
    #[error(transparent)]
    Top(#[from] TopError),
    /// Nothing more can be written.
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// Records intervals that began when this is called, until `end` or a signal; what is left of an interval then is recorded, too.
pub fn run(
    frames: &mut Frames,
    recorder: &mut Recorder,
    interval: Duration,
    end: Option<Instant>,
    interrupt: &Interrupt,
) -> Result<(), RecordingError> {
    let mut next = Instant::now();
    loop {
        // At the pace that was asked for; one that took too long is not made up for.
        next = (next + interval).max(Instant::now());
        let until = end.map_or(next, |end| end.min(next));
        let is_last = interrupt.sleep_until(until).is_err() || end == Some(until);
        recorder.add(frames.frame()?)?;
        if is_last {
            return Ok(());
        }
    }
}

/// Puts together what was found, measured and configured; the interval ended `now`, in ns since 1970.
pub(crate) fn frame(
    scan: &Scan,
    interval: Interval,
    weights: &BTreeMap<VmId, Weight>,
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
        };
        (vm.id, known)
    });
    Frame {
        at: now.saturating_sub(interval.length),
        vms: vms.collect(),
        interval,
        unreadable: scan.unreadable_vmms,
    }
}
