//! The file in which a server publishes its metrics: never a panic; a class of timed requests has no more buckets than
//! the file has words.
#![no_main]

use ammeter_monitor::Published;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    if let Ok(module) = Published::of_words(&words) {
        for class in &module.classes {
            let count: usize = class.phases.iter().map(|phase| phase.buckets.len()).sum();
            assert!(class.timed == 0 || count <= words.len());
        }
    }
});
