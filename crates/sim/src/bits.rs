//! Bit sets of small numbers, with a search that wraps around.

/// The first set bit at or after `from`, wrapping around; `None` if there is none.
pub(crate) fn next_bit(words: &[u64], from: u32, size: u32) -> Option<u32> {
    let from = if from >= size { 0 } else { from };
    let first = (from / 64) as usize;
    let head = words[first] & (!0u64 << (from % 64));
    if head != 0 {
        return Some(first as u32 * 64 + head.trailing_zeros());
    }
    let count = words.len();
    for step in 1..=count {
        let at = (first + step) % count;
        if words[at] != 0 {
            return Some(at as u32 * 64 + words[at].trailing_zeros());
        }
    }
    None
}

/// Sets or clears a bit.
pub(crate) fn set_bit(words: &mut [u64], bit: u32, value: bool) {
    let mask = 1u64 << (bit % 64);
    if value { words[(bit / 64) as usize] |= mask } else { words[(bit / 64) as usize] &= !mask }
}

/// Whether a bit is set.
pub(crate) fn has_bit(words: &[u64], bit: u32) -> bool {
    words[(bit / 64) as usize] & (1u64 << (bit % 64)) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_wraps_around() {
        let mut words = [0u64; 2];
        assert_eq!(next_bit(&words, 5, 100), None);
        set_bit(&mut words, 3, true);
        assert_eq!(next_bit(&words, 5, 100), Some(3));
        set_bit(&mut words, 99, true);
        assert_eq!(next_bit(&words, 5, 100), Some(99));
        assert_eq!(next_bit(&words, 100, 100), Some(3), "wraps around at the end");
        set_bit(&mut words, 99, false);
        assert!(!has_bit(&words, 99) && has_bit(&words, 3));
    }
}
