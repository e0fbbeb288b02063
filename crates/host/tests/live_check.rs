//! `tandem host check` on this machine's own kernel, as root: every subject has a finding, and nothing is left.
//!
//! The figures depend on the kernel and the machine, which may be busy, so only their structure is tested here.
//! The unit tests of `check::judge` cover their meaning.
//! This is a program of its own because it is also the measuring process.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use tandem_host::check;
use tandem_host::check::report::{Finding, Report, Subject, Verdict};
use tandem_host::check::{CheckError, CheckOptions, measure};
use tandem_linux::interrupt::Interrupt;
use tandem_linux::{ProcFs, cgroup};

use tandem_testing::harness;

use harness::{Skip, Test};

const ROLE: &str = "TANDEM_CHECK_ROLE";

const ALL: &[(&str, Test)] = &[
    ("every_subject_has_a_finding_and_nothing_is_left", check_all),
    ("a_process_that_says_nothing_leaves_nothing", silent),
    ("what_a_killed_check_left_is_removed", left_over),
];

fn main() -> ExitCode {
    match std::env::var(ROLE).as_deref() {
        Ok("measure") => match measure::main() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        },
        Ok("silent") => ExitCode::SUCCESS,
        _ => harness::run(ALL),
    }
}

fn helper(role: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.env(ROLE, role).stderr(Stdio::inherit());
    command
}

fn run(role: &str) -> Result<Report, Skip> {
    let interrupt = Interrupt::watch().expect("signals");
    // Reverted at the end, like everything.
    let state_dir = tempfile::tempdir().expect("a folder");
    let options = CheckOptions { enable_controller: true, state_dir: state_dir.path().to_owned() };
    match check::run(helper(role), &options, &interrupt) {
        Err(error @ (CheckError::NotRoot | CheckError::Cgroup(_))) => Err(Skip(error.to_string())),
        outcome => Ok(outcome.expect("it measures")),
    }
}

/// Returns the folders of the checks' cgroups.
fn made() -> Vec<PathBuf> {
    let controller = cgroup::open(&ProcFs::host()).expect("as before");
    let entries = fs::read_dir(controller.mount()).expect("it is mounted");
    entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| {
            let name = path.file_name().expect("a name").to_string_lossy();
            name.starts_with(&format!("tandem-check-{}", std::process::id()))
        })
        .collect()
}

fn has_all_subjects(report: &Report) {
    let subjects: Vec<Subject> = report.findings.iter().map(|found| found.subject).collect();
    let mut expected = Subject::IN_PROCESS.to_vec();
    expected.extend([Subject::RealTime, Subject::SchedExt]);
    expected.sort();
    assert_eq!(subjects, expected);
}

fn check_all() -> Result<(), Skip> {
    let report = run("measure")?;
    assert_eq!(made(), Vec::<PathBuf>::new());
    has_all_subjects(&report);
    for Finding { subject, verdict, figure, .. } in &report.findings {
        println!("{}: {verdict}: {figure}", subject.words());
        if let Verdict::NotMeasured(why) = verdict {
            println!("  not measured: {why}");
            assert!(!why.is_empty() && figure.is_empty(), "{subject:?}");
        }
    }
    println!("{:.1} s", report.seconds);
    assert!(!report.kernel.release.is_empty());
    let text = serde_json::to_string(&report).expect("it is plain data");
    has_all_subjects(&serde_json::from_str(&text).expect("as written"));
    Ok(())
}

fn silent() -> Result<(), Skip> {
    let report = run("silent")?;
    assert_eq!(made(), Vec::<PathBuf>::new());
    has_all_subjects(&report);
    assert!(!report.could_measure());
    Ok(())
}

fn left_over() -> Result<(), Skip> {
    let mut ended = Command::new("true").spawn().expect("it starts");
    ended.wait().expect("it ends");
    let controller = cgroup::open(&ProcFs::host()).map_err(|error| Skip(error.to_string()))?;
    let left = controller.mount().join(format!("tandem-check-{}", ended.id()));
    fs::create_dir(&left).map_err(|error| Skip(format!("{}: {error}", left.display())))?;
    let outcome = run("silent");
    let is_left = left.exists();
    if is_left {
        fs::remove_dir(&left).expect("it is empty");
    }
    outcome?;
    assert!(!is_left, "{} was left", left.display());
    Ok(())
}
