//! Picture of a short piece of a trace: lanes with spans, arrows between them, marks, and a legend.
//!
//! Unlike the charts of [`crate::chart`], which use the colours of their page, this is a standalone SVG file for a README.
//! It has a framed white ground, so that it is legible on a dark page, and generic font families.
//! Colours are distinguishable with common colour blindness (after Okabe and Ito), and waiting is also hatched.
//!
//! Times are ns.
//! Spans are clipped to the window, and spans narrower than a fifth of a unit are not drawn.
//! Lanes are drawn in the given order.

use std::fmt::Write as _;

/// Width of the whole picture, in units of its view box.
const WIDTH: f64 = 1200.0;

/// Left end of the lanes; their names are to the left of it.
const LEFT: f64 = 150.0;

/// Right margin.
const RIGHT: f64 = 18.0;

/// Height of a lane.
const LANE: f64 = 22.0;

/// Space between lanes.
const GAP: f64 = 5.0;

/// Space between groups of lanes, for the group's name.
const GROUP: f64 = 26.0;

/// Space above the first group, for title and axis.
const TOP: f64 = 58.0;

/// Height of a row of the legend.
const LEGEND_ROW: f64 = 22.0;

/// Minimum width of a visible span.
const MIN_WIDTH: f64 = 0.2;

/// Style of a kind of span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Name in the legend; empty: no entry.
    pub name: String,
    /// Colour as `#rrggbb`.
    pub colour: String,
    /// Whether the span is hatched.
    pub hatched: bool,
}

/// A span of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Begin, ns.
    pub from_ns: u64,
    /// End, ns.
    pub to_ns: u64,
    /// Index of the kind in [`Timeline::kinds`].
    pub kind: usize,
    /// Text inside the span, if it fits.
    pub label: String,
}

/// A row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lane {
    /// Name.
    pub name: String,
    /// Spans; later ones are drawn over earlier ones.
    pub spans: Vec<Span>,
    /// Times of tick marks, ns.
    pub marks_ns: Vec<u64>,
}

/// A group of lanes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Name.
    pub name: String,
    /// Lanes.
    pub lanes: Vec<Lane>,
}

/// Style of a kind of arrow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrowKind {
    /// Name in the legend.
    pub name: String,
    /// Colour as `#rrggbb`.
    pub colour: String,
    /// Whether the arrow is dashed.
    pub dashed: bool,
}

/// An arrow from a cause to its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrow {
    /// Group, lane and time (ns) of the begin.
    pub from: (usize, usize, u64),
    /// Group, lane and time (ns) of the end.
    pub to: (usize, usize, u64),
    /// Index of the kind in [`Timeline::arrow_kinds`].
    pub kind: usize,
}

/// The picture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Title.
    pub title: String,
    /// Begin of the window, ns.
    pub from_ns: u64,
    /// End of the window, ns.
    pub to_ns: u64,
    /// Kinds of spans.
    pub kinds: Vec<Kind>,
    /// The lanes.
    pub groups: Vec<Group>,
    /// Kinds of arrows.
    pub arrow_kinds: Vec<ArrowKind>,
    /// The arrows.
    pub arrows: Vec<Arrow>,
    /// Meaning of the marks, for the legend; empty: no entry.
    pub marks: String,
}

