//! Frames of HTTP/2: never a panic; each frame is progress; an incomplete frame needs more input; a frame that is written
//! again parses to itself.
#![no_main]

use amped_http::h2::frame::{self, FRAME_BYTES, Frame, HEAD_BYTES, parse};

/// Writes a frame without its padding and its dependency. PRIORITY and PUSH_PROMISE are never sent.
fn written(parsed: &Frame<'_>) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    match *parsed {
        Frame::Data { stream, data, end_stream, .. } => {
            out.extend_from_slice(&frame::data_head(data.len(), stream, end_stream));
            out.extend_from_slice(data);
        }
        Frame::Headers { stream, block, end_stream, end_headers: true, .. } => {
            frame::headers(&mut out, stream, block, end_stream, FRAME_BYTES);
        }
        Frame::Reset { stream, code } => frame::reset(&mut out, stream, code),
        Frame::Settings(settings) => frame::settings(&mut out, &settings.collect::<Vec<_>>()),
        Frame::SettingsAck => frame::settings_ack(&mut out),
        Frame::Ping { ack, data } => frame::ping(&mut out, ack, data),
        Frame::GoAway { last, code, debug } => frame::go_away(&mut out, last, code, debug),
        Frame::WindowUpdate { stream, increment } => frame::window_update(&mut out, stream, increment),
        Frame::PriorityUpdate { stream, value } => frame::priority_update(&mut out, stream, value),
        Frame::Headers { .. }
        | Frame::Continuation { .. }
        | Frame::Priority { .. }
        | Frame::PushPromise
        | Frame::Unknown { .. } => return None,
    }
    Some(out)
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Ok(Some((parsed, length))) = parse(rest) {
        assert!((HEAD_BYTES..=HEAD_BYTES + FRAME_BYTES).contains(&length) && length <= rest.len());
        for cut in [0, HEAD_BYTES - 1, length - 1] {
            assert_eq!(parse(&rest[..cut]), Ok(None), "a prefix of a valid frame is not rejected");
        }
        if let Some(again) = written(&parsed) {
            match (parsed, parse(&again)) {
                (
                    Frame::Data { stream, data, end_stream, .. },
                    Ok(Some((Frame::Data { stream: s, data: d, end_stream: e, flow_bytes }, _))),
                ) => assert_eq!((stream, data, end_stream, flow_bytes as usize), (s, d, e, data.len())),
                (
                    Frame::Headers { stream, block, end_stream, .. },
                    Ok(Some((Frame::Headers { stream: s, block: b, end_stream: e, end_headers: true, .. }, _))),
                ) => assert_eq!((stream, block, end_stream), (s, b, e)),
                (parsed, parsed_again) => assert_eq!(parsed_again, Ok(Some((parsed, again.len())))),
            }
        }
        rest = &rest[length..];
    }
});
