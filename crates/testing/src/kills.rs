//! Number of kills in the kill tests of several crates.

use std::env;

/// Maximum number of kills of [`kill_often`] without a hit.
const MAX_KILLS: u32 = 100;

/// Returns the number of kills in TANDEM_KILLS, or `usual` if it is unset.
pub fn kills(usual: u32) -> u32 {
    match env::var("TANDEM_KILLS") {
        Ok(text) => text.parse().expect("TANDEM_KILLS is a number, such as 1000"),
        Err(_) => usual,
    }
}

/// Calls `kill` with the number of the kill, [`kills`] times, and then until one kill hits a changed host.
///
/// On an emulated machine, the first few kills may all come before the first change.
/// `kill` returns whether it hit a changed host.
/// Returns the number of kills and that of hits.
///
/// # Panics
///
/// If no kill of the requested number, but at least of 100, hits: such a run would prove nothing.
pub fn kill_often(usual: u32, mut kill: impl FnMut(u32) -> bool) -> (u32, u32) {
    let wanted = kills(usual);
    let (mut count, mut hits) = (0, 0);
    while count < wanted || hits == 0 {
        assert!(hits > 0 || count < MAX_KILLS.max(wanted), "no kill of {count} hit a changed host");
        hits += u32::from(kill(count));
        count += 1;
    }
    (count, hits)
}
