//! The machine `bochs`: Bochs 2.7 with several Intel processors that have VMX, EPT and pause-loop exiting, so that kvm_intel runs in it.
//!
//! One instruction takes one cycle, on every processor in turn.
//! All clocks (TSC, APIC timer, HPET) count those cycles, independently of the host's time.
//! So runs are deterministic, and cycles between two points are instructions.
//! The model lacks caches, memory latency, and the hardware cost of an exit, so exits are cheaper than on hardware.
//!
//! Bochs boots from a CD (isolinux), needs a terminal for its display `term`, which is not shown, and starts in its debugger.
//! A boot takes minutes; `snapshot` saves the booted machine.

mod folder;
mod process;
mod snapshot;

use crate::boot::{Boot, BootError};
use crate::emulator::{Answers, EmulatorError, need};
use crate::job::Job;
use crate::machine::Machine;
use crate::payload;
use crate::payload::PayloadError;

/// Plugin that draws on the terminal.
const PLUGIN: &str = "/usr/lib/x86_64-linux-gnu/bochs/plugins/libbx_term_gui.so";

/// Steps of the workloads' chain in 2^20 cycles: a step is four instructions (`guest/compute.h` of
/// the microVM), and an instruction a cycle.
const STEPS_PER_MEBICYCLE: u64 = (1 << 20) / 4;

/// Checks whether Bochs is installed on this host.
pub fn check() -> Result<(), EmulatorError> {
    need(
        "Bochs",
        &[
            (process::PROGRAM, "bochs"),
            (PLUGIN, "bochs-term"),
            (folder::BIOS, "bochsbios"),
            (folder::VGA_BIOS, "vgabios"),
            (folder::ISOLINUX, "isolinux"),
            (folder::LDLINUX, "syslinux-common"),
            (folder::GENISOIMAGE, "genisoimage"),
        ],
    )
}

/// Returns the job with the calibration that follows from this machine's clock.
fn calibrated(machine: &Machine, job: &Job) -> Job {
    let khz = u64::from(machine.mhz.unwrap_or_default()) * 1000;
    Job { calibration: Some(format!("{khz}:{STEPS_PER_MEBICYCLE}")), ..job.clone() }
}

/// Boots or restores the machine, runs the job, and ends the machine.
pub fn run(machine: &Machine, boot: &Boot) -> Result<Answers, BootError> {
    let job = calibrated(machine, boot.job);
    let saved = if boot.snapshots { snapshot::find_or_make(machine, boot)? } else { None };
    let mut bochs = match &saved {
        Some(saved) => {
            let text = serde_json::to_string(&job).map_err(PayloadError::Job)?;
            let state = saved.copy_with_job(boot.work, &text)?;
            process::start(boot.work, &["-r", &state], &[])?
        }
        None => {
            let bytes = payload::with_job(boot.payload, &job)?;
            folder::write_cd(machine, boot, boot.work, &bytes)?;
            folder::write_settings(machine, boot, boot.work)?;
            process::start(boot.work, &["-f", folder::SETTINGS], &[])?
        }
    };
    let mut answers = bochs.wait_until(boot.patience, |answers| answers.ended)?;
    answers.restored = saved.is_some();
    Ok(answers)
}
