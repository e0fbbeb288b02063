//! `tandem host export`: what [`crate::top`] shows, as metrics, hour after hour.
//!
//! It looks and changes nothing; it runs with or without the daemon. Once per interval VMs are found and measured, times are added up
//! (`accounts`), and the page is rendered: a scrape gets the newest page and never measures, so that scrapers, however many, cost
//! the host the same. Times are counters in seconds, so nothing is lost between two scrapes; what is due, received and the lag are those of
//! the last interval.
//!
//! An interval that cannot be read is counted and said once. Until one can be read again there are no VMs on the page, since nothing is
//! known of them.

mod accounts;
pub mod metric;
mod page;
mod ranked;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::registry::Registry;
use rustix::time::{ClockId, clock_gettime};
use tandem_linux::exporter::{Exporter, MetricsError};
use tandem_linux::service::{ReportOnce, Reporter, ServiceManager};
use tandem_linux::signals::{Signals, Wake};
use tandem_model::{Nanos, VmId};
use tandem_observe::{Interval, Source};
use thiserror::Error;

use crate::discovery::{DiscoveryOptions, Scan};
use crate::select::Selector;
use crate::watch::{Look as HostLook, LookError, assessed};
use crate::weights::Weights;

use accounts::{Accounts, Look};
use page::Page;

pub use accounts::Detail;

/// A service manager hears from the exporter at least so often, however long intervals are.
const ALIVE: Duration = Duration::from_secs(15);

/// Where the exporter listens unless told otherwise: beside the daemon (9464) and the guest's agent (9465).
pub const DEFAULT_LISTEN: &str = "127.0.0.1:9466";

/// Most series of culprits that a VM can have.
pub const MOST_CULPRITS: u64 = 100;

/// Why there are no metrics.
#[derive(Debug, Error)]
pub enum ExportError {
    /// The host cannot be looked at.
    #[error(transparent)]
    Look(#[from] LookError),
    /// Nobody can scrape.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// Signals cannot be caught.
    #[error("cannot catch SIGTERM and SIGINT: {0}")]
    Signals(std::io::Error),
}

/// What the exporter is told.
#[derive(Debug)]
pub struct ExportConfig {
    /// How VMs are found.
    pub find: DiscoveryOptions,
    /// Which of them have series. All are measured: any may be a culprit.
    pub selector: Selector,
    /// Where a running daemon keeps its state.
    pub state_dir: PathBuf,
    /// Where to listen.
    pub listen: SocketAddr,
    /// Length of an interval.
    pub interval: Duration,
    /// How much is told.
    pub detail: Detail,
}

/// The exporter between start and end.
pub struct Export {
    config: ExportConfig,
    look: HostLook,
    accounts: Arc<Mutex<Accounts>>,
    exporter: Exporter,
    signals: Signals,
}

impl Export {
    /// Opens what is needed to look with this source, and the port; begins the first interval.
    pub fn open(source: Box<dyn Source>, config: ExportConfig) -> Result<Export, ExportError> {
        let mut look = HostLook::open(source, config.find.clone(), &config.state_dir)?;
        look.begin()?;
        let accounts = Arc::new(Mutex::new(Accounts::new(config.detail)));
        let exporter = Exporter::listen(registry(&accounts), config.listen)?;
        let signals = Signals::catch(false).map_err(ExportError::Signals)?;
        Ok(Export { config, look, accounts, exporter, signals })
    }

    /// Measures and tells until a signal.
    pub fn run(mut self, reporter: &mut dyn Reporter) -> Result<(), ExportError> {
        let address = self.exporter.address().unwrap_or(self.config.listen);
        reporter.info(&format!("metrics at http://{address}/metrics"));
        if !address.ip().is_loopback() {
            reporter.info(&format!(
                "{address} is not loopback: whoever reaches it reads the names of VMs and of this host's processes"
            ));
        }
        let mut errors = ReportOnce::default();
        let service_manager = ServiceManager::ready(reporter);
        let mut next = Instant::now() + self.config.interval;
        loop {
            let alive = Instant::now() + ALIVE;
            if self.signals.wait_until(next.min(alive)) == Wake::Stop {
                break;
            }
            service_manager.alive();
            if Instant::now() < next {
                continue;
            }
            if let Err(error) = self.interval() {
                errors.error(&error, reporter);
                self.accounts().failed();
            }
            self.exporter.publish()?;
            next += self.config.interval;
            // A busy host may have made us miss whole intervals: they are a part of the next one.
            next = next.max(Instant::now());
        }
        ServiceManager::stopping();
        Ok(())
    }

    fn interval(&mut self) -> Result<(), ExportError> {
        let begin = Instant::now();
        let (scan, interval) = self.look.interval()?;
        let weights = self.look.weights(&scan.vms);
        let selected = self.selected(&scan);
        let mut accounts = self.accounts();
        add(&mut accounts, &scan, &interval, &weights, &selected);
        accounts.took = Nanos(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
        accounts.cpu = clock(ClockId::ProcessCPUTime);
        accounts.last = Some(clock(ClockId::Realtime));
        Ok(())
    }

    fn selected(&self, scan: &Scan) -> BTreeSet<VmId> {
        let selector = &self.config.selector;
        let vms = scan.vms.iter();
        vms.filter(|vm| selector.matches(vm, self.look.controller.as_ref()))
            .map(|vm| vm.id)
            .collect()
    }

    fn accounts(&self) -> MutexGuard<'_, Accounts> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds what was found, measured and configured.
fn add(
    accounts: &mut Accounts,
    scan: &Scan,
    interval: &Interval,
    weights: &Weights,
    selected: &BTreeSet<VmId>,
) {
    accounts.add(&Look { scan, interval, assessed: &assessed(interval, weights), selected });
}

fn registry(accounts: &Arc<Mutex<Accounts>>) -> Registry {
    let mut registry = Registry::with_prefix(metric::PREFIX);
    registry.register_collector(Box::new(Page(Arc::clone(accounts))));
    registry
}

fn clock(id: ClockId) -> Nanos {
    let time = clock_gettime(id);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

#[cfg(test)]
mod tests;
