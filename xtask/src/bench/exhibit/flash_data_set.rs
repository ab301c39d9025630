//! Flash, the real workload over data set sizes: the four architectures, from a data set that is in memory to one that is
//! several times as large; from one disk, and from sixteen.

use amped_measure::stats::Random;

use super::super::disks;
use super::super::files::{FileSpec, data_set, zipf_targets};
use super::super::load::{Load, Targets};
use super::super::sample::Metric;
use super::spec::{Arm, CONNECTIONS, Exhibit, Point, Scale, Shape, SmallMachine};

const STORY: &str = "\
Flash and its variants replayed the log of a web server, cut so that the files asked for had a total size below, near
and above the memory of the machine. In memory AMPED was close to SPED, the best. Beyond it SPED fell steeply, since
each read of the disk stopped all its clients; AMPED did as well as MP or better, whose processes took memory from the
page cache; MT was close to AMPED.

Here a control group is the small machine: 128 MiB for the server and the page cache of its files, and a disk that
reads 32 MiB/s. Files are of 8 to 256 KiB, asked for with Zipf-like popularity (exponent 0.8) over 48 connections. The
most popular ones that fit are in memory when a measurement begins; names are known to the kernel throughout, so it is
contents that are cold. Beside the load, 200 times a second, one small cached file is asked for: how long that takes
at the 99th percentile shows whether those who need no disk wait for it. The limit of the disk is one of bytes, so
several reads at once gain nothing here, as they would on a disk that can order them.";

const STORY_OF_SIXTEEN: &str = "\
The same as flash-data-set with another disk: sixteen that read 1 MiB/s each, over which the files are spread, now of 128 to
512 KiB. A read then takes a tenth of a second, and as many as there are disks can be under way: an array, or a disk
across a network. In Flash's day it was a disk that gained from having several requests to order.";

/// Asked for beside the load.
const HOT: &str = "hot.html";

const MIB: u64 = 1 << 20;

pub(super) fn exhibit(scale: Scale, seed: u64) -> Exhibit {
    let sizes: &[u64] = match scale {
        Scale::Full => &[32, 96, 160, 256, 512],
        Scale::Quick => &[16, 128],
        Scale::Smoke => &[16],
    };
    let exhibit = from_disks(scale, seed, 1, sizes);
    let title = "Four architectures, data sets below and above the memory";
    Exhibit { name: "flash-data-set", title, story: STORY, ..exhibit }
}

pub(super) fn on_sixteen_disks(scale: Scale, seed: u64) -> Exhibit {
    let sizes: &[u64] = match scale {
        Scale::Full => &[96, 256, 512],
        Scale::Quick | Scale::Smoke => &[128],
    };
    let exhibit = from_disks(scale, seed, 16, sizes);
    let title = "Four architectures, data sets above the memory, on sixteen disks";
    Exhibit { name: "flash-data-set-disks", title, story: STORY_OF_SIXTEEN, ..exhibit }
}

fn from_disks(scale: Scale, seed: u64, count: usize, sizes: &[u64]) -> Exhibit {
    let memory = if scale == Scale::Full { 128 } else { 64 } * MIB;
    // Of an array each disk is slow enough that the kernel, which limits it in steps of 100 ms, lets no file pass at once.
    let (least, most, disk) = if count == 1 { (8 << 10, 256 << 10, 32 * MIB) } else { (128 << 10, 512 << 10, MIB) };
    let mut files = data_set(sizes[sizes.len() - 1] * MIB, least, most, &mut Random(seed));
    if count > 1 {
        for (n, file) in files.iter_mut().enumerate() {
            file.name = format!("{}/{}", disks::folder(n % count), file.name);
        }
    }
    let mut arms = Arm::architectures();
    arms.push(Arm::new("amped, helper processes", &["--helpers-kind", "processes"]));
    Exhibit {
        name: "",
        title: "",
        story: "",
        config: "cache.content_bytes = '16MiB'\n",
        arms,
        points: sizes.iter().map(|size| point(scale, seed, *size, memory, count, &files)).collect(),
        files: files.iter().cloned().chain([FileSpec { name: HOT.to_owned(), bytes: 1024 }]).collect(),
        machine: Some(SmallMachine { memory, disks: count, disk }),
        metrics: &[Metric::Throughput, Metric::HotP99, Metric::Cpu],
        shape: Shape::Lines { x_title: "data set, MiB", logarithmic: false },
        rounds: scale.rounds(6),
    }
}

fn point(scale: Scale, seed: u64, mib: u64, memory: u64, disks: usize, files: &[FileSpec]) -> Point {
    let files = &files[..until(files, mib * MIB)];
    let targets = zipf_targets(files, 0.8, 30_000, &mut Random(seed));
    // The most popular last, and no more than there is room for.
    let warm = files[..until(files, memory)].iter().rev().map(|file| format!("/{}", file.name));
    let load = Load {
        targets: Targets::List(format!("zipf-{mib}-{disks}"), targets),
        connections: CONNECTIONS,
        fresh: false,
        seconds: if scale == Scale::Full { 2 } else { 1 },
        hot: Some(format!("/{HOT}")),
    };
    let warm = warm.chain([format!("/{HOT}")]).collect();
    Point { group: "", label: format!("{mib} MiB"), x: mib as f64, load, warm }
}

/// How many of the first files have this many bytes, or all.
fn until(files: &[FileSpec], bytes: u64) -> usize {
    let sums = files.iter().scan(0, |sum, file| {
        *sum += file.bytes;
        Some(*sum)
    });
    (sums.take_while(|sum| *sum < bytes).count() + 1).min(files.len())
}
