//! Settings files and checks of values, shared by daemon and agent.
//!
//! The file is read and parsed first; ranges are checked after the flags are applied.
//! An error names the file or the key, the value, and the valid form.

use std::cmp::Reverse;
use std::fmt::Display;
use std::io;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use tandem_model::nesting::{TOO_DEEP, too_deep};
use tandem_model::suggestion::nearest;
use tandem_policy::settings::{Ranged, Value};
use thiserror::Error;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::printable::printable;
use crate::replace::{NO_FILE, is_no_file};

/// Maximum length of a settings file, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Maximum length of a value in an error, in characters.
const MAX_VALUE: usize = 200;

/// Maximum length of the valid form in an error, in characters; it may contain a path.
const MAX_EXPECTED: usize = 600;

/// Why settings cannot be used.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The file is not TOML, or has an unknown key or a value of the wrong type.
    #[error("configuration {path}: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Line, key and expected value.
        message: String,
    },
    /// A value is out of range.
    #[error("{key} = {value} is not possible: {expected}")]
    Value {
        /// The key, as in the file.
        key: String,
        /// The value given.
        value: String,
        /// The valid form.
        expected: String,
    },
}

impl SettingsError {
    /// Creates an error for a value out of range; truncates long texts.
    pub fn value(key: &str, value: impl Display, expected: impl Display) -> SettingsError {
        let value = value.to_string();
        SettingsError::Value {
            key: key.to_owned(),
            value: printable(&value).chars().take(MAX_VALUE).collect(),
            expected: printable(&expected.to_string()).chars().take(MAX_EXPECTED).collect(),
        }
    }
}

/// A section of a settings file.
pub struct Section<'a> {
    name: &'a str,
    /// Keys with a former name.
    renamed: &'static [Renamed],
    /// Its settings with a range: errors show it, and times are written with a unit.
    ranged: Vec<Ranged>,
}

/// A key with a former name, which is still read.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("{old} is {} now{}; the next release removes the old form", new.join(" and "), in_unit(unit))]
pub struct Renamed {
    /// The former name.
    pub old: &'static str,
    /// The keys in its place.
    pub new: &'static [&'static str],
    /// Unit of its number; the new keys are texts with a unit.
    pub unit: &'static str,
}

fn in_unit(unit: &str) -> String {
    if unit.is_empty() { String::new() } else { format!(", with a unit, such as \"10{unit}\"") }
}

