//! Runs live tests sequentially and prints like libtest.
//!
//! Live tests need root, KVM and a mostly idle machine.
//! Like tests with `#[ignore]`, they run only with `--ignored` or `--include-ignored`.
//! A test that this machine cannot run prints `skipped: NAME: REASON` and does not count as passed.
//! Arguments other than flags select tests by parts of their names.

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::time::Instant;

/// Reason for ignoring tests without `--ignored`.
pub const IGNORED: &str = "needs root and KVM";

/// Reason for skipping a test on this machine.
#[derive(Debug)]
pub struct Skip(pub String);

/// A test; it passes if it returns and fails if it panics.
pub type Test = fn() -> Result<(), Skip>;

/// Runs the selected tests.
pub fn run(all: &[(&str, Test)]) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flag = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let chosen: Vec<_> = all
        .iter()
        .filter(|(name, _)| {
            let mut parts = arguments.iter().filter(|a| !a.starts_with('-')).peekable();
            parts.peek().is_none() || parts.any(|part| name.contains(part.as_str()))
        })
        .collect();
    if flag("--list") {
        for (name, _) in &chosen {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", chosen.len());
    let begin = Instant::now();
    let (mut passed, mut failed, mut ignored) = (0, 0, 0);
    let is_ignored = !flag("--ignored") && !flag("--include-ignored");
    for (name, test) in chosen {
        if is_ignored {
            ignored += 1;
            println!("test {name} ... ignored, {IGNORED}");
            continue;
        }
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
        "\ntest result: {verdict}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; \
         0 filtered out; finished in {:.2}s\n",
        begin.elapsed().as_secs_f64()
    );
    match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
