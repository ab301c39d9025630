//! Flash, section 5.7: what it costs to ask whether a file is in memory, when it is.

use super::super::files::of_size;
use super::super::sample::Metric;
use super::spec::{Arm, Exhibit, Point, ROUNDS, Scale, Shape};

const STORY: &str = "\
Flash asks mincore whether the pages of a mapped file are in memory before it sends them, and hands the file to a
helper if they are not; where there is no mincore it proposes a model of the page cache, fed by the page faults that
it missed. Its AMPED was slightly slower than SPED on cached files for this test.

Here the tests are compared with none on files that are in memory, large enough to be tested for each reply (smaller
ones are in the content cache). Whether they tell the truth is another question, which the tests answer: for a process
that could not write the file, mincore calls every page resident.";

pub(super) fn exhibit(scale: Scale) -> Exhibit {
    let sizes = scale.of(&[64 << 10, 256 << 10, 1 << 20], &[64 << 10]);
    Exhibit {
        name: "residency",
        title: "What a test of residency costs",
        story: STORY,
        files: sizes.iter().map(|bytes| of_size(*bytes)).collect(),
        config: "",
        arms: ["none", "nowait", "mincore", "clock"].map(|test| Arm::new(test, &["--residency", test])).to_vec(),
        points: sizes.iter().map(|bytes| Point::one_file("", *bytes, false)).collect(),
        machine: None,
        metrics: &[Metric::Cpu, Metric::Rate],
        shape: Shape::Lines { x_title: "file size, KiB", logarithmic: true },
        rounds: scale.rounds(ROUNDS),
    }
}
