//! Machine topology: the core, last-level cache, NUMA node and socket of each pCPU.
//!
//! A *pCPU* is a hardware thread, as in Linux.
//! Threads of a *core* share its execution units and private caches.
//! Cores of a *cache* share a last-level cache (a CCX on AMD, the L3 of a die or socket on Intel).
//! Caches of a *node* have the same local memory.
//! Nodes of a *socket* share a package.
//!
//! [`Topology::new`] takes the place of each pCPU, as read from `/sys/devices/system/cpu`.
//! [`Layout`] describes regular machines, numbered as Linux numbers most servers: pCPUs 0 … n/2 − 1 are the first threads of all cores,
//! core by core and socket by socket; n/2 … n − 1 are their siblings in the same order.
//! Machines with interleaved numbers need [`Topology::new`].
//!
//! Non-goals: latencies between places, heterogeneous cores, offline pCPUs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::pcpu_set::PcpuSet;
use crate::suggestion::nearest;
use crate::units::PcpuId;

/// Number of a core, unique on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoreId(pub u32);

/// Number of a last-level cache, unique on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CacheId(pub u32);

/// Number of a NUMA node, as in `/sys/devices/system/node`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// Number of a socket (`physical_package_id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(pub u32);

/// Place of a pCPU in the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its core.
    pub core: CoreId,
    /// Its last-level cache.
    pub cache: CacheId,
    /// Its NUMA node.
    pub node: NodeId,
    /// Its socket.
    pub socket: SocketId,
}

/// Levels of the topology, from the innermost to the outermost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// A pCPU itself.
    Thread,
    /// A core.
    Core,
    /// A last-level cache.
    Cache,
    /// A NUMA node.
    Node,
    /// A socket.
    Socket,
    /// The machine.
    Machine,
}

impl Level {
    /// All levels, from the innermost to the outermost.
    pub const ALL: [Level; 6] =
        [Level::Thread, Level::Core, Level::Cache, Level::Node, Level::Socket, Level::Machine];
}

/// The topology of a machine with pCPUs 0 … n − 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    places: Vec<Place>,
}

impl Topology {
    /// Returns a topology from the place of each pCPU, in order of their numbers.
    pub fn new(places: Vec<Place>) -> Topology {
        Topology { places }
    }

    /// Returns a machine without SMT and NUMA, of `pcpus` pCPUs with a cache for each `pcpus_per_cache`.
    pub fn of_caches(pcpus: u32, pcpus_per_cache: u32) -> Topology {
        let place = |p: u32| Place {
            core: CoreId(p),
            cache: CacheId(p / pcpus_per_cache.max(1)),
            node: NodeId(0),
            socket: SocketId(0),
        };
        Topology::new((0..pcpus).map(place).collect())
    }

    /// Returns the number of pCPUs.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns true if the machine has no pCPUs.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Iterates over the pCPUs.
    pub fn pcpus(&self) -> impl Iterator<Item = PcpuId> + '_ {
        (0..self.places.len() as u32).map(PcpuId)
    }

    /// Iterates over the places of the pCPUs, in order of their numbers.
    pub fn places(&self) -> impl Iterator<Item = Place> + '_ {
        self.places.iter().copied()
    }

    /// Returns the place of a pCPU; `None` if the machine does not have it.
    pub fn place(&self, pcpu: PcpuId) -> Option<Place> {
        self.places.get(pcpu.0 as usize).copied()
    }

    /// Returns the innermost level at which two pCPUs meet.
    /// A pCPU that the machine does not have meets others at [`Level::Machine`].
    pub fn common(&self, a: PcpuId, b: PcpuId) -> Level {
        let (Some(at), Some(other)) = (self.place(a), self.place(b)) else {
            return Level::Machine;
        };
        if a == b {
            Level::Thread
        } else if at.core == other.core {
            Level::Core
        } else if at.cache == other.cache {
            Level::Cache
        } else if at.node == other.node {
            Level::Node
        } else if at.socket == other.socket {
            Level::Socket
        } else {
            Level::Machine
        }
    }

    /// Returns the pCPUs that share a core, cache, node or socket with `pcpu`, itself included.
    pub fn span(&self, pcpu: PcpuId, level: Level) -> PcpuSet {
        self.pcpus().filter(|&other| self.common(pcpu, other) <= level).collect()
    }

    /// Returns the other threads of the pCPU's core.
    pub fn siblings(&self, pcpu: PcpuId) -> PcpuSet {
        let mut threads = self.span(pcpu, Level::Core);
        threads.remove(pcpu);
        threads
    }

    /// Returns the cores, caches, nodes or sockets of the machine as sets of pCPUs, in order of their first pCPUs.
    pub fn groups(&self, level: Level) -> Vec<PcpuSet> {
        let mut seen = PcpuSet::default();
        let mut groups = Vec::new();
        for pcpu in self.pcpus() {
            if !seen.contains(pcpu) {
                let group = self.span(pcpu, level);
                seen.extend(&group);
                groups.push(group);
            }
        }
        groups
    }
}

