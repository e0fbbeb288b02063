//! Options of `tandem host run` that are keys of the settings file since 0.2; they remain for one release, hidden.

use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};
use tandem_command::{console, tell};
use tandem_host::config::{FORMER_KEYS, HostConfig};
use tandem_linux::log::LevelFilter;
use tandem_model::length::in_units;
use tandem_policy::asymmetric::AsymmetricConfig;

/// Options with the former names of keys, and keys with an option of their name.
fn options() -> impl Iterator<Item = &'static str> {
    let former = FORMER_KEYS.iter().map(|key| key.old);
    former.chain(["period_ms", "scan_ms", "asymmetric", "counters"])
}

/// The given options and their values.
#[derive(Clone, Debug)]
pub struct ExpertArgs(Vec<(&'static str, String)>);

impl Args for ExpertArgs {
    fn augment_args(command: Command) -> Command {
        let hidden = |option: &'static str| {
            // Clap keeps names for the life of the process.
            let long: &'static str = option.replace('_', "-").leak();
            Arg::new(option).long(long).hide(true).allow_negative_numbers(true)
        };
        command.args(options().map(hidden))
    }

    fn augment_args_for_update(command: Command) -> Command {
        ExpertArgs::augment_args(command)
    }
}

impl FromArgMatches for ExpertArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<ExpertArgs, Error> {
        let given = |option| Some((option, matches.get_one::<String>(option)?.clone()));
        let args: Vec<_> = options().filter_map(given).collect();
        for (option, value) in &args {
            set(&mut HostConfig::default(), option, value).map_err(|expected| {
                let option = option.replace('_', "-");
                let message = format!("invalid value '{value}' for '--{option}': {expected}\n");
                Error::raw(ErrorKind::ValueValidation, message)
            })?;
        }
        Ok(ExpertArgs(args))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = ExpertArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Sets the value of an option; returns its keys. The error is the valid form.
fn set(config: &mut HostConfig, option: &'static str, value: &str) -> Result<String, String> {
    if option == "asymmetric" {
        config.asymmetric = AsymmetricConfig::parse(value).map_err(|error| error.to_string())?;
        return Ok(option.to_owned());
    }
    let Some(key) = FORMER_KEYS.iter().find(|key| key.old == option) else {
        config.set(option, &in_units(value, "milliseconds"))?;
        return Ok(option.to_owned());
    };
    let is_number = value.parse::<f64>().is_ok();
    let value = if is_number { format!("{value}{}", key.unit) } else { value.to_owned() };
    key.new.iter().try_for_each(|new| config.set(new, &value))?;
    Ok(key.new.join(", "))
}

impl ExpertArgs {
    /// Overrides settings of the file; returns the options with the keys that replace them.
    pub fn apply(self, config: &mut HostConfig) -> Vec<(&'static str, String)> {
        // The values are valid, as those of the file are.
        let keys = |(option, value): (_, String)| Some((option, set(config, option, &value).ok()?));
        self.0.into_iter().filter_map(keys).collect()
    }
}

/// Prints a line with the keys that replace the given options.
pub fn hint(replaced: &[(&'static str, String)]) {
    if replaced.is_empty() || console::level() < LevelFilter::INFO {
        return;
    }
    let (options, keys): (Vec<String>, Vec<&str>) = replaced
        .iter()
        .map(|(option, keys)| (format!("--{}", option.replace('_', "-")), keys.as_str()))
        .unzip();
    tell!(
        "tandem: set {} in the section [host] of a settings file (--config) instead of {}; the next release removes these options",
        keys.join(", "),
        options.join(", ")
    );
}
