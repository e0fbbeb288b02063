//! Sets of physical CPUs, as in affinity masks and cpusets.
//!
//! The text form is the kernel's list (`0-3,7`).
//! The set is a bit mask, because a daemon copies and compares one per vCPU and period, also on hosts with hundreds of pCPUs.
//! Iteration is in ascending order, so that results do not depend on hash order.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::units::PcpuId;

/// Maximum pCPU number; the kernel's limit (NR_CPUS) is 8192.
pub const MAX_PCPU: u32 = 8191;

/// Reason why a text is not a list of pCPUs.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PcpuSetError {
    /// A part is neither a number nor a range of numbers.
    #[error("'{0}' is not a pCPU or a range of pCPUs; write a list such as 0-3,7")]
    NotAList(String),
    /// A range runs backwards.
    #[error("the pCPU range '{0}' runs backwards; write the smaller number first")]
    Backwards(String),
    /// A number exceeds the kernel's limit.
    #[error("pCPU {0} is beyond {MAX_PCPU}, the largest that Linux supports")]
    TooLarge(u64),
}

/// A set of pCPUs.
///
/// Bit b of word w is pCPU 64 w + b; the last word is never 0, so equal sets compare equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PcpuSet(Vec<u64>);

impl PcpuSet {
    /// Returns the number of pCPUs in the set.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if `pcpu` is in the set.
    pub fn contains(&self, pcpu: PcpuId) -> bool {
        let (word, bit) = place(pcpu);
        self.0.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// Adds `pcpu`.
    pub fn insert(&mut self, pcpu: PcpuId) {
        let (word, bit) = place(pcpu);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= bit;
    }

    /// Adds the pCPUs from `first` to `last`, word by word, as a list may repeat large ranges many times.
    fn insert_range(&mut self, first: u32, last: u32) {
        let ((from, _), (to, _)) = (place(PcpuId(first)), place(PcpuId(last)));
        if self.0.len() <= to {
            self.0.resize(to + 1, 0);
        }
        for (word, bits) in self.0.iter_mut().enumerate().take(to + 1).skip(from) {
            let mut mask = u64::MAX;
            if word == from {
                mask &= u64::MAX << (first % 64);
            }
            if word == to {
                mask &= u64::MAX >> (63 - last % 64);
            }
            *bits |= mask;
        }
    }

    /// Removes `pcpu`, if present.
    pub fn remove(&mut self, pcpu: PcpuId) {
        let (word, bit) = place(pcpu);
        if let Some(bits) = self.0.get_mut(word) {
            *bits &= !bit;
        }
        // Equal sets have equal words.
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    /// Iterates over the pCPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = PcpuId> + '_ {
        self.0.iter().enumerate().flat_map(|(word, &bits)| {
            let rest = std::iter::successors(Some(bits), |bits| Some(bits & bits.wrapping_sub(1)));
            rest.take_while(|&bits| bits != 0)
                .map(move |bits| PcpuId(word as u32 * 64 + bits.trailing_zeros()))
        })
    }

    /// Returns true if the two sets share a pCPU.
    pub fn overlaps(&self, other: &PcpuSet) -> bool {
        self.0.iter().zip(&other.0).any(|(a, b)| a & b != 0)
    }

    /// Returns the number of pCPUs in both sets.
    pub fn common(&self, other: &PcpuSet) -> usize {
        let words = self.0.iter().zip(&other.0);
        words.map(|(a, b)| (a & b).count_ones() as usize).sum()
    }

    /// Adds every pCPU of `other`.
    pub fn extend(&mut self, other: &PcpuSet) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (bits, more) in self.0.iter_mut().zip(&other.0) {
            *bits |= more;
        }
    }
}

/// Returns word and bit of a pCPU.
fn place(pcpu: PcpuId) -> (usize, u64) {
    (pcpu.0 as usize / 64, 1 << (pcpu.0 % 64))
}

impl FromIterator<PcpuId> for PcpuSet {
    fn from_iter<I: IntoIterator<Item = PcpuId>>(pcpus: I) -> PcpuSet {
        let mut set = PcpuSet::default();
        for pcpu in pcpus {
            set.insert(pcpu);
        }
        set
    }
}

