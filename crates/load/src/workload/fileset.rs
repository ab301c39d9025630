//! File sets: those of two benchmarks that the papers used, one derived from a log, and how a set is written to disk.
//!
//! A set is computed first, as a [`Manifest`], and then written by [`write`]. The same arguments and seed give the same
//! set on every machine, to the last byte.
//!
//! - [`specweb96`]: Hu, Nanda and Yang 1997, section 2.2, tables 1 and 2.
//! - [`webstone`]: Yates, Almeida and Almeida 1997, section 3, tables 1 and 2.
//! - [`of_log`]: Pai, Druschel and Zwaenepoel 1999, "Performance on real workloads": the log is cut at the request with
//!   which the files requested so far would exceed the wanted data set size.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use amped_measure::Failure;
use amped_sys::file::{Space, space, sync_file_system};
use amped_units::Bytes;

use super::content::Content;
use super::log::{Log, is_file, name_of};
use super::manifest::{self, Manifest, file_name, plain_path};

const KIB: u64 = 1024;

/// The classes of SPECweb96: the step by which file sizes rise, from one step to nine (0 to 1 KB, 1 to 10, 10 to 100,
/// 100 to 1000), and the share of requests (Hu, table 2).
const SPECWEB96: [(u64, f64); 4] = [(102, 0.35), (KIB, 0.50), (10 * KIB, 0.14), (100 * KIB, 0.01)];

/// Files of a class per directory.
const STEPS: u64 = 9;

/// Directories of SPECweb96 for an expected throughput, before rounding: 10 * sqrt(ops / 5).
pub fn specweb96_directories(ops: u32) -> f64 {
    10.0 * (f64::from(ops) / 5.0).sqrt()
}

/// Bytes per directory of SPECweb96: 4.88 MiB.
pub fn specweb96_directory() -> u64 {
    SPECWEB96.iter().map(|(step, _)| step * STEPS * (STEPS + 1) / 2).sum()
}

/// The file set of SPECweb96 for an expected throughput of `ops` requests per second, at least 1.
///
/// All directories have the same share of requests; their number follows the rule, rounded. Hu's
/// table 1 has the sizes without that rounding (22 MB at 1 ops). Within a class, requests follow
/// a Poisson distribution around the middle step, as the benchmark's own description says (SPEC,
/// "The Workload for the SPECweb96 Benchmark", spec.org/osg/web96/workload.html). Hu, Nanda and
/// Yang give the shares of the classes (table 2), but not the distribution within a class.
pub fn specweb96(ops: u32, seed: u64) -> Manifest {
    let directories = specweb96_directories(ops).round().max(1.0) as u64;
    // Poisson with mean 5, truncated to 1 to 9: 5^k / k!.
    let shares: Vec<f64> = (1..=STEPS)
        .scan(1.0, |term, k| {
            *term *= 5.0 / k as f64;
            Some(*term)
        })
        .collect();
    let whole: f64 = shares.iter().sum::<f64>() * directories as f64;
    let files = (0..directories).flat_map(|directory| {
        let shares = &shares;
        SPECWEB96.iter().enumerate().flat_map(move |(class, (step, access))| {
            (1..=STEPS).zip(shares).map(move |(k, share)| {
                let path = format!("/dir{directory:05}/class{class}_{k}");
                (path, k * step, format!("class{class}"), access * share / whole)
            })
        })
    });
    Manifest::new(format!("specweb96 --ops {ops}"), seed, files)
}

/// The scale of the file sizes of WebStone's workload A.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// A/4.
    Quarter,
    /// A/2.
    Half,
    /// A.
    One,
    /// A*2.
    Two,
    /// A*4.
    Four,
}

impl Scale {
    /// Text, factor as numerator and denominator, and the mean reply size in KBytes (Yates, table 2).
    fn row(self) -> (&'static str, u64, u64, f64) {
        match self {
            Scale::Quarter => ("1/4", 1, 4, 7.00),
            Scale::Half => ("1/2", 1, 2, 14.82),
            Scale::One => ("1", 1, 1, 29.31),
            Scale::Two => ("2", 2, 1, 58.73),
            Scale::Four => ("4", 4, 1, 117.46),
        }
    }
}

impl FromStr for Scale {
    type Err = String;

