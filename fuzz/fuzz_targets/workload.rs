//! A workload file, a manifest or a list of weights: never a panic; parsed entries can be requested, and a manifest
//! survives being written and parsed again.
#![no_main]

use ammeter_load::workload::manifest::Manifest;
use ammeter_load::workload::mix;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let requests = if text.starts_with('{') {
        let Ok(manifest) = Manifest::parse(text) else { return };
        let again = Manifest::parse(&manifest.to_text()).expect("a written manifest");
        assert_eq!(again.head, manifest.head);
        assert_eq!(again.files.len(), manifest.files.len());
        manifest.requests(1, false)
    } else {
        let Ok(requests) = mix::parse(text, 1) else { return };
        requests
    };
    for number in 0..10 {
        let request = requests.get(number).expect("an endless list");
        assert!(request.target.starts_with(b"/") && request.target.iter().all(u8::is_ascii_graphic));
        requests.class(usize::from(request.class));
    }
});
