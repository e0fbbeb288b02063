//! Metrics in OpenMetrics text: on a port, in a file, or not at all.
//!
//! The registry is `prometheus-client`'s, OpenMetrics' reference implementation. Off by default: an
//! operator asks for it with `--metrics-listen` or `--metrics-file`, or starts `tandem host export`. The listener answers every GET
//! with the same page; a scrape never waits for an accounting period. Each client has a thread and five seconds, so nobody keeps the others
//! waiting by being slow. Of more than a few at once the one that came first is hung up on: an honest one is gone by then.
//!
//! What is counted is the daemon's, the agent's or the exporter's own: each hands in its registry.

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
        "cannot serve metrics on {address}: {source}; choose another port, or stop who listens there"
    )]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write metrics to {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Where metrics go.
pub struct Exporter {
    registry: Registry,
    page: Page,
    file: Option<PathBuf>,
    address: Option<SocketAddr>,
}

/// The newest page. Who answers takes it along and leaves the lock alone.
type Page = Arc<Mutex<Arc<str>>>;

impl Exporter {
    /// Opens the port and tries the file, so that a mistake shows at the start.
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

    /// Where it listens: with the port that the system chose, if the one asked for was 0.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Renders the metrics; a file is replaced whole, so that a reader never sees half a page.
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

/// Answers for ever.
fn serve(listener: &TcpListener, page: &Page) {
    let mut clients = Clients::default();
    loop {
        match listener.accept() {
            Ok((connection, _)) => clients.answer(connection, page),
            // Such as too many open files, which lasts. The client waits in the queue, so the next call would return at once.
            Err(_) => std::thread::sleep(AFTER_AN_ERROR),
        }
    }
}

/// How long nothing is accepted after that failed.
const AFTER_AN_ERROR: Duration = Duration::from_millis(100);

/// Most clients that are answered at the same time.
const MOST_CLIENTS: usize = 32;

/// Room for a request and its answer; threads have 2 MiB by default.
const STACK: usize = 128 << 10;

/// Who is being answered, in the order in which they came.
#[derive(Default)]
struct Clients(VecDeque<(Weak<TcpStream>, JoinHandle<()>)>);

impl Clients {
    fn answer(&mut self, connection: TcpStream, page: &Page) {
        self.0.retain(|(_, answering)| !answering.is_finished());
        if self.0.len() >= MOST_CLIENTS
            && let Some((slow, _)) = self.0.pop_front()
            && let Some(slow) = slow.upgrade()
        {
            // Its thread ends with an error, wherever it is.
            let _ = slow.shutdown(Shutdown::Both);
        }
        let page = Arc::clone(page);
        // It is closed when its thread is done with it.
        let connection = Arc::new(connection);
        let known = Arc::downgrade(&connection);
        let answering = std::thread::Builder::new()
            .name("metrics".to_owned())
            .stack_size(STACK)
            // A scraper that hangs up early concerns nobody else.
            .spawn(move || drop(answer(&connection, &page, Instant::now() + PATIENCE)));
        match answering {
            Ok(answering) => self.0.push_back((known, answering)),
            Err(_) => std::thread::sleep(AFTER_AN_ERROR),
        }
    }
}

/// Longest request line and headers that are read.
const MAX_REQUEST: u64 = 8192;

/// How long a request and its answer may take together.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection whose reads and writes all end by then.
struct Patient<'a> {
    connection: &'a TcpStream,
    until: Instant,
}

impl Patient<'_> {
    /// What is left; an error if nothing is, since a timeout of 0 would be none.
    fn left(&self) -> std::io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(std::io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Patient<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.connection.set_read_timeout(self.left()?)?;
        self.connection.read(buffer)
    }
}

impl Write for Patient<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.connection.set_write_timeout(self.left()?)?;
        self.connection.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.connection.flush()
    }
}

fn answer(connection: &TcpStream, page: &Page, until: Instant) -> std::io::Result<()> {
    let mut request = BufReader::new(Patient { connection, until }).take(MAX_REQUEST);
    let mut first = String::new();
    request.read_line(&mut first)?;
    let mut header = String::new();
    while request.read_line(&mut header)? > 0 && header.trim_end() != "" {
        header.clear();
    }
    let (status, body) = match first.starts_with("GET ") {
        true => ("200 OK", Arc::clone(&page.lock().unwrap_or_else(PoisonError::into_inner))),
        false => ("405 Method Not Allowed", Arc::from("")),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\n\
         Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let mut connection = Patient { connection, until };
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
    fn a_scrape_gets_the_newest_page() {
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
    fn hostile_clients_that_say_nothing_keep_nobody_waiting() {
        let (_, registry) = registry();
        let any = "127.0.0.1:0".parse().unwrap();
        let exporter = Exporter::open(registry, Some(any), None).unwrap().unwrap();
        let address = exporter.address().unwrap();
        // More than are answered at the same time, none of which says a word.
        let silent: Vec<TcpStream> =
            (0..3 * MOST_CLIENTS).map(|_| TcpStream::connect(address).unwrap()).collect();
        let begin = Instant::now();
        let reply = scrape(address);
        assert!(reply.contains("tandem_vms 0"), "{reply}");
        assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
        drop(silent);
    }

    #[test]
    fn who_dribbles_is_hung_up_on() {
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
    fn a_port_in_use_and_an_unwritable_file_are_errors_that_name_them() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let error = Exporter::open(Registry::default(), Some(address), None).err().unwrap();
        assert!(error.to_string().contains(&address.to_string()));
        let path = Path::new("/no/such/dir/metrics");
        let error = Exporter::open(Registry::default(), None, Some(path)).err().unwrap();
        assert!(error.to_string().contains("/no/such/dir/metrics"));
    }
}
