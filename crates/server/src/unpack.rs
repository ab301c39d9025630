//! Unpacks files that exist only compressed, for clients that do not accept their coding.
//!
//! `disk` calls this where it may wait: in a helper, or in a loop that does disk work itself. A file of a few kilobytes
//! may unpack to gigabytes, so no more is unpacked than the configuration allows.

use std::io::{self, Read};

use amped_core::file::NotUnpacked;
use flate2::read::MultiGzDecoder;

/// Unpacks all gzip members (RFC 1952), if the result does not exceed `bytes_max`.
///
/// # Errors
/// When they cannot be read.
pub fn gunzip(from: impl Read, bytes_max: u64) -> io::Result<Result<Box<[u8]>, NotUnpacked>> {
    let mut bytes = Vec::new();
    match MultiGzDecoder::new(from).take(bytes_max.saturating_add(1)).read_to_end(&mut bytes) {
        Ok(_) if bytes.len() as u64 > bytes_max => Ok(Err(NotUnpacked::TooLarge)),
        Ok(_) => Ok(Ok(bytes.into_boxed_slice())),
        // The decoder's own errors have no errno.
        Err(error) if error.raw_os_error().is_some() => Err(error),
        Err(_) => Ok(Err(NotUnpacked::Damaged)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;
    use std::io::Write;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).expect("into memory");
        encoder.finish().expect("into memory")
    }

    fn unpack(bytes: &[u8], bytes_max: u64) -> Result<Box<[u8]>, NotUnpacked> {
        gunzip(bytes, bytes_max).expect("read from memory")
    }

    #[test]
    fn gunzip_of_more_than_limit_is_rejected() {
        let packed = gzip(&[7; 1000]);
        assert_eq!(unpack(&packed, 1000).as_deref(), Ok(&[7; 1000][..]));
        assert_eq!(unpack(&packed, 999), Err(NotUnpacked::TooLarge));
        assert_eq!(unpack(&packed, 0), Err(NotUnpacked::TooLarge));
        assert_eq!(unpack(&gzip(b""), 0).as_deref(), Ok(&b""[..]));
    }

    #[test]
    fn gunzip_of_invalid_data_fails() {
        for bytes in [&b""[..], b"\x1f", b"plain text", &[gzip(b"a"), b"trailing".to_vec()].concat()] {
            assert_eq!(unpack(bytes, 1000), Err(NotUnpacked::Damaged), "{bytes:?}");
        }
    }

    #[test]
    fn gunzip_propagates_read_errors() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::from_raw_os_error(5))
            }
        }
        assert_eq!(gunzip(Broken, 10).map_err(|error| error.raw_os_error()), Err(Some(5)));
    }

    proptest! {
        #[test]
        fn gunzip_reverses_gzip(members in prop::collection::vec(prop::collection::vec(0..4_u8, 0..3000), 1..4)) {
            let packed = members.iter().map(|member| gzip(member)).collect::<Vec<_>>().concat();
            prop_assert_eq!(unpack(&packed, 10_000).map(Vec::from), Ok(members.concat()));
        }

        #[test]
        fn gunzip_detects_truncation_and_never_panics(
            bytes in prop::collection::vec(any::<u8>(), 0..2000),
            cut in any::<prop::sample::Index>(),
            (at, byte) in any::<(prop::sample::Index, u8)>(),
        ) {
            let mut packed = gzip(&bytes);
            prop_assert_eq!(unpack(&packed[..cut.index(packed.len())], 10_000), Err(NotUnpacked::Damaged));
            let at = at.index(packed.len());
            packed[at] = byte;
            let _ = unpack(&packed, 10_000);
        }
    }
}
