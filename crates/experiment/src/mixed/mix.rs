//! The distribution of VMs on a mixed host: their sizes and programs.
//!
//! A file in TOML has sizes with probabilities, and classes of programs with probabilities ([`Mix::DEFAULT`]).
//! VMs are drawn until their vCPUs reach the overcommit; a size that no longer fits is not drawn.
//! The numbers of VM i depend on the seed and i only, so a larger host begins with the VMs of a smaller one.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use tandem_sim::random::Stream;
use thiserror::Error;

/// Maximum number of VMs on a host.
const MAX_VMS: usize = 10_000;

/// A distribution of VMs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mix {
    /// pCPUs that share a last-level cache, at most all of a host; absent: all.
    pub pcpus_per_llc: Option<u32>,
    /// Settings of every scenario, as `KEY=VALUE`.
    #[serde(default)]
    pub set: Vec<String>,
    /// Sizes of VMs.
    pub size: Vec<Size>,
    /// Classes of programs.
    pub class: Vec<Class>,
}

/// A size of VMs.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Probability, relative to those of the other sizes.
    pub probability: f64,
}

/// A class of programs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// Name.
    pub name: String,
    /// Probability, relative to those of the other classes.
    pub probability: f64,
    /// Workloads, equally likely: names of built-in workloads or of files.
    pub programs: Vec<String>,
}

/// A drawn VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drawn {
    /// Name: program, size and number on the host.
    pub name: String,
    /// Index of its class.
    pub class: usize,
    /// Workload.
    pub program: String,
    /// Number of vCPUs.
    pub vcpus: u32,
}

/// Error of a mix.
#[derive(Debug, Error)]
pub enum MixError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
    /// The file is not TOML of the right form.
    #[error("{}: {cause}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The cause, with its line.
        cause: Box<toml::de::Error>,
    },
    /// A value is invalid.
    #[error("{}: {key}: {form}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The valid form.
        form: &'static str,
    },
    /// No VM of the mix fits on the host.
    #[error(
        "--pcpus {pcpus} with --overcommit {overcommit} has room for {room} vCPUs, but the smallest VM has {smallest}"
    )]
    TooSmall {
        /// Number of pCPUs.
        pcpus: u32,
        /// vCPUs per pCPU.
        overcommit: f64,
        /// Number of vCPUs.
        room: u32,
        /// vCPUs of the smallest VM.
        smallest: u32,
    },
}

impl Mix {
    /// The default mix as TOML, also a template for others.
    pub const DEFAULT: &str = include_str!("default.toml");

