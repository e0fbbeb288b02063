//! Compiles the headers in each of their environments, and fuzzes them.
//!
//! The kernel, BPF and a hosted C program each include `c/*.h` unchanged.
//! Two small headers and its warning flags stand in for the kernel; BPF is compiled if clang supports it.
//! The fuzzer (`fuzz/fuzz.c`) runs for a second here, and for an hour with `fuzz/run 3600`.
//!
//! A test whose compiler is missing is skipped with a message.
//!
//! Non-goals: acceptance by the BPF verifier and the kernel's build, which the tests of the including programs cover.
//! (The verifier accepts all but HVS's array form: see `c/hvs.h`.)

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Calls of every public function, with external pointers to prevent their optimization.
const CALLERS: &str = r#"
#include "aple.h"
#include "hvs.h"

u32 exit_of(struct tandem_aple *a, const struct tandem_aple_config *cfg, u64 handling, u64 vm);
int choice_of(struct tandem_hvs_vcpu *v, u32 spinner, u32 order);
void events_of(struct tandem_hvs_vcpu *v, u32 cause, u64 now);
bool begin_of(struct tandem_aple *a, const struct tandem_aple_config *cfg);

u32 exit_of(struct tandem_aple *a, const struct tandem_aple_config *cfg, u64 handling, u64 vm)
{
	if (tandem_aple_exit(a, cfg, handling))
		return tandem_aple_epoch(a, cfg, vm);
	return tandem_aple_threshold(a);
}

int choice_of(struct tandem_hvs_vcpu *v, u32 spinner, u32 order)
{
	if (tandem_hvs_better(order, &v[0], &v[1]))
		return 0;
	return tandem_hvs_candidate(v, TANDEM_HVS_MOST_VCPUS, spinner, order);
}

void events_of(struct tandem_hvs_vcpu *v, u32 cause, u64 now)
{
	tandem_hvs_init(&v[0]);
	tandem_hvs_preempted(&v[0], cause, now);
	tandem_hvs_running(&v[1]);
	tandem_hvs_blocked(&v[2]);
}

bool begin_of(struct tandem_aple *a, const struct tandem_aple_config *cfg)
{
	tandem_aple_init(a, cfg, 0);
	return tandem_aple_config_ok(cfg);
}
"#;

/// Stand-in for the kernel's types.
const KERNEL_TYPES: &str = "
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;
typedef _Bool bool;
#define true 1
#define false 0
";

const KERNEL_MATH: &str = "
static inline u64 div64_u64(u64 dividend, u64 divisor) { return dividend / divisor; }
";

fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Creates a folder for one test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("the target's tmp folder is writable");
    folder
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().expect("a file has a folder")).expect("as above");
    std::fs::write(&path, text).expect("as above");
    path
}

/// Runs a compiler; `None` if it does not exist.
fn compile(compiler: &str, flags: &[&str], source: &Path, to: &Path) -> Option<Output> {
    Command::new(compiler)
        .args(flags)
        .arg("-I")
        .arg(crate_folder().join("c"))
        .arg("-o")
        .arg(to)
        .arg(source)
        .output()
        .ok()
}

fn compilers() -> Vec<String> {
    let mut all: Vec<String> = std::env::var("CC").into_iter().collect();
    all.extend(["clang", "gcc", "cc"].map(String::from));
    all
}

/// Compiles with every available compiler and requires that none prints a warning.
fn must_compile(name: &str, flags: &[&str], folder: &Path, source: &Path) {
    let mut compiled = 0;
    for compiler in compilers() {
        let object = folder.join(format!("{}.o", compiled));
        let Some(output) = compile(&compiler, flags, source, &object) else {
            continue;
        };
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{compiler}, {name}:\n{said}");
        assert!(said.is_empty(), "{compiler}, {name}:\n{said}");
        compiled += 1;
    }
    assert!(compiled > 0, "the crate was built by a compiler, which is gone");
}

