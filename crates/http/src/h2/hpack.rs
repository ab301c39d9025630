//! Header compression (RFC 7541): a decoder with its dynamic table, and a writer without one.
//!
//! The decoder turns the block of a HEADERS frame and its CONTINUATION frames into a [`FieldList`]. The writer uses the
//! static table only, so that a header block is the same bytes on every connection, and a ready response is copied
//! instead of encoded. What this costs is bytes: a repeated response head is about 100 bytes instead of 20.
//! The table has at most 4,096 bytes by RFC 7541's counting, the default that we never raise, in one buffer that grows
//! from the first insertion on: a connection whose client indexes nothing has none.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::fields::FieldList;
use super::huffman;

/// The maximum size of the dynamic table: the initial value of SETTINGS_HEADER_TABLE_SIZE (RFC 9113, 6.5.2).
pub const TABLE_BYTES: usize = 4096;

/// What an entry counts in addition to its name and value (RFC 7541, 4.1).
const ENTRY_OVERHEAD: usize = 32;

/// The static table (RFC 7541, appendix A); its first entry has index 1.
#[rustfmt::skip]
const STATIC: [(&str, &str); 61] = [
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"), (":path", "/index.html"),
    (":scheme", "http"), (":scheme", "https"), (":status", "200"), (":status", "204"), (":status", "206"),
    (":status", "304"), (":status", "400"), (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""), ("accept", ""),
    ("access-control-allow-origin", ""), ("age", ""), ("allow", ""), ("authorization", ""), ("cache-control", ""),
    ("content-disposition", ""), ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
    ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""), ("date", ""), ("etag", ""),
    ("expect", ""), ("expires", ""), ("from", ""), ("host", ""), ("if-match", ""), ("if-modified-since", ""),
    ("if-none-match", ""), ("if-range", ""), ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""),
    ("location", ""), ("max-forwards", ""), ("proxy-authenticate", ""), ("proxy-authorization", ""), ("range", ""),
    ("referer", ""), ("refresh", ""), ("retry-after", ""), ("server", ""), ("set-cookie", ""),
    ("strict-transport-security", ""), ("transfer-encoding", ""), ("user-agent", ""), ("vary", ""), ("via", ""),
    ("www-authenticate", ""),
];

/// Why a header block cannot be decoded: an error of the connection, COMPRESSION_ERROR (RFC 9113, 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HpackError {
    /// The reason, for the author of the peer.
    pub why: &'static str,
}

const fn error(why: &'static str) -> HpackError {
    HpackError { why }
}

/// Decodes the header blocks that one peer sends on a connection, in order.
#[derive(Debug, Default)]
pub struct Decoder {
    table: DynamicTable,
}

impl Decoder {
    /// A decoder with an empty table.
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// Decodes a whole block and appends its fields. Fields beyond the limits of the list are decoded too, since they
    /// may change the table.
    ///
    /// # Errors
    /// [`HpackError`] if the block is invalid, or stands for more than any request needs; then the list is empty, and the
    /// decoder must not be used again.
    pub fn decode(&mut self, block: &[u8], fields: &mut FieldList) -> Result<(), HpackError> {
        let decoded = self.decode_fields(block, fields);
        if decoded.is_err() {
            fields.clear();
        }
        decoded
    }

    fn decode_fields(&mut self, block: &[u8], fields: &mut FieldList) -> Result<(), HpackError> {
        let mut rest = block;
        let mut size_may_change = true;
        while let Some(&first) = rest.first() {
            // RFC 7541, 6.1, 6.2.1, 6.3, 6.2.2 and 6.2.3; the bits before the number tell which.
            match first {
                0x80.. => {
                    let index = integer(&mut rest, 7)?;
                    let (name, value) = self.table.get(index).ok_or(error("index beyond the table"))?;
                    fields.push(name, value);
                }
                0x40.. => self.literal(&mut rest, 6, true, fields)?,
                0x20.. => {
                    // RFC 7541, 4.2.
                    if !size_may_change {
                        return Err(error("change of the table size after a field"));
                    }
                    let size = integer(&mut rest, 5)?;
                    if size > TABLE_BYTES {
                        return Err(error("table size above SETTINGS_HEADER_TABLE_SIZE"));
                    }
                    self.table.set_limit(size);
                    continue;
                }
                _ => self.literal(&mut rest, 4, false, fields)?,
            }
            if fields.is_flood() {
                return Err(error("more fields than any request needs"));
            }
            size_may_change = false;
        }
        Ok(())
    }

