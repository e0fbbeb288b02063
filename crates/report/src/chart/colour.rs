//! The colours of series: names of classes that the page's style sheet defines.

/// How many series have a colour of their own; the next ones begin anew.
pub const COLOURS: usize = 8;

/// The CSS class that gives series `index` its colour.
pub fn colour(index: usize) -> String {
    format!("s{}", index % COLOURS)
}

/// The colour of one of so many: its own while there are colours enough, else that of all.
pub fn series(index: usize, count: usize) -> usize {
    if count <= COLOURS { index } else { 0 }
}
