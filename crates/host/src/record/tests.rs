//! A host that sometimes cannot be observed.

use std::collections::VecDeque;
use std::sync::Arc;

use tandem_linux::log::{Console, LevelFilter};
use tandem_linux::procfs::ProcFs;
use tandem_model::states::edges::EdgesBuilder;
use tandem_model::states::interval::HostTotals;
use tandem_observe::record::{DEFAULT_MAX_BYTES, Record};

use super::*;
use crate::discovery::Discovery;
use crate::fixtures::intervals::interval;
use crate::replay::list;
use crate::watch::LookError;

/// Scripted results of the measurements; the last one repeats.
struct Scripted {
    looks: VecDeque<bool>,
    /// Number of intervals that were begun.
    begun: u64,
    now: u64,
}

impl Scripted {
    fn new(looks: &[bool]) -> Scripted {
        Scripted { looks: looks.iter().copied().collect(), begun: 0, now: 0 }
    }

    fn next(&mut self) -> Result<(), WhyError> {
        self.now += 1;
        let is_fine = match self.looks.len() {
            1 => self.looks[0],
            _ => self.looks.pop_front().unwrap(),
        };
        if is_fine {
            Ok(())
        } else {
            // A realistic error.
            let nowhere = ProcFs::at("/nowhere/to/be/found");
            let mut discovery = Discovery::new(DiscoveryOptions::default(), nowhere).unwrap();
            Err(LookError::from(discovery.scan().unwrap_err()).into())
        }
    }
}

impl Frames for Scripted {
    fn begin(&mut self) -> Result<(), WhyError> {
        self.begun += 1;
        self.next()
    }

    fn frame(&mut self) -> Result<Frame, WhyError> {
        self.next()?;
        let start = Nanos::from_secs(self.now);
        let interval =
            interval(start, Vec::new(), EdgesBuilder::new().all(), HostTotals::default());
        let end = Nanos::from_secs(1_000 + self.now + 1);
        let nothing = Settings::default();
        Ok(frame(&Scan::default(), interval, &Weights::default(), &nothing, end))
    }
}

#[test]
fn failed_interval_is_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    let mut recorder = Recorder::create(dir.path(), DEFAULT_MAX_BYTES).unwrap();
    // Two frames, one that fails and a begin that succeeds; a begin that fails and one that succeeds; frames again.
    let mut frames = Scripted::new(&[true, true, false, false, false, true, true]);
    let mut looks = Looks::default();
    let log = tempfile::NamedTempFile::new().unwrap();
    let writer = Arc::new(log.reopen().unwrap());
    let console = Console { name: None, print_ready: false, level: LevelFilter::INFO };
    let subscriber = tracing::subscriber::set_default(console.subscriber(writer));
    for _ in 0..7 {
        looks.look(&mut frames, &mut recorder).unwrap();
    }
    let finished = recorder.finish(None).unwrap();
    assert_eq!((finished.failed, frames.begun), (2, 3));
    drop(subscriber);
    let said = std::fs::read_to_string(log.path()).unwrap();
    assert_eq!(said.lines().count(), 1, "one line for equal errors: {said}");
    assert!(said.contains("recording continues") && said.contains("/nowhere"), "{said}");
    let listing = list(&Record::open(dir.path()).unwrap()).unwrap();
    assert_eq!((listing.intervals, listing.failed), (4, 2));
    assert!(listing.complete);
    let [gap] = &listing.gaps[..] else { panic!("{listing:?}") };
    assert_eq!(gap.failed, 2);
    // Frames at 1 and 2; the next is the seventh event.
    assert_eq!(gap.from, Nanos::from_secs(1_003));
    assert_eq!(gap.to, Nanos::from_secs(1_007));
    assert!(gap.why.as_ref().unwrap().contains("/nowhere"));
}

#[test]
fn empty_record_reports_why() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = Recorder::create(dir.path(), DEFAULT_MAX_BYTES).unwrap();
    let interrupt = Interrupt::watch().unwrap();
    let (ms, end) = (Duration::from_millis(1), Instant::now() + Duration::from_millis(30));
    let mut frames = Scripted::new(&[false]);
    let ran = run(&mut frames, recorder, ms, Some(end), &interrupt);
    let error = ran.unwrap_err().to_string();
    assert!(error.contains("nothing was recorded") && error.contains("/nowhere"), "{error}");
    let listing = list(&Record::open(dir.path()).unwrap()).unwrap();
    assert!(listing.failed > 0 && listing.intervals == 0 && listing.complete);
}
