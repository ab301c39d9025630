//! SVG figures: curves of medians with their intervals, stacked bars, and shares with their intervals.
//!
//! Pure. A page and a standalone file contain the same drawing. The file includes its style and legend,
//! while the figures of a page share a legend. Points that are not the server's figure are drawn too:
//! open for a lower bound, crossed out for an invalid run. Curves differ by marker shape as well as by
//! colour. The figure's description and the titles of its markers contain the values as text.

use std::collections::BTreeMap;
use std::fmt::Write;

use amped_measure::stats::Summary;

pub(crate) const CSS: &str = include_str!("../assets/figure.css");

/// A coordinate system with curves.
#[derive(Debug, Default)]
pub(crate) struct Plot {
    pub(crate) title: String,
    /// Title of the x axis, with unit.
    pub(crate) x_title: String,
    /// Title of the y axis, with unit.
    pub(crate) y_title: String,
    /// Scale of the x axis.
    pub(crate) x: Scale,
    /// Whether y is logarithmic; otherwise it starts at 0.
    pub(crate) y_logarithmic: bool,
    /// Curves; one without points still has a legend entry.
    pub(crate) curves: Vec<Curve>,
    /// A shaded range of x, with its label.
    pub(crate) band: Option<(f64, f64, String)>,
    /// Whether to draw the line y = x: the offered load.
    pub(crate) has_target: bool,
    /// Values that the x axis must include, so that figures side by side have the same axis.
    pub(crate) x_reach: Vec<f64>,
    /// The same for y.
    pub(crate) y_reach: Vec<f64>,
}

/// Placement of the legend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Legend {
    /// In the figure.
    Own,
    /// In the page, shared by several figures. A script hides curves by their index in `data-curve`.
    Shared,
}

/// Scale of an axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Scale {
    /// Starts at 0.
    #[default]
    Linear,
    /// Powers of ten.
    Logarithmic,
    /// Categories: a value is the index of its name, from 0.
    Names(Vec<String>),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Curve {
    /// Name in the legend.
    pub(crate) name: String,
    /// Points, in any order.
    pub(crate) points: Vec<Point>,
    /// Whether the curve is taken from a publication, not measured: drawn as a dashed line with crosses.
    pub(crate) printed: bool,
}

/// A point of a curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) x: f64,
    /// Median and interval.
    pub(crate) y: Summary,
    pub(crate) mark: Mark,
}

/// Validity of a point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mark {
    /// A valid figure of the server.
    #[default]
    Kept,
    /// A lower bound: the load generator reached its limit before the server did.
    AtLeast,
    /// From an invalid run.
    Invalid,
}

impl Mark {
    /// Name in descriptions.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mark::Kept => "valid",
            Mark::AtLeast => "at least",
            Mark::Invalid => "invalid",
        }
    }
}

/// Horizontal stacked bars.
#[derive(Debug, Default)]
pub(crate) struct Bars {
    pub(crate) title: String,
    /// Title of the x axis, with unit.
    pub(crate) x_title: String,
    /// Names of the parts, from left to right.
    pub(crate) parts: Vec<String>,
    /// Name of each bar, and the lengths of its parts.
    pub(crate) bars: Vec<(String, Vec<f64>)>,
}

/// Shares of a total with their intervals, as grouped horizontal bars.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    pub(crate) title: String,
    /// Title of each group, and its bars.
    pub(crate) groups: Vec<(String, Vec<Share>)>,
}

