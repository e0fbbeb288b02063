//! The folder in which Bochs runs: its settings from the template of the lab, and its boot CD.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::boot::{Boot, BootError};
use crate::file::FileError;
use crate::machine::Machine;

/// BIOS of the machine.
pub const BIOS: &str = "/usr/share/bochs/BIOS-bochs-latest";
/// BIOS of its display.
pub const VGA_BIOS: &str = "/usr/share/vgabios/vgabios.bin";
/// Boot loader of a CD.
pub const ISOLINUX: &str = "/usr/lib/ISOLINUX/isolinux.bin";
/// Module of the boot loader.
pub const LDLINUX: &str = "/usr/lib/syslinux/modules/bios/ldlinux.c32";
/// Program that writes a CD image.
pub const GENISOIMAGE: &str = "genisoimage";

/// The CD, as `research/lab/machines/bochsrc` names it.
pub const CD: &str = "boot.iso";
/// Console output of the kernel.
pub const CONSOLE: &str = "console.txt";
/// Answers of the agent.
pub const ANSWERS: &str = "answers.txt";
/// Log of Bochs.
pub const LOG: &str = "bochs.txt";

/// Settings of Bochs.
pub const SETTINGS: &str = "bochsrc";

/// Writes the settings from the template of the lab.
pub fn write_settings(machine: &Machine, boot: &Boot, folder: &Path) -> Result<(), BootError> {
    let template = template(boot.lab);
    let text = fs::read_to_string(&template).map_err(FileError::of("read", &template))?;
    let instructions = u64::from(machine.mhz.unwrap_or_default()) * 1_000_000;
    let text = text
        .replace("{pcpus}", &machine.pcpus.to_string())
        .replace("{memory}", &machine.memory_mib.to_string())
        .replace("{ips}", &instructions.to_string())
        .replace("{bios}", BIOS)
        .replace("{vgabios}", VGA_BIOS)
        .replace("{cd}", CD)
        .replace("{console}", CONSOLE)
        .replace("{answers}", ANSWERS)
        .replace("{log}", LOG);
    let path = folder.join(SETTINGS);
    Ok(fs::write(&path, text).map_err(FileError::of("write", &path))?)
}

/// Returns the path of the settings' template.
pub fn template(lab: &Path) -> PathBuf {
    lab.join("machines/bochsrc")
}

/// Writes a CD that boots the kernel with `initramfs`.
pub fn write_cd(
    machine: &Machine,
    boot: &Boot,
    folder: &Path,
    initramfs: &[u8],
) -> Result<(), BootError> {
    let tree = folder.join("cd");
    let put = |name: &str, bytes: &[u8]| {
        let path = tree.join(name);
        fs::write(&path, bytes).map_err(FileError::of("write", &path))
    };
    let copy = |name: &str, from: &Path| {
        fs::copy(from, tree.join(name)).map(drop).map_err(FileError::of("copy", from))
    };
    fs::create_dir_all(&tree).map_err(FileError::of("make", &tree))?;
    copy("isolinux.bin", Path::new(ISOLINUX))?;
    copy("ldlinux.c32", Path::new(LDLINUX))?;
    copy("bzimage", boot.kernel)?;
    put("initrd", initramfs)?;
    let line = machine.command_line(boot.parameters);
    let menu = format!(
        "default lab\nprompt 0\nlabel lab\n  kernel bzimage\n  append initrd=initrd {line}\n"
    );
    put("isolinux.cfg", menu.as_bytes())?;
    let output = Command::new(GENISOIMAGE)
        .args(["-quiet", "-o"])
        .arg(folder.join(CD))
        .args(["-b", "isolinux.bin", "-c", "boot.cat", "-no-emul-boot"])
        .args(["-boot-load-size", "4", "-boot-info-table"])
        .arg(&tree)
        .stdin(Stdio::null())
        .output()
        .map_err(FileError::of("run", Path::new(GENISOIMAGE)))?;
    if !output.status.success() {
        return Err(BootError::Cd {
            status: output.status,
            text: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        });
    }
    Ok(fs::remove_dir_all(&tree).map_err(FileError::of("remove", &tree))?)
}
