//! A profile as a picture, and as a page with a flame graph.
//!
//! In the flame graph the width of a frame is its share of the samples, and it is above its caller: the program at the
//! bottom, then its functions, then those of the kernel.

use std::collections::BTreeMap;

use ammeter_monitor::profile::{Profile, Row, chosen, end_of, views};
use maud::{Markup, html};

use crate::figure::{self, Share, Shares};
use crate::page;

const STYLE: &str = include_str!("../../../assets/profile.css");
const SCRIPT: &str = include_str!("../../../assets/profile.js");

/// The views as an SVG file.
pub(super) fn svg(profile: &Profile) -> String {
    figure::file(&drawn(profile))
}

fn drawn(profile: &Profile) -> String {
    // The end of a function's name is more specific than its modules or arguments.
    const NAME_MAX: usize = 34;
    let bar = |row: &Row| Share {
        name: end_of(&row.name, NAME_MAX).into_owned(),
        share: row.share.share,
        interval: (row.share.low, row.share.high),
        behind: row.around.map(|around| (around.share, "inclusive")),
    };
    let groups = views(profile).map(|(title, rows)| (title.to_owned(), rows.iter().map(bar).collect()));
    figure::shares("views", &Shares { title: title(profile), groups: groups.into() })
}

fn title(profile: &Profile) -> String {
    format!("Profile of {}", profile.whose)
}

/// One page with the picture, the flame graph and the most frequent chains.
pub(super) fn html(profile: &Profile) -> String {
    const STACKS: usize = 50;
    let Profile { seconds, processors, frequency, samples, expected, lost, .. } = profile;
    let below = format!(
        "{} samples of {samples}, in {seconds:.1} s, {processors} processors at {frequency} Hz; {expected} expected, {lost} lost",
        chosen(profile)
    );
    let body = html! {
        p {
            "In unknown kernel functions: " (percent(profile.unknown.share)) ". The sampler used "
            (format!("{:.2}", profile.own_cpu * 100.0)) " % of a processor; the limit is " ((profile.budget * 1e4).round() / 1e2)
            " %. Lines are 95 % intervals; pale bars are inclusive shares."
        }
        @for line in &profile.missing { p { (line) } }
        figure { (maud::PreEscaped(drawn(profile))) }
        h2 { "Flame graph" }
        (flame(profile))
        h2 { "Most frequent call chains" }
        table.chains {
            thead { tr { th { "samples" } th.text { "chain" } } }
            tbody {
                @for stack in profile.stacks.iter().take(STACKS) {
                    tr { td { (stack.samples) } td { code { (stack.frames.replace(';', "; ")) } } }
                }
            }
        }
    };
    page::plain(&title(profile), &below, &body, STYLE, SCRIPT)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A function in the call chains: its samples and its callees.
#[derive(Default)]
struct Node<'a> {
    samples: u64,
    calls: BTreeMap<&'a str, Node<'a>>,
}

/// A frame of the flame graph; widths in percent of all samples.
struct Frame<'a> {
    name: &'a str,
    samples: u64,
    left: f64,
    width: f64,
    depth: usize,
}

