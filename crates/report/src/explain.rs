//! An error and its causes on one line, as every command says them.
//!
//! Libraries differ in whether an error's text contains its cause's; the whole chain would say some things
//! twice.

use std::error::Error;

/// The error and its causes, from the outside in, without what has been said already.
pub fn explain(error: &(dyn Error + 'static)) -> String {
    let mut said = String::new();
    let mut next = Some(error);
    while let Some(cause) = next {
        let text = cause.to_string();
        if said.is_empty() {
            said = text;
        } else if !said.contains(&text) {
            said = format!("{said}: {text}");
        }
        next = cause.source();
    }
    said
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
    fn each_cause_is_said_once() {
        let cause = Because("no permission", None);
        let error = Because("cannot write x: no permission", Some(Box::new(cause)));
        let error = Because("mode y", Some(Box::new(error)));
        assert_eq!(explain(&error), "mode y: cannot write x: no permission");
    }
}
