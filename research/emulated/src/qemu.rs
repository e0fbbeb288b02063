//! The machine `qemu`: QEMU's translator (TCG) with AMD's virtualization, so that kvm_amd runs in it.
//!
//! It boots in seconds and serves functional tests.
//! Its figures are not meaningful: it has no pause filter, so pause loops do not exit, and its time is that of the host.

use std::fs;
use std::process::{Command, Stdio};

use crate::boot::{Boot, BootError};
use crate::emulator::{Answers, Emulator, EmulatorError, need};
use crate::file::FileError;
use crate::machine::Machine;
use crate::payload;

const PROGRAM: &str = "qemu-system-x86_64";

/// Checks whether QEMU is installed on this host.
pub fn check() -> Result<(), EmulatorError> {
    need("QEMU", &[(PROGRAM, "qemu-system-x86")])
}

/// Boots the machine, runs the job, and ends the machine.
pub fn run(machine: &Machine, boot: &Boot) -> Result<Answers, BootError> {
    let initramfs = boot.work.join("initramfs");
    let bytes = payload::with_job(boot.payload, boot.job)?;
    fs::write(&initramfs, bytes).map_err(FileError::of("write", &initramfs))?;
    let console = boot.work.join("console.txt");
    let answers = boot.work.join("answers.txt");
    let errors = boot.work.join("qemu.txt");
    let stderr = fs::File::create(&errors).map_err(FileError::of("write", &errors))?;
    let mut command = Command::new(PROGRAM);
    command
        .args(["-accel", "tcg,thread=multi", "-cpu", "EPYC,+svm,+npt", "-M", "pc"])
        .arg("-smp")
        .arg((machine.spare_pcpus + machine.pcpus).to_string())
        .arg("-m")
        .arg(machine.memory_mib.to_string())
        .arg("-kernel")
        .arg(boot.kernel)
        .arg("-initrd")
        .arg(&initramfs)
        .arg("-append")
        .arg(machine.command_line(boot.parameters))
        .args(["-nodefaults", "-display", "none", "-no-reboot"])
        .arg("-serial")
        .arg(format!("file:{}", console.display()))
        .arg("-serial")
        .arg(format!("file:{}", answers.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr);
    let mut emulator = Emulator::start("QEMU", command, answers, vec![errors, console])?;
    Ok(emulator.wait_until(boot.patience, |answers| answers.ended)?)
}