impl Timeline {
    /// Returns the picture as an SVG file.
    pub fn svg(&self) -> String {
        let mut body = String::new();
        let bottom = self.bottom();
        self.axis(&mut body, bottom);
        for (g, group) in self.groups.iter().enumerate() {
            let y = self.lane_top(g, 0) - 7.0;
            text(&mut body, (16.0, y), "group", "start", &group.name);
            for (l, lane) in group.lanes.iter().enumerate() {
                self.lane(&mut body, self.lane_top(g, l), lane);
            }
        }
        for arrow in &self.arrows {
            self.arrow(&mut body, arrow);
        }
        let height = self.legend(&mut body, bottom + 18.0);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             width=\"{WIDTH}\" height=\"{height}\" role=\"img\">\n<title>{}</title>\n",
            escape(&self.title)
        );
        svg.push_str(STYLE);
        self.definitions(&mut svg);
        let (w, h) = (WIDTH - 1.0, height - 1.0);
        line(
            &mut svg,
            format_args!(
                "<rect x=\"0.5\" y=\"0.5\" width=\"{w}\" height=\"{h}\" rx=\"6\" fill=\"#ffffff\" \
                 stroke=\"#d0d7de\"/>"
            ),
        );
        text(&mut svg, (16.0, 24.0), "title", "start", &self.title);
        svg + &body + "</svg>\n"
    }

    fn x(&self, at_ns: u64) -> f64 {
        let window = self.to_ns.saturating_sub(self.from_ns).max(1) as f64;
        let at = at_ns.clamp(self.from_ns, self.to_ns.max(self.from_ns)) - self.from_ns;
        LEFT + (WIDTH - LEFT - RIGHT) * at as f64 / window
    }

    fn lane_top(&self, group: usize, lane: usize) -> f64 {
        let above: usize = self.groups[..group].iter().map(|g| g.lanes.len()).sum();
        TOP + GROUP * (group + 1) as f64 + (LANE + GAP) * (above + lane) as f64
    }

    fn bottom(&self) -> f64 {
        let lanes: usize = self.groups.iter().map(|g| g.lanes.len()).sum();
        TOP + GROUP * self.groups.len() as f64 + (LANE + GAP) * lanes as f64
    }

    fn definitions(&self, svg: &mut String) {
        svg.push_str("<defs>\n");
        for (k, kind) in self.kinds.iter().enumerate().filter(|(_, k)| k.hatched) {
            line(
                svg,
                format_args!(
                    "<pattern id=\"h{k}\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
                     patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" \
                     fill=\"#ffffff\"/><rect width=\"3\" height=\"6\" fill=\"{}\"/></pattern>",
                    kind.colour
                ),
            );
        }
        for (k, kind) in self.arrow_kinds.iter().enumerate() {
            line(
                svg,
                format_args!(
                    "<marker id=\"a{k}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" \
                     markerWidth=\"6\" markerHeight=\"6\" orient=\"auto\"><path \
                     d=\"M0 0.5 L8 4 L0 7.5 z\" fill=\"{}\"/></marker>",
                    kind.colour
                ),
            );
        }
        svg.push_str("</defs>\n");
    }

    fn axis(&self, svg: &mut String, bottom: f64) {
        let window = self.to_ns.saturating_sub(self.from_ns).max(1);
        let step = round_step(window / 10);
        let mut at_ns = self.from_ns.div_ceil(step) * step;
        while at_ns <= self.to_ns {
            let x = self.x(at_ns);
            line(
                svg,
                format_args!("<path class=\"grid\" d=\"M{x:.1} {:.1} V{bottom:.1}\"/>", TOP - 4.0),
            );
            let anchor = if x > WIDTH - 50.0 { "end" } else { "middle" };
            text(svg, (x, TOP - 9.0), "tick", anchor, &time(at_ns, step));
            at_ns += step;
        }
    }

    fn lane(&self, svg: &mut String, y: f64, lane: &Lane) {
        let middle = y + LANE / 2.0 + 4.0;
        text(svg, (LEFT - 8.0, middle), "name", "end", &lane.name);
        for span in &lane.spans {
            if span.to_ns <= self.from_ns || span.from_ns >= self.to_ns {
                continue;
            }
            let (x, end) = (self.x(span.from_ns), self.x(span.to_ns));
            let width = end - x;
            let Some(fill) = self.fill(span.kind).filter(|_| width >= MIN_WIDTH) else {
                continue;
            };
            line(
                svg,
                format_args!(
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{LANE}\" \
                     fill=\"{fill}\"/>"
                ),
            );
            if !span.label.is_empty()
                && crate::chart::text::text_width(&span.label, 12.0) + 4.0 < width
            {
                let at = (x + width / 2.0, middle);
                text(svg, at, "label", "middle", &span.label);
            }
        }
        for &mark in &lane.marks_ns {
            if (self.from_ns..=self.to_ns).contains(&mark) {
                let x = self.x(mark);
                line(
                    svg,
                    format_args!(
                        "<path class=\"mark\" d=\"M{x:.1} {:.1} V{:.1}\"/>",
                        y + LANE - 6.0,
                        y + LANE + 3.0
                    ),
                );
            }
        }
    }

    fn fill(&self, kind: usize) -> Option<String> {
        self.kinds.get(kind).map(|found| {
            if found.hatched { format!("url(#h{kind})") } else { found.colour.clone() }
        })
    }

    fn arrow(&self, svg: &mut String, arrow: &Arrow) {
        let inside = |at: u64| (self.from_ns..=self.to_ns).contains(&at);
        let Some(kind) = self.arrow_kinds.get(arrow.kind) else {
            return;
        };
        if !inside(arrow.from.2) || !inside(arrow.to.2) || arrow.from.0 >= self.groups.len() {
            return;
        }
        let (from, to) =
            (self.lane_top(arrow.from.0, arrow.from.1), self.lane_top(arrow.to.0, arrow.to.1));
        // From the near edge of one lane to the near edge of the other.
        let (y1, y2) = if to >= from {
            (from + LANE * 0.7, to + LANE * 0.3)
        } else {
            (from + LANE * 0.3, to + LANE * 0.7)
        };
        let (x1, x2) = (self.x(arrow.from.2), self.x(arrow.to.2));
        let dash = if kind.dashed { " stroke-dasharray=\"4 3\"" } else { "" };
        line(
            svg,
            format_args!(
                "<path class=\"arrow\" d=\"M{x1:.1} {y1:.1} L{x2:.1} {y2:.1}\" stroke=\"{}\"{dash} \
                 marker-end=\"url(#a{})\"/>",
                kind.colour, arrow.kind
            ),
        );
    }

    /// Draws the legend from `y` on, and returns the picture's height.
    fn legend(&self, svg: &mut String, y: f64) -> f64 {
        let (mut x, mut y) = (16.0, y);
        let mut place = |name: &str| {
            let width = 40.0 + crate::chart::text::text_width(name, 13.0) + 14.0;
            if x + width > WIDTH - RIGHT {
                (x, y) = (16.0, y + LEGEND_ROW);
            }
            let at = (x, y);
            x += width;
            at
        };
        let mut entries = String::new();
        for (k, kind) in self.kinds.iter().enumerate() {
            if kind.name.is_empty() {
                continue;
            }
            let (x, y) = place(&kind.name);
            let fill = self.fill(k).unwrap_or_default();
            line(
                &mut entries,
                format_args!(
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"30\" height=\"13\" fill=\"{fill}\" \
                     stroke=\"#8c959f\" stroke-width=\"0.5\"/>"
                ),
            );
            let at = (x + 37.0, y + 11.0);
            text(&mut entries, at, "legend", "start", &kind.name);
        }
        for (k, kind) in self.arrow_kinds.iter().enumerate() {
            let (x, y) = place(&kind.name);
            let dash = if kind.dashed { " stroke-dasharray=\"4 3\"" } else { "" };
            line(
                &mut entries,
                format_args!(
                    "<path class=\"arrow\" d=\"M{x:.1} {0:.1} h30\" stroke=\"{1}\"{dash} \
                     marker-end=\"url(#a{k})\"/>",
                    y + 7.0,
                    kind.colour
                ),
            );
            let at = (x + 37.0, y + 11.0);
            text(&mut entries, at, "legend", "start", &kind.name);
        }
        if !self.marks.is_empty() {
            let (x, y) = place(&self.marks);
            line(
                &mut entries,
                format_args!("<path class=\"mark\" d=\"M{:.1} {y:.1} v13\"/>", x + 15.0),
            );
            let at = (x + 37.0, y + 11.0);
            text(&mut entries, at, "legend", "start", &self.marks);
        }
        svg.push_str(&entries);
        y + LEGEND_ROW + 8.0
    }
}

