//! What a judge of published claims is.

use thiserror::Error;

use super::claims::{Claim, Figure, NoNumber};
use crate::trials::{Trials, TrialsError};

/// Says which figures answer to a claim. It is asked twice: first while all trials are pending, to note
/// down those that it needs, then for its answer. What it needs must not depend on what comes out.
pub type Judge = fn(&mut Trials, &Claim) -> Result<Vec<Figure>, JudgeError>;

/// Why a claim cannot be judged.
#[derive(Debug, Error)]
pub enum JudgeError {
    /// A trial cannot be made, or has not what is asked of it.
    #[error(transparent)]
    Trials(#[from] TrialsError),
    /// The claim has no such figure.
    #[error(transparent)]
    Claim(#[from] NoNumber),
}
