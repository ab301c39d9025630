//! Writes samples to a file and reads them: one JSON object per line, compressed (zstd).
//!
//! Each sample is flushed when it is written, so it is in the file whatever happens next. A truncated record, within a
//! line or a block, is read as far as possible, and the truncation is reported. The first line describes
//! the target. Counters are stored, not rates: those are computed on replay.
//!
//! `zstd -dc FILE` prints it.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use amped_measure::Failure;
use amped_measure::host::Machine;
use serde::{Deserialize, Serialize};

use crate::sample::Sample;

/// The target of a record, and the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// Version of the record format, [`Head::VERSION`].
    pub version: u32,
    /// The port or the process, as named by the user.
    pub target: String,
    /// The requested interval, in microseconds.
    pub interval_us: u64,
    /// The allowed share of one processor.
    pub budget: f64,
    /// The sources that could not be read, one line each.
    pub missing: Vec<String>,
    /// The machine.
    pub machine: Machine,
}

impl Head {
    /// The version that this program writes.
    pub const VERSION: u32 = 2;
}

/// One line. The sample is borrowed for writing and owned for reading.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line<'a> {
    Head(Head),
    #[serde(rename = "sample", skip_deserializing)]
    Lent(&'a Sample),
    #[serde(skip_serializing)]
    Sample(Box<Sample>),
}

/// Writes a record.
pub struct Recorder {
    path: PathBuf,
    encoder: zstd::Encoder<'static, File>,
}

impl Recorder {
    /// Begins a record in a new file.
    ///
    /// # Errors
    /// When the file exists, or cannot be created.
    pub fn create(path: &Path, head: &Head) -> Result<Recorder, Failure> {
        let name = path.display();
        let file = File::options().write(true).create_new(true).open(path).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => {
                Failure::usage(format!("{name} exists already and is not overwritten; choose another file"))
            }
            _ => Failure::failed(format!("cannot create the recording {name}: {error}")),
        })?;
        let encoder = zstd::Encoder::new(file, 3).map_err(Failure::io(format!("compress to {name}")))?;
        let mut recorder = Recorder { path: path.to_owned(), encoder };
        recorder.write(&Line::Head(head.clone()))?;
        Ok(recorder)
    }

    /// Appends a sample, and flushes it to the file.
    ///
    /// # Errors
    /// For example when the disk is full.
    pub fn add(&mut self, sample: &Sample) -> Result<(), Failure> {
        self.write(&Line::Lent(sample))
    }

    /// Ends the record; without this it counts as truncated.
    ///
    /// # Errors
    /// Those of [`add`](Recorder::add).
    pub fn finish(self) -> Result<(), Failure> {
        let path = self.path;
        self.encoder.finish().map(drop).map_err(Failure::io(format!("finish the recording {}", path.display())))
    }

    fn write(&mut self, line: &Line<'_>) -> Result<(), Failure> {
        let written = serde_json::to_writer(&mut self.encoder, line)
            .map_err(io::Error::from)
            .and_then(|()| self.encoder.write_all(b"\n"))
            .and_then(|()| self.encoder.flush());
        written.map_err(Failure::io(format!("write to the recording {}", self.path.display())))
    }
}

/// Maximum length of a line, in bytes: a sample of 512 threads has about 100 KB.
const LINE_MAX: u64 = 16 << 20;

/// A record being read: its samples in order, as far as possible.
/// Only one is in memory at a time, since a record may cover a week.
pub struct Replay<'a> {
    head: Head,
    lines: Box<dyn BufRead + 'a>,
    line: Vec<u8>,
    /// Number of the last line read.
    number: u64,
    cut: Option<String>,
}

/// Opens a record.
///
/// # Errors
/// When the file cannot be opened, or is not a record of a known version.
pub fn replay(path: &Path) -> Result<Replay<'static>, Failure> {
    let name = path.display();
    let file = File::open(path).map_err(Failure::io(format!("open the recording {name}")))?;
    Replay::read(file)
        .map_err(|why| Failure::failed(format!("{name} is not a recording of `ammeter monitor --record`: {why}")))
}

