//! Log of a long-running command: formats and deduplicates events of `tracing`.
//!
//! Log lines go to standard error, after the name of the command or their level.
//! Results of a dry run ([`RESULT`]) go to standard output without a prefix, at every verbosity.
//! If standard error is the journal of systemd, a line begins with its priority as in sd-daemon(3), for `journalctl -p warning`.
//!
//! Two fields suppress repetitions and are not printed:
//! - `once = true`: the line is logged once.
//! - `subject = …`, `state = …`: a line about the subject is logged if the state differs from that of its last line, at most once a second.
//!   So a dry run, whose policies decide the same in every period, logs a decision once.
//!   Without a state, only the first line about the subject is logged.
//!
//! Non-goals: spans, and times, which the journal adds.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use tracing::level_filters::LevelFilter;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::writer::{MakeWriter, MakeWriterExt};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::printable::printable;

/// Target of the decisions of a dry run.
pub const RESULT: &str = "result";

/// Target of the event that the command acts from now on.
pub const READY: &str = "ready";

/// Minimum interval between lines about a subject.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of remembered lines, so that changing ones do not grow the process.
const MAX_REMEMBERED: usize = 1 << 16;

/// Output of a command: log lines on standard error, results on standard output.
/// Write errors, as on a closed pipe, are ignored.
#[derive(Clone, Copy, Debug)]
pub struct Console {
    /// Prefix of log lines, without the colon; `None` for the level.
    pub name: Option<&'static str>,
    /// Print `ready` on standard output once acting, for scripts that wait for it.
    pub print_ready: bool,
    /// Maximum level of log lines.
    pub level: LevelFilter,
}

impl Console {
    /// Prints all further events of this process; later calls have no effect.
    pub fn install(self) {
        let writer = std::io::stdout.with_filter(is_output).or_else(std::io::stderr);
        let _ = tracing::subscriber::set_global_default(self.layers(writer, is_journal()));
    }

    /// Returns a subscriber that writes log lines and results to one writer.
    pub fn subscriber<W>(self, writer: W) -> impl Subscriber + for<'a> LookupSpan<'a>
    where
        W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
    {
        self.layers(writer, false)
    }

    fn layers<W>(
        self,
        writer: W,
        has_priority: bool,
    ) -> impl Subscriber + for<'a> LookupSpan<'a> + use<W>
    where
        W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
    {
        let filter = filter_fn(move |metadata| match metadata.target() {
            RESULT => true,
            READY => self.print_ready,
            _ => *metadata.level() <= self.level,
        });
        let lines = tracing_subscriber::fmt::layer()
            .event_format(Format { name: self.name, has_priority })
            .with_writer(writer)
            .log_internal_errors(false);
        tracing_subscriber::registry().with(filter).with(Deduplicate::default()).with(lines)
    }
}

/// Whether an event belongs on standard output.
fn is_output(metadata: &Metadata<'_>) -> bool {
    matches!(metadata.target(), RESULT | READY)
}

/// Whether standard error is a stream of the journal: `JOURNAL_STREAM` of systemd.exec(5) has its device and inode.
pub fn is_journal() -> bool {
    let stream = std::env::var("JOURNAL_STREAM");
    rustix::fs::fstat(std::io::stderr())
        .is_ok_and(|stat| stream == Ok(format!("{}:{}", stat.st_dev, stat.st_ino)))
}

/// The fields of an event that have a meaning here.
#[derive(Default)]
struct Fields {
    message: String,
    is_once: bool,
    subject: Option<String>,
    state: String,
}

impl Fields {
    fn of(event: &Event<'_>) -> Fields {
        let mut fields = Fields::default();
        event.record(&mut fields);
        fields
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "once" => self.is_once = true,
            "subject" => self.subject = Some(format!("{value:?}")),
            "state" => self.state = format!("{value:?}"),
            _ => {}
        }
    }
}

/// Formats a log entry: escapes names that others chose, and indents further lines so that none looks like another entry.
struct Format {
    name: Option<&'static str>,
    has_priority: bool,
}

impl Format {
    /// Returns the prefix of the first line.
    fn prefix(&self, level: Level) -> String {
        let word = match level {
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            _ if self.name.is_none() => "info: ",
            _ => "",
        };
        self.name.map_or_else(String::new, |name| format!("{name}: ")) + word
    }

    /// Returns the priority of syslog(3) that begins each line.
    fn priority(&self, level: Level) -> &'static str {
        match level {
            _ if !self.has_priority => "",
            Level::ERROR => "<3>",
            Level::WARN => "<4>",
            Level::INFO => "<6>",
            _ => "<7>",
        }
    }
}

impl<S, N> FormatEvent<S, N> for Format
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = *event.metadata().level();
        let (priority, mut prefix) = if is_output(event.metadata()) {
            ("", String::new())
        } else {
            (self.priority(level), self.prefix(level))
        };
        for line in Fields::of(event).message.lines() {
            writeln!(writer, "{priority}{prefix}{}", printable(line))?;
            prefix = "  ".to_owned();
        }
        Ok(())
    }
}

