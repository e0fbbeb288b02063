//! `[machine]`: pCPUs, caches, costs.
//!
//! Costs are [`crate::machine::costs::TABLE`] with single keys replaced.
//! The keys come from that table, so a new cost needs no code here.

use serde::Deserialize;

use super::{Machine, Mode};
use crate::document::place::LoadError;
use crate::document::read::{Field, Table};
use crate::machine::costs::TABLE;
use crate::machine::{Costs, TimerSteals};

/// Maximum number of pCPUs.
const MAX_PCPUS: u32 = 4096;

/// Maximum cost: 10⁹, a second in ns.
const MAX_COST: u64 = 1_000_000_000;

pub(super) const KEYS: [&str; 4] = ["pcpus", "pcpus_per_llc", "mode", "costs"];

/// Reads `[machine]`.
pub fn read(document: &Table<'_>) -> Result<Machine, LoadError> {
    let table = document.need("machine", "{ pcpus = 8 }")?.table(&KEYS)?;
    let pcpus = table.need("pcpus", "8")?.small(1, MAX_PCPUS)?;
    Ok(Machine {
        pcpus,
        pcpus_per_llc: table.or("pcpus_per_llc", pcpus, |field| field.small(1, pcpus))?,
        mode: table.or("mode", Mode::Virtual, Field::parse)?,
        costs: table.or("costs", Costs::default(), costs)?,
        timer_steals: TimerSteals::default(),
    })
}

/// Reads the table of costs with its replaced keys.
fn costs(field: &Field<'_>) -> Result<Costs, LoadError> {
    let mut costs: toml::Table = TABLE
        .parse()
        .map_err(|error| field.wrong(format!("the table of costs cannot be read: {error}")))?;
    let keys: Vec<String> = costs.keys().cloned().collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let table = field.table(&keys)?;
    for key in keys {
        if let Some(cost) = table.get(key) {
            // `cycles_per_us` is a divisor.
            let least = u64::from(key == "cycles_per_us");
            let most = match key {
                "jitter_percent" => 100,
                _ => MAX_COST,
            };
            let cost = cost.integer(least, most)?;
            costs.insert(key.to_owned(), toml::Value::Integer(cost as i64));
        }
    }
    Costs::deserialize(toml::Value::Table(costs)).map_err(|error| field.wrong(error.message()))
}
