//! Metrics for collectors such as Prometheus: the text format, and the HTTP endpoint.
//!
//! ```text
//! page     families and samples as the text of OpenMetrics 1.0     pure
//! address  GET /metrics, for a few clients at a time, with a timeout
//! ```
//!
//! Server and monitor both publish their own metrics through this crate, which depends on neither.
#![forbid(unsafe_code)]

mod address;
mod page;

pub use address::Exporter;
pub use page::{Kind, Page, Unit, seconds};
