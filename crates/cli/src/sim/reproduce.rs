//! `tandem sim reproduce`: published figures against the simulator's.
//!
//! `targets/published.toml` lists what papers report, each claim with its figures, a band within which
//! a figure counts as reproduced, and its use: the model may be fitted to claims of use `fit`; those of
//! use `check` have to come out without having been used. Every claim that is covered has a judge, a
//! function in one of the files here, which says what to simulate and what of it answers to which
//! published figure. A claim is in band when all its figures are.
//!
//! Judges are asked twice. The first time everything measured is NaN: it only shows which trials are
//! needed, so that all of them can run at once on all cores, each of them once. The second time they
//! get answers.
//!
//! - [`claims`]: the published claims and how a figure is judged.
//! - [`lab`]: trials, and what came out of them.
//! - [`sample`]: a figure of several runs and its arithmetic, run by run.
//! - [`apples`], [`diagnosis`], [`flex`], [`gleaner`], [`scalability`]: the judges.
//! - [`show`]: the table for people and the list for programs.

pub mod apples;
pub mod claims;
pub mod diagnosis;
pub mod flex;
pub mod gleaner;
pub mod lab;
pub mod large_vm;
pub mod sample;
pub mod scalability;
pub mod show;

use std::path::PathBuf;

use anyhow::ensure;
use clap::Args;

use self::claims::Claim;
use self::claims::Figure;
use self::lab::Lab;
use self::show::Verdict;
use super::execute;
use super::page;
use crate::console::print;
use crate::output;

/// Says which figures answer to a claim; see the head of this file about being asked twice.
pub type Judge = fn(&mut Lab, &Claim) -> anyhow::Result<Vec<Figure>>;

/// `tandem sim reproduce`
#[derive(Debug, Args)]
pub struct ReproduceArgs {
    /// Only these claims, or all that begin so, such as apples.f6.ebizzy,flex
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    claims: Vec<String>,
    /// Runs of each trial, with seeds one apart, 1 … 1000
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: u32,
    /// Worker threads [default: one for each CPU]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// The folder of the scenarios [default: scenarios/papers, here or above]
    #[arg(long, value_name = "DIR")]
    scenarios: Option<PathBuf>,
    /// Write the list of claims as JSON; without PATH to standard output, in place of the table
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Write a page with charts, one file that opens offline
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Runs what the claims need and judges them.
pub fn main(args: &ReproduceArgs) -> anyhow::Result<()> {
    let workers = execute::workers(args.runs, args.workers)?;
    output::check_json(args.json.as_deref())?;
    args.html.as_deref().map_or(Ok(()), output::check)?;
    let claims = chosen(claims::published()?, &args.claims)?;
    let mut lab = Lab::open(args.scenarios.as_deref(), args.runs)?;
    for claim in &claims {
        if let Some(judge) = judge(&claim.id) {
            judge(&mut lab, claim)?;
        }
    }
    lab.run_all(workers)?;
    let verdicts = claims
        .into_iter()
        .map(|claim| match judge(&claim.id) {
            Some(judge) => {
                let figures = judge(&mut lab, &claim)?;
                Ok(Verdict::new(claim, Some(figures)))
            }
            None => Ok(Verdict::new(claim, None)),
        })
        .collect::<anyhow::Result<Vec<Verdict>>>()?;
    if !output::is_stdout(args.json.as_deref()) {
        print(&show::table(&verdicts))?;
    }
    if let Some(path) = &args.html {
        output::write_text(path, "page", &page::claims::html(&verdicts, args.runs))?;
    }
    output::write_json(args.json.as_deref(), &show::list(&verdicts))
}

/// The judge of a claim; `None`: it is not covered.
fn judge(id: &str) -> Option<Judge> {
    [
        apples::CLAIMS,
        diagnosis::CLAIMS,
        flex::CLAIMS,
        gleaner::CLAIMS,
        large_vm::CLAIMS,
        scalability::CLAIMS,
    ]
    .into_iter()
    .flatten()
    .find(|(known, _)| *known == id)
    .map(|&(_, judge)| judge)
}

/// The claims that were asked for, in their own order; none asked for means all.
fn chosen(claims: Vec<Claim>, asked: &[String]) -> anyhow::Result<Vec<Claim>> {
    let meant = |id: &str, asked: &str| {
        id == asked || id.strip_prefix(asked).is_some_and(|r| r.starts_with('.'))
    };
    for asked in asked {
        ensure!(
            claims.iter().any(|claim| meant(&claim.id, asked)),
            "--claims {asked}: there is no such claim; there are {}",
            claims
                .iter()
                .map(|claim| claim.id.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        );
    }
    Ok(claims
        .into_iter()
        .filter(|claim| asked.is_empty() || asked.iter().any(|asked| meant(&claim.id, asked)))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_chosen_by_id_or_family() {
        let ids = |asked: &[&str]| -> anyhow::Result<Vec<String>> {
            let asked: Vec<String> = asked.iter().map(|&asked| asked.to_owned()).collect();
            let claims = chosen(claims::published().unwrap(), &asked)?;
            Ok(claims.into_iter().map(|claim| claim.id).collect())
        };
        assert_eq!(ids(&["scal.f4_7"]).unwrap(), ["scal.f4_7"]);
        assert_eq!(ids(&["flex"]).unwrap().len(), 3);
        assert_eq!(ids(&["gleaner.t2"]).unwrap().len(), 4);
        assert!(ids(&[]).unwrap().len() > 25);
        let error = ids(&["flex.f"]).unwrap_err().to_string();
        assert!(error.contains("flex.f6.lag"), "{error}");
    }

    #[test]
    fn every_judge_has_its_claim_and_no_claim_has_two() {
        let published = claims::published().unwrap();
        let mut judged: Vec<&str> = [
            apples::CLAIMS,
            diagnosis::CLAIMS,
            flex::CLAIMS,
            gleaner::CLAIMS,
            large_vm::CLAIMS,
            scalability::CLAIMS,
        ]
        .into_iter()
        .flatten()
        .map(|&(id, _)| id)
        .collect();
        for id in &judged {
            assert!(published.iter().any(|claim| claim.id == *id), "{id}");
        }
        judged.sort_unstable();
        let all = judged.len();
        judged.dedup();
        assert_eq!(judged.len(), all);
    }
}
