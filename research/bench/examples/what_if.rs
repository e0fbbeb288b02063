//! Compares what-if simulations of recorded hosts with the hosts ([`tandem_bench::what_if`]); prints a table, and writes JSON if a file is named.
//!
//! ```text
//! cargo build --release -p tandem-cli
//! sudo cargo run --release -p tandem-bench --example what_if -- [ROUNDS [SECONDS [FILE.json]]]
//! ```
//!
//! VMs and daemon are `tandem vm run` and `tandem host run` of the binary one folder above this program, or of the binary in TANDEM.
//! It needs an otherwise idle host.
//! Each round runs each of three mixes four times, for SECONDS and 5 s more.
//! The default of 3 rounds of 8 s takes about 8 minutes, and the simulations in between about one.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tandem_bench::what_if;
use tandem_bench::what_if::Settings;
use tandem_demo::state_dir;
use tandem_linux::interrupt::Interrupt;
use tandem_report::json;
use tandem_report::progress::Progress;

type AnyError = Box<dyn std::error::Error>;

fn main() -> Result<(), AnyError> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let tandem = tandem()?;
    if let Some("vm" | "host") = arguments.first().map(String::as_str) {
        let error = Command::new(&tandem).args(&arguments).exec();
        return Err(format!("cannot start {}: {error}", tandem.display()).into());
    }
    let rounds = arguments.first().map_or(Ok(3), |text| text.parse())?;
    let seconds = arguments.get(1).map_or(Ok(8), |text| text.parse())?;
    let interrupt = Interrupt::watch()?;
    let settings = Settings {
        rounds,
        seconds,
        settle: Duration::from_secs(3),
        state_dir: state_dir::default_for(rustix::process::geteuid().as_raw()),
    };
    let mixes = what_if::MIXES.len() as u64;
    let progress =
        Progress::begin(mixes * u64::from(rounds) * (1 + what_if::WhatIf::ALL.len() as u64));
    let figures = what_if::measure(&settings, &progress, &interrupt)?;
    drop(progress);
    println!("{}", what_if::text(&figures));
    if let Some(file) = arguments.get(2) {
        json::write(Path::new(file), &figures)?;
    }
    Ok(())
}

/// Path of the measured `tandem` binary.
fn tandem() -> Result<PathBuf, AnyError> {
    let named = env::var_os("TANDEM").map(PathBuf::from);
    let program = env::current_exe()?;
    let beside = program.parent().and_then(Path::parent).map(|folder| folder.join("tandem"));
    let tandem = named.or(beside).filter(|path| path.is_file());
    tandem.ok_or_else(|| "there is no tandem: build it (cargo build --release -p tandem-cli), or name it in TANDEM".into())
}
