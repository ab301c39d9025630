//! The fields of a decoded header block, in one flat buffer.
//!
//! [`super::hpack`] fills it, [`super::head`] reads it. A session has one and uses it for every block, so a request
//! allocates nothing once the buffer has grown. A block that exceeds the limits is still decoded to its end, because the
//! table of HPACK must stay in step (RFC 9113, 10.5.1), but its further fields are not kept.

use alloc::vec::Vec;

/// What a field counts in addition to its name and value (RFC 9113, 6.5.2).
const FIELD_OVERHEAD: usize = 32;

/// Above this size, a block is an attack: one byte can stand for 4 KiB of the table, so copying the fields of a block
/// of 64 KiB would keep an event loop busy for a tenth of a second. The fields of an honest client never reach it.
const FLOOD_BYTES: usize = 1 << 20;

/// Where a field ends in the buffer; it begins where the one before it ends.
#[derive(Clone, Copy, Debug)]
struct Ends {
    name: u32,
    value: u32,
}

/// The decoded fields of one header block, in order.
#[derive(Clone, Debug)]
pub struct FieldList {
    bytes: Vec<u8>,
    ends: Vec<Ends>,
    /// Size by RFC 9113, 6.5.2, of all fields, kept or not.
    size: usize,
    /// All fields, kept or not, without the cookies after the first.
    count: usize,
    has_cookie: bool,
    limit_bytes: usize,
    limit_fields: usize,
}

impl FieldList {
    /// An empty list of at most this size (RFC 9113, 6.5.2: each field counts 32 bytes more than its name and value)
    /// and number of fields. All Cookie fields count as one: a client may split a cookie (RFC 9113, 8.2.3).
    pub fn new(limit_bytes: usize, limit_fields: usize) -> FieldList {
        let (bytes, ends) = (Vec::new(), Vec::new());
        FieldList { bytes, ends, size: 0, count: 0, has_cookie: false, limit_bytes, limit_fields }
    }

    /// Begins an empty list with these limits; keeps the memory.
    pub fn start(&mut self, limit_bytes: usize, limit_fields: usize) {
        self.clear();
        (self.limit_bytes, self.limit_fields) = (limit_bytes, limit_fields);
    }

    /// Removes all fields; keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        (self.size, self.count, self.has_cookie) = (0, 0, false);
    }

    /// Whether the block exceeded a limit. Then the list lacks fields.
    pub fn is_over_limit(&self) -> bool {
        self.size > self.limit_bytes || self.count > self.limit_fields
    }

    /// Whether the block is so far over the limit that it should not be decoded to its end.
    pub(super) fn is_flood(&self) -> bool {
        self.size > self.limit_bytes.max(FLOOD_BYTES)
    }

    /// The size of the block by RFC 9113, 6.5.2, with the fields that were not kept.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The number of fields that were kept.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no field.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut start = 0;
        self.ends.iter().map(move |ends| {
            let (name_end, value_end) = (ends.name as usize, ends.value as usize);
            let field = (&self.bytes[start..name_end], &self.bytes[name_end..value_end]);
            start = value_end;
            field
        })
    }

    /// The value of the first field of this name, in lower case.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter().find_map(|(found, value)| (found == name).then_some(value))
    }

    /// Allocated bytes.
    pub fn heap_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<Ends>()
    }

    /// Appends a field.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.end_field(start, name.len());
    }

    /// The buffer, to which a decoder appends a name and a value; [`Self::end_field`] must follow.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Makes a field of everything from `start` on, the name first; drops it if the list is over a limit.
    pub(super) fn end_field(&mut self, start: usize, name_length: usize) {
        let end = self.bytes.len();
        self.size = self.size.saturating_add(end - start + FIELD_OVERHEAD);
        let is_cookie = &self.bytes[start..start + name_length] == b"cookie";
        self.count += usize::from(!(is_cookie && self.has_cookie));
        self.has_cookie |= is_cookie;
        match (self.is_over_limit(), u32::try_from(start + name_length), u32::try_from(end)) {
            (false, Ok(name), Ok(value)) => self.ends.push(Ends { name, value }),
            _ => self.bytes.truncate(start),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_over_limits_are_counted_but_not_kept() {
        #[track_caller]
        fn check(limit_bytes: usize, limit_fields: usize, fields: &[(&str, &str)], kept: usize, is_over: bool) {
            let mut list = FieldList::new(limit_bytes, limit_fields);
            for round in 0..2 {
                fields.iter().for_each(|(name, value)| list.push(name.as_bytes(), value.as_bytes()));
                let found: Vec<_> = list.iter().map(|(n, v)| (n.to_vec(), v.to_vec())).collect();
                let expected: Vec<_> =
                    fields[..kept].iter().map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec())).collect();
                assert_eq!((found, list.is_over_limit()), (expected, is_over), "round {round}");
                assert_eq!(list.size(), fields.iter().map(|(n, v)| n.len() + v.len() + 32).sum::<usize>());
                list.clear();
            }
        }
        let two = [("a", "1"), ("b", "22")];
        check(69, 2, &two, 2, false);
        check(68, 2, &two, 1, true);
        check(69, 1, &two, 1, true);
        check(0, 9, &two, 0, true);
        // A short field after a long one is not kept either: the list would be misleading.
        check(70, 9, &[("a", "1"), ("b", "a long value"), ("c", "")], 1, true);
        let cookies = [("cookie", "a"), ("x", "y"), ("cookie", "b"), ("cookie", "c")];
        check(1000, 2, &cookies, 4, false);
        check(1000, 1, &cookies, 1, true);
    }

    #[test]
    fn first_of_equal_names_is_found() {
        let mut list = FieldList::new(1000, 10);
        list.push(b"a", b"1");
        list.push(b"a", b"2");
        list.push(b"", b"");
        assert_eq!((list.get(b"a"), list.get(b"A"), list.get(b"")), (Some(&b"1"[..]), None, Some(&b""[..])));
        assert_eq!(list.len(), 3);
        let capacity = list.heap_bytes();
        list.clear();
        assert!(list.is_empty() && list.heap_bytes() == capacity && capacity > 0);
    }
}
