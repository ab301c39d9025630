//! The thread that compresses files on the fly, one in each process that serves clients.
//!
//! Compression of a mebibyte takes about 20 ms of processor time, so no loop does it, whatever the architecture. The loop passes
//! on the content that it has just sent uncompressed ([`submit`]), and goes on; the result returns through its mailbox
//! ([`CompressDone`]), and later clients get it. Since nobody waits, the thread has the lowest priority (nice 19), so it takes
//! processor time from the loops only if they leave some. It is started by the first file.
//!
//! One thread bounds what clients can cause: one processor, and the queue. A file for which the queue has no room is
//! submitted again by a later request.

use std::fmt;
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use amped_core::compress::{CompressWork, Compressed, Encoded, is_worth_it};
use amped_core::file::{Content, FileHandle, FileVersion, Stored};
use amped_http::negotiate::Coding;
use amped_sys::process;
use brotli::enc::BrotliEncoderParams;
use flate2::Compression;
use flate2::read::GzEncoder;

use crate::mailbox::Post;
use crate::open_file::OpenFile;
use crate::say;

/// Maximum files that wait for the thread; each keeps its content, or its descriptor.
const QUEUE_MAX: usize = 16;

/// The level of gzip. jquery.js (290 kB) becomes 29.6 % in 5 ms.
const GZIP_LEVEL: u32 = 6;

/// The level of Brotli. jquery.js (290 kB) becomes 27.9 % in 9 ms; at level 4 29.8 % in 6 ms, at level 9 26.8 % in 53 ms.
const BROTLI_LEVEL: i32 = 5;

/// The level of Zstandard. jquery.js (290 kB) becomes 27.6 % in 8 ms; at level 3 30.4 % in 1 ms.
/// The window is at most 4 MiB, the size of the largest file; clients must support 8 MiB (RFC 9659).
const ZSTD_LEVEL: i32 = 12;

/// A file that was compressed, or not.
pub struct CompressDone {
    /// The file's state.
    pub version: FileVersion,
    /// The coding.
    pub coding: Coding,
    /// The result.
    pub result: Compressed<OpenFile>,
    /// The time that it took, without the queue.
    pub time: Duration,
}

impl fmt::Debug for CompressDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompressDone")
            .field("version", &self.version)
            .field("coding", &self.coding)
            .finish_non_exhaustive()
    }
}

struct Job {
    work: CompressWork<OpenFile>,
    mailbox: Arc<dyn Post<CompressDone>>,
}

/// Passes a file to the thread; the result is posted to the mailbox. Never waits.
///
/// # Errors
/// The work, if the queue is full or there is no thread.
pub fn submit(
    work: CompressWork<OpenFile>,
    mailbox: Arc<dyn Post<CompressDone>>,
) -> Result<(), CompressWork<OpenFile>> {
    match queue() {
        Some(queue) => queue.try_send(Job { work, mailbox }).map_err(|unsent| match unsent {
            TrySendError::Full(job) | TrySendError::Disconnected(job) => job.work,
        }),
        None => Err(work),
    }
}

/// Returns the queue of the thread, which is started when first needed.
fn queue() -> Option<&'static SyncSender<Job>> {
    static QUEUE: OnceLock<Option<SyncSender<Job>>> = OnceLock::new();
    let start = || {
        let (queue, jobs) = sync_channel(QUEUE_MAX);
        match thread::Builder::new().name("compressor".to_owned()).spawn(move || work_off(&jobs)) {
            Ok(_) => Some(queue),
            Err(error) => {
                say!("cannot start the thread that compresses files: {error}; they are sent uncompressed");
                None
            }
        }
    };
    QUEUE.get_or_init(start).as_ref()
}

/// The main loop of the thread.
fn work_off(jobs: &Receiver<Job>) {
    process::take_lowest_priority();
    for Job { work: CompressWork { content, coding }, mailbox } in jobs {
        let start = Instant::now();
        let result = compress(&content, coding).unwrap_or(Compressed::Failed);
        let time = start.elapsed();
        mailbox.post(CompressDone { version: content.version, coding, result, time });
    }
}

/// Compresses a file, if it still has the bytes of its version.
///
/// # Errors
/// When it cannot be read, or has changed.
fn compress(content: &Content<OpenFile>, coding: Coding) -> io::Result<Compressed<OpenFile>> {
    let version = &content.version;
    let encoded = match &content.store {
        Stored::Memory(bytes) => encode(bytes, coding)?,
        // Nobody waits for the object store for this; the next client may find all of it.
        Stored::File(file) if !file.is_complete() => return Ok(Compressed::Failed),
        Stored::File(file) => {
            let mut bytes = Vec::with_capacity(version.size as usize);
            file.reader().take(version.size).read_to_end(&mut bytes)?;
            if bytes.len() as u64 != version.size || !file.has_bytes_of(version) {
                return Ok(Compressed::Failed);
            }
            encode(&bytes, coding)?
        }
    };
    Ok(match is_worth_it(version.size, encoded.len() as u64) {
        true => Compressed::Encoded(Encoded::new(version, coding, encoded.into_boxed_slice())),
        false => Compressed::NotWorthIt,
    })
}

