//! The cells of a sweep, and the identity of its grid.
//!
//! A grid's fingerprint is FNV-1a of 128 bits (Fowler, Noll, Vo; RFC 9923) over all inputs of its figures.
//! These are the parsed scenario of every combination with its workloads and settings, the names of the combinations,
//! the columns of the varied parameters, and the seeds.
//! Comments and the order of keys in a scenario have no effect.
//! The fingerprint detects mistakes, not forgery.
//!
//! The version of the program must match too, because another version may simulate differently.
//! Two builds of one version cannot be distinguished.

use std::fmt;
use std::fmt::Write;
use std::num::{ParseIntError, TryFromIntError};
use std::ops::RangeInclusive;
use std::str::FromStr;

use tandem_sim::Scenario;
use tandem_sim::scenario::load::{LoadError, Source};
use thiserror::Error;

use crate::parameters::{Parameters, Value};
use crate::vary::Combination;

/// Valid numbers of shards of a grid.
pub const SHARDS: RangeInclusive<u32> = 1..=1000;

/// Number of combinations that a message names.
const SHOWN: usize = 3;

/// One part of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Number of the part, from 1.
    pub number: u32,
    /// Number of parts.
    pub of: u32,
}

impl Shard {
    /// The whole grid.
    pub const WHOLE: Shard = Shard { number: 1, of: 1 };

    /// Returns its cells in a grid of `of_grid` cells.
    pub fn cells(self, of_grid: u64) -> impl Iterator<Item = u64> {
        let first = u64::from(self.number.saturating_sub(1));
        (first..of_grid).step_by(self.of.max(1) as usize)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

/// The text is not a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("write I/N, shard I of N, I from 1 to N and N at most {}, such as 2/8", SHARDS.end())]
pub struct NoShard;

impl FromStr for Shard {
    type Err = NoShard;

    fn from_str(text: &str) -> Result<Shard, NoShard> {
        let (number, of) = text.split_once('/').ok_or(NoShard)?;
        let digits = |text: &str| {
            if text.bytes().all(|byte| byte.is_ascii_digit()) {
                text.parse::<u32>().map_err(|_| NoShard)
            } else {
                Err(NoShard)
            }
        };
        let (number, of) = (digits(number)?, digits(of)?);
        if SHARDS.contains(&of) && (1..=of).contains(&number) {
            Ok(Shard { number, of })
        } else {
            Err(NoShard)
        }
    }
}

/// Error of a grid or its shard.
#[derive(Debug, Error)]
pub enum GridError {
    /// A combination's scenario is invalid.
    #[error(transparent)]
    Scenario(#[from] LoadError),
    /// There is no combination.
    #[error("there is nothing to sweep")]
    Nothing,
    /// The grid does not have the expected fingerprint.
    #[error(
        "--expect {expected}: this is {found}, with fingerprint {}. The scenario, its settings or what is varied has changed since; \
         write the script anew, or undo the change",
        found.fingerprint
    )]
    Unexpected {
        /// Identity of the grid.
        found: Box<Identity>,
        /// The expected fingerprint.
        expected: String,
    },
    /// There are fewer cells than shards.
    #[error(
        "--shard {shard} is not possible: the grid has {cells} cells, so it has that many shards at \
         most"
    )]
    TooManyShards {
        /// The shard.
        shard: Shard,
        /// Number of cells.
        cells: u64,
    },
}

/// Error of the metadata of a sweep's file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IdentityError {
    /// A key is missing.
    #[error("its metadata has no {0}: it is not of a sweep")]
    Missing(&'static str),
    /// A value is not a number.
    #[error("its metadata has {key} = \"{text}\", which is not a number")]
    NoNumber {
        /// The key.
        key: &'static str,
        /// The value.
        text: String,
        /// The cause.
        #[source]
        cause: ParseIntError,
    },
    /// The number of runs is out of range.
    #[error("its metadata has tandem.runs = {runs}")]
    Runs {
        /// The number of runs.
        runs: u64,
        /// The cause.
        #[source]
        cause: TryFromIntError,
    },
    /// The shard is invalid.
    #[error("its metadata has tandem.shard = \"{text}\"")]
    Shard {
        /// The text of the shard.
        text: String,
        /// The cause.
        #[source]
        cause: NoShard,
    },
    /// There are more shards than cells.
    #[error("its metadata has {shards} shards of {cells} cells")]
    TooManyShards {
        /// Number of shards.
        shards: u32,
        /// Number of cells.
        cells: u64,
    },
}

/// A cell of a grid.
#[derive(Clone, Copy, Debug)]
pub struct Cell<'a> {
    /// The combination's name.
    pub combination: &'a str,
    /// The combination's value for each parameter.
    pub parameters: &'a [Value],
    /// The scenario.
    pub scenario: &'a Scenario,
    /// The seed.
    pub seed: u64,
}

