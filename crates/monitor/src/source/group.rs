//! Control groups (cgroups(7)): the limits that an administrator sets for a server, and how often it was throttled.
//!
//! A limit of a group applies to all groups below it, so the ancestors count as well. In version 1 each controller has
//! a hierarchy of its own, in version 2 there is one; [`Limits`] describes one directory of one hierarchy. [`FILES`]
//! lists the files, by the names of both versions.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::figure::figures;

figures! {
    /// A control group, since it was created.
    Group "group" {
        /// Its directory.
        path: String,
    }
    /// CPU time that members of a control group may use per period; absent if unlimited.
    quota: Option<N> => Gauge Seconds,
    /// Length of a period of a control group.
    period: Option<N> => Gauge Seconds,
    /// Periods in which a member of a control group was runnable.
    periods: Option<N> => Counter Things "nr_periods",
    /// Periods in which the quota of a control group was exhausted.
    throttled_periods: Option<N> => Counter Things "nr_throttled",
    /// Time for which members of a control group were throttled, on all processors in total.
    throttled: Option<N> => Counter Seconds "throttled_time",
    /// Memory limit of a control group, including page cache; absent if unlimited.
    memory_max: Option<N> => Gauge Bytes,
    /// Memory that members of a control group use.
    memory: Option<N> => Gauge Bytes,
    /// The part of it that is page cache.
    page_cache: Option<N> => Gauge Bytes,
}

figures! {
    /// The disk limits of a group per second, and its totals, if the kernel counts them.
    GroupDisk "group_disk" {
        /// The directory of the group.
        path: String,
        /// The disk, as `major:minor`.
        device: String,
    }
    /// Bytes that a control group may read per second.
    read_max: Option<N> => Gauge Bytes "rbps",
    /// Bytes that a control group may write per second.
    written_max: Option<N> => Gauge Bytes "wbps",
    /// Reads that a control group may make per second.
    reads_max: Option<N> => Gauge Things "riops",
    /// Writes that a control group may make per second.
    writes_max: Option<N> => Gauge Things "wiops",
    /// Bytes that a control group read.
    read: Option<N> => Counter Bytes "rbytes",
    /// Bytes that a control group wrote.
    written: Option<N> => Counter Bytes "wbytes",
    /// Reads that a control group made.
    reads: Option<N> => Counter Things "rios",
    /// Writes that a control group made.
    writes: Option<N> => Counter Things "wios",
}

/// The content of a group's files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// The group.
    pub group: Group,
    /// The disks with limits.
    pub disks: Vec<GroupDisk>,
}

/// Parses a file into the limits.
type Take = fn(&mut Limits, &str);

/// The files of a group, as far as they exist.
pub(crate) const FILES: [(&str, Take); 17] = [
    ("cpu.stat", Limits::take_cpu_stat),
    ("cpu.cfs_quota_us", |limits, text| limits.group.quota = ns(text)),
    ("cpu.cfs_period_us", |limits, text| limits.group.period = ns(text)),
    ("cpu.max", |limits, text| {
        let mut words = text.split_ascii_whitespace().map(ns);
        limits.group.quota = words.next().flatten();
        limits.group.period = words.next().flatten();
    }),
    ("blkio.throttle.read_bps_device", |limits, text| limits.take_devices(text, "rbps")),
    ("blkio.throttle.write_bps_device", |limits, text| limits.take_devices(text, "wbps")),
    ("blkio.throttle.read_iops_device", |limits, text| limits.take_devices(text, "riops")),
    ("blkio.throttle.write_iops_device", |limits, text| limits.take_devices(text, "wiops")),
    ("io.max", |limits, text| limits.take_words(text, true)),
    // After the limits: disks without one are not counted.
    ("blkio.throttle.io_service_bytes", |limits, text| limits.take_counts(text, "rbytes", "wbytes")),
    ("blkio.throttle.io_serviced", |limits, text| limits.take_counts(text, "rios", "wios")),
    ("io.stat", |limits, text| limits.take_words(text, false)),
    // Version 1 represents "unlimited" as the largest number of pages.
    ("memory.limit_in_bytes", |limits, text| {
        limits.group.memory_max = number(text).filter(|bytes| *bytes < 1 << 60);
    }),
    ("memory.usage_in_bytes", |limits, text| limits.group.memory = number(text)),
    ("memory.max", |limits, text| limits.group.memory_max = number(text)),
    ("memory.current", |limits, text| limits.group.memory = number(text)),
    ("memory.stat", |limits, text| {
        // With the groups below it, by the names of version 2 and of version 1.
        let cache = |line: &str| line.strip_prefix("file ").or(line.strip_prefix("total_cache ")).and_then(number);
        limits.group.page_cache = text.lines().find_map(cache);
    }),
];

impl Group<f64> {
    /// CPU quota of its members, in cores; `None` if unlimited.
    pub fn cores_max(&self) -> Option<f64> {
        Some(self.quota? / self.period.filter(|period| *period > 0.0)?)
    }
}

