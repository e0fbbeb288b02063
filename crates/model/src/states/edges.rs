//! Edges from a waiting victim to the culprit that had what the victim wanted.
//!
//! Times of different kinds ([`EdgeKind`]) are not comparable and are never added.
//! An edge is either measured (a switch on that pCPU) or estimated from sums, and may have a count of its occurrences.
//!
//! On a host with a thousand unpinned VMs, every vCPU waits for every VM.
//! A victim therefore has only its longest edges of a kind, usually [`TOP`], and one to [`Party::Others`] with the rest, which keeps its total exact.
//! Edges to the victim's own VM are always kept, as they show stacked vCPUs.
//!
//! [`EdgesBuilder`] accepts edges in any order; [`Edges`] are sorted, so that results do not depend on that order or on a hash.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::units::{Nanos, VmId};

pub use super::party::Party;

/// Maximum number of named culprits of a victim and kind.
pub const TOP: usize = 16;

/// Relation between victim and culprit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EdgeKind {
    /// The victim was RDY while the culprit ran on a pCPU that the victim may use.
    Pcpu,
    /// Co-stop: the victim halted or spun for a sibling, the culprit, that was RDY; the sibling has edges of its own.
    Sibling,
    /// The victim spun, exited with a pause-loop exit and yielded to the culprit, a sibling, which got the pCPU.
    YieldTaken,
    /// As before, but the culprit did not get it.
    YieldUseless,
}

impl EdgeKind {
    /// All kinds, in display order.
    pub const ALL: [EdgeKind; 4] =
        [EdgeKind::Pcpu, EdgeKind::Sibling, EdgeKind::YieldTaken, EdgeKind::YieldUseless];

    /// Returns the meaning of this kind, for messages.
    pub fn words(self) -> &'static str {
        match self {
            EdgeKind::Pcpu => "who takes pCPUs",
            EdgeKind::Sibling => "which sibling is waited for",
            EdgeKind::YieldTaken => "yields that helped",
            EdgeKind::YieldUseless => "yields that did not",
        }
    }
}

/// Evidence for an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// The culprit was observed running on that pCPU at that time.
    Measured,
    /// Divided in proportion to run times on the pCPUs that the victim could use.
    Estimated,
}

/// Time and count of an edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// Waiting time.
    pub time: Nanos,
    /// Number of occurrences; `None` if not counted.
    pub count: Option<u64>,
}

impl Amount {
    /// Returns a time without a count.
    pub fn time(time: Nanos) -> Amount {
        Amount { time, count: None }
    }

    fn is_nothing(self) -> bool {
        self.time == Nanos::ZERO && self.count.unwrap_or(0) == 0
    }

    /// Returns the sum; the count is `None` if either is.
    pub fn plus(self, other: Amount) -> Amount {
        let counts = self.count.zip(other.count);
        Amount { time: self.time + other.time, count: counts.map(|(one, two)| one + two) }
    }

    /// Sort key, largest first.
    fn order(self) -> Reverse<(Nanos, u64)> {
        Reverse((self.time, self.count.unwrap_or(0)))
    }
}

/// A wait of a victim for a culprit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge<'a> {
    /// Waiting party.
    pub victim: &'a Party,
    /// Party that it waited for.
    pub culprit: &'a Party,
    /// Relation between them.
    pub kind: EdgeKind,
    /// Evidence.
    pub evidence: Evidence,
    /// Time and count.
    pub amount: Amount,
}

impl Edge<'_> {
    /// Returns the waiting time.
    pub fn time(&self) -> Nanos {
        self.amount.time
    }
}

/// Number of a party in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PartyId(u32);

/// An edge with the numbers of its parties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Row {
    victim: PartyId,
    kind: EdgeKind,
    culprit: PartyId,
    evidence: Evidence,
    #[serde(flatten)]
    amount: Amount,
}

/// Edges, sorted by victim, kind, descending time, and culprit.
/// The table has only parties with an edge, so sets with the same edges are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Read")]
pub struct Edges {
    parties: Vec<Party>,
    edges: Vec<Row>,
}

/// Deserialized edges before validation.
#[derive(Deserialize)]
struct Read {
    parties: Vec<Party>,
    edges: Vec<Row>,
}

