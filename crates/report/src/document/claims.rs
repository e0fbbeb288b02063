//! The table of `tandem sim reproduce` from what its `--json` writes: a claim stands in its first
//! row only, figures have three digits that matter, and a bound shows which side it is on.

use serde_json::Value;

use super::data::Error;
use crate::figure::three_digits;
use crate::table::Table;

/// The table of every figure of every claim.
pub fn table(list: &Value) -> Result<Table, Error> {
    let wrong = |what: &Value| Error::syntax(&what.to_string(), "not what reproduce --json writes");
    let mut table = Table::new(&["claim", "use", "figure", "published", "ours", "± 95 %", ""]);
    for claim in list.as_array().ok_or_else(|| wrong(list))? {
        let text = |key: &str| claim[key].as_str().ok_or_else(|| wrong(claim));
        let mut head = [text("id")?, text("use")?];
        let figures = claim["figures"].as_array().ok_or_else(|| wrong(claim))?;
        if figures.is_empty() {
            let [id, purpose] = head;
            table.row([id, purpose, "", "", "", "", "not covered"]);
        }
        for figure in figures {
            let name = figure["name"].as_str().ok_or_else(|| wrong(figure))?;
            let number = |key: &str| figure[key].as_f64();
            let sentence = number("published").is_none();
            let bound = match (number("low"), number("high")) {
                (Some(_), None) => "≥ ",
                (None, Some(_)) => "≤ ",
                _ => "",
            };
            let digits = |key: &str| match number(key) {
                Some(value) if !sentence => three_digits(value),
                _ => String::new(),
            };
            let met = |other: &Value| {
                other["reading_of"].is_string()
                    && other["reading_of"] == figure["reading_of"]
                    && other["in_band"] == true
            };
            let verdict = match (figure["in_band"].as_bool(), sentence) {
                (Some(true), _) => "in band",
                (Some(false), _) if figures.iter().any(met) => "another reading is",
                (Some(false), true) => "does not hold",
                (Some(false), false) => "OUT",
                (None, _) => "not covered",
            };
            let published = match digits("published") {
                none if none.is_empty() => none,
                value => format!("{bound}{value}"),
            };
            let [id, purpose] = std::mem::take(&mut head);
            let name = label(name, figure);
            let name = match digits("with_our_settings") {
                none if none.is_empty() => name,
                ours => format!("{name} (with our settings {ours})"),
            };
            let cells = [id.to_owned(), purpose.to_owned(), name];
            let ours = [
                published,
                digits("ours"),
                digits("ci95"),
                verdict.to_owned(),
            ];
            table.row(cells.into_iter().chain(ours));
        }
    }
    Ok(table)
}

/// A figure's name, and in brackets what is to be known of it.
fn label(name: &str, figure: &Value) -> String {
    let remarks = [
        ("reading_of", "one of several readings"),
        ("out_of_reach", "out of reach"),
        ("weak", "weak"),
    ];
    let remarks = remarks.iter().filter(|(key, _)| figure[key].is_string());
    let remarks = remarks.map(|(_, remark)| format!(" ({remark})"));
    std::iter::once(name.to_owned()).chain(remarks).collect()
}
