//! Fixtures that the tests of several crates share; a dev-dependency only.
//!
//! - [`harness`]: runs live tests one after the other and prints like libtest, with skipped tests and their reasons.
//! - [`helper`]: helper processes of live tests: a VM's threads, a daemon to be killed.
//! - [`host`]: this machine's cgroups and threads, with a check that everything was reverted.
//! - [`hooked`]: a CPU controller that fails or panics at a chosen call.
//! - [`vm`]: a microVM as a process.
//! - [`processes`]: programs that tests run, and leftovers of them.
//! - [`schema`]: JSON against JSON Schema.
//! - [`browser`]: HTML pages in a real browser.
//! - [`quiet`]: measurements on a machine that others use too.
//! - [`kills`]: how often tests kill.
//! - [`documents`]: the commands that documents show.
//! - [`fuzz`]: seeded inputs and the bounds of what reading one may cost.

pub mod browser;
pub mod documents;
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
