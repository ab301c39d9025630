//! Control groups (cgroups(7)): what an administrator lets a server have, and how often it was made to wait for more.
//!
//! A limit of a group holds for all below it, so those above count as well. In version 1 each controller is a tree of its
//! own, in version 2 there is one; a [`Group`] is one folder of one tree, with what its files say. Which files those are is
//! in [`FILES`], by both versions' names.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::figure::figures;

/// A group that limits something.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Its folder.
    pub path: String,
    /// Microseconds of CPU time that its members may use in a period; `None`: as much as there is.
    pub quota_us: Option<u64>,
    /// How long a period is, in microseconds.
    pub period_us: Option<u64>,
    /// Periods in which a member wanted to run.
    pub periods: u64,
    /// Of those, in which the quota was used up.
    pub throttled_periods: u64,
    /// Nanoseconds for which members were kept from running, all processors together.
    pub throttled_ns: u64,
    /// What its members may have of disks.
    pub disks: Vec<DiskLimit>,
    /// Bytes of memory that they may have, page cache included; `None`: as much as there is.
    pub memory_max_bytes: Option<u64>,
    /// Bytes of memory that they have.
    pub memory_bytes: Option<u64>,
}

/// What a group may have of a disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskLimit {
    /// The disk's numbers, `major:minor`.
    pub device: String,
    /// Bytes read a second.
    pub read_bytes_per_s: Option<u64>,
    /// Bytes written a second.
    pub write_bytes_per_s: Option<u64>,
    /// Reads a second.
    #[serde(default)]
    pub reads_per_s: Option<u64>,
    /// Writes a second.
    #[serde(default)]
    pub writes_per_s: Option<u64>,
    /// What its members had so far, where the kernel counts it.
    #[serde(default)]
    pub had: DiskCount,
}

figures! {
    /// What a group had of a disk so far, where the kernel counts it.
    DiskCount "group_disk"
    /// Bytes read.
    read: Option<N> => Counter Bytes "rbytes",
    /// Bytes written.
    written: Option<N> => Counter Bytes "wbytes",
    /// Reads.
    reads: Option<N> => Counter Things "rios",
    /// Writes.
    writes: Option<N> => Counter Things "wios",
}

impl DiskLimit {
    /// Whether it limits anything; else the kernel only counts.
    fn is_limited(&self) -> bool {
        let limits = [self.read_bytes_per_s, self.write_bytes_per_s, self.reads_per_s, self.writes_per_s];
        limits.iter().any(Option::is_some)
    }
}

/// Takes what a file says.
type Take = fn(&mut Group, &str);

/// What is read of a group, where it is there.
pub(crate) const FILES: [(&str, Take); 16] = [
    ("cpu.stat", Group::take_cpu_stat),
    ("cpu.cfs_quota_us", |group, text| group.quota_us = number(text)),
    ("cpu.cfs_period_us", |group, text| group.period_us = number(text)),
    ("cpu.max", |group, text| {
        let mut words = text.split_ascii_whitespace().map(|word| word.parse().ok());
        group.quota_us = words.next().flatten();
        group.period_us = words.next().flatten();
    }),
    ("blkio.throttle.read_bps_device", |group, text| group.take_devices(text, |disk| &mut disk.read_bytes_per_s)),
    ("blkio.throttle.write_bps_device", |group, text| group.take_devices(text, |disk| &mut disk.write_bytes_per_s)),
    ("blkio.throttle.read_iops_device", |group, text| group.take_devices(text, |disk| &mut disk.reads_per_s)),
    ("blkio.throttle.write_iops_device", |group, text| group.take_devices(text, |disk| &mut disk.writes_per_s)),
    ("io.max", Group::take_io_max),
    // Behind the limits: disks without one are not counted.
    ("blkio.throttle.io_service_bytes", |group, text| {
        group.take_counts(text, |had| &mut had.read, |had| &mut had.written);
    }),
    ("blkio.throttle.io_serviced", |group, text| {
        group.take_counts(text, |had| &mut had.reads, |had| &mut had.writes);
    }),
    ("io.stat", Group::take_io_stat),
    // Version 1 says "none" as the largest number of pages.
    ("memory.limit_in_bytes", |group, text| group.memory_max_bytes = number(text).filter(|bytes| *bytes < 1 << 60)),
    ("memory.usage_in_bytes", |group, text| group.memory_bytes = number(text)),
    ("memory.max", |group, text| group.memory_max_bytes = number(text)),
    ("memory.current", |group, text| group.memory_bytes = number(text)),
];

