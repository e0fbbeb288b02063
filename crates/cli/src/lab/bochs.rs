//! The machine `bochs`: Bochs 2.7 with several Intel processors that have VMX, EPT and pause-loop
//! exiting, so that kvm_intel runs in it as on hardware.
//!
//! One instruction takes one cycle, on every processor in turn; all clocks (TSC, APIC timer, HPET)
//! count those cycles; nothing depends on the host's time. The same machine with the same job does
//! the same again, and cycles between two points are instructions. What that leaves out: caches, memory
//! latency, and what an exit costs the hardware itself, so that an exit is cheaper here.
//!
//! Bochs boots from a CD (isolinux), wants a terminal for its display `term`, of which nothing is
//! shown, and starts in its debugger. A boot takes minutes; see [`super::snapshot`] for how it is
//! paid once.

use std::fs;
use std::fs::File;
use std::io;
use std::io::Read;
use std::os::fd::FromRawFd;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Stdio;
use std::thread;

use anyhow::Context;
use anyhow::bail;

use super::emulator::Answers;
use super::emulator::Emulator;
use super::emulator::need;
use super::job::Job;
use super::machine::Boot;
use super::machine::Machine;
use super::payload;
use super::snapshot;

const PROGRAM: &str = "bochs-bin";
const PLUGIN: &str = "/usr/lib/x86_64-linux-gnu/bochs/plugins/libbx_term_gui.so";
const BIOS: &str = "/usr/share/bochs/BIOS-bochs-latest";
const VGA_BIOS: &str = "/usr/share/vgabios/vgabios.bin";
const ISOLINUX: &str = "/usr/lib/ISOLINUX/isolinux.bin";
const LDLINUX: &str = "/usr/lib/syslinux/modules/bios/ldlinux.c32";

/// Steps of the workloads' chain in 2^20 cycles: a step is four instructions (`guest/compute.h` of
/// the microVM), and an instruction a cycle.
const STEPS_PER_MEBICYCLE: u64 = (1 << 20) / 4;

/// Files in the folder that Bochs runs in, as `lab/machines/bochsrc` names them.
pub const CD: &str = "boot.iso";
const CONSOLE: &str = "console.txt";
const ANSWERS: &str = "answers.txt";
const LOG: &str = "bochs.txt";

/// Whether it can run here.
pub fn check() -> anyhow::Result<()> {
    need(
        "Bochs",
        &[
            (PROGRAM, "bochs"),
            (PLUGIN, "bochs-term"),
            (BIOS, "bochsbios"),
            (VGA_BIOS, "vgabios"),
            (ISOLINUX, "isolinux"),
            (LDLINUX, "syslinux-common"),
            ("genisoimage", "genisoimage"),
        ],
    )
}

/// The job with the calibration that this machine has by its nature.
fn calibrated(machine: &Machine, job: &Job) -> Job {
    let khz = u64::from(machine.mhz.unwrap_or_default()) * 1000;
    Job {
        calibration: Some(format!("{khz}:{STEPS_PER_MEBICYCLE}")),
        ..job.clone()
    }
}

/// Boots or restores, does the job, ends.
pub fn run(machine: &Machine, boot: &Boot) -> anyhow::Result<Answers> {
    let job = calibrated(machine, boot.job);
    let saved = match boot.snapshots {
        true => snapshot::find_or_make(machine, boot)?,
        false => None,
    };
    let mut bochs = match &saved {
        Some(saved) => {
            let text = serde_json::to_string(&job).context("cannot write the job")?;
            let state = saved.copy_with_job(boot.work, &text)?;
            start(boot.work, &["-r", &state], &[])?
        }
        None => {
            let bytes = payload::with_job(boot.payload, &job)?;
            write_cd(machine, boot, boot.work, &bytes)?;
            write_settings(machine, boot, boot.work)?;
            start(boot.work, &["-f", SETTINGS], &[])?
        }
    };
    let mut answers = bochs.wait_until(boot.patience, |answers| answers.ended)?;
    answers.restored = saved.is_some();
    Ok(answers)
}

/// Bochs's settings.
pub const SETTINGS: &str = "bochsrc";

