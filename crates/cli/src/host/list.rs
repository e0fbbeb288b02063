//! `tandem host list`: the VMs of this host.

use std::io::IsTerminal;

use clap::Args;
use tandem_command::console;
use tandem_host::discovery::Discovery;
use tandem_host::list;
use tandem_host::select::VmPattern;
use tandem_linux::cgroup;
use tandem_linux::procfs::ProcFs;

use super::look::{FindArgs, OUTPUT, SELECTION, chosen, parse_vm, style};

/// `tandem host list`
#[derive(Debug, Args)]
pub struct ListArgs {
    /// VMs: a name or glob ('db-*'), a process id (4711), a cgroup ('/machine.slice/*') or a user (uid:1000) [default: all]
    #[arg(value_name = "VM", value_parser = parse_vm)]
    vms: Vec<VmPattern>,
    /// Omit these VMs; may be repeated
    #[arg(long, value_name = "VM", value_parser = parse_vm, help_heading = SELECTION)]
    exclude: Vec<VmPattern>,
    #[command(flatten)]
    find: FindArgs,
    /// Print JSON
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
}

/// Runs the command.
pub fn main(args: &ListArgs) -> anyhow::Result<()> {
    let (select, selector) = chosen(&args.vms, &args.exclude)?;
    let procfs = ProcFs::host();
    let controller = cgroup::open(&procfs)?;
    let scan = Discovery::new(args.find.options(), procfs.clone())?.scan()?;
    let listed = list::list(&scan, &selector, controller.as_ref(), &procfs);
    super::check_matches(&select, listed.vms.len(), scan.vms.len())?;
    if args.json {
        return console::print(&serde_json::to_string_pretty(&listed)?);
    }
    let is_root = rustix::process::geteuid().is_root();
    console::print(&list::text(&listed, is_root, style(std::io::stdout().is_terminal())))
}
