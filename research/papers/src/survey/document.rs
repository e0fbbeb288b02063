//! Markdown document with the survey's tables below hand-written text.
//!
//! In an existing file, the tables replace everything below the line [`MARK`]; the text above it stays.
//! A new or empty file gets a heading, the line and the tables.

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::section::Section;
use tandem_report::table::Look;

/// Line below which `tandem-lab survey --markdown` writes.
pub const MARK: &str = "<!-- Below this line: written by tandem-lab survey --markdown -->";

/// Heading of a new document.
const HEAD: &str = "# Every policy with every program\n";

/// Error that prevents writing a document.
#[derive(Debug, Error)]
pub enum DocumentError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
    /// The file lacks the line [`MARK`].
    #[error(
        "{} holds something else: name a new file, or put the line {MARK} where the tables are to \
         begin",
        .0.display()
    )]
    Foreign(PathBuf),
}

/// Returns the document; `before` is the previous content of the file.
pub fn document(before: &str, parts: &[Section]) -> String {
    let head = match before.split_once(MARK) {
        Some((head, _)) => head.trim_end(),
        None => HEAD.trim_end(),
    };
    let mut text = format!("{head}\n\n{MARK}\n");
    for part in parts {
        text += &format!("\n## {}\n", part.title);
        if !part.remark.is_empty() {
            text += &format!("\n{}\n", part.remark);
        }
        if let Some(table) = &part.table {
            text += &format!("\n{}\n", table.text(Look::Plain));
        }
    }
    text
}

/// Returns the content of the file, or an empty text if it does not exist.
///
/// A file that has other content and no line [`MARK`] is an error, because it was not written by this command.
pub fn before(path: &Path) -> Result<String, DocumentError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(cause) => {
            let path = path.to_owned();
            return Err(DocumentError::Read { path, cause });
        }
    };
    if text.is_empty() || text.contains(MARK) {
        Ok(text)
    } else {
        Err(DocumentError::Foreign(path.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_report::table::Table;

    #[test]
    fn document_keeps_text_and_replaces_tables() {
        let mut table = Table::new(&["a"]);
        table.row(["1"]);
        let part = Section { title: "T".to_owned(), remark: "R".to_owned(), table: Some(table) };
        let first = document("", std::slice::from_ref(&part));
        assert!(first.starts_with(HEAD) && first.contains("\n## T\n\nR\n\n| a |"), "{first}");
        let edited = first.replace("every program\n", "every program\n\nOurs.\n");
        let again = document(&edited, &[Section { title: "U".to_owned(), ..part }]);
        assert!(again.contains("Ours.\n\n<!--"), "{again}");
        assert!(again.contains("## U") && !again.contains("## T"), "{again}");
        assert_eq!(again.matches(MARK).count(), 1);
    }
}
