//! The content of the files of a set: bytes that can be generated from a seed.
//!
//! Checking a set therefore needs no copy of it: `fileset` writes these bytes, `manifest` records their seeds, and the
//! receiver of a reply generates them again. They are pseudo-random, so that no intermediary can compress them.

use amped_measure::stats::Random;

use super::{ContentCheck, Digest};

/// Bytes generated at once for comparing or digesting.
const BLOCK: usize = 8192;

/// The content of a file from its first byte: the outputs of SplitMix64, as 8 bytes each, little-endian.
#[derive(Clone, Debug)]
pub struct Content {
    random: Random,
    /// The current output; its last `left` bytes have not been returned.
    word: [u8; 8],
    /// 0 to 7.
    left: usize,
}

impl Content {
    /// The content of this seed.
    pub fn new(seed: u64) -> Content {
        Content { random: Random(seed), word: [0; 8], left: 0 }
    }

    /// Fills `room` with the next bytes.
    pub fn fill(&mut self, room: &mut [u8]) {
        let (first, room) = room.split_at_mut(self.left.min(room.len()));
        first.copy_from_slice(&self.word[8 - self.left..][..first.len()]);
        self.left -= first.len();
        let mut words = room.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&self.random.next().to_le_bytes());
        }
        let last = words.into_remainder();
        if !last.is_empty() {
            self.word = self.random.next().to_le_bytes();
            last.copy_from_slice(&self.word[..last.len()]);
            self.left = 8 - last.len();
        }
    }

    /// Whether `bytes` are the next bytes.
    pub fn is_next(&mut self, bytes: &[u8]) -> bool {
        let mut expected = [0; BLOCK];
        bytes.chunks(BLOCK).all(|piece| {
            let expected = &mut expected[..piece.len()];
            self.fill(expected);
            expected == piece
        })
    }
}

/// The checksum of the first `length` bytes of the content of this seed.
pub fn digest(seed: u64, length: u64) -> ContentCheck {
    let (mut content, mut digest, mut left, mut block) = (Content::new(seed), Digest::default(), length, [0; BLOCK]);
    while left > 0 {
        let piece = &mut block[..left.min(BLOCK as u64) as usize];
        content.fill(piece);
        digest.update(piece);
        left -= piece.len() as u64;
    }
    digest.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn content_of_seed_is_fixed() {
        // The first outputs of SplitMix64 from 1234567, as in the test vectors of the xoshiro generators.
        let mut bytes = [0; 16];
        Content::new(1_234_567).fill(&mut bytes);
        assert_eq!(bytes[..8], 6_457_827_717_110_365_317u64.to_le_bytes());
        assert_eq!(bytes[8..], 3_203_168_211_198_807_973u64.to_le_bytes());
    }

    #[test]
    fn digest_matches_content() {
        for length in [0, 1, 8191, 8192, 8193, 100_000] {
            let mut bytes = vec![0; length];
            Content::new(7).fill(&mut bytes);
            let mut of_bytes = Digest::default();
            of_bytes.update(&bytes);
            assert_eq!(digest(7, length as u64), of_bytes.finish(), "{length}");
        }
        assert_ne!(digest(7, 100), digest(8, 100));
    }

    proptest! {
        #[test]
        fn chunk_size_does_not_change_content(seed: u64, pieces in proptest::collection::vec(0usize..40, 0..40)) {
            let mut whole = vec![0; pieces.iter().sum()];
            Content::new(seed).fill(&mut whole);
            let (mut written, mut read, mut rest) = (Content::new(seed), Content::new(seed), &whole[..]);
            for length in pieces {
                let (piece, after) = rest.split_at(length);
                let mut made = vec![0; length];
                written.fill(&mut made);
                prop_assert_eq!(&made[..], piece);
                prop_assert!(read.is_next(piece));
                rest = after;
            }
            if let Some(first) = whole.first_mut() {
                *first ^= 1;
                prop_assert!(!Content::new(seed).is_next(&whole));
            }
        }
    }
}
