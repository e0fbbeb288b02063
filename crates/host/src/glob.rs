//! Globs as in a shell (`*`, `?`, `[…]`), for the names of VMs and the paths of cgroups.
//!
//! In a cgroup's path, `*` stays within one level and `**` does not; a name has no levels.

use globset::{GlobBuilder, GlobMatcher};
use tandem_linux::cgroup::CgroupPath;

/// Maximum length of a glob, in bytes. Braces nest, and each level is a recursion of the compiler.
const MAX_LENGTH: usize = 1_000;

/// Compiles a glob for names of VMs. The error states the reason and a valid form.
pub fn for_names(glob: &str) -> Result<GlobMatcher, String> {
    if glob.is_empty() {
        return Err("a name, or a glob such as web-*".to_owned());
    }
    compile(glob, false).map_err(|error| format!("a glob such as web-* ({error})"))
}

/// Compiles a glob for cgroups, an absolute path. The error states a valid form.
pub fn for_cgroups(glob: &str) -> Result<GlobMatcher, String> {
    if !glob.starts_with('/') {
        return Err(
            "a path within the cgroup hierarchy, which begins with '/', such as /machine.slice"
                .to_owned(),
        );
    }
    if glob.split('/').any(|part| part == "." || part == "..") {
        return Err("a path without '.' and '..', such as /machine.slice".to_owned());
    }
    compile(glob, true).map_err(|error| format!("a glob such as /machine.slice/* ({error})"))
}

/// Whether a cgroup matches, or lies below one that does.
pub(crate) fn is_within(globs: &[GlobMatcher], cgroup: &CgroupPath) -> bool {
    std::iter::successors(Some(cgroup.clone()), CgroupPath::parent)
        .any(|place| globs.iter().any(|glob| glob.is_match(&place.0)))
}

/// Whether a VM's name matches a glob; an invalid glob matches only the equal name.
pub fn name_matches(glob: &str, name: &str) -> bool {
    match compile(glob, false) {
        Ok(matcher) => matcher.is_match(name),
        Err(_) => glob == name,
    }
}

/// Compiles a glob; with `levels`, `*` stays within one. The error states the reason.
pub(crate) fn compile(glob: &str, levels: bool) -> Result<GlobMatcher, String> {
    if glob.len() > MAX_LENGTH {
        return Err(format!("{} bytes are too many: at most {MAX_LENGTH}", glob.len()));
    }
    let glob = GlobBuilder::new(glob.trim_end_matches(|c| levels && c == '/' && glob.len() > 1))
        .literal_separator(levels)
        .build()
        .map_err(|error| error.kind().to_string())?;
    Ok(glob.compile_matcher())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_globs_are_refused_with_valid_forms() {
        assert!(for_names("web-*").is_ok() && for_cgroups("/vms/*/gold/").is_ok());
        let error = for_names("[").unwrap_err();
        assert!(error.starts_with("a glob such as web-*"), "{error}");
        assert!(for_cgroups("vms").unwrap_err().contains("begins with '/'"));
        assert!(for_cgroups("/vms/[").unwrap_err().contains("a glob"));
        assert!(for_cgroups("/../x").unwrap_err().contains("without"));
        assert!(for_cgroups("/vms/..x").is_ok());
        assert!(for_names("").unwrap_err().contains("a name"));
        let error = for_names(&"{".repeat(100_000)).unwrap_err();
        assert!(error.contains("at most 1000"), "{error}");
        assert!(!name_matches(&"{".repeat(100_000), "web"));
    }
}
