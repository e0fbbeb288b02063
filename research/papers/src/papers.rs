//! The scenarios of published experiments, `research/scenarios/papers`, built in.
//!
//! Surveys and reproductions use those of a folder that they are given, or else of a checkout around the current folder, where
//! they may be edited; anywhere else these. Their workloads are built in too (`tandem_sim::workload::library`).

use tandem_sim::scenario::load::{LoadError, Source};

// Names and texts, by name: made by build.rs.
include!(concat!(env!("OUT_DIR"), "/papers.rs"));

/// A scenario by its file's name without `.toml`, as it is built in; `None`: there is none.
pub fn source(name: &str) -> Option<Result<Source, LoadError>> {
    let at = FILES.binary_search_by_key(&name, |(known, _)| known).ok()?;
    let (_, text) = FILES.get(at)?;
    Some(Source::from_text(&format!("{name}.toml"), text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn what_is_built_in_is_what_the_folder_has() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../scenarios/papers");
        for (name, text) in FILES {
            let path = Path::new(folder).join(format!("{name}.toml"));
            assert_eq!(std::fs::read_to_string(&path).unwrap(), *text, "{name}");
            let built_in = source(name).unwrap().unwrap().scenario().unwrap();
            let read = Source::read(&path).unwrap().scenario().unwrap();
            assert_eq!(format!("{built_in:?}"), format!("{read:?}"), "{name}");
        }
        assert_eq!(FILES.len(), std::fs::read_dir(folder).unwrap().count());
        assert!(source("no-such-scenario").is_none());
    }
}
