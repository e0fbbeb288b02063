//! Options with a new form since 0.2, such as `db` for `--select-name db` and `--duration 10s` for `--seconds 10`.
//!
//! For one release, `tandem` replaces them before it parses its arguments, and prints one line with the new form.
//! Only options of `tandem host` and `tandem guest` before `--`, where a command of the user starts, are replaced.

use std::ffi::OsString;

use tandem_command::invocation::quoted;
use tandem_command::tell;

/// The new form of an option.
#[derive(Clone, Copy, Debug)]
enum New {
    /// The value becomes the argument VM.
    Vm,
    /// This option with the value; a value without a unit gets this one.
    Time(&'static str, &'static str),
    /// `--trace` without a value, which becomes `--duration`.
    Trace,
    /// The option has no effect and is dropped.
    Dropped,
}

/// An old option of some commands.
struct Old {
    commands: &'static [&'static str],
    option: &'static str,
    /// Whether the option has a value.
    has_value: bool,
    new: New,
}

const fn old(commands: &'static [&'static str], option: &'static str, new: New) -> Old {
    Old { commands, option, has_value: true, new }
}

const SELECTING: &[&str] = &["host run", "host top", "host status", "host export", "host replay"];
const STATUS: &[&str] = &["host status"];

const TABLE: &[Old] = &[
    old(SELECTING, "--select-name", New::Vm),
    old(SELECTING, "--select-pid", New::Vm),
    old(SELECTING, "--select-cgroup", New::Vm),
    Old {
        commands: &["host top", "host status", "host export"],
        option: "--select-all",
        has_value: false,
        new: New::Dropped,
    },
    old(
        &["host run", "host why", "guest run", "guest record"],
        "--seconds",
        New::Time("--duration", "s"),
    ),
    old(&["host why", "host scalability"], "--interval", New::Time("--duration", "s")),
    old(&["host record"], "--for", New::Time("--duration", "s")),
    old(&["host record"], "--trace", New::Trace),
    old(&["guest run"], "--period-ms", New::Time("--interval", "ms")),
    // The daemon answers the request, with its own discovery.
    old(STATUS, "--source", New::Dropped),
    old(STATUS, "--thread-pattern", New::Dropped),
    old(STATUS, "--qmp-socket", New::Dropped),
    old(STATUS, "--without-kvm", New::Dropped),
];

/// Returns the arguments of this process with the new form of each option, and prints a hint about replaced ones.
pub fn arguments() -> Vec<OsString> {
    let given: Vec<OsString> = std::env::args_os().collect();
    let is_quiet =
        given.iter().take_while(|word| *word != "--").any(|word| word == "-q" || word == "--quiet");
    let (replaced, hint) = replace(given);
    if let Some(hint) = hint.filter(|_| !is_quiet) {
        tell!("tandem: {hint}");
    }
    replaced
}

/// Returns the arguments with the new forms, and a hint about replaced ones.
fn replace(given: Vec<OsString>) -> (Vec<OsString>, Option<String>) {
    let Some((command, begin)) = command(&given) else {
        return (given, None);
    };
    let mut rest = given;
    let mut own = rest.split_off(begin);
    let after = own.iter().position(|word| word == "--").unwrap_or(own.len());
    let foreign = own.split_off(after);
    let (mut vms, mut before, mut now) = (Vec::new(), Vec::new(), Vec::new());
    let mut words = own.into_iter().peekable();
    while let Some(word) = words.next() {
        let text = word.to_str().unwrap_or_default();
        let (option, joined) = match text.split_once('=') {
            Some((option, value)) => (option, Some(value.to_owned())),
            None => (text, None),
        };
        let is_it = |old: &&Old| old.option == option && old.commands.contains(&command.as_str());
        let Some(old) = TABLE.iter().find(is_it) else {
            rest.push(word);
            continue;
        };
        let is_value = |next: &OsString| match old.new {
            // `--trace` without a value is the new form.
            New::Trace => {
                next.to_str().is_some_and(|next| next.starts_with(|c: char| c.is_ascii_digit()))
            }
            _ => true,
        };
        let is_joined = joined.is_some();
        let value = if old.has_value {
            joined.or_else(|| words.next_if(is_value)?.into_string().ok())
        } else {
            None
        };
        if value.is_none() && old.has_value {
            rest.push(word);
            continue;
        }
        before.push(match (&value, is_joined) {
            (Some(value), true) => quoted(&format!("{option}={value}")),
            (Some(value), false) => format!("{option} {}", quoted(value)),
            (None, _) => option.to_owned(),
        });
        let value = value.unwrap_or_default();
        let new = match old.new {
            New::Vm => {
                now.push(quoted(&value));
                vms.push(OsString::from(value));
                continue;
            }
            New::Time(option, unit) => vec![option.to_owned(), with_unit(&value, unit)],
            New::Trace => {
                vec!["--trace".to_owned(), "--duration".to_owned(), with_unit(&value, "s")]
            }
            New::Dropped => Vec::new(),
        };
        now.extend(new.iter().map(|word| quoted(word)));
        rest.extend(new.into_iter().map(OsString::from));
    }
    // VMs come last, because they follow the folder of a record.
    rest.extend(vms);
    rest.extend(foreign);
    (rest, hint(&command, &before, &now))
}