/// Suppresses repeated events.
#[derive(Default)]
struct Deduplicate(Mutex<Logged>);

impl<S: Subscriber> Layer<S> for Deduplicate {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let Fields { message, is_once, subject, state } = Fields::of(event);
        let Some(subject) = subject.or_else(|| is_once.then_some(message)) else {
            return true;
        };
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        logged.is_news(Instant::now(), &subject, &state)
    }
}

/// Time and state of the last line about each subject, as hashes.
#[derive(Default)]
struct Logged {
    last: HashMap<u64, (Instant, u64)>,
    hasher: RandomState,
}

impl Logged {
    /// Returns whether to log a line, and remembers it if so.
    fn is_news(&mut self, now: Instant, subject: &str, state: &str) -> bool {
        let (subject, state) = (self.hasher.hash_one(subject), self.hasher.hash_one(state));
        if let Some((at, last)) = self.last.get(&subject)
            && (*last == state || now.duration_since(*at) < LOG_INTERVAL)
        {
            return false;
        }
        if self.last.len() >= MAX_REMEMBERED {
            self.last.clear();
        }
        self.last.insert(subject, (now, state));
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tracing::{debug, error, info, warn};

    use super::*;

    /// Returns the output of a function.
    fn output(
        name: Option<&'static str>,
        level: LevelFilter,
        is_journal: bool,
        log: fn(),
    ) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        let writer = Arc::new(file.reopen().unwrap());
        let console = Console { name, print_ready: false, level };
        tracing::subscriber::with_default(console.layers(writer, is_journal), log);
        std::fs::read_to_string(file.path()).unwrap()
    }

    fn levels() {
        error!("one");
        warn!("two");
        info!("three");
        debug!("four");
        info!(target: RESULT, "would five");
        info!(target: READY, "ready");
    }

    #[test]
    fn lines_have_level_or_name() {
        let log = output(None, LevelFilter::INFO, false, levels);
        assert_eq!(log, "error: one\nwarning: two\ninfo: three\nwould five\n");
        let log = output(Some("tandem guest"), LevelFilter::INFO, false, levels);
        let lines: Vec<&str> = log.lines().collect();
        assert_eq!(lines[..2], ["tandem guest: error: one", "tandem guest: warning: two"]);
        assert_eq!(lines[2..], ["tandem guest: three", "would five"]);
        let log = output(None, LevelFilter::ERROR, false, levels);
        assert_eq!(log, "error: one\nwould five\n");
    }

    #[test]
    fn text_cannot_forge_an_entry() {
        let forge = || error!("VM {}", "x\nerror: all is lost\x1b[2J\rok");
        let log = output(None, LevelFilter::INFO, false, forge);
        assert_eq!(log, "error: VM x\n  error: all is lost\\x1b[2J\\x0dok\n");
        let log = output(None, LevelFilter::INFO, true, forge);
        assert_eq!(log, "<3>error: VM x\n<3>  error: all is lost\\x1b[2J\\x0dok\n");
    }

    #[test]
    fn journal_lines_have_priorities() {
        let log = output(None, LevelFilter::DEBUG, true, levels);
        assert_eq!(
            log,
            "<3>error: one\n<4>warning: two\n<6>info: three\n<7>info: four\nwould five\n"
        );
    }

    #[test]
    fn recurring_line_is_logged_once() {
        let recur = || {
            for text in ["a", "b", "a", "b"] {
                error!(once = true, "{text}");
                info!("{text}");
                info!(subject = text, state = text, "{text}{text}");
            }
        };
        let log = output(None, LevelFilter::INFO, false, recur);
        let lines: Vec<&str> = log.lines().collect();
        assert_eq!(lines[..3], ["error: a", "info: a", "info: aa"]);
        assert_eq!(lines[3..], ["error: b", "info: b", "info: bb", "info: a", "info: b"]);
    }

    #[test]
    fn changed_state_is_logged_once_a_second() {
        let (mut logged, begin) = (Logged::default(), Instant::now());
        let mut is_news = |ms, subject: &str, state: &str| {
            logged.is_news(begin + Duration::from_millis(ms), subject, state)
        };
        assert!(is_news(0, "vm", "2048"));
        assert!(!is_news(100, "vm", "2048"));
        assert!(is_news(100, "other", "2048"));
        assert!(!is_news(200, "vm", "1024"), "too soon");
        assert!(is_news(1200, "vm", "1024"));
        assert!(!is_news(9000, "vm", "1024"));
        for n in 0..2 * MAX_REMEMBERED {
            logged.is_news(begin, &n.to_string(), "");
            assert!(logged.last.len() <= MAX_REMEMBERED);
        }
    }
}
