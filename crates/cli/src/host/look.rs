//! Shared arguments of subcommands that observe the host: discovery and selection of VMs, source, style of text.

use std::time::Duration;

use clap::{Args, ValueEnum};
use tandem_host::columns::Style;
use tandem_host::config::{ConfigError, Select};
use tandem_host::discovery::{DiscoveryOptions, check_named};
use tandem_host::select::{Selector, VmPattern, WrongArgument};
use tandem_observe::{Choice, Source};
use tandem_report::terminal::has_colour;

use tandem_command::number::{duration, not_possible};

/// Heading of options that select VMs.
pub const SELECTION: &str = "Selection";
/// Heading of options for VMMs that discovery does not know.
const DISCOVERY: &str = "Discovery";
/// Heading of options about output.
pub const OUTPUT: &str = "Output";
/// Heading of options about measurements.
pub const MEASUREMENT: &str = "Measurement";

/// How VMs and their vCPU threads are found.
#[derive(Clone, Debug, Args)]
pub struct FindArgs {
    // clap replaces {n} by a newline; an escape sequence without effect within it prevents that.
    #[arg(
        long,
        value_name = "GLOB",
        help_heading = DISCOVERY,
        help = "'cpu{\u{1b}[0mn}:*': thread names of an unknown VMM, with {\u{1b}[0mn} for the vCPU's number"
    )]
    pub thread_pattern: Option<String>,
    /// QMP sockets of QEMU processes: a path or glob; may be repeated
    #[arg(long, value_name = "PATH", help_heading = DISCOVERY)]
    pub qmp_socket: Vec<String>,
    /// Identify vCPU threads without KVM by their names, in a process (4711), of a user (uid:1000) or in cgroups ('/vms/*'); may be repeated
    #[arg(long, value_name = "VM", value_parser = without_kvm, help_heading = DISCOVERY)]
    pub without_kvm: Vec<String>,
}

impl FindArgs {
    /// Returns the options of discovery.
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
    /// Source of the measurement
    #[arg(long, value_enum, default_value_t = SourceName::Plain, value_name = "SOURCE", help_heading = MEASUREMENT)]
    source: SourceName,
}

/// `--source`
#[derive(Clone, Copy, Debug, ValueEnum)]
enum SourceName {
    /// Accounting of every kernel; the tasks that take pCPUs are estimated
    Plain,
    /// BPF programs in addition: exact; needs root and a kernel with BTF
    Bpf,
}

impl SourceArgs {
    /// Opens the source.
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

/// Parses `--without-kvm`.
fn without_kvm(text: &str) -> Result<String, String> {
    match check_named(text) {
        Ok(()) => Ok(text.to_owned()),
        Err(error) => Err(not_possible(text, error.why)),
    }
}

/// Parses a VM argument.
pub fn parse_vm(text: &str) -> Result<VmPattern, String> {
    text.parse()
}

/// Returns the selection of VM arguments and exclusions, and its compiled form. Without arguments, all VMs are selected.
pub fn chosen(vms: &[VmPattern], exclude: &[VmPattern]) -> Result<(Select, Selector), ConfigError> {
    let exclude = exclude.iter().map(ToString::to_string).collect();
    let select = Select { exclude, ..Select::of(vms) };
    let selector = Selector::from_config(&select)?;
    Ok((select, selector))
}

/// Returns an error if VMs of a user are requested, because a record has no users.
pub fn check_recorded(vms: &[VmPattern]) -> Result<(), WrongArgument> {
    match vms.iter().find(|vm| matches!(vm, VmPattern::User(_))) {
        Some(user) => Err(WrongArgument(format!(
            "{user}: a record has no users; give a name or glob ('db-*'), a process id or a cgroup"
        ))),
        None => Ok(()),
    }
}

/// Parses the length of an interval or a measurement.
pub fn interval(text: &str) -> Result<Duration, String> {
    duration(Duration::from_millis(50), Duration::from_secs(3600))(text)
}

/// Returns the style of text: on a terminal, its width, and colour unless disabled.
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
