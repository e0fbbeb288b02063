//! `tandem host export`: arguments of the exporter.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tandem_host::config::DEFAULT_STATE_DIR;
use tandem_host::discovery::DiscoveryOptions;
use tandem_host::export::DEFAULT_LISTEN;
use tandem_host::export::Detail;
use tandem_host::export::Export;
use tandem_host::export::ExportConfig;
use tandem_host::export::MOST_CULPRITS;
use tandem_host::select::Selector;
use tandem_linux::service::Console;

use super::look::SourceArgs;
use super::look::seconds;
use crate::console;
use crate::number::whole;

/// What is measured how often, and where it is served.
#[derive(Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Serve the metrics here. Whoever reaches an address that is not loopback reads names of VMs and processes
    #[arg(long, default_value = DEFAULT_LISTEN, value_name = "ADDR:PORT")]
    listen: SocketAddr,
    /// Length of an interval, 0.05 … 3600 s: so often is the host measured, however often somebody scrapes
    #[arg(long, default_value = "5", value_name = "S", value_parser = seconds, allow_negative_numbers = true)]
    interval: Duration,
    /// How many culprits of a VM, and processes of the host, have series of their own, 0 … 100; the rest is one
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = whole((0, MOST_CULPRITS), "culprits"))]
    culprits: u64,
    /// Series of each vCPU, too
    #[arg(long)]
    vcpus: bool,
    /// Tell no names and cgroups of the host's processes; their time is told in sum
    #[arg(long)]
    no_process_names: bool,
    /// Where a running daemon keeps its state
    #[arg(long, default_value = DEFAULT_STATE_DIR, value_name = "DIR")]
    state_dir: PathBuf,
    /// Print 'ready' on stdout once metrics are served
    #[arg(long)]
    print_ready: bool,
}

impl ServeArgs {
    /// Serves metrics of the selected VMs until a signal.
    pub fn run(self, find: DiscoveryOptions, selector: Selector) -> anyhow::Result<()> {
        let mut console = Console {
            info: "info",
            error: "error",
            print_ready: self.print_ready,
            level: console::level(),
        };
        let export = Export::open(
            self.source.open()?,
            ExportConfig {
                find,
                selector,
                state_dir: self.state_dir,
                listen: self.listen,
                interval: self.interval,
                detail: Detail {
                    culprits: usize::try_from(self.culprits)?,
                    vcpus: self.vcpus,
                    process_names: !self.no_process_names,
                },
            },
        )?;
        Ok(export.run(&mut console)?)
    }
}
