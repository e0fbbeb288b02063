//! The page of published claims.

use tandem_report::claims_page;

use crate::sim::reproduce::claims::Figure;
use crate::sim::reproduce::claims::Use;
use crate::sim::reproduce::show;
use crate::sim::reproduce::show::Verdict;

/// The whole page.
pub fn html(verdicts: &[Verdict], runs: u32) -> String {
    let claims: Vec<claims_page::Claim> = verdicts.iter().map(claim).collect();
    claims_page::html(&claims, runs, &super::command(), &super::footer())
}

fn claim(verdict: &Verdict) -> claims_page::Claim {
    let purpose = match verdict.claim.purpose {
        Use::Fit => "fit",
        Use::Check => "check",
    };
    claims_page::Claim {
        id: verdict.claim.id.clone(),
        purpose: purpose.to_owned(),
        kind: verdict.claim.kind.clone(),
        in_band: verdict.in_band(),
        figures: verdict.figures.iter().flatten().map(figure).collect(),
        command: verdict.command(),
    }
}

fn figure(figure: &Figure) -> claims_page::ClaimFigure {
    let (published, low, high) = show::bounds(figure.wanted);
    claims_page::ClaimFigure {
        name: figure.name.clone(),
        published,
        low,
        high,
        ours: figure.ours.map(|ours| ours.mean),
        ci95: figure.ours.and_then(|ours| ours.ci95),
        in_band: figure.in_band(),
        not_covered: String::new(),
    }
}