    fn from_str(text: &str) -> Result<Scale, String> {
        let all = [Scale::Quarter, Scale::Half, Scale::One, Scale::Two, Scale::Four];
        all.into_iter().find(|scale| scale.row().0 == text).ok_or_else(|| "write 1/4, 1/2, 1, 2 or 4".to_owned())
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().0)
    }
}

/// WebStone's workload A (Yates, table 1): class, file name
/// extension, number of files, total KBytes, share of requests.
const WEBSTONE: [(&str, &str, u64, u64, f64); 4] = [
    ("html", "html", 24, 180, 0.192),
    ("image", "gif", 29, 385, 0.754),
    ("sound", "au", 20, 3580, 0.05),
    ("video", "mpg", 4, 9216, 0.004),
];

/// The file set of WebStone's workload A, scaled.
///
/// Table 1 gives the number of files of each class, their total size, and their share of requests. Table 2 gives the
/// mean reply size, which for A is 1 % below the value that table 1 implies (29.62 KBytes), and at other scales differs
/// by up to 6 % ("truncation and rounding"). Neither gives the distribution of sizes and requests within a class. Here
/// sizes rise linearly from zero to twice the mean, and the requests of a class favour its smaller files slightly (at
/// 1/2, its larger ones), so that the means match table 2. Counts, sizes and shares of table 1 are exact.
pub fn webstone(scale: Scale, seed: u64) -> Manifest {
    let (_, times, divided, mean_kib) = scale.row();
    // File k of n has (2k - 1) / n times the mean size: the total size of the first k files is k^2 / n^2 of the whole.
    let size = |n: u64, whole_kib: u64, k: u64| {
        let end = |k: u64| whole_kib * KIB * times / divided * k * k / (n * n);
        end(k) - end(k - 1)
    };
    let lean = |n: u64, k: u64| (2 * k - 1) as f64 / n as f64 - 1.0;
    // The mean is linear in the lean: `plain` plus `per_unit` for each unit of lean. The leans of a class sum to 0.
    let (mut plain, mut per_unit) = (0.0, 0.0);
    for (_, _, n, whole_kib, access) in WEBSTONE {
        for k in 1..=n {
            let part = access / n as f64 * size(n, whole_kib, k) as f64;
            plain += part;
            per_unit += part * lean(n, k);
        }
    }
    let tilt = (mean_kib * KIB as f64 - plain) / per_unit;
    let files = WEBSTONE.iter().flat_map(|(class, ending, n, whole_kib, access)| {
        (1..=*n).map(move |k| {
            let weight = access / *n as f64 * (1.0 + tilt * lean(*n, k));
            (format!("/{class}/{k:02}.{ending}"), size(*n, *whole_kib, k), (*class).to_owned(), weight)
        })
    });
    Manifest::new(format!("webstone --scale {scale}"), seed, files)
}

/// Statistics of the files of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogFileSet {
    /// Requests up to the cut.
    pub requests: u64,
    /// Bytes of all files in the whole log.
    pub whole: Bytes,
    /// Files before the cut that exist according to the log, but without a known size (only 206 and 304).
    pub unsized_files: u64,
    /// Invalid file names, and names that are both a file's and a directory's.
    pub impossible: u64,
}

