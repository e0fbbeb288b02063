//! The fleet as the controller's host on this machine's own kernel: real threads named as a VMM's, and real cgroups.
//!
//! Every decision is applied and read back, by an observation and from the kernel itself.
//! Meanwhile others change settings, vCPUs come and go, and writes are refused.
//! Discovery is left out: the tests define the VMs.
//! This is a program of its own like the live tests of `tandem-linux`, and uses their harness, helpers and snapshot of the host.

#[path = "live_fleet/apart.rs"]
mod apart;
#[path = "live_fleet/decisions.rs"]
mod decisions;
#[path = "live_fleet/foreign.rs"]
mod foreign;
use tandem_testing::{harness, helper, hooked, host};
#[path = "live_fleet/hot_plug.rs"]
mod hot_plug;
#[path = "live_fleet/panics.rs"]
mod panics;
#[path = "live_fleet/quotas.rs"]
mod quotas;
#[path = "live_fleet/slots.rs"]
mod slots;
#[path = "live_fleet/subject.rs"]
mod subject;
#[path = "live_fleet/tenants.rs"]
mod tenants;
#[path = "live_fleet/turns.rs"]
mod turns;
#[path = "live_fleet/turns_daemon.rs"]
mod turns_daemon;

use std::process::ExitCode;

fn main() -> ExitCode {
    match helper::role().as_deref() {
        Some("vm") => helper::be_a_vm(),
        Some("daemon") => turns_daemon::be_a_daemon(),
        Some(slots::DAEMON) => slots::be_a_daemon(),
        Some("watchdog") => turns_daemon::be_a_watchdog(),
        Some(other) => panic!("no helper is called '{other}'"),
        None => harness::run(
            &[
                apart::ALL,
                decisions::ALL,
                foreign::ALL,
                hot_plug::ALL,
                quotas::ALL,
                tenants::ALL,
                turns::ALL,
                panics::ALL,
                slots::ALL,
            ]
            .concat(),
        ),
    }
}
