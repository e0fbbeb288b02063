//! The survey's tables as a Markdown document, beneath what people wrote about them.
//!
//! In a file that is there and has the line [`MARK`], the tables take the place of all that follows it;
//! what is above stays. Any other file gets a heading, the line and the tables.

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::section::Section;
use tandem_report::table::Look;

/// Below this line all is written by `tandem-lab survey --markdown`.
pub const MARK: &str = "<!-- Below this line: written by tandem-lab survey --markdown -->";

/// Above it in a new document.
const HEAD: &str = "# Every policy with every program\n";

/// Why a document may not be written.
#[derive(Debug, Error)]
pub enum DocumentError {
    /// The system refused it.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// It has no place for tables.
    #[error(
        "{} holds something else: name a new file, or put the line {MARK} where the tables are to \
         begin",
        .0.display()
    )]
    Foreign(PathBuf),
}

/// The document: `before` is what the file held.
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

/// What is in the file now: empty if there is none. A file without the line is somebody's own.
pub fn before(path: &Path) -> Result<String, DocumentError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(cause) => {
            let path = path.to_owned();
            return Err(DocumentError::Read { path, cause });
        }
    };
    match text.is_empty() || text.contains(MARK) {
        true => Ok(text),
        false => Err(DocumentError::Foreign(path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_report::table::Table;

    #[test]
    fn what_people_wrote_stays_and_tables_are_replaced() {
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
