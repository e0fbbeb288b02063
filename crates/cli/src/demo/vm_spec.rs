//! One `--vm`: `name=a,vcpus=2,weight=3,workload=bursty,set.KEY=VALUE,cpus=0-1`.
//!
//! A list of pCPUs has commas of its own; they are written as `+` there: `cpus=0-1+3`. Whether the
//! values suit each other and the host is checked in [`super::plan`]; whether a workload knows its
//! settings, by the VM when it starts.

use std::str::FromStr;

use anyhow::Context;
use anyhow::bail;
use tandem_policy::PcpuSet;

use super::plan::WORKLOAD;

/// A VM as it was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct VmSpec {
    /// Its name.
    pub name: String,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Its weight, 1 = the kernel's default.
    pub weight: f64,
    /// What its guest does.
    pub workload: String,
    /// The workload's settings, `key=value`.
    pub settings: Vec<String>,
    /// The pCPUs that its vCPUs are pinned to in turn.
    pub pcpus: Option<PcpuSet>,
}

const FORM: &str = "name=NAME,vcpus=N[,weight=W][,workload=NAME][,set.KEY=VALUE]…[,cpus=0-1+3]";

impl FromStr for VmSpec {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<VmSpec> {
        parse(text).with_context(|| format!("--vm {text} (write --vm {FORM})"))
    }
}

fn parse(text: &str) -> anyhow::Result<VmSpec> {
    let (mut name, mut vcpus, mut weight, mut workload, mut pcpus) = (None, None, None, None, None);
    let mut settings = Vec::new();
    for part in text.split(',') {
        let Some((key, value)) = part.split_once('=') else {
            bail!("'{part}' has no '='");
        };
        match key {
            "name" => once(&mut name, key, value.to_owned())?,
            "vcpus" => once(&mut vcpus, key, number(key, value)?)?,
            "weight" => once(&mut weight, key, number(key, value)?)?,
            "workload" => once(&mut workload, key, value.to_owned())?,
            "cpus" => {
                let list: PcpuSet = value.replace('+', ",").parse().context("cpus")?;
                once(&mut pcpus, key, list)?;
            }
            _ => match key.strip_prefix("set.") {
                Some(setting) if !setting.is_empty() => settings.push(format!("{setting}={value}")),
                _ => bail!(
                    "'{key}' is not known; the keys are name, vcpus, weight, workload, set.KEY, cpus"
                ),
            },
        }
    }
    Ok(VmSpec {
        name: name.context("name is missing")?,
        vcpus: vcpus.context("vcpus is missing")?,
        weight: weight.unwrap_or(1.0),
        workload: workload.unwrap_or_else(|| WORKLOAD.to_owned()),
        settings,
        pcpus,
    })
}

fn once<T>(slot: &mut Option<T>, key: &str, value: T) -> anyhow::Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => bail!("'{key}' is given twice"),
    }
}

fn number<T: FromStr>(key: &str, value: &str) -> anyhow::Result<T> {
    value
        .parse()
        .map_err(|_| anyhow::anyhow!("{key}={value}: '{value}' is not a number"))
}

#[cfg(test)]
mod tests {
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
    fn what_is_left_out_has_its_default() {
        let spec: VmSpec = "name=a,vcpus=1".parse().unwrap();
        assert_eq!(
            (spec.weight, spec.workload.as_str(), spec.pcpus),
            (1.0, "burn", None)
        );
    }

    #[test]
    fn malformed_texts_say_what_would_be_right() {
        let error = |text: &str| format!("{:#}", text.parse::<VmSpec>().unwrap_err());
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
            assert!(
                error(text).contains("write --vm name=NAME"),
                "{text}: {}",
                error(text)
            );
        }
    }
}
