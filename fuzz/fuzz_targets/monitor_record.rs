//! A record of `ammeter monitor`, compressed or not: never a panic, neither in parsing nor in any form of output.
#![no_main]

use ammeter_monitor::show::{Totals, csv_row, line, openmetrics};
use ammeter_monitor::{Replay, Tick};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(record) = Replay::of_lines(bytes).or_else(|_| Replay::read(bytes)) else { return };
    let (mut totals, mut before) = (Totals::default(), None);
    for sample in record {
        openmetrics(&totals, Some(&sample));
        if let Some(tick) = before.as_ref().and_then(|before| Tick::between(before, &sample)) {
            totals.add(&tick);
            assert!(!line(&tick).is_empty() && !csv_row(&tick).is_empty());
        }
        before = Some(sample);
    }
});
