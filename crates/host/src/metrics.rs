//! Metrics of the daemon in OpenMetrics text: on a loopback port, in a file, or not at all.
//!
//! The registry is `prometheus-client`'s, OpenMetrics' reference implementation. Off by default: an
//! operator asks for it with `--metrics-listen` or `--metrics-file`. The listener answers every GET
//! with the same page from a thread of its own; a scrape never waits for an accounting period.

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
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use prometheus_client::registry::Unit;
use thiserror::Error;

use tandem_linux::replace::replace;

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

/// Labels of a VM's series.
#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct VmLabels {
    /// The VM's name.
    pub vm: String,
    /// Its process id.
    pub pid: u32,
}

/// A gauge of a real number.
type Real = Gauge<f64, AtomicU64>;

/// Everything the daemon counts.
#[derive(Clone, Default)]
pub struct Metrics {
    /// VMs acted on.
    pub vms: Gauge,
    /// vCPU threads acted on.
    pub vcpus: Gauge,
    /// CPU received per VM.
    pub received: Family<VmLabels, Real>,
    /// Fair share per VM.
    pub fair: Family<VmLabels, Real>,
    /// Lag per VM.
    pub lag: Family<VmLabels, Real>,
    /// Real-time weight per VM.
    pub weight: Family<VmLabels, Real>,
    /// Accounting periods completed.
    pub periods: Counter,
    /// Periods that began late.
    pub late: Counter,
    /// Weights written.
    pub weights_written: Counter,
    /// vCPUs moved to another pCPU.
    pub vcpus_moved: Counter,
    /// Changes that the kernel refused.
    pub errors: Counter,
    /// Times from the first read of a decision to its last write.
    pub decision: DecisionTimes,
}

/// How long decisions took. The buckets surround the 5 ms that a decision may take.
#[derive(Clone, Debug)]
pub struct DecisionTimes(pub Histogram);

impl Default for DecisionTimes {
    fn default() -> DecisionTimes {
        let bounds = [0.000_5, 0.001, 0.002, 0.005, 0.010, 0.020, 0.050, 0.100];
        DecisionTimes(Histogram::new(bounds))
    }
}

impl Metrics {
    /// A registry with every metric under its name and unit.
    pub fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("tandem");
        registry.register("vms", "VMs acted on", self.vms.clone());
        registry.register("vcpus", "vCPU threads acted on", self.vcpus.clone());
        let pcpus = || Unit::Other("pcpus".to_owned());
        let received = self.received.clone();
        registry.register_with_unit("vm_received", "CPU received, smoothed", pcpus(), received);
        registry.register_with_unit("vm_fair", "Fair share", pcpus(), self.fair.clone());
        let lag = "Part of the fair share that was not received";
        registry.register_with_unit("vm_lag", lag, Unit::Ratios, self.lag.clone());
        let weight = "Real-time weight, in the units of the cgroup's knob";
        registry.register("vm_weight", weight, self.weight.clone());
        registry.register(
            "periods",
            "Accounting periods completed",
            self.periods.clone(),
        );
        registry.register("periods_late", "Periods that began late", self.late.clone());
        registry.register(
            "weights_written",
            "Weights written",
            self.weights_written.clone(),
        );
        registry.register(
            "vcpus_moved",
            "vCPUs moved to another pCPU",
            self.vcpus_moved.clone(),
        );
        registry.register(
            "errors",
            "Changes that the kernel refused",
            self.errors.clone(),
        );
        registry.register_with_unit(
            "decision",
            "Time from the first read of a decision to its last write",
            Unit::Seconds,
            self.decision.0.clone(),
        );
        registry
    }

    /// Drops the series of a VM that is gone.
    pub fn forget(&self, labels: &VmLabels) {
        for family in [&self.received, &self.fair, &self.lag, &self.weight] {
            family.remove(labels);
        }
    }
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
    use super::*;

    fn labels() -> VmLabels {
        VmLabels {
            vm: "db".to_owned(),
            pid: 7,
        }
    }

    #[test]
    fn the_page_is_open_metrics_with_units_and_an_end() {
        let metrics = Metrics::default();
        metrics.lag.get_or_create(&labels()).set(0.25);
        metrics.weights_written.inc();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics");
        Exporter::open(metrics.registry(), None, Some(&path))
            .unwrap()
            .unwrap();
        let page = std::fs::read_to_string(&path).unwrap();
        assert!(
            page.contains("tandem_vm_lag_ratios{vm=\"db\",pid=\"7\"} 0.25"),
            "{page}"
        );
        assert!(page.contains("tandem_weights_written_total 1"), "{page}");
        assert!(page.ends_with("# EOF\n"), "{page}");
        metrics.forget(&labels());
        let exporter = Exporter::open(metrics.registry(), None, Some(&path))
            .unwrap()
            .unwrap();
        exporter.publish().unwrap();
        assert!(!std::fs::read_to_string(&path).unwrap().contains("db"));
    }

    #[test]
    fn a_scrape_gets_the_newest_page() {
        let metrics = Metrics::default();
        let probe = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = probe.local_addr().unwrap();
        drop(probe);
        let exporter = Exporter::open(metrics.registry(), Some(address), None)
            .unwrap()
            .unwrap();
        metrics.vms.set(3);
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
        let error = Exporter::open(Metrics::default().registry(), Some(address), None)
            .err()
            .unwrap();
        assert!(error.to_string().contains(&address.to_string()));
        let path = Path::new("/no/such/dir/metrics");
        let error = Exporter::open(Metrics::default().registry(), None, Some(path))
            .err()
            .unwrap();
        assert!(error.to_string().contains("/no/such/dir/metrics"));
    }
}