    /// Bytes allocated for the table.
    pub fn heap_bytes(&self) -> usize {
        self.table.bytes.capacity() + self.table.entries.capacity() * size_of::<Entry>()
    }

    /// The size of the table by RFC 7541, 4.1, at most [`TABLE_BYTES`].
    pub fn table_bytes(&self) -> usize {
        self.table.size
    }

    /// Decodes a literal field, whose name may be in the table (RFC 7541, 6.2).
    fn literal(
        &mut self,
        rest: &mut &[u8],
        prefix: u32,
        is_indexed: bool,
        fields: &mut FieldList,
    ) -> Result<(), HpackError> {
        let index = integer(rest, prefix)?;
        let buffer = fields.buffer();
        let start = buffer.len();
        match index {
            0 => string(rest, buffer)?,
            _ => buffer.extend_from_slice(self.table.get(index).ok_or(error("index beyond the table"))?.0),
        }
        let name_length = buffer.len() - start;
        string(rest, buffer)?;
        if is_indexed {
            self.table.insert(&buffer[start..], name_length);
        }
        fields.end_field(start, name_length);
        Ok(())
    }
}

/// Decodes an integer with a prefix of this many bits (RFC 7541, 5.1).
fn integer(rest: &mut &[u8], prefix: u32) -> Result<usize, HpackError> {
    let incomplete = error("the block ends within a number");
    let (&first, mut after) = rest.split_first().ok_or(incomplete)?;
    let max = (1_u32 << prefix) - 1;
    let mut value = u32::from(first) & max;
    if value == max {
        // Nothing in a block is as long as 2^28: four more bytes are enough, and bound what is read for nothing.
        let mut shift = 0;
        loop {
            let (&byte, next) = after.split_first().ok_or(incomplete)?;
            after = next;
            value += u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
            shift += 7;
            if shift == 28 {
                return Err(error("number too large"));
            }
        }
    }
    *rest = after;
    Ok(value as usize)
}

/// Decodes a string and appends it (RFC 7541, 5.2).
fn string(rest: &mut &[u8], out: &mut Vec<u8>) -> Result<(), HpackError> {
    let is_huffman = rest.first().is_some_and(|&byte| byte >= 0x80);
    let length = integer(rest, 7)?;
    let (text, after) = rest.split_at_checked(length).ok_or(error("the block ends within a string"))?;
    *rest = after;
    match is_huffman {
        true => huffman::decode(text, out).ok_or(error("invalid Huffman code")),
        false => {
            out.extend_from_slice(text);
            Ok(())
        }
    }
}

/// The fields that the peer may refer to by number (RFC 7541, 2.3.2).
#[derive(Debug)]
struct DynamicTable {
    /// Names and values from the oldest entry to the newest, after those of evicted entries.
    bytes: Vec<u8>,
    /// Oldest first.
    entries: VecDeque<Entry>,
    /// Bytes of evicted entries that have been removed from the front of `bytes`; wraps around.
    removed: u32,
    /// By RFC 7541, 4.1; `size <= limit <= TABLE_BYTES`.
    size: usize,
    limit: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Offset in `bytes`, plus `removed` at that time.
    start: u32,
    name: u16,
    value: u16,
}

impl Entry {
    fn len(self) -> usize {
        usize::from(self.name) + usize::from(self.value)
    }
}

impl Default for DynamicTable {
    fn default() -> DynamicTable {
        DynamicTable { bytes: Vec::new(), entries: VecDeque::new(), removed: 0, size: 0, limit: TABLE_BYTES }
    }
}

