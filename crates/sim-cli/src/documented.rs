//! Parses, without running them, all `tandem-sim` commands in documents, systemd units and the Makefile.

use clap::Parser;
use clap::error::ErrorKind;
use tandem_testing::documents;

use crate::Cli;

#[test]
fn documented_commands_parse() {
    documents::check("tandem-sim", 30, |shown| {
        let error = Cli::try_parse_from(&shown.words).err()?;
        let is_wrong = match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => false,
            ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand => true,
            // A sentence may omit arguments, and use FILE or N as a value.
            _ => !shown.in_sentence,
        };
        is_wrong.then(|| error.to_string())
    });
}
