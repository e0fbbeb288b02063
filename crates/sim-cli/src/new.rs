//! `tandem-sim new`: a commented starter project ([`tandem_experiment::starter`]).

use std::path::PathBuf;

use clap::Args;
use tandem_experiment::starter;

use tandem_command::console::print;

/// `tandem-sim new`
#[derive(Debug, Args)]
pub struct NewArgs {
    /// The folder to make; it must not be there yet
    #[arg(value_name = "NAME")]
    folder: PathBuf,
}

/// Makes the project.
pub fn main(args: &NewArgs) -> anyhow::Result<()> {
    for path in starter::create(&args.folder)? {
        print(&path.display().to_string())?;
    }
    let scenario = args.folder.join("scenario.toml");
    print(&format!("\nNow: tandem-sim run {}", scenario.display()))
}
