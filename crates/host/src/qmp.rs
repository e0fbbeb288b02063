//! Asks QEMU over its QMP socket which thread runs which vCPU, for QEMU without `debug-threads=on`.
//!
//! Source: docs/interop/qmp-spec.rst. QEMU greets with `{"QMP": …}`, expects `qmp_capabilities`, and answers
//! `query-cpus-fast` with a list of `cpu-index` and `thread-id`; events may come in between.
//! A QMP socket serves one client at a time, so every connection and exchange has a deadline.
//!
//! A tenant may listen at a path that matches a pattern and name threads of others.
//! The kernel therefore reports which process writes the answer ([`senders`]).
//! [`Peer::is_trusted_for`] decides for which VMs that process is trusted.

use std::cell::Cell;
use std::io::{BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use std::{fmt, io};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::de::IoRead;
use serde_json::error::Category;
use tandem_linux::printable::printable;
use tandem_linux::senders;
use tandem_linux::senders::Sender;
use tandem_linux::thread::{Pid, Tid};
use tandem_model::VcpuId;

mod error;
mod opened;
mod paths;

pub use error::QmpError;
pub use opened::OpenSocket;
pub use paths::{
    FoundSocket, MAX_ENTRIES, MAX_ENTRIES_OF_FOLDER, SocketPattern, SocketWalk, Walked,
};

/// Timeout of one exchange.
pub const DEADLINE: Duration = Duration::from_millis(250);

/// Maximum length of peer text quoted in errors, in characters.
const MAX_QUOTED: usize = 120;

/// Maximum number of bytes read from a socket before it is taken for something other than QMP.
const MAX_BYTES: u64 = 4 << 20;

/// Read size: an answer of a hundred vCPUs and more.
const BUFFER: usize = 16 << 10;

/// One vCPU as QEMU names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QmpVcpu {
    /// Its number.
    pub index: VcpuId,
    /// Its thread.
    pub tid: Tid,
}

/// The process that answers at a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process that wrote the answer.
    pub pid: Pid,
    /// Its user.
    pub uid: u32,
}

impl Peer {
    /// Whether the process is trusted about `process`: it is that process, or root's and no VM.
    /// A VM's process may pass on the text of its guest, as on a serial console.
    pub fn is_trusted_for(&self, process: Pid, is_vm: bool) -> bool {
        self.pid == process || (self.uid == 0 && !is_vm)
    }
}

/// Answer of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QmpAnswer {
    /// The process that answered.
    pub peer: Peer,
    /// The vCPUs.
    pub vcpus: Vec<QmpVcpu>,
}

/// Queries one socket, within `deadline`.
pub fn query_vcpus(opened: &OpenSocket, deadline: Duration) -> Result<QmpAnswer, QmpError> {
    let end = Instant::now() + deadline;
    let socket = opened.path();
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => QmpError::Timeout(socket.to_owned()),
        _ => QmpError::Socket { socket: socket.to_owned(), source },
    };
    let unexpected = |what: String| QmpError::Protocol { socket: socket.to_owned(), what };
    let mut stream = connect_now(opened).map_err(failed)?;
    stream.set_write_timeout(Some(deadline)).map_err(failed)?;
    let sender = Cell::new(None);
    let reader = Bounded { stream: stream.try_clone().map_err(failed)?, end, sender: &sender }
        .take(MAX_BYTES);
    // The parser reads byte by byte.
    let reader = BufReader::with_capacity(BUFFER, reader);
    let mut messages = Messages(serde_json::Deserializer::from_reader(reader));
    let wrong = |command: &str, error: serde_json::Error| match error.io_error_kind() {
        Some(SEVERAL) => unexpected("several processes answer there".to_owned()),
        Some(kind) => failed(kind.into()),
        None => unexpected(match error.classify() {
            Category::Eof => "closed without an answer".to_owned(),
            Category::Data => format!("{command} answers something else: {}", short(&error)),
            _ => format!("the answer is not JSON ({})", short(&error)),
        }),
    };
    let greeting: Message<IgnoredAny> = messages.next().map_err(|error| wrong("it", error))?;
    if greeting.greeting.is_none() {
        return Err(unexpected("it does not begin with a QMP greeting".to_owned()));
    }
    let mut ask = |command: &str| {
        let request = format!("{{\"execute\":\"{command}\"}}\r\n");
        stream.write_all(request.as_bytes()).map_err(failed)
    };
    let refused =
        |command: &str, fault: &Fault| unexpected(format!("{command} fails: {}", short(fault)));
    let command = "qmp_capabilities";
    ask(command)?;
    messages
        .answer::<IgnoredAny>()
        .map_err(|error| wrong(command, error))?
        .map_err(|fault| refused(command, &fault))?;
    let command = "query-cpus-fast";
    ask(command)?;
    let vcpus = messages
        .answer::<Vec<CpuInfo>>()
        .map_err(|error| wrong(command, error))?
        .map_err(|fault| refused(command, &fault))?
        .into_iter()
        .map(|vcpu| QmpVcpu { index: VcpuId(vcpu.index), tid: Tid(vcpu.tid) })
        .collect();
    let peer = sender.get().and_then(|sender| {
        let (pid, uid) = (sender.pid?, sender.uid);
        Some(Peer { pid, uid })
    });
    match peer {
        Some(peer) => Ok(QmpAnswer { peer, vcpus }),
        None => Err(unexpected(
            "the answering process is not visible from here (in another PID namespace?)".to_owned(),
        )),
    }
}