#[test]
fn headers_compile_alone_without_warnings() {
    let folder = folder("alone");
    for header in ["tandem_types.h", "aple.h", "hvs.h"] {
        // Include it twice to test the guard; declare a function, as an empty file is a warning.
        let text = format!("#include \"{header}\"\n#include \"{header}\"\nint one(void);\n");
        let source = write(&folder, &format!("{header}.c"), &text);
        let flags = [
            "-std=gnu11",
            "-ffreestanding",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Wconversion",
            "-Wundef",
            "-Werror",
            "-O2",
            "-c",
        ];
        must_compile(header, &flags, &folder, &source);
    }
}

#[test]
fn headers_need_no_library() {
    let folder = folder("nothing");
    let source = write(&folder, "callers.c", CALLERS);
    for level in ["-O0", "-O2", "-O3"] {
        let flags = [
            "-std=gnu11",
            "-ffreestanding",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Wconversion",
            "-Werror",
            "-fno-stack-protector",
            "-fPIC",
            "-shared",
            "-nostdlib",
            "-Wl,--no-undefined",
            level,
        ];
        must_compile(level, &flags, &folder, &source);
    }
}

#[test]
fn headers_compile_with_kernel_flags() {
    let folder = folder("kernel");
    write(&folder, "linux/types.h", KERNEL_TYPES);
    write(&folder, "linux/math64.h", KERNEL_MATH);
    let source = write(&folder, "callers.c", CALLERS);
    let include = format!("-I{}", folder.display());
    let flags = [
        "-std=gnu11",
        "-D__KERNEL__",
        "-nostdinc",
        "-ffreestanding",
        "-Wall",
        "-Wextra",
        "-Wundef",
        "-Wdeclaration-after-statement",
        "-Wvla",
        "-Wstrict-prototypes",
        "-Wmissing-prototypes",
        "-Wframe-larger-than=256",
        "-Werror",
        "-O2",
        "-c",
        &include,
    ];
    must_compile("kernel", &flags, &folder, &source);
}

#[test]
fn headers_compile_for_bpf() {
    let folder = folder("bpf");
    let vmlinux = write(&folder, "vmlinux.h", KERNEL_TYPES);
    let source = write(&folder, "callers.c", CALLERS);
    let empty = write(&folder, "empty.c", "int one = 1;\n");
    let object = folder.join("callers.o");
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let bpf = ["-target", "bpf", "-O2", "-g", "-c"];
    match compile(&clang, &bpf, &empty, &object) {
        None => return println!("skipped: {clang} is not there to compile for BPF"),
        Some(output) if !output.status.success() => {
            return println!("skipped: {clang} has no BPF target");
        }
        Some(_) => {}
    }
    let include = format!("-include{}", vmlinux.display());
    let warnings = ["-Wall", "-Wextra", "-Werror", "-nostdinc", &include];
    for version in ["-mcpu=v2", "-mcpu=v3"] {
        let flags = [&bpf[..], &warnings[..], &[version]].concat();
        let output = compile(&clang, &flags, &source, &object).expect("clang was there");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{version}:\n{said}");
    }
}

#[test]
fn fuzzer_finds_nothing_in_a_second() {
    let folder = folder("fuzz");
    let source = crate_folder().join("fuzz/fuzz.c");
    let program = folder.join("fuzz");
    let trivial = write(&folder, "main.c", "int main(void) { return 0; }\n");
    let flags = [
        "-std=gnu11",
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ];
    let has_sanitizers = |compiler: &String| {
        compile(compiler, &flags, &trivial, &program).is_some_and(|output| output.status.success())
            && Command::new(&program).status().is_ok_and(|status| status.success())
    };
    let Some(compiler) = compilers().into_iter().find(has_sanitizers) else {
        return println!("skipped: no compiler here has the address and undefined sanitizers");
    };
    let output = compile(&compiler, &flags, &source, &program).expect("it was there");
    assert!(output.status.success(), "{compiler}:\n{}", String::from_utf8_lossy(&output.stderr));
    let output =
        Command::new(&program).args(["1", "1"]).output().expect("what was compiled can run");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}\n{found}");
    assert!(printed.contains("nothing found"), "{printed}");
}

#[test]
fn fuzzer_reports_usage() {
    let output =
        Command::new(crate_folder().join("fuzz/run")).arg("soon").output().expect("bash is there");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("'soon': give SECONDS [SEED]"), "{said}");
}
