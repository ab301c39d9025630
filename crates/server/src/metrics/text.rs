//! The sums as text, in the format of OpenMetrics 1.0.
//!
//! Times are in seconds and sizes in bytes, as the format requires. Histograms cover the timed requests, and only
//! classes that have one; counters cover all requests.

use std::time::Duration;

use amped_exporter::{self as exporter, Page, seconds};

use super::meter::EVERY;
use super::segment::{FIRST_BUCKET_BITS, HANDLERS, KINDS, PHASES, PhaseSum, SITES_MAX, SIZES, STATUSES, Sum};
use crate::counters::{FIGURES, Kind, Unit};

/// When the documents that TLS uses expire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsExpiries {
    /// The certificates in use, by number of the site and file.
    pub certificates: Vec<Expiry>,
    /// The OCSP responses that are sent, by number of the site and file.
    pub ocsp_responses: Vec<Expiry>,
    /// The CRLs in use, by file and CA.
    pub crls: Vec<Expiry>,
}

/// When a document expires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// Its labels; see [`Page::labels`].
    pub labels: String,
    /// The time, since 1970.
    pub at: Duration,
}

/// Results of certificate orders (ACME).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcmeFigures {
    /// Orders started.
    pub orders: u64,
    /// Certificates obtained.
    pub obtained: u64,
    /// Failed orders, by reason.
    pub failures: Vec<(&'static str, u64)>,
    /// Time of the next order for each certificate, by file.
    pub next_orders: Vec<Expiry>,
}

/// Formats all metrics. `backends`: those that are checked, and whether they are healthy. `acme`: if the server obtains
/// certificates.
pub fn text(sum: &Sum, tls: &TlsExpiries, backends: &[(String, bool)], acme: Option<&AcmeFigures>) -> String {
    let mut page = Page::new("amped");
    page.family("build", exporter::Kind::Info, exporter::Unit::Things, "Build information.");
    page.sample(&format!("version=\"{}\"", env!("CARGO_PKG_VERSION")), 1);
    let mut last = "";
    for (figure, value) in FIGURES.iter().zip(sum.figures) {
        let kind = match figure.kind {
            Kind::Counter => exporter::Kind::Counter,
            Kind::Gauge => exporter::Kind::Gauge,
        };
        let (unit, value) = match figure.unit {
            Unit::Things => (exporter::Unit::Things, value.to_string()),
            Unit::Bytes => (exporter::Unit::Bytes, value.to_string()),
            Unit::Nanoseconds => (exporter::Unit::Seconds, seconds(value)),
        };
        if figure.name != last {
            page.family(figure.name, kind, unit, figure.help);
            last = figure.name;
        }
        page.sample(figure.labels, value);
    }
    for (name, help, expiries) in [
        ("tls_certificate_end", "Expiry of each certificate in use, in seconds since 1970.", &tls.certificates),
        ("tls_ocsp_response_end", "Expiry of each OCSP response in use, in seconds since 1970.", &tls.ocsp_responses),
        ("tls_crl_end", "Expiry of each CRL in use, in seconds since 1970.", &tls.crls),
    ] {
        if !expiries.is_empty() {
            page.family(name, exporter::Kind::Gauge, exporter::Unit::Seconds, help);
        }
        for Expiry { labels, at } in expiries {
            page.sample(labels, at.as_secs());
        }
    }
    let (counter, things) = (exporter::Kind::Counter, exporter::Unit::Things);
    if !backends.is_empty() {
        page.family("backend_healthy", exporter::Kind::Gauge, things, "Result of active checks of each HTTP backend.");
    }
    for (name, is_healthy) in backends {
        page.sample(&Page::labels(&[("backend", name)]), u8::from(*is_healthy));
    }
    if let Some(acme) = acme {
        page.family("acme_orders", counter, things, "Certificate orders started.");
        page.sample("", acme.orders);
        page.family("acme_certificates", counter, things, "Certificates obtained from a CA.");
        page.sample("", acme.obtained);
        page.family("acme_failures", counter, things, "Failed certificate orders, by reason.");
        for (reason, count) in &acme.failures {
            page.sample(&format!("reason=\"{reason}\""), count);
        }
        let help = "Time of the next order for each certificate, in seconds since 1970.";
        page.family("acme_next_order", exporter::Kind::Gauge, exporter::Unit::Seconds, help);
        for Expiry { labels, at } in &acme.next_orders {
            page.sample(labels, at.as_secs());
        }
    }
    let replies = "Complete responses, by size of the body.";
    page.family("replies", counter, things, replies);
    for (class, labels) in sum.classes.iter().zip(classes()) {
        page.sample(&labels, class.replies);
    }
    let responses = "Complete responses, by the number of their site in the configuration, from 0, by handler, and by status \
                     class.";
    page.family("responses", counter, things, responses);
    for (count, labels) in sum.responses.iter().zip(responses_labels()).filter(|(count, _)| **count > 0) {
        page.sample(&labels, count);
    }
    let bytes = "Bytes of response bodies, including those of aborted responses.";
    page.family("reply_body", counter, exporter::Unit::Bytes, bytes);
    for (class, labels) in sum.classes.iter().zip(classes()) {
        page.sample(&labels, class.body_bytes);
    }
    let (histogram, timed) = (exporter::Kind::Histogram, format!("for a random sample of one request in {EVERY}."));
    let elapsed = format!("Elapsed time of each phase of a request, {timed}");
    page.family("request_phase", histogram, exporter::Unit::Seconds, &elapsed);
    for (name, phase, labels) in phases(sum) {
        let mut count = 0;
        for (number, bucket) in phase.buckets.iter().enumerate() {
            count += bucket;
            let last = number + 1 == phase.buckets.len();
            let end = if last { "+Inf".to_owned() } else { seconds(1 << (FIRST_BUCKET_BITS as usize + number)) };
            page.part("_bucket", &format!("{name},{labels},le=\"{end}\""), count);
        }
        page.part("_count", &format!("{name},{labels}"), count);
        page.part("_sum", &format!("{name},{labels}"), seconds(phase.elapsed_ns));
    }
    let cpu = format!("CPU time of the loop in each phase, {timed}");
    page.family("request_phase_cpu", counter, exporter::Unit::Seconds, &cpu);
    for (name, phase, labels) in phases(sum) {
        page.sample(&format!("{name},{labels}"), seconds(phase.cpu_ns));
    }
    page.end()
}

