//! `tandem-lab bench guest-token`: two threads pass a token back and forth ([`tandem_bench::guest::token`]).
//!
//! It prints `passes: N` and `seconds: S`.

use std::time::Duration;

use anyhow::ensure;
use clap::{Args, ValueEnum};
use tandem_bench::guest::token;
use tandem_bench::guest::token::Means;

use tandem_command::console::print;
use tandem_command::number::time;

/// Primitive with which a thread waits for the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MeansArg {
    /// futex(2).
    Futex,
    /// `std::sync::Condvar`.
    Condvar,
}

/// `tandem-lab bench guest-token`
#[derive(Debug, Args)]
pub struct TokenArgs {
    /// Primitive with which a thread waits
    #[arg(long, value_enum, default_value = "futex")]
    by: MeansArg,
    /// Run time in seconds, above 0 up to 3600
    #[arg(long, default_value_t = 3.0, value_parser = time::<f64>("seconds"))]
    seconds: f64,
}

/// Passes the token for the given time.
pub fn main(args: &TokenArgs) -> anyhow::Result<()> {
    ensure!(
        args.seconds > 0.0 && args.seconds <= 3600.0,
        "--seconds {} is not possible: above 0, up to 3600",
        args.seconds
    );
    let by = match args.by {
        MeansArg::Futex => Means::Futex,
        MeansArg::Condvar => Means::Condvar,
    };
    let passed = token::run(by, Duration::from_secs_f64(args.seconds));
    print(&format!("passes: {}\nseconds: {:.6}", passed.passes, passed.time.as_secs_f64()))
}