    /// Reads a mix from a file, or the default one.
    pub fn read(path: Option<&Path>) -> Result<Mix, MixError> {
        let Some(path) = path else {
            return Mix::parse(Path::new("built-in mix"), Mix::DEFAULT);
        };
        let text = std::fs::read_to_string(path)
            .map_err(|cause| MixError::Read { path: path.to_owned(), cause })?;
        Mix::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Mix, MixError> {
        let mix: Mix = toml::from_str(text).map_err(|cause| MixError::Malformed {
            path: path.to_owned(),
            cause: Box::new(cause),
        })?;
        let invalid = |key: &str, form| {
            Err(MixError::Invalid { path: path.to_owned(), key: key.to_owned(), form })
        };
        if mix.pcpus_per_llc == Some(0) {
            return invalid("pcpus_per_llc", "a number above 0 is needed");
        }
        let is_wrong = |probability: f64| !(probability > 0.0 && probability.is_finite());
        if mix.size.is_empty() || mix.size.iter().any(|size| size.vcpus == 0) {
            return invalid("size", "at least one size, of at least one vCPU, is needed");
        }
        if mix.size.iter().any(|size| is_wrong(size.probability)) {
            return invalid("size.probability", "a number above 0 is needed");
        }
        if mix.class.is_empty() || mix.class.iter().any(|class| class.programs.is_empty()) {
            return invalid("class", "at least one class, with at least one program, is needed");
        }
        if mix.class.iter().any(|class| is_wrong(class.probability)) {
            return invalid("class.probability", "a number above 0 is needed");
        }
        Ok(mix)
    }

    /// Draws the VMs of a host.
    pub fn draw(&self, pcpus: u32, overcommit: f64, seed: u64) -> Result<Vec<Drawn>, MixError> {
        let room = (f64::from(pcpus) * overcommit).round() as u32;
        let mut left = room;
        let mut vms = Vec::new();
        while let Some(vm) = self.draw_one(pcpus.min(left), seed, vms.len()) {
            left -= vm.vcpus;
            vms.push(vm);
            if vms.len() == MAX_VMS {
                break;
            }
        }
        if vms.is_empty() {
            let smallest = self.size.iter().map(|size| size.vcpus).min().unwrap_or_default();
            return Err(MixError::TooSmall { pcpus, overcommit, room, smallest });
        }
        Ok(vms)
    }

    /// Draws a VM of at most `room` vCPUs; `None` if no size fits.
    fn draw_one(&self, room: u32, seed: u64, number: usize) -> Option<Drawn> {
        let mut stream = Stream::new(seed, "mixed host", number as u64);
        let fitting: Vec<Size> =
            self.size.iter().copied().filter(|size| size.vcpus <= room).collect();
        let size = fitting[pick(&mut stream, fitting.iter().map(|size| size.probability))?];
        let class = pick(&mut stream, self.class.iter().map(|class| class.probability))?;
        let programs = &self.class[class].programs;
        let program = programs[stream.below(programs.len() as u32) as usize].clone();
        // The name of a file without its folder and extension.
        let short = program.rsplit('/').next().unwrap_or_default().trim_end_matches(".toml");
        let name = format!("{short}-{}-{}", size.vcpus, number + 1);
        Some(Drawn { name, class, program, vcpus: size.vcpus })
    }
}

/// Draws an index by weight; `None` if there are none.
fn pick(stream: &mut Stream, weights: impl Iterator<Item = f64> + Clone) -> Option<usize> {
    let mut left = stream.unit() * weights.clone().sum::<f64>();
    let mut last = None;
    for (at, weight) in weights.enumerate() {
        last = Some(at);
        left -= weight;
        if left <= 0.0 {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    fn default() -> Mix {
        Mix::read(None).unwrap()
    }

    #[test]
    fn draws_fill_host_and_share_prefixes() {
        let mix = default();
        for seed in 1..20 {
            let small = mix.draw(16, 2.0, seed).unwrap();
            let large = mix.draw(64, 3.0, seed).unwrap();
            assert_eq!(small.iter().map(|vm| vm.vcpus).sum::<u32>(), 32);
            assert_eq!(large.iter().map(|vm| vm.vcpus).sum::<u32>(), 192);
            assert!(small.iter().zip(&large).take(3).all(|(a, b)| a.program == b.program));
        }
    }

    #[test]
    fn frequencies_match_probabilities() {
        let mix = default();
        let vms: Vec<Drawn> = (0..50).flat_map(|seed| mix.draw(256, 2.0, seed).unwrap()).collect();
        let part =
            |is: &dyn Fn(&&Drawn) -> bool| vms.iter().filter(is).count() as f64 / vms.len() as f64;
        assert!((part(&|vm| vm.vcpus == 2) - 0.30).abs() < 0.02);
        assert!((part(&|vm| vm.class == 0) - 0.45).abs() < 0.02);
        assert!((part(&|vm| vm.program == "web") - 0.35 / 6.0).abs() < 0.01);
    }

    #[test]
    fn invalid_mixes_name_file_and_key() {
        let error = |text: &str| Mix::parse(Path::new("m.toml"), text).unwrap_err().to_string();
        let class = "[[class]]\nname = \"a\"\nprobability = 1\nprograms = [\"burn\"]\n";
        let size = |rest: &str| format!("size = [{{ vcpus = 1, {rest} }}]\n{class}");
        assert!(Mix::parse(Path::new("m.toml"), &size("probability = 1")).is_ok());
        assert_eq!(
            error(&size("probability = 0")),
            "m.toml: size.probability: a number above 0 is needed"
        );
        let unknown = error(&size("probabilty = 1"));
        assert!(unknown.contains("line 1") && unknown.contains("probability"), "{unknown}");
        assert!(error(class).contains("size"));
        let few = default().draw(1, 0.2, 1).unwrap_err().to_string();
        assert!(few.contains("--pcpus 1") && few.contains("0 vCPUs"), "{few}");
    }
}
