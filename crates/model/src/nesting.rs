//! Checks the nesting depth of tables and lists in a TOML text.
//!
//! A TOML parser recurses for each of them.
//! toml_parser 1.1.5 has a limit (`RecursionGuard` of its src/parser/event.rs), but it fails on malformed texts.
//! Text skipped after an error decrements its depth once too often, and ten thousand brackets overflow the stack.
//! Untrusted texts are therefore checked here first.

/// Maximum number of open tables and lists.
pub const MAX_NESTED: usize = 100;

/// Error message for a text that exceeds it.
pub const TOO_DEEP: &str = "tables and lists may nest 100 deep at most";

/// Returns the byte offset at which a text exceeds the maximum; brackets in strings and comments do not count.
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
                if open.len() > MAX_NESTED {
                    return Some(at);
                }
            }
            // A bracket that does not match the innermost open one closes nothing.
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

/// Returns the end of the line.
fn line_end(bytes: &[u8], from: usize) -> usize {
    let end = bytes[from..].iter().position(|&byte| byte == b'\n');
    end.map_or(bytes.len(), |end| from + end)
}

/// Returns the end of the string that begins at `from`: its closing quote, or the end of the line if a one-line string is not closed.
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
    fn message_states_limit() {
        assert!(TOO_DEEP.contains(&MAX_NESTED.to_string()));
    }

    #[test]
    fn only_concurrently_open_brackets_count() {
        let many = "a = [{ b = [1] }]\n[table]\n[[list]]\n".repeat(1_000);
        assert_eq!(too_deep(&many), None);
        let deep = |open: &str| format!("a = {}", open.repeat(MAX_NESTED + 1));
        for open in ["{", "[", "[{", "{a={"] {
            assert!(too_deep(&deep(open)).is_some(), "{open}");
        }
        // Brackets of one kind do not close the other.
        assert!(too_deep(&deep("{]")).is_some() && too_deep(&deep("[}")).is_some());
    }

    #[test]
    fn brackets_in_strings_and_comments_are_ignored() {
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
        // Closing brackets are ignored, too; an unclosed string ends with its line.
        let text = format!("a = {}", "{ b = \"}\n".repeat(1_000));
        assert!(too_deep(&text).is_some());
        assert!(too_deep(&format!("a = 'x'\nb = {open}")).is_some());
        assert!(too_deep(&format!("a = \"\"\"x\"\"\"\nb = {open}")).is_some());
    }
}
