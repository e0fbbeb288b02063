//! The release of the running kernel, for properties that only follow from its number.

/// The release of the running kernel, as `uname -r` prints it.
pub fn running() -> String {
    let name = rustix::system::uname();
    name.release().to_string_lossy().into_owned()
}

/// The first two numbers of a release; `None` if it does not begin with two.
pub fn numbers(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Whether the running kernel has this release or a later one; false if its release has no numbers.
pub fn is_since(first: (u32, u32)) -> bool {
    numbers(&running()).is_some_and(|version| version >= first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_numbers_are_parsed() {
        assert_eq!(numbers("6.1.0-28-amd64"), Some((6, 1)));
        assert_eq!(numbers("10.0-rc1"), Some((10, 0)));
        assert_eq!(numbers("custom"), None);
        assert!(is_since((0, 0)) && !is_since((u32::MAX, 0)));
    }
}
