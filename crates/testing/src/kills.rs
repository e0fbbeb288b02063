//! How often tests kill, which those of several crates ask.

use std::env;

/// The most kills that [`kill_often`] tries before it gives up on hitting a change.
const MOST: u32 = 100;

/// So often as TANDEM_KILLS says, or `usual`ly.
pub fn kills(usual: u32) -> u32 {
    match env::var("TANDEM_KILLS") {
        Ok(text) => text.parse().expect("TANDEM_KILLS is a number, such as 1000"),
        Err(_) => usual,
    }
}

/// Calls `kill` with the number of the kill, [`kills`] times, and then until one kill hit a changed host: where everything is emulated, the first
/// few may all come before the first change.
/// `kill` says whether it hit one.
/// Returns the number of kills and that of hits.
///
/// # Panics
///
/// If none of 100 kills hit: such a run would show nothing.
pub fn kill_often(usual: u32, mut kill: impl FnMut(u32) -> bool) -> (u32, u32) {
    let wanted = kills(usual);
    let (mut count, mut hits) = (0, 0);
    while count < wanted || hits == 0 {
        assert!(hits > 0 || count < MOST.max(wanted), "no kill of {count} hit a changed host");
        hits += u32::from(kill(count));
        count += 1;
    }
    (count, hits)
}
