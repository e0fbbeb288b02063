//! `tandem host scalability`: how far VMs scale.

use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use tandem_host::config::DEFAULT_STATE_DIR;
use tandem_host::scalability;

use super::look;
use super::record::partial;
use crate::console;

/// `tandem host scalability`
#[derive(Debug, clap::Args)]
pub struct ScalabilityArgs {
    /// The VM, by name or process id [default: all]
    vm: Option<String>,
    #[command(flatten)]
    find: look::FindArgs,
    #[command(flatten)]
    source: look::SourceArgs,
    /// Of a record instead of now: the folder that tandem host record wrote
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["interval", "source"])]
    from: Option<PathBuf>,
    /// How long to look, 0.05 … 3600 s
    #[arg(long, default_value = "5", value_name = "S", value_parser = look::seconds)]
    interval: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn main(args: &ScalabilityArgs) -> anyhow::Result<()> {
    let asked = args.vm.as_deref();
    let (found, damages) = match &args.from {
        Some(folder) => scalability::of_record(folder, asked)?,
        None => {
            let (source, find) = (args.source.open()?, args.find.options());
            let mut look = scalability::Look::open(source, find, Path::new(DEFAULT_STATE_DIR))?;
            (look.look(asked, args.interval)?, Vec::new())
        }
    };
    console::print(&match args.json {
        true => serde_json::to_string_pretty(&found)?,
        false => scalability::text::text(&found, look::style(false)),
    })?;
    partial(&damages, true)
}
