//! A profile as people see it: bars in a terminal, an SVG, one page of HTML without anything from elsewhere, and the folded
//! stacks that flame graph programs read.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;

use super::tally::Row;
use super::{Profile, Share, Syscalls};

/// Bars in a terminal, each with its interval and, for contexts, with all that ran inside.
pub fn text(profile: &Profile) -> String {
    let mut text = format!(
        "{}: {} samples of {} in {:.1} s, {} processors at {} Hz ({} expected, {} lost)\n",
        profile.whose,
        chosen(profile),
        profile.samples,
        profile.seconds,
        profile.processors,
        profile.frequency,
        profile.expected,
        profile.lost
    );
    for (title, rows) in views(profile) {
        let is_nested = rows.iter().any(|row| row.around.is_some());
        let inside = if is_nested { "  with all inside" } else { "" };
        let _ = writeln!(text, "\n{title:<32}  share   95 % interval{inside}");
        for row in rows.iter() {
            let (share, percent) = (row.share, 100.0);
            let around = row.around.map_or_else(String::new, |around| format!("{:7.1} %  ", around.share * percent));
            let bar = "█".repeat((share.share * 40.0).round() as usize);
            let line = format!(
                "  {:<28} {:6.1} %  {:5.1} .. {:5.1}  {around:<11} {bar}",
                end_of(&row.name, 28),
                share.share * percent,
                share.low * percent,
                share.high * percent
            );
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }
    let _ = writeln!(
        text,
        "\nin functions of the kernel that are not known: {:.1} %; the sampler itself used {:.2} % of a processor, of \
         {} % that it may",
        profile.unknown.share * 100.0,
        profile.own_cpu * 100.0,
        (profile.budget * 1e4).round() / 1e2
    );
    let _ = writeln!(text, "{}", told_by(profile));
    let rested = profile.seconds - profile.sampled_seconds;
    // Emptying the rings takes a moment as well.
    if rested > 0.1 * profile.seconds {
        let _ = writeln!(text, "it rested for {rested:.1} s to keep to that: lower --frequency, or raise --budget");
    }
    for line in &profile.missing {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// By what system calls were told apart.
fn told_by(profile: &Profile) -> &'static str {
    match profile.syscalls {
        Syscalls::Number => "system calls are told apart by their numbers, which a BPF program read",
        Syscalls::Chain => "system calls are told apart by call chains, by which some have no name",
    }
}

/// Folded stacks: a chain a line, a blank, and how often.
pub fn folded(profile: &Profile) -> String {
    profile.stacks.iter().fold(String::new(), |mut text, stack| {
        let _ = writeln!(text, "{} {}", stack.frames, stack.samples);
        text
    })
}

fn chosen(profile: &Profile) -> u64 {
    profile.categories.iter().map(|row| row.share.samples).sum()
}

fn views(profile: &Profile) -> [(&'static str, Cow<'_, [Row]>); 4] {
    [
        ("who ran, of all", Cow::Borrowed(&profile.who)),
        ("in which function of the program", first_functions(profile)),
        ("what for, by innermost context", Cow::Borrowed(&profile.contexts)),
        ("doing what, by category", Cow::Borrowed(&profile.categories)),
    ]
}

/// The functions with the largest shares, and what remains for all others.
fn first_functions(profile: &Profile) -> Cow<'_, [Row]> {
    const FUNCTIONS: usize = 12;
    let Some((first, others)) = profile.functions.split_at_checked(FUNCTIONS).filter(|(_, others)| others.len() > 1)
    else {
        return Cow::Borrowed(&profile.functions);
    };
    let samples = others.iter().map(|row| row.share.samples).sum();
    let others =
        Row { name: "all other functions".to_owned(), share: Share::of(samples, chosen(profile)), around: None };
    Cow::Owned([first, &[others]].concat())
}

/// The last `length` characters of a name, as the first ones of a function's are those of its module or its arguments.
fn end_of(name: &str, length: usize) -> Cow<'_, str> {
    match name.char_indices().rev().nth(length - 1) {
        Some((at, _)) if at > 0 => Cow::Owned(
            name[at..].chars().skip(1).fold("…".to_owned(), |end, letter| end + letter.encode_utf8(&mut [0; 4])),
        ),
        _ => Cow::Borrowed(name),
    }
}