impl Limits {
    /// Opens the files of the group in this directory.
    pub(crate) fn of(folder: &Path) -> Limits {
        let group = Group { path: folder.display().to_string(), ..Group::default() };
        Limits { group, disks: Vec::new() }
    }

    /// Whether any limit is set.
    pub fn is_limited(&self) -> bool {
        // For other disks the kernel only counts.
        let is_limited = |disk: &GroupDisk| {
            [disk.read_max, disk.written_max, disk.reads_max, disk.writes_max].iter().any(Option::is_some)
        };
        self.group.quota.is_some() || self.group.memory_max.is_some() || self.disks.iter().any(is_limited)
    }

    fn take_cpu_stat(&mut self, text: &str) {
        for (name, figure) in text.lines().filter_map(|line| line.split_once(' ')) {
            match (name, number(figure)) {
                ("throttled_usec", Some(_)) => self.group.throttled = ns(figure),
                (name, figure) => figure.into_iter().for_each(|figure| self.group.take(name, figure)),
            }
        }
    }

    /// Parses lines such as `254:0 4096`.
    fn take_devices(&mut self, text: &str, name: &str) {
        for (device, limit) in text.lines().filter_map(|line| line.split_once(' ')) {
            number(limit).into_iter().for_each(|limit| self.disk(device).take(name, limit));
        }
    }

    /// Parses lines such as `254:0 rbps=4096 wbps=max` and `254:0 rbytes=4096 rios=1`.
    fn take_words(&mut self, text: &str, are_limits: bool) {
        for (device, words) in text.lines().filter_map(|line| line.split_once(' ')) {
            let numbers = words.split(' ').filter_map(|word| word.split_once('='));
            for (name, number) in numbers.filter_map(|(name, text)| Some((name, number(text)?))) {
                if are_limits || self.disks.iter().any(|disk| disk.device == device) {
                    self.disk(device).take(name, number);
                }
            }
        }
    }

    /// Parses lines such as `254:0 Read 4096`, with totals among them.
    fn take_counts(&mut self, text: &str, read: &str, written: &str) {
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(device), Some(what), Some(count)) = (words.next(), words.next(), words.next()) else { continue };
            let Some(disk) = self.disks.iter_mut().find(|disk| disk.device == device) else { continue };
            let name = match what {
                "Read" => read,
                "Write" => written,
                _ => continue,
            };
            number(count).into_iter().for_each(|count| disk.take(name, count));
        }
    }

    fn disk(&mut self, device: &str) -> &mut GroupDisk {
        let at = self.disks.iter().position(|disk| disk.device == device).unwrap_or_else(|| {
            let (path, device) = (self.group.path.clone(), device.to_owned());
            self.disks.push(GroupDisk { path, device, ..GroupDisk::default() });
            self.disks.len() - 1
        });
        &mut self.disks[at]
    }
}

/// The directories of a process's groups and their ancestors, without the roots, which have no limits: from
/// `/proc/PID/cgroup` and `/proc/mounts`.
pub(crate) fn folders(groups: &str, mounts: &str) -> BTreeSet<PathBuf> {
    let mut folders = BTreeSet::new();
    for (_, root, own) in trees(groups, mounts) {
        let above = own.ancestors().filter(|folder| !folder.as_os_str().is_empty());
        folders.extend(above.map(|folder| root.join(folder)));
    }
    folders
}

/// The group of a process in the hierarchy of this controller: the root and the group's
/// directory. Falls back to the hierarchy of version 2.
pub(crate) fn folder_of(groups: &str, mounts: &str, controller: &str) -> Option<(PathBuf, PathBuf)> {
    let is_first = |names: &str| names.split(',').any(|name| name == controller);
    let found = trees(groups, mounts).find(|(names, ..)| is_first(names));
    let found = found.or_else(|| trees(groups, mounts).find(|(names, ..)| names.is_empty()));
    found.map(|(_, root, own)| (root.to_owned(), root.join(own)))
}

