//! Draws a terminal's content: reads text with colour escapes from standard input, and writes SVG to standard output.
//!
//! ```text
//! tmux capture-pane -e -p | cargo run --release -p tandem-report --example terminal_svg > picture.svg
//! ```

use std::io::{Read, Write};

fn main() -> std::io::Result<()> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let picture = anstyle_svg::Term::new().render_svg(text.trim_end());
    std::io::stdout().write_all(picture.as_bytes())
}
