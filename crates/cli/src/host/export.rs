//! `tandem host export`: arguments of the exporter.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tandem_host::config::DEFAULT_STATE_DIR;
use tandem_host::export::{DEFAULT_LISTEN, Detail, Export, ExportConfig, MAX_CULPRITS};
use tandem_host::select::VmPattern;

use super::look::{
    FindArgs, MEASUREMENT, OUTPUT, SELECTION, SourceArgs, chosen, interval, parse_vm,
};
use tandem_command::console;
use tandem_command::number::whole;

/// `tandem host export`
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// VMs: a name or glob ('db-*'), a process id (4711), a cgroup ('/machine.slice/*') or a user (uid:1000) [default: all]
    #[arg(value_name = "VM", value_parser = parse_vm)]
    vms: Vec<VmPattern>,
    /// Omit these VMs; may be repeated
    #[arg(long, value_name = "VM", value_parser = parse_vm, help_heading = SELECTION)]
    exclude: Vec<VmPattern>,
    #[command(flatten)]
    find: FindArgs,
    #[command(flatten)]
    source: SourceArgs,
    /// Serve metrics on this address; each client can read the names of VMs and processes
    #[arg(long, default_value = DEFAULT_LISTEN, value_name = "ADDR:PORT", help_heading = OUTPUT)]
    listen: SocketAddr,
    /// Length of an interval, 50ms … 1h, independent of scrapes
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = interval, allow_negative_numbers = true, help_heading = MEASUREMENT)]
    interval: Duration,
    /// Maximum number of culprits per VM, and of host processes, with their own series, 0 … 100; the others are summed
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = whole((0, MAX_CULPRITS), "culprits"), help_heading = OUTPUT)]
    culprits: u64,
    /// Export series of each vCPU, too
    #[arg(long, help_heading = OUTPUT)]
    vcpus: bool,
    /// Aggregate host processes; omit their names and cgroups
    #[arg(long, help_heading = OUTPUT)]
    no_process_names: bool,
    /// State directory of a running daemon, for its weights
    #[arg(long, default_value = DEFAULT_STATE_DIR, value_name = "DIR", help_heading = MEASUREMENT)]
    state_dir: PathBuf,
    /// Print 'ready' on standard output when metrics are served
    #[arg(long, help_heading = OUTPUT)]
    print_ready: bool,
}

impl ExportArgs {
    /// Serves metrics of the selected VMs until a signal. A selection without a VM may match one that starts later.
    pub fn run(self) -> anyhow::Result<()> {
        let (_, selector) = chosen(&self.vms, &self.exclude)?;
        console::log_to_stderr(None, self.print_ready);
        let export = Export::open(
            self.source.open()?,
            ExportConfig {
                find: self.find.options(),
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
        Ok(export.run()?)
    }
}
