//! Scans for VMs in a thread, next to the control loop.
//!
//! A scan may take long: tenants' processes may be large, a QMP socket may be silent, and a busy host delays the scan.
//! Waiting for it would delay the weights.
//! The thread therefore scans on request, and the daemon takes the result when it is there.
//! Until then the daemon manages the VMs that it knows.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use tandem_linux::real_time::go_before_others;

use crate::discovery::{Discovery, DiscoveryError, Scan, UNHURRIED};

/// Time limit of a scan, except for reading the list of processes and silent sockets.
const HURRIED: Duration = Duration::from_millis(50);

type Found = Result<Scan, DiscoveryError>;

/// The scanning thread.
pub(crate) struct Scanner {
    requests: Sender<Duration>,
    found: Receiver<Found>,
    /// Start of the scan in progress.
    looking: Option<Instant>,
}

impl Scanner {
    /// Starts the thread, which waits for requests and ends with this value.
    /// With `urgent`, it runs before other threads of the host, if permitted.
    pub(crate) fn start(mut discovery: Discovery, urgent: bool) -> std::io::Result<Scanner> {
        let (requests, requested) = channel();
        let (tell, found) = channel();
        let look = move || {
            if urgent {
                // If that is not permitted, the daemon reports it for its own thread.
                let _ = go_before_others();
            }
            while let Ok(time) = requested.recv() {
                if tell.send(discovery.scan_within(time)).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("discovery".to_owned()).spawn(look)?;
        Ok(Scanner { requests, found, looking: None })
    }

    /// Scans and waits for the result: the first scan, without a time limit. Returns `None` if the thread ended.
    pub(crate) fn look(&mut self) -> Option<Found> {
        self.requests.send(UNHURRIED).ok()?;
        self.found.recv().ok()
    }

    /// Requests a scan unless one is in progress. Returns false if the thread ended.
    pub(crate) fn ask(&mut self) -> bool {
        if self.looking.is_some() {
            return true;
        }
        self.looking = Some(Instant::now());
        self.requests.send(HURRIED).is_ok()
    }

    /// Returns the result of the request, if it is there.
    pub(crate) fn take(&mut self) -> Option<Found> {
        match self.found.try_recv() {
            Ok(found) => {
                self.looking = None;
                Some(found)
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }

    /// Returns the duration of the scan in progress.
    pub(crate) fn looking(&self) -> Duration {
        self.looking.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use tandem_linux::ProcFs;

    use crate::discovery::DiscoveryOptions;

    use super::*;

    #[test]
    fn results_and_errors_arrive_later() {
        let dir = tempfile::tempdir().unwrap();
        let proc = dir.path().join("proc");
        std::fs::create_dir(&proc).unwrap();
        let options = DiscoveryOptions::default();
        let discovery = Discovery::new(options, ProcFs::at(dir.path())).unwrap();
        let mut scanner = Scanner::start(discovery, false).unwrap();
        assert!(scanner.look().unwrap().unwrap().vms.is_empty());
        assert!(scanner.take().is_none(), "no request");
        let ask = |scanner: &mut Scanner| {
            assert!(scanner.ask() && scanner.ask());
            loop {
                if let Some(found) = scanner.take() {
                    return found;
                }
                std::thread::yield_now();
            }
        };
        assert!(ask(&mut scanner).is_ok());
        assert_eq!(scanner.looking(), Duration::ZERO);
        std::fs::remove_dir(&proc).unwrap();
        assert!(ask(&mut scanner).is_err());
        assert!(scanner.take().is_none(), "asked twice, looked once");
        std::fs::create_dir(&proc).unwrap();
        assert!(ask(&mut scanner).is_ok(), "the thread continues");
    }
}
