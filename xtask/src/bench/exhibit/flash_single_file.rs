//! Flash, the single file test: the four architectures on one cached file of different sizes.

use super::super::files::of_size;
use super::super::sample::Metric;
use super::spec::{Arm, Exhibit, Point, ROUNDS, Scale, Shape};

const STORY: &str = "\
Flash was compared with its own SPED, MT and MP variants on one file that is cached, of up to 200 KB, a new connection
for each request. The architecture made little difference: SPED was slightly better than AMPED, which tests whether
files are in memory, and MT and MP slightly worse, for their switches of context.

Here the same four come from one code base too, each with its caches. MT and MP are pools of 64, of which 48 have a
connection. Persistent connections are measured as well, since they are what a server sees today.";

pub(super) fn exhibit(scale: Scale) -> Exhibit {
    let kib = |sizes: &[u64]| sizes.iter().map(|size| size << 10).collect::<Vec<_>>();
    let sizes = scale.of(&[&[512][..], &kib(&[5, 20, 64, 200])].concat(), &kib(&[5, 200]));
    let groups = [("keep-alive", false), ("new connections", true)];
    let groups = if scale == Scale::Smoke { &groups[1..] } else { &groups };
    let points = groups.iter().flat_map(|(group, fresh)| sizes.iter().map(|s| Point::one_file(group, *s, *fresh)));
    Exhibit {
        name: "flash-single-file",
        title: "Four architectures, one cached file",
        story: STORY,
        files: sizes.iter().map(|bytes| of_size(*bytes)).collect(),
        config: "",
        arms: Arm::architectures(),
        points: points.collect(),
        machine: None,
        metrics: &[Metric::Cpu, Metric::Rate],
        shape: Shape::Lines { x_title: "file size, KiB", logarithmic: true },
        rounds: scale.rounds(ROUNDS),
    }
}
