//! Figures that a server publishes: the server module of WebMonitor, seen by the monitor.
//!
//! A server may count its work in a memory-mapped file; `amped` does, and docs/metrics-file.md describes the layout.
//! This reader implements that page and relies on the names in the file, not on any server's code: it also reads
//! another server's file of that format.
//!
//! The file is mapped, and its words are read one by one, so that reading costs the server nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use amped_measure::Failure;
use amped_sys::words::View;
use serde::{Deserialize, Serialize};

/// The counters of a server since its start, over all of its loops.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Module {
    /// Counters by their names in the file; one of several has the form `name{label="value"}`. Times are in
    /// nanoseconds, `name_ns`; bytes are `name_bytes`.
    pub counters: BTreeMap<String, u64>,
    /// Current values.
    pub gauges: BTreeMap<String, u64>,
    /// Requests by class.
    pub classes: Vec<Class>,
    /// Histograms: the first bucket ends at 2^this nanoseconds, each further one at twice the one before.
    pub first_bucket_bits: u32,
}

/// The requests of a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Class {
    /// Range of body sizes, such as `<10K`.
    pub size: String,
    /// Static or dynamic.
    pub kind: String,
    /// Replies whose last byte was passed to the kernel.
    pub replies: u64,
    /// Bytes of their bodies.
    pub body_bytes: u64,
    /// Replies that were timed.
    pub timed: u64,
    /// The times of these, by phase.
    pub phases: Vec<Phase>,
}

/// A phase of the timed requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// Elapsed time, in nanoseconds.
    pub elapsed_ns: u64,
    /// CPU time, in nanoseconds.
    pub cpu_ns: u64,
    /// Histogram of elapsed times.
    pub buckets: Vec<u64>,
}

/// The file, while its server may write to it.
#[derive(Debug)]
pub struct Published {
    path: PathBuf,
    /// Device and inode; another server has another file.
    identity: (u64, u64),
    view: View,
    layout: Layout,
}

/// The layout of the file, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Layout {
    slots_at: usize,
    slot: usize,
    slots: usize,
    figures_at: usize,
    buckets: usize,
    first_bucket_bits: u32,
    figures: Vec<Figure>,
    /// Size and kind.
    classes: Vec<(String, String)>,
    phases: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Figure {
    key: String,
    is_gauge: bool,
}

const MAGIC: &[u8] = b"AMPEDMET";
const VERSION: u64 = 1;
/// Offset of the names, in bytes.
const NAMES_AT: usize = 128;
/// In a slot: number of owners so far.
const OWNERS: usize = 1;
/// In a class: replies, bytes of bodies, timed replies; followed by the phases.
const CLASS_HEAD: usize = 3;
/// In a phase: elapsed and CPU time; followed by the buckets.
const PHASE_HEAD: usize = 2;
/// Maximum of any count in the header; a larger one means an invalid file.
const PARTS_MAX: u64 = 1 << 20;

