//! What subcommands that look at the host share: how VMs are found, and how text looks.

use std::time::Duration;

use clap::Args;
use clap::ValueEnum;
use tandem_host::columns::Style;
use tandem_host::discovery::DiscoveryOptions;
use tandem_host::discovery::check_named;
use tandem_host::glob;
use tandem_host::moment::in_units;
use tandem_observe::Choice;
use tandem_observe::Source;
use tandem_report::terminal::has_colour;

use crate::number::not_possible;
use crate::number::real;

/// How VMs and their vCPU threads are found.
#[derive(Clone, Debug, Args)]
pub struct FindArgs {
    // clap takes {n} for a newline, unless a style that changes nothing stands within.
    #[arg(
        long,
        value_name = "GLOB",
        help = "Thread names of a VMM that is not known, with {\u{1b}[0mn} for the vCPU's number: 'cpu{\u{1b}[0mn}:*'"
    )]
    pub thread_pattern: Option<String>,
    /// QMP sockets of QEMU processes: a path or glob; may be repeated
    #[arg(long, value_name = "PATH")]
    pub qmp_socket: Vec<String>,
    /// Take vCPU threads by their names where there is no KVM: of a process (PID), a user (uid:N) or cgroups (/vms/*); may be repeated
    #[arg(long, value_name = "PID|uid:N|PATH", value_parser = without_kvm)]
    pub without_kvm: Vec<String>,
}

impl FindArgs {
    /// For discovery.
    pub fn options(&self) -> DiscoveryOptions {
        DiscoveryOptions {
            thread_pattern: self.thread_pattern.clone(),
            qmp_sockets: self.qmp_socket.clone(),
            without_kvm: self.without_kvm.clone(),
            ..DiscoveryOptions::default()
        }
    }
}

/// What measures.
#[derive(Clone, Copy, Debug, Args)]
pub struct SourceArgs {
    /// What measures
    #[arg(long, value_enum, default_value_t = SourceName::Plain, value_name = "SOURCE")]
    source: SourceName,
}

/// `--source`
#[derive(Clone, Copy, Debug, ValueEnum)]
enum SourceName {
    /// Accounts that every kernel keeps; who takes pCPUs is estimated
    Plain,
    /// BPF programs in the kernel, beside such accounts: exact, who takes pCPUs is seen; root, and a kernel with BTF
    Bpf,
}

impl SourceArgs {
    /// Opens it.
    pub fn open(self) -> anyhow::Result<Box<dyn Source>> {
        let choice = match self.source {
            SourceName::Plain => Choice::Plain,
            SourceName::Bpf => Choice::Bpf,
        };
        let hint = "--source plain measures without BPF";
        choice.open().map_err(|error| match self.source {
            SourceName::Plain => error.into(),
            SourceName::Bpf => anyhow::anyhow!("{error}; {hint}"),
        })
    }
}

/// `--without-kvm`
fn without_kvm(text: &str) -> Result<String, String> {
    match check_named(text) {
        Ok(()) => Ok(text.to_owned()),
        Err(error) => Err(not_possible(text, error.why)),
    }
}

/// The name of a VM, or a glob of names.
pub fn vm_name(text: &str) -> Result<String, String> {
    match glob::for_names(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(expected) => Err(not_possible(text, expected)),
    }
}

/// `--interval`
pub fn seconds(text: &str) -> Result<Duration, String> {
    real((0.05, 3600.0))(&in_units(text, "seconds")).map(Duration::from_secs_f64)
}

/// How text is to look: on a terminal as wide as that, with colour unless somebody said otherwise.
pub fn style(is_terminal: bool) -> Style {
    let width = || rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    Style {
        colour: has_colour(is_terminal),
        width: is_terminal
            .then(width)
            .flatten()
            .map(|size| usize::from(size.ws_col))
            .filter(|width| *width > 0),
    }
}
