//! Process-wide settings of terminal output: colour and quiet mode.
//!
//! The binary's options `--color` and `--quiet` set them once, before any output.
//! By default there is colour on a terminal, unless `NO_COLOR` is set and not empty (no-color.org).

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Use of colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Colour {
    /// On terminals, unless `NO_COLOR` is set.
    Auto,
    /// Always, such as for a pager.
    Always,
    /// Never.
    Never,
}

static COLOUR: AtomicU8 = AtomicU8::new(Colour::Auto as u8);
static QUIET: AtomicBool = AtomicBool::new(false);

/// Sets the use of colour.
pub fn set_colour(colour: Colour) {
    COLOUR.store(colour as u8, Ordering::Relaxed);
}

/// Returns whether output has colour, given whether it goes to a terminal.
pub fn has_colour(is_terminal: bool) -> bool {
    let wanted = COLOUR.load(Ordering::Relaxed);
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    is_coloured(wanted, is_terminal, refused)
}

fn is_coloured(wanted: u8, is_terminal: bool, refused: bool) -> bool {
    wanted == Colour::Always as u8 || (wanted == Colour::Auto as u8 && is_terminal && !refused)
}

/// Sets quiet mode, in which only results and errors are written.
pub fn set_quiet(quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
}

/// Returns whether quiet mode is on.
pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn always_and_never_override_terminal() {
        for (is_terminal, refused) in [(false, false), (false, true), (true, false), (true, true)] {
            assert!(is_coloured(Colour::Always as u8, is_terminal, refused));
            assert!(!is_coloured(Colour::Never as u8, is_terminal, refused));
            let auto = is_coloured(Colour::Auto as u8, is_terminal, refused);
            assert_eq!(auto, is_terminal && !refused);
        }
    }
}
