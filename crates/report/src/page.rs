//! The shell of a self-contained HTML page: one file that opens offline, years later, anywhere.
//!
//! No script, no font, no picture and no address from elsewhere: style sheet and charts are inline,
//! fonts are the reader's own. Light and dark follow the reader's system; `page.css` defines the
//! colours once, as variables that the charts use too. Text is escaped by the template engine.

use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("page.css");

/// A whole page around `body`.
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

/// A key figure.
pub fn tile(name: &str, figure: Markup, beside: &str) -> Markup {
    html! {
        div.tile {
            div.name { (name) }
            div.figure { (figure) }
            div.beside { (beside) }
        }
    }
}

/// A chart with a caption: what it shows, and how to read it.
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
    fn a_page_refers_to_nothing_outside_itself() {
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