/// A bar of [`Shares`]; values from 0 to 1.
#[derive(Debug, Default)]
pub(crate) struct Share {
    pub(crate) name: String,
    /// Length of the bar.
    pub(crate) share: f64,
    pub(crate) interval: (f64, f64),
    /// A paler bar behind it, with its label.
    pub(crate) behind: Option<(f64, &'static str)>,
}

/// Wide enough to read on a phone; two fit side by side on a desktop.
const WIDTH: f64 = 560.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 58.0;
const TALL: f64 = 240.0;
const LINE: f64 = 20.0;
/// Numbers of marker shapes, and of colours in `figure.css`.
const SHAPES: usize = 4;
const COLOURS: usize = 8;
/// Longer names are truncated to fit the figure; tables show them in full.
const NAME_MAX: usize = 48;

/// Returns the figure as a standalone SVG file.
pub(crate) fn file(inside: &str) -> String {
    inside.replacen("><title", &format!(" xmlns=\"http://www.w3.org/2000/svg\"><style>{CSS}</style><title"), 1)
}

/// Draws curves. `id` must be unique within the page.
pub(crate) fn plot(id: &str, plot: &Plot, whose: Legend) -> String {
    let shown: Vec<Point> =
        plot.curves.iter().flat_map(|curve| curve.points.iter().copied()).filter(is_finite).collect();
    let ys = shown.iter().flat_map(|point| [point.y.low, point.y.high]).chain(plot.y_reach.iter().copied());
    let y_axis = Axis::of(ys, plot.y_logarithmic);
    let xs = shown.iter().map(|point| point.x).chain(plot.x_reach.iter().copied());
    let x_axis = match &plot.x {
        Scale::Linear => Axis::of(xs, false),
        Scale::Logarithmic => Axis::of(xs, true),
        Scale::Names(names) => Axis::names(names.len()),
    };
    let legend = legend(plot, &shown, whose);
    let bottom = TOP + TALL;
    let below = slant(&plot.x);
    let height = bottom + below + 52.0 + legend.len() as f64 * LINE + 8.0;
    let mut out = start(id, height, &plot.title, &description(plot));
    let x = |value: f64| LEFT + x_axis.place(value) * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| bottom - y_axis.place(value) * TALL;

    for tick in &y_axis.ticks {
        segment(&mut out, (LEFT, y(*tick)), (WIDTH - RIGHT, y(*tick)), "class=\"grid\"");
        text(&mut out, (LEFT - 8.0, y(*tick) + 4.0), "end", &number(*tick));
    }
    let mut free_from = f64::MIN;
    for tick in &x_axis.ticks {
        segment(&mut out, (x(*tick), bottom), (x(*tick), bottom + 5.0), "class=\"frame\"");
        let label = match &plot.x {
            Scale::Names(names) => {
                let name = names.get(*tick as usize).map_or("", String::as_str);
                if below > 0.0 { cut(name, SLANTED_MAX) } else { name.to_owned() }
            }
            Scale::Linear | Scale::Logarithmic => number(*tick),
        };
        if below > 0.0 {
            let (x, y) = (x(*tick) + 4.0, bottom + 16.0);
            let place =
                format!("x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"end\" transform=\"rotate(-30 {x:.1} {y:.1})\"");
            let _ = writeln!(out, "<text {place}>{}</text>", escaped(&label));
            continue;
        }
        let half = 4.0 * label.chars().count() as f64;
        if x(*tick) - half > free_from {
            text(&mut out, (x(*tick), bottom + 20.0), "middle", &label);
            free_from = x(*tick) + half;
        }
    }
    text(&mut out, ((LEFT + WIDTH - RIGHT) / 2.0, bottom + below + 40.0), "middle", &plot.x_title);
    // A rotated title beside the ticks would need space of its own; above the axis it is horizontal.
    text(&mut out, (8.0, TOP - 10.0), "start", &plot.y_title);

    if let Some((from, to, what)) = &plot.band {
        let (from, to) = (x(*from), x(*to));
        let _ = write!(
            out,
            "<rect class=\"band\" x=\"{from:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{TALL}\"><title>{}</title></rect>",
            (to - from).max(2.0),
            escaped(what)
        );
    }
    if plot.has_target && plot.x == Scale::Linear && !plot.y_logarithmic {
        let end = x_axis.high.min(y_axis.high);
        let style = "class=\"target\" stroke=\"currentColor\" stroke-dasharray=\"6 4\"";
        segment(&mut out, (x(0.0), y(0.0)), (x(end), y(end)), style);
    }
    segment(&mut out, (LEFT, TOP), (LEFT, bottom), "class=\"frame\"");
    segment(&mut out, (LEFT, bottom), (WIDTH - RIGHT, bottom), "class=\"frame\"");
    let mut measured = 0;
    for (at, curve) in plot.curves.iter().enumerate() {
        let shape = if curve.printed { SHAPES } else { measured % SHAPES };
        measured += usize::from(!curve.printed);
        let _ = write!(out, "<g class=\"c{}\" data-curve=\"{at}\">", colour(plot, at));
        // Offset sideways, so that equal curves do not hide each other.
        let count = plot.curves.len() as f64;
        let aside = (at as f64 - (count - 1.0) / 2.0) * (20.0 / count).min(5.0);
        draw(&mut out, curve, shape, &plot.x, |value| x(value) + aside, y);
        out += "</g>\n";
    }
    for (row, entries) in legend.iter().enumerate() {
        let y = bottom + below + 62.0 + row as f64 * LINE;
        entries.iter().for_each(|(x, entry)| entry.draw(&mut out, *x, y));
    }
    out + "</svg>\n"
}

/// The longest name that is drawn at a slant.
const SLANTED_MAX: usize = 24;

/// Returns the extra height of names below the axis: 0 if each fits between its neighbours;
/// otherwise they are slanted, and half as high as they are long.
fn slant(scale: &Scale) -> f64 {
    let Scale::Names(names) = scale else { return 0.0 };
    let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let room = (WIDTH - LEFT - RIGHT) / names.len().max(1) as f64;
    if longest as f64 * 7.5 + 8.0 <= room { 0.0 } else { longest.min(SLANTED_MAX) as f64 * 7.2 / 2.0 }
}

/// A published curve has the colour of the measured curve with the same index, to which it is compared.
fn colour(plot: &Plot, at: usize) -> usize {
    let printed = plot.curves[at].printed;
    plot.curves[..at].iter().filter(|curve| curve.printed == printed).count() % COLOURS
}

/// Whether a point can be drawn: excludes NaN, infinities and values beyond any figure of a server.
fn is_finite(point: &Point) -> bool {
    [point.x, point.y.low, point.y.median, point.y.high].iter().all(|value| value.abs() <= MOST)
}

const MOST: f64 = 1e15;

fn draw(out: &mut String, curve: &Curve, shape: usize, scale: &Scale, x: impl Fn(f64) -> f64, y: impl Fn(f64) -> f64) {
    let mut points: Vec<&Point> = curve.points.iter().filter(|point| is_finite(point)).collect();
    points.sort_by(|one, other| one.x.total_cmp(&other.x).then(one.mark.cmp(&other.mark)));
    // Invalid points are not part of the curve, and categories have no order for a line to follow.
    let (mut path, mut last) = (String::new(), f64::NAN);
    for point in points.iter().filter(|point| point.mark != Mark::Invalid && !matches!(scale, Scale::Names(_))) {
        // Of two points at the same x, the line uses the first, which has the better mark.
        if point.x.total_cmp(&last).is_eq() {
            continue;
        }
        last = point.x;
        let _ = write!(path, "{}{:.1} {:.1}", if path.is_empty() { 'M' } else { 'L' }, x(point.x), y(point.y.median));
    }
    if !path.is_empty() {
        let dash = if curve.printed { " stroke-dasharray=\"2 4\"" } else { "" };
        let _ = write!(out, "<path d=\"{path}\" fill=\"none\" stroke=\"currentColor\" stroke-width=\"2\"{dash}/>");
    }
    for Point { x: at, y: Summary { low, median, high, .. }, mark } in &points {
        // A point with a worse mark is drawn beside the better one.
        let is_alone = !points.iter().any(|other| other.x.total_cmp(at).is_eq() && other.mark != *mark);
        let aside = match mark {
            Mark::AtLeast if !is_alone => 9.0,
            Mark::Invalid if !is_alone => -9.0,
            Mark::Kept | Mark::AtLeast | Mark::Invalid => 0.0,
        };
        let (place, middle) = (x(*at) + aside, y(*median));
        let spread = if high > low { format!(" ({} to {})", number(*low), number(*high)) } else { String::new() };
        let name = match scale {
            Scale::Names(names) => names.get(*at as usize).cloned().unwrap_or_default(),
            Scale::Linear | Scale::Logarithmic => number(*at),
        };
        let title = format!("{}, {name}: {}{spread}, {}", curve.name, number(*median), mark.name());
        let _ = write!(out, "<g><title>{}</title>", escaped(&title));
        if high > low {
            let ends = format!("M{place:.1} {:.1}V{:.1}", y(*low), y(*high));
            let caps = [*low, *high].map(|end| format!("M{:.1} {:.1}h8", place - 4.0, y(end))).concat();
            let _ = write!(out, "<path d=\"{ends}{caps}\" stroke=\"currentColor\" stroke-width=\"1.5\"/>");
        }
        marker(out, shape, (place, middle), *mark);
        out.push_str("</g>");
    }
}

/// Draws a marker: filled, open, or open and crossed out.
fn marker(out: &mut String, shape: usize, (x, y): (f64, f64), mark: Mark) {
    let fill = if mark == Mark::Kept { "fill=\"currentColor\"" } else { "class=\"open\"" };
    let path = match shape {
        0 => format!("M{:.1} {y:.1}a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z", x - 4.5),
        1 => format!("M{:.1} {:.1}h8v8h-8z", x - 4.0, y - 4.0),
        2 => format!("M{x:.1} {:.1}l5 9h-10z", y - 5.5),
        3 => format!("M{x:.1} {:.1}l5.5 5.5l-5.5 5.5l-5.5 -5.5z", y - 5.5),
        _ => format!("M{:.1} {y:.1}h10M{x:.1} {:.1}v10", x - 5.0, y - 5.0),
    };
    let _ = write!(out, "<path d=\"{path}\" {fill} stroke=\"currentColor\" stroke-width=\"1.6\"/>");
    if mark == Mark::Invalid {
        let cross = format!("M{:.1} {:.1}l14 14m0 -14l-14 14", x - 7.0, y - 7.0);
        let _ = write!(out, "<path class=\"bad\" d=\"{cross}\" stroke=\"currentColor\" stroke-width=\"2\"/>");
    }
}

enum Entry {
    Curve { name: String, class: usize, shape: usize },
    Mark(Mark),
    Band(String),
    Offered,
}

impl Entry {
    fn name(&self) -> String {
        match self {
            Entry::Curve { name, .. } | Entry::Band(name) => cut(name, NAME_MAX),
            Entry::Mark(Mark::AtLeast) => "open: lower bound, limited by the client".to_owned(),
            Entry::Mark(_) => "crossed out: invalid run".to_owned(),
            Entry::Offered => "as offered".to_owned(),
        }
    }

