//! The actuator, discovery and sampler against this machine's own kernel: real threads, real
//! cgroups of v1 or v2, real affinity masks, real kills.
//!
//! A program of its own instead of libtest's, for two reasons. It is also the helper processes that
//! its tests need (a VM's threads, a daemon to be killed), which it starts as `/proc/self/exe`. And
//! its tests all look at the same host, so they run one after the other. It needs nothing but the
//! kernel, so that the same program, statically linked, can be all there is in a test VM.
//!
//! Its output is libtest's: `test NAME ... ok`, and at the end `test result: …`. A test that this
//! machine cannot run prints `skipped: NAME: REASON` instead and is not counted as passed.
//! Arguments that are no flags choose tests by parts of their names.

#[path = "live/helper.rs"]
mod helper;
#[path = "live/host.rs"]
mod host;
#[path = "live/tests.rs"]
mod tests;

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::time::Instant;

/// Why a test cannot run here.
pub struct Skip(pub String);

/// A test: passes by returning, fails by panicking.
pub type Test = fn() -> Result<(), Skip>;

fn main() -> ExitCode {
    if let Some(role) = helper::role() {
        return helper::run(&role);
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flag = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let chosen: Vec<_> = tests::ALL
        .iter()
        .filter(|(name, _)| {
            let mut parts = arguments.iter().filter(|a| !a.starts_with('-')).peekable();
            parts.peek().is_none() || parts.any(|part| name.contains(part.as_str()))
        })
        .filter(|_| !flag("--ignored"))
        .collect();
    if flag("--list") {
        for (name, _) in &chosen {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", chosen.len());
    let begin = Instant::now();
    let (mut passed, mut failed) = (0, 0);
    for (name, test) in chosen {
        match catch_unwind(test) {
            Ok(Ok(())) => {
                passed += 1;
                println!("test {name} ... ok");
            }
            Ok(Err(Skip(reason))) => println!("skipped: {name}: {reason}"),
            Err(_) => {
                failed += 1;
                println!("test {name} ... FAILED");
            }
        }
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {passed} passed; {failed} failed; 0 ignored; 0 measured; \
         0 filtered out; finished in {:.2}s\n",
        begin.elapsed().as_secs_f64()
    );
    match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
