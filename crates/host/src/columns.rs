//! Figures in columns of plain text, for `top`, `status` and others: one line per row at any width.
//!
//! Numbers are right-aligned.
//! If the lines exceed a given width, the first column (names) and the last (remarks) are cut, then whole lines.
//! Without a width nothing is cut, so that the output of a pipe can be searched.
//! Tones are escape codes and appear only with colour; they are never the only carrier of meaning.

/// Tone of a field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Normal.
    #[default]
    Plain,
    /// Secondary.
    Faint,
    /// Noteworthy.
    Warn,
    /// Bad.
    Bad,
}

impl Tone {
    /// Returns the escape code that starts it.
    fn code(self) -> Option<&'static str> {
        match self {
            Tone::Plain => None,
            Tone::Faint => Some("\x1b[2m"),
            Tone::Warn => Some("\x1b[33m"),
            Tone::Bad => Some("\x1b[1;31m"),
        }
    }
}

/// One field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Field {
    pub(crate) text: String,
    pub(crate) tone: Tone,
}

impl Field {
    /// A field with a tone.
    pub fn toned(text: impl Into<String>, tone: Tone) -> Field {
        Field { text: text.into(), tone }
    }
}

impl<T: Into<String>> From<T> for Field {
    fn from(text: T) -> Field {
        Field::toned(text, Tone::Plain)
    }
}

/// Style of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Whether escape codes are allowed.
    pub colour: bool,
    /// Maximum length of a line; `None` for no limit.
    pub width: Option<usize>,
}

/// Minimum width of a column that is cut.
const MIN_WIDTH: usize = 8;

/// Rows below headings.
#[derive(Clone, Debug)]
pub struct Columns {
    headings: Vec<&'static str>,
    /// Whether each column is left-aligned text.
    left: Vec<bool>,
    rows: Vec<Vec<Field>>,
}