/// With room for the longest label behind the longest bar.
const WIDTH: usize = 890;
const ROW: usize = 22;
const LEFT: f64 = 240.0;
const SCALE: f64 = 420.0;

/// The views as horizontal bars; whiskers are the intervals, and a pale bar is all that ran inside.
pub fn svg(profile: &Profile) -> String {
    let rows: usize = views(profile).iter().map(|(_, rows)| rows.len() + 2).sum();
    let height = (rows + 1) * ROW;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\" \
         fill=\"white\"/>\n"
    );
    let mut y = ROW;
    for (title, rows) in views(profile) {
        let _ = writeln!(svg, "<text x=\"10\" y=\"{}\" font-weight=\"bold\">{}</text>", y + 15, escape(title));
        y += ROW;
        for row in rows.iter() {
            let at = |share: f64| LEFT + share * SCALE;
            let (text, middle) = (y + 15, y + ROW / 2);
            let _ = writeln!(
                svg,
                "<text x=\"{:.0}\" y=\"{text}\" text-anchor=\"end\">{}</text>",
                LEFT - 8.0,
                escape(&end_of(&row.name, 32))
            );
            // What is in a pale bar is said too, or its end would seem to stand for the number beside it.
            let mut label = format!("{:.1} %", row.share.share * 100.0);
            if let Some(around) = row.around {
                if around.samples > row.share.samples {
                    let _ = write!(label, ", {:.1} % with all inside", around.share * 100.0);
                }
                let _ = bar(&mut svg, y, around.share, "class=\"around\" fill=\"#c6dbef\"");
            }
            let _ = bar(&mut svg, y, row.share.share, "fill=\"#3182bd\"");
            let _ = writeln!(
                svg,
                "<path d=\"M{:.1} {middle}H{:.1}\" stroke=\"black\"/><text x=\"{:.0}\" y=\"{text}\">{label}</text>",
                at(row.share.low),
                at(row.share.high),
                at(row.share.high.max(row.around.map_or(0.0, |around| around.share))) + 6.0
            );
            y += ROW;
        }
        y += ROW;
    }
    svg.push_str("</svg>\n");
    svg
}

fn bar(svg: &mut String, y: usize, share: f64, fill: &str) -> std::fmt::Result {
    let height = ROW - 6;
    writeln!(svg, "<rect x=\"{LEFT}\" y=\"{}\" width=\"{:.1}\" height=\"{height}\" {fill}/>", y + 3, share * SCALE)
}

/// The picture has colours of its own, for paper; in a page they are those that the reader prefers.
const STYLE: &str = "\
:root { color-scheme: light dark }
body { font-family: sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }
svg { max-width: 100%; height: auto }
#flame { position: relative; overflow: hidden; background: #f3f3f3 }
#flame button { position: absolute; height: 17px; padding: 0 3px; border: 0; border-right: 1px solid #ffffff; text-align: left;
  font: 11px/17px sans-serif; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; background: #f4a259; color: #1a1a1a; cursor: pointer }
