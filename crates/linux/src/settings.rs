//! Settings files and checks of values, shared by daemon and agent.
//!
//! The file is read and parsed first; ranges are checked after the flags are applied.
//! An error names the file or the key, the value, and the valid form.

use std::fmt::Display;
use std::io;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use tandem_model::nesting::{TOO_DEEP, too_deep};
use tandem_model::suggestion::nearest;
use thiserror::Error;

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

/// Reads and parses a settings file.
pub fn read<T, E: Display>(
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, SettingsError> {
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
    let wrong = |message: String| SettingsError::Parse { path: path.to_owned(), message };
    if let Some(at) = too_deep(&text) {
        let line = text[..at].lines().count().max(1);
        return Err(wrong(format!("line {line}: {TOO_DEEP}")));
    }
    parse(&text).map_err(|error| wrong(explain(error.to_string().trim_end())))
}

/// Rewrites a message of the parser: replaces Rust types by TOML terms and suggests a key for a mistyped one.
fn explain(message: &str) -> String {
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
    match suggested(message) {
        Some(key) => format!("{message}; did you mean `{key}`?"),
        None => message.to_owned(),
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

/// Checks that a whole number is within these limits.
pub fn check_whole(
    key: &str,
    given: u64,
    least: u64,
    most: u64,
    unit: &str,
) -> Result<(), SettingsError> {
    if (least..=most).contains(&given) {
        Ok(())
    } else {
        let expected = format!("{least} … {most} {unit}");
        Err(SettingsError::value(key, given, expected))
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
    use super::*;

    #[test]
    fn range_errors_name_the_range() {
        let error = |checked: Result<(), SettingsError>| checked.unwrap_err().to_string();
        assert!(check_whole("a", 5, 5, 7, "ms").is_ok());
        let text = error(check_whole("a", 8, 5, 7, "ms"));
        assert_eq!(text, "a = 8 is not possible: 5 … 7 ms");
    }

    #[test]
    fn long_values_and_endless_files_are_refused() {
        let error = SettingsError::value("a", format!("\u{1b}{}", "x".repeat(1 << 20)), "less");
        let said = error.to_string();
        assert!(said.starts_with("a = \\x1bxxx") && said.len() < 300, "{said}");
        let error = SettingsError::value("a", 1, "x".repeat(1 << 20));
        assert!(error.to_string().len() < 700);
        let endless = read(Path::new("/dev/zero"), |_| Err::<(), _>("read")).unwrap_err();
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
    fn errors_name_the_file() {
        let parse = |_: &str| Err::<(), _>("no such key\n");
        let missing = read(Path::new("/no/such.toml"), parse).unwrap_err();
        assert!(missing.to_string().contains("cannot read the configuration /no/such.toml"));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.toml");
        std::fs::write(&path, "").unwrap();
        let wrong = read(&path, parse).unwrap_err().to_string();
        assert_eq!(wrong, format!("configuration {}: no such key", path.display()));
        std::fs::write(&path, format!("a = 1\nb = {}", "{".repeat(10_000))).unwrap();
        let deep = read(&path, parse).unwrap_err().to_string();
        assert!(deep.ends_with(&format!("line 2: {TOO_DEEP}")), "{deep}");
    }
}