/// Reason why deserialized data is not a valid set of edges.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("an edge names party {number} of {parties}; parties are numbered from 0")]
pub struct EdgesError {
    number: u32,
    parties: usize,
}

impl TryFrom<Read> for Edges {
    type Error = EdgesError;

    fn try_from(read: Read) -> Result<Edges, EdgesError> {
        let mut builder = EdgesBuilder::new();
        let ids: Vec<PartyId> = read.parties.iter().map(|party| builder.party(party)).collect();
        let id = |PartyId(number): PartyId| {
            ids.get(number as usize).copied().ok_or(EdgesError { number, parties: ids.len() })
        };
        for row in read.edges {
            let (victim, culprit) = (id(row.victim)?, id(row.culprit)?);
            builder.add(victim, culprit, row.kind, row.evidence, row.amount);
        }
        Ok(builder.all())
    }
}

impl Edges {
    /// Returns true if there are no edges.
    pub fn is_empty(&self) -> bool {
        self.edges.is_empty()
    }

    /// Returns the number of edges.
    pub fn len(&self) -> usize {
        self.edges.len()
    }

    /// Iterates over all edges in order.
    pub fn iter(&self) -> impl Iterator<Item = Edge<'_>> {
        self.edges.iter().map(|row| self.edge(row))
    }

    /// Iterates over the edges of one victim and kind, longest first.
    pub fn of(&self, victim: &Party, kind: EdgeKind) -> impl Iterator<Item = Edge<'_>> {
        let rows = match self.parties.binary_search(victim) {
            Ok(at) => {
                let wanted = (PartyId(at as u32), kind);
                let begin = self.edges.partition_point(|row| (row.victim, row.kind) < wanted);
                let end = self.edges.partition_point(|row| (row.victim, row.kind) <= wanted);
                &self.edges[begin..end]
            }
            Err(_) => &[],
        };
        rows.iter().map(|row| self.edge(row))
    }

    /// Returns the sum of all times of a kind.
    pub fn total(&self, kind: EdgeKind) -> Nanos {
        let of_kind = self.edges.iter().filter(|row| row.kind == kind);
        of_kind.map(|row| row.amount.time).sum()
    }

    /// Merges the vCPUs of each VM, as victims and culprits; a VM that waits for itself has stacked vCPUs.
    pub fn by_vm(&self) -> Edges {
        let mut builder = EdgesBuilder::new();
        let whole: Vec<PartyId> =
            self.parties.iter().map(|party| builder.party(&party.whole())).collect();
        let id = |PartyId(number): PartyId| whole[number as usize];
        for row in &self.edges {
            let (victim, culprit) = (id(row.victim), id(row.culprit));
            builder.add(victim, culprit, row.kind, row.evidence, row.amount);
        }
        builder.all()
    }

    fn edge(&self, row: &Row) -> Edge<'_> {
        Edge {
            victim: &self.parties[row.victim.0 as usize],
            culprit: &self.parties[row.culprit.0 as usize],
            kind: row.kind,
            evidence: row.evidence,
            amount: row.amount,
        }
    }
}

/// Collects edges in any order, adding up those with the same parties, kind and evidence.
#[derive(Clone, Debug, Default)]
pub struct EdgesBuilder {
    ids: BTreeMap<Party, PartyId>,
    rows: Vec<Row>,
}

impl EdgesBuilder {
    /// Creates a builder without edges.
    pub fn new() -> EdgesBuilder {
        EdgesBuilder::default()
    }

    /// Returns the number of a party, valid for this builder only.
    pub fn party(&mut self, party: &Party) -> PartyId {
        if let Some(id) = self.ids.get(party) {
            return *id;
        }
        let id = PartyId(self.ids.len() as u32);
        self.ids.insert(party.clone(), id);
        id
    }

    /// Adds an edge between parties of this builder; drops one without time and count.
    pub fn add(
        &mut self,
        victim: PartyId,
        culprit: PartyId,
        kind: EdgeKind,
        evidence: Evidence,
        amount: Amount,
    ) {
        if !amount.is_nothing() {
            self.rows.push(Row { victim, kind, culprit, evidence, amount });
        }
    }

