//! An error with its causes, on one line and each thing said once.
//!
//! Libraries differ in whether an error's text contains its cause's; printing the whole chain would
//! say some things twice.

/// The error and its causes, from the outside in, without what has been said already.
pub fn explain(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if said.is_empty() {
            said = text;
        } else if !said.contains(&text) {
            said = format!("{said}: {text}");
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_said_once() {
        let error = anyhow::anyhow!("no permission").context("cannot write x: no permission");
        assert_eq!(
            explain(&error.context("mode y")),
            "mode y: cannot write x: no permission"
        );
    }
}