impl Published {
    /// Opens a file by name.
    ///
    /// # Errors
    /// When it does not exist, may not be read, or has another format.
    pub fn open(path: &Path) -> Result<Published, Failure> {
        let shown = path.display();
        Published::try_open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Failure::failed(format!(
                "no metrics file {shown}: start the server with one (amped: --metrics-file), or name another"
            )),
            io::ErrorKind::InvalidData => Failure::failed(format!("{shown} is not a metrics file ({error})")),
            _ => Failure::failed(format!("cannot read {shown}: {error}")),
        })
    }

    /// Finds the file that one of these processes has mapped, if there is one and it may be read.
    pub fn find(pids: &BTreeSet<u32>) -> Option<Published> {
        pids.iter().find_map(|pid| {
            let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
            // The process may have another root directory.
            let seen_by_it = |path: &str| PathBuf::from(format!("/proc/{pid}/root{path}"));
            shared_files(&maps).into_iter().find_map(|path| Published::try_open(&seen_by_it(path)).ok())
        })
    }

    /// Whether the name still refers to this file.
    pub fn is_current(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|status| (status.dev(), status.ino()) == self.identity)
    }

    /// The current sum of all slots.
    pub fn read(&self) -> Module {
        self.layout.sum(|at| self.view.load(at).unwrap_or(0))
    }

    /// Reads a file from its words, for tests of arbitrary files.
    ///
    /// # Errors
    /// Why it is invalid.
    pub fn of_words(words: &[u64]) -> Result<Module, String> {
        let layout = Layout::read(|at| words.get(at).copied())?;
        Ok(layout.sum(|at| words.get(at).copied().unwrap_or(0)))
    }

    fn try_open(path: &Path) -> io::Result<Published> {
        let view = View::open(path, |begin| begin.starts_with(MAGIC))?;
        let status = fs::metadata(path)?;
        let layout = Layout::read(|at| view.load(at)).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
        Ok(Published { path: path.to_owned(), identity: (status.dev(), status.ino()), view, layout })
    }
}

/// Files that a process has mapped shared and writable, from the text of its `/proc/PID/maps` (proc_pid_maps(5)).
fn shared_files(maps: &str) -> Vec<&str> {
    let path_of = |line: &'_ str| -> Option<usize> {
        let rights = line.split_ascii_whitespace().nth(1)?;
        // Five columns, then the name, which may contain blanks.
        (rights == "rw-s").then(|| line.find('/')).flatten()
    };
    let mut found: Vec<&str> = maps.lines().filter_map(|line| path_of(line).map(|at| &line[at..])).collect();
    found
        .retain(|path| !path.ends_with(" (deleted)") && !path.starts_with("/dev/zero") && !path.starts_with("/memfd:"));
    found
}

impl Layout {
    /// Reads the layout from the header of a file. `load` returns a word, or `None` after the end.
    fn read(load: impl Fn(usize) -> Option<u64>) -> Result<Layout, String> {
        let word = |at: usize| load(at).ok_or_else(|| "its header is truncated".to_owned());
        match word(1)? {
            VERSION => {}
            other => return Err(format!("its format version is {other}, and this program reads version {VERSION}")),
        }
        let mut numbers = [0; 12];
        for (at, number) in (2..).zip(&mut numbers) {
            *number = word(at)?;
            // Only the start time may be large.
            if at != 6 && *number > PARTS_MAX * 8 {
                return Err(format!("invalid number {number} in its header"));
            }
        }
        let [slots_at, slot, slots, _pid, _began, figures, classes, phases, buckets, bits, figures_at, names] = numbers;
        let mut text = Vec::new();
        for at in 0..(names as usize).div_ceil(8) {
            text.extend_from_slice(&word(NAMES_AT / 8 + at)?.to_ne_bytes());
        }
        text.truncate(names as usize);
        let text = String::from_utf8(text).map_err(|_| "its names are not valid UTF-8".to_owned())?;
        let mut layout = Layout {
            slots_at: slots_at as usize / 8,
            slot: slot as usize / 8,
            slots: slots as usize,
            figures_at: figures_at as usize / 8,
            buckets: buckets as usize,
            first_bucket_bits: bits as u32,
            figures: Vec::new(),
            classes: Vec::new(),
            phases: Vec::new(),
        };
        for line in text.lines() {
            let columns: Vec<&str> = line.splitn(5, ' ').collect();
            match columns[..] {
                ["figure", name, kind, unit, labels] => {
                    let unit = match unit {
                        "bytes" => "_bytes",
                        "nanoseconds" => "_ns",
                        _ => "",
                    };
                    let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
                    layout.figures.push(Figure { key: format!("{name}{unit}{labels}"), is_gauge: kind == "gauge" });
                }
                ["class", size, kind, _end] => layout.classes.push((size.to_owned(), kind.to_owned())),
                ["phase", name] => layout.phases.push(name.to_owned()),
                // A later server may add kinds.
                _ => {}
            }
        }
        let counted = [layout.figures.len(), layout.classes.len(), layout.phases.len()].map(|count| count as u64);
        if counted != [figures, classes, phases] {
            return Err("the names in its header do not match its counts".to_owned());
        }
        // The ends of buckets must fit into a word.
        if bits + buckets > 63 {
            return Err(format!("invalid histogram in its header: {buckets} buckets from 2^{bits} ns"));
        }
        let slot_words = layout.figures_at + layout.figures.len() + layout.classes.len() * layout.class_words();
        let end = layout.slots.checked_mul(layout.slot).and_then(|words| words.checked_add(layout.slots_at));
        if slot_words > layout.slot || end.is_none_or(|end| end == 0 || load(end - 1).is_none()) {
            return Err("it is shorter than its header says".to_owned());
        }
        Ok(layout)
    }