/// The files in a log, with their sizes, as far as they fit into `dataset` bytes; all of them without a limit.
///
/// The size of a file is the largest that a reply to GET with status 200 had, since a client that disconnects early
/// leaves a smaller one. Its weight is the number of GETs before the cut, whatever their status.
///
/// # Errors
/// When no file remains.
pub fn of_log(log: &Log, name: &str, dataset: Option<Bytes>, seed: u64) -> Result<(Manifest, LogFileSet), Failure> {
    // Names by target, then sizes by name, for the whole log.
    let names: Vec<Option<PathBuf>> = log.targets.iter().map(|target| name_of(target)).collect();
    let mut sizes: HashMap<&Path, Option<u64>> = HashMap::new();
    for entry in log.entries.iter().filter(|entry| is_file(entry.status)) {
        if let Some(name) = &names[entry.target as usize] {
            let size = sizes.entry(name).or_default();
            *size = (*size).max(entry.bytes.filter(|_| entry.status == 200 && !entry.head));
        }
    }
    let mut file_set = LogFileSet { whole: Bytes(sizes.values().flatten().sum()), ..LogFileSet::default() };

    // Indices of files by name; `None` for files left out.
    let mut files: Vec<(String, u64, String, f64)> = Vec::new();
    let mut index: HashMap<&Path, Option<usize>> = HashMap::new();
    let (mut folders, mut sum) = (HashSet::new(), 0);
    for entry in &log.entries {
        let target = entry.target as usize;
        if let Some(name) = names[target].as_deref() {
            if !index.contains_key(name) {
                let path = plain_path(&log.targets[target]);
                let clash = folders.contains(name)
                    || name.ancestors().skip(1).any(|above| index.get(above).is_some_and(Option::is_some));
                let file = match (sizes.get(name), path) {
                    (Some(_), _) if clash => {
                        file_set.impossible += 1;
                        None
                    }
                    (Some(Some(bytes)), Some(path)) => {
                        if dataset.is_some_and(|most| sum + bytes > most.0) {
                            break;
                        }
                        sum += bytes;
                        folders.extend(name.ancestors().skip(1));
                        files.push((path, *bytes, size_class(*bytes).to_owned(), 0.0));
                        Some(files.len() - 1)
                    }
                    (Some(None), _) => {
                        file_set.unsized_files += 1;
                        None
                    }
                    (None | Some(Some(_)), _) => None,
                };
                index.insert(name, file);
            }
            if let Some(Some(at)) = index.get(name) {
                files[*at].3 += f64::from(u8::from(!entry.head));
            }
        } else if is_file(entry.status) {
            file_set.impossible += 1;
        }
        file_set.requests += 1;
    }
    if files.is_empty() {
        let why = match dataset {
            Some(most) if sizes.values().any(Option::is_some) => {
                format!("the first file in the log {name} is larger than {most}: raise --dataset")
            }
            _ => format!("the log {name} has no file size: none of its requests has status 200"),
        };
        return Err(Failure::failed(why));
    }
    let words = dataset.map(|most| format!(" --dataset {most}")).unwrap_or_default();
    let mut manifest = Manifest::new(format!("log {name}{words}"), seed, files);
    manifest.head.requests = Some(file_set.requests);
    Ok((manifest, file_set))
}

/// Names of the size classes, as in SPECweb96.
fn size_class(bytes: u64) -> &'static str {
    match bytes {
        0..=1023 => "below 1KiB",
        1024..=10_239 => "1-10KiB",
        10_240..=102_399 => "10-100KiB",
        102_400..=1_048_575 => "100KiB-1MiB",
        _ => "1MiB and more",
    }
}

/// The result of [`write`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Files that were written.
    pub written: u64,
    /// Files that existed with the right content.
    pub kept: u64,
}

/// Bytes of a file generated at once.
const BLOCK: usize = 64 << 10;

/// Writes a set into a directory, and its manifest beside its files. Calls `progress` with the number of bytes completed.
///
/// Creates the directory if necessary. If it holds this very set already, according to its manifest, each file is
/// compared, and missing or different files are written: an interrupted run resumes. All data is synced to disk at the
/// end, so that no writeback disturbs the next measurement.
///
/// # Errors
/// When the directory holds anything else; when the file system lacks room for the missing files while 5 % of it, at most
/// 1 GiB, stay free; when the disk fails.
pub fn write(manifest: &Manifest, folder: &Path, mut progress: impl FnMut(u64)) -> Result<Written, Failure> {
    let place = folder.display();
    let names: Vec<PathBuf> = manifest.files.iter().filter_map(|file| file_name(file.path.as_bytes())).collect();
    assert_eq!(names.len(), manifest.files.len(), "every path of a manifest names a file");

    let found = found(manifest, folder, &names)?;
    let has_size = |name: &PathBuf, bytes| found.as_ref().is_some_and(|found| found.get(name) == Some(&bytes));
    let mut need = Need::default();
    let missing = manifest.files.iter().zip(&names).filter(|(file, name)| !has_size(name, file.bytes));
    missing.for_each(|(file, _)| need.add(file.bytes));
    // A directory that does not exist yet has the space of its nearest existing ancestor.
    let above = folder.ancestors().find(|above| above.exists()).unwrap_or(Path::new("."));
    let room = space(above).map_err(Failure::io(format_args!("get the free space of {place}")))?;
    need.fits(&room).map_err(|why| Failure::failed(format!("{place}: {why}; choose another disk or a smaller set")))?;

    let io = |doing: &str, name: &Path| Failure::io(format!("{doing} {}", folder.join(name).display()));
    fs::create_dir_all(folder).map_err(io("create the directory", Path::new("")))?;
    let list = Path::new(manifest::NAME);
    // The manifest first, so that a partly written directory is recognised.
    if found.is_none() {
        fs::write(folder.join(list), manifest.to_text()).map_err(io("write", list))?;
    }

    let (mut done, mut last) = (Written::default(), None);
    for (file, name) in manifest.files.iter().zip(&names) {
        let path = folder.join(name);
        if has_size(name, file.bytes) && holds(&path, file, &mut progress).map_err(io("read", name))? {
            done.kept += 1;
            continue;
        }
        if last != name.parent() {
            last = name.parent();
            fs::create_dir_all(path.parent().unwrap_or(folder)).map_err(io("create the directory of", name))?;
        }
        fill(&path, file, &mut progress).map_err(io("write", name))?;
        done.written += 1;
    }
    File::open(folder).and_then(|folder| sync_file_system(&folder)).map_err(io("sync", Path::new("")))?;
    Ok(done)
}

