//! The generated pages in `docs/reference` are current. `TANDEM_UPDATE_GOLDEN=1` rewrites them.

use std::path::Path;
use std::process::Command;

#[test]
fn references_are_current() {
    let programs = Path::new(env!("CARGO_BIN_EXE_tandem-lab")).parent().unwrap();
    for program in ["tandem", "tandem-sim"] {
        if !programs.join(program).exists() {
            println!("skipped: {program} is not built; cargo test --workspace builds it");
            return;
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(root.join("scripts/references"));
    if std::env::var_os("TANDEM_UPDATE_GOLDEN").is_none() {
        command.arg("--check");
    }
    let output = match command.arg(programs).output() {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: scripts/references cannot run ({error})");
            return;
        }
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