const STYLE: &str = "<style>text{font-family:system-ui,'Segoe UI',Helvetica,Arial,sans-serif;\
fill:#1f2328}.title{font-size:16px;font-weight:600}.group{font-size:13px;font-weight:600}\
.name,.legend{font-size:13px}.tick{font-size:12px;fill:#57606a}.label{font-size:12px}\
.grid{stroke:#d8dee4;stroke-width:1}.arrow{fill:none;stroke-width:1.4}\
.mark{stroke:#000000;stroke-width:1.6}</style>\n";

/// Returns the smallest 1, 2 or 5 times a power of ten that is at least `least`.
fn round_step(least: u64) -> u64 {
    let mut power = 1u64;
    loop {
        for factor in [1, 2, 5] {
            let step = power.saturating_mul(factor);
            if step >= least {
                return step;
            }
        }
        power = power.saturating_mul(10);
    }
}

/// Formats a time on an axis with a tick distance of `step`.
fn time(at_ns: u64, step: u64) -> String {
    let (unit, per) = match step {
        1_000_000.. => ("ms", 1e6),
        1_000.. => ("µs", 1e3),
        _ => ("ns", 1.0),
    };
    format!("{} {unit}", at_ns as f64 / per)
}

fn line(svg: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(svg, "{arguments}");
}

