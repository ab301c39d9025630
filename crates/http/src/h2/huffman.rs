//! The Huffman code of HPACK (RFC 7541, 5.2 and appendix B).
//!
//! Under [`super::hpack`], which knows where a string begins. The code is canonical: sorted by length and then by symbol,
//! each code is the one before it plus one. So the lengths define it, and all tables are computed from them by the
//! compiler. Decoding looks up [`FIRST_BITS`] bits at a time: most lookups yield two symbols, since the usual characters
//! have 5 to 7 bits. Longer codes are found by comparing with the last code of each length.

use alloc::vec::Vec;

/// Bits of each code: bytes 0 to 255, then the end of the string (RFC 7541, appendix B).
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

const SHORTEST: usize = 5;
const LONGEST: usize = 30;

/// The symbol that ends a string, and must not occur in it.
const EOS: u16 = 256;

/// Bits of one lookup: two characters of most texts. A browser's head of 489 bytes with 16 literals takes 1.06 us; with 10
/// bits, 1.73 us (two cores of a virtual machine, minimum of 15).
const FIRST_BITS: usize = 12;

struct Code {
    /// By symbol.
    bits: [u32; 257],
    /// Symbols by increasing code.
    sorted: [u16; 257],
    /// By length: one more than its last code, in the highest bits of 32; the last one overflows and stays `u32::MAX`.
    end: [u32; LONGEST + 1],
    /// By length: its first code, in the highest bits of 32.
    first: [u32; LONGEST + 1],
    /// By length: position of its first symbol in `sorted`.
    at: [u16; LONGEST + 1],
}

static CODE: Code = code();

const fn code() -> Code {
    let mut code =
        Code { bits: [0; 257], sorted: [0; 257], end: [0; LONGEST + 1], first: [0; LONGEST + 1], at: [0; LONGEST + 1] };
    let (mut next, mut rank, mut length) = (0_u32, 0, SHORTEST);
    while length <= LONGEST {
        code.first[length] = next << (32 - length);
        code.at[length] = rank as u16;
        let mut symbol = 0;
        while symbol < LENGTHS.len() {
            if LENGTHS[symbol] as usize == length {
                code.bits[symbol] = next;
                code.sorted[rank] = symbol as u16;
                next += 1;
                rank += 1;
            }
            symbol += 1;
        }
        code.end[length] = if length == LONGEST { u32::MAX } else { next << (32 - length) };
        next <<= 1;
        length += 1;
    }
    code
}

/// The symbols in the next [`FIRST_BITS`] bits: as many whole ones as fit, at most two.
#[derive(Clone, Copy)]
struct Lookup {
    symbols: [u8; 2],
    /// Bits of the first symbol; 0 if its code is longer than a lookup.
    first_bits: u8,
    /// Bits of all symbols.
    bits: u8,
}

static LOOKUPS: [Lookup; 1 << FIRST_BITS] = lookups();

const fn lookups() -> [Lookup; 1 << FIRST_BITS] {
    let mut table = [Lookup { symbols: [0; 2], first_bits: 0, bits: 0 }; 1 << FIRST_BITS];
    let code = code();
    // The symbols with codes of at most `FIRST_BITS` bits come first in `sorted`, in the order of their codes.
    let mut first = 0;
    while LENGTHS[code.sorted[first] as usize] as usize <= FIRST_BITS {
        let one = code.sorted[first] as usize;
        let one_bits = LENGTHS[one] as usize;
        let start = (code.bits[one] as usize) << (FIRST_BITS - one_bits);
        let end = start + (1 << (FIRST_BITS - one_bits));
        let mut at = start;
        while at < end {
            table[at] = Lookup { symbols: [one as u8, 0], first_bits: one_bits as u8, bits: one_bits as u8 };
            at += 1;
        }
        let mut second = 0;
        while one_bits + LENGTHS[code.sorted[second] as usize] as usize <= FIRST_BITS {
            let two = code.sorted[second] as usize;
            let bits = one_bits + LENGTHS[two] as usize;
            let mut at = start + ((code.bits[two] as usize) << (FIRST_BITS - bits));
            let end = at + (1 << (FIRST_BITS - bits));
            while at < end {
                table[at] = Lookup { symbols: [one as u8, two as u8], first_bits: one_bits as u8, bits: bits as u8 };
                at += 1;
            }
            second += 1;
        }
        first += 1;
    }
    table
}