impl<'a> Section<'a> {
    /// A section with these settings, and those of its tables.
    pub fn new<const N: usize, const M: usize>(
        name: &'a str,
        renamed: &'static [Renamed],
        own: [Ranged; N],
        tables: [(&str, Vec<Ranged>); M],
    ) -> Section<'a> {
        let within = |(table, settings): (&str, Vec<Ranged>)| -> Vec<Ranged> {
            settings.into_iter().map(|setting| setting.within(table)).collect()
        };
        let ranged = own.into_iter().chain(tables.into_iter().flat_map(within)).collect();
        Section { name, renamed, ranged }
    }

    /// Reads a file with this section; returns it with the former keys that it has.
    pub fn read<T: DeserializeOwned>(
        &self,
        path: &Path,
    ) -> Result<(T, Vec<&'static Renamed>), SettingsError> {
        let text = text(path)?;
        let wrong = |message| SettingsError::Parse { path: path.to_owned(), message };
        if let Some(at) = too_deep(&text) {
            return Err(wrong(format!("line {}: {TOO_DEEP}", line(&text, at))));
        }
        self.parse(&text).map_err(wrong)
    }

    fn parse<T: DeserializeOwned>(&self, text: &str) -> Result<(T, Vec<&'static Renamed>), String> {
        let mut root =
            DeTable::parse(text).map_err(|error| explain(error.to_string().trim_end(), None))?;
        let mut found = Vec::new();
        if let Some(DeValue::Table(section)) =
            root.get_mut().get_mut(self.name).map(Spanned::get_mut)
        {
            for renamed in self.renamed {
                match rename(section, renamed) {
                    Ok(true) => found.push(renamed),
                    Ok(false) => {}
                    Err((at, message)) => {
                        return Err(format!("line {}: {message}", line(text, at)));
                    }
                }
            }
        }
        let read = T::deserialize(toml::Deserializer::from(root.clone()));
        let read = read.map_err(|mut error| {
            let key = error.span().and_then(|span| key_at(root.get_ref(), span.start));
            let key = key.as_deref().and_then(|key| key.strip_prefix(self.name)?.strip_prefix('.'));
            let ranged = key.and_then(|key| self.ranged.iter().find(|ranged| ranged.key == key));
            error.set_input(Some(text));
            explain(error.to_string().trim_end(), ranged)
        })?;
        Ok((read, found))
    }

    /// Returns a file with this section as text.
    pub fn write<T: Serialize>(&self, file: &T) -> String {
        // Every setting has a form in TOML, so this cannot fail.
        let mut text = toml::to_string_pretty(file).unwrap_or_default();
        let Ok(root) = DeTable::parse(&text) else {
            return text;
        };
        let value = |key: &str| {
            let section = root.get_ref().get(self.name)?;
            key.split('.').try_fold(section, |table, key| table.get_ref().as_table()?.get(key))
        };
        let mut times: Vec<_> = self
            .ranged
            .iter()
            .filter_map(|setting| match setting.value {
                Value::Time(_) => Some((value(&setting.key)?.span(), setting.value)),
                _ => None,
            })
            .collect();
        times.sort_by_key(|(span, _)| Reverse(span.start));
        for (span, time) in times {
            text.replace_range(span, &format!("\"{time}\""));
        }
        text
    }

    /// Returns settings of this section with another value of a key; the error is the valid form.
    pub fn set<T: Serialize + DeserializeOwned>(
        &self,
        settings: &T,
        key: &str,
        text: &str,
    ) -> Result<T, String> {
        let message = |error: &dyn Display| {
            let ranged = self.ranged.iter().find(|ranged| ranged.key == key);
            explain(&error.to_string(), ranged)
        };
        let mut all = toml::Table::try_from(settings).map_err(|error| message(&error))?;
        let mut path = key.split('.');
        let last = path.next_back().unwrap_or_default();
        let table = path.try_fold(&mut all, |table, name| table.get_mut(name)?.as_table_mut());
        let value = text.parse().unwrap_or_else(|_| toml::Value::String(text.to_owned()));
        table.ok_or("no such key")?.insert(last.to_owned(), value);
        all.try_into().map_err(|error: toml::de::Error| message(&error.message()))
    }

    /// Returns the range of a setting that is outside.
    pub fn range_outside(&self, key: &str) -> Option<String> {
        let setting = self.ranged.iter().find(|setting| setting.key == key)?;
        (!setting.is_within()).then(|| setting.range())
    }

    /// Checks the settings with a range.
    pub fn check(&self) -> Result<(), SettingsError> {
        match self.ranged.iter().find(|setting| !setting.is_within()) {
            Some(wrong) => Err(SettingsError::value(&wrong.key, wrong.value, wrong.range())),
            None => Ok(()),
        }
    }
}

/// Reads the text of a file.
fn text(path: &Path) -> Result<String, SettingsError> {
    let failed = |source| SettingsError::Read { path: path.to_owned(), source };
    let mut text = String::new();
    // Some files, such as /dev/zero, never end.
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text))
        .map_err(failed)?;
    if text.len() as u64 > MAX_BYTES {
        let too_long = format!("it is longer than {MAX_BYTES} bytes; no settings are");
        return Err(failed(io::Error::other(too_long)));
    }
    Ok(text)
}