/// Returns the labels of the classes, in their order.
fn classes() -> impl Iterator<Item = String> {
    SIZES.iter().flat_map(|(size, _)| KINDS.iter().map(move |kind| format!("size=\"{size}\",kind=\"{kind}\"")))
}

/// Returns the labels of the responses, in their order.
fn responses_labels() -> impl Iterator<Item = String> {
    (0..=SITES_MAX).flat_map(|site| {
        let site = if site < SITES_MAX { site.to_string() } else { "more".to_owned() };
        HANDLERS.iter().flat_map(move |handler| {
            let site = site.clone();
            (2..2 + STATUSES).map(move |class| format!("site=\"{site}\",handler=\"{handler}\",status=\"{class}xx\""))
        })
    })
}

/// Returns each phase of each class with timed requests, and both labels.
fn phases(sum: &Sum) -> impl Iterator<Item = (String, &PhaseSum, String)> {
    let timed = sum.classes.iter().zip(classes()).filter(|(class, _)| class.timed > 0);
    timed.flat_map(|(class, labels)| {
        let named = PHASES.iter().zip(&class.phases);
        named.map(move |(name, phase)| (format!("phase=\"{name}\""), phase, labels.clone()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_and_classes_have_units() {
        let mut sum = Sum::default();
        let set = |sum: &mut Sum, name: &str, value| {
            sum.figures[FIGURES.iter().position(|figure| figure.name == name).expect("a figure")] = value;
        };
        set(&mut sum, "requests", 3);
        set(&mut sum, "loop_busy", 2_500_000_000);
        set(&mut sum, "connection", 77);
        sum.responses[6] = 5;
        let class = &mut sum.classes[3];
        (class.replies, class.body_bytes, class.timed) = (2, 9000, 1);
        class.phases[1].elapsed_ns = 1500;
        class.phases[1].buckets[1] = 1;
        let expiry = |file: &str, seconds| {
            vec![Expiry { labels: Page::labels(&[("site", &2), ("file", &file)]), at: Duration::from_secs(seconds) }]
        };
        let (certificates, ocsp_responses) = (expiry("a\"b.pem", 1_800_000_000), expiry("b.ocsp", 1_700_000_000));
        let acme = AcmeFigures {
            orders: 4,
            obtained: 2,
            failures: vec![("validation", 1)],
            next_orders: vec![Expiry { labels: "file=\"a\"".to_owned(), at: Duration::from_secs(9) }],
        };
        let page = text(
            &sum,
            &TlsExpiries { certificates, ocsp_responses, crls: Vec::new() },
            &[("127.0.0.1:1".to_owned(), false)],
            Some(&acme),
        );
        let labels = "phase=\"parsing\",size=\"<10K\",kind=\"static\"";
        for line in [
            "# TYPE amped_requests counter",
            "amped_requests_total 3",
            "# UNIT amped_loop_busy_seconds seconds",
            "amped_loop_busy_seconds_total 2.5",
            "amped_connection_bytes 77",
            "amped_tls_certificate_end_seconds{site=\"2\",file=\"a\\\"b.pem\"} 1800000000",
            "# TYPE amped_tls_ocsp_response_end_seconds gauge",
            "amped_tls_ocsp_response_end_seconds{site=\"2\",file=\"b.ocsp\"} 1700000000",
            "amped_backend_healthy{backend=\"127.0.0.1:1\"} 0",
            "amped_acme_orders_total 4",
            "amped_acme_failures_total{reason=\"validation\"} 1",
            "amped_acme_next_order_seconds{file=\"a\"} 9",
            "amped_replies_total{size=\"<10K\",kind=\"static\"} 2",
            "amped_responses_total{site=\"0\",handler=\"app\",status=\"4xx\"} 5",
            "amped_reply_body_bytes_total{size=\"<10K\",kind=\"static\"} 9000",
            &format!("amped_request_phase_seconds_bucket{{{labels},le=\"0.000001024\"}} 0"),
            &format!("amped_request_phase_seconds_bucket{{{labels},le=\"0.000002048\"}} 1"),
            &format!("amped_request_phase_seconds_bucket{{{labels},le=\"+Inf\"}} 1"),
            &format!("amped_request_phase_seconds_sum{{{labels}}} 0.0000015"),
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
        assert!(!page.contains("tls_crl_end"), "a family without samples");
        assert!(page.ends_with("\n# EOF\n") && !page.contains("size=\"<1M\",kind=\"static\",le"));
    }
}
