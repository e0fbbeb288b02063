//! A comparison as a page: every metric under every combination, the breakdown of CPU time, APLE's windows,
//! waits, the table, and the command that made it.

use maud::{Markup, html};
use tandem_experiment::compare::{CombinationFigures, Comparison};
use tandem_experiment::parameters::Parameters;
use tandem_sim::{Results, Scenario};
use thiserror::Error;

use super::comparison_table::{runs_in_words, vms};
use super::measures::Measure;
use super::over_number::OverNumber;
use super::threshold::Threshold;
use super::time::TimeOf;
use super::{MAX_VMS, comparison_charts, comparison_table, time, waits};
use tandem_report::chart::{COLOURS, picture};
use tandem_report::page;

/// The reason why no picture can be drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NoPicture {
    /// There is only one combination, or there are too many for bars.
    #[error(
        "--picture: there is nothing to draw: it shows metrics relative to the first of 2 … {COLOURS} combinations, or over a \
         number with three values or more and at most {COLOURS} combinations of the rest; there are {0} combinations; --html \
         shows any number"
    )]
    Combinations(usize),
    /// No VM has any of the metrics to compare.
    #[error(
        "--picture: there is nothing to draw: no VM has the metrics under the first combination; see --metrics"
    )]
    Metrics,
}

/// The content of a page or picture.
#[derive(Clone, Copy, Debug)]
pub struct Data<'a> {
    /// The figures.
    pub comparison: &'a Comparison,
    /// The varied parameters.
    pub parameters: &'a Parameters,
    /// The scenario of each combination.
    pub scenarios: &'a [Scenario],
    /// Results of one run of each combination; empty: only the figures are shown.
    pub watched: &'a [Results],
    /// The metrics to show.
    pub shown: &'a [&'a str],
    /// The command that makes the page.
    pub command: &'a str,
}

impl Data<'_> {
    fn about(&self) -> &str {
        let first = self.scenarios.first();
        first.map_or("", |scenario| &scenario.about)
    }

    fn measures(&self) -> Vec<Measure> {
        let vms = vms(self.comparison);
        let measure = |metric: &&str| comparison_charts::measure(self.comparison, metric, &vms);
        self.shown.iter().filter_map(measure).collect()
    }

    /// Notes that name omitted content.
    fn notes(&self) -> Vec<String> {
        let first = self.scenarios.first();
        let all = first.map_or(0, |scenario| scenario.vms.len());
        let mut notes = Vec::new();
        if all > MAX_VMS {
            notes.push(format!(
                "at most {MAX_VMS} VMs are shown one by one: for {all} VMs, figures are of all of them \
                 together, and thresholds and waits of the first {MAX_VMS}"
            ));
        }
        notes
    }
}

/// The whole page.
pub fn html(data: &Data<'_>, footer: &str) -> String {
    let comparison = data.comparison;
    let (names, vms) = (comparison_charts::names(comparison), vms(comparison));
    let runs = comparison.seeds.len();
    let watched = || data.scenarios.iter().zip(data.watched).zip(&names);
    let thresholds: Vec<Threshold> = watched()
        .filter_map(|((scenario, results), name)| Threshold::of(name, scenario, results))
        .collect();
    let most = thresholds.iter().map(Threshold::most).fold(0.0, f64::max);
    let waits: Vec<(&str, &Results)> =
        watched().map(|((_, results), name)| (name.as_str(), results)).collect();
    let (about, notes) = (data.about(), data.notes());
    let over = OverNumber::of(data.parameters);
    let body = html! {
        h1 { (comparison.scenario) }
        @if !about.is_empty() { p.lead { (about) } }
        p.faint {
            (names.len()) " combinations, " (runs_in_words(&comparison.seeds))
        }
        @if !notes.is_empty() {
            ul.notes { @for note in &notes { li { (note) } } }
        }
        @for measure in data.measures() {
            @let lines = over.as_ref().map_or(html! {}, |over| over.section(&measure));
            (measure.section(&names, runs, &lines))
        }
        (times(&comparison_charts::time(comparison, &names, &vms)))
        @if !thresholds.is_empty() {
            h2 { "APLE's threshold over time" }
            p.faint { "The pause-loop window of each VM as APLE set it, from one run." }
            div.grid {
                @for threshold in &thresholds {
                    (page::figure(&threshold.combination, "", threshold.chart(most, 520.0).svg()))
                }
            }
        }
        (waits::section(&waits))
        h2 { "Figures" }
        (comparison_table::table(comparison, data.shown).html("Every metric of every VM under every combination"))
        (how(data, &names))
    };
    page::page(&comparison.scenario, body, footer)
}

/// Checks, before the first run, whether a picture of these parameters can be drawn.
pub fn can_draw(parameters: &Parameters) -> Result<(), NoPicture> {
    let combinations = parameters.combinations();
    if OverNumber::of(parameters).is_some() || (2..=COLOURS).contains(&combinations) {
        Ok(())
    } else {
        Err(NoPicture::Combinations(combinations))
    }
}

/// Draws lines over a varied number, or else bars relative to the first combination, as an SVG file.
pub fn picture(data: &Data<'_>) -> Result<String, NoPicture> {
    can_draw(data.parameters)?;
    let names = comparison_charts::names(data.comparison);
    let over = OverNumber::of(data.parameters);
    let panels: Vec<_> = data
        .measures()
        .iter()
        .flat_map(|measure| match &over {
            Some(over) => over.panels(measure),
            None => measure.picture(&names).into_iter().collect(),
        })
        .collect();
    let title = match data.about() {
        "" => &data.comparison.scenario,
        about => about,
    };
    let whiskers = match over {
        Some(_) => "95 % intervals",
        None => "95 % intervals of the paired difference",
    };
    let runs = runs_in_words(&data.comparison.seeds);
    let subtitle = format!("simulated; {runs}; whiskers: {whiskers}");
    if panels.is_empty() {
        Err(NoPicture::Metrics)
    } else {
        Ok(picture::svg(title, &subtitle, &panels))
    }
}

fn times(time: &[(String, Vec<TimeOf>)]) -> Markup {
    html! {
        @if !time.is_empty() {
            h2 { "Where the time went" }
            p.faint {
                "CPU time of the vCPUs of each VM by use, means over the runs; hollow: time runnable "
                "without a pCPU (steal)."
            }
            @for (vm, rows) in time {
                figure {
                    figcaption { (vm) }
                    div.wide { (time::chart(&format!("Time of {vm}"), rows, 1000.0).svg()) }
                }
            }
        }
    }
}

fn how(data: &Data<'_>, names: &[String]) -> Markup {
    let combinations = &data.comparison.combinations;
    html! {
        h2 { "How it was made" }
        dl {
            dt { "Command" } dd { pre { (data.command) } }
            dt { "Runs" } dd { (runs_in_words(&data.comparison.seeds)) }
            @for (name, combination) in names.iter().zip(combinations) {
                dt { (name) }
                dd {
                    @if combination.settings.is_empty() { "nothing is set" }
                    @else { (settings(combination)) }
                }
            }
        }
    }
}

fn settings(combination: &CombinationFigures) -> String {
    let settings = combination.settings.iter();
    let settings: Vec<String> = settings.map(|(key, value)| format!("{key}={value}")).collect();
    settings.join(", ")
}
