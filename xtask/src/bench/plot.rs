//! A plot as SVG: panels side by side for the groups of points, below each other for the figures.
//!
//! Written by hand, since a plotting crate would take longer to compile than all of xtask, which every task waits for. It
//! draws what exhibits need: lines over file or data set sizes, or bars for steps; medians with their intervals; the axis
//! of figures from 0, or logarithmic where they span orders of magnitude; and bars of parts that are 1 together.

use std::fmt::Write;

use amped_measure::stats::Summary;

use super::exhibit::{Exhibit, Point, Shape};
use super::record::Record;
use super::sample::{Metric, figure};

/// Colours that people who cannot tell all colours can still tell apart (Okabe and Ito).
const COLOURS: [&str; 8] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];

/// A panel's frame, and what lies around it, in pixels.
const WIDTH: f64 = 430.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 44.0;
const BELOW: f64 = 52.0;
const LEGEND: f64 = 190.0;

/// Draws an exhibit.
pub(super) fn svg(exhibit: &Exhibit, record: &Record) -> String {
    match exhibit.shape {
        Shape::Steps => bars(exhibit, record),
        Shape::Lines { x_title, logarithmic } => lines(exhibit, record, x_title, logarithmic),
    }
}

/// The beginning, and a text of the middle size.
fn start(width: f64, height: f64, title: &str) -> String {
    let size = format!("width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\"");
    let mut out =
        format!("<svg xmlns=\"http://www.w3.org/2000/svg\" {size} font-family=\"sans-serif\" font-size=\"12\">\n");
    out += "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
    text(&mut out, 12.0, 20.0, "start", &format!("<tspan font-weight=\"bold\">{}</tspan>", escaped(title)));
    out
}

fn escaped(text: &str) -> String {
    maud::html! { (text) }.into_string()
}

/// A text; `inside` is markup already.
fn text(out: &mut String, x: f64, y: f64, anchor: &str, inside: &str) {
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{inside}</text>");
}

fn segment(out: &mut String, from: (f64, f64), to: (f64, f64), style: &str) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = writeln!(out, "<path d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\" {style}/>");
}

const GRID: &str = "stroke=\"#dddddd\"";
const FRAME: &str = "stroke=\"#444444\"";

/// An axis of figures: where a value stands between 0 and 1, and the values that are named.
struct Axis {
    low: f64,
    high: f64,
    is_wide: bool,
    ticks: Vec<f64>,
}

impl Axis {
    /// For all these figures.
    fn of(values: &[Summary], is_wide: bool) -> Axis {
        let most = values.iter().map(|summary| summary.high).fold(f64::MIN_POSITIVE, f64::max);
        if is_wide {
            let least = values.iter().map(|summary| summary.low).filter(|low| *low > 0.0).fold(most, f64::min);
            let (from, to) = (least.log10().floor() as i32, most.log10().ceil() as i32);
            let to = to.max(from + 1);
            let ticks = (from..=to).map(|power| 10f64.powi(power)).collect();
            return Axis { low: 10f64.powi(from), high: 10f64.powi(to), is_wide, ticks };
        }
        // 1, 2 or 5 of a power of ten, so that there are 4 to 10 of them.
        let power = 10f64.powf((most / 5.0).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|part| part * power).into_iter().find(|step| most / step <= 6.0);
        let step = step.unwrap_or(most);
        let count = (most / step).ceil() as usize;
        let ticks: Vec<f64> = (0..=count).map(|n| n as f64 * step).collect();
        Axis { low: 0.0, high: count as f64 * step, is_wide, ticks }
    }

