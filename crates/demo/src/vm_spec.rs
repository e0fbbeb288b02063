//! One `--vm`: `name=a,vcpus=2,weight=3,workload=bursty,set.KEY=VALUE,cpus=0-1`.
//!
//! In a list of pCPUs, `+` stands for the comma: `cpus=0-1+3`.
//! [`crate::plan`] checks the values together and against the host.
//! The VM checks the settings of its workload at its start.

use std::str::FromStr;

use tandem_model::PcpuSet;
use tandem_model::pcpu_set::PcpuSetError;
use thiserror::Error;

/// Default workload.
pub const WORKLOAD: &str = "burn";

/// A requested VM.
#[derive(Clone, Debug, PartialEq)]
pub struct VmSpec {
    /// Its name.
    pub name: String,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Its weight, 1 = the kernel's default.
    pub weight: f64,
    /// Name of its workload.
    pub workload: String,
    /// The workload's settings, `key=value`.
    pub settings: Vec<String>,
    /// The pCPUs that its vCPUs are pinned to in turn.
    pub pcpus: Option<PcpuSet>,
}

const FORM: &str = "name=NAME,vcpus=N[,weight=W][,workload=NAME][,set.KEY=VALUE]…[,cpus=0-1+3]";

/// An invalid `--vm`.
#[derive(Debug, Error)]
#[error("--vm {text} (write --vm {FORM})")]
pub struct VmSpecError {
    /// The given text.
    pub text: String,
    /// The invalid part.
    pub source: PartError,
}

/// An invalid part of a `--vm`.
#[derive(Debug, Error)]
pub enum PartError {
    /// The part has no `=`.
    #[error("'{0}' has no '='")]
    NoValue(String),
    /// The key is unknown.
    #[error("'{0}' is not known; the keys are name, vcpus, weight, workload, set.KEY, cpus")]
    Unknown(String),
    /// A key is given twice.
    #[error("'{0}' is given twice")]
    Twice(String),
    /// A required key is missing.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// The value is not a number.
    #[error("{key}={value}: '{value}' is not a number")]
    NotANumber {
        /// The key.
        key: String,
        /// The given value.
        value: String,
    },
    /// The list of pCPUs is invalid.
    #[error("cpus")]
    Pcpus(#[source] PcpuSetError),
}

impl FromStr for VmSpec {
    type Err = VmSpecError;

    fn from_str(text: &str) -> Result<VmSpec, VmSpecError> {
        parse(text).map_err(|source| VmSpecError { text: text.to_owned(), source })
    }
}

fn parse(text: &str) -> Result<VmSpec, PartError> {
    let (mut name, mut vcpus, mut weight, mut workload, mut pcpus) = (None, None, None, None, None);
    let mut settings = Vec::new();
    for part in text.split(',') {
        let Some((key, value)) = part.split_once('=') else {
            return Err(PartError::NoValue(part.to_owned()));
        };
        match key {
            "name" => once(&mut name, key, value.to_owned())?,
            "vcpus" => once(&mut vcpus, key, number(key, value)?)?,
            "weight" => once(&mut weight, key, number(key, value)?)?,
            "workload" => once(&mut workload, key, value.to_owned())?,
            "cpus" => {
                let list: PcpuSet = value.replace('+', ",").parse().map_err(PartError::Pcpus)?;
                once(&mut pcpus, key, list)?;
            }
            _ => match key.strip_prefix("set.") {
                Some(setting) if !setting.is_empty() => settings.push(format!("{setting}={value}")),
                _ => return Err(PartError::Unknown(key.to_owned())),
            },
        }
    }
    Ok(VmSpec {
        name: name.ok_or(PartError::Missing("name"))?,
        vcpus: vcpus.ok_or(PartError::Missing("vcpus"))?,
        weight: weight.unwrap_or(1.0),
        workload: workload.unwrap_or_else(|| WORKLOAD.to_owned()),
        settings,
        pcpus,
    })
}

fn once<T>(slot: &mut Option<T>, key: &str, value: T) -> Result<(), PartError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(PartError::Twice(key.to_owned())),
    }
}

fn number<T: FromStr>(key: &str, value: &str) -> Result<T, PartError> {
    value
        .parse()
        .map_err(|_| PartError::NotANumber { key: key.to_owned(), value: value.to_owned() })
}

#[cfg(test)]
mod tests {
    use tandem_report::explain;

    use super::*;

    #[test]
    fn all_keys_are_read() {
        let spec: VmSpec =
            "name=a,vcpus=2,weight=3,workload=bursty,set.period=100,set.busy=5,cpus=0-1+3"
                .parse()
                .unwrap();
        let expected = VmSpec {
            name: "a".to_owned(),
            vcpus: 2,
            weight: 3.0,
            workload: "bursty".to_owned(),
            settings: vec!["period=100".to_owned(), "busy=5".to_owned()],
            pcpus: Some("0-1,3".parse().unwrap()),
        };
        assert_eq!(spec, expected);
    }

    #[test]
    fn omitted_keys_have_defaults() {
        let spec: VmSpec = "name=a,vcpus=1".parse().unwrap();
        assert_eq!((spec.weight, spec.workload.as_str(), spec.pcpus), (1.0, "burn", None));
    }

    #[test]
    fn malformed_texts_show_the_form() {
        let error = |text: &str| explain(&text.parse::<VmSpec>().unwrap_err());
        for (text, said) in [
            ("", "'' has no '='"),
            ("vcpus=1", "name is missing"),
            ("name=a", "vcpus is missing"),
            ("name=a,vcpus=x", "'x' is not a number"),
            ("name=a,vcpus=-1", "'-1' is not a number"),
            ("name=a,vcpus=1,vcpus=2", "'vcpus' is given twice"),
            ("name=a,vcpus=1,cpu=1", "'cpu' is not known; the keys are"),
            ("name=a,vcpus=1,set.=1", "'set.' is not known"),
            ("name=a,vcpus=1,cpus=z", "'z' is not a pCPU"),
        ] {
            assert!(error(text).contains(said), "{text}: {}", error(text));
            assert!(error(text).contains("write --vm name=NAME"), "{text}: {}", error(text));
        }
    }
}
