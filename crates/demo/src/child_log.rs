//! Quotes the stderr of a failed child, which gives the reason best.

use std::path::Path;

/// Maximum number of quoted characters of a log.
const QUOTED: usize = 2000;

/// Returns the end of a log on one line; `None` if it is empty or unreadable.
pub fn quote(log: &Path) -> Option<String> {
    let text = std::fs::read(log).ok()?;
    let text = String::from_utf8_lossy(&text);
    // Every message of the program begins with its name.
    let text = text.replace("tandem: ", "");
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let quoted = lines.join("; ");
    let start = quoted.char_indices().rev().nth(QUOTED).map_or(0, |(at, _)| at);
    (!quoted.is_empty()).then(|| quoted[start..].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_is_quoted_on_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("vm.log");
        assert_eq!(quote(&log), None);
        std::fs::write(&log, "error: no /dev/kvm\n\n  try --backend threads\n").unwrap();
        assert_eq!(quote(&log).unwrap(), "error: no /dev/kvm; try --backend threads");
        std::fs::write(&log, "é".repeat(5000)).unwrap();
        assert_eq!(quote(&log).unwrap().chars().count(), QUOTED + 1);
    }
}
