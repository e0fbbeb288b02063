//! `tandem-sim sweep` through the real binary: merged shards equal the whole byte for byte, commands can be
//! repeated, and shards of different grids are rejected.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{Folder, said};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

const SCENARIO: &str = r#"
duration = "5ms"
[machine]
pcpus = 2
[host]
scheduler = "cfs"
[[workload]]
name = "w"
unit = "operations"
[workload.objects]
m = "mutex"
[[workload.role]]
threads = 2
program = [{ forever = [{ compute = "exp(100us)" }, "work"] }]
[[vm]]
name = "a"
count = 2
vcpus = 2
workload = "w"
"#;

impl Folder {
    /// Runs a grid of 2 × 2 × 2 cells.
    fn sweep(&self, out: &str, more: &[&str]) -> String {
        self.succeeds(&[&GRID[..], &["--out", out], more].concat())
    }

    /// Runs its three shards.
    fn shards(&self) {
        for (out, shard) in [("1.parquet", "1/3"), ("2.parquet", "2/3"), ("3.parquet", "3/3")] {
            self.sweep(out, &["--shard", shard]);
        }
    }
}

const GRID: [&str; 7] =
    ["s.toml", "--vary", "host.scheduler=cfs,credit", "--vary", "vm.0.vcpus=1,2", "--runs", "2"];

#[test]
fn merged_shards_equal_the_whole() {
    let folder = Folder::new(SCENARIO, &["sweep"]);
    let said = folder.sweep("whole.parquet", &[]);
    assert!(said.contains("whole.parquet"), "{said}");
    folder.shards();
    // The order of the arguments does not matter.
    folder.succeeds(&["merge", "m.parquet", "2.parquet", "3.parquet", "1.parquet"]);
    assert_eq!(folder.bytes("m.parquet"), folder.bytes("whole.parquet"));
    let repeated = folder.succeeds(&["merge", "m.parquet", "1.parquet", "2.parquet", "3.parquet"]);
    assert!(repeated.contains("Nothing to do"), "{repeated}");
    let names = folder.names("");
    let temporary = names.iter().find(|name| name.starts_with('.'));
    assert_eq!(temporary, None, "{names:?}");
}

#[test]
fn rows_equal_those_of_compare() {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    let folder = Folder::new(SCENARIO, &["sweep"]);
    folder.sweep("sweep.parquet", &[]);
    let output = Command::new(env!("CARGO_BIN_EXE_tandem-sim"))
        .current_dir(folder.root.path())
        .args(["compare"])
        .args(GRID)
        .args(["--parquet", "compare.parquet"])
        .output()
        .unwrap();
    assert!(output.status.success());
    let rows = |name: &str, first: usize| -> Vec<Vec<String>> {
        let file = std::fs::File::open(folder.path(name)).unwrap();
        let reader = SerializedFileReader::new(file).unwrap();
        let row = |row: parquet::record::Row| {
            let columns = row.get_column_iter().skip(first);
            columns.map(|(name, field)| format!("{name} {field}")).collect()
        };
        let rows = reader.get_row_iter(None).unwrap();
        rows.map(|found| row(found.unwrap())).collect()
    };
    let sweep = rows("sweep.parquet", 1);
    assert!(sweep.len() > 8 * 20, "{} rows", sweep.len());
    assert_eq!(sweep, rows("compare.parquet", 0));
    let cells: Vec<String> =
        rows("sweep.parquet", 0).into_iter().map(|row| row[0].clone()).collect();
    assert_eq!(cells.first().unwrap(), "cell 0");
    assert_eq!(cells.last().unwrap(), "cell 7");
}

#[test]
fn workers_do_not_change_the_output() {
    let folder = Folder::new(SCENARIO, &["sweep"]);
    folder.sweep("one.parquet", &["--workers", "1"]);
    folder.sweep("five.parquet", &["--workers", "5"]);
    assert_eq!(folder.bytes("one.parquet"), folder.bytes("five.parquet"));
}

