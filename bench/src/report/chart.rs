//! The report as a picture: a bar for each ratio, which starts at 1 on a logarithmic axis, with its spread and a mark
//! at its goal. A figure without a ratio is drawn as a share of its goal.

use std::fmt::Write as _;

use super::figures::{Figure, Report};
use super::goal::Goal;
use super::statistics::Summary;

const WIDTH: f64 = 1120.0;
/// The x coordinates of the left and right end of the axis.
const LEFT: f64 = 470.0;
const RIGHT: f64 = 940.0;
const LINE: f64 = 22.0;
const HEAD: f64 = 34.0;
const TOP: f64 = 84.0;
const STYLE: &str = "text{font:13px system-ui,'DejaVu Sans',sans-serif;fill:#24292f}\
    .title{font-size:18px;font-weight:600}.head{font-weight:600}.small{font-size:11px;fill:#57606a}\
    .met{fill:#2f8f5b}.missed{fill:#d9822b}.open{fill:#7a8fb3}\
    .grid{stroke:#d8dee4}.one{stroke:#57606a}.spread{stroke:#24292f;stroke-width:1.5}.goal{stroke:#b3261e;stroke-width:2.5}";

struct Bar<'a> {
    figure: &'a Figure,
    value: Summary,
    goal: Option<Goal>,
}

impl<'a> Bar<'a> {
    /// Returns `None` if the figure has neither a ratio nor a goal, or if its value has no logarithm.
    fn new(figure: &'a Figure) -> Option<Self> {
        let (value, goal) = match (figure.ratio, figure.goal) {
            (Some(ratio), goal) => (ratio, goal),
            (None, Some(goal)) => (figure.manx.divided_by(goal.limit()), Some(goal.of_share())),
            (None, None) => return None,
        };
        let drawn = value.lowest > 0.0 && value.highest.is_finite();
        drawn.then_some(Self { figure, value, goal })
    }
}

/// The logarithmic axis.
struct Axis {
    lowest: f64,
    highest: f64,
}

impl Axis {
    /// Creates an axis that covers all bars, and at least the range from 1/2 to 2. Both of its ends are powers of two.
    fn over(bars: &[Bar<'_>]) -> Self {
        let values = bars.iter().flat_map(|bar| {
            [bar.value.lowest, bar.value.highest, bar.goal.map_or(1.0, Goal::limit)]
        });
        let (lowest, highest) = values
            .filter(|value| *value > 0.0)
            .fold((0.5f64, 2.0f64), |(low, high), value| (low.min(value), high.max(value)));
        Self { lowest: lowest.log2().floor(), highest: highest.log2().ceil() }
    }

    fn x(&self, value: f64) -> f64 {
        let share = (value.log2() - self.lowest) / (self.highest - self.lowest);
        LEFT + share * (RIGHT - LEFT)
    }

    /// The exponents of the powers of two on the axis.
    fn powers(&self) -> impl Iterator<Item = i32> {
        self.lowest as i32..=self.highest as i32
    }
}

pub(super) fn svg(report: &Report) -> String {
    let bars: Vec<Bar<'_>> = report.figures.iter().filter_map(Bar::new).collect();
    let axis = Axis::over(&bars);
    let (mut body, mut y) = (String::new(), TOP);
    for group in bars.chunk_by(|one, next| one.figure.head == next.figure.head) {
        y += HEAD;
        let share = if group[0].figure.ratio.is_none() { " (shares of the goal)" } else { "" };
        text(&mut body, "head", 16.0, y - 12.0, &format!("{}{share}", group[0].figure.head));
        for bar in group {
            draw(&mut body, bar, &axis, y);
            y += LINE;
        }
    }
    let height = y + 40.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\">\n\
         <style>{STYLE}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    text(&mut svg, "title", 16.0, 30.0, "Manx / what stands beside it");
    text(&mut svg, "small", 16.0, 50.0, &report.machine.lines().join("; "));
    let legend = "bar: median; line: lowest to highest; red: the goal; green: met, orange: missed, blue: none set";
    text(&mut svg, "small", 16.0, 68.0, legend);
    for power in axis.powers() {
        let (tick, class) = (2f64.powi(power), if power == 0 { "one" } else { "grid" });
        let x = axis.x(tick);
        let _ = writeln!(
            svg,
            "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"/>",
            y + 6.0
        );
        text(&mut svg, "small", x - 6.0, y + 22.0, &label(power));
    }
    svg + &body + "</svg>\n"
}

/// A power of two as text.
fn label(power: i32) -> String {
    let of = 2f64.powi(power.abs());
    if power < 0 { format!("1/{of}") } else { of.to_string() }
}

fn draw(svg: &mut String, bar: &Bar<'_>, axis: &Axis, y: f64) {
    let Bar { figure, value, goal } = bar;
    let class = match goal.map(|goal| goal.is_met(value.median)) {
        Some(true) => "met",
        Some(false) => "missed",
        None => "open",
    };
    let (from, to) = (axis.x(1.0).min(axis.x(value.median)), axis.x(1.0).max(axis.x(value.median)));
    let (middle, width) = (y + 6.0, (to - from).max(1.0));
    text(svg, "", 28.0, y + 10.0, &format!("{}, {}", figure.what, figure.unit));
    let _ = writeln!(
        svg,
        "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"12\"/>"
    );
    let (lowest, highest) = (axis.x(value.lowest), axis.x(value.highest));
    let _ = writeln!(
        svg,
        "<line class=\"spread\" x1=\"{lowest:.1}\" x2=\"{highest:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\"/>"
    );
    if let Some(goal) = goal {
        let x = axis.x(goal.limit());
        let (top, bottom) = (y - 3.0, y + 15.0);
        let _ = writeln!(
            svg,
            "<line class=\"goal\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top:.1}\" y2=\"{bottom:.1}\"/>"
        );
    }
    let goal = figure.goal.map_or_else(String::new, |goal| format!(" (goal {goal})"));
    let said = figure.ratio.unwrap_or(figure.manx).show_median();
    text(svg, "", RIGHT + 12.0, y + 10.0, &format!("{said}{goal}"));
}

fn text(svg: &mut String, class: &str, x: f64, y: f64, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(svg, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{words}</text>");
}
