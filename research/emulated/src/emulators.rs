//! Dispatch from a machine to its emulator.

use crate::boot::{Boot, BootError};
use crate::emulator::{Answers, EmulatorError};
use crate::machine::{Emulator, Machine};
use crate::{bochs, qemu};

/// Checks whether this host can run the machine; an error names the missing Debian packages.
pub fn check(machine: &Machine) -> Result<(), EmulatorError> {
    match machine.emulator {
        Emulator::Qemu => qemu::check(),
        Emulator::Bochs => bochs::check(),
    }
}

/// Boots the machine and runs the job.
pub fn run(machine: &Machine, boot: &Boot) -> Result<Answers, BootError> {
    match machine.emulator {
        Emulator::Qemu => qemu::run(machine, boot),
        Emulator::Bochs => bochs::run(machine, boot),
    }
}
