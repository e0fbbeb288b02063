//! A blind trial of `tandem host why`, with mixes of microVMs that have a known primary cause.
//!
//! The mixes are data (`research/bench/why-trial.toml`); the program `examples/why_trial.rs` runs them and writes a [`Document`].
//! Findings and their thresholds are never tuned on these mixes, which measure accuracy on unseen cases.
//!
//! An answer is right if the *first* finding of the VM with the cause is of that kind.
//! For a mix without a cause, it is right if it covers all VMs of the mix and has no finding about them.
//! A missing answer is wrong: a crash, a timeout, or invalid output.
//! A mix whose VMs do not start is neither right nor wrong, and is counted separately.

mod answer;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use tandem_observe::findings::Kind;
use thiserror::Error;

pub use answer::{Answer, AskError, Found, ask};

/// Version of mixes and documents.
pub const SCHEMA: u32 = 1;

/// The built-in mixes.
pub const MIXES: &str = include_str!("../why-trial.toml");

/// Error in the mixes.
#[derive(Debug, Error)]
pub enum TrialError {
    /// Invalid TOML.
    #[error("the mixes are not what is expected: {0}")]
    Form(#[from] toml::de::Error),
    /// Unsupported version.
    #[error("schema = {0}; this program knows {SCHEMA}")]
    Schema(u32),
    /// A mix contradicts itself.
    #[error("mix '{mix}': {what}")]
    Mix {
        /// Name of the mix.
        mix: String,
        /// The contradiction.
        what: String,
    },
}

/// The known cause in a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// No VM has a finding.
    Nothing,
    /// A VM has a finding of this kind.
    #[serde(untagged)]
    Of(Kind),
}

/// A VM of a mix.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixVm {
    /// Name within the mix.
    pub name: String,
    /// Number of vCPUs.
    #[serde(default = "one")]
    pub vcpus: u32,
    /// The guest's workload.
    pub workload: String,
    /// The workload's settings, `key=value`.
    #[serde(default)]
    pub set: Vec<String>,
    /// pCPUs of its vCPUs in turn, as indices among the usable pCPUs; empty: not pinned.
    #[serde(default)]
    pub pin: Vec<usize>,
    /// The weight of its cgroup; 1 is the kernel's default.
    #[serde(default = "usual")]
    pub weight: f64,
    /// The quota of its cgroup, in pCPUs.
    pub quota: Option<f64>,
}

fn one() -> u32 {
    1
}

fn usual() -> f64 {
    1.0
}

/// A process of the host that takes CPU time.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hog {
    /// Fraction of the time for which it is busy.
    pub busy: f64,
    /// Its pCPUs, like the VMs' pins.
    pub pin: Vec<usize>,
    /// Its nice value.
    #[serde(default)]
    pub nice: i8,
}

/// A mix of VMs and processes with a known cause.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mix {
    /// Name of the mix.
    pub name: String,
    /// The primary cause.
    pub cause: Cause,
    /// The VM with the cause, if there is one.
    pub of: Option<String>,
    /// Explanation of the cause.
    pub because: String,
    /// The VMs.
    pub vm: Vec<MixVm>,
    /// The processes.
    #[serde(default)]
    pub hog: Vec<Hog>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    schema: u32,
    mix: Vec<Mix>,
}

/// Parses and checks mixes.
pub fn read(text: &str) -> Result<Vec<Mix>, TrialError> {
    let file: File = toml::from_str(text)?;
    if file.schema != SCHEMA {
        return Err(TrialError::Schema(file.schema));
    }
    let mut names = BTreeSet::new();
    for mix in &file.mix {
        let offence = if names.insert(&mix.name) {
            mix.offence()
        } else {
            Some("its name is there twice".to_owned())
        };
        if let Some(what) = offence {
            let mix = mix.name.clone();
            return Err(TrialError::Mix { mix, what });
        }
    }
    Ok(file.mix)
}

