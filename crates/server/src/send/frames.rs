//! The buffer in which frames of HTTP/2 are gathered.

use amped_http::h2::frame::{self, FRAME_BYTES, HEAD_BYTES, StreamId};
use amped_http::h2::hpack::NO_TABLE;

/// Gathered frames. The memory beyond them is kept, and so need not be cleared each time before it is read into.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    length: usize,
    /// A head in frames.
    heads: Vec<u8>,
}

impl FrameBuffer {
    /// Removes all frames.
    pub fn clear(&mut self) {
        self.length = 0;
    }

    /// Returns the frames.
    pub fn frames(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns their size, bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns so many bytes after the frames, to be filled.
    pub(super) fn room(&mut self, count: usize) -> &mut [u8] {
        let end = self.length + count;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        &mut self.bytes[self.length..end]
    }

    /// The next bytes, which were written to their [`room`](FrameBuffer::room), are part of the frames.
    pub(super) fn advance(&mut self, count: usize) {
        self.length += count;
    }

    /// Appends bytes.
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.length += bytes.len();
    }

    /// Removes what is after so many bytes.
    pub(super) fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Writes the head of a DATA frame whose place is at `at`.
    pub(super) fn put_data_head(&mut self, at: usize, length: usize, stream: StreamId, end_stream: bool) {
        self.bytes[at..at + HEAD_BYTES].copy_from_slice(&frame::data_head(length, stream, end_stream));
    }

    /// Appends the header block of a response; `table_update`: after the size of the dynamic table.
    pub(super) fn extend_by_headers(
        &mut self,
        stream: StreamId,
        (block, table_update): (&[u8], bool),
        end_stream: bool,
    ) {
        let mut heads = std::mem::take(&mut self.heads);
        heads.clear();
        match table_update {
            false => frame::headers(&mut heads, stream, block, end_stream, FRAME_BYTES),
            true => frame::headers(&mut heads, stream, &[&[NO_TABLE], block].concat(), end_stream, FRAME_BYTES),
        }
        self.extend(&heads);
        self.heads = heads;
    }
}
