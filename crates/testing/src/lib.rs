//! Fixtures that the tests of several crates share; a dev-dependency only.
//!
//! - [`harness`]: runs live tests sequentially and prints like libtest, with the reasons of skipped tests.
//! - [`helper`]: helper processes of live tests: a VM's threads, a daemon to be killed.
//! - [`host`]: this machine's cgroups and threads, with a check that everything was reverted.
//! - [`hooked`]: a CPU controller with a hook after each change.
//! - [`vm`]: a microVM as a process.
//! - [`processes`]: commands that tests run, and searches for leftovers.
//! - [`schema`]: validation of JSON output.
//! - [`browser`]: HTML pages in a real browser.
//! - [`quiet`]: measurements on a shared machine.
//! - [`kills`]: number of kills in kill tests.
//! - [`documents`]: commands shown in documents.
//! - [`fuzz`]: seeded inputs with limits of memory and time.

pub mod browser;
pub mod documents;
pub mod fake_host;
pub mod faulty;
pub mod fuzz;
pub mod harness;
pub mod helper;
pub mod hooked;
pub mod host;
pub mod kills;
pub mod processes;
pub mod quiet;
pub mod schema;
pub mod vm;