/// For each hierarchy its controllers, its root, and the process's directory below it.
fn trees<'a>(groups: &'a str, mounts: &'a str) -> impl Iterator<Item = (&'a str, &'a Path, &'a Path)> {
    groups.lines().filter_map(|line| {
        // Format number:controllers:path; no controllers means version 2.
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let root = mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (root, kind, options) = (words.next()?, words.next()?, words.next()?);
            let has = |name| options.split(',').any(|option| option == name);
            let is_it = match controllers {
                "" => kind == "cgroup2",
                names => kind == "cgroup" && names.split(',').all(has),
            };
            is_it.then_some(root)
        })?;
        Some((controllers, Path::new(root), Path::new(path.trim_start_matches('/'))))
    })
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// Microseconds as nanoseconds.
fn ns(text: &str) -> Option<u64> {
    number(text).map(|us| us.saturating_mul(1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(files: &[(&str, &str)]) -> Limits {
        let mut limits = Limits::default();
        for (name, text) in files {
            FILES.iter().find(|(known, _)| known == name).unwrap().1(&mut limits, text);
        }
        limits
    }

    #[test]
    fn cgroup_v1_and_v2_give_same_figures() {
        let disk = GroupDisk {
            device: "254:0".into(),
            read_max: Some(16_384),
            reads_max: Some(100),
            read: Some(8192),
            written: Some(0),
            reads: Some(2),
            writes: Some(0),
            ..GroupDisk::default()
        };
        let group = Group {
            quota: Some(20_000_000),
            period: Some(100_000_000),
            periods: Some(7),
            throttled_periods: Some(3),
            throttled: Some(5_000_000),
            memory_max: Some(1 << 20),
            memory: Some(4096),
            page_cache: Some(2048),
            ..Group::default()
        };
        let expected = Limits { group, disks: vec![disk] };
        let first = limits(&[
            ("cpu.stat", "nr_periods 7\nnr_throttled 3\nthrottled_time 5000000\nnr_bursts 0\n"),
            ("cpu.cfs_quota_us", "20000\n"),
            ("cpu.cfs_period_us", "100000\n"),
            ("blkio.throttle.read_bps_device", "254:0 16384\n"),
            ("blkio.throttle.write_bps_device", ""),
            ("blkio.throttle.read_iops_device", "254:0 100\n"),
            (
                "blkio.throttle.io_service_bytes",
                "254:0 Read 8192\n254:0 Write 0\n254:0 Total 8192\n8:0 Read 1\nTotal 8192\n",
            ),
            ("blkio.throttle.io_serviced", "254:0 Read 2\n254:0 Write 0\n254:0 Total 2\nTotal 2\n"),
            ("memory.limit_in_bytes", "1048576\n"),
            ("memory.usage_in_bytes", "4096\n"),
            ("memory.stat", "cache 1024\nrss 0\ntotal_cache 2048\n"),
        ]);
        assert_eq!(first, expected);
        let second = limits(&[
            ("cpu.stat", "usage_usec 9\nnr_periods 7\nnr_throttled 3\nthrottled_usec 5000\n"),
            ("cpu.max", "20000 100000\n"),
            ("io.max", "254:0 rbps=16384 wbps=max riops=100 wiops=max\n"),
            ("io.stat", "8:0 rbytes=1 rios=1\n254:0 rbytes=8192 wbytes=0 rios=2 wios=0 dbytes=0 dios=0\n"),
            ("memory.max", "1048576\n"),
            ("memory.current", "4096\n"),
            ("memory.stat", "anon 1\nfile 2048\nfile_mapped 3\n"),
        ]);
        assert_eq!(second, expected);
        assert!(first.is_limited() && (first.group.since(None, 1.0).cores_max().unwrap() - 0.2).abs() < 1e-12);
    }

    #[test]
    fn missing_limit_is_none() {
        for files in [
            &[
                ("cpu.cfs_quota_us", "-1\n"),
                ("cpu.cfs_period_us", "100000\n"),
                ("memory.limit_in_bytes", "9223372036854771712\n"),
            ][..],
            &[("cpu.max", "max 100000\n"), ("memory.max", "max\n"), ("io.max", "")],
            &[("cpu.max", ""), ("cpu.stat", "x\ny z\n"), ("io.max", "254:0\nnoise")],
        ] {
            let limits = limits(files);
            assert!(!limits.is_limited() && limits.group.quota.is_none(), "{limits:?}");
        }
        assert_eq!(limits(&[("cpu.max", "5 0\n")]).group.since(None, 1.0).cores_max(), None);
    }

    #[test]
    fn cgroup_paths_include_ancestors_in_v1_and_v2() {
        const MOUNTS: &str = "\
tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/blkio cgroup rw,blkio 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
";
        let found = folders("4:cpu,cpuacct:/a/b\n3:blkio:/\n2:memory:/lost\n1:name=systemd:/s\n0::/u\nnoise\n", MOUNTS);
        let expected = ["cpu,cpuacct/a", "cpu,cpuacct/a/b", "systemd/s", "unified/u"];
        assert_eq!(found, expected.iter().map(|path| Path::new("/sys/fs/cgroup").join(path)).collect());
        let groups = "4:cpu,cpuacct:/a/b\n3:blkio:/\n0::/u\n";
        let of = |controller| folder_of(groups, MOUNTS, controller).map(|found| found.1.display().to_string());
        assert_eq!(of("cpu").as_deref(), Some("/sys/fs/cgroup/cpu,cpuacct/a/b"));
        assert_eq!(of("blkio").as_deref(), Some("/sys/fs/cgroup/blkio/"));
        assert_eq!(of("memory").as_deref(), Some("/sys/fs/cgroup/unified/u"));
        assert_eq!(folder_of("noise", MOUNTS, "cpu"), None);
    }

    proptest::proptest! {
        #[test]
        fn random_text_does_not_panic(text in "([a-z0-9:=,/ -]{0,30}\n?){0,6}") {
            for (_, take) in FILES {
                take(&mut Limits::default(), &text);
            }
            folders(&text, &text);
        }
    }
}