impl FromStr for PcpuSet {
    type Err = PcpuSetError;

    fn from_str(list: &str) -> Result<PcpuSet, PcpuSetError> {
        let mut set = PcpuSet::default();
        for part in list.trim().split(',').filter(|part| !part.trim().is_empty()) {
            let part = part.trim();
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first = number(first, part)?;
            let last = number(last, part)?;
            if last < first {
                return Err(PcpuSetError::Backwards(part.to_owned()));
            }
            set.insert_range(first, last);
        }
        Ok(set)
    }
}

fn number(text: &str, part: &str) -> Result<u32, PcpuSetError> {
    let n: u64 = text.trim().parse().map_err(|_| PcpuSetError::NotAList(part.to_owned()))?;
    match u32::try_from(n) {
        Ok(n) if n <= MAX_PCPU => Ok(n),
        _ => Err(PcpuSetError::TooLarge(n)),
    }
}

impl fmt::Display for PcpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut pcpus = self.iter().map(|pcpu| pcpu.0).peekable();
        let mut comma = "";
        while let Some(first) = pcpus.next() {
            let mut last = first;
            while pcpus.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
            comma = ",";
        }
        Ok(())
    }
}

impl Serialize for PcpuSet {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PcpuSet {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<PcpuSet, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_list_form_round_trips() {
        for list in ["", "0", "0-3", "0-3,7", "1,3,5-6"] {
            assert_eq!(list.parse::<PcpuSet>().unwrap().to_string(), list);
        }
        assert_eq!("3,0,1-2\n".parse::<PcpuSet>().unwrap().to_string(), "0-3");
    }

    #[test]
    fn sets_beyond_one_word_behave_like_small_ones() {
        let mut set: PcpuSet = "1,63-65,200".parse().unwrap();
        assert_eq!(set.len(), 5);
        assert_eq!(set.iter().map(|p| p.0).collect::<Vec<_>>(), [1, 63, 64, 65, 200]);
        assert!(set.contains(PcpuId(200)) && !set.contains(PcpuId(201)));
        assert!(set.overlaps(&"200".parse().unwrap()));
        assert!(!set.overlaps(&"2-62,66-199,201-300".parse().unwrap()));
        set.extend(&"0,300".parse().unwrap());
        assert_eq!(set.to_string(), "0-1,63-65,200,300");
        set.remove(PcpuId(300));
        set.remove(PcpuId(200));
        set.remove(PcpuId(500));
        assert_eq!(set, "0-1,63-65".parse().unwrap(), "no word left over");
    }

    #[test]
    fn ranges_equal_single_insertions() {
        for (first, last) in [(0, 0), (0, 63), (63, 64), (64, 127), (1, 200), (128, 8191)] {
            let by_one: PcpuSet = (first..=last).map(PcpuId).collect();
            let set: PcpuSet = format!("{first}-{last}").parse().unwrap();
            assert_eq!(set, by_one, "{first}-{last}");
        }
        // An untrusted file may repeat a range many times; parsing must stay fast.
        let set: PcpuSet = "0-8191,".repeat(100_000).parse().unwrap();
        assert_eq!(set.len(), 8192);
    }

    #[test]
    fn common_counts_shared_pcpus() {
        let set = |list: &str| list.parse::<PcpuSet>().unwrap();
        assert_eq!(set("0-3,64-70").common(&set("2,3,70,200")), 3);
        assert_eq!(set("0").common(&set("1")), 0);
        assert_eq!(set("0-7").common(&PcpuSet::default()), 0);
    }

    #[test]
    fn errors_state_valid_lists() {
        let error = |list: &str| list.parse::<PcpuSet>().unwrap_err().to_string();
        assert!(error("a").contains("such as 0-3,7"));
        assert!(error("3-1").contains("backwards"));
        assert!(error("9000").contains("8191"));
        assert!(error("-1").contains("not a pCPU"));
    }
}
