//! Looking for VMs beside the control loop.
//!
//! A look may take long: processes hold what their owners like, a QMP socket may be silent, a busy host gives no time. A daemon that
//! waited for it would leave weights standing still. So a thread of its own looks when it is asked to, and the daemon takes what was found
//! when it is there. Until then it goes on with the VMs that it knows.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use tandem_linux::real_time::go_before_others;

use crate::discovery::{Discovery, DiscoveryError, Scan, UNHURRIED};

/// How long a look takes at most beside what cannot be cut short: the list of processes, and sockets that do not answer.
const HURRIED: Duration = Duration::from_millis(50);

type Found = Result<Scan, DiscoveryError>;

/// The thread that looks.
pub(crate) struct Scanner {
    requests: Sender<Duration>,
    found: Receiver<Found>,
    /// Since when it has been looking.
    looking: Option<Instant>,
}

impl Scanner {
    /// Starts the thread, which waits to be asked. It ends with this. `urgent`: it goes before other threads of this host, if it may.
    pub(crate) fn start(mut discovery: Discovery, urgent: bool) -> std::io::Result<Scanner> {
        let (requests, requested) = channel();
        let (tell, found) = channel();
        let look = move || {
            if urgent {
                // Who may not is told by the daemon, for itself.
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

    /// Looks, and waits for what is found: the first look, which takes the time that it needs. `None`: the thread ended.
    pub(crate) fn look(&mut self) -> Option<Found> {
        self.requests.send(UNHURRIED).ok()?;
        self.found.recv().ok()
    }

    /// Has it look, unless it is looking. False: the thread ended.
    pub(crate) fn ask(&mut self) -> bool {
        if self.looking.is_some() {
            return true;
        }
        self.looking = Some(Instant::now());
        self.requests.send(HURRIED).is_ok()
    }

    /// What was found since it was asked, if it is there.
    pub(crate) fn take(&mut self) -> Option<Found> {
        match self.found.try_recv() {
            Ok(found) => {
                self.looking = None;
                Some(found)
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }

    /// For how long it has been looking.
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
    fn what_is_found_comes_when_it_is_there_and_errors_too() {
        let dir = tempfile::tempdir().unwrap();
        let proc = dir.path().join("proc");
        std::fs::create_dir(&proc).unwrap();
        let options = DiscoveryOptions::default();
        let discovery = Discovery::new(options, ProcFs::at(dir.path())).unwrap();
        let mut scanner = Scanner::start(discovery, false).unwrap();
        assert!(scanner.look().unwrap().unwrap().vms.is_empty());
        assert!(scanner.take().is_none(), "nobody asked");
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
        assert!(ask(&mut scanner).is_ok(), "and goes on");
    }
}
