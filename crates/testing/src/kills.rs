//! How often tests kill, which those of several crates ask.

use std::env;

/// So often as TANDEM_KILLS says, or `usual`ly.
pub fn kills(usual: u32) -> u32 {
    match env::var("TANDEM_KILLS") {
        Ok(text) => text.parse().expect("TANDEM_KILLS is a number, such as 1000"),
        Err(_) => usual,
    }
}
