//! A packet from a device: never a panic; its segments together contain all its data, each in a valid packet with the
//! same addresses.
#![no_main]

// A module that depends on no others, without the crate and its dependencies.
#[allow(dead_code)]
#[path = "../../crates/wan/src/packet.rs"]
mod packet;

use packet::{Packet, layout};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some(whole) = layout(bytes) else { return };
    let packet = Packet { bytes, layout: &whole };
    let mut scratch = Vec::new();
    // The first segments and the last: 64 KiB in segments of one byte would take a second.
    for n in (0..whole.segments.min(4)).chain(whole.segments - 1..whole.segments) {
        let mut written = Vec::new();
        let write = |pieces: &[std::io::IoSlice<'_>]| {
            pieces.iter().for_each(|piece| written.extend_from_slice(piece));
            Ok(())
        };
        packet.write(n, n + 1, &mut scratch, write).expect("nothing is written");
        let again = layout(&written).expect("a segment is a packet");
        assert_eq!((again.source, again.destination, again.segments), (whole.source, whole.destination, 1));
        // After the header of the device.
        assert_eq!(written.len(), 10 + packet.segment_bytes(n) as usize);
    }
});