    fn place(&self, value: f64) -> f64 {
        let place = if self.is_wide {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        place.clamp(0.0, 1.0)
    }
}

/// A tick without digits that say nothing.
fn tick(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let text = figure(value);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn lines(exhibit: &Exhibit, record: &Record, x_title: &str, logarithmic: bool) -> String {
    let mut groups: Vec<&str> = exhibit.points.iter().map(|point| point.group).collect();
    groups.dedup();
    let arms = record.arms(exhibit);
    let panel = |metric: &Metric, group: &&str| {
        let points: Vec<&Point> = exhibit.points.iter().filter(|point| point.group == *group).collect();
        let heading = if group.is_empty() { String::new() } else { format!(": {group}") };
        let line = |arm: &&str| {
            let of = |point: &&Point| Some((point.x, record.summary(*metric, point, arm)?));
            points.iter().filter_map(of).collect()
        };
        Panel {
            title: format!("{}{heading}", metric.title()),
            x_title: x_title.to_owned(),
            is_wide: metric.is_wide(),
            logarithmic,
            lines: arms.iter().map(line).collect(),
        }
    };
    let rows: Vec<Vec<Panel>> =
        exhibit.metrics.iter().map(|metric| groups.iter().map(|group| panel(metric, group)).collect()).collect();
    panels(exhibit.title, &arms, &rows)
}

/// A coordinate system and its lines.
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) x_title: String,
    /// Whether the axis of figures is logarithmic, and that of x.
    pub(super) is_wide: bool,
    pub(super) logarithmic: bool,
    /// For each name of the legend its points, which may be none.
    pub(super) lines: Vec<Vec<(f64, Summary)>>,
}

/// Draws rows of panels, with one legend.
pub(super) fn panels(title: &str, names: &[&str], rows: &[Vec<Panel>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default() as f64;
    let (width, height) = (columns * (LEFT + WIDTH) + LEGEND, rows.len() as f64 * (TOP + HEIGHT + BELOW) + 16.0);
    let mut out = start(width, height, title);
    for (row, panels) in rows.iter().enumerate() {
        for (column, panel) in panels.iter().enumerate() {
            let corner = (LEFT + column as f64 * (LEFT + WIDTH), 16.0 + TOP + row as f64 * (TOP + HEIGHT + BELOW));
            text(&mut out, corner.0, corner.1 - 8.0, "start", &escaped(&panel.title));
            text(&mut out, corner.0 + WIDTH / 2.0, corner.1 + HEIGHT + 36.0, "middle", &escaped(&panel.x_title));
            draw(&mut out, corner, panel);
        }
    }
    for (at, name) in names.iter().enumerate() {
        let (x, y) = (columns * (LEFT + WIDTH) + 16.0, 16.0 + TOP + 10.0 + at as f64 * 20.0);
        segment(&mut out, (x, y - 4.0), (x + 22.0, y - 4.0), &stroke(at));
        text(&mut out, x + 28.0, y, "start", &escaped(name));
    }
    out + "</svg>\n"
}

fn stroke(arm: usize) -> String {
    let dash = ["", " stroke-dasharray=\"6 3\""][arm % 2];
    format!("fill=\"none\" stroke-width=\"2\" stroke=\"{}\"{dash}", COLOURS[arm % COLOURS.len()])
}

fn draw(out: &mut String, (left, top): (f64, f64), panel: &Panel) {
    let Panel { is_wide, logarithmic, lines, .. } = panel;
    let all: Vec<Summary> = lines.iter().flatten().map(|(_, summary)| *summary).collect();
    let axis = Axis::of(&all, *is_wide);
    let y = |value: f64| top + HEIGHT * (1.0 - axis.place(value));
    for value in &axis.ticks {
        segment(out, (left, y(*value)), (left + WIDTH, y(*value)), GRID);
        text(out, left - 6.0, y(*value) + 4.0, "end", &tick(*value));
    }
    let scaled = |x: f64| if *logarithmic { x.ln() } else { x };
    let mut xs: Vec<f64> = lines.iter().flatten().map(|(x, _)| *x).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let (least, most) = (scaled(xs.first().copied().unwrap_or(1.0)), scaled(xs.last().copied().unwrap_or(1.0)));
    // A little room on both sides, and a single point in the middle.
    let x = |x: f64| {
        let place = if most > least { (scaled(x) - least) / (most - least) } else { 0.5 };
        left + 12.0 + place * (WIDTH - 24.0)
    };
    let mut free_from = f64::MIN;
    for value in xs {
        segment(out, (x(value), top + HEIGHT), (x(value), top + HEIGHT + 4.0), FRAME);
        // Half of its width, and a gap; where there is no room it goes without.
        let (label, half) = (tick(value), 4.0 * tick(value).len() as f64);
        if x(value) - half > free_from {
            text(out, x(value), top + HEIGHT + 18.0, "middle", &label);
            free_from = x(value) + half;
        }
    }
    for (at, line) in lines.iter().enumerate() {
        let mut path = String::new();
        for (value, Summary { low, median, high, .. }) in line {
            // Side by side, or intervals of equal arms would hide each other.
            let x = x(*value) + (at as f64 - (lines.len() - 1) as f64 / 2.0) * 2.0;
            let _ = write!(path, "{}{x:.1} {:.1}", if path.is_empty() { 'M' } else { 'L' }, y(*median));
            let colour = COLOURS[at % COLOURS.len()];
            segment(out, (x, y(*low)), (x, y(*high)), &format!("stroke=\"{colour}\" stroke-width=\"1.5\""));
            let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"2.5\" fill=\"{colour}\"/>", y(*median));
        }
        if !path.is_empty() {
            let _ = writeln!(out, "<path d=\"{path}\" {}/>", stroke(at));
        }
    }
    segment(out, (left, top), (left, top + HEIGHT), FRAME);
    segment(out, (left, top + HEIGHT), (left + WIDTH, top + HEIGHT), FRAME);
}