impl Mix {
    /// Returns a contradiction in it, if there is one.
    fn offence(&self) -> Option<String> {
        let names: BTreeSet<&str> = self.vm.iter().map(|vm| vm.name.as_str()).collect();
        if names.len() != self.vm.len() {
            return Some("two VMs have the same name".to_owned());
        }
        match (self.cause, self.of.as_deref()) {
            (Cause::Nothing, Some(_)) => return Some("cause = \"nothing\" is of no VM".to_owned()),
            (Cause::Of(_), None) => return Some("of has to name the VM with the cause".to_owned()),
            (Cause::Of(_), Some(of)) if !names.contains(of) => {
                return Some(format!("of = \"{of}\": there is no such VM"));
            }
            _ => {}
        }
        for vm in &self.vm {
            let is_possible = vm.weight > 0.0 && vm.quota.is_none_or(|quota| quota >= 0.01);
            if !is_possible {
                return Some(format!("VM '{}': weight > 0, quota ≥ 0.01", vm.name));
            }
        }
        let is_part = |hog: &Hog| hog.busy > 0.0 && hog.busy <= 1.0 && !hog.pin.is_empty();
        if self.hog.iter().all(is_part) {
            None
        } else {
            Some("a hog is busy for 0 < busy ≤ 1, and has a pin".to_owned())
        }
    }

    /// Returns the number of pCPUs that it needs, at least 2.
    pub fn pcpus(&self) -> usize {
        let pins = self.vm.iter().flat_map(|vm| &vm.pin);
        let pins = pins.chain(self.hog.iter().flat_map(|hog| &hog.pin));
        pins.max().map_or(2, |most| most + 1).max(2)
    }
}

/// The relevant part of a finding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Named {
    /// The VM's name within the mix.
    pub vm: String,
    /// Kind of the finding.
    pub kind: Kind,
    /// Time that the VM loses, in ns per second.
    pub lost_per_second: u64,
    /// Time of the host that it burns, in ns per second, if the VM loses none.
    pub burned_per_second: Option<u64>,
}

/// A VM of a mix while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Its name within the mix.
    pub name: String,
    /// Its name on the host.
    pub called: String,
    /// Its process.
    pub pid: u32,
}

/// Returns the name on the host of a VM of the n-th mix. A prefix avoids clashes with other VMs.
pub fn called(n: u64, vm: &MixVm) -> String {
    format!("w{n}-{}", vm.name)
}

/// Returns whether the cause was named first.
/// `looked_at` has the VMs of the mix that the answer covers, and `found` their findings in the order of the answer.
pub fn judge(mix: &Mix, looked_at: &[String], found: &[Named]) -> bool {
    match mix.cause {
        Cause::Nothing => found.is_empty() && mix.vm.iter().all(|vm| looked_at.contains(&vm.name)),
        Cause::Of(kind) => {
            let mut of_vm = found.iter().filter(|one| Some(&one.vm) == mix.of.as_ref());
            of_vm.next().is_some_and(|first| first.kind == kind)
        }
    }
}

/// Result of a mix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MixResult {
    /// The mix.
    pub mix: String,
    /// The known cause.
    pub cause: Cause,
    /// The VM with the cause.
    pub of: Option<String>,
    /// VMs of the mix that the answer covers.
    pub looked_at: Vec<String>,
    /// All findings, in the order of the answer.
    pub found: Vec<Named>,
    /// Whether the cause was named first; `None` if the mix did not run.
    pub right: Option<bool>,
    /// CPU time of other tasks of the host (neither VMs nor hogs of the mix), in pCPUs; `None` without an answer.
    pub others: Option<f64>,
    /// Reason for a missing answer, which is wrong.
    pub failed: Option<String>,
    /// Reason why the mix did not run.
    pub not_run: Option<String>,
}

impl MixResult {
    /// Result of a mix that did not run.
    pub fn not_run(mix: &Mix, why: String) -> MixResult {
        MixResult {
            mix: mix.name.clone(),
            cause: mix.cause,
            of: mix.of.clone(),
            looked_at: Vec::new(),
            found: Vec::new(),
            right: None,
            others: None,
            failed: None,
            not_run: Some(why),
        }
    }

    /// Result of an answer about these VMs, with these processes as the mix's hogs.
    pub fn of(
        mix: &Mix,
        vms: &[Running],
        hogs: &[u32],
        answer: Result<Answer, AskError>,
    ) -> MixResult {
        let nothing = MixResult {
            not_run: None,
            right: Some(false),
            ..MixResult::not_run(mix, String::new())
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                return MixResult { failed: Some(error.to_string()), ..nothing };
            }
        };
        let is_there = |vm: &&Running| answer.vms.contains(&vm.called);
        let looked_at: Vec<String> =
            vms.iter().filter(is_there).map(|vm| vm.name.clone()).collect();
        let of_mix = answer.findings.iter().filter_map(|one| {
            let vm = vms.iter().find(|vm| vm.pid == one.pid)?;
            Some(Named {
                vm: vm.name.clone(),
                kind: one.kind,
                lost_per_second: one.lost_per_second.0,
                burned_per_second: one.burned_per_second.map(|burned| burned.0),
            })
        });
        let found: Vec<Named> = of_mix.collect();
        MixResult {
            right: Some(judge(mix, &looked_at, &found)),
            others: Some(answer.others(hogs)),
            looked_at,
            found,
            ..nothing
        }
    }
}

