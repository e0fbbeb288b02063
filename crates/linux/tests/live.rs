//! The actuator, cgroups and journal against this machine's own kernel: real threads, real
//! cgroups of v1 or v2, real affinity masks, real kills.
//!
//! A program of its own instead of libtest's, for two reasons. It is also the helper processes that
//! its tests need (a VM's threads, a daemon to be killed), which it starts as `/proc/self/exe`. And
//! its tests all look at the same host, so they run one after the other. It needs nothing but the
//! kernel, so that the same program, statically linked, can be all there is in a test VM.

#[path = "live/daemon.rs"]
mod daemon;
#[path = "live/disks.rs"]
mod disks;
use tandem_testing::{harness, helper, host};
#[path = "live/knobs.rs"]
mod knobs;
#[path = "live/tests.rs"]
mod tests;

use std::process::ExitCode;

fn main() -> ExitCode {
    match helper::role().as_deref() {
        Some("vm") => helper::be_a_vm(),
        Some("daemon") => daemon::be_a_daemon(),
        Some(other) => panic!("no helper is called '{other}'"),
        None => harness::run(&[tests::ALL, knobs::ALL, disks::ALL].concat()),
    }
}
