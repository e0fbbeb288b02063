//! Compiles the BPF programs with clang and sets the configuration `bpf`.
//!
//! Without clang or the feature `bpf`, the crate builds without them, and `Bpf::open` returns an error that names the cause.
//! [`TANDEM_WITHOUT_BPF`] omits them on purpose.
//! If clang rejects the programs, the build fails, because they are wrong.
//!
//! The variable `CLANG` selects another clang.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// If set to any value, the programs are omitted.
const TANDEM_WITHOUT_BPF: &str = "TANDEM_WITHOUT_BPF";

const FLAGS: [&str; 9] = [
    "-g",
    "-O2",
    "-target",
    "bpf",
    "-mcpu=v3",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unused-parameter",
];

fn main() {
    println!("cargo::rustc-check-cfg=cfg(with_bpf)");
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    println!("cargo::rerun-if-env-changed={TANDEM_WITHOUT_BPF}");
    match compile() {
        Ok(()) => println!("cargo::rustc-cfg=with_bpf"),
        Err(missing) => println!("cargo::rustc-env=TANDEM_BPF_MISSING={missing}"),
    }
}

/// Compiles the programs, or returns the reason for omitting them.
fn compile() -> Result<(), String> {
    if env::var_os("CARGO_FEATURE_BPF").is_none() {
        return Err("the feature bpf was off at build time".to_owned());
    }
    if env::var_os(TANDEM_WITHOUT_BPF).is_some() {
        return Err(format!("{TANDEM_WITHOUT_BPF} was set at build time"));
    }
    let clang = env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    if Command::new(&clang).arg("--version").output().is_err() {
        // A path that does not exist makes cargo run this script with each build, so that a later clang is found.
        println!("cargo::rerun-if-changed=no-clang");
        return Err("clang was missing at build time".to_owned());
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // libbpf-sys exports the header folder of the libbpf that the crate links.
    let headers = env::var_os("DEP_BPF_INCLUDE").expect("libbpf-sys exports its header folder");
    // `tandem` runs all day; `trace` emits every event for some seconds.
    for name in ["tandem", "trace"] {
        let mut command = Command::new(&clang);
        command
            .args(FLAGS)
            .arg("-I")
            .arg(&headers)
            .arg("-c")
            .arg(format!("bpf/{name}.bpf.c"))
            .arg("-o")
            .arg(out.join(format!("{name}.bpf.o")));
        match command.status() {
            Ok(status) if status.success() => {}
            Ok(status) => panic!("{command:?} failed: {status}; clang 12 or newer is needed"),
            Err(error) => panic!("cannot run {command:?}: {error}"),
        }
    }
    Ok(())
}
