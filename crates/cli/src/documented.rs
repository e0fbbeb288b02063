//! Parses, without running them, all `tandem` commands in documents, systemd units and the Makefile.

use tandem_testing::documents;

use crate::Cli;

#[test]
fn documented_commands_parse() {
    documents::check::<Cli>("tandem", 100);
}