/// Sizes by name of the files of this set in the directory; `None` if it is empty, without even a manifest.
fn found(manifest: &Manifest, folder: &Path, names: &[PathBuf]) -> Result<Option<HashMap<PathBuf, u64>>, Failure> {
    let place = folder.display();
    let io = |error: io::Error| Failure::failed(format!("cannot list {place}: {error}"));
    let mut found = HashMap::new();
    if !folder.try_exists().map_err(io)? {
        return Ok(None);
    }
    let known: HashSet<&Path> = names.iter().map(PathBuf::as_path).collect();
    let folders: HashSet<&Path> = names.iter().flat_map(|name| name.ancestors().skip(1)).collect();
    let (mut waiting, mut is_ours) = (vec![PathBuf::new()], None);
    while let Some(below) = waiting.pop() {
        for entry in fs::read_dir(folder.join(&below)).map_err(io)? {
            let entry = entry.map_err(io)?;
            let name = below.join(entry.file_name());
            let kind = entry.file_type().map_err(io)?;
            // A new ext4 file system has this directory.
            if name == Path::new("lost+found") {
                continue;
            }
            let is_ours = *is_ours.get_or_insert_with(|| {
                fs::read_to_string(folder.join(manifest::NAME)).is_ok_and(|text| text == manifest.to_text())
            });
            if !is_ours {
                return Err(Failure::failed(format!(
                    "the directory {place} is not empty and has another file set or other files (`{}`): choose an \
                     empty or new one",
                    name.display()
                )));
            }
            if kind.is_dir() && folders.contains(&*name) {
                waiting.push(name);
            } else if kind.is_file() && known.contains(&*name) {
                found.insert(name, entry.metadata().map_err(io)?.len());
            } else if !(kind.is_file() && name == Path::new(manifest::NAME)) {
                return Err(Failure::failed(format!(
                    "the directory {place} has this set and `{}`, which does not belong to it: remove that, or choose \
                     another directory",
                    name.display()
                )));
            }
        }
    }
    // The first entry found decides.
    Ok(is_ours.map(|_| found))
}