/// The whole trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The kernel's release.
    pub kernel: String,
    /// Number of usable pCPUs.
    pub pcpus: usize,
    /// Source of the measurements.
    pub source: String,
    /// Length of each interval, in s.
    pub seconds: f64,
    /// Number of mixes.
    pub mixes: usize,
    /// Mixes that ran.
    pub run: usize,
    /// Mixes that ran without an answer, which is wrong.
    pub failed: usize,
    /// Mixes whose cause was named first.
    pub right: usize,
    /// Each mix.
    pub results: Vec<MixResult>,
}

impl Document {
    /// Creates the document of these results.
    pub fn new(
        kernel: String,
        pcpus: usize,
        source: String,
        seconds: f64,
        results: Vec<MixResult>,
    ) -> Document {
        let count = |is: fn(&MixResult) -> bool| results.iter().filter(|result| is(result)).count();
        Document {
            schema: SCHEMA,
            kernel,
            pcpus,
            source,
            seconds,
            mixes: results.len(),
            run: count(|result| result.right.is_some()),
            failed: count(|result| result.failed.is_some()),
            right: count(|result| result.right == Some(true)),
            results,
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_microvm::workload::Parameters;
    use tandem_microvm::{VmName, Workload};
    use tandem_model::Nanos;

    use super::*;

    #[test]
    fn built_in_mixes_are_valid() {
        let mixes = read(MIXES).unwrap();
        assert_eq!(mixes.len(), 20);
        let quiet = mixes.iter().filter(|mix| mix.cause == Cause::Nothing);
        assert!(quiet.count() >= 3);
        let kinds: BTreeSet<String> = mixes.iter().map(|mix| format!("{:?}", mix.cause)).collect();
        assert!(kinds.len() >= 10, "{kinds:?}");
        for mix in &mixes {
            assert_eq!(mix.pcpus(), 2, "{}", mix.name);
            for vm in &mix.vm {
                let _: VmName = called(20, vm).parse().unwrap();
                let workload: Workload = vm.workload.parse().unwrap();
                assert!(vm.vcpus >= workload.least_vcpus(), "{}", mix.name);
                let mut parameters = Parameters::defaults(workload);
                for setting in &vm.set {
                    parameters.set_from(setting).unwrap();
                }
            }
        }
    }

    fn mix(text: &str) -> Result<Vec<Mix>, String> {
        let head = "schema = 1\n[[mix]]\nname = \"m\"\nbecause = \"b\"\n";
        read(&format!("{head}{text}")).map_err(|error| error.to_string())
    }

    const A: &str = "vm = [{ name = \"a\", workload = \"burn\" }]\n";

    #[test]
    fn contradictory_mixes_are_refused() {
        assert!(mix(&format!("cause = \"quota\"\nof = \"a\"\n{A}")).is_ok());
        for (text, said) in [
            ("cause = \"nothing\"\nof = \"a\"\n", "of no VM"),
            ("cause = \"quota\"\n", "of has to name"),
            ("cause = \"quota\"\nof = \"z\"\n", "no such VM"),
            ("cause = \"gremlins\"\nof = \"a\"\n", "not what is expected"),
            ("cause = \"nothing\"\nhogs = 1\n", "unknown field `hogs`"),
            ("cause = \"nothing\"\nhog = [{ busy = 1.5, pin = [0] }]\n", "a hog is busy"),
        ] {
            let error = mix(&format!("{text}{A}")).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
        let twice = MIXES.replace("quiet-apart", "quiet-light");
        let error = read(&twice).unwrap_err().to_string();
        assert!(error.contains("'quiet-light': its name is there twice"), "{error}");
        let other = MIXES.replace("schema = 1", "schema = 2");
        assert!(matches!(read(&other), Err(TrialError::Schema(2))));
    }

    fn named(vm: &str, kind: Kind) -> Named {
        Named { vm: vm.to_owned(), kind, lost_per_second: 1, burned_per_second: None }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn answer_is_right_if_cause_comes_first() {
        let quota = &mix(&format!("cause = \"quota\"\nof = \"a\"\n{A}")).unwrap()[0];
        let (a, b) = (named("a", Kind::Quota), named("a", Kind::Neighbour));
        let judge = |mix: &Mix, found: &[Named]| judge(mix, &names(&["a"]), found);
        assert!(judge(quota, std::slice::from_ref(&a)));
        assert!(judge(quota, &[a.clone(), b.clone()]));
        assert!(!judge(quota, &[b.clone(), a.clone()]), "not first");
        let of_another = named("z", Kind::Neighbour);
        assert!(judge(quota, &[of_another.clone(), a]), "of another VM");
        assert!(!judge(quota, &[]));
        let nothing = &mix(&format!("cause = \"nothing\"\n{A}")).unwrap()[0];
        assert!(judge(nothing, &[]));
        assert!(!judge(nothing, &[of_another]));
    }

    #[test]
    fn quiet_mix_needs_all_vms_covered() {
        let two =
            "vm = [{ name = \"a\", workload = \"burn\" }, { name = \"b\", workload = \"burn\" }]\n";
        let quiet = &mix(&format!("cause = \"nothing\"\n{two}")).unwrap()[0];
        assert!(judge(quiet, &names(&["b", "a"]), &[]));
        assert!(!judge(quiet, &names(&["a"]), &[]));
        assert!(!judge(quiet, &[], &[]));
    }

    fn running(name: &str, pid: u32) -> Running {
        Running { name: name.to_owned(), called: format!("w1-{name}"), pid }
    }

    fn found(pid: u32, kind: Kind) -> Found {
        Found { pid, kind, lost_per_second: Nanos(1), burned_per_second: None }
    }

    #[test]
    fn answer_counts_only_vms_of_the_mix() {
        let quota = &mix(&format!("cause = \"quota\"\nof = \"a\"\n{A}")).unwrap()[0];
        let answer = Answer {
            seconds: 1.0,
            vms: names(&["w1-a", "a"]),
            findings: vec![found(8, Kind::Stacked), found(7, Kind::Quota)],
            ..Answer::default()
        };
        let result = MixResult::of(quota, &[running("a", 7)], &[], Ok(answer.clone()));
        assert_eq!(result.right, Some(true));
        assert_eq!(
            (&result.looked_at, &result.found),
            (&names(&["a"]), &vec![named("a", Kind::Quota)])
        );
        // Another VM of the host has that name; the answer does not cover the mix's.
        let quiet = &mix(&format!("cause = \"nothing\"\n{A}")).unwrap()[0];
        let other = Answer { vms: names(&["a"]), findings: Vec::new(), ..answer };
        let result = MixResult::of(quiet, &[running("a", 7)], &[], Ok(other));
        assert_eq!(result.right, Some(false));
    }

    #[test]
    fn missing_answers_are_wrong() {
        let quota = &mix(&format!("cause = \"quota\"\nof = \"a\"\n{A}")).unwrap()[0];
        let quiet = &mix(&format!("cause = \"nothing\"\n{A}")).unwrap()[0];
        let answer = |vms: &[&str], findings: Vec<Found>| {
            Ok(Answer { vms: names(vms), findings, ..Answer::default() })
        };
        let crash = || Err(AskError::TooLong(std::time::Duration::from_secs(9)));
        let of = |mix, answer| MixResult::of(mix, &[running("a", 7)], &[], answer);
        let results = vec![
            of(quota, answer(&["w1-a"], vec![found(7, Kind::Quota)])),
            of(quota, crash()),
            of(quiet, crash()),
            of(quiet, answer(&[], Vec::new())),
            of(quiet, answer(&["w1-a"], Vec::new())),
            MixResult::not_run(quota, "no KVM".to_owned()),
        ];
        let rights: Vec<Option<bool>> = results.iter().map(|result| result.right).collect();
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(rights, [yes, no, no, no, yes, None]);
        let said = results[1].failed.as_deref().unwrap();
        assert!(said.contains("within 9 s"), "{said}");
        let document = Document::new("6.18".to_owned(), 2, "plain".to_owned(), 5.0, results);
        let counts = (document.mixes, document.run, document.failed);
        assert_eq!((counts, document.right), ((6, 5, 2), 2));
        let text = serde_json::to_string(&document).unwrap();
        assert!(text.contains("\"cause\":\"quota\""), "{text}");
        let read: Document = serde_json::from_str(&text).unwrap();
        assert_eq!(read, document);
    }
}