impl Group {
    /// Cores' worth of CPU time that its members may use; `None`: as much as there is.
    pub fn cores_max(&self) -> Option<f64> {
        Some(self.quota_us? as f64 / self.period_us.filter(|period| *period > 0)? as f64)
    }

    /// Whether it limits anything.
    pub fn is_limited(&self) -> bool {
        self.quota_us.is_some() || self.disks.iter().any(DiskLimit::is_limited) || self.memory_max_bytes.is_some()
    }

    fn take_cpu_stat(&mut self, text: &str) {
        for line in text.lines() {
            let Some((name, figure)) = line.split_once(' ') else { continue };
            let Some(figure) = number(figure) else { continue };
            match name {
                "nr_periods" => self.periods = figure,
                "nr_throttled" => self.throttled_periods = figure,
                "throttled_time" => self.throttled_ns = figure,
                "throttled_usec" => self.throttled_ns = figure.saturating_mul(1000),
                _ => {}
            }
        }
    }

    fn take_devices(&mut self, text: &str, of: fn(&mut DiskLimit) -> &mut Option<u64>) {
        for line in text.lines() {
            let Some((device, bytes)) = line.split_once(' ') else { continue };
            if let Some(bytes) = number(bytes) {
                *of(self.disk(device)) = Some(bytes);
            }
        }
    }

    fn take_io_max(&mut self, text: &str) {
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let Some(device) = words.next() else { continue };
            for (name, bytes) in words.filter_map(|word| word.split_once('=')) {
                let Some(bytes) = number(bytes) else { continue };
                match name {
                    "rbps" => self.disk(device).read_bytes_per_s = Some(bytes),
                    "wbps" => self.disk(device).write_bytes_per_s = Some(bytes),
                    "riops" => self.disk(device).reads_per_s = Some(bytes),
                    "wiops" => self.disk(device).writes_per_s = Some(bytes),
                    _ => {}
                }
            }
        }
    }

    /// Lines such as `254:0 Read 4096`, with totals among them.
    fn take_counts(
        &mut self,
        text: &str,
        reads: fn(&mut DiskCount) -> &mut Option<u64>,
        writes: fn(&mut DiskCount) -> &mut Option<u64>,
    ) {
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(device), Some(what), Some(count)) = (words.next(), words.next(), words.next()) else { continue };
            let Some(disk) = self.disks.iter_mut().find(|disk| disk.device == device) else { continue };
            match what {
                "Read" => *reads(&mut disk.had) = number(count),
                "Write" => *writes(&mut disk.had) = number(count),
                _ => {}
            }
        }
    }

    /// Lines such as `254:0 rbytes=4096 wbytes=0 rios=1 wios=0`.
    fn take_io_stat(&mut self, text: &str) {
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let Some(device) = words.next() else { continue };
            let Some(disk) = self.disks.iter_mut().find(|disk| disk.device == device) else { continue };
            for (name, count) in words.filter_map(|word| word.split_once('=')) {
                number(count).into_iter().for_each(|count| disk.had.take(name, count));
            }
        }
    }

    fn disk(&mut self, device: &str) -> &mut DiskLimit {
        let at = self.disks.iter().position(|disk| disk.device == device).unwrap_or_else(|| {
            self.disks.push(DiskLimit { device: device.to_owned(), ..DiskLimit::default() });
            self.disks.len() - 1
        });
        &mut self.disks[at]
    }
}

