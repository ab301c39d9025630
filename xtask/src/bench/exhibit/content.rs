//! Ways of a body to the socket: copied, mapped, lent by sendfile, and the mixture that is the default.

use super::super::files::of_size;
use super::super::sample::Metric;
use super::spec::{Arm, Exhibit, Point, ROUNDS, Scale, Shape};

const STORY: &str = "\
Hu, Nanda and Yang gained 9 % by mapping files rather than reading them, and expected that a call which sends a file
from the kernel's own cache would double or triple the rate for large ones. Flash kept files mapped.

Here all bodies go one way: copied into memory of the server, from a mapping, or by sendfile; and the default, which
copies small ones and lends large ones.";

pub(super) fn exhibit(scale: Scale) -> Exhibit {
    let sizes = scale.of(&[1 << 10, 16 << 10, 128 << 10, 1 << 20], &[1 << 10, 128 << 10]);
    Exhibit {
        name: "content",
        title: "Ways of a body to the socket",
        story: STORY,
        files: sizes.iter().map(|bytes| of_size(*bytes)).collect(),
        config: "",
        arms: ["mixed", "copy", "mmap", "sendfile"].map(|way| Arm::new(way, &["--content", way])).to_vec(),
        points: sizes.iter().map(|bytes| Point::one_file("", *bytes, false)).collect(),
        machine: None,
        metrics: &[Metric::Cpu, Metric::Rate],
        shape: Shape::Lines { x_title: "file size, KiB", logarithmic: true },
        rounds: scale.rounds(ROUNDS),
    }
}
