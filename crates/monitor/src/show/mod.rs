//! Formats samples as text: one line each, CSV, a screen, or a page for collectors.
//! Produces texts and cells only; the caller prints them.

mod csv;
mod line;
mod number;
mod openmetrics;
#[cfg(feature = "screen")]
mod screen;

pub use csv::{header as csv_header, row as csv_row};
pub use line::{header as line_header, line};
pub use openmetrics::{Totals, openmetrics};
#[cfg(feature = "screen")]
pub use screen::{Screen, draw};