/// A bar for each arm and figure, the arms below each other.
fn bars(exhibit: &Exhibit, record: &Record) -> String {
    const NAMES: f64 = 150.0;
    const BAR: f64 = 24.0;
    let arms = record.arms(exhibit);
    let tall = arms.len() as f64 * BAR;
    let width = NAMES + exhibit.metrics.len() as f64 * (WIDTH + 24.0);
    let mut out = start(width, 16.0 + TOP + tall + BELOW, exhibit.title);
    let top = 16.0 + TOP;
    let Some(point) = exhibit.points.first() else { return out + "</svg>\n" };
    for (column, metric) in exhibit.metrics.iter().enumerate() {
        let left = NAMES + column as f64 * (WIDTH + 24.0);
        let of = |arm: &&str| record.summary(*metric, point, arm);
        let axis = Axis::of(&arms.iter().filter_map(of).collect::<Vec<_>>(), metric.is_wide());
        let x = |value: f64| left + axis.place(value) * (WIDTH - 50.0);
        text(&mut out, left, top - 8.0, "start", &escaped(metric.title()));
        for value in &axis.ticks {
            segment(&mut out, (x(*value), top), (x(*value), top + tall), GRID);
            text(&mut out, x(*value), top + tall + 16.0, "middle", &tick(*value));
        }
        for (at, arm) in arms.iter().enumerate() {
            let middle = top + (at as f64 + 0.5) * BAR;
            if column == 0 {
                text(&mut out, NAMES - 8.0, middle + 4.0, "end", &escaped(arm));
            }
            let Some(Summary { low, median, high, .. }) = of(arm) else { continue };
            let (wide, y) = (x(median) - left, middle - 8.0);
            let _ = writeln!(
                out,
                "<rect x=\"{left:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"16\" fill=\"{}\"/>",
                COLOURS[5]
            );
            segment(&mut out, (x(low), middle), (x(high), middle), "stroke=\"black\" stroke-width=\"1.5\"");
            text(&mut out, x(high) + 6.0, middle + 4.0, "start", &figure(median));
        }
        segment(&mut out, (left, top), (left, top + tall), FRAME);
    }
    out + "</svg>\n"
}

/// Bars of parts, and their legend.
pub(super) struct Stacks {
    pub(super) title: String,
    /// What each bar is about.
    pub(super) bars: Vec<String>,
    /// The parts from left to right: the name, and the share in each bar.
    pub(super) parts: Vec<(String, Vec<f64>)>,
}

/// Beyond the eight colours: paler ones of the same, which their neighbours are not.
fn shade(part: usize) -> String {
    let opacity = ["1", "0.45"][part / COLOURS.len() % 2];
    format!("fill=\"{}\" fill-opacity=\"{opacity}\"", COLOURS[part % COLOURS.len()])
}