impl DynamicTable {
    /// The entry of an index into both tables (RFC 7541, 2.3.3): the static one, then the dynamic one, newest first.
    fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let index = index.checked_sub(1)?;
        if let Some((name, value)) = STATIC.get(index) {
            return Some((name.as_bytes(), value.as_bytes()));
        }
        let from_newest = index - STATIC.len();
        let entry = self.entries.get(self.entries.len().checked_sub(from_newest + 1)?)?;
        let start = self.offset(*entry);
        Some(self.bytes[start..start + entry.len()].split_at(usize::from(entry.name)))
    }

    fn offset(&self, entry: Entry) -> usize {
        entry.start.wrapping_sub(self.removed) as usize
    }

    /// Inserts a field; one that is larger than the table empties it (RFC 7541, 4.4).
    fn insert(&mut self, field: &[u8], name_length: usize) {
        let size = field.len() + ENTRY_OVERHEAD;
        self.evict(self.limit.saturating_sub(size));
        if size > self.limit {
            return;
        }
        if self.bytes.len() + field.len() > self.bytes.capacity() {
            self.make_room(field.len());
        }
        let start = self.removed.wrapping_add(self.bytes.len() as u32);
        self.bytes.extend_from_slice(field);
        // Both lengths are below `TABLE_BYTES`.
        let (name, value) = (name_length as u16, (field.len() - name_length) as u16);
        self.entries.push_back(Entry { start, name, value });
        self.size += size;
    }

    fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.evict(limit);
    }

    /// Evicts the oldest entries until the size is at most this (RFC 7541, 4.3).
    fn evict(&mut self, size_max: usize) {
        while self.size > size_max
            && let Some(entry) = self.entries.pop_front()
        {
            self.size -= entry.len() + ENTRY_OVERHEAD;
        }
    }

    /// Makes room for this many bytes: removes what was evicted; if that is not enough, grows. A table of small entries
    /// has at least a third of its bytes free by the overhead that each counts, so this is rare.
    fn make_room(&mut self, length: usize) {
        let live = self.entries.front().map_or(self.bytes.len(), |entry| self.offset(*entry));
        self.bytes.drain(..live);
        self.removed = self.removed.wrapping_add(live as u32);
        let needed = self.bytes.len() + length;
        if needed > self.bytes.capacity() {
            let capacity = needed.next_power_of_two().max(512);
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
    }
}

/// The start of a block by an encoder that keeps no dynamic table: its size is 0 (RFC 7541, 6.3).
pub const NO_TABLE: u8 = 0x20;

/// Appends `:status` (RFC 9113, 8.3.2).
pub fn write_status(out: &mut Vec<u8>, status: u16) {
    let mut digits = Vec::with_capacity(3);
    crate::text::push_decimal(&mut digits, u64::from(status));
    write_field(out, b":status", &digits);
}

/// Appends a field, its name in lower case: as an entry of the static table, else as a literal that is not indexed.
pub fn write_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let (index, has_value) = find_static(name, value);
    if has_value {
        return push_integer(out, 0x80, 7, index);
    }
    push_name(out, 0, index, name);
    push_string(out, value);
}

/// As [`write_field`], for a secret: no proxy may index it (RFC 7541, 7.1.3), and it is always a literal.
pub fn write_field_never_indexed(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    push_name(out, 0x10, find_static(name, value).0, name);
    push_string(out, value);
}

/// As [`write_field`], with the value as it is, for one that is overwritten or sent once: its bytes are the last ones.
pub fn write_field_plain(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    push_name(out, 0, find_static(name, value).0, name);
    push_integer(out, 0, 7, value.len());
    out.extend_from_slice(value);
}

/// The index of the field in the static table, or of its name only; 0 if it has neither.
fn find_static(name: &[u8], value: &[u8]) -> (usize, bool) {
    let mut index = 0;
    for (at, (known, with)) in STATIC.iter().enumerate() {
        if known.as_bytes().eq_ignore_ascii_case(name) {
            // An empty value in the table means that there is none.
            if !with.is_empty() && with.as_bytes() == value {
                return (at + 1, true);
            }
            index = if index == 0 { at + 1 } else { index };
        }
    }
    (index, false)
}

