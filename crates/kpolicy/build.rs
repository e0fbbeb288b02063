//! Compiles the wrappers around the headers of `c/` with the system compiler.
//!
//! The flags are those under which the headers must compile anywhere: freestanding, nothing of the C
//! library, no warning. What the kernel and BPF include is the headers alone, not `ffi.c`.

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