/// A greeting, an answer, a failure, or an event, which is ignored.
/// Only the wanted fields are kept: four megabytes of arbitrary JSON take more than a hundred as a tree.
#[derive(Deserialize)]
struct Message<T> {
    #[serde(rename = "QMP")]
    greeting: Option<IgnoredAny>,
    #[serde(rename = "return")]
    answer: Option<T>,
    error: Option<Fault>,
}

/// Failure of a command.
#[derive(Deserialize)]
struct Fault {
    class: Option<String>,
    desc: Option<String>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Peers control this text, which may be megabytes long.
        let text = |text: &Option<String>| -> String {
            text.iter().flat_map(|text| text.chars().take(MAX_QUOTED)).collect()
        };
        write!(f, "{}: {}", text(&self.class), text(&self.desc))
    }
}

/// A vCPU in the answer to query-cpus-fast.
#[derive(Deserialize)]
struct CpuInfo {
    #[serde(rename = "cpu-index")]
    index: u32,
    #[serde(rename = "thread-id")]
    tid: u32,
}

/// The messages of a socket.
struct Messages<R: Read>(serde_json::Deserializer<IoRead<R>>);

impl<R: Read> Messages<R> {
    fn next<T: DeserializeOwned>(&mut self) -> Result<Message<T>, serde_json::Error> {
        Message::deserialize(&mut self.0)
    }

    /// Returns the next answer, skipping events.
    fn answer<T: DeserializeOwned>(&mut self) -> Result<Result<T, Fault>, serde_json::Error> {
        loop {
            let message = self.next()?;
            if let Some(answer) = message.answer {
                return Ok(Ok(answer));
            }
            if let Some(fault) = message.error {
                return Ok(Err(fault));
            }
        }
    }
}

/// Shortens peer text to a line.
fn short(text: &impl fmt::Display) -> String {
    let text: String = text.to_string().chars().take(MAX_QUOTED).collect();
    printable(&text).chars().take(MAX_QUOTED).collect()
}

