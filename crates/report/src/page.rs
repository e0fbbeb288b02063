//! Frame of a self-contained HTML page: one file that opens offline.
//!
//! It has no external scripts, fonts, pictures or addresses: style sheet and charts are inline, and fonts are those of the reader's system.
//! Light and dark mode follow the reader's system; `page.css` defines the colours as variables, which charts use too.
//! The template engine escapes text.

use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("page.css");

/// Returns a whole page around `body`.
pub fn page(title: &str, body: Markup, footer: &str) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    (body)
                    footer { (footer) }
                }
            }
        }
    }
    .into_string()
}

/// Returns a tile with a key figure and a remark.
pub fn tile(name: &str, figure: Markup, remark: &str) -> Markup {
    html! {
        div.tile {
            div.name { (name) }
            div.figure { (figure) }
            div.beside { (remark) }
        }
    }
}

/// Returns a chart with a caption and an explanation.
pub fn figure(caption: &str, how_to_read: &str, chart: Markup) -> Markup {
    html! {
        figure {
            figcaption {
                (caption)
                @if !how_to_read.is_empty() { div.faint { (how_to_read) } }
            }
            (chart)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_self_contained() {
        let page = page("t", html! { p { "x" } }, "f");
        for outside in ["http:", "https:", "src=", "href=", "@import", "url(", "<script"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.starts_with("<!DOCTYPE html>"));
    }

    #[test]
    fn titles_are_escaped() {
        assert!(page("<b>", html! {}, "&").contains("<title>&lt;b&gt;</title>"));
    }
}
