//! Programs whose work items arrive by timers, the case for delayed scheduling: `tandem-lab bench guest --one-vcpu`.
//!
//! | program | structure |
//! |---|---|
//! | `timers` | 32 threads with different periods sleep until absolute times, as in cyclictest |
//! | `timers-relative` | the same threads sleep *for* a time after each work item, so late wake-ups reduce the work |
//! | `event-loop` | one thread, 1,000 timers in a heap, ppoll until the next one; each writes a line |
//! | `requests-workers` | like memcached: 4 threads serve 16 connections from one table |
//! | `requests-loop` | like redis: one thread serves 16 connections, with a timeout |
//! | `redis`, `memcached` | the Debian package's server, for the same clients |
//!
//! Clients are threads that send requests with different periods and wait for the replies.
//! All periods are fixed, so every run has the same load.
//! The clients are part of the program, because the guest could not delay requests that arrive over a network.
//!
//! `tandem-lab bench guest-paced` runs a program and prints `done:`, `seconds:` and `latency_p99_us:`.
//! Latency is the time from the scheduled start of a work item to its end.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};
use std::{fmt, io};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thiserror::Error;

/// Threads with timers.
const THREADS: u64 = 32;
/// Timers of the event loop.
const TIMERS: u64 = 1000;
/// Connections to a server.
const CONNECTIONS: u64 = 16;
/// Threads of the multi-threaded server.
const WORKERS: usize = 4;
/// Keys in a server's table.
const KEYS: u64 = 1000;
/// Steps of a work item: about 10 us.
const STEPS: u32 = 10_000;
/// Maximum start-up time of a server.
const START: Duration = Duration::from_secs(10);

/// Error of a program.
#[derive(Debug, Error)]
pub enum PacedError {
    /// Unknown name of a program.
    #[error("'{0}' is no such program; there are {names}", names = Structure::ALL.map(Structure::name).join(", "))]
    Unknown(String),
    /// Invalid time.
    #[error("{0} seconds are not possible: above 0, up to 3600")]
    Seconds(f64),
    /// A server did not start.
    #[error("cannot start {program}")]
    Start {
        /// The server's program.
        program: &'static str,
        /// OS error.
        source: io::Error,
    },
    /// A connection failed.
    #[error("a connection failed")]
    Connection(#[from] io::Error),
    /// A thread panicked.
    #[error("a thread of the program ended early")]
    Thread,
}

/// Structure of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    /// Threads that sleep until a time.
    Timers,
    /// Threads that sleep for a time.
    TimersRelative,
    /// One thread with many timers.
    EventLoop,
    /// A server of several threads.
    RequestsWorkers,
    /// A server of one thread.
    RequestsLoop,
    /// redis-server.
    Redis,
    /// memcached.
    Memcached,
}

impl Structure {
    /// All of them.
    pub const ALL: [Structure; 7] = [
        Structure::Timers,
        Structure::TimersRelative,
        Structure::EventLoop,
        Structure::RequestsWorkers,
        Structure::RequestsLoop,
        Structure::Redis,
        Structure::Memcached,
    ];

    /// Name as an argument.
    pub fn name(self) -> &'static str {
        match self {
            Structure::Timers => "timers",
            Structure::TimersRelative => "timers-relative",
            Structure::EventLoop => "event-loop",
            Structure::RequestsWorkers => "requests-workers",
            Structure::RequestsLoop => "requests-loop",
            Structure::Redis => "redis",
            Structure::Memcached => "memcached",
        }
    }

    /// Description.
    pub fn what(self) -> &'static str {
        match self {
            Structure::Timers => "32 threads sleep until unequal times and compute; wake-ups",
            Structure::TimersRelative => "32 threads compute and sleep for unequal times; wake-ups",
            Structure::EventLoop => "an event loop with 1,000 timers; timers",
            Structure::RequestsWorkers => "16 paced clients of a server of 4 threads; requests",
            Structure::RequestsLoop => "16 paced clients of a server of one thread; requests",
            Structure::Redis => "16 paced clients of redis-server; requests",
            Structure::Memcached => "16 paced clients of memcached; requests",
        }
    }
}

