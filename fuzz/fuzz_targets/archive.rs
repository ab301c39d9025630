//! Files of an experiment's archive with arbitrary changes: never a panic; a parsed file survives being written and
//! parsed again, and a run has its figures.
#![no_main]

use ammeter_load::outcome::Outcome;
use serde::Serialize;
use serde::de::DeserializeOwned;

// The modules of the laboratory are private; that of the archive depends on these two alone.
#[allow(dead_code)]
#[path = "../../crates/lab/src/archive.rs"]
mod archive;
#[allow(dead_code)]
#[path = "../../crates/lab/src/channel.rs"]
mod channel;
#[allow(dead_code)]
#[path = "../../crates/lab/src/values.rs"]
mod values;

use archive::{Block, Clients, Host, Plan, Resolved, Run, Summary};

fn read<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let value: T = serde_json::from_slice(bytes).ok()?;
    let text = serde_json::to_vec(&value).expect("what was read can be written");
    serde_json::from_slice::<T>(&text).expect("what was written can be read");
    Some(value)
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some(run) = read::<Run>(bytes) {
        assert!(run.plan.attempt(2).is_same(&run.plan));
        for (name, ..) in run.summary.iter().flat_map(|_| Summary::METRICS) {
            run.summary.as_ref().and_then(|summary| summary.metric(name));
        }
    }
    read::<Resolved>(bytes);
    read::<Plan>(bytes);
    read::<Host>(bytes);
    read::<Clients>(bytes);
    read::<Block>(bytes);
    read::<Outcome>(bytes);
});