    /// Returns all edges.
    pub fn all(self) -> Edges {
        self.top(usize::MAX)
    }

    /// Returns the `k` longest edges of each victim and kind, those to its own VM, and one to [`Party::Others`] with the rest.
    pub fn top(mut self, k: usize) -> Edges {
        let others = (k < usize::MAX).then(|| self.party(&Party::Others));
        // Renumber in the order of parties, independent of the order of insertion.
        let mut rank = vec![PartyId(0); self.ids.len()];
        for (place, id) in self.ids.values().enumerate() {
            rank[id.0 as usize] = PartyId(place as u32);
        }
        let others = others.map(|PartyId(id)| rank[id as usize]);
        let parties: Vec<Party> = self.ids.into_keys().collect();
        for row in &mut self.rows {
            row.victim = rank[row.victim.0 as usize];
            row.culprit = rank[row.culprit.0 as usize];
        }
        let mut edges = merged(self.rows);
        let same = |one: &Row, two: &Row| (one.victim, one.kind) == (two.victim, two.kind);
        edges.chunk_by_mut(same).for_each(longest_first);
        if let Some(others) = others {
            let vm = |PartyId(id): PartyId| parties[id as usize].vm();
            let mut short = Vec::with_capacity(edges.len());
            for of_victim in edges.chunk_by(same) {
                shorten(of_victim, k, others, &vm, &mut short);
            }
            edges = short;
        }
        drop_unused_parties(parties, edges)
    }
}

/// Drops parties without edges.
fn drop_unused_parties(parties: Vec<Party>, mut edges: Vec<Row>) -> Edges {
    let mut is_named = vec![false; parties.len()];
    for row in &edges {
        is_named[row.victim.0 as usize] = true;
        is_named[row.culprit.0 as usize] = true;
    }
    let mut count = 0;
    let place: Vec<PartyId> = is_named
        .iter()
        .map(|is_named| {
            let place = PartyId(count);
            count += u32::from(*is_named);
            place
        })
        .collect();
    for row in &mut edges {
        row.victim = place[row.victim.0 as usize];
        row.culprit = place[row.culprit.0 as usize];
    }
    let named = parties.into_iter().zip(is_named);
    Edges {
        parties: named.filter_map(|(party, is_named)| is_named.then_some(party)).collect(),
        edges,
    }
}

/// Adds up edges with the same parties, kind and evidence, and sorts them by victim and kind.
fn merged(mut rows: Vec<Row>) -> Vec<Row> {
    let pair = |row: &Row| (row.victim, row.kind, row.culprit, row.evidence);
    rows.sort_unstable_by_key(pair);
    rows.dedup_by(|later, first| {
        let is_same = pair(later) == pair(first);
        if is_same {
            first.amount = first.amount.plus(later.amount);
        }
        is_same
    });
    rows
}

/// Sorts the edges of one victim and kind by descending time, then by culprit.
fn longest_first(rows: &mut [Row]) {
    rows.sort_unstable_by_key(|row| (row.amount.order(), row.culprit, row.evidence));
}

/// Appends to `short` the first `k` edges of a victim, those to its own VM, and the rest as one to `others`.
fn shorten(
    rows: &[Row],
    k: usize,
    others: PartyId,
    vm: &impl Fn(PartyId) -> Option<VmId>,
    short: &mut Vec<Row>,
) {
    let begin = short.len();
    let mut named = 0;
    let mut rest: BTreeMap<Evidence, Row> = BTreeMap::new();
    for row in rows {
        let is_own = vm(row.victim).is_some() && vm(row.victim) == vm(row.culprit);
        if row.culprit != others && (is_own || named < k) {
            named += usize::from(!is_own);
            short.push(*row);
            continue;
        }
        let sum = rest.get(&row.evidence).map(|sum| sum.amount.plus(row.amount));
        let amount = sum.unwrap_or(row.amount);
        let (culprit, evidence) = (others, row.evidence);
        rest.insert(evidence, Row { culprit, amount, ..*row });
    }
    short.extend(rest.into_values());
    longest_first(&mut short[begin..]);
}

#[cfg(test)]
mod tests;
