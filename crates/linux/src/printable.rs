//! Text that others chose, on one line and as it reads.
//!
//! Names of threads, processes, cgroups and VMs are whatever their owners like: also line breaks, which forge lines of a log,
//! escape sequences, which a terminal obeys, and characters that hide or turn the direction of writing. All of these are written as
//! what they are (`\x1b`, `\u{202e}`), so that the text still tells its owner. A backslash stays a backslash: names of
//! scopes have them (`machine-qemu\x2d1.scope`).

use std::borrow::Cow;
use std::fmt::Write;

/// The text with everything written out that is not seen.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        let code = u32::from(c);
        // Writing to a String does not fail.
        let _ = match is_hidden(c) {
            false => {
                shown.push(c);
                Ok(())
            }
            true if code < 0x100 => write!(shown, "\\x{code:02x}"),
            true => write!(shown, "\\u{{{code:x}}}"),
        };
    }
    Cow::Owned(shown)
}

/// Control characters of ASCII and Latin 1, line and paragraph separators, what has no width, and what turns the direction.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_seen_stays_and_what_is_not_is_written_out() {
        for plain in ["", "db-1", "CPU 0/KVM", "grün 東京", "a\\x2db", "x (deleted)"] {
            assert!(matches!(printable(plain), Cow::Borrowed(_)), "{plain}");
        }
        assert_eq!(printable("a\nerror: b"), "a\\x0aerror: b");
        assert_eq!(printable("\x1b[2J\r\t\0\u{9b}x"), "\\x1b[2J\\x0d\\x09\\x00\\x9bx");
        assert_eq!(printable("a\u{202e}b\u{feff}"), "a\\u{202e}b\\u{feff}");
    }

    #[test]
    fn every_text_becomes_one_line_without_escapes_and_stays_so() {
        for code in 0..=0x1_ffff {
            let Some(c) = char::from_u32(code) else {
                continue;
            };
            let text = format!("a{c}b");
            let shown = printable(&text).into_owned();
            assert!(!shown.chars().any(char::is_control), "{code:x}");
            assert_eq!(printable(&shown), shown, "{code:x}");
        }
    }
}
