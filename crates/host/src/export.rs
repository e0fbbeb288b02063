//! `tandem host export`: the figures of [`crate::top`] as metrics, over a long time.
//!
//! The exporter changes nothing and runs with or without the daemon.
//! Once per interval it discovers and measures the VMs, adds up their times (`accounts`) and renders the page.
//! A scrape returns the newest page and never measures, so the number of scrapers does not matter.
//! Times are counters in seconds, so missed scrapes lose nothing.
//! Fair share, received time and lag are those of the last interval.
//!
//! A failed interval is counted and logged once.
//! The page then has no VMs until an interval succeeds.

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
use tandem_linux::service::ServiceManager;
use tandem_linux::signals::{Signals, Wake};
use tandem_model::{Nanos, VmId};
use tandem_observe::{Interval, Source};
use thiserror::Error;
use tracing::{error, info, warn};

use crate::discovery::{DiscoveryOptions, Scan};
use crate::select::Selector;
use crate::watch::{Look as HostLook, LookError, assessed};
use crate::weights::Weights;

use accounts::{Accounts, Look};
use page::Page;

pub use accounts::Detail;

/// Maximum interval between notifications of the service manager.
const ALIVE: Duration = Duration::from_secs(15);

/// Default address of the exporter, next to the daemon (9464) and the guest agent (9465).
pub const DEFAULT_LISTEN: &str = "127.0.0.1:9466";

/// Maximum number of culprit series per VM.
pub const MAX_CULPRITS: u64 = 100;

/// Why there are no metrics.
#[derive(Debug, Error)]
pub enum ExportError {
    /// The host cannot be observed.
    #[error(transparent)]
    Look(#[from] LookError),
    /// The metrics cannot be served.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// Signals cannot be caught.
    #[error("cannot catch SIGTERM and SIGINT: {0}")]
    Signals(std::io::Error),
}

/// Configuration of the exporter.
#[derive(Debug)]
pub struct ExportConfig {
    /// Options of the discovery.
    pub find: DiscoveryOptions,
    /// The VMs that have series. All VMs are measured, since any may be a culprit.
    pub selector: Selector,
    /// State directory of a running daemon.
    pub state_dir: PathBuf,
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Length of an interval.
    pub interval: Duration,
    /// Level of detail.
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
    /// Opens the source and the port, and begins the first interval.
    pub fn open(source: Box<dyn Source>, config: ExportConfig) -> Result<Export, ExportError> {
        let mut look = HostLook::open(source, config.find.clone(), &config.state_dir)?;
        look.begin()?;
        let accounts = Arc::new(Mutex::new(Accounts::new(config.detail)));
        let exporter = Exporter::listen(registry(&accounts), config.listen)?;
        let signals = Signals::catch(false).map_err(ExportError::Signals)?;
        Ok(Export { config, look, accounts, exporter, signals })
    }

    /// Measures and publishes until a signal arrives.
    pub fn run(mut self) -> Result<(), ExportError> {
        let address = self.exporter.address().unwrap_or(self.config.listen);
        info!("metrics at http://{address}/metrics");
        if !address.ip().is_loopback() {
            warn!(
                "{address} is not loopback: anyone who can reach it can read the names of VMs and of this host's processes"
            );
        }
        let service_manager = ServiceManager::ready();
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
                error!(once = true, "{error}");
                self.accounts().failed();
            }
            self.exporter.publish()?;
            next += self.config.interval;
            // If a busy host delayed us by whole intervals, the next one includes them.
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

/// Adds one interval of discovery, measurement and configuration.
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
