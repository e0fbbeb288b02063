//! An error and its causes on one line, for every command.
//!
//! Some libraries include the cause in an error's text, so the plain chain would repeat texts.

use std::error::Error;

/// Returns the error and its causes, from the outermost to the innermost, without repeated texts.
pub fn explain(error: &(dyn Error + 'static)) -> String {
    let mut line = String::new();
    let mut next = Some(error);
    while let Some(cause) = next {
        let text = cause.to_string();
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
        next = cause.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Because(&'static str, Option<Box<Because>>);

    impl fmt::Display for Because {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Because {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(self.1.as_deref()?)
        }
    }

    #[test]
    fn causes_are_not_repeated() {
        let cause = Because("no permission", None);
        let error = Because("cannot write x: no permission", Some(Box::new(cause)));
        let error = Because("mode y", Some(Box::new(error)));
        assert_eq!(explain(&error), "mode y: cannot write x: no permission");
    }
}
