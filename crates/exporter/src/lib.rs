//! Figures for collectors such as Prometheus: how they are written, and the address at which they are asked for.
//!
//! ```text
//! page     families and samples as the text of OpenMetrics 1.0     pure
//! address  GET /metrics, for a few clients at once and none for long
//! ```
//!
//! Server and monitor both tell of themselves so, each by figures of its own; of these nothing is known here.
#![forbid(unsafe_code)]

mod address;
mod page;

pub use address::Exporter;
pub use page::{Kind, Page, Unit, seconds};
