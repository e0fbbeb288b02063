//! Compiles the wrappers around the headers of `c/` with the system compiler.
//!
//! The headers must compile with these flags everywhere: freestanding, without the C library, without warnings.
//! The kernel and BPF programs include only the headers, not `ffi.c`.

const FLAGS: [&str; 6] =
    ["-std=gnu11", "-ffreestanding", "-nostdlib", "-Wall", "-Wextra", "-Werror"];

fn main() {
    println!("cargo::rerun-if-changed=c");
    let mut build = cc::Build::new();
    build.file("c/ffi.c").opt_level(2).warnings(false);
    for flag in FLAGS {
        build.flag(flag);
    }
    build.compile("tandem_kpolicy");
}
