//! What charts of horizontal rows share: the plot beside the names, and the axis along its foot.

use maud::Markup;
use maud::html;

use super::scale::Scale;
use super::text::at;

/// Height of a row.
pub const ROW: f64 = 22.0;
/// Above the first row: the unit.
pub const TOP: f64 = 20.0;
/// Below the last row: the axis' labels.
pub const BELOW: f64 = 22.0;
/// Between names, plot and values.
pub const GAP: f64 = 10.0;

/// Where values are drawn.
pub struct Plot {
    pub left: f64,
    pub right: f64,
    pub bottom: f64,
    pub scale: Scale,
}

impl Plot {
    /// Where a value lies; what is beyond the scale lies at its end, what is no number at its beginning.
    pub fn x(&self, value: f64) -> f64 {
        let part = value / self.scale.max();
        let part = if part.is_finite() { part } else { 0.0 };
        self.left + (self.right - self.left) * part.clamp(0.0, 1.0)
    }

    /// Grid and labels, with the unit above.
    pub fn axis(&self, unit: &str) -> Markup {
        html! {
            text.tick x=(at(self.left)) y="12" { (unit) }
            @for tick in self.scale.ticks() {
                line.(if tick == 0.0 { "base" } else { "grid" }) x1=(at(self.x(tick)))
                    x2=(at(self.x(tick))) y1=(at(TOP)) y2=(at(self.bottom)) {}
                text.tick x=(at(self.x(tick))) y=(at(self.bottom + 16.0)) text-anchor="middle" {
                    (self.scale.label(tick))
                }
            }
        }
    }

    /// The line at a value to compare with.
    pub fn reference(&self, value: f64) -> Markup {
        html! {
            line.reference x1=(at(self.x(value))) x2=(at(self.x(value))) y1=(at(TOP))
                y2=(at(self.bottom)) {}
        }
    }
}
