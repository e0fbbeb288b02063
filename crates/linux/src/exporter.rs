//! Metrics in OpenMetrics text, on a port or in a file.
//!
//! The registry is `prometheus-client`'s, OpenMetrics' reference implementation.
//! Metrics are off by default; the operator enables them with `--metrics-listen` or `--metrics-file`, or starts `tandem host export`.
//! The listener answers every GET with the same page, and a scrape never waits for an accounting period.
//! Each client has a thread and five seconds, so a slow client does not delay others.
//! Above `MAX_CLIENTS`, the listener closes the oldest connection; an honest client is gone by then.
//!
//! Daemon, agent and exporter each pass their own registry.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use thiserror::Error;

use crate::replace::replace;

/// Why metrics cannot be offered.
#[derive(Debug, Error)]
pub enum MetricsError {
    /// The address cannot be listened on.
    #[error(
        "cannot serve metrics on {address}: {source}; choose another port, or stop the process that listens there"
    )]
    Listen {
        /// The requested address.
        address: SocketAddr,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write metrics to {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
}

/// Publishes the metrics of a registry.
pub struct Exporter {
    registry: Registry,
    page: Page,
    file: Option<PathBuf>,
    address: Option<SocketAddr>,
}

/// The newest page; answering threads clone it and release the lock.
type Page = Arc<Mutex<Arc<str>>>;

impl Exporter {
    /// Opens the port and writes the file, so that a mistake shows at the start.
    pub fn open(
        registry: Registry,
        listen: Option<SocketAddr>,
        file: Option<&Path>,
    ) -> Result<Option<Exporter>, MetricsError> {
        if listen.is_none() && file.is_none() {
            return Ok(None);
        }
        let mut exporter = Exporter {
            registry,
            page: Arc::new(Mutex::new(Arc::from(""))),
            file: file.map(Path::to_owned),
            address: None,
        };
        exporter.publish()?;
        if let Some(address) = listen {
            exporter.bind(address)?;
        }
        Ok(Some(exporter))
    }

    /// Opens the port.
    pub fn listen(registry: Registry, address: SocketAddr) -> Result<Exporter, MetricsError> {
        let mut exporter = Exporter {
            registry,
            page: Arc::new(Mutex::new(Arc::from(""))),
            file: None,
            address: None,
        };
        exporter.publish()?;
        exporter.bind(address)?;
        Ok(exporter)
    }

    fn bind(&mut self, address: SocketAddr) -> Result<(), MetricsError> {
        let failed = |source| MetricsError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        self.address = Some(listener.local_addr().map_err(failed)?);
        let page = Arc::clone(&self.page);
        std::thread::spawn(move || serve(&listener, &page));
        Ok(())
    }

    /// The address that it listens on, with the actual port if port 0 was requested.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Renders the metrics and replaces the file atomically.
    pub fn publish(&self) -> Result<(), MetricsError> {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = encode(&mut text, &self.registry);
        if let Some(path) = &self.file {
            let failed = |source| MetricsError::Write { path: path.clone(), source };
            replace(path, &text).map_err(failed)?;
        }
        *self.page.lock().unwrap_or_else(PoisonError::into_inner) = text.into();
        Ok(())
    }
}

/// Answers clients until the process ends.
fn serve(listener: &TcpListener, page: &Page) {
    let mut clients = Clients::default();
    loop {
        match listener.accept() {
            Ok((connection, _)) => clients.answer(connection, page),
            // Too many open files, for example: the client stays in the queue, so the next call would fail at once.
            Err(_) => std::thread::sleep(ACCEPT_PAUSE),
        }
    }
}

/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Maximum number of clients that are answered at the same time.
const MAX_CLIENTS: usize = 32;

/// Stack of an answering thread, in bytes; the default is 2 MiB.
const STACK: usize = 128 << 10;

/// Clients that are being answered, the oldest first.
#[derive(Default)]
struct Clients(VecDeque<(Weak<TcpStream>, JoinHandle<()>)>);

impl Clients {
    fn answer(&mut self, connection: TcpStream, page: &Page) {
        self.0.retain(|(_, answering)| !answering.is_finished());
        if self.0.len() >= MAX_CLIENTS
            && let Some((slow, _)) = self.0.pop_front()
            && let Some(slow) = slow.upgrade()
        {
            // Its thread ends with an error.
            let _ = slow.shutdown(Shutdown::Both);
        }
        let page = Arc::clone(page);
        // Closed when the thread drops it.
        let connection = Arc::new(connection);
        let known = Arc::downgrade(&connection);
        let answering = std::thread::Builder::new()
            .name("metrics".to_owned())
            .stack_size(STACK)
            // Errors, such as a scraper that hangs up early, are ignored.
            .spawn(move || drop(answer(&connection, &page, Instant::now() + REQUEST_TIMEOUT)));
        match answering {
            Ok(answering) => self.0.push_back((known, answering)),
            Err(_) => std::thread::sleep(ACCEPT_PAUSE),
        }
    }
}

/// Maximum length of request line and headers, in bytes.
const MAX_REQUEST: u64 = 8192;

/// Maximum time of a request and its answer together.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection whose reads and writes time out at `until`.
struct Deadline<'a> {
    connection: &'a TcpStream,
    until: Instant,
}

