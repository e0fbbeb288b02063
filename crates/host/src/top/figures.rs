//! Fields, sort keys, legend and help of the figures of `top`, which [`FIGURES`] declares.
//!
//! Non-goal: the first and last columns (name, culprit) are not figures, and each view formats them itself.

use std::cmp::Ordering;

use tandem_model::{Nanos, State, VcpuTimes};

use crate::columns::{Field, Tone};
use crate::export::metric::FIGURES;
use crate::top::{Culprit, TopInterval, TopVcpu, TopVm};

/// RDY from which a vCPU is noteworthy, and from which it is bad: the limits that operators of other hypervisors use.
const READY: [f64; 2] = [0.05, 0.10];

/// A column between name and culprit.
#[derive(Debug)]
pub(crate) struct Figure {
    /// Heading, also the name of the sort key.
    pub(super) heading: &'static str,
    /// Explanation for the help.
    help: &'static str,
    /// Explanation in a word or two for the legend; empty to leave it out.
    legend: &'static str,
    /// Width on the screen, in characters.
    pub(super) width: u16,
    /// The screen's key that sorts by it, the largest value first.
    sort: Option<char>,
    /// Whether the column is left out if no VM has a value; the notes mention it.
    optional: bool,
    value: Value,
}

/// Where a figure comes from, and how it is formatted.
#[derive(Debug)]
pub(crate) enum Value {
    /// Part of wall time per vCPU, in percent.
    Share(State),
    /// pCPUs of a VM; several VMs have the sum.
    Pcpus(fn(&TopVm) -> f64),
    /// Signed percentage of a VM.
    Percent(fn(&TopVm) -> f64),
}

pub(crate) const fn state(
    state: State,
    heading: &'static str,
    help: &'static str,
    legend: &'static str,
) -> Figure {
    Figure {
        heading,
        help,
        legend,
        width: 4,
        sort: None,
        optional: false,
        value: Value::Share(state),
    }
}

pub(crate) const fn of_vm(
    heading: &'static str,
    sort: Option<char>,
    value: Value,
    help: &'static str,
) -> Figure {
    Figure { heading, help, legend: "", width: 5, sort, optional: false, value }
}

/// A sort key of the VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SortKey {
    /// Index of a figure, the largest value first.
    Figure(usize),
    /// Name.
    Name,
}

impl SortKey {
    /// All keys, in the order of the columns from RDY on, the severity; the name is the last.
    pub(super) fn all() -> Vec<SortKey> {
        let sorting = (0..FIGURES.len()).filter(|at| FIGURES[*at].sort.is_some());
        sorting.map(SortKey::Figure).chain([SortKey::Name]).collect()
    }

    pub(super) fn heading(self) -> &'static str {
        match self {
            SortKey::Figure(at) => FIGURES[at].heading,
            SortKey::Name => "VM",
        }
    }

    pub(super) fn letter(self) -> Option<char> {
        match self {
            SortKey::Figure(at) => FIGURES[at].sort,
            SortKey::Name => Some('n'),
        }
    }

    pub(super) fn order(self, one: &TopVm, two: &TopVm) -> Ordering {
        let first = match self {
            SortKey::Figure(at) => {
                let value = |vm| FIGURES[at].of_vm(vm).unwrap_or(0.0);
                value(two).total_cmp(&value(one))
            }
            SortKey::Name => one.name.cmp(&two.name),
        };
        first.then_with(|| worst_first(one, two))
    }
}

/// Orders by descending severity: RDY per vCPU, then lag; then by name.
pub(super) fn worst_first(one: &TopVm, two: &TopVm) -> Ordering {
    let ready = |vm: &TopVm| vm.times.share(State::Ready).unwrap_or(0.0);
    ready(two)
        .total_cmp(&ready(one))
        .then(two.figures.lag.total_cmp(&one.figures.lag))
        .then_with(|| (&one.name, one.pid).cmp(&(&two.name, two.pid)))
}

impl Figure {
    pub(crate) const fn sorted_by(self, key: char) -> Figure {
        Figure { sort: Some(key), ..self }
    }

    pub(crate) const fn optional(self) -> Figure {
        Figure { optional: true, ..self }
    }

    /// Value of a VM; `None` if it is not measured.
    fn of_vm(&self, vm: &TopVm) -> Option<f64> {
        match self.value {
            Value::Share(state) => vm.times.share(state),
            Value::Pcpus(get) | Value::Percent(get) => Some(get(vm)),
        }
    }