/// Appends the decoded `text` to `out`; `None` if its code is invalid (RFC 7541, 5.2: EOS in the text, padding of 8 bits
/// or more, or padding that is not the beginning of EOS). Then `out` may contain a part.
pub(super) fn decode(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let start = out.len();
    // Room for the most symbols that the bits can hold, so that the loop writes without asking for it; and for a second
    // symbol written after the last one.
    out.resize(start + text.len() * 8 / SHORTEST + 2, 0);
    let length = decode_into(text, &mut out[start..])?;
    out.truncate(start + length);
    Some(())
}

/// As [`decode`], into enough room; returns the number of symbols.
fn decode_into(mut text: &[u8], room: &mut [u8]) -> Option<usize> {
    // The next bits, from the highest down, and how many of them are valid.
    let (mut bits, mut count, mut length) = (0_u64, 0_u32, 0);
    while !text.is_empty() {
        // Fill up to at least 56 bits. Those of a byte that fits only in part stay behind the valid ones, and are
        // written again with the whole byte.
        if let Some(chunk) = text.first_chunk() {
            bits |= u64::from_be_bytes(*chunk) >> count;
            let taken = (63 - count) / 8;
            text = &text[taken as usize..];
            count += taken * 8;
        } else {
            while count <= 56
                && let Some((&byte, rest)) = text.split_first()
            {
                bits |= u64::from(byte) << (56 - count);
                text = rest;
                count += 8;
            }
        }
        while count >= LONGEST as u32 {
            let lookup = LOOKUPS[(bits >> (64 - FIRST_BITS)) as usize];
            let used = if lookup.first_bits == 0 {
                let (symbol, used) = decode_long((bits >> 32) as u32);
                room[length] = u8::try_from(symbol).ok()?;
                length += 1;
                used
            } else {
                room[length..length + 2].copy_from_slice(&lookup.symbols);
                length += if lookup.bits == lookup.first_bits { 1 } else { 2 };
                u32::from(lookup.bits)
            };
            bits <<= used;
            count -= used;
        }
    }
    // The rest, with ones after its end, as the padding is.
    loop {
        let padded = bits | u64::MAX.checked_shr(count).unwrap_or(0);
        let lookup = LOOKUPS[(padded >> (64 - FIRST_BITS)) as usize];
        let used = if lookup.first_bits > 0 && u32::from(lookup.bits) <= count {
            room[length..length + 2].copy_from_slice(&lookup.symbols);
            length += if lookup.bits == lookup.first_bits { 1 } else { 2 };
            u32::from(lookup.bits)
        } else {
            let (symbol, used) = match lookup.first_bits {
                0 => decode_long((padded >> 32) as u32),
                used => (u16::from(lookup.symbols[0]), u32::from(used)),
            };
            if used > count {
                // All that is left must be the beginning of EOS.
                return (count < 8 && padded == u64::MAX).then_some(length);
            }
            room[length] = u8::try_from(symbol).ok()?;
            length += 1;
            used
        };
        bits <<= used;
        count -= used;
    }
}

/// The symbol at the highest bits of `bits`, and the length of its code, which is longer than a lookup.
#[cold]
fn decode_long(bits: u32) -> (u16, u32) {
    let mut length = FIRST_BITS + 1;
    while length < LONGEST && bits >= CODE.end[length] {
        length += 1;
    }
    let rank = u32::from(CODE.at[length]) + ((bits - CODE.first[length]) >> (32 - length));
    (CODE.sorted.get(rank as usize).copied().unwrap_or(EOS), length as u32)
}

/// Bytes of the encoded `text`.
pub(super) fn encoded_len(text: &[u8]) -> usize {
    text.iter().map(|&byte| usize::from(LENGTHS[usize::from(byte)])).sum::<usize>().div_ceil(8)
}

