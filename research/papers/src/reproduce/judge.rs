//! The type of a judge of published claims.

use thiserror::Error;

use super::claims::{Claim, Figure, NoNumber};
use crate::trials::{Trials, TrialsError};

/// Maps a claim to its figures.
///
/// A judge runs twice: with pending trials, to record the trials that it needs, and with their results.
/// The set of trials must not depend on the results.
pub type Judge = fn(&mut Trials, &Claim) -> Result<Vec<Figure>, JudgeError>;

/// Error of a judge.
#[derive(Debug, Error)]
pub enum JudgeError {
    /// A trial is invalid, or lacks a requested metric or VM.
    #[error(transparent)]
    Trials(#[from] TrialsError),
    /// The claim has no figure at a path.
    #[error(transparent)]
    Claim(#[from] NoNumber),
}
