//! Formatting of coordinates, and estimated widths of texts.

/// Formats a coordinate with at most one decimal; a tenth of a unit is below a pixel.
pub fn at(value: f64) -> String {
    let text = format!("{value:.1}");
    match text.strip_suffix(".0") {
        Some(whole) => whole.to_owned(),
        None => text,
    }
}

/// Estimates the width of a text at a font size, in units of the view box.
///
/// Digits and lower-case letters of common sans-serif fonts are a little over half as wide as high.
pub fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.56
}

/// Estimates the width of semibold text, which some fonts only have in bold: a quarter wider.
pub fn bold_width(text: &str, size: f64) -> f64 {
    text_width(text, size) * 1.25
}

/// Estimates the width of a column of texts, with a margin for wider fonts.
pub fn column_width<'a>(texts: impl Iterator<Item = &'a str>, size: f64) -> f64 {
    texts.map(|text| text_width(text, size)).fold(0.0, f64::max) * 1.1
}

/// Cuts a text to a width, with an ellipsis if it does not fit.
pub fn cut(text: &str, width: f64, size: f64) -> String {
    if text_width(text, size) <= width {
        return text.to_owned();
    }
    let fits = (width / (size * 0.56)).floor() as usize;
    let kept: String = text.chars().take(fits.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_text_is_cut() {
        assert_eq!(cut("aple", 100.0, 12.0), "aple");
        let short = cut("host.pause_loop.policy=aple", 80.0, 12.0);
        assert!(short.ends_with('…') && text_width(&short, 12.0) <= 80.0, "{short}");
        assert_eq!(cut("überlang", 0.0, 12.0), "…");
    }
}