/// Appends the encoded `text`.
pub(super) fn encode(text: &[u8], out: &mut Vec<u8>) {
    let (mut bits, mut count) = (0_u64, 0);
    for &byte in text {
        let length = u32::from(LENGTHS[usize::from(byte)]);
        bits = bits << length | u64::from(CODE.bits[usize::from(byte)]);
        count += length;
        while count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    if count > 0 {
        // RFC 7541, 5.2: padding is the beginning of EOS, ones.
        out.push((bits << (8 - count)) as u8 | 0xff >> count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use alloc::vec;
    use proptest::prelude::*;

    fn decoded(text: &[u8]) -> Option<Vec<u8>> {
        let mut out = b"before".to_vec();
        decode(text, &mut out)?;
        Some(out.strip_prefix(b"before").expect("appended").to_vec())
    }

    /// Bits, written one by one, padded with ones.
    fn packed(bits: &str) -> Vec<u8> {
        let padded = String::from(bits) + &"1".repeat(bits.len().wrapping_neg() % 8);
        padded.as_bytes().chunks(8).map(|byte| byte.iter().fold(0, |value, bit| value << 1 | (bit - b'0'))).collect()
    }

    fn bits_of(symbol: usize) -> String {
        let length = usize::from(LENGTHS[symbol]);
        alloc::format!("{:0length$b}", CODE.bits[symbol])
    }

    #[test]
    fn codes_are_those_of_the_oracle() {
        for symbol in 0..=255 {
            let mut expected = Vec::new();
            httlib_huffman::encode(&[symbol], &mut expected).expect("a byte");
            let mut found = Vec::new();
            encode(&[symbol], &mut found);
            assert_eq!(found, expected, "{symbol}");
            assert_eq!(packed(&bits_of(usize::from(symbol))), expected, "{symbol}");
        }
        assert_eq!(bits_of(256), "1".repeat(30));
        // RFC 7541, appendix B: the first and last codes of some lengths.
        let known = [
            (b'0', "00000"),
            (b't', "01001"),
            (b' ', "010100"),
            (b'u', "101101"),
            (b':', "1011100"),
            (b'z', "1111011"),
            (b'&', "11111000"),
            (b'Z', "11111101"),
            (b'!', "1111111000"),
            (b'\\', "1111111111111110000"),
            (10, "111111111111111111111111111100"),
        ];
        for (symbol, bits) in known {
            assert_eq!(bits_of(usize::from(symbol)), bits);
        }
    }

    #[test]
    fn all_codes_decode_at_every_bit_position() {
        for symbol in 0..=255_u8 {
            for before in 0..16 {
                for after in [0, 1, 7, 20] {
                    let text = [vec![b'0'; before], vec![symbol], vec![b'a'; after]].concat();
                    let bits: String = text.iter().map(|&byte| bits_of(usize::from(byte))).collect();
                    assert_eq!(decoded(&packed(&bits)), Some(text.clone()));
                    let mut encoded = Vec::new();
                    encode(&text, &mut encoded);
                    assert_eq!((&encoded, encoded.len()), (&packed(&bits), encoded_len(&text)));
                }
            }
        }
    }

    #[test]
    fn end_of_string_symbol_is_rejected_at_every_bit_position() {
        for before in 0..20 {
            for after in [0, 1, 9, 30] {
                let bits =
                    [bits_of(usize::from(b'0')).repeat(before), bits_of(256), bits_of(usize::from(b'a')).repeat(after)];
                assert_eq!(decoded(&packed(&bits.concat())), None, "{before} {after}");
            }
        }
    }

    #[test]
    fn invalid_padding_is_rejected() {
        for before in 0..20 {
            let text = bits_of(usize::from(b'a')).repeat(before);
            let room = text.len().wrapping_neg() % 8;
            assert!(decoded(&packed(&text)).is_some());
            // A byte of padding too many, and padding with a zero.
            assert_eq!(decoded(&packed(&(text.clone() + &"1".repeat(room + 8)))), None);
            // Five bits may be a character.
            for zero in (0..room).filter(|_| room < 5) {
                let padding = String::from("1").repeat(zero) + "0" + &"1".repeat(room - zero - 1);
                assert_eq!(decoded(&packed(&(text.clone() + &padding))), None, "{before} {zero}");
            }
        }
        assert_eq!(decoded(b""), Some(Vec::new()));
        assert_eq!(decoded(b"\xff"), None);
    }

    proptest! {
        #[test]
        fn decoding_reverses_encoding(text: Vec<u8>) {
            let mut encoded = Vec::new();
            encode(&text, &mut encoded);
            prop_assert_eq!(decoded(&encoded), Some(text));
        }

        #[test]
        fn random_codes_decode_as_the_oracle_does(code: Vec<u8>) {
            let mut expected = Vec::new();
            let is_valid = httlib_huffman::decode(&code, &mut expected, httlib_huffman::DecoderSpeed::OneBit).is_ok();
            if let Some(found) = decoded(&code) {
                prop_assert!(is_valid, "the oracle rejects it");
                prop_assert_eq!(found, expected);
            }
        }
    }
}
