//! The text format of OpenMetrics 1.0 (the specification of prometheus.io, also draft-richih-opsawg-openmetrics).
//!
//! A family has a name, a type, a unit and a help text, followed by all its samples. Units are base units, seconds and
//! bytes, and suffixes of the name; samples of a counter end in `_total`.

use std::fmt::{Display, Write as _};

/// The type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Events since some time; never decreases.
    Counter,
    /// A current value.
    Gauge,
    /// Counts by size.
    Histogram,
    /// Texts that do not change.
    Info,
}

/// The unit of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A plain number, without a unit.
    Things,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// A ratio, 0 to 1.
    Ratio,
}

/// A page being written.
#[derive(Clone, Debug)]
pub struct Page {
    /// The prefix of all names.
    prefix: &'static str,
    text: String,
    /// The current family, with its prefix and unit, and the suffix of its samples.
    family: String,
    suffix: &'static str,
}

impl Page {
    /// Creates an empty page; all names will begin with `prefix` and an underscore.
    pub fn new(prefix: &'static str) -> Page {
        Page { prefix, text: String::new(), family: String::new(), suffix: "" }
    }

    /// Begins a family, whose name is given without prefix, unit and suffix. `help` is a sentence on one line.
    // Writing to a string cannot fail, here and below.
    pub fn family(&mut self, name: &str, kind: Kind, unit: Unit, help: &str) {
        let (unit, end) = match unit {
            Unit::Things => ("", ""),
            Unit::Bytes => ("bytes", "_bytes"),
            Unit::Seconds => ("seconds", "_seconds"),
            Unit::Ratio => ("ratio", "_ratio"),
        };
        let (kind, suffix) = match kind {
            Kind::Counter => ("counter", "_total"),
            Kind::Gauge => ("gauge", ""),
            Kind::Histogram => ("histogram", ""),
            Kind::Info => ("info", "_info"),
        };
        self.family = format!("{}_{name}{end}", self.prefix);
        self.suffix = suffix;
        let family = &self.family;
        let _ = writeln!(self.text, "# TYPE {family} {kind}");
        if !unit.is_empty() {
            let _ = writeln!(self.text, "# UNIT {family} {unit}");
        }
        let _ = writeln!(self.text, "# HELP {family} {help}");
    }

    /// Adds a sample of the family, with the labels `name="value",...`; see [`Page::labels`].
    pub fn sample(&mut self, labels: &str, value: impl Display) {
        self.part("", labels, value);
    }

    /// Adds one of several samples with the same labels, such as `_bucket` of a histogram.
    pub fn part(&mut self, part: &str, labels: &str, value: impl Display) {
        let (family, suffix) = (&self.family, self.suffix);
        let _ = match labels {
            "" => writeln!(self.text, "{family}{suffix}{part} {value}"),
            labels => writeln!(self.text, "{family}{suffix}{part}{{{labels}}} {value}"),
        };
    }

    /// Formats labels, with their values escaped.
    pub fn labels(pairs: &[(&str, &dyn Display)]) -> String {
        let mut labels = String::new();
        for (name, value) in pairs {
            let comma = if labels.is_empty() { "" } else { "," };
            let value = value.to_string().replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(labels, "{comma}{name}=\"{value}\"");
        }
        labels
    }

    /// Ends the page and returns its text.
    pub fn end(mut self) -> String {
        self.text.push_str("# EOF\n");
        self.text
    }
}

/// Formats nanoseconds as seconds, exactly.
pub fn seconds(ns: u64) -> String {
    let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    let short = text.trim_end_matches('0');
    // A whole number keeps one digit after the point.
    if short.ends_with('.') { format!("{short}0") } else { short.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_exact() {
        let check = |ns: u64, expected: &str| assert_eq!(seconds(ns), expected, "{ns}");
        check(0, "0.0");
        check(1, "0.000000001");
        check(1024, "0.000001024");
        check(1_500_000_000, "1.5");
        check(u64::MAX, "18446744073.709551615");
    }

    #[test]
    fn family_name_has_type_and_unit() {
        let mut page = Page::new("us");
        page.family("build", Kind::Info, Unit::Things, "The program.");
        page.sample("version=\"1\"", 1);
        page.family("read", Kind::Counter, Unit::Bytes, "Read.");
        page.sample("", 7);
        page.family("held", Kind::Gauge, Unit::Ratio, "Held.");
        page.sample("a=\"b\"", 0.5);
        page.family("took", Kind::Histogram, Unit::Seconds, "Took.");
        page.part("_bucket", "le=\"+Inf\"", 3);
        assert_eq!(
            page.end(),
            "# TYPE us_build info\n# HELP us_build The program.\nus_build_info{version=\"1\"} 1\n\
             # TYPE us_read_bytes counter\n# UNIT us_read_bytes bytes\n# HELP us_read_bytes Read.\nus_read_bytes_total 7\n\
             # TYPE us_held_ratio gauge\n# UNIT us_held_ratio ratio\n# HELP us_held_ratio Held.\n\
             us_held_ratio{a=\"b\"} 0.5\n\
             # TYPE us_took_seconds histogram\n# UNIT us_took_seconds seconds\n# HELP us_took_seconds Took.\n\
             us_took_seconds_bucket{le=\"+Inf\"} 3\n# EOF\n"
        );
    }

    #[test]
    fn label_values_are_escaped() {
        let check = |value: &str, expected: &str| {
            assert_eq!(Page::labels(&[("n", &7), ("name", &value)]), format!("n=\"7\",name=\"{expected}\""));
        };
        check("worker", "worker");
        check("a\"} 1\nb{c=\"\\", "a\\\"} 1\\nb{c=\\\"\\\\");
    }
}
