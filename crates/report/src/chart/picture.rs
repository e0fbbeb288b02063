//! Charts as a standalone SVG file, for a README: with a title on a framed white ground, so that it is legible on a dark page.
//!
//! Charts take their colours from the page's style sheet.
//! A picture contains the rules for charts with the light colours instead of variables, because many SVG viewers lack CSS variables.
//! The source of both is `page.css`.

use std::fmt::Write as _;

use maud::{Markup, PreEscaped, html};

use super::text::{at, cut};

const STYLE: &str = include_str!("../page.css");

const PADDING: f64 = 20.0;
const HEADING: f64 = 52.0;
/// Space between charts.
const GAP: f64 = 14.0;
const CAPTION: f64 = 22.0;

/// A chart in a picture.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Caption above the chart; may be empty.
    pub caption: String,
    /// The chart.
    pub chart: Markup,
    /// Size of the chart's view box.
    pub size: (f64, f64),
}

/// Returns charts, arranged vertically, as one SVG file.
pub fn svg(title: &str, subtitle: &str, panels: &[Panel]) -> String {
    let inner = panels.iter().map(|panel| panel.size.0).fold(0.0, f64::max);
    let mut y = HEADING;
    let mut placed = Vec::new();
    for panel in panels {
        let caption = if panel.caption.is_empty() { 0.0 } else { CAPTION };
        placed.push((panel, y, y + caption));
        y += caption + panel.size.1 + GAP;
    }
    let (width, height) = (inner + 2.0 * PADDING, y - GAP + PADDING);
    html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(at(width)) height=(at(height))
            viewBox=(format!("0 0 {} {}", at(width), at(height))) role="img" aria-label=(title)
            font-family="system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif" {
            style { (PreEscaped(style())) }
            rect x="0.5" y="0.5" width=(at(width - 1.0)) height=(at(height - 1.0)) rx="8"
                fill="#ffffff" stroke="#d8dce1" {}
            text.title x=(at(PADDING)) y="30" { (cut(title, inner, 18.0)) }
            text.tick x=(at(PADDING)) y="48" { (cut(subtitle, inner, 12.0)) }
            @for (panel, top, chart) in placed {
                @if !panel.caption.is_empty() {
                    text.group x=(at(PADDING)) y=(at(top + 16.0)) { (panel.caption) }
                }
                svg x=(at(PADDING)) y=(at(chart)) width=(at(panel.size.0))
                    height=(at(panel.size.1)) { (panel.chart) }
            }
        }
    }
    .into_string()
        + "\n"
}

/// Returns the style rules for charts with the light colours.
fn style() -> String {
    let colours = STYLE.split('}').next().unwrap_or_default();
    let colours: Vec<(&str, &str)> = colours
        .split([';', '{'])
        .filter_map(|rule| rule.trim().split_once(": "))
        .filter(|(name, _)| name.starts_with("--"))
        .collect();
    let mut style = String::from("svg .title { font-size: 18px; font-weight: 650; }\n");
    for rule in STYLE.lines().filter(|line| line.starts_with("svg ")) {
        let mut rule = rule.to_owned();
        for (name, value) in &colours {
            rule = rule.replace(&format!("var({name})"), value);
        }
        // Writing to a string cannot fail.
        let _ = writeln!(style, "{rule}");
    }
    style
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picture_is_self_contained() {
        let panel = Panel {
            caption: "work <rate>".to_owned(),
            chart: html! { svg.chart viewBox="0 0 10 20" {} },
            size: (10.0, 20.0),
        };
        let svg = svg("a & b", "", &[panel.clone(), panel]);
        assert!(!svg.contains("var("), "{svg}");
        assert!(svg.contains("svg .bar.s0, svg .name.s0 { fill: #2f6fde; }"), "{svg}");
        assert!(svg.contains("a &amp; b") && svg.contains("work &lt;rate&gt;"));
        assert_eq!(svg.matches("http").count(), 1, "only the name space");
    }
}