/// Compresses bytes. The result is the same each time: its entity tag depends on it.
///
/// # Errors
/// When there is no compressor for this coding, or no memory.
fn encode(bytes: &[u8], coding: Coding) -> io::Result<Vec<u8>> {
    match coding {
        Coding::Gzip => {
            let mut encoded = Vec::new();
            GzEncoder::new(bytes, Compression::new(GZIP_LEVEL)).read_to_end(&mut encoded)?;
            Ok(encoded)
        }
        Coding::Zstd => zstd::bulk::compress(bytes, ZSTD_LEVEL),
        Coding::Brotli => {
            let mut encoded = Vec::new();
            let settings = BrotliEncoderParams { quality: BROTLI_LEVEL, size_hint: bytes.len(), ..Default::default() };
            brotli::BrotliCompress(&mut &*bytes, &mut encoded, &settings)?;
            Ok(encoded)
        }
        Coding::Identity => Err(io::ErrorKind::Unsupported.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailbox::Mailbox;
    use crate::open_file::version_of;
    use amped_sys::file;
    use std::fs;
    use std::os::fd::OwnedFd;
    use std::path::Path;

    fn decode(bytes: &[u8], coding: Coding) -> Vec<u8> {
        match coding {
            Coding::Gzip => {
                let mut plain = Vec::new();
                flate2::read::GzDecoder::new(bytes).read_to_end(&mut plain).unwrap();
                plain
            }
            Coding::Zstd => zstd::bulk::decompress(bytes, 1 << 24).unwrap(),
            Coding::Brotli => {
                let mut plain = Vec::new();
                brotli::BrotliDecompress(&mut &*bytes, &mut plain).unwrap();
                plain
            }
            Coding::Identity => panic!("{coding:?}"),
        }
    }

    fn opened(path: &Path) -> Content<OpenFile> {
        let descriptor: OwnedFd = fs::File::open(path).unwrap().into();
        let version = version_of(&file::status(&descriptor).unwrap());
        let (file, version) = OpenFile::new(descriptor, version);
        Content { version, store: Stored::File(file) }
    }

    fn of_bytes(bytes: &[u8]) -> Content<OpenFile> {
        let version = FileVersion { size: bytes.len() as u64, ..FileVersion::default() };
        Content { version, store: Stored::Memory(bytes.into()) }
    }

    fn bytes_of(result: &Compressed<OpenFile>) -> &[u8] {
        match result {
            Compressed::Encoded(encoded) => match &encoded.content.store {
                Stored::Memory(bytes) => bytes,
                Stored::File(_) => panic!("in memory"),
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn file_is_compressed_from_memory_and_from_disk() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let text = "all work and no play\n".repeat(5000).into_bytes();
        fs::write(&path, &text).unwrap();
        for coding in Coding::SIBLINGS {
            let [one, other] = [opened(&path), of_bytes(&text)].map(|content| compress(&content, coding).unwrap());
            assert_eq!(decode(bytes_of(&one), coding), text);
            assert!(bytes_of(&one) == bytes_of(&other) && bytes_of(&one).len() < 1000);
        }
    }

    #[test]
    fn incompressible_file_is_not_worth_it() {
        let mut state = 1_u64;
        let noise: Vec<u8> = (0..20_000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        for coding in Coding::SIBLINGS {
            assert!(matches!(compress(&of_bytes(&noise), coding), Ok(Compressed::NotWorthIt)));
        }
    }

    #[test]
    fn changed_file_is_not_compressed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for change in ["the same length!".repeat(500), "shorter".to_owned(), "longer".repeat(5000)] {
            fs::write(&path, "before, as long!".repeat(500)).unwrap();
            let content = opened(&path);
            // Past the resolution of the clock.
            thread::sleep(Duration::from_millis(20));
            fs::write(&path, change).unwrap();
            assert!(matches!(compress(&content, Coding::Gzip), Ok(Compressed::Failed)));
        }
    }

    #[test]
    fn full_queue_refuses_and_results_reach_mailbox() {
        #[derive(Debug)]
        struct Done(CompressDone);
        impl From<CompressDone> for Done {
            fn from(done: CompressDone) -> Done {
                Done(done)
            }
        }
        let mailbox = Arc::new(Mailbox::<Done>::new().unwrap());
        let bytes: Vec<u8> = (0..200_000_u32).flat_map(|n| (n % 7919).to_string().into_bytes()).collect();
        let content = Arc::new(of_bytes(&bytes));
        let mut accepted = 0;
        while submit(
            CompressWork { content: Arc::clone(&content), coding: Coding::Gzip },
            Arc::<Mailbox<Done>>::clone(&mailbox),
        )
        .is_ok()
        {
            accepted += 1;
            assert!(accepted < 10_000, "the queue never fills");
        }
        assert!(accepted >= QUEUE_MAX);
        let (start, mut messages) = (Instant::now(), Vec::new());
        while messages.is_empty() {
            assert!(start.elapsed() < Duration::from_secs(60), "no result");
            mailbox.take(&mut messages);
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(decode(bytes_of(&messages[0].0.result), Coding::Gzip), bytes);
    }
}