/// A regular machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Layout {
    /// Sockets, at least 1.
    pub sockets: u32,
    /// NUMA nodes of a socket, at least 1.
    pub nodes_per_socket: u32,
    /// Last-level caches of a node, at least 1.
    pub caches_per_node: u32,
    /// Cores of a last-level cache, at least 1.
    pub cores_per_cache: u32,
    /// Threads of a core, at least 1.
    pub threads_per_core: u32,
}

/// Reason why a text is not a [`Layout`].
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "'{text}' is no topology: {hint}; write a model such as epyc-7763, or numbers such as 2:1:8:8:2 (sockets, nodes per socket, caches per node, cores per cache, threads per core)"
)]
pub struct LayoutError {
    text: String,
    hint: String,
}

impl Layout {
    /// Machines with published layouts, as servers of two sockets with SMT.
    ///
    /// - `epyc-7601`: AMD, "NUMA Topology for AMD EPYC Naples Family Processors" (2018): four dies of two CCXs with four cores.
    /// - `epyc-7763`: AMD, "Tuning Guide for AMD EPYC 7003 Series Processors" (2021): eight CCDs of eight cores with 32 MiB of L3, NPS1.
    /// - `xeon-8375c`: Intel Ice Lake-SP as in Amazon's m6i: 32 cores with a shared L3 of 54 MiB, sub-NUMA clustering off.
    /// - `xeon-e5-2690v4`: Intel ARK: 14 cores with a shared L3 of 35 MiB.
    pub const MODELS: [(&str, Layout); 4] = [
        ("epyc-7601", Layout::of([2, 4, 2, 4, 2])),
        ("epyc-7763", Layout::of([2, 1, 8, 8, 2])),
        ("xeon-8375c", Layout::of([2, 1, 1, 32, 2])),
        ("xeon-e5-2690v4", Layout::of([2, 1, 1, 14, 2])),
    ];

    /// Maximum number of pCPUs.
    pub const MAX_PCPUS: u32 = 4096;

    const fn of(counts: [u32; 5]) -> Layout {
        let [sockets, nodes_per_socket, caches_per_node, cores_per_cache, threads_per_core] =
            counts;
        Layout { sockets, nodes_per_socket, caches_per_node, cores_per_cache, threads_per_core }
    }

    /// Returns the sockets, and the parts that each part of the previous level has.
    pub const fn counts(self) -> [u32; 5] {
        [
            self.sockets,
            self.nodes_per_socket,
            self.caches_per_node,
            self.cores_per_cache,
            self.threads_per_core,
        ]
    }

    /// Returns the number of pCPUs; `None` if a count is 0 or there are more than [`Layout::MAX_PCPUS`].
    pub fn pcpus(self) -> Option<u32> {
        let product = |all: u32, count| all.checked_mul(count);
        let pcpus = self.counts().into_iter().try_fold(1, product)?;
        (1..=Layout::MAX_PCPUS).contains(&pcpus).then_some(pcpus)
    }

    /// Returns the topology, numbered as described above.
    pub fn topology(self) -> Topology {
        let pcpus = self.pcpus().unwrap_or(0);
        let cores = pcpus / self.threads_per_core.max(1);
        let place = |p: u32| {
            let core = p % cores;
            let cache = core / self.cores_per_cache;
            let node = cache / self.caches_per_node;
            let socket = node / self.nodes_per_socket;
            Place {
                core: CoreId(core),
                cache: CacheId(cache),
                node: NodeId(node),
                socket: SocketId(socket),
            }
        };
        Topology::new((0..pcpus).map(place).collect())
    }
}

