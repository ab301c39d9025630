//! The files that are served, and in which order they are asked for: both made from a seed, so that every server gets the
//! same, today and next year.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::command::{Outcome, program, run as run_command};
use amped_measure::stats::Random;

/// A file to be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileSpec {
    /// Its path below the root, without the first slash.
    pub(super) name: String,
    pub(super) bytes: u64,
}

/// One file of a size.
pub(super) fn of_size(bytes: u64) -> FileSpec {
    named(&format!("{bytes}.html"), bytes)
}

/// One file of this name.
pub(super) fn named(name: &str, bytes: u64) -> FileSpec {
    FileSpec { name: name.to_owned(), bytes }
}

/// Frequencies of the classes of SPECweb96: below 1 KB, 10 KB, 100 KB, 1 MB (Hu, Nanda, Yang, table 2).
const CLASSES: [f64; 4] = [0.35, 0.50, 0.14, 0.01];

/// The file set of SPECweb96: in each directory 9 files of each class, of 1/10 to 9/10 of its largest size.
pub(super) fn specweb96(directories: usize) -> Vec<FileSpec> {
    let mut files = Vec::new();
    for directory in 0..directories {
        for (class, tenth) in [102, 1024, 10_240, 102_400].into_iter().enumerate() {
            let name = |file| format!("dir{directory:05}/class{class}_{file}");
            files.extend((1..=9).map(|file| FileSpec { name: name(file), bytes: file * tenth }));
        }
    }
    files
}

/// So many requests for that file set. Within a class every file is as likely as another, which SPECweb96 does not do.
pub(super) fn specweb96_targets(files: &[FileSpec], count: usize, random: &mut Random) -> Vec<String> {
    let sums = running_sums(CLASSES);
    let target = |_| {
        let class = random.weighted(&sums);
        let directory = random.below(files.len() / 36);
        format!("/{}", files[directory * 36 + class * 9 + random.below(9)].name)
    };
    (0..count).map(target).collect()
}

/// Files from `least` to `most` bytes, evenly spread over the logarithm of the size, until they have `total` bytes. The first
/// is the one most asked for, and a shorter set is the beginning of a longer one.
pub(super) fn data_set(total: u64, least: u64, most: u64, random: &mut Random) -> Vec<FileSpec> {
    let (mut files, mut sum) = (Vec::new(), 0);
    while sum < total {
        let bytes = (least as f64 * (most as f64 / least as f64).powf(random.fraction())) as u64;
        files.push(FileSpec { name: format!("set{:02}/{:05}", files.len() / 100, files.len()), bytes });
        sum += bytes;
    }
    files
}

/// So many requests for these files, the n-th of which is asked for in proportion to n^-exponent (Zipf).
pub(super) fn zipf_targets(files: &[FileSpec], exponent: f64, count: usize, random: &mut Random) -> Vec<String> {
    let sums = running_sums((1..=files.len()).map(|rank| (rank as f64).powf(-exponent)));
    (0..count).map(|_| format!("/{}", files[random.weighted(&sums)].name)).collect()
}

fn running_sums(weights: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let add = |sum: &mut f64, weight| {
        *sum += weight;
        Some(*sum)
    };
    weights.into_iter().scan(0.0, add).collect()
}

/// Writes the files below `root`; `cold` throws them out of the page cache again.
pub(super) fn write(root: &Path, files: &[FileSpec], cold: bool) -> Outcome {
    // Bytes that no layer below could make smaller.
    let mut random = Random(1);
    let most = files.iter().map(|file| file.bytes).max().unwrap_or_default();
    let noise: Vec<u8> = (0..most).map(|_| random.below(256) as u8).collect();
    for file in files {
        let path = root.join(&file.name);
        let folder = path.parent().expect("it lies below the root");
        let written = fs::create_dir_all(folder).and_then(|()| fs::write(&path, &noise[..file.bytes as usize]));
        written.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    if cold {
        let throw_out =
            r#"for f; do dd if=/dev/null of="$f" oflag=nocache conv=notrunc,fdatasync count=0 status=none; done"#;
        run_command(program("sync").arg("-f").arg(root))?;
        for some in files.chunks(500) {
            let paths = some.iter().map(|file| root.join(&file.name));
            run_command(program("sh").args(["-e", "-c", throw_out, "sh"]).args(paths))?;
        }
    }
    Ok(())
}

/// `major:minor` of the whole disk beneath a folder.
pub(super) fn disk_of(folder: &Path) -> Outcome<String> {
    let device = fs::metadata(folder).map_err(|error| format!("{}: {error}", folder.display()))?.dev();
    // makedev(3): the upper and lower halves of both numbers are interleaved.
    let major = (device >> 8) & 0xfff | (device >> 32) & !0xfff;
    let minor = device & 0xff | (device >> 12) & !0xff;
    let block = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    // Limits are those of disks, not of partitions.
    let whole = if block.join("partition").exists() { block.join("..") } else { block };
    let number = fs::read_to_string(whole.join("dev"));
    let way_out = "set CARGO_TARGET_DIR to a folder that does";
    number.map(|text| text.trim().to_owned()).map_err(|_| format!("{} lies on no disk; {way_out}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specweb96_has_its_sizes_and_frequencies() {
        let files = specweb96(2);
        assert_eq!(files.len(), 72);
        // 45 tenths of each class, about 5 MB a directory, nine tenths of which are the largest class.
        assert_eq!(files.iter().map(|file| file.bytes).sum::<u64>(), 2 * 45 * (102 + 1024 + 10_240 + 102_400));
        assert_eq!((&files[36].name[..], files[36].bytes), ("dir00001/class0_1", 102));
        let targets = specweb96_targets(&files, 20_000, &mut Random(3));
        for (class, share) in CLASSES.into_iter().enumerate() {
            let part = format!("/class{class}_");
            let found = targets.iter().filter(|target| target.contains(&part)).count() as f64 / 20_000.0;
            assert!((found - share).abs() < 0.015, "class {class}: {found}");
        }
    }

    #[test]
    fn a_short_data_set_begins_a_long_one() {
        let set = |total| data_set(total, 1000, 8000, &mut Random(5));
        let (short, long) = (set(100_000), set(1_000_000));
        assert_eq!(long[..short.len()], short);
        assert!(long.iter().all(|file| (1000..=8000).contains(&file.bytes)));
        let total: u64 = long.iter().map(|file| file.bytes).sum();
        assert!((1_000_000..1_008_000).contains(&total));
    }

    #[test]
    fn zipf_asks_for_the_first_most() {
        let files = data_set(100_000, 100, 100, &mut Random(5));
        let targets = zipf_targets(&files, 1.0, 50_000, &mut Random(6));
        let count = |n: usize| targets.iter().filter(|target| target[1..] == files[n].name).count() as f64;
        // The sum of 1/n up to 1000 is 7.485.
        assert!((count(0) / 50_000.0 - 1.0 / 7.485).abs() < 0.01);
        assert!((count(0) / count(9) - 10.0).abs() < 1.5);
    }
}