/// Whether the file has the expected content; its length is right.
fn holds(path: &Path, file: &manifest::File, progress: &mut impl FnMut(u64)) -> io::Result<bool> {
    let (mut source, mut content, mut block, mut read) =
        (File::open(path)?, Content::new(file.seed), vec![0; BLOCK], 0);
    loop {
        match source.read(&mut block) {
            Ok(0) if read == file.bytes => {
                progress(file.bytes);
                return Ok(true);
            }
            Ok(count) if count > 0 && content.is_next(&block[..count]) => read += count as u64,
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn fill(path: &Path, file: &manifest::File, progress: &mut impl FnMut(u64)) -> io::Result<()> {
    let (mut sink, mut content, mut left) = (File::create(path)?, Content::new(file.seed), file.bytes);
    let mut block = vec![0; BLOCK.min(Bytes(file.bytes).as_usize())];
    while left > 0 {
        let piece = left.min(BLOCK as u64);
        let bytes = &mut block[..piece as usize];
        content.fill(bytes);
        sink.write_all(bytes)?;
        left -= piece;
        progress(piece);
    }
    Ok(())
}

/// The space that a set needs on a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Need {
    files: u64,
    bytes: u64,
}

impl Need {
    /// A block more or less, and the directories, are covered by the reserve.
    fn add(&mut self, bytes: u64) {
        self.files += 1;
        // Most file systems have blocks of 4 KiB.
        self.bytes = self.bytes.saturating_add(bytes.checked_next_multiple_of(4096).unwrap_or(u64::MAX));
    }

    fn fits(self, room: &Space) -> Result<(), String> {
        if self == Need::default() {
            return Ok(());
        }
        let reserve = (room.bytes_total / 20).min(1 << 30);
        let free = room.bytes_free.saturating_sub(reserve);
        if self.bytes > free {
            return Err(format!(
                "not enough disk space for {} MiB: {} MiB are free, of which {} MiB are reserved",
                self.bytes >> 20,
                room.bytes_free >> 20,
                reserve >> 20
            ));
        }
        match room.files_free {
            Some(free) if self.files > free => {
                Err(format!("not enough inodes for {} files: the file system has {free}", self.files))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn class<'a>(manifest: &'a Manifest, class: &'a str) -> impl Iterator<Item = &'a manifest::File> {
        manifest.files.iter().filter(move |file| file.class == class)
    }

    #[test]
    fn specweb96_has_sizes_of_its_table() {
        assert_eq!(specweb96_directory(), 5_119_470);
        // Hu, table 1: expected throughput and MB, by the rule without rounding.
        let table = [(1, 22), (5, 49), (10, 69), (20, 98), (50, 154), (100, 218), (200, 309), (500, 488), (1000, 690)];
        for (ops, mb) in table {
            let unrounded = specweb96_directories(ops) * specweb96_directory() as f64 / f64::from(1 << 20);
            assert_eq!(unrounded.round() as u64, mb, "{ops}");
            let set = specweb96(ops, 1);
            let directories = specweb96_directories(ops).round() as u64;
            assert_eq!((set.head.files, set.head.bytes), (directories * 36, directories * 5_119_470), "{ops}");
        }
        let set = specweb96(5, 1);
        assert_eq!(set.head.files, 360);
        assert_eq!((set.files[0].path.as_str(), set.files[0].bytes), ("/dir00000/class0_1", 102));
        assert_eq!((set.files[359].path.as_str(), set.files[359].bytes), ("/dir00009/class3_9", 921_600));
        let shares = [0.35, 0.5, 0.14, 0.01];
        for (name, share) in ["class0", "class1", "class2", "class3"].into_iter().zip(shares) {
            let sum: f64 = class(&set, name).map(|file| file.weight).sum();
            assert!((sum - share).abs() < 1e-9, "{name}: {sum}");
        }
        // Hu, section 2.2: class 3 is 90 % of the bytes.
        let large: u64 = class(&set, "class3").map(|file| file.bytes).sum();
        assert!((0.89..0.91).contains(&(large as f64 / set.head.bytes as f64)));
        // The middle of a class has most requests.
        assert!(set.files[4].weight > set.files[0].weight && set.files[4].weight > set.files[8].weight);
    }

    #[test]
    fn webstone_has_sizes_shares_and_means_of_its_tables() {
        for (scale, times, mean) in
            [("1/4", 0.25, 7.00), ("1/2", 0.5, 14.82), ("1", 1.0, 29.31), ("2", 2.0, 58.73), ("4", 4.0, 117.46)]
        {
            let set = webstone(scale.parse().expect(scale), 1);
            assert!((set.mean_bytes() / 1024.0 - mean).abs() < 0.005, "{scale}: {}", set.mean_bytes());
            for (name, _, files, kib, access) in WEBSTONE {
                let (count, bytes) = (class(&set, name).count(), class(&set, name).map(|file| file.bytes).sum::<u64>());
                assert_eq!((count as u64, bytes as f64), (files, kib as f64 * 1024.0 * times), "{scale} {name}");
                let sum: f64 = class(&set, name).map(|file| file.weight).sum();
                assert!((sum - access).abs() < 1e-9, "{scale} {name}: {sum}");
            }
            // No file is left out, and none is much more popular than the others of its class.
            let lean = set.files.iter().map(|file| {
                let (_, _, n, _, access) = WEBSTONE.into_iter().find(|row| row.0 == file.class).expect("a class");
                file.weight * n as f64 / access
            });
            assert!(lean.clone().all(|lean| (0.8..1.2).contains(&lean)), "{scale}: {:?}", lean.collect::<Vec<_>>());
            assert!(set.files.iter().all(|file| file.bytes > 0), "{scale}");
        }
        assert!("3".parse::<Scale>().is_err());
    }

    fn log(lines: &[(&str, u16, &str)]) -> Log {
        let line = |(path, status, bytes): &(&str, u16, &str)| {
            format!("h - - [01/Aug/1995:00:00:00 +0000] \"GET {path} HTTP/1.0\" {status} {bytes}\n")
        };
        Log::read_from(lines.iter().map(line).collect::<String>().as_bytes())
    }

    #[test]
    fn file_set_is_derived_from_log() {
        let log = log(&[
            ("/", 200, "10"),
            ("/a", 200, "100"),
            ("/index.html?x", 304, "0"),
            ("/a", 200, "65"),
            ("/gone", 404, "7"),
            ("/%61", 503, "9"),
            ("/unknown", 304, "-"),
            ("/a/b", 200, "5"),
            ("/..", 200, "5"),
            ("/c/d", 200, "1000"),
            ("/c", 200, "5"),
            ("/e", 200, "1"),
        ]);
        let check = |dataset: Option<u64>, files: &[(&str, u64, f64)], expected: LogFileSet| {
            let (manifest, file_set) = of_log(&log, "x.log", dataset.map(Bytes), 1).expect("files");
            let found: Vec<_> =
                manifest.files.iter().map(|file| (file.path.as_str(), file.bytes, file.weight)).collect();
            assert_eq!(found, files, "{dataset:?}");
            assert_eq!(file_set, expected, "{dataset:?}");
            assert_eq!(manifest.head.requests, Some(file_set.requests));
            assert_eq!(Manifest::parse(&manifest.to_text()), Ok(manifest));
        };
        // 10 and 100, 5 for each name of both a file and a directory, 1000, 1.
        let whole = Bytes(1121);
        let all = [("/", 10, 2.0), ("/a", 100, 3.0), ("/c/d", 1000, 1.0), ("/e", 1, 1.0)];
        check(None, &all, LogFileSet { requests: 12, whole, unsized_files: 1, impossible: 3 });
        check(Some(5000), &all, LogFileSet { requests: 12, whole, unsized_files: 1, impossible: 3 });
        // Cut at the request for `/c/d`.
        check(Some(1000), &all[..2], LogFileSet { requests: 9, whole, unsized_files: 1, impossible: 2 });
        check(Some(109), &[("/", 10, 1.0)], LogFileSet { requests: 1, whole, unsized_files: 0, impossible: 0 });
        let fails = |log: &Log, most| of_log(log, "x.log", most, 1).expect_err("nothing").to_string();
        assert!(fails(&log, Some(Bytes(9))).contains("is larger than 9B: raise --dataset"));
        let none = self::log(&[("/a", 404, "5"), ("/b", 304, "0")]);
        for most in [None, Some(Bytes(9))] {
            assert!(fails(&none, most).contains("has no file size"));
        }
    }

    fn small() -> Manifest {
        let file = |path: &str, bytes| (path.to_owned(), bytes, "x".to_owned(), 1.0);
        Manifest::new("test".to_owned(), 3, [file("/", 10), file("/a/b/c", 200_000), file("/a/empty", 0)])
    }

    #[test]
    fn file_set_is_written_once_and_repaired() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let folder = home.path().join("new/set");
        let mut reported = 0;
        let done = write(&small(), &folder, |bytes| reported += bytes).expect("written");
        assert_eq!((done, reported), (Written { written: 3, kept: 0 }, 200_010));
        assert_eq!(Manifest::read(&folder).expect("beside its files"), small());
        let bytes = fs::read(folder.join("a/b/c")).expect("written");
        assert!(bytes.len() == 200_000 && Content::new(small().files[1].seed).is_next(&bytes));

        let again = || write(&small(), &folder, |_| ()).expect("the same set");
        assert_eq!(again(), Written { written: 0, kept: 3 });
        fs::remove_file(folder.join("index.html")).expect("removed");
        let mut damaged = bytes.clone();
        damaged[150_000] ^= 1;
        fs::write(folder.join("a/b/c"), damaged).expect("written");
        assert_eq!(again(), Written { written: 2, kept: 1 });
        assert_eq!(fs::read(folder.join("a/b/c")).expect("repaired"), bytes);
        fs::write(folder.join("a/b/c"), "cut").expect("written");
        assert_eq!(again(), Written { written: 1, kept: 2 });
    }

    #[test]
    fn foreign_directory_is_not_overwritten() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let fails =
            |manifest: &Manifest, folder: &Path| write(manifest, folder, |_| ()).expect_err("refused").to_string();
        let other = home.path().join("other");
        fs::create_dir(&other).expect("made");
        write(&small(), &other, |_| ()).expect("an empty directory is accepted");
        let another = Manifest::new("another".to_owned(), 3, [("/x".to_owned(), 1, String::new(), 1.0)]);
        assert!(fails(&another, &other).contains("is not empty and has another file set"));
        assert!(!other.join("x").exists());
        // A file, a directory and a link that are not part of the set.
        for (at, make) in
            [|path: &Path| fs::write(path, ""), |path: &Path| fs::create_dir(path), |path: &Path| symlink("/", path)]
                .iter()
                .enumerate()
        {
            let stranger = other.join(format!("a/stranger{at}"));
            make(&stranger).expect("made");
            assert!(fails(&small(), &other).contains("which does not belong to it"), "{at}");
            if at == 1 { fs::remove_dir(&stranger) } else { fs::remove_file(&stranger) }.expect("removed");
        }
        // A link in the place of a file is not followed.
        let target = home.path().join("target");
        fs::write(&target, "mine").expect("written");
        fs::remove_file(other.join("index.html")).expect("removed");
        symlink(&target, other.join("index.html")).expect("linked");
        assert!(fails(&small(), &other).contains("`index.html`"));
        assert_eq!(fs::read_to_string(&target).expect("untouched"), "mine");
        let plain = home.path().join("target");
        assert!(fails(&small(), &plain).contains("target"));
    }

    #[test]
    fn oversized_file_set_does_not_fill_disk() {
        let room = |bytes_total: u64, bytes_free, files_free| Space { bytes_total, bytes_free, files_free };
        let need = |sizes: &[u64]| {
            let mut need = Need::default();
            sizes.iter().for_each(|bytes| need.add(*bytes));
            need
        };
        let mib = 1 << 20;
        assert_eq!(need(&[0, 1, 4096]), Need { files: 3, bytes: 8192 });
        assert!(need(&[90 * mib]).fits(&room(200 * mib, 100 * mib, None)).is_ok());
        let error = need(&[91 * mib]).fits(&room(200 * mib, 100 * mib, None)).expect_err("no room");
        assert!(error.contains("for 91 MiB: 100 MiB are free, of which 10 MiB are reserved"), "{error}");
        // The reserve of a large disk is at most 1 GiB; an empty need fits a full disk.
        assert!(need(&[99 << 30]).fits(&room(1 << 50, 100 << 30, None)).is_ok());
        assert!(need(&[]).fits(&room(100, 0, Some(0))).is_ok());
        assert!(need(&[1, 1]).fits(&room(1 << 40, 1 << 40, Some(2))).is_ok());
        assert!(
            need(&[1, 1, 1])
                .fits(&room(1 << 40, 1 << 40, Some(2)))
                .expect_err("no inodes")
                .contains("inodes for 3 files: the file system has 2")
        );
        assert!(need(&[u64::MAX, u64::MAX]).fits(&room(u64::MAX, u64::MAX, None)).is_err());

        let home = tempfile::tempdir().expect("a temporary directory");
        let folder = home.path().join("set");
        let huge = Manifest::new(String::new(), 1, [("/x".to_owned(), 1 << 60, String::new(), 1.0)]);
        let error = write(&huge, &folder, |_| ()).expect_err("no room").to_string();
        assert!(error.contains("choose another disk") && !folder.exists(), "{error}");
    }
}
