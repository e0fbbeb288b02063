//! Suggestion of a known word for a mistyped one.

/// Returns the candidate with the smallest edit distance (insertions, deletions, substitutions, transpositions).
/// The distance is at most one third of the letters, and at most three.
/// Case, `_`, `-` and blanks do not count.
///
/// ```
/// use tandem_model::suggestion::nearest;
/// assert_eq!(nearest("wieght", ["vcpus", "weight"]), Some("weight"));
/// assert_eq!(nearest("colour", ["vcpus", "weight"]), None);
/// ```
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| -> String {
        let letters = text.chars().filter(|c| !matches!(c, '_' | '-' | ' '));
        letters.flat_map(char::to_lowercase).collect()
    };
    let word = plain(word);
    let length = word.chars().count();
    let most = (length / 3).clamp(1, 3);
    candidates
        .into_iter()
        // The distance costs the product of both lengths, and an untrusted word may be very long.
        .filter(|candidate| plain(candidate).chars().count().abs_diff(length) <= most)
        .map(|candidate| (strsim::osa_distance(&word, &plain(candidate)), candidate))
        .filter(|&(distance, candidate)| distance <= most && distance < candidate.len())
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistyped_words_get_a_suggestion() {
        let keys = ["vcpus", "weight", "workload", "pins", "steal_clock"];
        assert_eq!(nearest("vcpu", keys), Some("vcpus"));
        assert_eq!(nearest("wieght", keys), Some("weight"));
        assert_eq!(nearest("stealclock", keys), Some("steal_clock"));
        assert_eq!(nearest("Pins", keys), Some("pins"));
        assert_eq!(nearest("colour", keys), None);
        assert_eq!(nearest("", keys), None);
        assert_eq!(nearest(&"wieght".repeat(200_000), keys), None);
    }
}