/// A grid of combinations and seeds.
#[derive(Debug)]
pub struct Grid {
    /// Name and scenario of each combination.
    combinations: Vec<(String, Scenario)>,
    parameters: Parameters,
    runs: u32,
    seed: u64,
}

impl Grid {
    /// Reads the scenarios of all combinations without running them.
    pub fn read(
        source: &Source,
        combinations: &[Combination],
        runs: u32,
    ) -> Result<Grid, GridError> {
        let parameters = Parameters::of(combinations);
        let combinations = combinations
            .iter()
            .map(|combination| Ok((combination.name(), combination.scenario(source)?)))
            .collect::<Result<Vec<(String, Scenario)>, LoadError>>()?;
        let (_, first) = combinations.first().ok_or(GridError::Nothing)?;
        Ok(Grid { seed: first.seed, combinations, parameters, runs })
    }

    /// Returns the number of cells.
    pub fn cells(&self) -> u64 {
        self.combinations.len() as u64 * u64::from(self.runs)
    }

    /// Returns the varied parameters.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Returns a cell.
    pub fn cell(&self, cell: u64) -> Option<Cell<'_>> {
        let runs = u64::from(self.runs.max(1));
        let at = usize::try_from(cell / runs).ok()?;
        let (combination, scenario) = self.combinations.get(at)?;
        Some(Cell {
            combination,
            parameters: self.parameters.row(at),
            scenario,
            seed: self.seed.wrapping_add(cell % runs),
        })
    }

    /// Checks that there are no more shards than cells.
    pub fn check(&self, shard: Shard) -> Result<(), GridError> {
        let cells = self.cells();
        if u64::from(shard.of) <= cells {
            Ok(())
        } else {
            Err(GridError::TooManyShards { shard, cells })
        }
    }

    /// Checks that the grid has this fingerprint.
    pub fn expect(&self, fingerprint: &str) -> Result<(), GridError> {
        let found = self.identity(Shard::WHOLE);
        if found.fingerprint == fingerprint {
            Ok(())
        } else {
            Err(GridError::Unexpected { found: Box::new(found), expected: fingerprint.to_owned() })
        }
    }

    /// Returns the identity of one of its shards.
    pub fn identity(&self, shard: Shard) -> Identity {
        let mut fingerprint = Fingerprint::default();
        // Writing to a `Fingerprint` cannot fail.
        let _ = write!(fingerprint, "{} {} ", self.seed, self.runs);
        let _ = write!(fingerprint, "{:?} ", self.parameters.columns());
        for (name, scenario) in &self.combinations {
            let _ = write!(fingerprint, "{name:?} {scenario:?} ");
        }
        let names: Vec<&str> = self.combinations.iter().map(|(name, _)| name.as_str()).collect();
        Identity {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            scenario: self
                .combinations
                .first()
                .map_or_else(String::new, |(_, scenario)| scenario.name.clone()),
            grid: sample(&names),
            runs: self.runs,
            seed: self.seed,
            cells: self.cells(),
            fingerprint: fingerprint.to_string(),
            shard,
        }
    }
}

/// Returns a short description of the combinations.
fn sample(names: &[&str]) -> String {
    match names {
        [""] => "as it is".to_owned(),
        _ if names.len() <= SHOWN => names.join(" | "),
        _ => format!("{} | … {} more", names[..SHOWN].join(" | "), names.len() - SHOWN),
    }
}

/// Identity of a file: its grid and shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The program's version.
    pub version: String,
    /// The scenario's name.
    pub scenario: String,
    /// Description of the combinations for messages.
    pub grid: String,
    /// Runs of each combination.
    pub runs: u32,
    /// Seed of the first run.
    pub seed: u64,
    /// Number of cells of the whole grid.
    pub cells: u64,
    /// Fingerprint of the grid.
    pub fingerprint: String,
    /// The shard.
    pub shard: Shard,
}