impl Deadline<'_> {
    /// Remaining time, as a timeout; an error if none is left, because a timeout of 0 would mean none.
    fn left(&self) -> std::io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(std::io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Deadline<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.connection.set_read_timeout(self.left()?)?;
        self.connection.read(buffer)
    }
}

impl Write for Deadline<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.connection.set_write_timeout(self.left()?)?;
        self.connection.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.connection.flush()
    }
}

fn answer(connection: &TcpStream, page: &Page, until: Instant) -> std::io::Result<()> {
    let mut request = BufReader::new(Deadline { connection, until }).take(MAX_REQUEST);
    let mut first = String::new();
    request.read_line(&mut first)?;
    let mut header = String::new();
    while request.read_line(&mut header)? > 0 && header.trim_end() != "" {
        header.clear();
    }
    let (status, body) = if first.starts_with("GET ") {
        ("200 OK", Arc::clone(&page.lock().unwrap_or_else(PoisonError::into_inner)))
    } else {
        ("405 Method Not Allowed", Arc::from(""))
    };
    let head = format!(
        "HTTP/1.1 {status}\r\n\
         Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let mut connection = Deadline { connection, until };
    connection.write_all(head.as_bytes())?;
    connection.write_all(body.as_bytes())
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;

    fn registry() -> (Gauge, Registry) {
        let gauge = Gauge::default();
        let mut registry = Registry::with_prefix("tandem");
        registry.register("vms", "VMs acted on", gauge.clone());
        (gauge, registry)
    }

    #[test]
    fn scrape_returns_the_newest_page() {
        let (gauge, registry) = registry();
        let any = "127.0.0.1:0".parse().unwrap();
        let exporter = Exporter::open(registry, Some(any), None).unwrap().unwrap();
        let address = exporter.address().unwrap();
        gauge.set(3);
        exporter.publish().unwrap();
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut reply = String::new();
        connection.read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("HTTP/1.1 200 OK"), "{reply}");
        assert!(reply.contains("tandem_vms 3"), "{reply}");
    }

    fn scrape(address: SocketAddr) -> String {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        connection.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut reply = String::new();
        connection.read_to_string(&mut reply).unwrap();
        reply
    }

    #[test]
    fn hostile_silent_clients_delay_no_scrape() {
        let (_, registry) = registry();
        let any = "127.0.0.1:0".parse().unwrap();
        let exporter = Exporter::open(registry, Some(any), None).unwrap().unwrap();
        let address = exporter.address().unwrap();
        // More clients than are answered at the same time, none of which sends a request.
        let silent: Vec<TcpStream> =
            (0..3 * MAX_CLIENTS).map(|_| TcpStream::connect(address).unwrap()).collect();
        let begin = Instant::now();
        let reply = scrape(address);
        assert!(reply.contains("tandem_vms 0"), "{reply}");
        assert!(begin.elapsed() < REQUEST_TIMEOUT, "{:?}", begin.elapsed());
        drop(silent);
    }

    #[test]
    fn slow_request_times_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (connection, _) = listener.accept().unwrap();
        slow.write_all(b"GET /metrics HTTP/1.1\r\nX: ").unwrap();
        let dribble = std::thread::spawn(move || {
            while slow.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let page: Page = Arc::new(Mutex::new(Arc::from("page")));
        let until = Instant::now() + Duration::from_millis(100);
        let error = answer(&connection, &page, until).unwrap_err();
        let is_late =
            matches!(error.kind(), std::io::ErrorKind::TimedOut | std::io::ErrorKind::WouldBlock);
        assert!(is_late, "{error}");
        drop(connection);
        dribble.join().unwrap();
    }

    #[test]
    fn errors_name_the_port_or_file() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let error = Exporter::open(Registry::default(), Some(address), None).err().unwrap();
        assert!(error.to_string().contains(&address.to_string()));
        let path = Path::new("/no/such/dir/metrics");
        let error = Exporter::open(Registry::default(), None, Some(path)).err().unwrap();
        assert!(error.to_string().contains("/no/such/dir/metrics"));
    }
}
