//! Who waits for whom: edges from a victim to the culprit that had what the victim wanted.
//!
//! An edge has a [`EdgeKind`]: times of different kinds are not of the same thing and are never added up. It says whether it was
//! seen (a switch on that pCPU) or follows from sums, and, where that is counted, how often it happened.
//!
//! On a host of a thousand VMs that may run anywhere every vCPU waits for every VM. So a victim's edges of a kind are its
//! longest, [`TOP`] as a rule, and one to [`Party::Others`] with the rest: what a victim waited in all stays exact. Edges to the
//! victim's own VM are always kept, since a VM that waits for itself has stacked vCPUs.
//!
//! [`EdgesBuilder`] takes edges in any order; [`Edges`] are sorted, so that nothing depends on that order or on a hash.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::units::{Nanos, VmId};

pub use super::party::Party;

/// How many culprits of a victim are named.
pub const TOP: usize = 16;

/// What the victim wanted, and the culprit had or was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EdgeKind {
    /// The victim was RDY while the culprit ran on a pCPU where the victim may run.
    Pcpu,
    /// The victim halted or spun for a sibling, the culprit, that was RDY: co-stop. Whom the sibling waited for its own edges say.
    Sibling,
    /// The victim spun, left by a pause-loop exit and yielded to the culprit, a sibling, which got the pCPU.
    YieldTaken,
    /// As before, but the culprit did not get it.
    YieldUseless,
}

impl EdgeKind {
    /// All, in the order in which they are shown.
    pub const ALL: [EdgeKind; 4] =
        [EdgeKind::Pcpu, EdgeKind::Sibling, EdgeKind::YieldTaken, EdgeKind::YieldUseless];

    /// What edges of this kind say, for messages.
    pub fn words(self) -> &'static str {
        match self {
            EdgeKind::Pcpu => "who takes pCPUs",
            EdgeKind::Sibling => "which sibling is waited for",
            EdgeKind::YieldTaken => "yields that helped",
            EdgeKind::YieldUseless => "yields that did not",
        }
    }
}

/// How an edge is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// Seen: the culprit ran on that pCPU at that time.
    Measured,
    /// Divided by what everybody ran where the victim could have run.
    Estimated,
}

/// How much of an edge there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// For how long.
    pub time: Nanos,
    /// How often; `None` where that is not counted.
    pub count: Option<u64>,
}

impl Amount {
    /// A time of which nobody counted the parts.
    pub fn time(time: Nanos) -> Amount {
        Amount { time, count: None }
    }

    fn is_nothing(self) -> bool {
        self.time == Nanos::ZERO && self.count.unwrap_or(0) == 0
    }

    /// Both together. What is counted of one only is not counted of both.
    pub fn plus(self, other: Amount) -> Amount {
        let counts = self.count.zip(other.count);
        Amount { time: self.time + other.time, count: counts.map(|(one, two)| one + two) }
    }

    /// More comes first.
    fn order(self) -> Reverse<(Nanos, u64)> {
        Reverse((self.time, self.count.unwrap_or(0)))
    }
}

/// A victim waited for a culprit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge<'a> {
    /// Who waited.
    pub victim: &'a Party,
    /// Who had what it wanted.
    pub culprit: &'a Party,
    /// What that was.
    pub kind: EdgeKind,
    /// How the edge is known.
    pub evidence: Evidence,
    /// For how long, and how often.
    pub amount: Amount,
}

impl Edge<'_> {
    /// For how long.
    pub fn time(&self) -> Nanos {
        self.amount.time
    }
}

/// A party's number in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PartyId(u32);

/// An edge, by the numbers of its parties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Row {
    victim: PartyId,
    kind: EdgeKind,
    culprit: PartyId,
    evidence: Evidence,
    #[serde(flatten)]
    amount: Amount,
}

/// Edges: by victim, in the order of parties; of each by kind; the longest first, equals in the order of their culprits. Every party
/// of the table is in an edge, so sets with the same edges are equal, however they were made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Read")]
pub struct Edges {
    parties: Vec<Party>,
    edges: Vec<Row>,
}

/// Edges as they are read, before their numbers are checked.
#[derive(Deserialize)]
struct Read {
    parties: Vec<Party>,
    edges: Vec<Row>,
}

/// Why something read is no set of edges.
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
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.edges.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.edges.len()
    }

    /// All, in their order.
    pub fn iter(&self) -> impl Iterator<Item = Edge<'_>> {
        self.edges.iter().map(|row| self.edge(row))
    }

    /// Those of a kind of one victim, the longest first.
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

    /// The sum of all times of a kind.
    pub fn total(&self, kind: EdgeKind) -> Nanos {
        let of_kind = self.edges.iter().filter(|row| row.kind == kind);
        of_kind.map(|row| row.amount.time).sum()
    }

    /// With the vCPUs of each VM taken together, as victims and as culprits. A VM that waits for itself has stacked vCPUs.
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

/// Takes edges in any order; the same pair of parties adds up, for each kind and evidence.
#[derive(Clone, Debug, Default)]
pub struct EdgesBuilder {
    ids: BTreeMap<Party, PartyId>,
    rows: Vec<Row>,
}

impl EdgesBuilder {
    /// No edges yet.
    pub fn new() -> EdgesBuilder {
        EdgesBuilder::default()
    }

    /// A party's number, here and nowhere else.
    pub fn party(&mut self, party: &Party) -> PartyId {
        if let Some(id) = self.ids.get(party) {
            return *id;
        }
        let id = PartyId(self.ids.len() as u32);
        self.ids.insert(party.clone(), id);
        id
    }

    /// Adds an edge between parties of this builder; one of no time and no count is left out.
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

    /// All edges.
    pub fn all(self) -> Edges {
        self.top(usize::MAX)
    }

    /// The `k` longest of each victim and kind, those to its own VM, and one to [`Party::Others`] with the rest.
    pub fn top(mut self, k: usize) -> Edges {
        let others = (k < usize::MAX).then(|| self.party(&Party::Others));
        // Numbers in the order of parties, whatever the order in which they came.
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
        named_only(parties, edges)
    }
}

/// Without the parties that no edge names.
fn named_only(parties: Vec<Party>, mut edges: Vec<Row>) -> Edges {
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

/// Each pair of parties once for each kind and evidence, in the order of victims and kinds.
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

/// Sorts the edges of one victim and kind; equals are in the order of culprits.
fn longest_first(rows: &mut [Row]) {
    rows.sort_unstable_by_key(|row| (row.amount.order(), row.culprit, row.evidence));
}

/// Adds to `short` the first `k` of a victim's, those to its own VM, and the rest as one to `others`.
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
