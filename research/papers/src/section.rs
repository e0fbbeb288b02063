//! Section of a page or document: a title, a remark and a table.

use tandem_report::table::Table;

/// A title with a remark and a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    /// Title.
    pub title: String,
    /// Remark; may be empty.
    pub remark: String,
    /// The table, if any.
    pub table: Option<Table>,
}
