//! The actuator, cgroups and journal on this host's kernel: real threads, cgroups of v1 or v2, affinity masks and kills.
//!
//! It has its own harness instead of libtest's, for two reasons.
//! It starts itself (`/proc/self/exe`) as the helper processes of its tests (a VM's threads, a daemon to be killed).
//! All tests use the same host, so they run one after the other.
//! It needs only the kernel, so that a test VM can contain nothing but this program, statically linked.

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