    /// The field of a VM.
    pub(super) fn vm_field(&self, vm: &TopVm) -> Field {
        self.field(self.of_vm(vm))
    }

    /// The field of a vCPU; empty for figures of VMs.
    pub(super) fn vcpu_field(&self, vcpu: &TopVcpu) -> Field {
        match self.value {
            Value::Share(state) => self.field(vcpu.times.share(state)),
            Value::Pcpus(_) | Value::Percent(_) => Field::default(),
        }
    }

    /// The field of several VMs together; empty for figures without a sum.
    pub(super) fn total_field(&self, vms: &[TopVm]) -> Field {
        match self.value {
            Value::Share(state) => {
                let times = VcpuTimes::sum(vms.iter().map(|vm| &vm.times)).unwrap_or_default();
                self.field(times.share(state))
            }
            Value::Pcpus(get) => self.field(Some(vms.iter().map(get).sum())),
            Value::Percent(_) => Field::default(),
        }
    }

    fn field(&self, value: Option<f64>) -> Field {
        let Some(value) = value else {
            return Field::toned("–", Tone::Faint);
        };
        match self.value {
            Value::Share(state) => Field::toned(percent(value), tone(state, value)),
            Value::Pcpus(_) => pcpus(value).into(),
            Value::Percent(_) => signed_percent(value).into(),
        }
    }
}

/// Part of a VM's or vCPU's time in RDY from which its culprits are shown.
const MIN_READY: f64 = 0.01;

/// The culprits with their parts of RDY, in percent; none if RDY is under 1 % of the time.
pub(super) fn culprit_parts<'a>(
    culprits: &'a [Culprit],
    times: &VcpuTimes,
) -> impl Iterator<Item = (&'a str, f64)> {
    let ready = times.get(State::Ready).unwrap_or_default();
    let is_shown = times.share(State::Ready).is_some_and(|share| share >= MIN_READY);
    let part = move |time: Nanos| time.0 as f64 / ready.0 as f64 * 100.0;
    let shown = culprits.iter().filter(move |_| is_shown);
    shown.map(move |culprit| (culprit.name.as_str(), part(culprit.time)))
}

/// The figures with values in an interval.
pub(super) fn shown(interval: &TopInterval) -> Vec<&'static Figure> {
    let has_value = |figure: &&Figure| {
        !figure.optional || interval.vms.iter().any(|vm| figure.of_vm(vm).is_some())
    };
    FIGURES.iter().filter(has_value).collect()
}

/// The legend: short explanations in a line of 80 characters.
pub(super) fn legend() -> String {
    let explained = FIGURES.iter().filter(|figure| !figure.legend.is_empty());
    let texts = explained.map(|figure| format!("{} {}", figure.heading, figure.legend));
    texts.collect::<Vec<_>>().join(" ")
}

/// The lines of the help that explain the figures.
pub(super) fn help() -> impl Iterator<Item = String> {
    FIGURES.iter().map(|figure| format!("{:<5} {}", figure.heading, figure.help))
}

/// The line of the help that lists the sort keys.
pub(super) fn sort_help() -> String {
    let keys = SortKey::all();
    let letters = keys.iter().filter_map(|key| key.letter()).map(String::from);
    let headings = keys.iter().map(|key| key.heading());
    let (letters, headings) =
        (letters.collect::<Vec<_>>().join(" "), headings.collect::<Vec<_>>().join(", "));
    format!("{letters}  sort by {headings}")
}

fn tone(state: State, share: f64) -> Tone {
    match state {
        State::Ready if share >= READY[1] => Tone::Bad,
        State::Ready if share >= READY[0] => Tone::Warn,
        _ => Tone::Plain,
    }
}

/// Formats a part of 1 in percent, with a decimal below 10.
fn percent(share: f64) -> String {
    match share * 100.0 {
        percent if percent < 9.95 => format!("{percent:.1}"),
        percent => format!("{percent:.0}"),
    }
}

fn signed_percent(part: f64) -> String {
    match (part * 100.0).round() {
        0.0 => "0".to_owned(),
        percent => format!("{percent:+.0}"),
    }
}

/// Formats a number of pCPUs in at most five characters.
fn pcpus(pcpus: f64) -> String {
    match pcpus {
        pcpus if pcpus < 99.995 => format!("{pcpus:.2}"),
        pcpus if pcpus < 999.95 => format!("{pcpus:.1}"),
        pcpus => format!("{pcpus:.0}"),
    }
}
