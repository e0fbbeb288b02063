//! Value axis of line charts, and non-overlapping names at the ends of lines.

use maud::{Markup, html};

use super::colour::colour;
use super::scale::Scale;
use super::text::at;

/// Size of text.
const SIZE: f64 = 12.0;
/// Minimum distance of two names.
const LINE_HEIGHT: f64 = 14.0;

/// Draws the unit, and a line from `left` to `right` with a number for each tick; `y` maps values to positions.
pub(crate) fn values(
    scale: &Scale,
    unit: &str,
    (left, right): (f64, f64),
    y: impl Fn(f64) -> f64,
) -> Markup {
    html! {
        text.tick x="0" y="12" { (unit) }
        @for tick in scale.ticks() {
            line.(if tick == 0.0 { "base" } else { "grid" }) x1=(at(left)) x2=(at(right))
                y1=(at(y(tick))) y2=(at(y(tick))) {}
            text.tick x=(at(left - 8.0)) y=(at(y(tick) + SIZE * 0.35))
                text-anchor="end" { (scale.label(tick)) }
        }
    }
}

/// Draws names at the ends of lines, `(y, colour, name)`, moved apart if lines end close together.
pub(crate) fn names(
    mut ends: Vec<(f64, usize, String)>,
    right: f64,
    (top, bottom): (f64, f64),
) -> Markup {
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut places: Vec<f64> = ends.iter().map(|end| end.0).collect();
    apart(&mut places, top, bottom, LINE_HEIGHT);
    html! {
        @for (y, (_, of, name)) in places.iter().zip(&ends) {
            text.name.(colour(*of)) x=(at(right + 8.0)) y=(at(y + SIZE * 0.35)) { (name) }
        }
    }
}

/// Moves positions, in ascending order, to a minimum `distance` between `top` and `bottom`.
///
/// The distance is reduced if there is not enough space.
fn apart(places: &mut [f64], top: f64, bottom: f64, distance: f64) {
    let spacing = distance.min((bottom - top) / places.len().max(1) as f64);
    let mut lowest = top;
    for place in places.iter_mut() {
        *place = place.max(lowest);
        lowest = *place + spacing;
    }
    let mut highest = bottom;
    for place in places.iter_mut().rev() {
        *place = place.min(highest);
        highest = *place - spacing;
    }
}