/// Returns the number of the line with this byte.
fn line(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Moves the value of a former key to the new ones; returns whether there was one.
/// The error has its position.
fn rename(section: &mut DeTable<'_>, renamed: &Renamed) -> Result<bool, (usize, String)> {
    let old = renamed.old;
    let mut path = old.split('.');
    let last = path.next_back().unwrap_or_default();
    let table = path.try_fold(&mut *section, |table, name| match table.get_mut(name)?.get_mut() {
        DeValue::Table(inner) => Some(inner),
        _ => None,
    });
    let Some((key, mut value)) = table.and_then(|table| table.remove_entry(last)) else {
        return Ok(false);
    };
    if let (DeValue::Integer(number), false) = (value.get_ref(), renamed.unit.is_empty()) {
        let text = format!("{number}{}", renamed.unit);
        value = Spanned::new(value.span(), DeValue::String(text.into()));
    }
    for new in renamed.new {
        let (table, name) = new.rsplit_once('.').unwrap_or(("", new));
        let name = Spanned::new(key.span(), name.into());
        if let Some(table) = table_at(section, table)
            && table.insert(name, value.clone()).is_some()
        {
            let message = format!("{old} is the old name of {new}, which is set too: omit {old}");
            return Err((key.span().start, message));
        }
    }
    Ok(true)
}

/// Returns the table with this path, which is created if it is missing; `None` if a value is in its place.
fn table_at<'a, 'i>(mut table: &'a mut DeTable<'i>, path: &str) -> Option<&'a mut DeTable<'i>> {
    for name in path.split_terminator('.') {
        let name = Spanned::new(0..0, name.to_owned().into());
        let inner = table.entry(name).or_insert(Spanned::new(0..0, DeValue::Table(DeTable::new())));
        let DeValue::Table(inner) = inner.get_mut() else {
            return None;
        };
        table = inner;
    }
    Some(table)
}

/// Returns the path of the key whose value is at this position.
fn key_at(table: &DeTable<'_>, at: usize) -> Option<String> {
    table.iter().find_map(|(key, value)| match value.get_ref() {
        DeValue::Table(inner) => Some(format!("{}.{}", key.get_ref(), key_at(inner, at)?)),
        _ => value.span().contains(&at).then(|| key.get_ref().to_string()),
    })
}

/// Rewrites a message of the parser: replaces Rust types by TOML terms, adds the range, and suggests a key for a mistyped one.
fn explain(message: &str, ranged: Option<&Ranged>) -> String {
    const TYPES: [(&str, &str); 9] = [
        ("a sequence", "a list, such as [\"a\", \"b\"]"),
        ("a map", "a table, such as { key = value }"),
        ("a borrowed string", "a string"),
        ("u16", "a whole number, 0 … 65535"),
        ("u32", "a whole number, 0 or more"),
        ("u64", "a whole number, 0 or more"),
        ("usize", "a whole number, 0 or more"),
        ("i64", "a whole number"),
        ("f64", "a number"),
    ];
    let replace_type = |message: String, (name, words): &(&str, &str)| {
        message.replace(&format!("expected {name}\n"), &format!("expected {words}\n"))
    };
    let message = TYPES.iter().fold(format!("{message}\n"), replace_type);
    let message = message.trim_end();
    match (suggested(message), ranged) {
        (Some(key), _) => format!("{message}; did you mean `{key}`?"),
        (None, Some(ranged)) => {
            format!("{}, {}", message.trim_end_matches(", 0 or more"), ranged.range())
        }
        (None, None) => message.to_owned(),
    }
}

/// Suggests a key or variant for an unknown one in serde's message: "unknown field `dry_rnu`, expected one of `dry_run`, `gain`".
fn suggested(message: &str) -> Option<&str> {
    let unknown = ["unknown field `", "unknown variant `"];
    let rest = unknown.iter().find_map(|start| message.split_once(start)).map(|(_, rest)| rest)?;
    let (word, rest) = rest.split_once("`, expected ")?;
    nearest(word, rest.lines().next()?.split('`').skip(1).step_by(2))
}

/// Deserializes an optional address with a port.
pub fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)?;
    text.map(|text| parse_address(&text).map_err(D::Error::custom)).transpose()
}