impl<'a> Replay<'a> {
    /// Reads a compressed record.
    ///
    /// # Errors
    /// Why it is invalid.
    pub fn read(file: impl Read + 'a) -> Result<Replay<'a>, String> {
        let decoder = zstd::Decoder::new(file).map_err(|error| error.to_string())?;
        Replay::of_lines(BufReader::new(decoder))
    }

    /// Reads the lines of an uncompressed record.
    ///
    /// # Errors
    /// Why it is invalid.
    pub fn of_lines(lines: impl BufRead + 'a) -> Result<Replay<'a>, String> {
        let (head, lines) = (Head::default(), Box::new(lines));
        let mut replay = Replay { head, lines, line: Vec::new(), number: 0, cut: None };
        match replay.next_line()? {
            None => Err("it is empty".to_owned()),
            Some(Line::Head(head)) if head.version == Head::VERSION => {
                replay.head = head;
                Ok(replay)
            }
            Some(Line::Head(head)) => {
                Err(format!("it has format version {}, and this program reads version {}", head.version, Head::VERSION))
            }
            Some(_) => Err(replay.misplaced()),
        }
    }

    /// The target, and the machine.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Why the record ended early, if it was truncated. Valid after the last sample.
    pub fn cut(&self) -> Option<&str> {
        self.cut.as_deref()
    }

    fn misplaced(&self) -> String {
        format!("line {} is misplaced", self.number)
    }

    /// The next line; `None` after the last.
    fn next_line(&mut self) -> Result<Option<Line<'static>>, String> {
        self.line.clear();
        self.number += 1;
        // Bounds the memory that a record with an endless line takes.
        match self.lines.by_ref().take(LINE_MAX).read_until(b'\n', &mut self.line) {
            Ok(0) => Ok(None),
            Ok(_) if self.line.ends_with(b"\n") => {
                serde_json::from_slice(&self.line).map(Some).map_err(|error| format!("line {}: {error}", self.number))
            }
            Ok(count) if count as u64 == LINE_MAX => Err(format!("line {} is too long for a sample", self.number)),
            Ok(_) => Err("its last line is truncated".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Iterator for Replay<'_> {
    type Item = Sample;

    fn next(&mut self) -> Option<Sample> {
        if self.cut.is_some() {
            return None;
        }
        match self.next_line() {
            Ok(None) => None,
            Ok(Some(Line::Sample(sample))) => Some(*sample),
            Ok(Some(_)) => {
                self.cut = Some(self.misplaced());
                None
            }
            Err(why) => {
                self.cut = Some(why);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Thread;
    use proptest::prelude::*;

    fn sample(number: u64) -> Sample {
        let thread = Thread { tid: 7, name: "a \"name\"".into(), state: 'S', run: number * 31, ..Thread::default() };
        Sample { at_us: number * 1_000_000, wall_ms: number, threads: vec![thread; 3], ..Sample::default() }
    }

    fn record(samples: u64) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record");
        let head = Head { version: Head::VERSION, target: "port 80".into(), ..Head::default() };
        let mut recorder = Recorder::create(&path, &head).unwrap();
        (0..samples).for_each(|number| recorder.add(&sample(number)).unwrap());
        recorder.finish().unwrap();
        let again = Recorder::create(&path, &head).err().unwrap();
        assert!(again.exit_status() == 2 && again.to_string().contains("is not overwritten"), "{again}");
        std::fs::read(path).unwrap()
    }

    #[test]
    fn record_round_trips() {
        let bytes = record(20);
        let mut replay = Replay::read(&bytes[..]).unwrap();
        assert_eq!(replay.head().target, "port 80");
        let expected: Vec<Sample> = (0..20).map(sample).collect();
        assert_eq!((replay.by_ref().collect::<Vec<_>>(), replay.cut()), (expected, None));
    }

    #[test]
    fn unfinished_record_has_all_added_samples() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record");
        let mut recorder = Recorder::create(&path, &Head { version: Head::VERSION, ..Head::default() }).unwrap();
        (0..5).for_each(|number| recorder.add(&sample(number)).unwrap());
        let mut replay = replay(&path).unwrap();
        assert_eq!(replay.by_ref().count(), 5);
        assert!(replay.cut().is_some());
    }

    #[test]
    fn foreign_file_is_rejected() {
        let check = |bytes: &[u8], why: &str| {
            let error = Replay::read(bytes).err().unwrap();
            assert!(error.contains(why), "{error}");
        };
        let cut = |text: &str, why: &str| {
            let mut replay = Replay::of_lines(text.as_bytes()).unwrap();
            assert_eq!(replay.by_ref().count(), 1);
            assert!(replay.cut().is_some_and(|found| found.contains(why)), "{:?}", replay.cut());
        };
        let packed = |text: &str| zstd::encode_all(text.as_bytes(), 1).unwrap();
        check(b"", "incomplete");
        check(&packed(""), "empty");
        check(b"not zstd", "");
        check(&packed("{}\n"), "line 1");
        check(&packed("{\"head\":{\"version\":2}}\n"), "line 1");
        check(&packed(&record_text().replace("\"version\":2", "\"version\":1")), "format version 1");
        check(
            &packed(&format!("{}{}", record_text(), record_text())[record_text().find('\n').unwrap() + 1..]),
            "is misplaced",
        );
        let twice = record_text() + &record_text();
        cut(&twice, "line 3 is misplaced");
        cut(&(record_text() + "{\"sample\":{}}\n"), "line 3");
        cut(&(record_text() + &"x".repeat(LINE_MAX as usize)), "too long for a sample");
    }

    fn record_text() -> String {
        String::from_utf8(zstd::decode_all(&record(1)[..]).unwrap()).unwrap()
    }

    proptest! {
        #[test]
        fn truncated_record_is_read_as_far_as_possible(share in 0.0..1.0_f64) {
            let whole = record(10);
            let cut = (whole.len() as f64 * share) as usize;
            if let Ok(mut replay) = Replay::read(&whole[..cut]) {
                let samples: Vec<Sample> = replay.by_ref().collect();
                prop_assert!(replay.cut().is_some() || samples.len() == 10);
                let expected: Vec<Sample> = (0..samples.len() as u64).map(sample).collect();
                prop_assert_eq!(samples, expected);
            }
        }

        #[test]
        fn corrupt_record_does_not_panic(at in any::<prop::sample::Index>(), with in any::<u8>()) {
            let mut bytes = record(3);
            let at = at.index(bytes.len());
            bytes[at] = with;
            if let Ok(replay) = Replay::read(&bytes[..]) {
                replay.for_each(drop);
            }
        }
    }
}
