//! Which emulator runs a machine: the one place that knows them both.

use crate::boot::{Boot, BootError};
use crate::emulator::{Answers, EmulatorError};
use crate::machine::{Emulator, Machine};
use crate::{bochs, qemu};

/// Says what is missing on this host to run the machine, with the Debian package that has it.
pub fn check(machine: &Machine) -> Result<(), EmulatorError> {
    match machine.emulator {
        Emulator::Qemu => qemu::check(),
        Emulator::Bochs => bochs::check(),
    }
}

/// Boots the machine and has the job done.
pub fn run(machine: &Machine, boot: &Boot) -> Result<Answers, BootError> {
    match machine.emulator {
        Emulator::Qemu => qemu::run(machine, boot),
        Emulator::Bochs => bochs::run(machine, boot),
    }
}