    fn phase_words(&self) -> usize {
        PHASE_HEAD + self.buckets
    }

    fn class_words(&self) -> usize {
        CLASS_HEAD + self.phases.len() * self.phase_words()
    }

    /// Adds up the slots.
    fn sum(&self, load: impl Fn(usize) -> u64) -> Module {
        let begins = (0..self.slots).map(|slot| self.slots_at + slot * self.slot);
        let used: Vec<usize> = begins.filter(|begin| load(begin + OWNERS) > 0).collect();
        let sum = |at: usize| used.iter().fold(0u64, |sum, begin| sum.wrapping_add(load(begin + at)));
        let mut module = Module { first_bucket_bits: self.first_bucket_bits, ..Module::default() };
        for (figure, at) in self.figures.iter().zip(self.figures_at..) {
            let map = if figure.is_gauge { &mut module.gauges } else { &mut module.counters };
            map.insert(figure.key.clone(), sum(at));
        }
        let classes_at = self.figures_at + self.figures.len();
        for (number, (size, kind)) in self.classes.iter().enumerate() {
            let at = classes_at + number * self.class_words();
            let replies = sum(at);
            let mut class = Class { size: size.clone(), kind: kind.clone(), replies, ..Class::default() };
            (class.body_bytes, class.timed) = (sum(at + 1), sum(at + 2));
            for (number, name) in self.phases.iter().enumerate() {
                let at = at + CLASS_HEAD + number * self.phase_words();
                let (elapsed_ns, cpu_ns) = (sum(at), sum(at + 1));
                // Most classes have no timed replies, and their buckets need not be read.
                let timed = if class.timed > 0 { self.buckets } else { 0 };
                let buckets = (0..timed).map(|bucket| sum(at + PHASE_HEAD + bucket)).collect();
                class.phases.push(Phase { name: name.clone(), elapsed_ns, cpu_ns, buckets });
            }
            module.classes.push(class);
        }
        module
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A file with two figures, two classes, one phase, two buckets, and two slots of 16 words after 32 of the header.
    fn file() -> Vec<u64> {
        let names = "figure requests counter things \nfigure cache_held gauge bytes cache=\"path\"\nclass <1K static 1024\n\
                     class more static 18446744073709551615\nphase parsing\nweather fine\n";
        let head = 16 + names.len().div_ceil(8);
        let slot = 8 + 2 + 2 * (3 + 2 + 2);
        let mut words = vec![0; head + 3 * slot];
        words[0] = u64::from_ne_bytes(MAGIC.try_into().unwrap());
        let numbers = [1, head * 8, slot * 8, 3, 77, 0, 2, 2, 1, 2, 10, 64, names.len()].map(|number| number as u64);
        words[1..14].copy_from_slice(&numbers);
        for (word, bytes) in words[16..].iter_mut().zip(names.as_bytes().chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        for (slot_at, owners, first) in [(head, 1, 1), (head + slot, 2, 100), (head + 2 * slot, 0, 1000)] {
            words[slot_at + 1] = owners;
            (8..slot).for_each(|at| words[slot_at + at] = first + at as u64);
        }
        words
    }

    fn layout(words: &[u64]) -> Result<Layout, String> {
        Layout::read(|at| words.get(at).copied())
    }

    #[test]
    fn used_slots_are_summed_by_name() {
        let words = file();
        let module = layout(&words).unwrap().sum(|at| words[at]);
        // The words of the first slot count from 9, those of the second from 108.
        assert_eq!(module.counters, [("requests".to_owned(), 9 + 108)].into());
        assert_eq!(module.gauges, [("cache_held_bytes{cache=\"path\"}".to_owned(), 10 + 109)].into());
        assert_eq!((module.classes.len(), module.first_bucket_bits), (2, 10));
        let class = &module.classes[1];
        assert_eq!((&*class.size, &*class.kind, class.replies), ("more", "static", 18 + 117));
        assert_eq!((class.body_bytes, class.timed), (19 + 118, 20 + 119));
        let phase = Phase {
            name: "parsing".to_owned(),
            elapsed_ns: 21 + 120,
            cpu_ns: 22 + 121,
            buckets: vec![23 + 122, 24 + 123],
        };
        assert_eq!(class.phases, [phase]);
    }

    #[test]
    fn foreign_file_is_rejected_with_reason() {
        let check = |change: fn(&mut Vec<u64>), says: &str| {
            let mut words = file();
            change(&mut words);
            let error = layout(&words).unwrap_err();
            assert!(error.contains(says), "{error}");
        };
        check(|words| words[1] = 2, "its format version is 2");
        check(|words| words.truncate(10), "its header is truncated");
        check(|words| words.truncate(words.len() - 1), "shorter than its header says");
        check(|words| words[4] = u64::MAX, "in its header");
        check(|words| words[7] = 3, "do not match its counts");
        check(|words| words[3] = 8, "shorter than its header says");
        check(|words| words[16] = u64::MAX, "not valid UTF-8");
        check(|words| words[11] = 62, "invalid histogram");
    }

    #[test]
    fn shared_metrics_files_are_found_in_mappings() {
        let maps = "55d0c0a00000-55d0c0b00000 r-xp 00000000 fe:00 131 /usr/bin/amped\n\
                    7f0000000000-7f0000004000 rw-s 00000000 00:17 9 /run/with blank/metrics\n\
                    7f0000004000-7f0000008000 rw-s 00000000 00:17 8 /run/old (deleted)\n\
                    7f0000008000-7f000000c000 rw-s 00000000 00:01 7 /memfd:amped (deleted)\n\
                    7f000000c000-7f0000010000 r--s 00000000 fe:00 5 /srv/file\n\
                    7f0000010000-7f0000014000 rw-p 00000000 00:00 0\n";
        assert_eq!(shared_files(maps), ["/run/with blank/metrics"]);
    }

    #[test]
    fn invalid_file_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let check = |name: &str, says: &str| {
            let text = Published::open(&folder.path().join(name)).unwrap_err().to_string();
            assert!(text.contains(says) && text.contains(name), "{text}");
        };
        check("none", "--metrics-file");
        fs::write(folder.path().join("letter"), "Dear reader").unwrap();
        check("letter", "is not a metrics file");
        fs::write(folder.path().join("short"), MAGIC).unwrap();
        check("short", "its header is truncated");
    }

    proptest! {
        #[test]
        fn random_file_does_not_panic(at in 1..60_usize, with in any::<u64>(), small in 0..40_u64, cut in 0..200_usize) {
            for with in [with, small] {
                let mut words = file();
                let at = at % words.len();
                words[at] = with;
                words.truncate(words.len().max(cut) - cut);
                if let Ok(layout) = layout(&words) {
                    layout.sum(|at| words.get(at).copied().unwrap_or(0));
                }
            }
        }
    }
}
