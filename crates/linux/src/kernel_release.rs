//! Which release of Linux runs: what is to be known of a kernel only by its number.

/// The release of the running kernel, as `uname -r` prints it.
pub fn running() -> String {
    let name = rustix::system::uname();
    name.release().to_string_lossy().into_owned()
}

/// The first two numbers of a release; `None` where it has no such.
pub fn numbers(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Whether the running kernel is of this release or a later one; not, if its release has no numbers.
pub fn is_since(first: (u32, u32)) -> bool {
    numbers(&running()).is_some_and(|version| version >= first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_begin_with_two_numbers() {
        assert_eq!(numbers("6.1.0-28-amd64"), Some((6, 1)));
        assert_eq!(numbers("10.0-rc1"), Some((10, 0)));
        assert_eq!(numbers("custom"), None);
        assert!(is_since((0, 0)) && !is_since((u32::MAX, 0)));
    }
}
