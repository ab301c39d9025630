//! `--hlog`: a histogram per second and clock, as a log for HdrHistogram's tools.
//!
//! Log format 1.3, as the Java library writes it: lines of tag, start and length of the interval, its
//! maximum, and the histogram in V2 encoding, compressed. Tags are the names of the clocks in `--json`.
//! Values are in nanoseconds; the maximum, for human readers, in milliseconds. The log is written line by
//! line during the run, so an aborted run leaves the seconds so far.

use std::fs::File;
use std::io::LineWriter;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ammeter_load::tally::Interval;
use amped_measure::Failure;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriter, IntervalLogWriterBuilder, Tag};

/// A log being written.
pub(super) struct Log {
    path: PathBuf,
    writer: IntervalLogWriter<'static, 'static, LineWriter<File>, V2DeflateSerializer>,
    /// The reference time of its intervals, in seconds since 1970.
    start_s: f64,
}

/// Divisor of the interval maximum: nanoseconds per millisecond.
const MAX_VALUE_DIVISOR: f64 = 1e6;

impl Log {
    /// Creates or truncates a file; `about` describes the log on one line.
    pub(super) fn create(path: &Path, about: &str) -> Result<Log, Failure> {
        let file = File::create(path).map_err(Failure::io(format_args!("write {}", path.display())))?;
        let now = SystemTime::now();
        // The writer borrows both; there is one log for the lifetime of the program.
        let (file, serializer) =
            (Box::leak(Box::new(LineWriter::new(file))), Box::leak(Box::new(V2DeflateSerializer::new())));
        let writer = builder(about, now)
            .begin_log_with(file, serializer)
            .map_err(Failure::io(format_args!("write {}", path.display())))?;
        let start_s = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        Ok(Log { path: path.to_owned(), writer, start_s })
    }

    /// Writes a comment line, such as the start of a run.
    pub(super) fn note(&mut self, text: &str) -> Result<(), Failure> {
        self.writer
            .write_comment(&format!("[{text}]"))
            .map_err(Failure::io(format_args!("write {}", self.path.display())))
    }

    /// Writes a second: a line for each clock, even without samples, so that no interval is missing.
    pub(super) fn add(&mut self, interval: &Interval) -> Result<(), Failure> {
        lines(&mut self.writer, &self.path, interval, self.start_s)
    }
}

/// Writes the log of a finished run, creating or truncating the file; `began_s` is its start in seconds since 1970.
///
/// # Errors
/// For example when the disk is full.
pub(crate) fn write(
    path: &Path,
    about: &str,
    began_s: f64,
    mut intervals: impl Iterator<Item = Interval>,
) -> Result<(), Failure> {
    let what = format!("write {}", path.display());
    let mut file = LineWriter::new(File::create(path).map_err(Failure::io(&what))?);
    let mut serializer = V2DeflateSerializer::new();
    let start = UNIX_EPOCH + Duration::try_from_secs_f64(began_s).unwrap_or_default();
    let mut writer = builder(about, start).begin_log_with(&mut file, &mut serializer).map_err(Failure::io(&what))?;
    intervals.try_for_each(|interval| lines(&mut writer, path, &interval, began_s))
}

/// The header of the log.
fn builder(about: &str, start: SystemTime) -> IntervalLogWriterBuilder {
    let mut builder = IntervalLogWriterBuilder::new();
    builder
        .add_comment(concat!("[Logged with ammeter ", env!("CARGO_PKG_VERSION"), "]"))
        .add_comment("[Histogram log format version 1.3]")
        .add_comment(&format!("[{about}; nanoseconds since the scheduled time]"))
        .with_start_time(start)
        .with_base_time(start)
        .with_max_value_divisor(MAX_VALUE_DIVISOR);
    builder
}

/// The lines of a second, one per clock.
fn lines(
    writer: &mut IntervalLogWriter<'_, '_, LineWriter<File>, V2DeflateSerializer>,
    path: &Path,
    interval: &Interval,
    start_s: f64,
) -> Result<(), Failure> {
    let second = &interval.second;
    let at = Duration::from_secs_f64((interval.began_s + second.at_s - start_s).max(0.0));
    for (name, clock) in interval.clocks.each() {
        let length = Duration::from_secs_f64(second.length_s);
        writer.write_histogram(clock, at, length, Tag::new(name)).map_err(|error| {
            Failure::failed(format!("cannot write {}: {error}; the log is incomplete", path.display()))
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ammeter_load::tally::Clocks;
    use ammeter_load::window::Second;
    use base64::Engine;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    #[test]
    fn written_log_is_read_by_hdrhistogram() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.hlog");
        let mut log = Log::create(&path, "http://h/\nof two lines").unwrap();
        log.note("constant, 10/s").unwrap();
        let began_s = log.start_s + 1.5;
        for number in 0..3u64 {
            let mut clocks = Clocks::default();
            (1..=10 * number).for_each(|ms| clocks.latency.saturating_record(ms * 1_000_000));
            clocks.lateness.saturating_record(700);
            let second = Second { at_s: number as f64, length_s: 1.0, ..Second::default() };
            log.add(&Interval { began_s, second, clocks }).unwrap();
        }
        let text = std::fs::read(&path).unwrap();
        let mut found = Vec::new();
        let mut times = 0;
        for entry in IntervalLogIterator::new(&text) {
            match entry.unwrap() {
                LogEntry::StartTime(time) | LogEntry::BaseTime(time) => {
                    times += 1;
                    assert!((time.as_secs_f64() - log.start_s).abs() < 0.002);
                }
                LogEntry::Interval(line) => {
                    let bytes = base64::engine::general_purpose::STANDARD.decode(line.encoded_histogram()).unwrap();
                    let clock = Deserializer::new().deserialize::<u64, _>(&mut &bytes[..]).unwrap();
                    assert_eq!(line.duration(), Duration::from_secs(1));
                    assert!((line.max() - clock.max() as f64 / 1e6).abs() < 0.001, "milliseconds");
                    let tag = line.tag().unwrap().as_str().to_owned();
                    found.push((tag, (line.start_timestamp().as_secs_f64() * 10.0).round(), clock.len(), clock.max()));
                }
            }
        }
        assert_eq!((times, found.len()), (2, 3 * Clocks::default().each().len()));
        let of = |tag: &str| -> Vec<(f64, u64)> {
            found.iter().filter(|line| line.0 == tag).map(|line| (line.1, line.2)).collect()
        };
        assert_eq!(of("latency"), [(15.0, 0), (25.0, 10), (35.0, 20)]);
        assert_eq!(of("lateness"), [(15.0, 1), (25.0, 1), (35.0, 1)]);
        assert_eq!(of("connected").len() + of("first_byte").len(), 6);
        let last = found.iter().rfind(|line| line.0 == "latency").unwrap();
        assert!(last.3.abs_diff(20_000_000) < 20_000, "{last:?}");
    }

    #[test]
    fn unwritable_file_is_named_in_error() {
        let why = Log::create(Path::new("/no/such/folder/run.hlog"), "").err().unwrap().to_string();
        assert!(why.contains("/no/such/folder/run.hlog"), "{why}");
    }
}
