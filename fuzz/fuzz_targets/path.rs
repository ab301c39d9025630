//! Targets, hosts and paths: a clean path stays within the root, and survives being encoded and parsed again.
#![no_main]

use amped_http::uri::{Target, clean_path, encode_path, hidden, host_of};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some(host) = host_of(bytes) {
        assert_eq!(host.name.is_empty(), bytes.is_empty());
        assert!(!host.name.contains(&b'@') && !host.name.contains(&b'/'));
    }
    let _ = Target::parse(bytes, true);
    let path = match Target::parse(bytes, false) {
        Some(Target::Origin { path, .. } | Target::Absolute { path, .. }) => path,
        Some(Target::Asterisk | Target::Authority(_)) | None => bytes,
    };

    let (mut scratch, mut again, mut encoded) = (Vec::new(), Vec::new(), Vec::new());
    let Ok(cleaned) = clean_path(path, &mut scratch) else { return };
    let segments = cleaned.strip_prefix(b"/").expect("a clean path begins with a slash").split(|&byte| byte == b'/');
    let names: Vec<&[u8]> = segments.collect();
    assert!(names.iter().all(|&name| name != b"." && name != b".." && !name.contains(&0)));
    assert!(names[..names.len() - 1].iter().all(|name| !name.is_empty()));
    let _ = hidden(cleaned);

    encode_path(cleaned, &mut encoded);
    assert_eq!(clean_path(&encoded, &mut again), Ok(cleaned));
});