impl Identity {
    /// Returns the identity as metadata of a file.
    pub fn to_pairs(&self) -> [(&'static str, String); 8] {
        [
            ("tandem.version", self.version.clone()),
            ("tandem.scenario", self.scenario.clone()),
            ("tandem.grid", self.grid.clone()),
            ("tandem.runs", self.runs.to_string()),
            ("tandem.seed", self.seed.to_string()),
            ("tandem.cells", self.cells.to_string()),
            ("tandem.fingerprint", self.fingerprint.clone()),
            ("tandem.shard", self.shard.to_string()),
        ]
    }

    /// Reads the identity from a file's metadata.
    pub fn from_pairs(get: impl Fn(&str) -> Option<String>) -> Result<Identity, IdentityError> {
        let text = |key: &'static str| get(key).ok_or(IdentityError::Missing(key));
        let number = |key: &'static str| {
            let text = text(key)?;
            let number = text.parse::<u64>();
            number.map_err(|cause| IdentityError::NoNumber { key, text, cause })
        };
        let shard = text("tandem.shard")?;
        let runs = number("tandem.runs")?;
        let identity = Identity {
            version: text("tandem.version")?,
            scenario: text("tandem.scenario")?,
            grid: text("tandem.grid")?,
            runs: u32::try_from(runs).map_err(|cause| IdentityError::Runs { runs, cause })?,
            seed: number("tandem.seed")?,
            cells: number("tandem.cells")?,
            fingerprint: text("tandem.fingerprint")?,
            shard: shard.parse().map_err(|cause| IdentityError::Shard { text: shard, cause })?,
        };
        if u64::from(identity.shard.of) > identity.cells {
            return Err(IdentityError::TooManyShards {
                shards: identity.shard.of,
                cells: identity.cells,
            });
        }
        Ok(identity)
    }

    /// Returns the identity of another shard of the grid.
    pub fn with_shard(&self, shard: Shard) -> Identity {
        Identity { shard, ..self.clone() }
    }

    /// Returns whether both are shards of the same grid.
    pub fn same_grid(&self, other: &Identity) -> bool {
        *self == other.with_shard(self.shard)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "shard {} of {}, {}, {} runs from seed {}, {} cells (grid {}, tandem {})",
            self.shard,
            self.scenario,
            self.grid,
            self.runs,
            self.seed,
            self.cells,
            // A prefix suffices to show a difference.
            self.fingerprint.get(..8).unwrap_or(&self.fingerprint),
            self.version
        )
    }
}

/// FNV-1a of 128 bits; inputs of equal length that differ in one byte have different hashes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint(u128);

impl Fingerprint {
    /// Adds bytes.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        const PRIME: u128 = (1 << 88) + (1 << 8) + 0x3b;
        for &byte in bytes {
            self.0 = (self.0 ^ u128::from(byte)).wrapping_mul(PRIME);
        }
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Default for Fingerprint {
    fn default() -> Fingerprint {
        Fingerprint(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }
}

impl Write for Fingerprint {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.bytes(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(text: &str) -> Option<Shard> {
        text.parse().ok()
    }

    #[test]
    fn shard_is_parsed_as_i_of_n() {
        assert_eq!(shard("2/8"), Some(Shard { number: 2, of: 8 }));
        assert_eq!(shard("1/1"), Some(Shard::WHOLE));
        for wrong in [
            "",
            "2",
            "0/3",
            "4/3",
            "1/0",
            "1/1001",
            "a/3",
            "1/b",
            "-1/3",
            "+1/3",
            "1/3/3",
            "/",
            "1/",
            " 1/3",
            "99999999999/99999999999",
        ] {
            assert_eq!(shard(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn every_cell_is_in_one_shard() {
        for cells in 0..20u64 {
            for of in 1..=7 {
                let mut all: Vec<u64> =
                    (1..=of).flat_map(|number| Shard { number, of }.cells(cells)).collect();
                all.sort_unstable();
                assert!(all.into_iter().eq(0..cells), "{cells} cells, {of} shards");
            }
        }
        let second: Vec<u64> = Shard { number: 2, of: 3 }.cells(9).collect();
        assert_eq!(second, [1, 4, 7]);
    }

    #[test]
    fn fingerprint_is_fnv_1a() {
        let of = |text: &str| {
            let mut fingerprint = Fingerprint::default();
            fingerprint.write_str(text).unwrap();
            fingerprint.0
        };
        assert_eq!(of("a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
        assert_ne!(of("ab"), of("ba"));
    }

    #[test]
    fn metadata_round_trip_keeps_identity() {
        let identity = Identity {
            version: "1.2.3".to_owned(),
            scenario: "s".to_owned(),
            grid: sample(&["a=1", "a=2", "a=3", "a=4"]),
            runs: 3,
            seed: u64::MAX,
            cells: 12,
            fingerprint: "0".repeat(32),
            shard: Shard { number: 2, of: 5 },
        };
        let pairs = identity.to_pairs();
        let get = |key: &str| {
            let pair = pairs.iter().find(|(known, _)| *known == key);
            pair.map(|(_, value)| value.clone())
        };
        assert_eq!(Identity::from_pairs(get).unwrap(), identity);
        let error = Identity::from_pairs(|_| None).unwrap_err();
        assert!(error.to_string().contains("not of a sweep"), "{error}");
        assert_eq!(identity.grid, "a=1 | a=2 | a=3 | … 1 more");
    }
}
