//! Which cells a sweep has, and what tells one grid from another.
//!
//! A grid's fingerprint is FNV-1a of 128 bits (Fowler, Noll, Vo; RFC 9923) over everything that its
//! figures depend on: the scenario of every combination as it was understood, workload files and
//! settings included, the names of the combinations, the columns of what is varied, and the seeds. Comments and the order of keys in a
//! scenario are not part of it. It guards against mistakes, not against forgery.
//!
//! The version of the program is kept beside it and must be the same too: another version may
//! simulate differently. What it cannot tell apart are two builds of one version.

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

/// Shards of one grid.
pub const SHARDS: RangeInclusive<u32> = 1..=1000;

/// Names of combinations that a message shows.
const SHOWN: usize = 3;

/// One part of N, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Which, from 1.
    pub number: u32,
    /// Of how many.
    pub of: u32,
}

impl Shard {
    /// All of it.
    pub const WHOLE: Shard = Shard { number: 1, of: 1 };

    /// Its cells of a grid of so many.
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

/// What was written is no shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("write I/N, shard I of N, I from 1 to N and N at most {}, such as 2/8", SHARDS.end())]
pub struct NoShard;

impl FromStr for Shard {
    type Err = NoShard;

    fn from_str(text: &str) -> Result<Shard, NoShard> {
        let (number, of) = text.split_once('/').ok_or(NoShard)?;
        let digits = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
            true => text.parse::<u32>().map_err(|_| NoShard),
            false => Err(NoShard),
        };
        let (number, of) = (digits(number)?, digits(of)?);
        match SHARDS.contains(&of) && (1..=of).contains(&number) {
            true => Ok(Shard { number, of }),
            false => Err(NoShard),
        }
    }
}

/// Why there is no grid, or not that shard of it.
#[derive(Debug, Error)]
pub enum GridError {
    /// A combination's scenario is wrong.
    #[error(transparent)]
    Scenario(#[from] LoadError),
    /// There is no combination.
    #[error("there is nothing to sweep")]
    Nothing,
    /// It is another grid than was expected.
    #[error(
        "--expect {expected}: this is {found}, with fingerprint {}. The scenario, its settings or what is varied has changed since; \
         write the script anew, or undo the change",
        found.fingerprint
    )]
    Unexpected {
        /// What it is.
        found: Box<Identity>,
        /// The fingerprint that was expected.
        expected: String,
    },
    /// There are fewer cells than shards.
    #[error(
        "--shard {shard} is not possible: the grid has {cells} cells, so it has that many shards at \
         most"
    )]
    TooManyShards {
        /// What was asked for.
        shard: Shard,
        /// What there is.
        cells: u64,
    },
}

/// Why metadata is not that of a sweep's file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IdentityError {
    /// A key is not there.
    #[error("its metadata has no {0}: it is not of a sweep")]
    Missing(&'static str),
    /// A value is no number.
    #[error("its metadata has {key} = \"{text}\", which is no number")]
    NoNumber {
        /// The key.
        key: &'static str,
        /// Its value.
        text: String,
        /// What is wrong with it.
        #[source]
        cause: ParseIntError,
    },
    /// More runs than there can be.
    #[error("its metadata has tandem.runs = {runs}")]
    Runs {
        /// So many.
        runs: u64,
        /// What is wrong with it.
        #[source]
        cause: TryFromIntError,
    },
    /// A shard that there cannot be.
    #[error("its metadata has tandem.shard = \"{text}\"")]
    Shard {
        /// What is there.
        text: String,
        /// What is wrong with it.
        #[source]
        cause: NoShard,
    },
    /// More shards than cells.
    #[error("its metadata has {shards} shards of {cells} cells")]
    TooManyShards {
        /// So many shards.
        shards: u32,
        /// So many cells.
        cells: u64,
    },
}

/// A cell of a grid.
#[derive(Clone, Copy, Debug)]
pub struct Cell<'a> {
    /// The combination's name.
    pub combination: &'a str,
    /// A value for each parameter.
    pub parameters: &'a [Value],
    /// What is simulated.
    pub scenario: &'a Scenario,
    /// With which seed.
    pub seed: u64,
}

/// Every cell.
#[derive(Debug)]
pub struct Grid {
    /// A name and what is simulated, for each combination.
    combinations: Vec<(String, Scenario)>,
    parameters: Parameters,
    runs: u32,
    seed: u64,
}

impl Grid {
    /// Reads the scenario of every combination, before any runs.
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

    /// How many cells there are.
    pub fn cells(&self) -> u64 {
        self.combinations.len() as u64 * u64::from(self.runs)
    }

    /// What is varied.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// A cell.
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

    /// Refuses a shard of more than there are cells.
    pub fn check(&self, shard: Shard) -> Result<(), GridError> {
        let cells = self.cells();
        match u64::from(shard.of) <= cells {
            true => Ok(()),
            false => Err(GridError::TooManyShards { shard, cells }),
        }
    }

    /// Refuses a grid with another fingerprint than this.
    pub fn expect(&self, fingerprint: &str) -> Result<(), GridError> {
        let found = self.identity(Shard::WHOLE);
        if found.fingerprint == fingerprint {
            Ok(())
        } else {
            Err(GridError::Unexpected { found: Box::new(found), expected: fingerprint.to_owned() })
        }
    }

    /// What a file of one of its shards says about itself.
    pub fn identity(&self, shard: Shard) -> Identity {
        let mut fingerprint = Fingerprint::default();
        // A Fingerprint takes every text; there is no error to be had.
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

/// The combinations in a few words.
fn sample(names: &[&str]) -> String {
    match names {
        [""] => "as it is".to_owned(),
        _ if names.len() <= SHOWN => names.join(" | "),
        _ => format!("{} | … {} more", names[..SHOWN].join(" | "), names.len() - SHOWN),
    }
}

/// What a file says about itself: of which grid it is, and which part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The program's version.
    pub version: String,
    /// The scenario's name.
    pub scenario: String,
    /// The combinations, for people.
    pub grid: String,
    /// Runs of each.
    pub runs: u32,
    /// The first run's seed.
    pub seed: u64,
    /// Cells of the whole grid.
    pub cells: u64,
    /// Of all that figures depend on.
    pub fingerprint: String,
    /// Which part this is.
    pub shard: Shard,
}

impl Identity {
    /// Keys of a file's metadata and their values.
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

    /// From a file's metadata.
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

    /// The same for another part of the grid.
    pub fn with_shard(&self, shard: Shard) -> Identity {
        Identity { shard, ..self.clone() }
    }

    /// Whether both are of one grid, whichever part.
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
            // Enough to see that two differ.
            self.fingerprint.get(..8).unwrap_or(&self.fingerprint),
            self.version
        )
    }
}

/// FNV-1a of 128 bits. Two inputs of one length that differ in a single byte never have the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint(u128);

impl Fingerprint {
    /// Takes more.
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
    fn a_shard_is_written_i_of_n() {
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
    fn the_fingerprint_is_fnv_1a() {
        let of = |text: &str| {
            let mut fingerprint = Fingerprint::default();
            fingerprint.write_str(text).unwrap();
            fingerprint.0
        };
        assert_eq!(of("a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
        assert_ne!(of("ab"), of("ba"));
    }

    #[test]
    fn what_metadata_says_is_read_back() {
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
