//! How deep the tables and lists of a TOML text nest.
//!
//! A reader of TOML calls itself for each of them. The limit of toml_parser 1.1.5 (`RecursionGuard` of its src/parser/event.rs) does not hold where a text is
//! wrong: what is read over after an error counts as closed once too often, and ten thousand brackets overflow the stack. So texts of
//! others are looked at here first.

/// So many may be open at a time.
pub const MOST_NESTED: usize = 100;

/// What is said of a text in which there are more.
pub const TOO_DEEP: &str = "tables and lists may nest 100 deep at most";

/// Where in a text, in bytes, more tables and lists are open than may be. Brackets in strings and comments are none.
///
/// ```
/// use tandem_model::nesting::too_deep;
/// assert_eq!(too_deep("a = [{ b = 1 }] # [[["), None);
/// assert_eq!(too_deep(&format!("a = {}", "{".repeat(101))), Some(104));
/// ```
pub fn too_deep(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut open: Vec<u8> = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'[' | b'{' => {
                open.push(byte);
                if open.len() > MOST_NESTED {
                    return Some(at);
                }
            }
            // What does not fit what is open closes nothing.
            b']' => drop(open.pop_if(|last| *last == b'[')),
            b'}' => drop(open.pop_if(|last| *last == b'{')),
            b'#' => at = line_end(bytes, at),
            b'"' | b'\'' => at = string_end(bytes, at),
            _ => {}
        }
        at += 1;
    }
    None
}

/// Where the line ends.
fn line_end(bytes: &[u8], from: usize) -> usize {
    let end = bytes[from..].iter().position(|&byte| byte == b'\n');
    end.map_or(bytes.len(), |end| from + end)
}

/// Where the string that begins there ends: its last quote, or the end of a line for one that has none and is of one line.
fn string_end(bytes: &[u8], from: usize) -> usize {
    let quote = bytes[from];
    let three = [quote; 3];
    let is_long = bytes[from..].starts_with(&three);
    let mut at = from + if is_long { 3 } else { 1 };
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' if quote == b'"' => at += 1,
            b'\n' if !is_long => return at,
            byte if byte == quote && !is_long => return at,
            byte if byte == quote && bytes[at..].starts_with(&three) => return at + 2,
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_has_the_limit() {
        assert!(TOO_DEEP.contains(&MOST_NESTED.to_string()));
    }

    #[test]
    fn only_what_is_open_at_a_time_counts() {
        let many = "a = [{ b = [1] }]\n[table]\n[[list]]\n".repeat(1_000);
        assert_eq!(too_deep(&many), None);
        let deep = |open: &str| format!("a = {}", open.repeat(MOST_NESTED + 1));
        for open in ["{", "[", "[{", "{a={"] {
            assert!(too_deep(&deep(open)).is_some(), "{open}");
        }
        // The one does not close the other.
        assert!(too_deep(&deep("{]")).is_some() && too_deep(&deep("[}")).is_some());
    }

    #[test]
    fn brackets_in_strings_and_comments_are_none() {
        let open = "[".repeat(1_000);
        for text in [
            format!("# {open}\na = 1"),
            format!("a = \"{open}\""),
            format!("a = \"\\\"{open}\""),
            format!("a = '{open}'"),
            format!("a = \"\"\"\n\"{open}\"\"\""),
            format!("a = '''\n'{open}'''"),
        ] {
            assert_eq!(too_deep(&text), None, "{}", &text[..20]);
        }
        // Nor do those that close: behind a string that has no end the next line is no part of it.
        let text = format!("a = {}", "{ b = \"}\n".repeat(1_000));
        assert!(too_deep(&text).is_some());
        assert!(too_deep(&format!("a = 'x'\nb = {open}")).is_some());
        assert!(too_deep(&format!("a = \"\"\"x\"\"\"\nb = {open}")).is_some());
    }
}
