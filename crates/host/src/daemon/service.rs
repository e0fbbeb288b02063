//! The daemon's answers on its control socket: status, pause and resume.

use std::collections::BTreeSet;
use std::sync::mpsc::SyncSender;
use std::time::UNIX_EPOCH;

use tandem_linux::status_file::StatusFile;
use tandem_linux::thread::ThreadRef;
use tandem_model::{PolicySet, VmId};
use tandem_policy::host::registry;
use tracing::{error, info};

use super::Daemon;
use crate::config::HostConfig;
use crate::control::{Answer, Control, Request};
use crate::discovery::Vm;
use crate::managed::ManagedVm;
use crate::select::{Selector, VmPattern};
use crate::status::{ManagedStatus, ServiceStatus};

/// Returns the names of policies.
fn names(policies: PolicySet) -> Vec<String> {
    registry::entries(policies).map(|(_, policy)| policy.name.to_owned()).collect()
}

/// Returns the file of paused VMs.
/// It outlives the daemon, so that a restart during a migration resumes no VM.
fn paused_file(config: &HostConfig) -> StatusFile {
    StatusFile::named(&config.state_dir, "daemon", "paused.json")
}

/// Reads the VMs that an earlier daemon with this state directory paused.
/// A dry run neither reads nor writes the file.
pub(super) fn read_paused(config: &HostConfig) -> BTreeSet<ThreadRef> {
    if config.dry_run {
        return BTreeSet::new();
    }
    paused_file(config)
        .read()
        .unwrap_or_else(|error| {
            error!("{error}");
            None
        })
        .unwrap_or_default()
}

impl Daemon {
    fn write_paused(&mut self) {
        if !self.config.dry_run
            && let Err(error) = paused_file(&self.config).write(&self.paused)
        {
            error!(once = true, "{error}");
        }
    }

    /// Opens the control socket.
    /// A dry run has one only if its state directory exists and no other daemon listens there.
    pub(super) fn open_control(&mut self) {
        let (dir, is_dry) = (&self.config.state_dir, self.config.dry_run);
        if is_dry && !dir.is_dir() {
            return;
        }
        match Control::open(dir, !is_dry) {
            Ok(control) => self.control = Some(control),
            Err(error) if is_dry => {
                info!("{error}: 'tandem host status' does not show this dry run");
            }
            Err(error) => {
                error!(once = true, "{error}; 'tandem host status', pause and resume do not work")
            }
        }
    }

    /// Answers pending requests.
    pub(super) fn answer(&mut self) {
        while let Some((request, answer)) = self.control.as_ref().and_then(Control::next) {
            self.answer_one(request, &answer);
        }
    }

    fn answer_one(&mut self, request: Request, answer: &SyncSender<Answer>) {
        let answered = match request {
            Request::Status => Answer::Status(Box::new(self.service_status())),
            Request::Pause(patterns) => self.pause(&patterns),
            Request::Resume(patterns) => self.resume(&patterns),
        };
        // A client that went away needs no answer.
        let _ = answer.send(answered);
    }

    /// Returns the VMs of the last scan that match a pattern and fulfil `is_it`, or an error answer if there are none.
    fn named(
        &self,
        patterns: &[String],
        what: &str,
        is_it: impl Fn(&Vm) -> bool,
    ) -> Result<Vec<Vm>, Answer> {
        let parsed: Result<Vec<VmPattern>, String> =
            patterns.iter().map(|text| text.parse()).collect();
        let parsed = parsed.map_err(Answer::Error)?;
        if parsed.is_empty() {
            return Err(Answer::Error("name a VM, such as 'db-*'".to_owned()));
        }
        let mut vms: Vec<Vm> = Vec::new();
        for pattern in &parsed {
            let selector = Selector::of(std::slice::from_ref(pattern));
            let selector = selector.map_err(|error| Answer::Error(error.to_string()))?;
            let matching = self.scan.vms.iter().filter(|vm| is_it(vm));
            let matching = matching.filter(|vm| selector.matches(vm, self.fleet.controller()));
            let matching: Vec<Vm> = matching.cloned().collect();
            if matching.is_empty() {
                return Err(Answer::NoMatch(format!("no {what} VM matches '{pattern}'")));
            }
            vms.extend(matching);
        }
        vms.sort_by_key(|vm| vm.id);
        vms.dedup_by_key(|vm| vm.id);
        Ok(vms)
    }

