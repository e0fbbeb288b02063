//! A scenario's file with what is different in it, as it is asked for in words.

use std::path::Path;

use tandem_sim::scenario::load::LoadError;
use tandem_sim::scenario::load::Setting;
use tandem_sim::scenario::load::Source;

/// Reads a scenario and notes what is different: settings as `KEY=VALUE`, the seed, and how long to
/// simulate, such as `200ms`; later ones replace what earlier ones said.
pub fn source(
    path: &Path,
    settings: &[String],
    seed: Option<u64>,
    duration: Option<&str>,
) -> Result<Source, LoadError> {
    let mut source = Source::read(path)?;
    for setting in settings {
        source.set(Setting::parse(setting)?);
    }
    if let Some(seed) = seed {
        source.set(Setting::parse(&format!("seed={seed}"))?);
    }
    if let Some(duration) = duration {
        source.set(Setting::parse(&format!("duration={duration}"))?);
    }
    Ok(source)
}
