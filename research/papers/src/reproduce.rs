//! Reproduction of published figures with the simulator.
//!
//! `research/targets/published.toml` lists the claims of papers.
//! Each claim has figures, a band within which a figure counts as reproduced, and a use.
//! The model may be fitted to claims of use `fit`; claims of use `check` must be reproduced without fitting.
//! Every covered claim has a judge, a function in one of the files here.
//! A judge selects the trials to simulate and maps their metrics to the published figures.
//! A claim is in band if all its figures are.
//!
//! Judges run twice.
//! In the first pass every measurement is pending: the pass only records the trials that are needed.
//! Then each trial runs once, on all cores.
//! In the second pass the judges receive the results.
//!
//! - [`claims`]: the published claims and the rule that judges a figure.
//! - [`judge`]: the type of a judge; [`apples`], [`asymmetric`], [`diagnosis`], [`flex`], [`gleaner`], [`large_vm`],
//!   [`scalability`]: the judges.
//! - [`verdict`]: verdicts, and their machine-readable list.

pub mod apples;
pub mod asymmetric;
pub mod claims;
pub mod diagnosis;
pub mod flex;
pub mod gleaner;
pub mod judge;
pub mod large_vm;
pub mod scalability;
pub mod verdict;

use std::path::Path;

use tandem_sim::scenario::load::Setting;
use thiserror::Error;

use self::claims::{Claim, PublishedError};
use self::judge::{Judge, JudgeError};
use self::verdict::Verdict;
use crate::trials::{Trials, TrialsError};
use tandem_experiment::progress::Progress;

/// Error of a reproduction.
#[derive(Debug, Error)]
pub enum ReproduceError {
    /// The list of claims is invalid.
    #[error(transparent)]
    Published(#[from] PublishedError),
    /// The claim does not exist.
    #[error("--claims {asked}: there is no such claim; there are {}", known.join(", "))]
    Unknown {
        /// The argument.
        asked: String,
        /// Names of all claims.
        known: Vec<String>,
    },
    /// A judge failed.
    #[error(transparent)]
    Judge(#[from] JudgeError),
}

impl From<TrialsError> for ReproduceError {
    fn from(error: TrialsError) -> ReproduceError {
        ReproduceError::Judge(error.into())
    }
}

/// The claims of all judges.
const JUDGES: [&[(&str, Judge)]; 7] = [
    apples::CLAIMS,
    asymmetric::CLAIMS,
    diagnosis::CLAIMS,
    flex::CLAIMS,
    gleaner::CLAIMS,
    large_vm::CLAIMS,
    scalability::CLAIMS,
];

/// Runs the trials that these claims need, and judges the claims.
///
/// Each trial runs `runs` times with `settings`, from the scenarios of `folder` (`None`: see [`Trials::open`]).
pub fn judge_all(
    claims: Vec<Claim>,
    folder: Option<&Path>,
    settings: &[String],
    runs: u32,
    workers: usize,
    progress: &dyn Progress,
) -> Result<Vec<Verdict>, ReproduceError> {
    let mut trials = Trials::open(folder, runs)?;
    for setting in settings {
        trials.set(Setting::parse(setting).map_err(TrialsError::from)?);
    }
    for claim in &claims {
        if let Some(judge) = judge(&claim.id) {
            judge(&mut trials, claim)?;
        }
    }
    trials.run_all(workers, progress)?;
    let verdict = |claim: Claim| match judge(&claim.id) {
        Some(judge) => {
            let figures = judge(&mut trials, &claim)?;
            Ok(Verdict::new(claim, Some(figures)))
        }
        None => Ok(Verdict::new(claim, None)),
    };
    claims.into_iter().map(verdict).collect()
}

/// Returns the judge of a claim, or `None` if the claim is not covered.
fn judge(id: &str) -> Option<Judge> {
    JUDGES.into_iter().flatten().find(|(known, _)| *known == id).map(|&(_, judge)| judge)
}

/// Returns the selected claims in the order of the list; an empty selection means all.
///
/// A claim is selected by its name or by a leading part of it that ends before a dot.
pub fn chosen(asked: &[String]) -> Result<Vec<Claim>, ReproduceError> {
    let claims = claims::published()?;
    let meant = |id: &str, asked: &str| {
        id == asked || id.strip_prefix(asked).is_some_and(|r| r.starts_with('.'))
    };
    for asked in asked {
        if !claims.iter().any(|claim| meant(&claim.id, asked)) {
            return Err(ReproduceError::Unknown {
                asked: asked.clone(),
                known: claims.into_iter().map(|claim| claim.id).collect(),
            });
        }
    }
    Ok(claims
        .into_iter()
        .filter(|claim| asked.is_empty() || asked.iter().any(|asked| meant(&claim.id, asked)))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_chosen_by_id_or_family() {
        let ids = |asked: &[&str]| -> Result<Vec<String>, ReproduceError> {
            let asked: Vec<String> = asked.iter().map(|&asked| asked.to_owned()).collect();
            Ok(chosen(&asked)?.into_iter().map(|claim| claim.id).collect())
        };
        assert_eq!(ids(&["scal.f4_7"]).unwrap(), ["scal.f4_7"]);
        assert_eq!(ids(&["flex"]).unwrap().len(), 3);
        assert_eq!(ids(&["gleaner.t2"]).unwrap().len(), 4);
        assert!(ids(&[]).unwrap().len() > 25);
        let error = ids(&["flex.f"]).unwrap_err().to_string();
        assert!(error.contains("flex.f6.lag"), "{error}");
    }

    #[test]
    fn judges_map_one_to_one_to_claims() {
        let published = claims::published().unwrap();
        let mut judged: Vec<&str> = JUDGES.into_iter().flatten().map(|&(id, _)| id).collect();
        for id in &judged {
            assert!(published.iter().any(|claim| claim.id == *id), "{id}");
        }
        judged.sort_unstable();
        let all = judged.len();
        judged.dedup();
        assert_eq!(judged.len(), all);
    }

    #[test]
    fn judges_accept_pending_trials() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../research/scenarios/papers");
        let mut trials = Trials::open(Some(Path::new(folder)), 1).unwrap();
        for claim in claims::published().unwrap() {
            let Some(judge) = judge(&claim.id) else {
                continue;
            };
            let figures = judge(&mut trials, &claim);
            let figures = figures.unwrap_or_else(|error| panic!("{}: {error:#}", claim.id));
            assert!(!figures.is_empty(), "{}", claim.id);
            for figure in figures {
                assert!(!figure.in_band(), "{}: {}", claim.id, figure.name);
            }
        }
    }
}
