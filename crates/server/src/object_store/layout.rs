//! The file of a large object: its bytes, of which some windows may be missing, and behind them a slot for each window.
//!
//! ```text
//! | window 0 | (hole) | window 2 | ... | slot 0 | zeros | slot 2 | ... |
//! 0                                      slots_at                       file_bytes
//! ```
//!
//! A slot names the run of the server that has written or verified its window, and the SHA-256 of it. It is written after the bytes,
//! in one call, and lies in one page: so a server that is killed leaves a slot either empty or right, and a machine
//! that fails leaves at worst one that does not fit its bytes, which the next run notices. An empty slot is zero, as a hole is.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use amped_sys::file;
use aws_lc_rs::digest::{Context, SHA256, SHA256_OUTPUT_LEN};
use serde::{Deserialize, Serialize};

/// How an object is kept in windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Bytes of the object.
    pub size: u64,
    /// Bytes of a window; the last one may have fewer. `window_bytes > 0`
    pub window_bytes: u64,
}

/// The slot of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The run of the server that has written or verified the window; not zero.
    pub run: u64,
    /// SHA-256 of its bytes.
    pub sha256: [u8; SHA256_OUTPUT_LEN],
}

/// Bytes of a slot: a divisor of a page.
const SLOT_BYTES: u64 = 64;

/// Where the slots begin is a multiple of this.
const PAGE: u64 = 4096;

impl Layout {
    /// Returns whether the numbers are possible. Those of a record may be damaged.
    pub fn is_sound(&self) -> bool {
        const MAX: u64 = 1 << 56;
        (1..MAX).contains(&self.size) && (1..=MAX).contains(&self.window_bytes)
    }

    /// Returns the number of windows.
    pub fn windows(&self) -> u64 {
        self.size.div_ceil(self.window_bytes)
    }

    /// Returns the bytes of a window.
    pub fn range(&self, window: u64) -> Range<u64> {
        let start = window * self.window_bytes;
        start..self.size.min(start + self.window_bytes)
    }

    fn slots_at(&self) -> u64 {
        self.size.next_multiple_of(PAGE)
    }

    /// Returns the bytes of all slots.
    pub fn slots_bytes(&self) -> u64 {
        self.windows() * SLOT_BYTES
    }

    /// Returns the length of the file.
    pub fn file_bytes(&self) -> u64 {
        self.slots_at() + self.slots_bytes()
    }

    fn slot_at(&self, window: u64) -> u64 {
        self.slots_at() + window * SLOT_BYTES
    }

    /// Reads the slot of a window; `None`: the window is missing.
    ///
    /// # Errors
    /// Those of pread(2).
    pub fn slot(&self, file: &File, window: u64) -> io::Result<Option<Slot>> {
        let mut bytes = [0; 8 + SHA256_OUTPUT_LEN];
        file.read_exact_at(&mut bytes, self.slot_at(window))?;
        Ok(Slot::read(&bytes))
    }

    /// Writes the slot of a window. Its bytes must have been written.
    ///
    /// # Errors
    /// Those of pwrite(2).
    pub fn put_slot(&self, file: &File, window: u64, slot: Option<&Slot>) -> io::Result<()> {
        let mut bytes = [0; SLOT_BYTES as usize];
        if let Some(slot) = slot {
            bytes[..8].copy_from_slice(&slot.run.to_le_bytes());
            bytes[8..8 + SHA256_OUTPUT_LEN].copy_from_slice(&slot.sha256);
        }
        file.write_all_at(&bytes, self.slot_at(window))
    }

    /// Returns the bytes of the windows that are there, with those of all slots.
    ///
    /// # Errors
    /// Those of pread(2).
    pub fn occupied(&self, file: &File) -> io::Result<u64> {
        let mut bytes = vec![0; usize::try_from(self.slots_bytes()).map_err(io::Error::other)?];
        file.read_exact_at(&mut bytes, self.slots_at())?;
        let slots = (0..).zip(bytes.chunks_exact(SLOT_BYTES as usize));
        let present = slots.filter(|(_, slot)| Slot::read(slot).is_some());
        Ok(self.slots_bytes() + present.map(|(window, _)| length(&self.range(window))).sum::<u64>())
    }

