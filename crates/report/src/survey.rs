//! A survey of policies: its tables ([`tables`], and cell by cell [`matrix`]), as a Markdown document
//! ([`document`]) and as a page ([`page`]).

pub mod document;
pub mod matrix;
pub mod page;
pub mod tables;