#flame button.found { background: #8e7cc3; color: #ffffff }
#flame button[hidden] { display: none }
td, th { vertical-align: top; text-align: left; padding-right: 1em }
@media screen and (prefers-color-scheme: dark) {
  body { background: #16181c; color: #e4e6ea }
  svg .paper { fill: #16181c }
  svg text { fill: #e4e6ea }
  svg path { stroke: #ffffff }
  svg .around { fill: #41566b }
}
";

/// A function in the chains: how often it was there, and what it called.
#[derive(Default)]
struct Node<'a> {
    samples: u64,
    calls: BTreeMap<&'a str, Node<'a>>,
}

/// Click: a frame has the whole width. Search: frames that hold the text are marked, and their share is told.
const FLAME_SCRIPT: &str = "\
const frames = [...document.querySelectorAll('#flame button')];
const of = frame => [Number(frame.dataset.left), Number(frame.dataset.width)];
for (const chosen of frames) chosen.addEventListener('click', () => {
  const [from, whole] = of(chosen);
  for (const frame of frames) {
    const [left, width] = of(frame);
    const start = Math.max(left, from), end = Math.min(left + width, from + whole);
    frame.hidden = end - start < whole / 1e4;
    frame.style.left = (start - from) / whole * 100 + '%';
    frame.style.width = (end - start) / whole * 100 + '%';
  }
});
document.getElementById('search').addEventListener('input', event => {
  const text = event.target.value.toLowerCase();
  let share = 0, end = -1;
  const hits = frames.filter(frame => frame.classList.toggle('found', text !== '' && frame.textContent.toLowerCase().includes(text)));
  // A frame within one that is counted is counted with it.
  for (const [left, width] of hits.map(of).sort((one, other) => one[0] - other[0] || other[1] - one[1])) {
    if (left < end - 1e-6) continue;
    share += width;
    end = left + width;
  }
  document.getElementById('found').textContent = text === '' ? '' : share.toFixed(1) + ' % of the samples';
});
";

/// The chains as a flame graph: the caller below what it calls, as wide as its share of the samples.
fn flame(profile: &Profile) -> String {
    const LINE: usize = 18;
    let mut root = Node::default();
    for stack in &profile.stacks {
        root.samples += stack.samples;
        let mut node = &mut root;
        for frame in stack.frames.split(';') {
            node = node.calls.entry(frame).or_default();
            node.samples += stack.samples;
        }
    }
    let whole = root.samples.max(1) as f64;
    // Not by recursion: chains may be as deep as a record says.
    let mut waiting = vec![("all", &root, 0.0, 0)];
    let (mut frames, mut deepest) = (String::new(), 0);
    while let Some((name, node, left, depth)) = waiting.pop() {
        let width = node.samples as f64 / whole * 100.0;
        // Narrower ones are not seen, and make the page large.
        if width < 0.02 {
            continue;
        }
        deepest = deepest.max(depth);
        let (name, bottom) = (escape(name), depth * LINE);
        let _ = writeln!(
            frames,
            "<button style=\"left:{left:.4}%;width:{width:.4}%;bottom:{bottom}px\" data-left=\"{left:.4}\" data-width=\"{width:.4}\" \
             title=\"{name}: {} samples, {width:.2} %\">{name}</button>",
            node.samples
        );
        let mut from = left;
        for (called, inner) in &node.calls {
            waiting.push((called, inner, from, depth + 1));
            from += inner.samples as f64 / whole * 100.0;
        }
    }
    format!(
        "<h2>Flame graph</h2>\n<p>A frame is as wide as its share of the samples; its callers are below. Click a frame to zoom, the \
         lowest one for all. The program's functions are below those of the kernel. A program without frame pointers has chains that \
         are cut; code without names is its file in brackets.</p>\n\
         <p><label>Search <input id=\"search\" type=\"search\"></label> <span id=\"found\"></span></p>\n\
         <div id=\"flame\" style=\"height:{}px\">\n{frames}</div>\n<script>\n{FLAME_SCRIPT}</script>\n",
        (deepest + 1) * LINE
    )
}

/// One page, with the picture, the flame graph and the most frequent chains.
pub fn html(profile: &Profile) -> String {
    const STACKS: usize = 50;
    let mut rows = String::new();
    for stack in profile.stacks.iter().take(STACKS) {
        let frames = escape(&stack.frames).replace(';', "; <wbr>");
        let _ = writeln!(rows, "<tr><td>{}</td><td><code>{frames}</code></td></tr>", stack.samples);
    }
    let (picture, flame) = (svg(profile), flame(profile));
    let (whose, unknown) = (escape(&profile.whose), profile.unknown.share * 100.0);
    let Profile { seconds, processors, frequency, samples, expected, lost, own_cpu, budget, .. } = profile;
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>Profile of {whose}</title>\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<style>{STYLE}</style>\n\
         <h1>Profile of {whose}</h1>\n<p>{} samples of {samples}, in {seconds:.1} s, {processors} processors at \
         {frequency} Hz; {expected} expected, {lost} lost. In functions of the kernel that are not known: {unknown:.1} %. The \
         sampler used {:.2} % of a processor, of {} % that it may. Whiskers are intervals of 95 %; a pale bar is a context with all that ran \
         inside; {}.</p>\n{picture}{flame}<h2>The most frequent chains</h2>\n<table>\n<tr><th>samples</th><th>chain</th></tr>\n\
         {rows}</table>\n</html>\n",
        chosen(profile),
        own_cpu * 100.0,
        (budget * 1e4).round() / 1e2,
        told_by(profile)
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Share, Stack};

    fn profile() -> Profile {
        let row = |name: &str, samples, around: Option<u64>| Row {
            name: name.to_owned(),
            share: Share::of(samples, 100),
            around: around.map(|samples| Share::of(samples, 100)),
        };
        Profile {
            whose: "process 7".into(),
            seconds: 2.0,
            sampled_seconds: 1.5,
            frequency: 199,
            processors: 2,
            samples: 400,
            expected: 796,
            lost: 0,
            who: vec![row("idle", 100, None)],
            contexts: vec![row("user", 60, Some(60)), row("writev", 10, Some(40))],
            syscalls: Syscalls::Chain,
            functions: (0..20).map(|number| row(&format!("{}::f{number}", "module".repeat(9)), 5, Some(5))).collect(),
            categories: vec![row("a & b <c>", 100, None)],
            unknown: Share::of(0, 100),
            own_cpu: 0.001,
            budget: 0.005,
            missing: vec!["something".into()],
            stacks: vec![Stack { frames: "nginx;[user]".into(), samples: 60 }],
        }
    }

    #[test]
    fn bars_with_intervals() {
        let text = text(&profile());
        let line = text.lines().find(|line| line.contains("writev")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[..8], ["writev", "10.0", "%", "5.5", "..", "17.4", "40.0", "%"]);
        assert_eq!(words[8].chars().count(), 4);
        assert!(text.contains("something") && text.contains("796 expected"), "{text}");
        assert!(text.contains("told apart by call chains"), "{text}");
        assert!(text.contains("0.10 % of a processor, of 0.5 %") && text.contains("rested for 0.5 s"), "{text}");
        assert_eq!(folded(&profile()), "nginx;[user] 60\n");
        assert!(text.contains("  …odulemodulemodulemodule::f0    5.0 %"), "{text}");
        assert!(
            text.contains("::f11 ")
                && !text.contains("::f12 ")
                && text.contains("all other functions            40.0 %"),
            "{text}"
        );
    }

    #[test]
    fn flame_graph_stacks_callers_below_what_they_call() {
        let mut profile = profile();
        let stack = |frames: &str, samples| Stack { frames: frames.into(), samples };
        profile.stacks =
            vec![stack("a;b;c<d>", 50), stack("a;e", 25), stack("f", 25), stack(&["g"; 3000].join(";"), 0)];
        let page = html(&profile);
        for (name, left, width, depth) in [
            ("all", 0, 100, 0),
            ("a", 0, 75, 1),
            ("b", 0, 50, 2),
            ("c&lt;d&gt;", 0, 50, 3),
            ("e", 50, 25, 2),
            ("f", 75, 25, 1),
        ] {
            let style = format!("left:{left}.0000%;width:{width}.0000%;bottom:{}px\"", depth * 18);
            let frame = page.lines().find(|line| line.ends_with(&format!(">{name}</button>")));
            assert!(frame.is_some_and(|line| line.contains(&style)), "{name} {style}: {frame:?}");
        }
        assert_eq!(page.matches("</button>").count(), 6, "what has no sample is not drawn");
        profile.stacks.clear();
        assert_eq!(html(&profile).matches("</button>").count(), 0);
    }

    #[test]
    fn pictures_escape_names() {
        for text in [svg(&profile()), html(&profile())] {
            assert!(text.contains("a &amp; b &lt;c&gt;") && !text.contains("<c>"), "{text}");
            assert_eq!((text.matches("<svg").count(), text.matches("class=\"paper\"").count()), (1, 1));
            assert!(text.contains(">10.0 %, 40.0 % with all inside<") && text.contains(">60.0 %<"), "{text}");
            assert!(!text.contains("href") && !text.contains("src="), "nothing comes from elsewhere");
        }
    }
}