/// Draws panels of such bars, two in a row, each with a legend below.
pub(super) fn stacks(title: &str, panels: &[Stacks]) -> String {
    const BAR: f64 = 26.0;
    const LINE: f64 = 18.0;
    // A part that no bar has keeps its colour for the other panels, and is not drawn.
    let drawn = |panel: &Stacks| -> Vec<usize> {
        (0..panel.parts.len()).filter(|part| panel.parts[*part].1.iter().any(|share| *share > 0.0)).collect()
    };
    // A legend has two columns.
    let tall =
        |panel: &Stacks| TOP + panel.bars.len() as f64 * BAR + 24.0 + drawn(panel).len().div_ceil(2) as f64 * LINE;
    let heights: Vec<f64> = panels.chunks(2).map(|row| row.iter().map(tall).fold(0.0, f64::max)).collect();
    let mut out = start(2.0 * (LEFT + WIDTH) + 24.0, 24.0 + heights.iter().sum::<f64>(), title);
    let mut top = 16.0 + TOP;
    for (row, height) in panels.chunks(2).zip(&heights) {
        for (column, panel) in row.iter().enumerate() {
            let left = LEFT + column as f64 * (LEFT + WIDTH);
            text(&mut out, left, top - 8.0, "start", &escaped(&panel.title));
            for (bar, name) in panel.bars.iter().enumerate() {
                let y = top + bar as f64 * BAR;
                text(&mut out, left - 6.0, y + 16.0, "end", &escaped(name));
                let mut from = 0.0;
                for part in drawn(panel) {
                    let (name, shares) = &panel.parts[part];
                    let (share, x) = (shares[bar], left + from * WIDTH);
                    let _ = writeln!(
                        out,
                        "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"20\" {}><title>{}: {:.1} %</title></rect>",
                        y + 2.0,
                        share * WIDTH,
                        shade(part),
                        escaped(name),
                        share * 100.0
                    );
                    from += share;
                }
            }
            let below = top + panel.bars.len() as f64 * BAR + 12.0;
            for (place, part) in drawn(panel).into_iter().enumerate() {
                let name = &panel.parts[part].0;
                let (x, y) = (left + (place % 2) as f64 * WIDTH / 2.0, below + (place / 2) as f64 * LINE);
                let _ = writeln!(out, "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"12\" height=\"12\" {}/>", shade(part));
                text(&mut out, x + 18.0, y + 11.0, "start", &escaped(name));
            }
        }
        top += height;
    }
    out + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_ticks() {
        let check = |values: &[f64], is_wide: bool, ticks: &[&str]| {
            let values: Vec<Summary> = values.iter().filter_map(|value| Summary::of([*value])).collect();
            let axis = Axis::of(&values, is_wide);
            assert_eq!(axis.ticks.iter().map(|value| tick(*value)).collect::<Vec<_>>(), ticks);
            assert!(values.iter().all(|value| (0.0..=1.0).contains(&axis.place(value.median))));
        };
        check(&[3.0, 4.9], false, &["0", "1", "2", "3", "4", "5"]);
        check(&[61.0], false, &["0", "20", "40", "60", "80"]);
        check(&[0.3, 80.0], true, &["0.1", "1", "10", "100"]);
        check(&[1.0], true, &["1", "10"]);
    }

    #[test]
    fn bars_of_parts_are_as_long_as_their_shares() {
        let part = |name: &str, shares: [f64; 2]| (name.to_owned(), shares.to_vec());
        let parts = vec![part("user", [0.25, 1.0]), part("nobody's", [0.0, 0.0]), part("a <b>", [0.75, 0.0])];
        let panel = Stacks { title: "one".into(), bars: vec!["class 0".into(), "mix".into()], parts };
        let svg = stacks("title", &[panel]);
        let width = |share: f64| format!("width=\"{:.1}\" height=\"20\"", share * WIDTH);
        assert!(svg.contains(&width(0.25)) && svg.contains(&width(0.75)) && svg.contains(&width(1.0)), "{svg}");
        assert!(svg.contains("a &lt;b&gt;: 75.0 %") && svg.contains(">mix<") && svg.ends_with("</svg>\n"), "{svg}");
        assert!(!svg.contains("nobody") && svg.contains(&shade(2)) && !svg.contains(&shade(1)), "{svg}");
        assert_ne!(shade(0), shade(COLOURS.len()));
    }

    #[test]
    fn a_logarithmic_axis_is_one() {
        let values: Vec<Summary> = [0.1, 100.0].into_iter().filter_map(|value| Summary::of([value])).collect();
        let axis = Axis::of(&values, true);
        assert!((axis.place(1.0) - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!((axis.place(0.1), axis.place(100.0), axis.place(0.0)), (0.0, 1.0, 0.0));
    }
}
