//! How terminals are written to: with colour or without, and whether anything but results and errors is said.
//!
//! The binary's options `--color` and `--quiet` say so once for the process, before anything is written. Without them it is as terminals
//! are used to: colour on a terminal unless `NO_COLOR` is set and not empty (no-color.org).

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// When there is colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Colour {
    /// On terminals, unless `NO_COLOR` is set.
    Auto,
    /// Everywhere, as for a pager.
    Always,
    /// Nowhere.
    Never,
}

static COLOUR: AtomicU8 = AtomicU8::new(Colour::Auto as u8);
static QUIET: AtomicBool = AtomicBool::new(false);

/// Says when there is colour.
pub fn set_colour(colour: Colour) {
    COLOUR.store(colour as u8, Ordering::Relaxed);
}

/// Whether what is written has colour, where it goes to a terminal or does not.
pub fn has_colour(is_terminal: bool) -> bool {
    let wanted = COLOUR.load(Ordering::Relaxed);
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    is_coloured(wanted, is_terminal, refused)
}

fn is_coloured(wanted: u8, is_terminal: bool, refused: bool) -> bool {
    wanted == Colour::Always as u8 || (wanted == Colour::Auto as u8 && is_terminal && !refused)
}

/// Says that nothing but results and errors is wanted.
pub fn set_quiet(quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
}

/// Whether nothing but results and errors is wanted.
pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_says_always_or_never_is_asked_nothing_more() {
        for (is_terminal, refused) in [(false, false), (false, true), (true, false), (true, true)] {
            assert!(is_coloured(Colour::Always as u8, is_terminal, refused));
            assert!(!is_coloured(Colour::Never as u8, is_terminal, refused));
            let by_itself = is_coloured(Colour::Auto as u8, is_terminal, refused);
            assert_eq!(by_itself, is_terminal && !refused);
        }
    }
}