/// Connects without blocking: a full queue of clients would block a plain connect forever.
fn connect_now(opened: &OpenSocket) -> io::Result<UnixStream> {
    let address = opened.address()?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    senders::pass_credentials(&socket)?;
    match connect(&socket, &address) {
        Err(Errno::AGAIN | Errno::INPROGRESS) => return Err(io::ErrorKind::WouldBlock.into()),
        other => other?,
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Error kind of a read whose sender differs from that of earlier reads.
const SEVERAL: io::ErrorKind = io::ErrorKind::InvalidData;

/// A reader that fails at its deadline, even if bytes trickle in, and when another process continues.
struct Bounded<'a> {
    stream: UnixStream,
    end: Instant,
    /// The sender of everything read so far.
    sender: &'a Cell<Option<Sender>>,
}

impl Read for Bounded<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        let (length, sender) = senders::receive(&self.stream, buffer)?;
        if length > 0 {
            let before = self.sender.replace(sender);
            if before.is_some() && before != sender {
                return Err(SEVERAL.into());
            }
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::os::unix::process::CommandExt;
    use std::path::Path;
    use std::process::Command;
    use std::{fs, thread};

    use rustix::net::sockopt::socket_peercred;
    use rustix::net::{SocketAddrUnix, bind, listen};
    use rustix::process::getuid;
    use serde_json::Value;

    use super::*;

    const GREETING: &str = "{\"QMP\": {\"version\": {}, \"capabilities\": []}}\r\n";

    /// A QEMU that greets and then answers one line per request.
    fn serve(greeting: &'static str, answers: &'static [&'static str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("qmp")).unwrap();
        serve_at(listener, greeting, answers);
        dir
    }

    fn serve_at(listener: UnixListener, greeting: &'static str, answers: &'static [&'static str]) {
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(greeting.as_bytes()).unwrap();
            let mut requests = BufReader::new(stream.try_clone().unwrap());
            for answer in answers {
                let mut line = String::new();
                requests.read_line(&mut line).unwrap();
                serde_json::from_str::<Value>(&line).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
    }

    fn query(path: &Path, deadline: Duration) -> Result<QmpAnswer, QmpError> {
        query_vcpus(&OpenSocket::named(path)?, deadline)
    }

    fn ask(
        greeting: &'static str,
        answers: &'static [&'static str],
    ) -> Result<Vec<QmpVcpu>, String> {
        let dir = serve(greeting, answers);
        // A generous deadline for loaded machines.
        query(&dir.path().join("qmp"), Duration::from_secs(20))
            .map(|answer| answer.vcpus)
            .map_err(|error| error.to_string())
    }

    /// A socket on which an ended child called listen(2): a daemonized QEMU, or an impostor.
    fn left_behind(path: &Path) -> UnixListener {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        let in_child = socket.try_clone().unwrap();
        let mut child = Command::new("true");
        // SAFETY: between fork and exec the child makes one system call and allocates nothing.
        unsafe { child.pre_exec(move || Ok(listen(&in_child, 1)?)) };
        let mut child = child.spawn().unwrap();
        let number = child.id();
        child.wait().unwrap();
        let listener = UnixListener::from(socket);
        let client = UnixStream::connect(path).unwrap();
        let listened = socket_peercred(&client).unwrap();
        assert_eq!(listened.pid.as_raw_nonzero().get().unsigned_abs(), number);
        listener.accept().unwrap();
        listener
    }

    #[test]
    fn hostile_listeners_are_trusted_for_themselves_only() {
        let speaks = |pid, uid, is_vm| Peer { pid: Pid(pid), uid }.is_trusted_for(Pid(100), is_vm);
        assert!(speaks(100, 1000, true), "the VMM itself");
        assert!(speaks(66, 0, false), "root");
        assert!(!speaks(66, 1000, false), "another process");
        // A VMM of root relays its guest's text if the socket is a serial console.
        assert!(speaks(100, 0, true), "the VMM itself");
        assert!(!speaks(66, 0, true), "another VMM of root's");

        // The caller of listen(2) has ended, and all have the same user: the answering process counts.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qmp");
        let listener = left_behind(&path);
        serve_at(listener, GREETING, &["{\"return\": {}}\n", "{\"return\": []}\n"]);
        let peer = query(&path, Duration::from_secs(20)).unwrap().peer;
        let me = Pid(std::process::id());
        assert_eq!(peer, Peer { pid: me, uid: getuid().as_raw() });
        assert!(peer.is_trusted_for(me, true), "a QEMU with -daemonize");
        let of_a_user = Peer { uid: 1000, ..peer };
        assert!(!of_a_user.is_trusted_for(Pid(1), false), "its neighbour");
    }

    #[test]
    fn hostile_swaps_after_the_look_lead_nowhere() {
        for found in [OpenSocket::found, OpenSocket::named] {
            let dir = serve(
                GREETING,
                &["{\"return\": {}}\n", "{\"return\": [{\"cpu-index\": 0, \"thread-id\": 71}]}\n"],
            );
            let (path, others) = (dir.path().join("qmp"), dir.path().join("others"));
            let other = UnixListener::bind(&others).unwrap();
            let opened = found(&path).unwrap();
            // Between the look and the use.
            fs::rename(&path, dir.path().join("away")).unwrap();
            symlink(&others, &path).unwrap();
            let answer = query_vcpus(&opened, Duration::from_secs(20)).unwrap();
            assert_eq!(answer.vcpus.len(), 1);
            other.set_nonblocking(true).unwrap();
            let asked = other.accept().map(drop).map_err(|error| error.kind());
            assert_eq!(asked, Err(io::ErrorKind::WouldBlock));
        }
    }

    #[test]
    fn hostile_answers_of_several_processes_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        let serve = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(GREETING.as_bytes()).unwrap();
            // The answer comes from a child.
            let mut requests = BufReader::new(stream.try_clone().unwrap());
            requests.read_line(&mut String::new()).unwrap();
            let output = OwnedFd::from(stream);
            let mut child = Command::new("echo");
            let child = child.arg("{\"return\": {}}").stdout(output);
            assert!(child.status().unwrap().success());
        });
        let error = query(&path, Duration::from_secs(20)).unwrap_err();
        assert!(error.to_string().contains("several processes"), "{error}");
        serve.join().unwrap();
    }

    #[test]
    fn qmp_hostile_answers_end_at_deadline() {
        // 288 vCPUs with the properties that QEMU reports for each, some 60 KB.
        let properties =
            "\"props\": {\"core-id\": 0, \"thread-id\": 0, \"die-id\": 0, \"socket-id\": 0}, "
                .repeat(2);
        let vcpus = (0..288).map(|n| {
            format!("{{{properties}\"qom-path\": \"/machine/unattached/device[{n}]\", \"cpu-index\": {n}, \"thread-id\": {}}}", n + 1)
        });
        let vcpus = vcpus.collect::<Vec<_>>().join(", ");
        let answer: &'static str = format!("{{\"return\": [{vcpus}]}}\n").leak();
        let answers: &'static [&'static str] = vec!["{\"return\": {}}\n", answer].leak();
        let dir = serve(GREETING, answers);
        let path = dir.path().join("qmp");
        let begin = Instant::now();
        let answered = query(&path, Duration::from_secs(20)).unwrap();
        assert_eq!(answered.vcpus.len(), 288);
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());

        // An endless answer: a byte now and then, or as fast as possible.
        for chunk in [1, 4096] {
            let dir = tempfile::tempdir().unwrap();
            let listener = UnixListener::bind(dir.path().join("qmp")).unwrap();
            let dribble = thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let bytes = vec![b'['; chunk];
                while stream.write_all(&bytes).is_ok() {
                    thread::sleep(Duration::from_millis(2));
                }
            });
            let begin = Instant::now();
            let path = dir.path().join("qmp");
            query(&path, Duration::from_millis(100)).unwrap_err();
            assert!(begin.elapsed() < Duration::from_secs(5));
            dribble.join().unwrap();
        }
    }

    #[test]
    fn vcpus_are_read_past_events_and_line_breaks() {
        let vcpus = ask(
            GREETING,
            &[
                "{\"event\": \"RESUME\"}\r\n{\"return\": {}}\r\n",
                "{\"return\": [\n {\"cpu-index\": 0, \"thread-id\": 71, \"target\": \"x86_64\"},\n\
                 {\"cpu-index\": 1, \"thread-id\": 72}]}\r\n",
            ],
        );
        let wanted =
            [(0, 71), (1, 72)].map(|(index, tid)| QmpVcpu { index: VcpuId(index), tid: Tid(tid) });
        assert_eq!(vcpus.unwrap(), wanted);
    }

    #[test]
    fn other_answers_are_named() {
        let error = ask("{\"hello\": 1}\n", &[]).unwrap_err();
        assert!(error.contains("does not begin with a QMP greeting"), "{error}");
        let error = ask("SSH-2.0\n", &[]).unwrap_err();
        assert!(error.contains("not JSON"), "{error}");
        let error = ask(GREETING, &["{\"error\": {\"class\": \"Nope\"}}\n"]).unwrap_err();
        assert!(error.contains("Nope"), "{error}");
        let answers = &["{\"return\": {}}\n", "{\"return\": [{\"cpu-index\": 0}]}\n"];
        let error = ask(GREETING, answers).unwrap_err();
        assert!(error.contains("query-cpus-fast answers"), "{error}");
        let error = ask("", &[]).unwrap_err();
        assert!(error.contains("closed"), "{error}");
    }

    #[test]
    fn socket_held_by_another_client_times_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qmp");
        let _silent = UnixListener::bind(&path).unwrap();
        let error = query(&path, Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, QmpError::Timeout(_)), "{error}");
        assert!(error.to_string().contains("another client"));
    }

    #[test]
    fn a_missing_socket_is_named() {
        let error = query(Path::new("/nonexistent/qmp"), DEADLINE).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/qmp"), "{error}");
    }
}
