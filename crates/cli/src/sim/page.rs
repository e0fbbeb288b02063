//! What a page says of itself: the command that made it, so that it can be made again.

/// It, as it can be given to a shell again.
pub fn command() -> String {
    let arguments: Vec<String> = std::env::args().skip(1).map(|word| quoted(&word)).collect();
    format!("tandem {}", arguments.join(" "))
}

fn quoted(word: &str) -> String {
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
        assert_eq!(
            quoted("vm.*.idle=haltpoll(100us)"),
            "'vm.*.idle=haltpoll(100us)'"
        );
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