    /// Returns the SHA-256 of a window as it is in the file.
    ///
    /// # Errors
    /// Those of pread(2).
    pub fn sha256(&self, file: &File, window: u64) -> io::Result<[u8; SHA256_OUTPUT_LEN]> {
        let (mut digest, mut buffer) = (Context::new(&SHA256), vec![0; 64 * 1024]);
        let Range { mut start, end } = self.range(window);
        while start < end {
            let count = (end - start).min(buffer.len() as u64) as usize;
            file.read_exact_at(&mut buffer[..count], start)?;
            digest.update(&buffer[..count]);
            start += count as u64;
        }
        Ok(finish(digest))
    }

    /// Frees the disk space of a window that is missing, and may be there in part.
    ///
    /// # Errors
    /// Those of fallocate(2).
    pub fn clear(&self, file: &File, window: u64) -> io::Result<()> {
        file::punch_hole(file, self.range(window))
    }
}

impl Slot {
    fn read(bytes: &[u8]) -> Option<Slot> {
        let (run, rest) = bytes.split_first_chunk()?;
        let run = u64::from_le_bytes(*run);
        let sha256 = *rest.first_chunk()?;
        (run != 0).then_some(Slot { run, sha256 })
    }
}

/// Returns the digest as an array.
pub fn finish(digest: Context) -> [u8; SHA256_OUTPUT_LEN] {
    let mut sha256 = [0; SHA256_OUTPUT_LEN];
    sha256.copy_from_slice(digest.finish().as_ref());
    sha256
}

/// Returns the number of bytes of a range.
pub fn length(range: &Range<u64>) -> u64 {
    range.end - range.start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_follow_windows_and_none_crosses_a_page() {
        for (size, windows, last) in [(1, 1, 1), (1000, 1, 1000), (1001, 2, 1), (70_000, 70, 1000), (70_001, 71, 1)] {
            let layout = Layout { size, window_bytes: 1000 };
            assert_eq!((layout.windows(), length(&layout.range(windows - 1))), (windows, last), "{size}");
            assert!(layout.slots_at() >= size);
            assert!((0..windows).all(|window| layout.slot_at(window) / PAGE == (layout.slot_at(window) + 63) / PAGE));
            assert_eq!(layout.file_bytes(), layout.slot_at(windows - 1) + 64);
        }
    }

    #[test]
    fn slot_survives_and_damage_of_its_window_shows() {
        let file = tempfile::tempfile().unwrap();
        let layout = Layout { size: 10_500, window_bytes: 4096 };
        file.set_len(layout.file_bytes()).unwrap();
        assert_eq!((layout.slot(&file, 2).unwrap(), layout.occupied(&file).unwrap()), (None, 3 * 64));
        file.write_all_at(&[7; 10_500 - 8192], 8192).unwrap();
        let slot = Slot { run: 9, sha256: layout.sha256(&file, 2).unwrap() };
        layout.put_slot(&file, 2, Some(&slot)).unwrap();
        assert_eq!(layout.slot(&file, 2).unwrap(), Some(slot));
        assert_eq!(layout.occupied(&file).unwrap(), 3 * 64 + 10_500 - 8192);
        file.write_all_at(&[8], 10_499).unwrap();
        assert_ne!(layout.sha256(&file, 2).unwrap(), slot.sha256);
        layout.put_slot(&file, 2, None).unwrap();
        layout.clear(&file, 2).unwrap();
        assert_eq!((layout.slot(&file, 2).unwrap(), layout.occupied(&file).unwrap()), (None, 3 * 64));
        let mut bytes = [1; 10_500 - 8192];
        file.read_exact_at(&mut bytes, 8192).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0) && file.metadata().unwrap().len() == layout.file_bytes());
    }
}
