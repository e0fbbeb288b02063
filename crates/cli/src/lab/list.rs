//! `tandem lab list`: the experiments with their variants, and the machines.

use std::path::PathBuf;

use clap::Args;
use tandem_report::table::Look;
use tandem_report::table::Table;

use super::experiment;
use super::experiment::Experiment;
use super::machine;
use super::machine::Machine;
use crate::console::print;

/// `tandem lab list`
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Where the lab is
    #[arg(long, value_name = "FOLDER", default_value = "lab")]
    lab: PathBuf,
}

/// Lists them.
pub fn main(args: &ListArgs) -> anyhow::Result<()> {
    let mut experiments = Table::new(&["experiment", "machine", "variants", "what it is about"]);
    for name in experiment::names(&args.lab)? {
        let experiment = Experiment::read(&args.lab, &name)?;
        experiments.row(vec![
            name,
            experiment.machine,
            experiment.variants.len().to_string(),
            experiment.title,
        ]);
    }
    let mut machines = Table::new(&["machine", "pCPUs", "MHz", "what it is", "can run here"]);
    for name in machine::names(&args.lab)? {
        let machine = Machine::read(&args.lab, &name)?;
        machines.row(vec![
            name,
            machine.pcpus.to_string(),
            machine
                .mhz
                .map_or_else(|| "the host's".to_owned(), |mhz| mhz.to_string()),
            machine.title.clone(),
            match machine.check() {
                Ok(()) => "yes".to_owned(),
                Err(error) => error.to_string(),
            },
        ]);
    }
    let look = Look::of(std::io::IsTerminal::is_terminal(&std::io::stdout()));
    print(&format!(
        "{}\n{}",
        experiments.text(look),
        machines.text(look)
    ))
}