    fn draw(&self, out: &mut String, x: f64, y: f64) {
        let (middle, end) = (y - 4.0, x + 24.0);
        match self {
            Entry::Curve { class, shape, .. } => {
                let dash = if *shape == SHAPES { " stroke-dasharray=\"2 4\"" } else { "" };
                let line =
                    format!("d=\"M{x:.1} {middle:.1}H{end:.1}\" stroke=\"currentColor\" stroke-width=\"2\"{dash}");
                let _ = write!(out, "<g class=\"c{class}\"><path {line}/>");
                marker(out, *shape, (x + 12.0, middle), Mark::Kept);
                out.push_str("</g>");
            }
            Entry::Mark(mark) => marker(out, 0, (x + 12.0, middle), *mark),
            Entry::Band(_) => {
                let place = format!("x=\"{x:.1}\" y=\"{:.1}\" width=\"24\" height=\"12\"", y - 10.0);
                let _ = write!(out, "<rect class=\"band\" {place}/>");
            }
            Entry::Offered => {
                segment(
                    out,
                    (x, middle),
                    (end, middle),
                    "class=\"target\" stroke=\"currentColor\" stroke-dasharray=\"6 4\"",
                );
            }
        }
        text(out, (x + 30.0, y), "start", &self.name());
    }
}

/// Lays out the legend entries in rows, each with its x position.
fn legend(plot: &Plot, shown: &[Point], whose: Legend) -> Vec<Vec<(f64, Entry)>> {
    let mut measured = 0;
    let mut entries: Vec<Entry> = Vec::new();
    for (at, curve) in plot.curves.iter().enumerate() {
        let shape = if curve.printed { SHAPES } else { measured % SHAPES };
        measured += usize::from(!curve.printed);
        if whose == Legend::Own {
            entries.push(Entry::Curve { name: curve.name.clone(), class: colour(plot, at), shape });
        }
    }
    if plot.has_target {
        entries.push(Entry::Offered);
    }
    entries.extend(plot.band.iter().map(|(.., what)| Entry::Band(what.clone())));
    for mark in [Mark::AtLeast, Mark::Invalid] {
        if shown.iter().any(|point| point.mark == mark) {
            entries.push(Entry::Mark(mark));
        }
    }
    rows(entries, |entry| 30.0 + 7.2 * entry.name().chars().count() as f64 + 16.0)
}

/// Breaks items into rows as wide as the figure.
fn rows<T>(items: Vec<T>, width: impl Fn(&T) -> f64) -> Vec<Vec<(f64, T)>> {
    let mut rows: Vec<Vec<(f64, T)>> = Vec::new();
    let mut x = f64::MAX;
    for item in items {
        let wide = width(&item);
        if x + wide > WIDTH {
            rows.push(Vec::new());
            x = LEFT;
        }
        if let Some(row) = rows.last_mut() {
            row.push((x, item));
        }
        x += wide;
    }
    rows
}

/// Describes the figure as text.
fn description(plot: &Plot) -> String {
    let mut text = format!("{} over {}.", plot.y_title, plot.x_title);
    for curve in &plot.curves {
        let mut points: Vec<&Point> = curve.points.iter().filter(|point| is_finite(point)).collect();
        points.sort_by(|one, other| one.x.total_cmp(&other.x));
        let most = points.iter().max_by(|one, other| one.y.median.total_cmp(&other.y.median));
        let (Some(first), Some(last), Some(most)) = (points.first(), points.last(), most) else {
            let _ = write!(text, " {}: no points.", curve.name);
            continue;
        };
        let at = |point: &Point| match &plot.x {
            Scale::Names(names) => {
                format!("{} at {}", number(point.y.median), names.get(point.x as usize).map_or("", String::as_str))
            }
            Scale::Linear | Scale::Logarithmic => format!("{} at {}", number(point.y.median), number(point.x)),
        };
        let _ = write!(text, " {}: from {} to {}, at most {}", curve.name, at(first), at(last), at(most));
        let mut marks: BTreeMap<Mark, usize> = BTreeMap::new();
        points.iter().for_each(|point| *marks.entry(point.mark).or_default() += 1);
        for (mark, count) in marks.iter().filter(|(mark, _)| **mark != Mark::Kept) {
            let _ = write!(text, "; {count} {}", mark.name());
        }
        text.push('.');
    }
    if let Some((from, to, what)) = &plot.band {
        let _ = write!(text, " {what}: between {} and {}.", number(*from), number(*to));
    }
    text
}

/// Draws stacked bars.
pub(crate) fn bars(id: &str, bars: &Bars) -> String {
    const BAR: f64 = 28.0;
    let longest = bars.bars.iter().map(|(name, _)| name.chars().count().min(NAME_MAX)).max().unwrap_or_default();
    let left = (7.2 * longest as f64 + 20.0).clamp(LEFT, WIDTH / 2.0);
    let wholes = bars.bars.iter().map(|(_, parts)| parts.iter().sum::<f64>());
    let axis = Axis::of(wholes, false);
    let legend = rows(bars.parts.iter().enumerate().collect(), |(_, name): &(usize, &String)| {
        20.0 + 7.2 * name.chars().count().min(NAME_MAX) as f64 + 18.0
    });
    let bottom = TOP + bars.bars.len() as f64 * BAR;
    let described: Vec<String> = bars
        .bars
        .iter()
        .map(|(name, parts)| {
            let most = parts.iter().zip(&bars.parts).max_by(|one, other| one.0.total_cmp(other.0));
            let most =
                most.map_or_else(String::new, |(part, name)| format!(", most of it {name} with {}", number(*part)));
            format!("{name}: {}{most}.", number(parts.iter().sum()))
        })
        .collect();
    let described = format!("{} {}", bars.x_title, described.join(" "));
    let mut out = start(id, bottom + 52.0 + legend.len() as f64 * LINE + 8.0, &bars.title, &described);
    let x = |value: f64| left + axis.place(value) * (WIDTH - RIGHT - left);
    for tick in &axis.ticks {
        segment(&mut out, (x(*tick), TOP), (x(*tick), bottom), "class=\"grid\"");
        text(&mut out, (x(*tick), bottom + 18.0), "middle", &number(*tick));
    }
    text(&mut out, ((left + WIDTH - RIGHT) / 2.0, bottom + 38.0), "middle", &bars.x_title);
    for (at, (name, parts)) in bars.bars.iter().enumerate() {
        let y = TOP + at as f64 * BAR;
        text(&mut out, (left - 8.0, y + 18.0), "end", &cut(name, NAME_MAX));
        let mut from = 0.0;
        for (part, (length, what)) in parts.iter().zip(&bars.parts).enumerate() {
            let (begin, end) = (x(from), x(from + length));
            let text = escaped(&format!("{name}, {what}: {}", number(*length)));
            let _ = write!(
                out,
                "<g class=\"c{}\"><rect x=\"{begin:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{}\" fill=\"currentColor\"><title>{text}</title></rect></g>",
                part % COLOURS,
                y + 4.0,
                // A gap between neighbours, for readers who cannot tell their colours apart.
                (end - begin - 1.0).max(0.0),
                BAR - 8.0
            );
            from += length;
        }
        out.push('\n');
    }
    segment(&mut out, (left, TOP), (left, bottom), "class=\"frame\"");
    for (row, entries) in legend.iter().enumerate() {
        let y = bottom + 62.0 + row as f64 * LINE;
        for (x, (part, name)) in entries {
            let place = format!("x=\"{x:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\"", y - 10.0);
            let _ = write!(out, "<g class=\"c{}\"><rect {place} fill=\"currentColor\"/></g>", part % COLOURS);
            text(&mut out, (x + 18.0, y), "start", &cut(name, NAME_MAX));
        }
    }
    out + "</svg>\n"
}

/// Draws shares.
pub(crate) fn shares(id: &str, shares: &Shares) -> String {
    const BAR: f64 = 22.0;
    // Leaves room for the longest label behind the longest bar.
    const LABEL: f64 = 180.0;
    let names = shares.groups.iter().flat_map(|(_, bars)| bars).map(|bar| bar.name.chars().count().min(NAME_MAX));
    let left = (7.2 * names.max().unwrap_or_default() as f64 + 20.0).clamp(LEFT, WIDTH / 2.0);
    let x = |share: f64| left + share.clamp(0.0, 1.0) * (WIDTH - RIGHT - LABEL - left);
    let lines: usize = shares.groups.iter().map(|(_, bars)| bars.len() + 2).sum();
    let described: Vec<String> = shares
        .groups
        .iter()
        .filter_map(|(title, bars)| bars.first().map(|bar| format!("{title}: {}, {}.", bar.name, percent(bar.share))))
        .collect();
    let mut out = start(id, TOP + lines.saturating_sub(1) as f64 * BAR - BAR, &shares.title, &described.join(" "));
    let mut y = TOP - BAR;
    for (title, bars) in &shares.groups {
        let _ = writeln!(out, "<text x=\"8\" y=\"{:.1}\" font-weight=\"bold\">{}</text>", y + 15.0, escaped(title));
        y += BAR;
        for bar in bars {
            share(&mut out, bar, (left, y), &x);
            y += BAR;
        }
        y += BAR;
    }
    out + "</svg>\n"
}

/// Draws a bar, with its name on the left and its figures behind it.
fn share(out: &mut String, bar: &Share, (left, y): (f64, f64), x: &impl Fn(f64) -> f64) {
    const THICK: f64 = 16.0;
    let (low, high) = bar.interval;
    let mut label = percent(bar.share);
    // Label the paler bar too; otherwise its end would seem to belong to the number next to it.
    let behind = bar.behind.filter(|(behind, _)| *behind > bar.share);
    if let Some((behind, what)) = behind {
        let _ = write!(label, ", {} {what}", percent(behind));
    }
    let title = format!("{}: {label} ({} to {})", bar.name, percent(low), percent(high));
    let _ = write!(out, "<g class=\"c0\"><title>{}</title>", escaped(&title));
    for (length, opacity) in behind.map(|(behind, _)| (behind, 0.35)).into_iter().chain([(bar.share, 1.0)]) {
        let place =
            format!("x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{THICK}\"", y + 3.0, x(length) - left);
        let _ = write!(out, "<rect {place} fill=\"currentColor\" fill-opacity=\"{opacity}\"/>");
    }
    out.push_str("</g>");
    let middle = y + 3.0 + THICK / 2.0;
    segment(out, (x(low), middle), (x(high), middle), "stroke=\"currentColor\"");
    text(out, (left - 8.0, y + 15.0), "end", &cut(&bar.name, NAME_MAX));
    text(out, (x(high.max(behind.map_or(0.0, |(behind, _)| behind))) + 6.0, y + 15.0), "start", &label);
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn start(id: &str, height: f64, title: &str, described: &str) -> String {
    let size = format!("width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\"");
    let names = format!("role=\"img\" aria-labelledby=\"{id}-title {id}-text\"");
    let mut out = format!("<svg class=\"figure\" {size} {names}><title id=\"{id}-title\">{}</title>", escaped(title));
    let _ = writeln!(out, "<desc id=\"{id}-text\">{}</desc>", escaped(described));
    let _ = writeln!(out, "<rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\"/>");
    // Truncated to fit the figure; the title element has the full text.
    let shown = escaped(&cut(title, 70));
    let _ = writeln!(out, "<text x=\"8\" y=\"20\" font-weight=\"bold\">{shown}</text>");
    out
}

fn segment(out: &mut String, from: (f64, f64), to: (f64, f64), style: &str) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = writeln!(out, "<path d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\" {style}/>");
}

fn text(out: &mut String, (x, y): (f64, f64), anchor: &str, inside: &str) {
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", escaped(inside));
}

/// Escapes text for XML and removes control characters, which XML does not allow.
fn escaped(text: &str) -> String {
    let plain = |c: char| match c {
        '\u{fffe}' | '\u{ffff}' => '\u{fffd}',
        c if c.is_control() => ' ',
        c => c,
    };
    let text: String = text.chars().map(plain).collect();
    maud::html! { (text) }.into_string()
}

/// Truncates text to `most` characters.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// Returns the sign of the measured curve with this index as text: its colour class, and its marker.
pub(crate) fn sign(at: usize) -> (String, char) {
    (format!("c{}", at % COLOURS), ['●', '■', '▲', '◆'][at % SHAPES])
}

/// Formats a number with three digits; thousands as k, millions as M.
pub(crate) fn number(value: f64) -> String {
    // Turns -0 into 0.
    let value = value + 0.0;
    let size = value.abs();
    let (scaled, unit) = match size {
        size if !size.is_finite() => return "–".to_owned(),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = if scaled == 0.0 { 0 } else { (2 - scaled.abs().log10().floor() as i32).clamp(0, 9) as usize };
    let text = format!("{scaled:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

/// An axis: maps values to 0..1, and has labelled ticks.
struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    ticks: Vec<f64>,
}

impl Axis {
    /// An axis for all these values, from 0 or from the power of ten below.
    fn of(values: impl Iterator<Item = f64>, logarithmic: bool) -> Axis {
        let values: Vec<f64> = values.filter(|value| (1.0 / MOST..=MOST).contains(value)).collect();
        let most = values.iter().copied().fold(0.0, f64::max);
        if most <= 0.0 {
            return Axis { low: if logarithmic { 0.1 } else { 0.0 }, high: 1.0, logarithmic, ticks: vec![1.0] };
        }
        if logarithmic {
            let least = values.iter().copied().fold(most, f64::min);
            let from = (least.log10() + 1e-9).floor() as i32;
            let to = ((most.log10() - 1e-9).ceil() as i32).max(from + 1);
            // With two or three powers of ten there is room for more labels.
            let parts: &[f64] = if to - from <= 3 { &[1.0, 2.0, 5.0] } else { &[1.0] };
            let named = (from..to).flat_map(|power| parts.iter().map(move |part| part * 10f64.powi(power)));
            let ticks = named.chain([10f64.powi(to)]).collect();
            return Axis { low: 10f64.powi(from), high: 10f64.powi(to), logarithmic, ticks };
        }
        // Steps of 1, 2 or 5 times a power of ten, to keep ticks few.
        let power = 10f64.powf((most / 5.0).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|part| part * power).into_iter().find(|step| most / step <= 7.0);
        let step = step.unwrap_or(most);
        let count = (most / step - 1e-9).ceil().max(1.0) as usize;
        let ticks = (0..=count).map(|n| n as f64 * step).collect();
        Axis { low: 0.0, high: count as f64 * step, logarithmic, ticks }
    }

    /// An axis for names, each centred in its own interval.
    fn names(count: usize) -> Axis {
        let ticks = (0..count).map(|at| at as f64).collect();
        Axis { low: -0.5, high: count.max(1) as f64 - 0.5, logarithmic: false, ticks }
    }

    fn place(&self, value: f64) -> f64 {
        let place = if self.logarithmic {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        place.clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(x: f64, values: &[f64], mark: Mark) -> Point {
        Point { x, y: Summary::of(values.iter().copied()).unwrap(), mark }
    }

    fn sample() -> Plot {
        let points = vec![
            at(100.0, &[99.0, 100.0], Mark::Kept),
            at(200.0, &[150.0], Mark::AtLeast),
            at(300.0, &[120.0], Mark::Invalid),
        ];
        Plot {
            title: "rates".to_owned(),
            x_title: "target".to_owned(),
            y_title: "per second".to_owned(),
            curves: vec![
                Curve { name: "replies".to_owned(), points, printed: false },
                Curve { name: "paper".to_owned(), points: vec![at(100.0, &[90.0], Mark::Kept)], printed: true },
            ],
            band: Some((150.0, 200.0, "knee".to_owned())),
            has_target: true,
            ..Plot::default()
        }
    }

    #[test]
    fn every_point_is_drawn_with_its_validity() {
        let svg = plot("f", &sample(), Legend::Own);
        for text in [
            "replies, 100: 99.5 (99 to 100), valid",
            "replies, 200: 150, at least",
            "replies, 300: 120, invalid",
            "paper, 100: 90, valid",
            "1 at least; 1 invalid",
            "open: lower bound",
            "crossed out:",
            "knee: between 150 and 200.",
        ] {
            assert!(svg.contains(text), "{text} is not in {svg}");
        }
        // Two open markers besides the two of the legend; each cross is counted in both as well.
        assert_eq!((svg.matches("class=\"open\"").count(), svg.matches("class=\"bad\"").count()), (4, 2));
        // An infinite value at the end of a curve is not drawn.
        let path = svg.split("<path d=\"M").find(|part| part.contains("stroke-width=\"2\"/>")).unwrap();
        assert_eq!(path.split_once('"').unwrap().0.matches('L').count(), 1, "{path}");
    }

    #[test]
    fn names_below_axis_are_whole_if_they_have_room() {
        let named = |names: &[&str]| {
            let names = names.iter().map(|&name| name.to_owned()).collect();
            plot("f", &Plot { x: Scale::Names(names), ..sample() }, Legend::Own)
        };
        assert!(named(&["local", "10 times the local copies"]).contains(">10 times the local copies</text>"));
        let crowded = named(&["one", "two", "three", "four", "10 times the local copies"]);
        assert!(crowded.contains(">10 times the local copi…</text>"), "{crowded}");
    }

    #[test]
    fn shared_legend_keeps_marks_and_numbers_curves() {
        let (own, shared) = (plot("f", &sample(), Legend::Own), plot("f", &sample(), Legend::Shared));
        assert!(own.contains(">replies</text>") && !shared.contains(">replies</text>"), "{shared}");
        assert!(shared.contains("data-curve=\"0\"") && shared.contains("data-curve=\"1\""), "{shared}");
        assert!(shared.contains("open: lower bound") && shared.contains(">as offered<"), "{shared}");
    }

    #[test]
    fn axes_include_reach_of_other_figures() {
        let alone = plot("f", &Plot { band: None, ..sample() }, Legend::Own);
        let reach = Plot { band: None, x_reach: vec![900.0], y_reach: vec![4000.0], ..sample() };
        let (alone, reaching) = (alone, plot("f", &reach, Legend::Own));
        for tick in [">800</text>", ">4000</text>"] {
            assert!(!alone.contains(tick) && reaching.contains(tick), "{tick}: {reaching}");
        }
    }

    #[test]
    fn standalone_svg_has_namespace_and_style() {
        let inside = plot("f", &sample(), Legend::Own);
        assert!(!inside.contains("xmlns") && !inside.contains("<style>"));
        let own = file(&inside);
        assert!(
            own.starts_with("<svg class=\"figure\"") && own.contains("xmlns=\"http://www.w3.org/2000/svg\"><style>")
        );
        assert!(own.contains("prefers-color-scheme: dark") && own.matches("<style>").count() == 1);
    }

    #[test]
    fn bars_show_all_parts() {
        let drawn = bars(
            "b",
            &Bars {
                title: "CPU".to_owned(),
                x_title: "percent".to_owned(),
                parts: vec!["user".to_owned(), "tcp".to_owned()],
                bars: vec![("1000/s".to_owned(), vec![25.0, 75.0]), ("2000/s".to_owned(), vec![50.0, 50.0])],
            },
        );
        for text in ["1000/s, user: 25", "1000/s, tcp: 75", "2000/s, tcp: 50", "most of it tcp with 75"] {
            assert!(drawn.contains(text), "{text} is not in {drawn}");
        }
        // Three quarters of the total are three times as long as one quarter, apart from the gaps.
        let widths: Vec<f64> = drawn
            .split("<rect x=")
            .filter(|part| part.contains("<title>"))
            .map(|part| part.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect();
        assert!(((widths[1] + 1.0) / (widths[0] + 1.0) - 3.0).abs() < 0.01, "{widths:?}");
    }

    #[test]
    fn numbers_and_ticks_are_rounded() {
        for (value, expected) in [
            (0.0, "0"),
            (0.01234, "0.0123"),
            (1.0, "1"),
            (99.96, "100"),
            (1234.4, "1234"),
            (12_345.0, "12.3k"),
            (2.5e6, "2.5M"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(number(value), expected);
        }
        let check = |values: &[f64], logarithmic, expected: &[&str]| {
            let axis = Axis::of(values.iter().copied(), logarithmic);
            assert_eq!(axis.ticks.iter().map(|tick| number(*tick)).collect::<Vec<_>>(), expected, "{values:?}");
        };
        check(&[3.0, 4.9], false, &["0", "1", "2", "3", "4", "5"]);
        check(&[10_000.0], false, &["0", "2000", "4000", "6000", "8000", "10k"]);
        check(&[0.2, 30.0], true, &["0.1", "0.2", "0.5", "1", "2", "5", "10", "20", "50", "100"]);
        check(&[1.0, 1e5], true, &["1", "10", "100", "1000", "10k", "100k"]);
        check(&[], false, &["1"]);
        check(&[f64::INFINITY, -1.0], true, &["1"]);
    }

    proptest! {
        /// With any names and values, the figure is one element and its texts stay text.
        #[test]
        fn any_names_and_values_are_drawn(
            name in "\\PC{0,80}|.*</(text|title|svg|script)>.*",
            values in prop::collection::vec(prop::num::f64::ANY, 0..6),
            logarithmic: bool,
        ) {
            let points = values.iter().map(|value| at(*value, &[*value], Mark::Kept)).collect();
            let curves = vec![Curve { name: name.clone(), points, printed: false }];
            let (title, x_title, y_title) = (name.clone(), name.clone(), name.clone());
            let x = if logarithmic { Scale::Logarithmic } else { Scale::Names(vec![name.clone(); 3]) };
            let drawn = plot("f", &Plot { title, x_title, y_title, x, curves, y_logarithmic: logarithmic, ..Plot::default() }, Legend::Own);
            let drawn_bars = bars("f", &Bars { title: name.clone(), bars: vec![(name.clone(), vec![1.0])], parts: vec![name], ..Bars::default() });
            for svg in [drawn, drawn_bars] {
                prop_assert_eq!((svg.matches("<svg").count(), svg.matches("</svg>").count()), (1, 1));
                prop_assert!(!svg.contains("<script") && !svg.contains("NaN") && !svg.contains("inf"), "{}", svg);
                // Each element that has an end tag has as many of them as start tags.
                for element in ["g", "text", "title", "desc"] {
                    let begun = svg.matches(&format!("<{element}>")).count() + svg.matches(&format!("<{element} ")).count();
                    prop_assert_eq!(begun, svg.matches(&format!("</{element}>")).count(), "{}", element);
                }
            }
        }
    }
}
