//! What a child wrote to its error output, quoted where it failed: its own words say best why.

use std::path::Path;

/// Most of a log that is quoted.
const QUOTED: usize = 2000;

/// The end of a log, on one line; none where there is nothing in it.
pub fn quote(log: &Path) -> Option<String> {
    let text = std::fs::read(log).ok()?;
    let text = String::from_utf8_lossy(&text);
    // Every message of the program begins with its name.
    let text = text.replace("tandem: ", "");
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let said = lines.join("; ");
    let start = said.char_indices().rev().nth(QUOTED).map_or(0, |(at, _)| at);
    (!said.is_empty()).then(|| said[start..].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_quoted_on_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("vm.log");
        assert_eq!(quote(&log), None);
        std::fs::write(&log, "error: no /dev/kvm\n\n  try --backend threads\n").unwrap();
        assert_eq!(quote(&log).unwrap(), "error: no /dev/kvm; try --backend threads");
        std::fs::write(&log, "é".repeat(5000)).unwrap();
        assert_eq!(quote(&log).unwrap().chars().count(), QUOTED + 1);
    }
}
