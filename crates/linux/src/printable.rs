//! Escapes untrusted text so that it prints on one line.
//!
//! Owners choose the names of threads, processes, cgroups and VMs.
//! A name can contain line breaks, which forge log lines, terminal escape sequences, and characters that are invisible or change the writing direction.
//! All of these are printed as escapes (`\x1b`, `\u{202e}`), so that the text still identifies its owner.
//! A backslash stays as it is, because names of scopes contain them (`machine-qemu\x2d1.scope`).

use std::borrow::Cow;
use std::fmt::Write;

/// Escapes all invisible characters of a text.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        let code = u32::from(c);
        // Writing to a String does not fail.
        let _ = if !is_hidden(c) {
            shown.push(c);
            Ok(())
        } else if code < 0x100 {
            write!(shown, "\\x{code:02x}")
        } else {
            write!(shown, "\\u{{{code:x}}}")
        };
    }
    Cow::Owned(shown)
}

/// Control characters of ASCII and Latin-1, line and paragraph separators, zero-width and bidirectional formatting characters.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_escaped() {
        for plain in ["", "db-1", "CPU 0/KVM", "grün 東京", "a\\x2db", "x (deleted)"] {
            assert!(matches!(printable(plain), Cow::Borrowed(_)), "{plain}");
        }
        assert_eq!(printable("a\nerror: b"), "a\\x0aerror: b");
        assert_eq!(printable("\x1b[2J\r\t\0\u{9b}x"), "\\x1b[2J\\x0d\\x09\\x00\\x9bx");
        assert_eq!(printable("a\u{202e}b\u{feff}"), "a\\u{202e}b\\u{feff}");
    }

    #[test]
    fn escaping_is_complete_and_idempotent() {
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