/// Appends the beginning of a literal: its kind, and its name by index or as a string.
fn push_name(out: &mut Vec<u8>, kind: u8, index: usize, name: &[u8]) {
    push_integer(out, kind, 4, index);
    if index == 0 {
        push_string(out, &name.to_ascii_lowercase());
    }
}

/// Appends a string, Huffman-coded if that is shorter.
fn push_string(out: &mut Vec<u8>, text: &[u8]) {
    let length = huffman::encoded_len(text);
    if length < text.len() {
        push_integer(out, 0x80, 7, length);
        huffman::encode(text, out);
    } else {
        push_integer(out, 0, 7, text.len());
        out.extend_from_slice(text);
    }
}

/// Appends an integer after the bits of `first` (RFC 7541, 5.1).
fn push_integer(out: &mut Vec<u8>, first: u8, prefix: u32, value: usize) {
    let max = (1 << prefix) - 1;
    if value < max {
        return out.push(first | value as u8);
    }
    out.push(first | max as u8);
    let mut rest = value - max;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Bytes of an integer (RFC 7541, 5.1).
pub(super) const fn integer_len(prefix: u32, value: usize) -> usize {
    let max = (1 << prefix) - 1;
    if value < max {
        return 1;
    }
    let (mut rest, mut length) = (value - max, 2);
    while rest >= 0x80 {
        rest >>= 7;
        length += 1;
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use alloc::vec;
    use httlib_hpack as oracle;
    use proptest::prelude::*;

    type Fields = Vec<(Vec<u8>, Vec<u8>)>;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter_map(|digit| (digit as char).to_digit(16).map(|n| n as u8)).collect();
        digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Fields, &'static str> {
        let mut list = FieldList::new(usize::MAX, usize::MAX);
        decoder.decode(block, &mut list).map_err(|error| error.why)?;
        Ok(list.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect())
    }

    /// `name: value` lines.
    fn text(fields: &[(Vec<u8>, Vec<u8>)]) -> String {
        let line =
            |(name, value): &(Vec<u8>, Vec<u8>)| alloc::format!("{}: {}\n", name.escape_ascii(), value.escape_ascii());
        fields.iter().map(line).collect()
    }

    /// Decodes blocks in order; after each, the table has this size and these entries, newest first.
    #[track_caller]
    fn check_sequence(blocks: &[(&str, &str, usize, &str)]) {
        let mut decoder = Decoder::new();
        for (block, expected, size, table) in blocks {
            let found = decode(&mut decoder, &bytes(block)).expect("valid");
            assert_eq!(text(&found), *expected);
            assert_eq!(decoder.table_bytes(), *size);
            let entries = (62..).map_while(|index| decoder.table.get(index)).map(|(n, v)| (n.to_vec(), v.to_vec()));
            assert_eq!(text(&entries.collect::<Vec<_>>()), *table);
        }
    }

    /// Each byte stands for one field, which fills the table.
    #[test]
    fn block_of_few_bytes_for_many_is_rejected() {
        let check = |repeats: usize, is_accepted: bool| {
            let value = vec![b'x'; 4000];
            // RFC 7541, 6.2.1: a literal that enters the table; 6.1: the first dynamic entry. The length is 127 + 3873,
            // in groups of seven bits.
            let mut block = vec![0x40, 1, b'a', 0x7f, 0xa1, 0x1e];
            block.extend(&value);
            block.extend(vec![0xbe; repeats]);
            let mut fields = FieldList::new(32 << 10, 100);
            assert_eq!(Decoder::default().decode(&block, &mut fields).is_ok(), is_accepted, "{repeats} repeats");
            assert_eq!(fields.is_over_limit(), is_accepted);
        };
        check(200, true);
        check(60_000, false);
    }

    #[test]
    fn integers_of_rfc_appendix_c_1_are_read_and_written() {
        for (prefix, value, expected) in
            [(5, 10, "0a"), (5, 1337, "1f9a0a"), (8, 42, "2a"), (5, 30, "1e"), (5, 31, "1f00")]
        {
            let expected = bytes(expected);
            let mut out = Vec::new();
            push_integer(&mut out, 0, prefix, value);
            assert_eq!(out, expected);
            assert_eq!(integer_len(prefix, value), expected.len());
            let mut rest = &out[..];
            assert_eq!((integer(&mut rest, prefix), rest), (Ok(value), &b""[..]));
        }
    }

    #[test]
    fn literals_of_rfc_appendix_c_2_are_decoded() {
        let custom = "custom-key: custom-header\n";
        check_sequence(&[("400a637573746f6d2d6b65790d637573746f6d2d686561646572", custom, 55, custom)]);
        check_sequence(&[("040c2f73616d706c652f70617468", ":path: /sample/path\n", 0, "")]);
        check_sequence(&[("100870617373776f726406736563726574", "password: secret\n", 0, "")]);
        check_sequence(&[("82", ":method: GET\n", 0, "")]);
    }

    const REQUESTS: [&str; 3] = [
        ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com\n",
        ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com\ncache-control: no-cache\n",
        ":method: GET\n:scheme: https\n:path: /index.html\n:authority: www.example.com\ncustom-key: custom-value\n",
    ];

    fn check_requests(blocks: [&str; 3]) {
        let tables = [
            ":authority: www.example.com\n",
            "cache-control: no-cache\n:authority: www.example.com\n",
            "custom-key: custom-value\ncache-control: no-cache\n:authority: www.example.com\n",
        ];
        let sizes = [57, 110, 164];
        let steps: Vec<_> = (0..3).map(|at| (blocks[at], REQUESTS[at], sizes[at], tables[at])).collect();
        check_sequence(&steps);
    }

    #[test]
    fn requests_of_rfc_appendix_c_3_are_decoded() {
        check_requests([
            "828684410f7777772e6578616d706c652e636f6d",
            "828684be58086e6f2d6361636865",
            "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
        ]);
    }

    #[test]
    fn huffman_requests_of_rfc_appendix_c_4_are_decoded() {
        check_requests([
            "828684418cf1e3c2e5f23a6ba0ab90f4ff",
            "828684be5886a8eb10649cbf",
            "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        ]);
    }

    /// The examples have a table of 256 bytes, to which these blocks first shrink theirs.
    fn check_responses(blocks: [&str; 3]) {
        let (date_21, date_22) = ("date: Mon, 21 Oct 2013 20:13:21 GMT\n", "date: Mon, 21 Oct 2013 20:13:22 GMT\n");
        let (private, location) = ("cache-control: private\n", "location: https://www.example.com\n");
        let (gzip, cookie) =
            ("content-encoding: gzip\n", "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1\n");
        let first = [":status: 302\n", private, date_21, location].concat();
        let second = [":status: 307\n", private, date_21, location].concat();
        let third = [":status: 200\n", private, date_22, location, gzip, cookie].concat();
        let tables = [
            [location, date_21, private, ":status: 302\n"].concat(),
            [":status: 307\n", location, date_21, private].concat(),
            [cookie, gzip, date_22].concat(),
        ];
        let with_size = String::from("3fe101") + blocks[0];
        check_sequence(&[
            (&with_size, &first, 222, &tables[0]),
            (blocks[1], &second, 222, &tables[1]),
            (blocks[2], &third, 215, &tables[2]),
        ]);
    }

    #[test]
    fn responses_of_rfc_appendix_c_5_evict_entries() {
        check_responses([
            "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d54\
             6e1768747470733a2f2f7777772e6578616d706c652e636f6d",
            "4803333037c1c0bf",
            "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f3d4153\
             444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b2076657273696f6e3d31",
        ]);
    }

    #[test]
    fn huffman_responses_of_rfc_appendix_c_6_evict_entries() {
        check_responses([
            "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3",
            "4883640effc1c0bf",
            "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960\
             d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
        ]);
    }

    #[test]
    fn invalid_blocks_are_rejected() {
        #[track_caller]
        fn check(block: &str, why: &str) {
            assert_eq!(decode(&mut Decoder::new(), &bytes(block)), Err(why), "{block}");
        }
        check("80", "index beyond the table");
        check("be", "index beyond the table");
        check("7e0161", "index beyond the table");
        check("ffffffff7f", "index beyond the table");
        check("ff", "the block ends within a number");
        check("ff80", "the block ends within a number");
        check("ffffffffff00", "number too large");
        check("ff8080808000", "number too large");
        check("40", "the block ends within a number");
        check("4001", "the block ends within a string");
        check("400161", "the block ends within a number");
        check("40016102", "the block ends within a string");
        check("000161 81ff", "invalid Huffman code");
        check("000161 84ffffffff", "invalid Huffman code");
        // RFC 7541, 4.2: a change of the size comes first, and does not exceed the setting: 4096, then 4097.
        check("3fe21f", "table size above SETTINGS_HEADER_TABLE_SIZE");
        check("823fe11f", "change of the table size after a field");
        assert_eq!(decode(&mut Decoder::new(), &bytes("203fe11f82")).map(|fields| fields.len()), Ok(1));
    }

    #[test]
    fn entry_larger_than_table_empties_it() {
        let mut decoder = Decoder::new();
        let insert = |value: usize| {
            let mut block = bytes("400161");
            push_integer(&mut block, 0, 7, value);
            block.resize(block.len() + value, b'v');
            block
        };
        for (value, size) in [(10, 43), (20, 43 + 53), (4096 - 33, 4096), (4096 - 32, 0), (1, 34)] {
            decode(&mut decoder, &insert(value)).expect("valid");
            assert_eq!(decoder.table_bytes(), size, "{value}");
            assert!(decoder.table.bytes.capacity() <= TABLE_BYTES);
        }
        // RFC 7541, 4.3: size 0 empties the table, and nothing fits into it.
        decode(&mut decoder, &bytes("20400161013140016203323232")).expect("valid");
        assert_eq!((decoder.table_bytes(), decoder.table.entries.len()), (0, 0));
    }

    #[test]
    fn name_of_evicted_entry_may_be_used() {
        // RFC 7541, 4.4: the entry whose name the new one has may be evicted by it.
        let mut decoder = Decoder::new();
        let mut block = bytes("400561626364650161");
        block.extend_from_slice(&bytes("7e"));
        push_integer(&mut block, 0, 7, 4050);
        block.resize(block.len() + 4050, b'v');
        let fields = decode(&mut decoder, &block).expect("valid");
        assert_eq!(fields[1], (b"abcde".to_vec(), vec![b'v'; 4050]));
        assert_eq!(decoder.table.get(62).map(|(name, _)| name), Some(&b"abcde"[..]));
        assert_eq!(decoder.table.entries.len(), 1);
    }

    #[test]
    fn table_is_allocated_at_first_insertion() {
        let mut decoder = Decoder::new();
        decode(&mut decoder, &bytes("828684040c2f73616d706c652f70617468")).expect("valid");
        assert_eq!(decoder.heap_bytes(), 0);
        decode(&mut decoder, &bytes("400161013a")).expect("valid");
        assert!((1..1024).contains(&decoder.heap_bytes()), "{}", decoder.heap_bytes());
    }

    #[test]
    fn fields_over_limit_still_enter_table() {
        let mut decoder = Decoder::new();
        let mut list = FieldList::new(34, 9);
        decoder.decode(&bytes("4001610131 4001620132"), &mut list).expect("valid");
        assert!(list.is_over_limit() && list.len() == 1);
        assert_eq!(decoder.table.get(62), Some((&b"b"[..], &b"2"[..])));
    }

    #[test]
    fn fields_are_written_in_shortest_static_form() {
        #[track_caller]
        fn check(write: impl FnOnce(&mut Vec<u8>), expected: &str) {
            let mut out = Vec::new();
            write(&mut out);
            assert_eq!(out, bytes(expected));
        }
        check(|out| write_status(out, 200), "88");
        check(|out| write_status(out, 500), "8e");
        check(|out| write_status(out, 302), "08826402");
        check(|out| write_field(out, b":method", b"GET"), "82");
        check(|out| write_field(out, b"Accept-Encoding", b"gzip, deflate"), "90");
        check(|out| write_field(out, b":path", b"/sample/path"), "04896103a6ba0ac5634cff");
        check(|out| write_field(out, b"Age", b""), "0f0600");
        check(|out| write_field(out, b"Custom-Key", b"~"), "008825a849e95ba97d7f017e");
        check(|out| write_field_never_indexed(out, b"cookie", b"~"), "1f11017e");
        check(|out| write_field_never_indexed(out, b":method", b"GET"), "1203474554");
        check(|out| write_field_plain(out, b"date", b"aaaaaa"), "0f1206616161616161");
    }

    #[test]
    fn static_table_is_that_of_the_oracle() {
        let table = oracle::table::Table::with_dynamic_size(0);
        for (index, (name, value)) in (1..).zip(STATIC) {
            assert_eq!(table.get(index), Some((name.as_bytes(), value.as_bytes())), "{index}");
            assert_eq!(
                find_static(name.as_bytes(), value.as_bytes()),
                match value {
                    "" => (index as usize, false),
                    _ => (index as usize, true),
                }
            );
        }
        assert_eq!(table.get(62), None);
    }

    /// Names and values, often ones that occurred before or are in the static table.
    fn fields() -> impl Strategy<Value = Fields> {
        let name = prop_oneof![
            "[a-c]",
            "[a-z-]{1,40}",
            prop::sample::select(STATIC.to_vec()).prop_map(|(name, _)| String::from(name))
        ];
        let value = prop_oneof!["[a-c]?", "\\PC{0,60}", "[ -~]{200,900}", Just(String::from("gzip, deflate"))];
        let field = (name, value).prop_map(|(name, value): (String, String)| (name.into_bytes(), value.into_bytes()));
        prop::collection::vec(field, 0..12)
    }

    proptest! {
        #[test]
        fn blocks_of_the_oracle_are_decoded(
            blocks in prop::collection::vec((fields(), prop::collection::vec(0_u32..=4096, 0..3), any::<u8>()), 1..12),
        ) {
            let mut encoder = oracle::Encoder::with_dynamic_size(4096);
            let mut decoder = Decoder::new();
            for (fields, sizes, flags) in blocks {
                let mut block = Vec::new();
                for size in sizes {
                    encoder.update_max_dynamic_size(size, &mut block).expect("valid");
                }
                for (at, (name, value)) in fields.iter().enumerate() {
                    // Huffman for the name, for the value; indexed or never indexed; in the shortest form.
                    let flags = flags.rotate_left(at as u32) & 0x17;
                    encoder.encode((name.clone(), value.clone(), flags), &mut block).expect("valid");
                }
                prop_assert_eq!(decode(&mut decoder, &block), Ok(fields));
                prop_assert!(decoder.table_bytes() <= TABLE_BYTES);
                prop_assert!(decoder.table.bytes.capacity() <= TABLE_BYTES);
            }
        }

        #[test]
        fn written_fields_are_decoded_by_the_oracle(fields in fields(), status in 100_u16..1000) {
            let mut block = Vec::new();
            write_status(&mut block, status);
            for (at, (name, value)) in fields.iter().enumerate() {
                [write_field, write_field_never_indexed, write_field_plain][at % 3](&mut block, name, value);
            }
            let mut expected = vec![(b":status".to_vec(), status.to_string().into_bytes())];
            expected.extend(fields);
            prop_assert_eq!(decode(&mut Decoder::new(), &block), Ok(expected.clone()));
            let mut found = Vec::new();
            oracle::Decoder::default().decode(&mut block, &mut found).expect("valid");
            let found: Fields = found.into_iter().map(|(name, value, _)| (name, value)).collect();
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn random_blocks_do_not_panic(blocks: Vec<Vec<u8>>) {
            let mut decoder = Decoder::new();
            let mut list = FieldList::new(300, 5);
            for block in blocks {
                list.clear();
                if decoder.decode(&block, &mut list).is_err() {
                    break;
                }
                prop_assert!(decoder.table_bytes() <= TABLE_BYTES && list.len() <= 300 / 32);
            }
        }
    }

    use alloc::string::ToString;
}
