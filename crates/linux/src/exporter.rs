//! Metrics in OpenMetrics text: on a loopback port, in a file, or not at all.
//!
//! The registry is `prometheus-client`'s, OpenMetrics' reference implementation. Off by default: an
//! operator asks for it with `--metrics-listen` or `--metrics-file`. The listener answers every GET
//! with the same page from a thread of its own; a scrape never waits for an accounting period.
//!
//! What is counted is the daemon's and the agent's own: each hands in its registry.

use std::io::BufRead;
use std::io::BufReader;
use std::io::Read;
use std::io::Write;
use std::net::SocketAddr;
use std::net::TcpListener;
use std::net::TcpStream;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use thiserror::Error;

use crate::replace::replace;

/// Why metrics cannot be offered.
#[derive(Debug, Error)]
pub enum MetricsError {
    /// The address cannot be listened on.
    #[error("cannot serve metrics on {address}: {source}; choose another --metrics-listen port")]
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
    page: Arc<Mutex<String>>,
    file: Option<PathBuf>,
}

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
        let page = Arc::new(Mutex::new(String::new()));
        let exporter = Exporter {
            registry,
            page,
            file: file.map(Path::to_owned),
        };
        exporter.publish()?;
        if let Some(address) = listen {
            let listener = TcpListener::bind(address)
                .map_err(|source| MetricsError::Listen { address, source })?;
            let page = Arc::clone(&exporter.page);
            std::thread::spawn(move || serve(&listener, &page));
        }
        Ok(Some(exporter))
    }

    /// Renders the metrics; a file is replaced whole, so that a reader never sees half a page.
    pub fn publish(&self) -> Result<(), MetricsError> {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = encode(&mut text, &self.registry);
        if let Some(path) = &self.file {
            let failed = |source| MetricsError::Write {
                path: path.clone(),
                source,
            };
            replace(path, &text).map_err(failed)?;
        }
        *self.page.lock().unwrap_or_else(PoisonError::into_inner) = text;
        Ok(())
    }
}

fn serve(listener: &TcpListener, page: &Mutex<String>) {
    for connection in listener.incoming().flatten() {
        // A scraper that hangs up early concerns nobody else.
        let _ = answer(connection, page);
    }
}

/// Longest request line and headers that are read.
const MAX_REQUEST: u64 = 8192;

fn answer(mut connection: TcpStream, page: &Mutex<String>) -> std::io::Result<()> {
    connection.set_read_timeout(Some(Duration::from_secs(1)))?;
    connection.set_write_timeout(Some(Duration::from_secs(1)))?;
    let mut request = BufReader::new(connection.try_clone()?).take(MAX_REQUEST);
    let mut first = String::new();
    request.read_line(&mut first)?;
    let mut header = String::new();
    while request.read_line(&mut header)? > 0 && header.trim_end() != "" {
        header.clear();
    }
    let (status, body) = match first.starts_with("GET ") {
        true => (
            "200 OK",
            page.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        ),
        false => ("405 Method Not Allowed", String::new()),
    };
    write!(
        connection,
        "HTTP/1.1 {status}\r\n\
         Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
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
        let probe = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = probe.local_addr().unwrap();
        drop(probe);
        let exporter = Exporter::open(registry, Some(address), None)
            .unwrap()
            .unwrap();
        gauge.set(3);
        exporter.publish().unwrap();
        let mut connection = TcpStream::connect(address).unwrap();
        connection
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        let mut reply = String::new();
        connection.read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("HTTP/1.1 200 OK"), "{reply}");
        assert!(reply.contains("tandem_vms 3"), "{reply}");
    }

    #[test]
    fn a_port_in_use_and_an_unwritable_file_are_errors_that_name_them() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let error = Exporter::open(Registry::default(), Some(address), None)
            .err()
            .unwrap();
        assert!(error.to_string().contains(&address.to_string()));
        let path = Path::new("/no/such/dir/metrics");
        let error = Exporter::open(Registry::default(), None, Some(path))
            .err()
            .unwrap();
        assert!(error.to_string().contains("/no/such/dir/metrics"));
    }
}