    /// Reverts the changes on these VMs, and leaves them alone.
    fn pause(&mut self, patterns: &[String]) -> Answer {
        let vms = match self.named(patterns, "managed", |vm| self.fleet.vm(vm.id).is_some()) {
            Ok(vms) => vms,
            Err(answer) => return answer,
        };
        self.paused.extend(vms.iter().map(|vm| vm.process));
        self.write_paused();
        self.follow_scan();
        let lines = vms.iter().map(|vm| {
            let rest = if self.fleet.is_leaving(vm.process.pid) {
                "; some changes are not reverted yet, see the log"
            } else {
                ", all changes on it are reverted"
            };
            format!("VM {} (pid {}) is paused{rest}", vm.name, vm.process.pid)
        });
        let lines: Vec<String> = lines.collect();
        lines.iter().for_each(|line| info!("{line}"));
        Answer::Done(lines)
    }

    /// Manages paused VMs again.
    fn resume(&mut self, patterns: &[String]) -> Answer {
        let vms = match self.named(patterns, "paused", |vm| self.paused.contains(&vm.process)) {
            Ok(vms) => vms,
            Err(answer) => return answer,
        };
        for vm in &vms {
            self.paused.remove(&vm.process);
        }
        self.write_paused();
        self.follow_scan();
        let lines = vms.iter().map(|vm| {
            let line = if self.fleet.vm(vm.id).is_some() {
                "is managed again"
            } else {
                "is resumed; the daemon manages it after its next scan, if it is selected"
            };
            format!("VM {} (pid {}) {line}", vm.name, vm.process.pid)
        });
        let lines: Vec<String> = lines.collect();
        lines.iter().for_each(|line| info!("{line}"));
        Answer::Done(lines)
    }

    /// Returns the status of the daemon and its VMs.
    fn service_status(&self) -> ServiceStatus {
        let (began, started) = self.began;
        let managed = self.fleet.vms().map(|managed| self.managed_status(managed));
        let paused = self.scan.vms.iter().filter(|vm| self.paused.contains(&vm.process));
        let mut vms: Vec<ManagedStatus> = managed.chain(paused.map(paused_status)).collect();
        vms.sort_by(|one, two| (&one.name, one.pid).cmp(&(&two.name, two.pid)));
        ServiceStatus {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: started.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            uptime: began.elapsed().as_secs_f64(),
            settings_file: self.reload.as_ref().map(|reload| reload.file.clone()),
            dry_run: self.config.dry_run,
            selects: !self.config.select.is_empty(),
            policies: names(self.config.policies.0),
            turns: self.fleet.turn_stats(),
            flexs_off: self.spins.off.clone(),
            vms,
        }
    }

    fn managed_status(&self, managed: &ManagedVm) -> ManagedStatus {
        let id: VmId = managed.vm.id;
        let account = self.due.get(&id);
        ManagedStatus {
            name: managed.vm.name.clone(),
            pid: managed.vm.process.pid.0,
            vcpus: managed.vcpu_count(),
            cgroup: Some(managed.cgroup().clone()),
            policies: names(managed.policies),
            fair_share: account.map(|account| account.due),
            received: account.map(|account| account.received),
            lag: account.map(|account| account.lag),
            wait_ms: account.and_then(|account| account.wait_ms),
            weight: Some(managed.weight().value()),
            configured_weight: Some(managed.configured.value()),
            turns: managed.takes_turns(),
            apart: managed.is_divided(),
            paused: false,
            flexs: self.spins.of(id).cloned(),
            demands: self.wanted.get(&id).cloned().unwrap_or_default(),
        }
    }
}

/// Returns the status of a paused VM, of which only name, process and vCPUs are known.
fn paused_status(vm: &Vm) -> ManagedStatus {
    ManagedStatus {
        name: vm.name.clone(),
        pid: vm.process.pid.0,
        vcpus: vm.vcpus.len(),
        cgroup: None,
        policies: Vec::new(),
        fair_share: None,
        received: None,
        lag: None,
        wait_ms: None,
        weight: None,
        configured_weight: None,
        turns: false,
        apart: false,
        paused: true,
        flexs: None,
        demands: Default::default(),
    }
}
