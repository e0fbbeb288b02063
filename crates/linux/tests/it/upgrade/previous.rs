//! The reader of the first version of the journal, unchanged.
//!
//! It knows one record per key, and unknown fields are errors.
//! It undoes all records in reverse order, without comparing current values.

use std::path::Path;

use serde::Deserialize;
use tandem_linux::affinity::Threads;
use tandem_linux::cgroup::{CgroupError, CgroupId, CgroupPath, CpuController, Knob, Version};
use tandem_linux::thread::ThreadRef;
use tandem_model::{Nanos, Nice, PcpuSet};

use crate::fake_host::Fake;

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case", deny_unknown_fields)]
enum Record {
    Enabled { cgroup: CgroupPath, id: CgroupId },
    Created { cgroup: CgroupPath },
    Knob { cgroup: CgroupPath, id: CgroupId, knob: Knob, original: String },
    Moved { thread: ThreadRef, from: CgroupPath, to: CgroupPath },
    Affinity { thread: ThreadRef, original: PcpuSet },
    Nice { thread: ThreadRef, original: Nice },
    Slice { thread: ThreadRef, original: Option<Nanos> },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stamp {
    tandem_journal: u32,
    boot: String,
    version: Version,
    mount: std::path::PathBuf,
}

/// Restores from the journal; returns the failures as texts.
pub fn restore(host: &Fake, journal: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(journal).unwrap();
    assert!(text.ends_with('\n'), "whole lines");
    let mut lines = text.lines();
    let stamp: Stamp = serde_json::from_str(lines.next().unwrap()).unwrap();
    let known = (stamp.tandem_journal, stamp.boot.as_str(), stamp.version);
    assert_eq!(known, (1, "boot", host.version()));
    assert_eq!(stamp.mount, host.mount());
    let records: Vec<Record> = lines
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect();
    let is_idle = |record: &&Record| matches!(record, Record::Knob { knob: Knob::Idle, .. });
    let (idle, others): (Vec<&Record>, Vec<&Record>) = records.iter().rev().partition(is_idle);
    let mut failed = Vec::new();
    for record in idle.into_iter().chain(others) {
        if let Err(error) = undo(host, record) {
            failed.push(format!("{record:?}: {error}"));
        }
    }
    failed
}

fn undo(host: &Fake, record: &Record) -> Result<(), String> {
    match record {
        Record::Affinity { thread, original } => {
            if host.is_alive(thread) {
                let put_back = host.restore_affinity(thread.tid, original);
                put_back.map_err(|error| error.to_string())?;
            }
        }
        Record::Nice { thread, original } => {
            if host.is_alive(thread) {
                let put_back = host.set_nice(thread.tid, *original);
                put_back.map_err(|error| error.to_string())?;
            }
        }
        Record::Slice { thread, original } => {
            if host.is_alive(thread) {
                let put_back = host.set_slice(thread.tid, *original);
                put_back.map_err(|error| error.to_string())?;
            }
        }
        Record::Moved { thread, from, to } => {
            if host.is_alive(thread) && host.cgroup_of(thread).is_ok_and(|now| now == *to) {
                let put_back = CpuController::move_thread(host, thread.tid, from);
                put_back.map_err(|error| error.to_string())?;
            }
        }
        Record::Knob { cgroup, id, knob, original } => {
            let is_there = host.id(cgroup).is_ok_and(|now| now == *id);
            let has_knobs = is_there && host.missing_enables(cgroup).is_ok_and(|m| m.is_empty());
            if !has_knobs || host.read_knob(cgroup, *knob).is_ok_and(|now| now == *original) {
                return Ok(());
            }
            if *knob == Knob::Weight && host.is_idle(cgroup).is_ok_and(|idle| idle == Some(true)) {
                return Ok(());
            }
            let put_back = host.write_knob(cgroup, *knob, original);
            put_back.map_err(|error| error.to_string())?;
        }
        Record::Created { cgroup } => {
            let above = cgroup.parent().unwrap();
            for tid in CpuController::threads(host, cgroup).unwrap_or_default() {
                let moved = CpuController::move_thread(host, tid, &above);
                moved.map_err(|error| error.to_string())?;
            }
            host.remove(cgroup).map_err(|error| error.to_string())?;
        }
        Record::Enabled { cgroup, id } => {
            if host.id(cgroup).is_ok_and(|now| now == *id) {
                match host.disable(cgroup) {
                    Ok(()) | Err(CgroupError::InUse { .. }) => {}
                    Err(error) => return Err(error.to_string()),
                }
            }
        }
    }
    Ok(())
}
