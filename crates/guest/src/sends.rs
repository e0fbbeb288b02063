//! Counts messages sent on sockets, as a measure of progress of servers.
//!
//! The kernel's counts of read and write calls per process ([`crate::sampler`]) exclude send and recv.
//! The tracepoint `sock_send_length` covers every message, whichever call sends it.
//! A counter of it (perf_event_open(2)) costs some time per message, so it exists only during trials of delayed scheduling.
//! It counts messages of all processes on these vCPUs.

use std::{fs, io};

use perf_event::events::Tracepoint;
use perf_event::{Builder, Counter};
use tandem_linux::ProcFs;
use tandem_model::units::PcpuId;

use crate::record::tracefs;

/// File in tracefs with the tracepoint's id.
const EVENT: &str = "events/sock/sock_send_length/id";

/// Counters of messages on some vCPUs.
#[derive(Debug)]
pub(crate) struct Sends {
    counters: Vec<Counter>,
}

impl Sends {
    /// Starts counting; it needs tracefs, the tracepoint, and the privilege to count events of other processes.
    pub(crate) fn open(procfs: &ProcFs, vcpus: impl Iterator<Item = PcpuId>) -> io::Result<Sends> {
        let (root, _mount) = tracefs::root(procfs).map_err(io::Error::other)?;
        let text = fs::read_to_string(root.join(EVENT))?;
        let id: u64 = text.trim().parse().map_err(io::Error::other)?;
        let open = |vcpu: PcpuId| -> io::Result<Counter> {
            let mut event = Builder::new(Tracepoint::with_id(id));
            event.any_pid().one_cpu(vcpu.0 as usize).include_kernel();
            let mut counter = event.build()?;
            counter.enable()?;
            Ok(counter)
        };
        Ok(Sends { counters: vcpus.map(open).collect::<io::Result<Vec<Counter>>>()? })
    }

    /// Returns the number of messages since the counters were opened.
    pub(crate) fn count(&mut self) -> io::Result<u64> {
        self.counters.iter_mut().map(Counter::read).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::thread::available_parallelism;

    use super::*;

    #[test]
    fn messages_of_any_call_count() {
        let vcpus = available_parallelism().map_or(1, |count| count.get() as u32);
        let mut sends = match Sends::open(&ProcFs::host(), (0..vcpus).map(PcpuId)) {
            Ok(sends) => sends,
            Err(error) => {
                println!("skipped: messages on sockets cannot be counted: {error}");
                return;
            }
        };
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let before = sends.count().unwrap();
        for _ in 0..500 {
            here.write_all(b"x").unwrap();
            there.read_exact(&mut [0]).unwrap();
        }
        // Other processes of this machine send, too.
        let counted = sends.count().unwrap() - before;
        assert!((500..50_000).contains(&counted), "{counted}");
    }
}
