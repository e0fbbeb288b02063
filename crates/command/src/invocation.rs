//! The command line of this process, as a page names it, so that the page can be made again.

/// Returns the command line, quoted for a shell.
pub fn command() -> String {
    let arguments: Vec<String> = std::env::args().skip(1).map(|word| quoted(&word)).collect();
    format!("{} {}", program(), arguments.join(" "))
}

/// The name of the running program.
fn program() -> String {
    let path = std::env::args_os().next().map(std::path::PathBuf::from);
    let name = path.as_deref().and_then(std::path::Path::file_name);
    name.map_or_else(|| "tandem".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// A word as a shell takes it.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_a_shell_would_change_are_quoted() {
        assert_eq!(
            quoted("host.pause_loop.policy=aple,stock"),
            "host.pause_loop.policy=aple,stock"
        );
        assert_eq!(quoted("vm.*.idle=haltpoll(100us)"), "'vm.*.idle=haltpoll(100us)'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
