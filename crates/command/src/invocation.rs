//! Command line of this process, which pages show so that they can be reproduced.

/// Returns the command line, quoted for a shell.
pub fn command() -> String {
    let arguments: Vec<String> = std::env::args().skip(1).map(|word| quoted(&word)).collect();
    format!("{} {}", program(), arguments.join(" "))
}

/// Returns the name of the running program.
fn program() -> String {
    let path = std::env::args_os().next().map(std::path::PathBuf::from);
    let name = path.as_deref().and_then(std::path::Path::file_name);
    name.map_or_else(|| "tandem".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Quotes a word for a shell, if necessary.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_words_are_quoted() {
        assert_eq!(
            quoted("host.pause_loop.policy=aple,stock"),
            "host.pause_loop.policy=aple,stock"
        );
        assert_eq!(quoted("vm.*.idle=haltpoll(100us)"), "'vm.*.idle=haltpoll(100us)'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