/// The folders of a process's groups and of those above them, without the roots, which limit nothing: from
/// `/proc/PID/cgroup` and `/proc/mounts`.
pub(crate) fn folders(groups: &str, mounts: &str) -> BTreeSet<PathBuf> {
    let mut folders = BTreeSet::new();
    for (_, root, own) in trees(groups, mounts) {
        let above = own.ancestors().filter(|folder| !folder.as_os_str().is_empty());
        folders.extend(above.map(|folder| root.join(folder)));
    }
    folders
}

/// The group of a process in the tree that has this controller: the tree's root, and the group's folder. Without one of
/// version 1, the tree of version 2.
pub(crate) fn folder_of(groups: &str, mounts: &str, controller: &str) -> Option<(PathBuf, PathBuf)> {
    let is_first = |names: &str| names.split(',').any(|name| name == controller);
    let found = trees(groups, mounts).find(|(names, ..)| is_first(names));
    let found = found.or_else(|| trees(groups, mounts).find(|(names, ..)| names.is_empty()));
    found.map(|(_, root, own)| (root.to_owned(), root.join(own)))
}

/// Of each tree its controllers, its root, and the process's folder beneath it.
fn trees<'a>(groups: &'a str, mounts: &'a str) -> impl Iterator<Item = (&'a str, &'a Path, &'a Path)> {
    groups.lines().filter_map(|line| {
        // number:controllers:path; no controllers: version 2.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn group(files: &[(&str, &str)]) -> Group {
        let mut group = Group::default();
        for (name, text) in files {
            FILES.iter().find(|(known, _)| known == name).unwrap().1(&mut group, text);
        }
        group
    }

    #[test]
    fn both_versions_say_the_same() {
        let disk = |write| DiskLimit {
            device: "254:0".into(),
            read_bytes_per_s: Some(16_384),
            write_bytes_per_s: write,
            reads_per_s: Some(100),
            had: DiskCount { read: Some(8192), written: Some(0), reads: Some(2), writes: Some(0) },
            ..DiskLimit::default()
        };
        let expected = Group {
            quota_us: Some(20_000),
            period_us: Some(100_000),
            periods: 7,
            throttled_periods: 3,
            throttled_ns: 5_000_000,
            disks: vec![disk(None)],
            memory_max_bytes: Some(1 << 20),
            memory_bytes: Some(4096),
            ..Group::default()
        };
        let first = group(&[
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
        ]);
        assert_eq!(first, expected);
        let second = group(&[
            ("cpu.stat", "usage_usec 9\nnr_periods 7\nnr_throttled 3\nthrottled_usec 5000\n"),
            ("cpu.max", "20000 100000\n"),
            ("io.max", "254:0 rbps=16384 wbps=max riops=100 wiops=max\n"),
            ("io.stat", "8:0 rbytes=1 rios=1\n254:0 rbytes=8192 wbytes=0 rios=2 wios=0 dbytes=0 dios=0\n"),
            ("memory.max", "1048576\n"),
            ("memory.current", "4096\n"),
        ]);
        assert_eq!(second, expected);
        assert!(first.is_limited() && (first.cores_max().unwrap() - 0.2).abs() < 1e-12);
    }

    #[test]
    fn no_limit_is_none() {
        for files in [
            &[
                ("cpu.cfs_quota_us", "-1\n"),
                ("cpu.cfs_period_us", "100000\n"),
                ("memory.limit_in_bytes", "9223372036854771712\n"),
            ][..],
            &[("cpu.max", "max 100000\n"), ("memory.max", "max\n"), ("io.max", "")],
            &[("cpu.max", ""), ("cpu.stat", "x\ny z\n"), ("io.max", "254:0\nnoise")],
        ] {
            let group = group(files);
            assert!(!group.is_limited() && group.cores_max().is_none(), "{group:?}");
        }
        assert_eq!(group(&[("cpu.max", "5 0\n")]).cores_max(), None);
    }

    #[test]
    fn folders_of_both_versions_and_all_above() {
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
        fn no_text_makes_it_stop(text in "([a-z0-9:=,/ -]{0,30}\n?){0,6}") {
            for (_, take) in FILES {
                take(&mut Group::default(), &text);
            }
            folders(&text, &text);
        }
    }
}
