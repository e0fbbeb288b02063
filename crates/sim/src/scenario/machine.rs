//! `[machine]`: pCPUs, topology, costs.
//!
//! `[machine.topology]` describes sockets, nodes, caches, cores and threads, each count with a default of 1.
//! `like` takes the counts of a published machine ([`Layout::MODELS`]), and other keys replace single ones.
//!
//! Costs are [`crate::machine::costs::TABLE`] with single keys replaced.
//! The keys come from that table, so a new cost needs no code here.

use serde::Deserialize;
use tandem_model::Layout;

use super::{Machine, Mode};
use crate::document::place::LoadError;
use crate::document::read::{Field, Table};
use crate::machine::costs::TABLE;
use crate::machine::{Costs, TimerSteals};

/// Maximum number of pCPUs.
const MAX_PCPUS: u32 = Layout::MAX_PCPUS;

/// Maximum of threads per core: the SMT of x86, for which the costs were measured.
const MAX_THREADS: u32 = 2;

/// Maximum cost: 10⁹, a second in ns.
const MAX_COST: u64 = 1_000_000_000;

pub(super) const KEYS: [&str; 5] = ["pcpus", "pcpus_per_llc", "topology", "mode", "costs"];

pub(super) const TOPOLOGY_KEYS: [&str; 6] = [
    "like",
    "sockets",
    "nodes_per_socket",
    "caches_per_node",
    "cores_per_cache",
    "threads_per_core",
];

/// Reads `[machine]`.
pub fn read(document: &Table<'_>) -> Result<Machine, LoadError> {
    let table = document.need("machine", "{ pcpus = 8 }")?.table(&KEYS)?;
    let layout = table.get("topology").map(|field| layout(&field)).transpose()?;
    let (pcpus, pcpus_per_llc) = match layout {
        None => {
            let pcpus = table.need("pcpus", "8")?.small(1, MAX_PCPUS)?;
            (pcpus, table.or("pcpus_per_llc", pcpus, |field| field.small(1, pcpus))?)
        }
        Some((layout, pcpus)) => {
            let per_llc = layout.cores_per_cache * layout.threads_per_core;
            for (key, number) in [("pcpus", pcpus), ("pcpus_per_llc", per_llc)] {
                if let Some(field) = table.get(key)
                    && (key == "pcpus_per_llc" || field.small(1, MAX_PCPUS)? != number)
                {
                    let message = format!("machine.topology sets it to {number}: leave it out");
                    return Err(field.wrong(message));
                }
            }
            (pcpus, per_llc)
        }
    };
    Ok(Machine {
        pcpus,
        pcpus_per_llc,
        layout: layout.map(|(layout, _)| layout),
        mode: table.or("mode", Mode::Virtual, Field::parse)?,
        costs: table.or("costs", Costs::default(), costs)?,
        timer_steals: TimerSteals::default(),
    })
}

/// Reads the topology and its number of pCPUs.
fn layout(field: &Field<'_>) -> Result<(Layout, u32), LoadError> {
    let table = field.table(&TOPOLOGY_KEYS)?;
    let like = table.get("like").map(|field| field.choice(&Layout::MODELS)).transpose()?;
    let count = |key: &str, of_model: fn(Layout) -> u32, most: u32| match like {
        Some(model) => table.or(key, of_model(model), |field| field.small(1, most)),
        None if key == "cores_per_cache" => table.need(key, "8")?.small(1, most),
        None => table.or(key, 1, |field| field.small(1, most)),
    };
    let layout = Layout {
        sockets: count("sockets", |model| model.sockets, MAX_PCPUS)?,
        nodes_per_socket: count("nodes_per_socket", |model| model.nodes_per_socket, MAX_PCPUS)?,
        caches_per_node: count("caches_per_node", |model| model.caches_per_node, MAX_PCPUS)?,
        cores_per_cache: count("cores_per_cache", |model| model.cores_per_cache, MAX_PCPUS)?,
        threads_per_core: count("threads_per_core", |model| model.threads_per_core, MAX_THREADS)?,
    };
    let pcpus = layout.pcpus().ok_or_else(|| {
        field.wrong(format!("{layout} are too many pCPUs: the product may be at most {MAX_PCPUS}"))
    })?;
    Ok((layout, pcpus))
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
            let (least, most) = match key {
                "jitter_percent" => (0, 100),
                // Divisors.
                "cycles_per_us" => (1, MAX_COST),
                "smt_working_percent" | "smt_pausing_percent" => (1, 100),
                // Remote memory is not faster.
                "remote_memory_percent" => (100, MAX_COST),
                _ => (0, MAX_COST),
            };
            let cost = cost.integer(least, most)?;
            costs.insert(key.to_owned(), toml::Value::Integer(cost as i64));
        }
    }
    Costs::deserialize(toml::Value::Table(costs)).map_err(|error| field.wrong(error.message()))
}