/// Work done by a program.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// Latency of each work item, in ns.
    latencies: Vec<u64>,
    time: Duration,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.latencies.len();
        write!(f, "done: {count}\nseconds: {:.6}", self.time.as_secs_f64())?;
        match percentile(&self.latencies, 0.99) {
            Some(latency) => write!(f, "\nlatency_p99_us: {:.1}", latency as f64 / 1e3),
            None => Ok(()),
        }
    }
}

/// Returns the smallest latency that the fraction `part` of them does not exceed; `None` if there are none.
fn percentile(latencies: &[u64], part: f64) -> Option<u64> {
    let mut sorted = latencies.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Runs the program of this name.
pub fn run(name: &str, seconds: f64) -> Result<Done, PacedError> {
    let found = Structure::ALL.into_iter().find(|one| one.name() == name);
    let structure = found.ok_or_else(|| PacedError::Unknown(name.to_owned()))?;
    if !(seconds > 0.0 && seconds <= 3600.0) {
        return Err(PacedError::Seconds(seconds));
    }
    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(seconds);
    let latencies = match structure {
        Structure::Timers => all((0..THREADS).map(|n| move || timer(begin, end, n, false)))?,
        Structure::TimersRelative => all((0..THREADS).map(|n| move || timer(begin, end, n, true)))?,
        Structure::EventLoop => event_loop(begin, end)?,
        Structure::RequestsWorkers => requests(begin, end, WORKERS)?,
        Structure::RequestsLoop => requests(begin, end, 1)?,
        Structure::Redis => with_server(seconds, "redis-server", |path| {
            let words = ["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"];
            words.into_iter().map(str::to_owned).chain([path]).collect()
        })?,
        Structure::Memcached => with_server(seconds, "memcached", |path| {
            let words = ["-u", "root", "-t", "4", "-s"];
            words.into_iter().map(str::to_owned).chain([path]).collect()
        })?,
    };
    Ok(Done { latencies, time: Duration::from_secs_f64(seconds) })
}

/// Runs each function in its own thread, and collects their latencies.
fn all<F>(threads: impl Iterator<Item = F>) -> Result<Vec<u64>, PacedError>
where
    F: FnOnce() -> io::Result<Vec<u64>> + Send,
{
    scope(|scope| {
        let running: Vec<_> = threads.map(|thread| scope.spawn(thread)).collect();
        let mut latencies = Vec::new();
        for thread in running {
            latencies.extend(thread.join().map_err(|_| PacedError::Thread)??);
        }
        Ok(latencies)
    })
}

/// Computes a work item of fixed size.
fn compute() {
    let mut value = 1u64;
    for _ in 0..STEPS {
        value = black_box(value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}

/// Returns the period of a thread or timer: distinct, `least` to three times that.
fn period(least: Duration, number: u64, count: u64) -> Duration {
    // A permutation that moves neighbours apart.
    let place = number * 7919 % count;
    least + least * 2 * place as u32 / count as u32
}

/// Sleeps until `at`, unless it is past.
fn sleep_until(at: Instant) {
    let left = at.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        sleep(left);
    }
}

fn nanos_since(at: Instant) -> u64 {
    u64::try_from(at.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Runs a thread with a timer; if `relative`, the period begins at the end of the work.
fn timer(begin: Instant, end: Instant, number: u64, relative: bool) -> io::Result<Vec<u64>> {
    let period = period(Duration::from_millis(6), number, THREADS);
    let mut latencies = Vec::new();
    let mut due = begin + period;
    while due < end {
        sleep_until(due);
        compute();
        latencies.push(nanos_since(due));
        due = if relative {
            Instant::now() + period
        } else {
            // Skip periods that passed entirely.
            next(due, period)
        };
    }
    Ok(latencies)
}

/// Returns the start of the next period, after skipping those that passed entirely.
fn next(due: Instant, period: Duration) -> Instant {
    let mut due = due + period;
    let now = Instant::now();
    while due + period < now {
        due += period;
    }
    due
}

fn event_loop(begin: Instant, end: Instant) -> io::Result<Vec<u64>> {
    let mut log: File = OpenOptions::new().write(true).open("/dev/null")?;
    let of = |number: u64| period(Duration::from_millis(200), number, TIMERS);
    let first = (0..TIMERS).map(|number| Reverse((begin + of(number), number)));
    let mut timers: BinaryHeap<_> = first.collect();
    let mut latencies = Vec::new();
    while let Some(&Reverse((due, number))) = timers.peek() {
        if due >= end {
            break;
        }
        let left = due.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            wait(&mut [], Some(left))?;
            continue;
        }
        timers.pop();
        compute();
        log.write_all(b"timer\n")?;
        latencies.push(nanos_since(due));
        timers.push(Reverse((next(due, of(number)), number)));
    }
    Ok(latencies)
}

/// Waits until one of these is ready, or for a time. A signal is no error.
fn wait(fds: &mut [PollFd<'_>], time: Option<Duration>) -> io::Result<()> {
    let time = time.map(|time| Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: i64::from(time.subsec_nanos()),
    });
    match poll(fds, time.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Sends requests to a server in this process with `workers` threads.
fn requests(begin: Instant, end: Instant, workers: usize) -> Result<Vec<u64>, PacedError> {
    let table: Mutex<HashMap<String, String>> = Mutex::default();
    let mut ends: Vec<Vec<UnixStream>> = (0..workers).map(|_| Vec::new()).collect();
    let mut clients = Vec::new();
    for number in 0..CONNECTIONS {
        let (client, server) = UnixStream::pair()?;
        clients.push(client);
        ends[number as usize % workers].push(server);
    }
    scope(|scope| {
        let serving: Vec<_> = ends
            .into_iter()
            .map(|connections| scope.spawn(|| serve(connections, &table)))
            .collect();
        let latencies = all(clients
            .into_iter()
            .zip(0..)
            .map(|(connection, number)| move || client(connection, begin, end, number)));
        // The clients have closed their connections.
        for server in serving {
            server.join().map_err(|_| PacedError::Thread)??;
        }
        latencies
    })
}

/// Serves connections until all are closed.
fn serve(
    mut connections: Vec<UnixStream>,
    table: &Mutex<HashMap<String, String>>,
) -> io::Result<()> {
    let mut buffer = [0u8; 4096];
    while !connections.is_empty() {
        let ready: Vec<bool> = {
            let in_or_end = PollFlags::IN | PollFlags::HUP;
            let mut fds: Vec<PollFd<'_>> = connections
                .iter()
                .map(|connection| PollFd::new(connection, PollFlags::IN))
                .collect();
            wait(&mut fds, Some(Duration::from_millis(100)))?;
            fds.iter().map(|fd| fd.revents().intersects(in_or_end)).collect()
        };
        let mut closed = Vec::new();
        for (place, connection) in connections.iter_mut().enumerate() {
            if !ready[place] {
                continue;
            }
            // A request is short and comes as a whole.
            let length = connection.read(&mut buffer)?;
            if length == 0 {
                closed.push(place);
                continue;
            }
            let request = String::from_utf8_lossy(&buffer[..length]);
            let reply = answer(request.trim(), table);
            connection.write_all(reply.as_bytes())?;
        }
        for place in closed.into_iter().rev() {
            connections.remove(place);
        }
    }
    Ok(())
}

/// Answers `get KEY`; sets a missing key.
fn answer(request: &str, table: &Mutex<HashMap<String, String>>) -> String {
    compute();
    let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
    let count = table.len();
    let value = table.entry(request.to_owned()).or_insert_with(|| format!("value {count}"));
    format!("{value}\r\n")
}

/// Sends requests periodically, and waits for each reply.
fn client(
    mut connection: UnixStream,
    begin: Instant,
    end: Instant,
    number: u64,
) -> io::Result<Vec<u64>> {
    let period = period(Duration::from_millis(4), number, CONNECTIONS);
    let mut latencies = Vec::new();
    let mut buffer = [0u8; 4096];
    let mut due = begin + period;
    while due < end {
        sleep_until(due);
        let key = (number * 131 + latencies.len() as u64) % KEYS;
        connection.write_all(format!("get key{key}\r\n").as_bytes())?;
        loop {
            let length = connection.read(&mut buffer)?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if buffer[..length].ends_with(b"\r\n") {
                break;
            }
        }
        latencies.push(nanos_since(due));
        due = next(due, period);
    }
    Ok(latencies)
}

/// A server process, killed on drop.
struct Server {
    child: Child,
    socket: PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Starts a server on a socket in the current folder, and sends requests to it.
fn with_server(
    seconds: f64,
    program: &'static str,
    arguments: impl Fn(String) -> Vec<String>,
) -> Result<Vec<u64>, PacedError> {
    let failed = |source| PacedError::Start { program, source };
    let socket = std::env::current_dir().map_err(failed)?;
    let socket = socket.join(format!("paced-{}.socket", std::process::id()));
    let child = Command::new(program)
        .args(arguments(socket.display().to_string()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let server = Server { child, socket };
    let started = Instant::now();
    let first = loop {
        match UnixStream::connect(&server.socket) {
            Ok(connection) => break connection,
            Err(error) if started.elapsed() > START => return Err(failed(error)),
            Err(_) => sleep(Duration::from_millis(10)),
        }
    };
    let mut connections = vec![first];
    for _ in 1..CONNECTIONS {
        connections.push(UnixStream::connect(&server.socket)?);
    }
    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(seconds);
    all(connections
        .into_iter()
        .zip(0..)
        .map(|(connection, number)| move || client(connection, begin, end, number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_distinct_and_in_range() {
        let least = Duration::from_millis(6);
        let mut periods: Vec<Duration> = (0..THREADS).map(|n| period(least, n, THREADS)).collect();
        periods.sort_unstable();
        assert!(periods[0] == least && periods[31] < least * 3, "{periods:?}");
        periods.dedup();
        assert_eq!(periods.len() as u64, THREADS);
        // Timers per second, the source of the rates in the documents.
        let of_loop =
            (0..TIMERS).map(|n| 1.0 / period(Duration::from_millis(200), n, TIMERS).as_secs_f64());
        let rate: f64 = of_loop.sum();
        assert!((2_600.0..2_900.0).contains(&rate), "{rate}");
    }

    #[test]
    fn percentile_is_the_99th_of_100() {
        let latencies: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(percentile(&latencies, 0.99), Some(99));
        assert_eq!(percentile(&[7], 0.99), Some(7));
        assert_eq!(percentile(&[], 0.99), None);
    }

    #[test]
    fn built_in_programs_print_latency() {
        for structure in Structure::ALL {
            if matches!(structure, Structure::Redis | Structure::Memcached) {
                continue;
            }
            let done = run(structure.name(), 0.3).unwrap();
            let text = done.to_string();
            assert!(!done.latencies.is_empty() && text.contains("latency_p99_us: "), "{text}");
        }
    }

    #[test]
    fn unknown_names_and_zero_times_are_refused() {
        let unknown = run("x", 1.0).unwrap_err().to_string();
        assert!(unknown.contains("timers-relative, event-loop"), "{unknown}");
        let none = run("timers", 0.0).unwrap_err().to_string();
        assert!(none.contains("above 0"), "{none}");
    }
}