/// Returns the hint about replaced options.
fn hint(command: &str, before: &[String], now: &[String]) -> Option<String> {
    let before = before.join(" ");
    match (before.is_empty(), now.is_empty()) {
        (true, _) => None,
        (false, true) => {
            Some(format!("'{before}' has no effect on 'tandem {command}' any more; leave it out"))
        }
        (false, false) => Some(format!(
            "write {} instead of {before} after 'tandem {command}'; the next release removes the old form",
            now.join(" ")
        )),
    }
}

/// Adds the former unit to a number without one.
fn with_unit(value: &str, unit: &str) -> String {
    if value.parse::<f64>().is_ok_and(f64::is_finite) {
        format!("{value}{unit}")
    } else {
        value.to_owned()
    }
}

/// Returns the command, such as `host run`, and the position after it.
fn command(given: &[OsString]) -> Option<(String, usize)> {
    let mut words = Vec::new();
    let mut arguments = given.iter().enumerate().skip(1);
    while let Some((position, word)) = arguments.next() {
        let word = word.to_str()?;
        match word {
            "--color" => drop(arguments.next()),
            _ if word.starts_with('-') => {}
            _ => words.push(word),
        }
        if words.len() == 2 {
            return Some((words.join(" "), position + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the new form of a command line, and its hint.
    fn new(line: &str) -> (String, Option<String>) {
        let words = line.split(' ').map(OsString::from).collect();
        let (replaced, hint) = replace(words);
        let words: Vec<String> =
            replaced.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        (words.join(" "), hint)
    }

    #[test]
    fn old_options_have_a_new_form() {
        for (old, wanted) in [
            ("host run --select-name db-* --dry-run", "host run --dry-run db-*"),
            ("host run --select-pid=7 --seconds 10", "host run --duration 10s 7"),
            ("host top --select-all --once", "host top --once"),
            ("host replay --select-name db night", "host replay night db"),
            (
                "-q --color never host why db --interval 0.5",
                "-q --color never host why db --duration 0.5s",
            ),
            ("host why db --try --seconds 500ms", "host why db --try --duration 500ms"),
            ("host scalability --interval 2", "host scalability --duration 2s"),
            ("host record -o n --for 2h", "host record -o n --duration 2h"),
            ("host record -o n --trace 10", "host record -o n --trace --duration 10s"),
            ("host record --trace=1.5 -o n", "host record --trace --duration 1.5s -o n"),
            (
                "guest run --period-ms 20 -- a --seconds 1",
                "guest run --interval 20ms -- a --seconds 1",
            ),
            ("guest record --seconds 1 -o x", "guest record --duration 1s -o x"),
            ("host status --without-kvm 7 --json", "host status --json"),
        ] {
            let (found, hint) = new(&format!("tandem {old}"));
            assert_eq!(found, format!("tandem {wanted}"));
            assert!(hint.is_some(), "{old}");
        }
    }

    #[test]
    fn new_forms_print_no_hint() {
        for line in [
            "tandem",
            "tandem host",
            "tandem host run db-* --duration 10s",
            "tandem host top --interval 2",
            "tandem host record --trace -o n --duration 2s",
            "tandem host record -o n --trace",
            "tandem guest run -- make --seconds 1",
            "tandem demo --seconds 3",
            "tandem host run --select-name",
        ] {
            assert_eq!(new(line), (line.to_owned(), None));
        }
    }

    #[test]
    fn one_hint_lists_all_new_forms() {
        let (_, hint) = new("tandem host run --select-name db --seconds 10");
        assert_eq!(
            hint.unwrap(),
            "write db --duration 10s instead of --select-name db --seconds 10 after 'tandem host run'; the next release removes the old form"
        );
    }
}
