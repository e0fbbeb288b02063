//! What all charts share: how coordinates are written, and about how wide a text is.

/// A coordinate with at most one decimal: a tenth of a unit is below a pixel.
pub fn at(value: f64) -> String {
    let text = format!("{value:.1}");
    match text.strip_suffix(".0") {
        Some(whole) => whole.to_owned(),
        None => text,
    }
}

/// About how wide a text is, in units of the view box, at a font size: digits and lower-case letters
/// of the usual sans-serif fonts are a little over half as wide as high.
pub fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.56
}

/// The same of semibold text, which some fonts have only in bold: a quarter wider.
pub fn bold_width(text: &str, size: f64) -> f64 {
    text_width(text, size) * 1.25
}

/// Room for a column of texts: some fonts are wider than the usual ones.
pub fn column_width<'a>(texts: impl Iterator<Item = &'a str>, size: f64) -> f64 {
    texts.map(|text| text_width(text, size)).fold(0.0, f64::max) * 1.1
}

/// A text as far as it fits into a width, with an ellipsis if it does not.
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
    fn a_text_is_cut_only_where_it_does_not_fit() {
        assert_eq!(cut("aple", 100.0, 12.0), "aple");
        let short = cut("host.pause_loop.policy=aple", 80.0, 12.0);
        assert!(short.ends_with('…') && text_width(&short, 12.0) <= 80.0, "{short}");
        assert_eq!(cut("überlang", 0.0, 12.0), "…");
    }
}