impl Columns {
    /// Starts without rows. Headings that begin with `<` mark columns of text; the mark is not shown.
    pub fn new(headings: &[&'static str]) -> Columns {
        Columns {
            left: headings.iter().map(|text| text.starts_with('<')).collect(),
            headings: headings.iter().map(|text| text.trim_start_matches('<')).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; fields beyond the last column are dropped.
    pub fn row(&mut self, fields: impl IntoIterator<Item = Field>) {
        let mut fields: Vec<Field> = fields.into_iter().collect();
        fields.resize(self.headings.len(), Field::default());
        self.rows.push(fields);
    }

    fn widths(&self, limit: Option<usize>) -> Vec<usize> {
        let longest = |column: usize| {
            let fields = self.rows.iter().map(|row| length(&row[column].text));
            fields.chain([length(self.headings[column])]).max()
        };
        let mut widths: Vec<usize> =
            (0..self.headings.len()).map(|column| longest(column).unwrap_or(0)).collect();
        let total = widths.iter().sum::<usize>() + widths.len().saturating_sub(1);
        let mut excess = limit.map_or(0, |limit| total.saturating_sub(limit));
        let last = widths.len().saturating_sub(1);
        for column in [last, 0] {
            if let Some(width) = widths.get_mut(column) {
                let cut = excess.min(width.saturating_sub(MIN_WIDTH));
                *width -= cut;
                excess -= cut;
            }
        }
        widths
    }

    /// Formats the lines, without a trailing line break.
    pub fn text(&self, style: Style) -> String {
        let widths = self.widths(style.width);
        let heading = |text: &&'static str| Field::from(*text);
        let headings: Vec<Field> = self.headings.iter().map(heading).collect();
        let rows = [&headings].into_iter().chain(&self.rows);
        let lines: Vec<String> = rows.map(|row| self.line(row, &widths, style)).collect();
        lines.join("\n")
    }

    fn line(&self, row: &[Field], widths: &[usize], style: Style) -> String {
        let last = row.iter().rposition(|field| !field.text.is_empty());
        let mut line = String::new();
        let mut used = 0;
        for (column, field) in row.iter().enumerate().take(last.map_or(0, |last| last + 1)) {
            let gap = usize::from(column > 0);
            let left = style.width.map_or(usize::MAX, |width| width.saturating_sub(used + gap));
            if left == 0 {
                break;
            }
            let width = widths[column].min(left);
            let text = cut(&field.text, width);
            let pad = " ".repeat(width.saturating_sub(length(&text)));
            // No blanks at the end of a line.
            let (before, after) = match (self.left[column], Some(column) == last) {
                (true, true) => ("", ""),
                (true, false) => ("", pad.as_str()),
                (false, _) => (pad.as_str(), ""),
            };
            let text = match field.tone.code().filter(|_| style.colour) {
                Some(code) => format!("{code}{text}\x1b[0m"),
                None => text,
            };
            line.push_str(&" ".repeat(gap));
            line.push_str(&format!("{before}{text}{after}"));
            used += gap + width;
        }
        line
    }
}

/// Formats a single line, cut to the maximum length.
pub fn line(text: &str, style: Style) -> String {
    cut(text, style.width.unwrap_or(usize::MAX))
}

/// Wraps lines at blanks to the maximum length; continuations are indented by three more blanks than the line.
/// A line with a command to paste (`do: …`) and a word longer than a line stay whole.
pub fn wrapped(text: &str, style: Style) -> String {
    let Some(width) = style.width else {
        return text.to_owned();
    };
    let lines: Vec<String> = text.lines().map(|line| wrapped_line(line, width)).collect();
    lines.join("\n")
}

fn wrapped_line(line: &str, width: usize) -> String {
    let words = line.trim_start();
    let depth = length(line) - length(words);
    if length(line) <= width || words.starts_with("do: ") {
        return line.to_owned();
    }
    let margin = " ".repeat((depth + 3).min(width / 2));
    let mut text = " ".repeat(depth);
    let mut used = depth;
    let mut is_first = true;
    for word in words.split(' ') {
        let blank = usize::from(!is_first);
        if used + blank + length(word) > width && !is_first {
            text.push('\n');
            text.push_str(&margin);
            used = length(&margin);
        } else if !is_first {
            text.push(' ');
            used += 1;
        }
        text.push_str(word);
        used += length(word);
        is_first = false;
    }
    text
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// Cuts a text, with a mark if something is missing. Control characters, as in a VM's name, are replaced.
pub(crate) fn cut(text: &str, width: usize) -> String {
    let visible = |c: char| if c.is_control() { '?' } else { c };
    if length(text) <= width {
        text.chars().map(visible).collect()
    } else {
        let kept = text.chars().map(visible).take(width.saturating_sub(1));
        kept.chain(std::iter::once('…')).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Columns {
        let mut columns = Columns::new(&["<VM", "RDY", "<culprit"]);
        columns.row(["database-1".into(), Field::toned("12", Tone::Bad), "web".into()]);
        columns.row(["web".into(), "0.5".into()]);
        columns
    }

    #[test]
    fn piped_lines_have_no_escapes() {
        let expected = "\
VM         RDY culprit
database-1  12 web
web        0.5";
        assert_eq!(example().text(Style::default()), expected);
    }

    #[test]
    fn colour_marks_a_field_and_moves_nothing() {
        let colour = Style { colour: true, width: None };
        let text = example().text(colour);
        assert!(text.contains(" \x1b[1;31m12\x1b[0m web"), "{text:?}");
        let without = text.replace("\x1b[1;31m", "").replace("\x1b[0m", "");
        assert_eq!(without, example().text(Style::default()));
    }

    #[test]
    fn no_line_is_longer_than_the_width() {
        for width in 1..40 {
            let style = Style { colour: false, width: Some(width) };
            let text = example().text(style);
            assert_eq!(text.lines().count(), 3, "{text}");
            let longest = text.lines().map(length).max();
            assert!(longest <= Some(width), "{width}: {text}");
        }
        let narrow = Style { colour: false, width: Some(20) };
        let text = example().text(narrow);
        assert!(text.contains("databas… "), "names are cut: {text}");
    }

    #[test]
    fn long_lines_wrap_and_commands_stay_whole() {
        let text = "1  db: other VMs take its time\n   it waits for build (98 %): RDY 30 %\n   do: sudo tandem host run db";
        assert_eq!(wrapped(text, Style::default()), text);
        let narrow = |width| Style { colour: false, width: Some(width) };
        let expected = "\
1  db: other VMs take
   its time
   it waits for build
      (98 %): RDY 30
      %
   do: sudo tandem host run db";
        assert_eq!(wrapped(text, narrow(21)), expected);
        for width in 1..60 {
            let wrapped = wrapped(text, narrow(width));
            let words: Vec<&str> = wrapped.split_whitespace().collect();
            assert_eq!(words, text.split_whitespace().collect::<Vec<&str>>());
        }
    }

    #[test]
    fn names_cannot_write_to_the_terminal() {
        let mut columns = Columns::new(&["<VM"]);
        columns.row(["a\x1b[2Jb\n".into()]);
        assert_eq!(columns.text(Style::default()), "VM\na?[2Jb?");
    }
}