#[test]
fn repeated_command_does_nothing() {
    let folder = Folder::new(SCENARIO, &["sweep"]);
    folder.sweep("s.parquet", &["--shard", "2/3"]);
    let before = std::fs::metadata(folder.path("s.parquet")).unwrap();
    let said = folder.sweep("s.parquet", &["--shard", "2/3", "--workers", "3"]);
    assert!(said.contains("complete already"), "{said}");
    let after = std::fs::metadata(folder.path("s.parquet")).unwrap();
    assert_eq!(before.modified().unwrap(), after.modified().unwrap());
    // A comment does not change the grid.
    let text = format!("# A comment.\n{SCENARIO}");
    std::fs::write(folder.path("s.toml"), text).unwrap();
    let said = folder.sweep("s.parquet", &["--shard", "2/3"]);
    assert!(said.contains("complete already"), "{said}");
}

#[test]
fn other_grids_files_need_force() {
    let folder = Folder::new(SCENARIO, &["sweep"]);
    folder.sweep("s.parquet", &["--shard", "2/3"]);
    let before = folder.bytes("s.parquet");
    let again = |more: &[&str]| {
        let args = [&GRID[..], &["--out", "s.parquet"], more].concat();
        folder.fails(&args, &["s.parquet", "2/3", "Name another file", "--force"]);
        assert_eq!(folder.bytes("s.parquet"), before);
    };
    again(&["--shard", "1/3"]);
    again(&["--shard", "2/3", "--seed", "7"]);
    again(&["--shard", "2/3", "--set", "vm.0.count=3"]);
    again(&["--shard", "2/3", "--duration", "4ms"]);
    again(&["--shard", "2/3", "--vary", "machine.pcpus=1,2"]);
    folder.sweep("s.parquet", &["--shard", "2/3", "--seed", "7", "--force"]);
    assert_ne!(folder.bytes("s.parquet"), before);
    // A changed scenario is another grid, too.
    folder.sweep("s.parquet", &["--shard", "2/3", "--force"]);
    let text = SCENARIO.replace("100us", "200us");
    std::fs::write(folder.path("s.toml"), text).unwrap();
    again(&["--shard", "2/3"]);
    // Files of other programs are kept, too.
    std::fs::write(folder.path("notes"), "mine").unwrap();
    let args = [&GRID[..], &["--out", "notes"]].concat();
    folder.fails(&args, &["notes", "no complete file", "--force"]);
    assert_eq!(folder.bytes("notes"), b"mine");
}

#[test]
fn incomplete_or_mixed_shards_are_rejected() {
    let folder = Folder::new(SCENARIO, &["sweep"]);
    folder.shards();
    folder.fails(&["merge", "m.parquet", "1.parquet", "3.parquet"], &["2/3", "is missing"]);
    folder.fails(&["merge", "m.parquet", "2.parquet"], &["1/3, 3/3", "are missing"]);
    std::fs::copy(folder.path("2.parquet"), folder.path("copy.parquet")).unwrap();
    folder.fails(
        &["merge", "m.parquet", "1.parquet", "2.parquet", "3.parquet", "copy.parquet"],
        &["2/3 is there twice", "2.parquet", "copy.parquet"],
    );
    folder.sweep("half.parquet", &["--shard", "2/2"]);
    folder.fails(
        &["merge", "m.parquet", "1.parquet", "half.parquet"],
        &["half.parquet", "2/2", "one division"],
    );
    folder.sweep("other.parquet", &["--shard", "2/3", "--seed", "9"]);
    folder.fails(
        &["merge", "m.parquet", "1.parquet", "other.parquet", "3.parquet"],
        &["other.parquet", "1.parquet", "two grids", "seed 9"],
    );
    folder.fails(
        &["merge", "1.parquet", "1.parquet", "2.parquet", "3.parquet"],
        &["1.parquet", "the first name is the file to write"],
    );
    assert!(!folder.path("m.parquet").exists());
}

