//! The sums as text, in the form of OpenMetrics 1.0.
//!
//! Times are in seconds and sizes in bytes, as that form has it. Histograms are of the requests that were timed, and only of
//! classes of which there is one; counts are of all.

use std::fmt::Write as _;

use super::board::{FIRST_BUCKET_BITS, KINDS, PHASES, SIZES, Sum};
use super::meter::EVERY;
use crate::counters::{FIGURES, Kind, Unit};

/// The media type.
pub(super) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What all names begin with.
const PREFIX: &str = "amped";

/// All that is known.
pub fn text(sum: &Sum) -> String {
    let mut page = Page(String::new());
    page.family("build", "info", "", "The program.");
    page.line("build_info", &format!("version=\"{}\"", env!("CARGO_PKG_VERSION")), "1");
    let mut last = "";
    for (figure, value) in FIGURES.iter().zip(sum.figures) {
        let (kind, suffix) = match figure.kind {
            Kind::Counter => ("counter", "_total"),
            Kind::Gauge => ("gauge", ""),
        };
        let (unit, value) = match figure.unit {
            Unit::Things => ("", value.to_string()),
            Unit::Bytes => ("bytes", value.to_string()),
            Unit::Nanoseconds => ("seconds", seconds(value)),
        };
        if figure.name != last {
            page.family(figure.name, kind, unit, figure.help);
            last = figure.name;
        }
        page.line(&format!("{}{suffix}", with_unit(figure.name, unit)), figure.labels, &value);
    }
    page.family("replies", "counter", "", "Replies whose last byte was given to the kernel, by bytes of the body.");
    for (class, labels) in sum.classes.iter().zip(classes()) {
        page.line("replies_total", &labels, &class.replies.to_string());
    }
    page.family("reply_body", "counter", "bytes", "Bytes of bodies, those of replies that were broken off too.");
    for (class, labels) in sum.classes.iter().zip(classes()) {
        page.line("reply_body_bytes_total", &labels, &class.body_bytes.to_string());
    }
    let timed = format!("of about one request in {EVERY}, drawn by chance.");
    page.family("request_phase", "histogram", "seconds", &format!("Elapsed time of each part of a request, {timed}"));
    for (name, phase, labels) in phases(sum) {
        let mut count = 0;
        for (number, bucket) in phase.buckets.iter().enumerate() {
            count += bucket;
            let last = number + 1 == phase.buckets.len();
            let end = if last { "+Inf".to_owned() } else { seconds(1 << (FIRST_BUCKET_BITS as usize + number)) };
            page.line("request_phase_seconds_bucket", &format!("{name},{labels},le=\"{end}\""), &count.to_string());
        }
        page.line("request_phase_seconds_count", &format!("{name},{labels}"), &count.to_string());
        page.line("request_phase_seconds_sum", &format!("{name},{labels}"), &seconds(phase.elapsed_ns));
    }
    page.family("request_phase_cpu", "counter", "seconds", &format!("CPU time of the loop in it, {timed}"));
    for (name, phase, labels) in phases(sum) {
        page.line("request_phase_cpu_seconds_total", &format!("{name},{labels}"), &seconds(phase.cpu_ns));
    }
    page.0 += "# EOF\n";
    page.0
}

/// The labels of the classes, in their order.
fn classes() -> impl Iterator<Item = String> {
    SIZES.iter().flat_map(|(size, _)| KINDS.iter().map(move |kind| format!("size=\"{size}\",kind=\"{kind}\"")))
}

/// Each phase of each class of which a request was timed, with both labels.
fn phases(sum: &Sum) -> impl Iterator<Item = (String, &super::PhaseSum, String)> {
    let timed = sum.classes.iter().zip(classes()).filter(|(class, _)| class.timed > 0);
    timed.flat_map(|(class, labels)| {
        let named = PHASES.iter().zip(&class.phases);
        named.map(move |(name, phase)| (format!("phase=\"{name}\""), phase, labels.clone()))
    })
}

/// Nanoseconds as seconds, exactly.
fn seconds(ns: u64) -> String {
    let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    let short = text.trim_end_matches('0');
    // A whole number keeps one digit behind the point.
    if short.ends_with('.') { format!("{short}0") } else { short.to_owned() }
}

fn with_unit(name: &str, unit: &str) -> String {
    if unit.is_empty() { name.to_owned() } else { format!("{name}_{unit}") }
}

struct Page(String);

impl Page {
    /// What a family is. Writing to a string cannot fail.
    fn family(&mut self, name: &str, kind: &str, unit: &str, help: &str) {
        let name = with_unit(name, unit);
        let _ = writeln!(self.0, "# TYPE {PREFIX}_{name} {kind}");
        if !unit.is_empty() {
            let _ = writeln!(self.0, "# UNIT {PREFIX}_{name} {unit}");
        }
        let _ = writeln!(self.0, "# HELP {PREFIX}_{name} {help}");
    }

    fn line(&mut self, name: &str, labels: &str, value: &str) {
        let _ = match labels {
            "" => writeln!(self.0, "{PREFIX}_{name} {value}"),
            labels => writeln!(self.0, "{PREFIX}_{name}{{{labels}}} {value}"),
        };
    }
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
    fn figures_and_classes_are_said_in_their_units() {
        let mut sum = Sum::default();
        let set = |sum: &mut Sum, name: &str, value| {
            sum.figures[FIGURES.iter().position(|figure| figure.name == name).expect("a figure")] = value;
        };
        set(&mut sum, "requests", 3);
        set(&mut sum, "loop_busy", 2_500_000_000);
        set(&mut sum, "connection", 77);
        let class = &mut sum.classes[2];
        (class.replies, class.body_bytes, class.timed) = (2, 9000, 1);
        class.phases[1].elapsed_ns = 1500;
        class.phases[1].buckets[1] = 1;
        let page = text(&sum);
        let labels = "phase=\"parsing\",size=\"<10K\",kind=\"static\"";
        for line in [
            "# TYPE amped_requests counter",
            "amped_requests_total 3",
            "# UNIT amped_loop_busy_seconds seconds",
            "amped_loop_busy_seconds_total 2.5",
            "amped_connection_bytes 77",
            "amped_replies_total{size=\"<10K\",kind=\"static\"} 2",
            "amped_reply_body_bytes_total{size=\"<10K\",kind=\"static\"} 9000",
            &format!("amped_request_phase_seconds_bucket{{{labels},le=\"0.000001024\"}} 0"),
            &format!("amped_request_phase_seconds_bucket{{{labels},le=\"0.000002048\"}} 1"),
            &format!("amped_request_phase_seconds_bucket{{{labels},le=\"+Inf\"}} 1"),
            &format!("amped_request_phase_seconds_sum{{{labels}}} 0.0000015"),
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
        assert!(page.ends_with("\n# EOF\n") && !page.contains("size=\"<1M\",kind=\"static\",le"));
    }
}
