//! Captures the router's packets to a file for Wireshark and tshark (pcapng, draft-ietf-opsawg-pcapng).
//!
//! Each packet is recorded when it arrives, and again when it leaves or is dropped; a drop has its cause as a comment:
//! `tshark -r FILE -Y frame.comment`. The interfaces are the router's devices. The router never waits for the disk: a
//! separate thread writes, and blocks that it cannot keep up with are left out and counted.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use amped_units::Time;

/// Maximum number of blocks of this size that wait for the disk.
const BLOCKS: usize = 64;
const BLOCK_BYTES: usize = 1 << 20;

/// An event of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// It arrived.
    Entered,
    /// It left.
    Left,
    /// It was dropped, for this cause.
    Dropped(&'static str),
}

/// A capture file being written.
#[derive(Debug)]
pub struct Capture {
    block: Vec<u8>,
    blocks: SyncSender<Vec<u8>>,
    writer: JoinHandle<io::Result<()>>,
    /// Nanoseconds since 1970 at [`Time::START`].
    origin_ns: u64,
    left_out: u64,
}

impl Capture {
    /// Begins a file with these interfaces. `now` is the time of the router's clock.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn begin(file: impl Write + Send + 'static, interfaces: &[String], now: Time) -> io::Result<Capture> {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let origin_ns = (since_1970.as_nanos() as u64).saturating_sub(now.as_nanos());
        let (blocks, receiver) = sync_channel(BLOCKS);
        let writer = thread::Builder::new().name("capture".to_owned()).spawn(move || write_all(file, &receiver))?;
        let mut block = section_header();
        interfaces.iter().for_each(|name| interface(&mut block, name));
        Ok(Capture { block, blocks, writer, origin_ns, left_out: 0 })
    }

    /// Records an event of a packet, given in pieces without the device header.
    pub fn note(&mut self, at: Time, interface: u32, happened: Happened, pieces: &[&[u8]]) {
        packet(&mut self.block, self.origin_ns + at.as_nanos(), interface, happened, pieces);
        if self.block.len() >= BLOCK_BYTES {
            let block = std::mem::replace(&mut self.block, Vec::with_capacity(BLOCK_BYTES + (1 << 17)));
            if let Err(TrySendError::Full(_)) = self.blocks.try_send(block) {
                self.left_out += 1;
            }
        }
    }

    /// Writes the rest, and returns the number of blocks of 1 MiB that were left out because the disk was too slow.
    ///
    /// # Errors
    /// The write error of the file.
    pub fn end(self) -> io::Result<u64> {
        // A writer that has ended reports its error below.
        let _ = self.blocks.send(self.block);
        drop(self.blocks);
        self.writer.join().unwrap_or_else(|_| Err(io::Error::other("the writer thread panicked")))?;
        Ok(self.left_out)
    }
}

fn write_all(mut file: impl Write, blocks: &Receiver<Vec<u8>>) -> io::Result<()> {
    while let Ok(block) = blocks.recv() {
        file.write_all(&block)?;
    }
    file.flush()
}

/// Section header block: only the byte order matters.
fn section_header() -> Vec<u8> {
    let mut out = Vec::with_capacity(BLOCK_BYTES);
    block(&mut out, 0x0a0d_0d0a, |out| {
        out.extend_from_slice(&0x1a2b_3c4du32.to_ne_bytes());
        out.extend_from_slice(&1u16.to_ne_bytes());
        out.extend_from_slice(&0u16.to_ne_bytes());
        // The section length, unspecified.
        out.extend_from_slice(&u64::MAX.to_ne_bytes());
    });
    out
}

/// Interface description block: LINKTYPE_RAW, packets of any length, time in nanoseconds.
fn interface(out: &mut Vec<u8>, name: &str) {
    block(out, 1, |out| {
        out.extend_from_slice(&101u16.to_ne_bytes());
        out.extend_from_slice(&0u16.to_ne_bytes());
        out.extend_from_slice(&0u32.to_ne_bytes());
        option(out, 2, name.as_bytes());
        option(out, 9, &[9]);
        option(out, 0, &[]);
    });
}

/// Enhanced packet block.
fn packet(out: &mut Vec<u8>, at_ns: u64, interface: u32, happened: Happened, pieces: &[&[u8]]) {
    let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
    block(out, 6, |out| {
        for figure in [interface, (at_ns >> 32) as u32, at_ns as u32, bytes as u32, bytes as u32] {
            out.extend_from_slice(&figure.to_ne_bytes());
        }
        pieces.iter().for_each(|piece| out.extend_from_slice(piece));
        pad(out, bytes);
        // The two lowest bits of epb_flags: 1 inbound, 2 outbound.
        let way = if happened == Happened::Entered { 1u32 } else { 2 };
        option(out, 2, &way.to_ne_bytes());
        if let Happened::Dropped(cause) = happened {
            option(out, 1, format!("dropped: {cause}").as_bytes());
        }
        option(out, 0, &[]);
    });
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend_from_slice(&code.to_ne_bytes());
    out.extend_from_slice(&(value.len() as u16).to_ne_bytes());
    out.extend_from_slice(value);
    pad(out, value.len());
}

fn pad(out: &mut Vec<u8>, length: usize) {
    out.extend(std::iter::repeat_n(0, length.next_multiple_of(4) - length));
}

/// A block: type, length, body, and the length again.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let begin = out.len();
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(&[0; 4]);
    body(out);
    let length = (out.len() - begin + 4) as u32;
    out[begin + 4..begin + 8].copy_from_slice(&length.to_ne_bytes());
    out.extend_from_slice(&length.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("not poisoned").write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The types of the blocks of a file; checks that each has its length at both ends.
    fn kinds(mut file: &[u8]) -> Vec<u32> {
        let mut kinds = Vec::new();
        let figure = |at: &[u8]| u32::from_ne_bytes(at[..4].try_into().expect("4 bytes"));
        while !file.is_empty() {
            let length = figure(&file[4..]) as usize;
            assert_eq!((length % 4, figure(&file[length - 4..]) as usize), (0, length));
            kinds.push(figure(file));
            file = &file[length..];
        }
        kinds
    }

    #[test]
    fn capture_blocks_are_complete() {
        let file = Shared::default();
        let names = ["server".to_owned(), "client".to_owned()];
        let mut capture = Capture::begin(file.clone(), &names, Time::START).expect("begun");
        capture.note(Time::from_millis(1), 0, Happened::Entered, &[&[0x45; 33]]);
        capture.note(Time::from_millis(2), 1, Happened::Left, &[&[0x45; 20], &[1, 2, 3]]);
        capture.note(Time::from_millis(3), 1, Happened::Dropped("lost"), &[]);
        assert_eq!(capture.end().expect("written"), 0);
        let bytes = file.0.lock().expect("not poisoned").clone();
        assert_eq!(kinds(&bytes), [0x0a0d_0d0a, 1, 1, 6, 6, 6]);
        assert!(bytes.windows(13).any(|text| text == b"dropped: lost"));
    }

    #[test]
    fn full_disk_is_reported_at_end() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::Error::from(io::ErrorKind::StorageFull))
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut capture = Capture::begin(Full, &[], Time::START).expect("begun");
        for _ in 0..200 {
            capture.note(Time::START, 0, Happened::Left, &[&[0; 60_000]]);
        }
        assert_eq!(capture.end().map_err(|error| error.kind()), Err(io::ErrorKind::StorageFull));
    }
}
