//! Samples to a file and back: a line of JSON each, compressed (zstd).
//!
//! Each sample is flushed when it is written, so that what was measured is in the file whatever happens next; a record
//! that was cut, in the midst of a line or of a block, is read as far as it goes, and the reader is told that it was cut.
//! The first line says what was watched. Raw counters are kept, and no rates: those are made anew when it is replayed.
//!
//! `zstd -dc FILE` shows it to people and to other programs.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};

use amped_measure::Failure;
use amped_measure::host::Machine;
use serde::{Deserialize, Serialize};

use crate::sample::Sample;

/// What was watched, and on what.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// The form of the record, [`Head::VERSION`].
    pub version: u32,
    /// The port, or the process, as it was named.
    pub target: String,
    /// How often it was to be looked, in microseconds.
    pub interval_us: u64,
    /// The share of one processor that might be used.
    pub budget: f64,
    /// What could not be seen, a line each.
    pub missing: Vec<String>,
    /// The machine.
    pub machine: Machine,
}

impl Head {
    /// The form that this program writes.
    pub const VERSION: u32 = 1;
}

/// One line. In writing the sample is lent, in reading it is had.
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
    /// The file is there already, or cannot be made.
    pub fn create(path: &Path, head: &Head) -> Result<Recorder, Failure> {
        let name = path.display();
        let file = File::options().write(true).create_new(true).open(path).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => Failure::usage(format!(
                "{name} is there already, and a record is never written over; name another file"
            )),
            _ => Failure::failed(format!("cannot make the record {name}: {error}")),
        })?;
        let encoder = zstd::Encoder::new(file, 3).map_err(Failure::io(format!("compress to {name}")))?;
        let mut recorder = Recorder { path: path.to_owned(), encoder };
        recorder.write(&Line::Head(head.clone()))?;
        Ok(recorder)
    }

    /// Adds a sample. It is in the file when this returns.
    ///
    /// # Errors
    /// When the disk is full, for one.
    pub fn add(&mut self, sample: &Sample) -> Result<(), Failure> {
        self.write(&Line::Lent(sample))
    }

    /// Ends the record; without this it counts as cut.
    ///
    /// # Errors
    /// As [`add`](Recorder::add).
    pub fn finish(self) -> Result<(), Failure> {
        let path = self.path;
        self.encoder.finish().map(drop).map_err(Failure::io(format!("end the record {}", path.display())))
    }

    fn write(&mut self, line: &Line<'_>) -> Result<(), Failure> {
        let written = serde_json::to_writer(&mut self.encoder, line)
            .map_err(io::Error::from)
            .and_then(|()| self.encoder.write_all(b"\n"))
            .and_then(|()| self.encoder.flush());
        written.map_err(Failure::io(format!("write to the record {}", self.path.display())))
    }
}

/// What a record holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replay {
    /// What was watched.
    pub head: Head,
    /// Its samples, in their order.
    pub samples: Vec<Sample>,
    /// Why it ends where it does, if it was not ended properly.
    pub cut: Option<String>,
}

/// Reads a record, as far as it goes.
///
/// # Errors
/// The file cannot be opened, is no record, or one of a later form.
pub fn replay(path: &Path) -> Result<Replay, Failure> {
    let name = path.display();
    let file = File::open(path).map_err(Failure::io(format!("open the record {name}")))?;
    read(file).map_err(|why| Failure::failed(format!("{name} is no record of `ammeter monitor --record`: {why}")))
}

fn read(file: impl io::Read) -> Result<Replay, String> {
    let decoder = zstd::Decoder::new(file).map_err(|error| error.to_string())?;
    let mut lines = BufReader::new(decoder);
    let mut replay = Replay::default();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let ended = match lines.read_until(b'\n', &mut line) {
            Ok(0) => return if number == 1 { Err("it is empty".to_owned()) } else { Ok(replay) },
            Ok(_) if line.ends_with(b"\n") => None,
            Ok(_) => Some("it ends in the midst of a line".to_owned()),
            Err(error) => Some(error.to_string()),
        };
        let ended = match (ended, serde_json::from_slice::<Line<'_>>(&line)) {
            (None, Ok(Line::Head(head))) if number == 1 && head.version == Head::VERSION => {
                replay.head = head;
                continue;
            }
            (None, Ok(Line::Head(head))) if number == 1 => {
                return Err(format!("it has form {}, and this program knows {}", head.version, Head::VERSION));
            }
            (None, Ok(Line::Sample(sample))) if number > 1 => {
                replay.samples.push(*sample);
                continue;
            }
            (None, Ok(_)) => format!("line {number} is out of its place"),
            (None, Err(error)) => format!("line {number}: {error}"),
            (Some(ended), _) => ended,
        };
        if number == 1 {
            return Err(ended);
        }
        replay.cut = Some(ended);
        break;
    }
    Ok(replay)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Thread;
    use proptest::prelude::*;

    fn sample(number: u64) -> Sample {
        let thread = Thread { tid: 7, name: "a \"name\"".into(), state: 'S', run_ns: number * 31, ..Thread::default() };
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
        assert!(again.exit_status() == 2 && again.to_string().contains("never written over"), "{again}");
        std::fs::read(path).unwrap()
    }

    #[test]
    fn what_was_written_is_read() {
        let replay = read(&record(20)[..]).unwrap();
        assert_eq!((replay.head.target.as_str(), replay.samples.len(), replay.cut), ("port 80", 20, None));
        assert_eq!(replay.samples[19], sample(19));
    }

    #[test]
    fn a_record_that_was_not_ended_has_all_that_was_added() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record");
        let mut recorder = Recorder::create(&path, &Head { version: Head::VERSION, ..Head::default() }).unwrap();
        (0..5).for_each(|number| recorder.add(&sample(number)).unwrap());
        let replay = replay(&path).unwrap();
        assert_eq!(replay.samples.len(), 5);
        assert!(replay.cut.is_some());
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let check = |bytes: &[u8], why: &str| {
            let error = read(bytes).unwrap_err();
            assert!(error.contains(why), "{error}");
        };
        let packed = |text: &str| zstd::encode_all(text.as_bytes(), 1).unwrap();
        check(b"", "incomplete");
        check(&packed(""), "empty");
        check(b"no zstd at all", "");
        check(&packed("{}\n"), "line 1");
        check(&packed("{\"head\":{\"version\":1}}\n"), "line 1");
        check(&packed(&record_text().replace("\"version\":1", "\"version\":2")), "form 2");
        check(
            &packed(&format!("{}{}", record_text(), record_text())[record_text().find('\n').unwrap() + 1..]),
            "out of its place",
        );
    }

    fn record_text() -> String {
        String::from_utf8(zstd::decode_all(&record(1)[..]).unwrap()).unwrap()
    }

    proptest! {
        #[test]
        fn cut_anywhere_it_is_read_as_far_as_it_goes(share in 0.0..1.0_f64) {
            let whole = record(10);
            let cut = (whole.len() as f64 * share) as usize;
            if let Ok(replay) = read(&whole[..cut]) {
                prop_assert!(replay.cut.is_some() || replay.samples.len() == 10);
                let expected: Vec<Sample> = (0..replay.samples.len() as u64).map(sample).collect();
                prop_assert_eq!(replay.samples, expected);
            }
        }

        #[test]
        fn noise_makes_it_stop_nowhere(at in any::<prop::sample::Index>(), with in any::<u8>()) {
            let mut bytes = record(3);
            let at = at.index(bytes.len());
            bytes[at] = with;
            let _ = read(&bytes[..]);
        }
    }
}