impl FromStr for Layout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Layout, LayoutError> {
        let error = |hint: String| LayoutError { text: text.to_owned(), hint };
        if let Some((_, layout)) = Layout::MODELS.iter().find(|(name, _)| *name == text) {
            return Ok(*layout);
        }
        let names = Layout::MODELS.map(|(name, _)| name);
        if !text.contains(':') {
            return Err(error(match nearest(text, names) {
                Some(name) => format!("did you mean {name}?"),
                None => format!("known models are {}", names.join(", ")),
            }));
        }
        let counts: Result<Vec<u32>, _> = text.split(':').map(str::parse).collect();
        let counts = counts.ok().and_then(|counts| <[u32; 5]>::try_from(counts).ok());
        let layout = counts.map(Layout::of).filter(|layout| layout.pcpus().is_some());
        let range =
            format!("five numbers of at least 1 with a product of at most {}", Self::MAX_PCPUS);
        layout.ok_or_else(|| error(format!("{range} are needed")))
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [sockets, nodes, caches, cores, threads] = self.counts();
        write!(f, "{sockets}:{nodes}:{caches}:{cores}:{threads}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sockets of two nodes with one cache of two cores each, SMT: 16 pCPUs.
    fn small() -> Topology {
        "2:2:1:2:2".parse::<Layout>().unwrap().topology()
    }

    #[test]
    fn siblings_are_in_second_half() {
        let topology = small();
        assert_eq!(topology.len(), 16);
        assert_eq!(topology.siblings(PcpuId(3)).to_string(), "11");
        assert_eq!(topology.siblings(PcpuId(11)).to_string(), "3");
        let without_smt = "1:1:1:4:1".parse::<Layout>().unwrap().topology();
        assert!(without_smt.siblings(PcpuId(3)).is_empty());
    }

    #[test]
    fn common_levels_match_worked_cases() {
        let topology = small();
        let cases = [
            (0, 0, Level::Thread),
            (0, 8, Level::Core),
            (0, 1, Level::Cache),
            (8, 1, Level::Cache),
            (0, 2, Level::Socket),
            (0, 11, Level::Socket),
            (0, 4, Level::Machine),
            (0, 99, Level::Machine),
        ];
        for (a, b, level) in cases {
            assert_eq!(topology.common(PcpuId(a), PcpuId(b)), level, "{a} and {b}");
            assert_eq!(topology.common(PcpuId(b), PcpuId(a)), level, "{b} and {a}");
        }
        let epyc = Layout::MODELS[1].1.topology();
        assert_eq!(epyc.common(PcpuId(0), PcpuId(8)), Level::Node);
    }

    #[test]
    fn groups_partition_machine() {
        for (name, layout) in Layout::MODELS {
            let topology = layout.topology();
            let mut parts = 1;
            for (level, count) in
                Level::ALL.into_iter().rev().zip([1].into_iter().chain(layout.counts()))
            {
                parts *= count;
                let groups = topology.groups(level);
                assert_eq!(groups.len(), parts as usize, "{name}, {level:?}");
                let members: usize = groups.iter().map(PcpuSet::len).sum();
                assert_eq!(members, topology.len(), "{name}, {level:?}");
            }
        }
        assert_eq!(small().groups(Level::Node)[1].to_string(), "2-3,10-11");
    }

    #[test]
    fn texts_are_models_or_counts() {
        for (name, layout) in Layout::MODELS {
            assert_eq!(name.parse(), Ok(layout));
            assert_eq!(layout.to_string().parse(), Ok(layout));
        }
        let error = |text: &str| text.parse::<Layout>().unwrap_err().to_string();
        assert!(error("epyc-7736").contains("did you mean epyc-7763?"));
        for text in
            ["2:1:8:8", "2:0:8:8:2", "2:1:8:8:99999", "4294967295:4294967295:1:1:1", "a:1:1:1:1"]
        {
            assert!(error(text).contains("product of at most 4096"), "{text}");
        }
    }
}
