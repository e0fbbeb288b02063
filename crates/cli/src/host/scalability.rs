//! `tandem host scalability`: how far VMs scale.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tandem_host::config::DEFAULT_STATE_DIR;
use tandem_host::scalability;
use tandem_host::select::VmPattern;

use super::look;
use super::record::partial;
use tandem_command::console;

/// `tandem host scalability`
#[derive(Debug, clap::Args)]
pub struct ScalabilityArgs {
    /// VMs: a name or glob ('db-*'), a process id (4711), a cgroup ('/machine.slice/*') or a user (uid:1000) [default: all]
    #[arg(value_name = "VM", value_parser = look::parse_vm)]
    vms: Vec<VmPattern>,
    #[command(flatten)]
    find: look::FindArgs,
    #[command(flatten)]
    source: look::SourceArgs,
    /// Read this record of 'tandem host record' instead of measuring
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["duration", "source"], help_heading = look::MEASUREMENT)]
    from: Option<PathBuf>,
    /// Length of the measurement, 50ms … 1h
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = look::interval, help_heading = look::MEASUREMENT)]
    duration: Duration,
    /// Print JSON
    #[arg(long, help_heading = look::OUTPUT)]
    json: bool,
}

/// Runs the command.
pub fn main(args: &ScalabilityArgs) -> anyhow::Result<()> {
    let asked = &args.vms;
    let (found, damages) = match &args.from {
        Some(folder) => {
            look::check_recorded(asked)?;
            scalability::of_record(folder, asked)?
        }
        None => {
            let (source, find) = (args.source.open()?, args.find.options());
            let mut look = scalability::Look::open(source, find, Path::new(DEFAULT_STATE_DIR))?;
            (look.look(asked, args.duration)?, Vec::new())
        }
    };
    console::print(&if args.json {
        serde_json::to_string_pretty(&found)?
    } else {
        scalability::text::text(&found, look::style(false))
    })?;
    partial(&damages, true)
}