/// Parses an address with a port from an option.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!(
            "'{}' is no address and port, such as 127.0.0.1:9464 or [::1]:9464",
            printable(text)
        )
    })
}

/// Checks that a state directory's path is not empty.
pub fn check_state_dir(dir: &Path) -> Result<(), SettingsError> {
    if dir.as_os_str().is_empty() {
        Err(SettingsError::value("state_dir", "\"\"", "a directory, such as /run/tandem"))
    } else {
        Ok(())
    }
}

/// Checks that metrics are served on loopback only; `example` is the port in the message.
pub fn check_metrics_listen(
    address: Option<SocketAddr>,
    example: u16,
) -> Result<(), SettingsError> {
    match address {
        Some(address) if !address.ip().is_loopback() => Err(SettingsError::value(
            "metrics_listen",
            address,
            format!("metrics are served on loopback only, such as 127.0.0.1:{example}"),
        )),
        _ => Ok(()),
    }
}

/// Checks that a metrics file can be created: its folder exists, and the path is not a folder or device.
pub fn check_metrics_file(file: Option<&Path>) -> Result<(), SettingsError> {
    let Some(file) = file else {
        return Ok(());
    };
    let wrong = |expected: String| SettingsError::value("metrics_file", file.display(), expected);
    if file.is_dir() {
        return Err(wrong("it is a folder; name a file".to_owned()));
    }
    if is_no_file(file) {
        return Err(wrong(NO_FILE.to_owned()));
    }
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => Err(wrong(format!(
            "{} is no folder; make it first, or name a file in one that is there",
            folder.display()
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use tandem_model::Nanos;

    use super::*;

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct File {
        a: Keys,
    }

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Keys {
        whole: u64,
        of_time: Times,
    }

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Times {
        wait: Nanos,
        rest: Nanos,
    }

    fn section(file: &File) -> Section<'static> {
        static RENAMED: [Renamed; 2] = [
            Renamed { old: "wait_ms", new: &["of_time.wait", "of_time.rest"], unit: "ms" },
            Renamed { old: "of_time.old", new: &["of_time.rest"], unit: "" },
        ];
        let whole = Ranged::new("whole", file.a.whole, (5, 7));
        let wait = Ranged::new("wait", file.a.of_time.wait, (Nanos::ZERO, Nanos::from_secs(1)));
        Section::new("a", &RENAMED, [whole], [("of_time", vec![wait])])
    }

    fn file(text: &str) -> Result<(File, usize), String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.toml");
        std::fs::write(&path, text).unwrap();
        let (file, former) = section(&File::default()).read(&path).map_err(|error| {
            let said = error.to_string();
            let start = format!("configuration {}: ", path.display());
            said.strip_prefix(&start).expect("errors name the file").to_owned()
        })?;
        Ok((file, former.len()))
    }

    #[test]
    fn former_keys_are_read_times_have_units() {
        let ms = Nanos::from_millis;
        for (text, wait, rest, former) in [
            ("[a]\nwait_ms = 20\n", ms(20), ms(20), 1),
            ("a = { wait_ms = 20 }\n", ms(20), ms(20), 1),
            ("[a.of_time]\nwait = \"1.5ms\"\nold = 7\n", Nanos(1_500_000), Nanos(7), 1),
            ("[a.of_time]\nwait = 4000000\nrest = \"1s\"", ms(4), Nanos::from_secs(1), 0),
        ] {
            let (read, found) = file(text).unwrap();
            let wanted = File { a: Keys { whole: 0, of_time: Times { wait, rest } } };
            assert_eq!((&read, found), (&wanted, former), "{text}");
            let written = section(&read).write(&read);
            let line = format!("wait = \"{}\"", wait.in_whole_units());
            assert!(written.contains(&line), "{written}");
            assert_eq!(file(&written), Ok((read, 0)));
        }
        let hint = section(&File::default()).renamed[0].to_string();
        assert!(hint.starts_with("wait_ms is of_time.wait and of_time.rest now, with a unit"));
    }

    #[test]
    fn errors_have_line_and_range() {
        for (text, line, said) in [
            ("[a]\nwhole = \"x\"", "line 2", "expected a whole number, 5 … 7"),
            ("[a]\n\nwait_ms = -2", "line 3", "such as \"4ms\""),
            ("[a]\nof_time.wait = true", "line 2", "such as \"4ms\", 0ns … 1s"),
            ("[a]\nof_time.rest = true", "line 2", "such as \"4ms\""),
            ("[a]\nwhile = 1", "line 2", "did you mean `whole`?"),
            ("[a]\nof_time = 1", "line 2", "expected struct Times"),
            (
                "[a]\nwait_ms = 1\nof_time.rest = 2",
                "line 2",
                "wait_ms is the old name of of_time.rest, which is set too: omit wait_ms",
            ),
        ] {
            let error = file(text).unwrap_err();
            assert!(error.contains(line) && error.ends_with(said), "{text}: {error}");
        }
        let (read, _) = file("[a]\nwhole = 8").unwrap();
        let error = section(&read).check().unwrap_err().to_string();
        assert_eq!(error, "whole = 8 is not possible: 5 … 7");
    }

    #[test]
    fn long_values_and_endless_files_are_refused() {
        let error = SettingsError::value("a", format!("\u{1b}{}", "x".repeat(1 << 20)), "less");
        let said = error.to_string();
        assert!(said.starts_with("a = \\x1bxxx") && said.len() < 300, "{said}");
        let error = SettingsError::value("a", 1, "x".repeat(1 << 20));
        assert!(error.to_string().len() < 700);
        let endless = text(Path::new("/dev/zero")).unwrap_err();
        assert!(endless.to_string().contains("longer than"), "{endless}");
    }

    #[test]
    fn metrics_listen_on_loopback_only() {
        let at = |address: &str| Some(address.parse().unwrap());
        assert!(check_metrics_listen(None, 1).is_ok());
        assert!(check_metrics_listen(at("127.0.0.1:80"), 1).is_ok());
        let error = check_metrics_listen(at("0.0.0.0:80"), 9464).unwrap_err();
        assert!(error.to_string().contains("127.0.0.1:9464"), "{error}");
    }

    #[test]
    fn metrics_file_needs_an_existing_folder() {
        let folder = tempfile::tempdir().unwrap();
        let said = |path: &Path| check_metrics_file(Some(path)).map_err(|error| error.to_string());
        assert!(check_metrics_file(None).is_ok());
        assert!(said(&folder.path().join("new.prom")).is_ok());
        assert!(said(Path::new("here.prom")).is_ok());
        let missing = said(&folder.path().join("no/new.prom")).unwrap_err();
        assert!(missing.starts_with("metrics_file = "), "{missing}");
        assert!(missing.contains("no is no folder; make it first"), "{missing}");
        assert!(said(folder.path()).unwrap_err().contains("name a file"));
        let device = said(Path::new("/dev/null")).unwrap_err();
        assert!(device.contains("name a file"), "{device}");
    }

    #[test]
    fn missing_files_and_deep_tables_are_refused() {
        let missing = text(Path::new("/no/such.toml")).unwrap_err().to_string();
        assert!(missing.contains("cannot read the configuration /no/such.toml"), "{missing}");
        let deep = file(&format!("a = 1\nb = {}", "{".repeat(10_000))).unwrap_err();
        assert!(deep.ends_with(&format!("line 2: {TOO_DEEP}")), "{deep}");
    }
}