fn text(svg: &mut String, (x, y): (f64, f64), class: &str, anchor: &str, text: &str) {
    line(
        svg,
        format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\" text-anchor=\"{anchor}\">{}</text>",
            escape(text)
        ),
    );
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture() -> Timeline {
        let span =
            |from_ns, to_ns, label: &str| Span { from_ns, to_ns, kind: 0, label: label.to_owned() };
        Timeline {
            title: "a < b".to_owned(),
            from_ns: 1_000,
            to_ns: 11_000,
            kinds: vec![Kind {
                name: "running".to_owned(),
                colour: "#0072b2".to_owned(),
                hatched: true,
            }],
            groups: vec![Group {
                name: "pCPUs".to_owned(),
                lanes: vec![
                    Lane {
                        name: "pCPU 0".to_owned(),
                        spans: vec![span(0, 6_000, "inside"), span(20_000, 30_000, "outside")],
                        marks_ns: vec![2_000, 12_000],
                    },
                    Lane::default(),
                ],
            }],
            arrow_kinds: vec![ArrowKind {
                name: "IPI".to_owned(),
                colour: "#d55e00".to_owned(),
                dashed: false,
            }],
            arrows: vec![
                Arrow { from: (0, 0, 3_000), to: (0, 1, 4_000), kind: 0 },
                Arrow { from: (0, 0, 3_000), to: (0, 1, 40_000), kind: 0 },
            ],
            marks: "exit".to_owned(),
        }
    }

    #[test]
    fn content_is_clipped_to_window() {
        let svg = picture().svg();
        assert!(svg.contains("a &lt; b") && svg.contains(">inside<"));
        assert!(!svg.contains("outside"), "{svg}");
        // The first half of the window.
        let width = (WIDTH - LEFT - RIGHT) / 2.0;
        assert!(
            svg.contains(&format!("x=\"{LEFT:.1}\" y=\"{:.1}\" width=\"{width:.1}\"", TOP + GROUP))
        );
        // One arrow of the two, and one in the legend; one mark of the two, and one in the legend.
        assert_eq!(svg.matches("class=\"arrow\"").count(), 2);
        assert_eq!(svg.matches("class=\"mark\"").count(), 2);
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(round_step(1_000), 1_000);
        assert_eq!(round_step(1_001), 2_000);
        assert_eq!(round_step(0), 1);
        assert_eq!(time(2_500_000, 500_000), "2500 µs");
        assert_eq!(time(4_000_000, 1_000_000), "4 ms");
    }

    #[test]
    fn empty_window_is_drawn() {
        let svg = Timeline::default().svg();
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }
}
