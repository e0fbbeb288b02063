//! A table with a title and what is to be said of it: parts that pages and documents consist of.

use tandem_report::table::Table;

/// A table with its title, and what is to be said of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    /// Its title.
    pub title: String,
    /// What is to be said; may be empty.
    pub remark: String,
    /// The table, if there is one.
    pub table: Option<Table>,
}