fn flame(profile: &Profile) -> Markup {
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
    let frames = frames(&root);
    let lines = frames.iter().map(|frame| frame.depth).max().unwrap_or(0) + 1;
    html! {
        p {
            "The width of a frame is its share of the samples; its callers are below it, the program's functions below \
             those of the kernel. Click a frame to zoom, the lowest one for all. A program without frame pointers has \
             truncated chains; code without symbols is shown as its file in brackets."
        }
        p { label { "Search " input #search type="search"; } " " span #found {} }
        div #flame style=(format!("height:{}px", lines * LINE)) {
            @for Frame { name, samples, left, width, depth } in frames {
                button style=(format!("left:{left:.4}%;width:{width:.4}%;bottom:{}px", depth * LINE))
                    data-left=(format!("{left:.4}")) data-width=(format!("{width:.4}"))
                    title=(format!("{name}: {samples} samples, {width:.2} %")) { (name) }
            }
        }
    }
}

/// The frames that are wide enough to see; narrower ones would only enlarge the page.
fn frames<'a>(root: &'a Node<'a>) -> Vec<Frame<'a>> {
    const NARROWEST: f64 = 0.02;
    let whole = root.samples.max(1) as f64;
    let share = |samples: u64| samples as f64 / whole * 100.0;
    // Not recursive: a record may have chains of any depth.
    let mut waiting = vec![("all", root, 0.0, 0)];
    let mut frames = Vec::new();
    while let Some((name, node, left, depth)) = waiting.pop() {
        let width = share(node.samples);
        if width < NARROWEST {
            continue;
        }
        frames.push(Frame { name, samples: node.samples, left, width, depth });
        let mut from = left;
        for (called, inner) in &node.calls {
            waiting.push((called, inner, from, depth + 1));
            from += share(inner.samples);
        }
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::chromium::{self, Seen};
    use ammeter_monitor::profile::{Share, Stack};

    /// With the longest possible names, and shares of all sizes.
    fn profile() -> Profile {
        let row = |(name, samples): (&str, u64)| Row {
            name: name.to_owned(),
            share: Share::of(samples, 100),
            around: Some(Share::of(samples.max(97), 100)),
        };
        let rows = |rows: &[(&str, u64)]| rows.iter().copied().map(row).collect::<Vec<_>>();
        Profile {
            whose: "the server at port 8080 & <more>".to_owned(),
            seconds: 10.0,
            sampled_seconds: 10.0,
            frequency: 199,
            processors: 2,
            samples: 4000,
            expected: 3980,
            lost: 0,
            who: rows(&[("interrupts while idle", 1), ("other programs", 99)]),
            contexts: rows(&[("system call entry and exit", 100), ("process_vm_readv", 0)]),
            functions: rows(&[("<alloc::vec::Vec<T, A> as core::iter::Extend<&T>>::extend", 60), ("main", 40)]),
            categories: rows(&[("high-level file system", 50), ("low-level file system", 50)]),
            unknown: Share::of(0, 100),
            own_cpu: 0.001,
            budget: 0.005,
            missing: Vec::new(),
            stacks: vec![Stack { frames: ["a_function_of_the_kernel"; 40].join(";"), samples: 100 }],
        }
    }

    #[test]
    fn chromium_draws_profile_without_overlap() {
        let folder = tempfile::tempdir().unwrap();
        let page = html(&profile());
        assert_eq!(chromium::sound(&page, folder.path()), Seen { plots: 0, figures: 1 });
        let click = "<script>addEventListener('load', () => {
            const [, first] = document.querySelectorAll('#flame button');
            const search = document.getElementById('search');
            search.value = 'KERNEL';
            search.dispatchEvent(new Event('input'));
            first.click();
            console.warn(document.getElementById('found').textContent, first.style.width, first.className);
        });</script></html>";
        let (seen, _) = chromium::seen(&page.replacen("</html>", click, 1), folder.path(), &[]);
        assert_eq!(seen["troubles"], serde_json::json!(["warn: 100.0 % of the samples 100% found"]));
    }

    #[test]
    fn flame_graph_stacks_callees_above_callers() {
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
            let frame = page.split("<button ").find(|frame| frame.contains(&format!(">{name}</button>")));
            assert!(frame.is_some_and(|frame| frame.contains(&style)), "{name} {style}: {frame:?}");
        }
        assert_eq!(page.matches("</button>").count(), 6, "frames without samples are not drawn");
        profile.stacks.clear();
        assert_eq!(html(&profile).matches("</button>").count(), 0);
    }

    #[test]
    fn names_are_escaped_in_svg() {
        for text in [svg(&profile()), html(&profile())] {
            assert!(text.contains("8080 &amp; &lt;more&gt;") && !text.contains("<more>"), "{text}");
            assert_eq!(text.matches("<svg").count(), 1);
            assert!(text.contains(">60.0 %, 97.0 % inclusive<") && text.contains(">99.0 %<"), "{text}");
            assert!(!text.contains("href") && !text.contains("src="), "the page loads nothing external");
        }
    }
}