#[test]
fn invalid_requests_are_rejected_early() {
    let folder = Folder::new(SCENARIO, &["sweep"]);
    let fails = |more: &[&str], needles: &[&str]| {
        let args = [&GRID[..], &["--out", "o.parquet"], more].concat();
        folder.fails(&args, needles);
    };
    for shard in ["0/3", "4/3", "3", "a/b", "1/0", "1/1001"] {
        fails(&["--shard", shard], &["--shard", shard, "I/N"]);
    }
    fails(&["--shard", "1/9"], &["--shard 1/9", "8 cells"]);
    fails(&["--workers", "0"], &["--workers 0", "1 … 1024"]);
    fails(&["--vary", "seed=1,2"], &["--vary seed"]);
    fails(&["--policies", "none"], &["none", "aple"]);
    folder.fails(&["s.toml", "--runs", "0", "--out", "o"], &["--runs 0"]);
    folder.fails(&["s.toml"], &["--out"]);
    folder.fails(&[], &["--out"]);
    folder.fails(&["s.toml", "--out", "t.toml"], &["t.toml", "name another"]);
    folder.fails(&["s.toml", "--out", "no/o"], &["cannot write no/o"]);
    folder.fails(&["gone.toml", "--out", "o"], &["gone.toml"]);
    folder.fails(&["merge", "m.parquet"], &["SHARD.parquet"]);
    folder.fails(&["merge", "m.parquet", "gone.parquet"], &["gone.parquet"]);
    assert_eq!(folder.names(""), ["s.toml"]);
}

#[test]
fn foreign_and_damaged_files_are_rejected() {
    let folder = Folder::new(SCENARIO, &["sweep"]);
    folder.shards();
    let merge = ["merge", "m.parquet", "1.parquet", "bad.parquet", "3.parquet"];
    let write = |bytes: &[u8]| std::fs::write(folder.path("bad.parquet"), bytes).unwrap();
    let right = folder.bytes("2.parquet");
    for bytes in [&b""[..], b"PAR1", b"PAR1\0\0\0\0PAR1", b"text", &right[..right.len() / 2]] {
        write(bytes);
        folder.fails(&merge, &["bad.parquet", "no complete file"]);
    }
    // A file of `compare` is Parquet but has no cells.
    let output = Command::new(env!("CARGO_BIN_EXE_tandem-sim"))
        .current_dir(folder.root.path())
        .args(["compare", "s.toml", "--parquet", "bad.parquet"])
        .output()
        .unwrap();
    assert!(output.status.success());
    folder.fails(&merge, &["bad.parquet", "not of a sweep"]);
    // With any wrong byte, neither a panic nor an incomplete file results.
    let mut random = Pcg64::seed_from_u64(1);
    let mut refused = 0;
    for _ in 0..200 {
        let mut bytes = right.clone();
        let at = random.next_u64() as usize % bytes.len();
        bytes[at] ^= 1 << (random.next_u64() % 8);
        write(&bytes);
        let (success, _) = said(folder.command(&merge).output().unwrap());
        assert_eq!(success, folder.path("m.parquet").exists());
        refused += u32::from(!success);
        if success {
            std::fs::remove_file(folder.path("m.parquet")).unwrap();
        }
    }
    assert!(refused > 20, "only {refused} of 200 were refused");
}

#[test]
fn flipped_bit_is_found_and_force_repairs() {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    let folder = Folder::new(SCENARIO, &["sweep"]);
    folder.shards();
    let right = folder.bytes("2.parquet");
    let file = std::fs::File::open(folder.path("2.parquet")).unwrap();
    let reader = SerializedFileReader::new(file).unwrap();
    let group = reader.metadata().row_group(0).clone();
    let values = group.columns().last().unwrap();
    assert_eq!(values.column_path().string(), "value");
    // The last byte of its dictionary: the exponent of a double, not part of a header.
    let at = values.data_page_offset() as usize - 1;
    let mut bytes = right.clone();
    bytes[at] ^= 1;
    std::fs::write(folder.path("2.parquet"), &bytes).unwrap();
    let merge = ["merge", "m.parquet", "1.parquet", "2.parquet", "3.parquet"];
    folder.fails(&merge, &["2.parquet", "digest", "--force"]);
    assert!(!folder.path("m.parquet").exists());
    let again = [&GRID[..], &["--out", "2.parquet", "--shard", "2/3"]].concat();
    folder.fails(&again, &["2.parquet is damaged", "--force"]);
    assert_eq!(folder.bytes("2.parquet"), bytes);
    folder.sweep("2.parquet", &["--shard", "2/3", "--force"]);
    assert_eq!(folder.bytes("2.parquet"), right);
    folder.succeeds(&merge);
    // Unread parts may be damaged as well: --force rewrites even files that seem complete.
    let before = std::fs::metadata(folder.path("1.parquet")).unwrap();
    folder.sweep("1.parquet", &["--shard", "1/3", "--force"]);
    let after = std::fs::metadata(folder.path("1.parquet")).unwrap();
    assert_ne!(before.modified().unwrap(), after.modified().unwrap());
}

