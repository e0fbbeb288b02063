//! Reload of the settings file on SIGHUP.
//!
//! The whole file is checked first; the daemon rejects an invalid one and keeps its settings.
//! Then selection, rules, policies and the control law apply.
//! VMs that stay selected keep their state ([`crate::fleet`]).
//! Settings of resources opened at the start need a restart, which is logged.

use std::path::PathBuf;

use tandem_linux::signals::Signals;
use tandem_policy::host::{Controller, Placement, flexs, registry};
use tracing::{error, info, warn};

use super::{Daemon, DaemonError};
use crate::config::HostConfig;
use crate::select::Selector;
use crate::unseen::Unseen;

/// The source of settings for a reload.
pub struct Reload {
    /// The settings file.
    pub file: PathBuf,
    /// Reads the file and applies the options of the command line.
    pub read: Box<dyn Fn() -> Result<HostConfig, String>>,
    /// Whether SIGHUP triggers a reload.
    /// In a terminal, SIGHUP means that the terminal is gone, and stops the daemon.
    pub on_hangup: bool,
}

impl Daemon {
    /// Sets the source of settings for a reload.
    pub fn with_reload(mut self, reload: Reload) -> Result<Daemon, DaemonError> {
        if reload.on_hangup {
            self.signals = Signals::catch_with_reload().map_err(DaemonError::Signals)?;
        }
        self.reload = Some(reload);
        Ok(self)
    }

    /// Reads the settings again.
    pub(super) fn reload(&mut self) {
        let Some(reload) = &self.reload else { return };
        let file = reload.file.display().to_string();
        let checked = (reload.read)().and_then(|config| {
            let selector = config.check().and_then(|()| Selector::from_config(&config.select));
            selector.map(|selector| (config, selector)).map_err(|error| error.to_string())
        });
        match checked {
            Ok((config, selector)) => {
                self.adopt_settings(config, selector);
                let select = if self.config.select.is_empty() { "; no VM is selected" } else { "" };
                info!("settings of {file} apply{select}");
            }
            Err(error) => {
                error!("cannot reload {file}: {error}; the earlier settings stay");
            }
        }
    }

    /// Applies valid settings.
    fn adopt_settings(&mut self, mut config: HostConfig, selector: Selector) {
        for key in keep_until_restart(&self.config, &mut config) {
            warn!("{key} changes with a restart of the daemon only; the earlier value stays");
        }
        let before = self.config.controller();
        let controller = config.controller();
        let flexs = registry::find(flexs::ENTRY.name).ok();
        let has_flexs =
            |policies: tandem_model::PolicySet| flexs.is_some_and(|flexs| policies.contains(flexs));
        if has_flexs(controller.policies) && !has_flexs(before.policies) {
            warn!(
                "the policy flexs acts after a restart of the daemon only, which opens its counters"
            );
        }
        let freedom = |placement| match placement {
            Placement::Keep => 0,
            Placement::Turns => 1,
            Placement::Rebalance => 2,
        };
        // A stricter placement reverts affinities that it does not allow.
        let again = freedom(config.placement) < freedom(self.config.placement);
        let rules = config.rule.clone();
        let (notes, refused) =
            self.fleet.reconfigure(rules, config.policies.0, config.weight_per_vcpu, again);
        notes.iter().for_each(|note| info!("{}", note.0));
        self.refused(&refused);
        self.config = config;
        self.selector = selector;
        self.believed.clear();
        self.unseen = Unseen::default();
        self.hinted = false;
        if controller != before {
            self.controller = Controller::new(controller);
            self.controller.begin(&mut self.fleet);
        }
        self.follow_scan();
    }
}

/// Returns the changed keys that need a restart, and resets them to their earlier values.
fn keep_until_restart(now: &HostConfig, next: &mut HostConfig) -> Vec<&'static str> {
    fn keep<T: Clone + PartialEq>(
        key: &'static str,
        now: &T,
        next: &mut T,
        keys: &mut Vec<&'static str>,
    ) {
        if now != next {
            next.clone_from(now);
            keys.push(key);
        }
    }
    let mut keys = Vec::new();
    keep("dry_run", &now.dry_run, &mut next.dry_run, &mut keys);
    keep("state_dir", &now.state_dir, &mut next.state_dir, &mut keys);
    keep("metrics_listen", &now.metrics_listen, &mut next.metrics_listen, &mut keys);
    keep("metrics_file", &now.metrics_file, &mut next.metrics_file, &mut keys);
    keep("counters", &now.counters, &mut next.counters, &mut keys);
    keep("thread_pattern", &now.thread_pattern, &mut next.thread_pattern, &mut keys);
    keep("qmp_sockets", &now.qmp_sockets, &mut next.qmp_sockets, &mut keys);
    keep("without_kvm", &now.without_kvm, &mut next.without_kvm, &mut keys);
    keys
}

#[cfg(test)]
mod tests {
    use tandem_policy::FlexWConfig;

    use super::*;

    #[test]
    fn settings_of_open_files_keep_their_value() {
        let now = HostConfig::default();
        let fair = FlexWConfig { gain: 0.5, ..FlexWConfig::default() };
        let mut next = HostConfig {
            fair: fair.clone(),
            state_dir: "/tmp/x".into(),
            metrics_listen: Some("127.0.0.1:9464".parse().unwrap()),
            dry_run: true,
            ..HostConfig::default()
        };
        assert_eq!(keep_until_restart(&now, &mut next), ["dry_run", "state_dir", "metrics_listen"]);
        assert_eq!(next, HostConfig { fair, ..now });
    }
}
