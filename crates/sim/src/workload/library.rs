//! Built-in workloads from the repository's folder `workloads/`, which scenarios in any folder find by name.
//!
//! A file of the same name near a scenario takes precedence.

// Names and texts, sorted by name; build.rs generates the list.
include!(concat!(env!("OUT_DIR"), "/workloads.rs"));

/// The text of a workload.
pub fn text(name: &str) -> Option<&'static str> {
    let at = FILES.binary_search_by_key(&name, |(known, _)| known).ok()?;
    FILES.get(at).map(|(_, text)| *text)
}

/// The names of all workloads, in order.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builtin_workloads_match_folder() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../workloads");
        let mut files = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            let there = std::fs::read_to_string(&path).unwrap();
            assert_eq!(text(name), Some(there.as_str()), "{name}");
            files += 1;
        }
        assert_eq!(names().count(), files);
        assert!(names().is_sorted());
        assert_eq!(text("no-such-workload"), None);
    }
}
