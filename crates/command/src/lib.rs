//! Shared parts of the command lines of Tandem's programs.
//!
//! - [`program`]: arguments, errors and exit statuses of a whole program.
//! - [`console`]: lines on standard output and standard error, and how much of them.
//! - [`options`]: the options of every command.
//! - [`number`]: numbers and times as arguments; an error names the valid range.
//! - [`output`]: output files.
//! - [`manual`]: manual pages and completions, from the same description as `--help`.
//! - [`invocation`]: the command line of this process, as a page names it.

pub mod console;
pub mod invocation;
pub mod manual;
pub mod number;
pub mod options;
pub mod output;
pub mod program;
