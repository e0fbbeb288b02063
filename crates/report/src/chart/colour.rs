//! Colours of series: CSS classes of the page's style sheet.

/// Number of distinct colours; further series reuse them.
pub const COLOURS: usize = 8;

/// Returns the CSS class for the colour of series `index`.
pub fn colour(index: usize) -> String {
    format!("s{}", index % COLOURS)
}

/// Returns the colour index of one of `count` series: distinct if there are enough colours, else 0 for all.
pub fn series(index: usize, count: usize) -> usize {
    if count <= COLOURS { index } else { 0 }
}
