//! Flash, section 5.5: heads of a multiple of 32 bytes, so that the body that follows is aligned in the kernel's copy.

use super::super::files::of_size;
use super::super::sample::Metric;
use super::spec::{Arm, Exhibit, Point, ROUNDS, Scale, Shape};

const STORY: &str = "\
Flash padded the header of a response to a multiple of 32 bytes, because the kernels of its time copied head and body
one behind the other, and a body that began at an odd address cost them a slow copy. Its competitor Zeus showed a dip
where its headers were not aligned.

Here heads are padded or not; on the way to the socket head and small body are one piece.";

pub(super) fn exhibit(scale: Scale) -> Exhibit {
    let sizes = scale.of(&[1 << 10, 16 << 10, 32 << 10], &[16 << 10]);
    Exhibit {
        name: "alignment",
        title: "Heads padded to 32 bytes",
        story: STORY,
        files: sizes.iter().map(|bytes| of_size(*bytes)).collect(),
        config: "",
        arms: vec![
            Arm::new("as they come", &["--without", "header-alignment"]),
            Arm::new("multiple of 32", &["--with", "header-alignment"]),
        ],
        points: sizes.iter().map(|bytes| Point::one_file("", *bytes, false)).collect(),
        machine: None,
        metrics: &[Metric::Cpu, Metric::Rate],
        shape: Shape::Lines { x_title: "file size, KiB", logarithmic: true },
        rounds: scale.rounds(ROUNDS),
    }
}
