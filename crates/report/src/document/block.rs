//! A table from data, by a short description.
//!
//! ```text
//! NAME#PATH [by KEY KEY | flat KEY]
//! heading = cell
//! …
//! + cell | cell | …
//! ```
//!
//! The path leads to the rows: a list, or the elements that `*` and `[…]` choose. With `by a b` a
//! flat list becomes one row for each value of key a, in the order of the list, in which key b's
//! values name the elements: of `by program variant` the path `taskset/ratio` is that of the
//! program's element whose variant is taskset. With `flat a` each element of a row's list a is a row,
//! which has the other keys of the row around it too.
//!
//! Each further line is a column: its heading, and text with references in braces, as in
//! `{ratio .2} ({ci_low .2} … {ci_high .2})`. What stands in square brackets, as in
//! `{exits}[ ({change +.0%} %)]`, is left out of rows that lack a figure in it or have null there; a
//! part that every row leaves out is an error. A line that begins with `+` is a last row, of the
//! whole file, and may have fewer cells.
//!
//! `NAME by-claim` instead is [`claims::table`]: a table that no such description makes.

use serde_json::Map;
use serde_json::Value;

use super::claims;
use super::data::Data;
use super::data::Error;
use super::reference::Reference;
use super::reference::Row;
use super::reference::select;
use crate::table::Look;
use crate::table::Table;

struct Column<'a> {
    heading: &'a str,
    cell: &'a str,
}

/// The table that a description asks for.
pub fn render(description: &str, data: &Data) -> Result<String, Error> {
    let mut lines = description
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    let head = lines.next().unwrap_or_default();
    if let Some(name) = head.strip_suffix(" by-claim") {
        return claims::table(data.file(name.trim())?).map(|table| table.text(Look::Plain));
    }
    let mut words = head.split(' ');
    let source = words.next().unwrap_or_default();
    let (file, path) = source.split_once('#').ok_or_else(|| {
        Error::syntax(head, "a table is described by NAME#/path, then its columns")
    })?;
    let whole = data.file(file)?;
    let mut rows = select(whole, path, source)?;
    if let [Value::Array(list)] = rows.as_slice() {
        rows = list.iter().collect();
    }
    let made = match words.collect::<Vec<_>>().as_slice() {
        [] => None,
        ["by", row, element] => Some(group(&rows, row, element)),
        ["flat", list] => Some(flat(&rows, list)),
        _ => {
            return Err(Error::syntax(
                head,
                "NAME#/path, NAME#/path by KEY KEY, NAME#/path flat KEY",
            ));
        }
    };
    if let Some(made) = &made {
        rows = made.iter().collect();
    }
    let (mut columns, mut last) = (Vec::new(), Vec::new());
    for line in lines {
        match (line.strip_prefix("+ "), line.split_once(" = ")) {
            (Some(cells), _) => last.push(cells),
            (None, Some((heading, cell))) => columns.push(Column { heading, cell }),
            (None, None) => return Err(Error::syntax(line, "a column is: heading = cell")),
        }
    }
    let headings: Vec<&str> = columns.iter().map(|column| column.heading).collect();
    let mut table = Table::new(&headings);
    let mut shown: Vec<Vec<bool>> = vec![Vec::new(); columns.len()];
    for value in &rows {
        let row = Row { file, value };
        let mut cells = Vec::new();
        for (column, shown) in columns.iter().zip(&mut shown) {
            let (text, parts) = cell(column.cell, data, row)?;
            shown.resize(parts.len(), false);
            for (shown, part) in shown.iter_mut().zip(parts) {
                *shown |= part;
            }
            cells.push(text);
        }
        table.row(cells);
    }
    for (column, shown) in columns.iter().zip(&shown) {
        if shown.contains(&false) {
            let why = "every row lacks the part in brackets: is the path right?";
            return Err(Error::syntax(column.cell, why));
        }
    }
    for line in last {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if cells.len() > columns.len() {
            let why = format!(
                "{} cells, where there are {} columns",
                cells.len(),
                columns.len()
            );
            return Err(Error::syntax(line, why));
        }
        let row = Row { file, value: whole };
        let cells = cells.iter().map(|text| Ok(cell(text, data, row)?.0));
        table.row(cells.collect::<Result<Vec<String>, Error>>()?);
    }
    Ok(table.text(Look::Plain))
}

/// Rows by the values of one key, their elements by those of another.
fn group(rows: &[&Value], row: &str, element: &str) -> Vec<Value> {
    let name = |value: &Value, key: &str| match &value[key] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut groups: Vec<(String, Map<String, Value>)> = Vec::new();
    for value in rows {
        let wanted = name(value, row);
        let at = groups.iter().position(|(there, _)| *there == wanted);
        let at = at.unwrap_or_else(|| {
            groups.push((wanted, Map::new()));
            groups.len() - 1
        });
        groups[at].1.insert(name(value, element), (*value).clone());
    }
    groups
        .into_iter()
        .map(|(_, group)| Value::Object(group))
        .collect()
}

/// Rows of the elements of each row's list, with the row's other keys.
fn flat(rows: &[&Value], list: &str) -> Vec<Value> {
    let elements = |row: &Value| row[list].as_array().cloned().unwrap_or_default();
    let whole = |row: &Value, element: &Value| {
        let mut whole = row.as_object().cloned().unwrap_or_default();
        whole.remove(list);
        whole.extend(element.as_object().cloned().unwrap_or_default());
        Value::Object(whole)
    };
    let of = |row: &&Value| {
        elements(row)
            .iter()
            .map(|element| whole(row, element))
            .collect::<Vec<_>>()
    };
    rows.iter().flat_map(of).collect()
}

/// A cell's text, and which of its parts in brackets it has.
fn cell(text: &str, data: &Data, row: Row<'_>) -> Result<(String, Vec<bool>), Error> {
    let (mut written, mut parts) = (String::new(), Vec::new());
    let mut rest = text;
    while let Some(at) = rest.find(['{', '[']) {
        written.push_str(&rest[..at]);
        let figure = rest[at..].starts_with('{');
        let closing = if figure { '}' } else { ']' };
        let end = closes(&rest[at..], closing).map(|end| at + end);
        let end = end.ok_or_else(|| Error::syntax(text, format!("{closing} is missing")))?;
        let inside = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if figure {
            written.push_str(&Reference::parse(inside)?.show(data, Some(row))?);
            continue;
        }
        match cell(inside, data, row) {
            Ok((part, _)) => {
                written.push_str(&part);
                parts.push(true);
            }
            Err(Error::Missing { .. } | Error::NoNumber { .. }) => parts.push(false),
            Err(error) => return Err(error),
        }
    }
    written.push_str(rest);
    Ok((written, parts))
}

/// Where what opens at the start closes: brackets within braces belong to paths.
fn closes(text: &str, closing: char) -> Option<usize> {
    let (mut braces, mut parts) = (0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '{' => braces += 1,
            '}' => braces -= 1,
            '[' if braces == 0 => parts += 1,
            ']' if braces == 0 => parts -= 1,
            _ => {}
        }
        if c == closing && braces == 0 && parts == 0 {
            return Some(at);
        }
    }
    None
}
