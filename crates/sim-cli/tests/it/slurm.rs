//! `tandem-sim sweep --slurm`: bash runs the written script with a stand-in for `sbatch` that runs each task immediately.
//! scripts/test-slurm tests it with a real Slurm.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::common::{Folder, said};

const SCENARIO: &str = r#"
duration = "4ms"
[machine]
pcpus = 2
[[vm]]
name = "a"
vcpus = 2
workload = "mutex"
"#;

/// Runs each task of an array, then the wrapped command if no task failed. `FAILING` is a task with a missing program.
const SBATCH: &str = r#"#!/bin/bash
printf '%s\n' "$*" >> "$HERE/calls"
while (($#)); do
    case $1 in
        --array=*) array=${1#*=} ;;
        --wrap) wrap=$2; shift ;;
        -*) ;;
        *) script=$1; shift; break ;;
    esac
    shift
done
export SLURM_JOB_ID=7
if [[ -n ${wrap:-} ]]; then
    [[ -e $HERE/failed ]] || (cd / && bash -c "$wrap")
    echo 8
    exit
fi
rm -f "$HERE/failed"
for range in ${array//,/ }; do
    for number in $(seq "${range%-*}" "${range#*-}"); do
        [[ $number != "${FAILING:-}" ]] || export TANDEM=/nowhere/tandem
        (cd / && SLURM_ARRAY_TASK_ID=$number bash "$script" "$@") || touch "$HERE/failed"
        unset TANDEM
    done
done
echo '7;cluster'
"#;

/// Returns a folder with the stand-in and a scenario, whose name needs quotes in a script.
fn folder() -> Folder {
    let folder = Folder::new(SCENARIO, &[]);
    std::fs::create_dir(folder.path("bin")).unwrap();
    std::fs::rename(folder.path("s.toml"), folder.path("my host.toml")).unwrap();
    let sbatch = folder.path("bin/sbatch");
    std::fs::write(&sbatch, SBATCH).unwrap();
    std::fs::set_permissions(&sbatch, PermissionsExt::from_mode(0o755)).unwrap();
    folder
}

impl Folder {
    /// Runs a program; returns whether it succeeds, and its output.
    fn run(&self, program: &str, args: &[&str], failing: &str) -> (bool, String) {
        let path = std::env::var("PATH").unwrap();
        let output = Command::new(program)
            .current_dir(self.root.path())
            .args(args)
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env("HERE", self.root.path())
            .env("FAILING", failing)
            .env_remove("TANDEM")
            .output()
            .unwrap();
        said(output)
    }

    fn varied(&self, more: &[&str]) -> (bool, String) {
        let grid = ["sweep", "my host.toml", "--runs", "2", "--seed", "5"];
        let vary = ["--vary", "vm.*.vcpus=1..3", "--policies", "stock,aple"];
        let args = [&grid[..], &vary, more].concat();
        self.run(env!("CARGO_BIN_EXE_tandem-sim"), &args, "")
    }

    fn bash(&self, args: &[&str]) -> String {
        let (success, said) = self.run("bash", args, "");
        assert!(success, "{args:?}: {said}");
        said
    }

    fn files(&self) -> Vec<String> {
        self.names("all.parquet.shards")
    }
}

#[test]
fn script_resumes_after_a_failure() {
    let folder = folder();
    assert!(folder.varied(&["--out", "whole.parquet"]).0);
    let slurm = ["--out", "all.parquet", "--slurm", "sweep.sh", "--shards", "5"];
    let (success, said) = folder.varied(&slurm);
    assert!(success, "{said}");
    assert!(said.contains("5 of 5 shards: bash sweep.sh"), "{said}");
    assert!(!folder.path("all.parquet").exists() && folder.files().is_empty());

    let (success, said) = folder.run("bash", &["sweep.sh", "--partition=short"], "3");
    assert!(success, "{said}");
    assert_eq!(folder.files().len(), 5, "four shards and a log");
    assert!(!folder.path("all.parquet").exists());
    let calls = folder.text("calls");
    assert!(
        calls.contains("--partition=short --array=1-5 ")
            && calls.contains("--dependency=afterok:7 "),
        "{calls}"
    );
    let said = folder.bash(&["sweep.sh", "status"]);
    assert!(said.contains("4 of 5 shards are there"), "{said}");
    assert!(said.contains("3.log") && said.contains("/nowhere/tandem"));

    // A new script detects existing shards, and keeps the division.
    let (success, said) = folder.varied(&slurm[..4]);
    assert!(success && said.contains("runs 1 of 5 shards"), "{said}");
    let said = folder.bash(&["sweep.sh"]);
    assert!(said.contains("1 of 5 shards are job 7"), "{said}");
    assert!(folder.text("calls").contains("--array=3 "));
    assert_eq!(folder.bytes("all.parquet"), folder.bytes("whole.parquet"));
    let names = folder.files();
    assert_eq!(names.first().unwrap(), "0001-of-0005.parquet");
    assert_eq!(names.len(), 5, "logs remain: {names:?}");

    // If all shards exist, they are merged immediately.
    std::fs::remove_file(folder.path("all.parquet")).unwrap();
    folder.bash(&["sweep.sh"]);
    assert_eq!(folder.bytes("all.parquet"), folder.bytes("whole.parquet"));
    let said = folder.bash(&["sweep.sh", "status"]);
    assert!(said.contains("5 of 5 shards are there"), "{said}");
}

#[test]
fn edited_scenario_invalidates_the_script() {
    let folder = folder();
    let slurm = ["--out", "all.parquet", "--slurm", "sweep.sh"];
    assert!(folder.varied(&[&slurm[..], &["--shards", "3"]].concat()).0);
    let edited = SCENARIO.replace("4ms", "5ms");
    std::fs::write(folder.path("my host.toml"), &edited).unwrap();
    assert!(folder.run("bash", &["sweep.sh"], "").0);
    assert!(!folder.path("all.parquet").exists());
    let said = folder.bash(&["sweep.sh", "status"]);
    assert!(said.contains("0 of 3 shards are there"), "{said}");
    assert!(said.contains("write the script anew"), "{said}");
    // Shards of the edited scenario that were written without the script are rejected too.
    for number in 1..=3 {
        let shard = format!("{number}/3");
        let out = format!("all.parquet.shards/000{number}-of-0003.parquet");
        assert!(folder.varied(&["--out", &out, "--shard", &shard]).0);
    }
    let (success, said) = folder.run("bash", &["sweep.sh"], "");
    assert!(!success && said.contains("--expect"), "{said}");
    assert!(!folder.path("all.parquet").exists());
    // A new script matches the edited scenario.
    assert!(folder.varied(&slurm).0);
    folder.bash(&["sweep.sh"]);
    assert!(folder.path("all.parquet").exists());
}

#[test]
fn merged_grids_are_not_resubmitted() {
    let folder = folder();
    let slurm = ["--out", "all.parquet", "--slurm", "sweep.sh"];
    assert!(folder.varied(&[&slurm[..], &["--shards", "3"]].concat()).0);
    folder.bash(&["sweep.sh"]);
    let (calls, bytes) = (folder.text("calls"), folder.bytes("all.parquet"));
    std::fs::remove_dir_all(folder.path("all.parquet.shards")).unwrap();
    let said = folder.bash(&["sweep.sh"]);
    assert!(said.contains("Nothing to do"), "{said}");
    assert_eq!(folder.text("calls"), calls);
    assert_eq!(folder.bytes("all.parquet"), bytes);
    let broken: Vec<u8> = bytes.iter().map(|byte| byte ^ 1).collect();
    std::fs::write(folder.path("all.parquet"), broken).unwrap();
    assert!(!folder.run("bash", &["sweep.sh"], "").0);
    assert_eq!(folder.text("calls"), calls);
}

#[test]
fn script_works_inside_other_jobs() {
    let folder = folder();
    let slurm = ["--out", "all.parquet", "--slurm", "sweep.sh"];
    assert!(folder.varied(&[&slurm[..], &["--shards", "3"]].concat()).0);
    let inside = |variable: &str, args: &str| {
        let script = format!("{variable}=5 exec bash sweep.sh {args}");
        folder.run("bash", &["-c", &script], "")
    };
    let (success, said) = inside("SLURM_JOB_ID", "merge");
    assert!(!success && said.contains("0001-of-0003.parquet"), "{said}");
    let (success, said) = inside("SLURM_JOB_ID", "");
    assert!(success && said.contains("3 of 3 shards are job"), "{said}");
    let (success, said) = inside("SLURM_ARRAY_TASK_ID", "status");
    assert!(success && said.contains("3 of 3 shards are there"), "{said}");
    // A task of an unrelated array must not submit the whole array.
    let calls = folder.text("calls");
    let (success, said) = inside("SLURM_ARRAY_TASK_ID", "");
    assert!(!success && said.contains("sbatch"), "{said}");
    assert!(!inside("SLURM_JOB_ID", "shard").0);
    assert_eq!(folder.text("calls"), calls);
}

#[test]
fn invalid_requests_are_rejected() {
    let folder = folder();
    let fails = |more: &[&str], needles: &[&str]| {
        let (success, said) = folder.varied(more);
        assert!(!success, "{more:?} was accepted: {said}");
        for needle in needles {
            assert!(said.contains(needle), "{more:?}: no '{needle}' in {said}");
        }
    };
    let out = ["--out", "all.parquet", "--slurm"];
    std::fs::write(folder.path("notes"), "mine").unwrap();
    fails(&[&out[..], &["notes"]].concat(), &["notes", "no such script"]);
    assert_eq!(folder.text("notes"), "mine");
    let number = |shards| [&out[..], &["s.sh", "--shards", shards]].concat();
    fails(&number("0"), &["0 shards", "1 … 1000"]);
    fails(&number("13"), &["13 shards", "cells"]);
    fails(&[&out[..], &["s.sh", "--shard", "1/2"]].concat(), &["--shard"]);
    fails(&["--out", "x.parquet", "--shards", "2"], &["--slurm"]);
    // Shards of another sweep are not mixed in.
    let shard = "all.parquet.shards/0001-of-0002.parquet";
    std::fs::create_dir(folder.path("all.parquet.shards")).unwrap();
    assert!(folder.varied(&["--out", shard, "--shard", "1/2", "--set", "vm.a.count=2"]).0);
    fails(&[&out[..], &["s.sh"]].concat(), &[shard, "another sweep"]);
    assert!(!folder.path("s.sh").exists());
}
