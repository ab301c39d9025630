//! IDs of requests, by which lines in the logs of this server and of applications find each other (nginx's `$request_id`).
//!
//! The driver seeds the source of each loop at random. An ID of 128 bits does not repeat within a loop, and, by chance alone, in others.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The recipients of the IDs of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RequestIds {
    /// Nobody
    #[default]
    Off,
    /// Applications and the access log
    Applications,
    /// Clients as well, in responses
    All,
}

/// The name of the field with an ID.
pub(crate) const FIELD: &str = "X-Request-Id";

/// Makes IDs.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdSource {
    seeds: [u64; 2],
    count: u64,
}

impl IdSource {
    /// A source with random seeds.
    pub fn new(seeds: [u64; 2]) -> IdSource {
        IdSource { seeds, count: 0 }
    }

    /// The next ID.
    pub(crate) fn next_id(&mut self) -> RequestId {
        self.count = self.count.wrapping_add(1);
        let step = self.count.wrapping_mul(GOLDEN_GAMMA);
        let mut id = RequestId { bytes: [0; ID_MAX], length: 32 };
        let halves = self.seeds.iter().flat_map(|seed| mix(seed.wrapping_add(step)).to_be_bytes());
        for (pair, byte) in id.bytes.chunks_exact_mut(2).zip(halves) {
            let digit = |value: u8| b"0123456789abcdef"[usize::from(value)];
            pair.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
        }
        id
    }
}

/// The constants of SplitMix64 (Steele, Lea and Flood, 2014), which visits each number once.
const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// Maximum bytes of an ID; a longer one of a proxy is replaced.
const ID_MAX: usize = 64;

/// The ID of a request. It is text without spaces and quotes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestId {
    bytes: [u8; ID_MAX],
    length: u8,
}

impl RequestId {
    /// An ID that a trusted proxy has sent; `None` if it is not one.
    pub(crate) fn parse(text: &[u8]) -> Option<RequestId> {
        let is_good = |&byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:+/=".contains(&byte);
        let mut id = RequestId { bytes: [0; ID_MAX], length: u8::try_from(text.len()).ok()? };
        if text.is_empty() || !text.iter().all(is_good) {
            return None;
        }
        id.bytes.get_mut(..text.len())?.copy_from_slice(text);
        Some(id)
    }

    /// Its text.
    pub(crate) fn text(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl core::fmt::Debug for RequestId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.text().escape_ascii().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn ids_are_32_digits_and_do_not_repeat() {
        let mut seen = BTreeSet::new();
        for seeds in [[1, 2], [3, 4]] {
            let mut source = IdSource::new(seeds);
            for _ in 0..1000 {
                let id = source.next_id();
                assert!(id.text().len() == 32 && id.text().iter().all(u8::is_ascii_hexdigit), "{id:?}");
                assert!(seen.insert(id.text().to_vec()), "{id:?}");
            }
        }
    }

    #[test]
    fn ids_of_proxies_are_short_words() {
        for good in ["a", "5f0e-1:2", "Root=1-67891233-abcdef012345678912345678", &"x".repeat(64)] {
            assert_eq!(
                RequestId::parse(good.as_bytes()).map(|id| id.text().to_vec()).as_deref(),
                Some(good.as_bytes())
            );
        }
        for bad in ["", " a", "a b", "a\"b", "a,b", "\u{e9}", &"x".repeat(65), &"x".repeat(300)] {
            assert_eq!(RequestId::parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
