//! Builds the guest's C code twice with the system compiler.
//!
//! The first is the flat image that KVM runs (linked with `guest/image.ld`, extracted by objcopy), the second the host library of the threads backend.
//! Both are freestanding and use only general registers: the guest has no floating-point state, and hypervisors that interpret CPL 0 do not know all vector instructions.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const WORKLOADS: [&str; 7] =
    ["workload.c", "computing.c", "timed.c", "locking.c", "phased.c", "pipeline.c", "shootdown.c"];

const FLAGS: [&str; 10] = [
    "-std=gnu11",
    "-ffreestanding",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fcf-protection=none",
    "-mno-red-zone",
    "-mgeneral-regs-only",
    "-Wall",
    "-Wextra",
    "-Werror",
];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo::rerun-if-changed=guest");
    build_host_library();
    build_guest_image(&out);
}

fn compiler_settings() -> cc::Build {
    let mut build = cc::Build::new();
    build.opt_level(2).warnings(false);
    for flag in FLAGS {
        build.flag(flag);
    }
    build
}

fn build_host_library() {
    let mut build = compiler_settings();
    for source in WORKLOADS.iter().chain(&["platform_threads.c", "layout.c"]) {
        build.file(Path::new("guest").join(source));
    }
    build.compile("tandem_workloads");
}

fn build_guest_image(out: &Path) {
    let objects = {
        let mut build = compiler_settings();
        build.pic(false).flag("-fno-pie").flag("-mcmodel=small");
        for source in ["stubs.S", "platform_kvm.c"].iter().chain(&WORKLOADS) {
            build.file(Path::new("guest").join(source));
        }
        // A separate folder, or these objects would overwrite those of the host library.
        let folder = out.join("guest");
        std::fs::create_dir_all(&folder).expect("a folder under OUT_DIR can be made");
        build.out_dir(folder).compile_intermediates()
    };
    let elf = out.join("guest.elf");
    let compiler = compiler_settings().get_compiler();
    run(Command::new(compiler.path())
        .args(["-nostdlib", "-static", "-no-pie"])
        .args(["-Wl,--build-id=none", "-Wl,-T,guest/image.ld"])
        .arg("-o")
        .arg(&elf)
        .args(&objects));
    let objcopy = env::var_os("OBJCOPY").unwrap_or_else(|| "objcopy".into());
    run(Command::new(objcopy).args(["-O", "binary"]).arg(&elf).arg(out.join("guest.bin")));
}

fn run(command: &mut Command) {
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{command:?} failed: {status}"),
        Err(error) => panic!("cannot run {command:?}: {error}; install gcc and binutils"),
    }
}
