//! Flash, "Flash performance breakdown": the eight combinations of its three caches, over small files.

use super::super::files::of_size;
use super::super::sample::Metric;
use super::spec::{Arm, Exhibit, Point, ROUNDS, Scale, Shape};

const STORY: &str = "\
Flash was measured with each of the eight combinations of its three caches: of path names, of response headers, and of
mapped files. Clients asked for one cached file of up to 20 KB. Each cache helped, most of all that of path names;
without any of them the rate for small files was about half.

Here the mapped files are the content cache, since small bodies are kept in memory and nothing is mapped. Connections
persist, which leaves out the cost of a connection that every request bore then, so the caches are a larger part of
the whole.";

pub(super) fn exhibit(scale: Scale) -> Exhibit {
    let sizes = scale.of(&[0, 1 << 10, 5 << 10, 10 << 10, 20 << 10], &[1 << 10]);
    Exhibit {
        name: "flash-breakdown",
        title: "Eight combinations of three caches",
        story: STORY,
        files: sizes.iter().map(|bytes| of_size(*bytes)).collect(),
        config: "",
        arms: arms(),
        points: sizes.iter().map(|bytes| Point::one_file("", *bytes, false)).collect(),
        machine: None,
        metrics: &[Metric::Cpu, Metric::Rate],
        shape: Shape::Lines { x_title: "file size, KiB", logarithmic: false },
        rounds: scale.rounds(ROUNDS),
    }
}

fn arms() -> Vec<Arm> {
    let caches = [("path", "path-cache"), ("content", "content-cache"), ("header", "header-cache")];
    let arm = |number: usize| {
        // From all three down to none, those with the path cache first.
        let has = |index: usize| (7 - number) >> (2 - index) & 1 == 1;
        let part = |has_it: bool, index: usize| (has(index) == has_it).then_some(caches[index]);
        let with: Vec<&str> = (0..3).filter_map(|index| Some(part(true, index)?.0)).collect();
        let without: Vec<&str> = (0..3).filter_map(|index| Some(part(false, index)?.1)).collect();
        let name = if with.is_empty() { "no caching".to_owned() } else { with.join(" + ") };
        match &without.join(",")[..] {
            "" => Arm::new(name, &[]),
            without => Arm::new(name, &["--without", without]),
        }
    };
    (0..8).map(arm).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arms_are_all_eight() {
        let arms = arms();
        let names: Vec<&str> = arms.iter().map(|arm| &arm.name[..]).collect();
        let expected = ["path + content + header", "path + content", "path + header", "path"];
        assert_eq!(names[..4], expected);
        assert_eq!(names[4..], ["content + header", "content", "header", "no caching"]);
        assert!(arms[0].flags.is_empty());
        assert_eq!(arms[2].flags, ["--without", "content-cache"]);
        assert_eq!(arms[7].flags, ["--without", "path-cache,content-cache,header-cache"]);
    }
}
