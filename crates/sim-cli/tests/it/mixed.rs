//! `tandem-sim mixed` through the real binary: tables, files, and errors of its options.

use std::path::Path;
use std::process::{Command, Output};

use parquet::file::reader::{FileReader, SerializedFileReader};

fn mixed(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tandem-sim")).arg("mixed").args(args).output().unwrap()
}

fn printed(args: &[&str]) -> String {
    let small = ["--pcpus", "4", "--warmup", "50ms", "--duration", "150ms"];
    let output = mixed(&[&small, args].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn tables_and_files_have_every_policy() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (table, picture, scenarios) = (file("t.parquet"), file("p.svg"), file("hosts"));
    let text = printed(&[
        "--seeds",
        "2,5",
        "--policies",
        "stock,fair",
        "--table",
        &table,
        "--picture",
        &picture,
        "--scenarios",
        &scenarios,
    ]);
    assert!(text.starts_with("4 pCPUs, overcommit 2: "), "{text}");
    for word in ["| stock ", "| fair ", "Worst VMs", "service"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let drawn = std::fs::read_to_string(&picture).unwrap();
    assert!(drawn.contains("deserved work") && drawn.contains("fair"), "{drawn}");
    let reader = SerializedFileReader::new(std::fs::File::open(&table).unwrap()).unwrap();
    assert!(reader.metadata().file_metadata().num_rows() > 50);
    // A host can be run alone.
    let host = Path::new(&scenarios).join("mixed-4-2x-5.toml");
    let run = Command::new(env!("CARGO_BIN_EXE_tandem-sim"))
        .arg("run")
        .arg(&host)
        .args(["--duration", "60ms"])
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

#[test]
fn own_mix_replaces_the_default() {
    let dir = tempfile::tempdir().unwrap();
    let mix = dir.path().join("mix.toml");
    let text = "size = [{ vcpus = 2, probability = 1 }]\n\
                [[class]]\nname = \"batch\"\nprobability = 1\nprograms = [\"burn\"]\n";
    std::fs::write(&mix, text).unwrap();
    let path = mix.to_str().unwrap();
    let text = printed(&["--mix", path, "--seeds", "1", "--policies", "stock"]);
    assert!(text.contains("4 VMs on 1 host,") && text.contains("batch"), "{text}");
    let template = printed(&["--print-mix"]);
    assert!(template.contains("[[class]]"), "{template}");
}

#[test]
fn invalid_options_name_the_valid_form() {
    for (args, status, said) in [
        (&["--seeds", "one"][..], 2, "1..8"),
        (&["--seeds", "1,1"], 2, "twice"),
        (&["--warmup", "6s"], 2, "shorter than --duration"),
        (&["--overcommit", "0"], 2, "above 0"),
        (&["--topology", "epyc-7736"], 2, "did you mean epyc-7763?"),
        (&["--topology", "2:1:8:8"], 2, "five numbers"),
        (&["--topology", "1:1:1:2:4"], 2, "1 or 2 threads"),
        (&["--topology", "1:1:1:2:2", "--pcpus", "4"], 2, "--pcpus"),
        (&["--pcpus", "1", "--overcommit", "0.1"], 2, "vCPUs"),
        (&["--policies", "fairr"], 2, "fair"),
        (&["--set", "host.shceduler=cfs"], 2, "scheduler"),
        (&["--mix", "/does/not/exist.toml"], 1, "/does/not/exist.toml"),
    ] {
        let output = mixed(args);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {text}");
        assert!(text.contains(said), "{args:?}: {text}");
    }
}