/// The settings, from the template of the lab.
pub fn write_settings(machine: &Machine, boot: &Boot, folder: &Path) -> anyhow::Result<()> {
    let template = template(boot.lab);
    let text = fs::read_to_string(&template)
        .with_context(|| format!("cannot read {}", template.display()))?;
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
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The template of the settings.
pub fn template(lab: &Path) -> PathBuf {
    lab.join("machines/bochsrc")
}

/// A CD that boots the kernel with `initramfs`.
pub fn write_cd(
    machine: &Machine,
    boot: &Boot,
    folder: &Path,
    initramfs: &[u8],
) -> anyhow::Result<()> {
    let tree = folder.join("cd");
    let put = |name: &str, bytes: &[u8]| {
        let path = tree.join(name);
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    };
    let copy = |name: &str, from: &Path| {
        fs::copy(from, tree.join(name))
            .map(drop)
            .with_context(|| format!("cannot copy {}", from.display()))
    };
    fs::create_dir_all(&tree).with_context(|| format!("cannot make {}", tree.display()))?;
    copy("isolinux.bin", Path::new(ISOLINUX))?;
    copy("ldlinux.c32", Path::new(LDLINUX))?;
    copy("bzimage", boot.kernel)?;
    put("initrd", initramfs)?;
    let line = machine.command_line(boot.parameters);
    let menu = format!(
        "default lab\nprompt 0\nlabel lab\n  kernel bzimage\n  append initrd=initrd {line}\n"
    );
    put("isolinux.cfg", menu.as_bytes())?;
    let output = Command::new("genisoimage")
        .args(["-quiet", "-o"])
        .arg(folder.join(CD))
        .args(["-b", "isolinux.bin", "-c", "boot.cat", "-no-emul-boot"])
        .args(["-boot-load-size", "4", "-boot-info-table"])
        .arg(&tree)
        .stdin(Stdio::null())
        .output()
        .context("cannot run genisoimage")?;
    if !output.status.success() {
        bail!(
            "genisoimage failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    fs::remove_dir_all(&tree).with_context(|| format!("cannot remove {}", tree.display()))
}

/// Starts Bochs in `folder`.
pub fn start(
    folder: &Path,
    arguments: &[&str],
    environment: &[(&str, &Path)],
) -> anyhow::Result<Emulator> {
    // What the debugger is told when it asks: continue.
    let commands = folder.join("commands");
    fs::write(&commands, "c\n").with_context(|| format!("cannot write {}", commands.display()))?;
    let terminal = terminal().context("cannot open a pseudo terminal for Bochs")?;
    let copy = || terminal.try_clone().context("cannot duplicate a terminal");
    let mut command = Command::new(PROGRAM);
    command
        .arg("-q")
        .args(arguments)
        .args(["-rc", "commands"])
        .current_dir(folder)
        .env("TERM", "xterm")
        .envs(environment.iter().copied())
        .stdin(Stdio::from(copy()?))
        .stdout(Stdio::from(copy()?))
        .stderr(Stdio::from(copy()?));
    drop(terminal);
    let file = |name: &str| folder.join(name);
    let logs = vec![file(LOG), file(CONSOLE)];
    Emulator::start("Bochs", command, file(ANSWERS), logs)
}

/// A terminal to draw on; what is drawn is read and forgotten, so that it never fills up.
fn terminal() -> io::Result<OwnedFd> {
    let (mut ours, mut theirs) = (-1, -1);
    let size = libc::winsize {
        ws_row: 50,
        ws_col: 132,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: both numbers and the size are ours; no name and no settings are asked for.
    let made = unsafe {
        libc::openpty(
            &mut ours,
            &mut theirs,
            std::ptr::null_mut(),
            std::ptr::null(),
            &size,
        )
    };
    if made != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: openpty has just opened both, and nobody else knows them.
    let (ours, theirs) = unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
    rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC)?;
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::CLOEXEC)?;
    thread::Builder::new()
        .name("terminal".into())
        .spawn(move || drain(ours))?;
    Ok(theirs)
}

/// Reads until the other side is closed, which is an error of reading.
fn drain(mut from: File) {
    let mut buffer = [0; 4096];
    while matches!(from.read(&mut buffer), Ok(read) if read > 0) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_takes_any_amount_of_drawing() {
        let terminal = File::from(terminal().unwrap());
        let mut writer = &terminal;
        for _ in 0..100 {
            io::Write::write_all(&mut writer, &[b'x'; 4096]).unwrap();
        }
    }
}