#[test]
fn many_shards_need_few_file_descriptors() {
    let folder = Folder::new(SCENARIO, &["sweep"]);
    let names: Vec<String> = (1..=24).map(|number| format!("{number}.parquet")).collect();
    let grid = ["s.toml", "--duration", "1ms", "--runs", "24", "--out"];
    for (number, name) in (1..).zip(&names) {
        folder.succeeds(&[&grid[..], &[name, "--shard", &format!("{number}/24")]].concat());
    }
    folder.succeeds(&[&grid[..], &["whole.parquet"]].concat());
    let program = env!("CARGO_BIN_EXE_tandem-sim");
    let line = format!("ulimit -n 16 && exec {program} sweep merge m.parquet \"$@\"");
    let output = Command::new("bash")
        .current_dir(folder.root.path())
        .args(["-c", &line, "bash"])
        .args(&names)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(folder.bytes("m.parquet"), folder.bytes("whole.parquet"));
}

#[test]
fn unexpected_grid_is_rejected() {
    let folder = Folder::new(SCENARIO, &["sweep"]);
    let wrong = "0".repeat(32);
    let args = [&GRID[..], &["--out", "o.parquet", "--expect", &wrong]].concat();
    folder.fails(&args, &["--expect", &wrong, "fingerprint"]);
    folder.shards();
    let shards = ["1.parquet", "2.parquet", "3.parquet"];
    let merge = [&["merge", "--expect", &wrong, "m.parquet"][..], &shards].concat();
    folder.fails(&merge, &["--expect", &wrong, "fingerprint"]);
    assert!(!folder.path("o.parquet").exists() && !folder.path("m.parquet").exists());
}

#[test]
fn seeds_have_no_sign() {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;
    let folder = Folder::new(SCENARIO, &["sweep"]);
    // The maximum of a scenario; seeds of runs are one apart.
    let seed = i64::MAX.to_string();
    folder.succeeds(&["s.toml", "--seed", &seed, "--runs", "2", "--out", "s.parquet"]);
    let file = std::fs::File::open(folder.path("s.parquet")).unwrap();
    let reader = SerializedFileReader::new(file).unwrap();
    let row = reader.get_row_iter(None).unwrap().last().unwrap().unwrap();
    let mut columns = row.get_column_iter();
    let (_, field) = columns.find(|(name, _)| *name == "seed").unwrap();
    assert_eq!(*field, Field::ULong(1 << 63));
}

/// Returns whether child processes ignore SIGINT, as background jobs of a shell script do.
fn interrupts_are_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = u64::from_str_radix(ignored.expect("a mask").trim(), 16).unwrap();
    mask & 1 << (rustix::process::Signal::INT.as_raw() - 1) != 0
}

#[test]
fn interrupted_sweep_leaves_no_file() {
    if interrupts_are_ignored() {
        return println!("skipped: SIGINT is ignored here");
    }
    let folder = Folder::new(SCENARIO, &["sweep"]);
    let long = ["s.toml", "--duration", "100s", "--runs", "1000", "--out", "o.parquet"];
    let mut child = folder.command(&long).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(child.try_wait().unwrap(), None, "it should be running");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let began = Instant::now();
    assert!(!child.wait().unwrap().success());
    assert!(began.elapsed() < Duration::from_secs(30));
    assert_eq!(folder.names(""), ["s.toml"]);
}

#[test]
fn shards_need_only_their_numbers() {
    // Two folders with the same scenario represent two machines.
    let (one, other) = (Folder::new(SCENARIO, &["sweep"]), Folder::new(SCENARIO, &["sweep"]));
    one.sweep("s.parquet", &["--shard", "1/2"]);
    other.sweep("s.parquet", &["--shard", "1/2"]);
    assert_eq!(one.bytes("s.parquet"), other.bytes("s.parquet"));
    assert!(Path::new(&one.path("s.parquet")).exists());
}
