//! Parsers of the kernel's files, one module per file: each parses a text into numbers and does no I/O, so that its
//! test is a text; [`Reader`] reads the files.
//!
//! Numbers are the kernel's counters since its start; `rates` computes differences. A field that this kernel lacks is
//! `None` or omitted, never 0. Lines and fields are found by name, since kernels add some.

mod disk;
mod group;
mod memory;
mod network;
mod pressure;
mod stat;
mod task;

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

pub use amped_measure::host::Cpu;
pub use disk::Disk;
pub(crate) use group::{FILES as GROUP_FILES, folder_of as group_folder_of, folders as group_folders};
pub use group::{Group, GroupDisk, Limits};
pub use memory::{Memory, Paging};
pub use network::{Interface, Tcp};
pub use pressure::Pressure;
pub use stat::{Host, SOFTIRQS, System};
#[cfg(feature = "profile")]
pub(crate) use task::core_list;
pub(crate) use task::cores_of;
pub use task::{Process, Scheduled, Stat, Thread, stat_of};

/// A file of `/proc` that is opened once and read repeatedly, at a third of the cost.
#[derive(Debug)]
pub(crate) struct Reader {
    file: File,
    text: Vec<u8>,
}

impl Reader {
    /// Opens the file without reading it.
    pub(crate) fn open(path: impl AsRef<Path>) -> io::Result<Reader> {
        Ok(Reader { file: File::open(path)?, text: vec![0; 4096] })
    }

    /// Reads the current content.
    pub(crate) fn read(&mut self) -> io::Result<Cow<'_, str>> {
        let mut length = 0;
        loop {
            if length == self.text.len() {
                self.text.resize(2 * length, 0);
            }
            match self.file.read_at(&mut self.text[length..], length as u64)? {
                0 => return Ok(String::from_utf8_lossy(&self.text[..length])),
                more => length += more,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_reread_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stat");
        std::fs::write(&path, "one").unwrap();
        let mut reader = Reader::open(&path).unwrap();
        assert_eq!(reader.read().unwrap(), "one");
        let long = "x".repeat(20_000);
        std::fs::write(&path, &long).unwrap();
        assert_eq!(reader.read().unwrap(), long);
        std::fs::write(&path, b"\xff!").unwrap();
        assert_eq!(reader.read().unwrap(), "\u{fffd}!");
    }
}
