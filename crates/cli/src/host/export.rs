//! `tandem host export`: arguments of the exporter.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use tandem_host::config::DEFAULT_STATE_DIR;
use tandem_host::export::DEFAULT_LISTEN;
use tandem_host::export::Detail;
use tandem_host::export::Export;
use tandem_host::export::ExportConfig;
use tandem_host::export::MOST_CULPRITS;
use tandem_host::select::Selector;
use tandem_linux::service::Console;

use super::FindArgs;
use super::SelectArgs;
use super::seconds;
use crate::number::whole;

/// `tandem host export`
#[derive(Debug, Args)]
pub struct ExportArgs {
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    find: FindArgs,
    /// Serve the metrics here. Whoever reaches an address that is not loopback reads names of VMs and processes
    #[arg(long, default_value = DEFAULT_LISTEN, value_name = "ADDR:PORT")]
    listen: SocketAddr,
    /// Length of an interval, 0.05 … 3600 s: so often is the host measured, however often somebody scrapes
    #[arg(long, default_value_t = 5.0, value_name = "S")]
    interval: f64,
    /// How many culprits of a VM, and processes of the host, have series of their own, 0 … 100; the rest is one
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = whole((0, MOST_CULPRITS), "culprits"))]
    culprits: u64,
    /// Series of each vCPU, too
    #[arg(long)]
    vcpus: bool,
    /// Where a running daemon keeps its state
    #[arg(long, default_value = DEFAULT_STATE_DIR, value_name = "DIR")]
    state_dir: PathBuf,
    /// Print 'ready' on stdout once metrics are served
    #[arg(long)]
    print_ready: bool,
}

pub(super) fn export(args: ExportArgs) -> anyhow::Result<()> {
    let mut console = Console {
        info: "info",
        error: "error",
        print_ready: args.print_ready,
        quiet: false,
    };
    // A selection that matches nothing yet may match a VM that is to come.
    let export = Export::open(ExportConfig {
        find: args.find.options(),
        selector: Selector::from_config(&args.select.wanted())?,
        state_dir: args.state_dir,
        listen: args.listen,
        interval: seconds(args.interval)?,
        detail: Detail {
            culprits: usize::try_from(args.culprits)?,
            vcpus: args.vcpus,
        },
    })?;
    Ok(export.run(&mut console)?)
}
