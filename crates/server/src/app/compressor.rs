//! Compression of responses of applications while they arrive, by threads.
//!
//! A loop compresses nothing. It passes each piece of a body, at most one at a time for each response, to the threads of the
//! process, together with the encoder ([`Compressor::put`]); both come back through its mailbox ([`Encoded`]). The next piece
//! follows when the client has room for the result, so a slow client holds up the application, or fills the spool, as without
//! compression; and a response holds one piece, its result and an encoder, of which `core` limits the number.
//!
//! When nothing more has arrived, the encoder is flushed: a client gets each event of a stream at once, but a body that arrives
//! faster than it is compressed costs no flushes.
//!
//! Clients wait for these threads, so they have the priority of the loops, unlike the one that compresses files (`compress`).

use std::fmt;
use std::io::{self, Write};
use std::mem;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use amped_core::compress::StreamWork;
use amped_core::event::Ticket;
use amped_http::negotiate::Coding;
use brotli::CompressorWriter;
use brotli::enc::BrotliEncoderParams;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::mailbox::Post;
use crate::say;
use crate::token::Token;

/// The level of gzip: jquery.js (290 kB) becomes 30.3 % in 5 ms, with 0.2 MiB of memory.
const GZIP_LEVEL: u32 = 4;

/// The level of Zstandard: jquery.js becomes 30.4 % in 1.2 ms, with 1.1 MiB of memory.
const ZSTD_LEVEL: i32 = 3;

/// The level of Brotli: jquery.js becomes 29.8 % in 5 ms, with 1.8 MiB of memory.
const BROTLI_LEVEL: i32 = 4;

/// The window of Zstandard and Brotli, as a power of two: a larger one saves 1 % of long texts.
const WINDOW_LOG: u8 = 18;

/// Maximum threads.
const THREADS_MAX: usize = 4;

/// The mailbox of a loop, for results.
pub(super) type Results = Arc<dyn Post<Box<Encoded>>>;

/// The compression of one response.
pub(super) struct Compressor {
    owner: (Token, Ticket),
    results: Results,
    state: State,
    /// Compressed bytes; those before `sent` are on their way to the client.
    output: Vec<u8>,
    sent: usize,
    /// Everything put in so far is part of the output.
    is_flushed: bool,
    /// Bytes of the body that have not arrived, if the application has given its length.
    missing: Option<u64>,
    /// Bytes that the body may still have.
    left: u64,
    /// Dropped with the request, whose client may have left: the threads then skip what is queued for it.
    alive: Arc<()>,
    _slot: Arc<()>,
}

#[expect(clippy::large_enum_variant, reason = "its owner is in a box, and the encoder moves twice for each piece")]
enum State {
    Idle(Encoder),
    /// A thread has the encoder.
    Busy,
    Finished,
    Failed,
}

/// Why no further piece of a body is accepted.
pub(super) const TOO_LONG: &str = "the application's response exceeds max_response_bytes";
pub(super) const CUT_SHORT: &str = "the application ended before its response was complete";

impl Compressor {
    /// Starts to compress a body, with the bytes that have arrived with the head.
    ///
    /// # Errors
    /// The reason, if the body is longer or shorter than it may be.
    pub(super) fn new(
        owner: (Token, Ticket),
        work: StreamWork,
        results: &Results,
    ) -> (Compressor, Result<(), &'static str>) {
        let StreamWork { coding, first, is_last, length, max_bytes, slot } = work;
        let mut compressor = Compressor {
            owner,
            results: Arc::clone(results),
            state: State::Idle(Encoder::New(coding)),
            output: Vec::new(),
            sent: 0,
            is_flushed: true,
            missing: length,
            left: max_bytes,
            alive: Arc::default(),
            _slot: slot,
        };
        let result = match (first.is_empty(), is_last) {
            (true, false) => Ok(()),
            (_, false) => compressor.put(&first),
            (_, true) => compressor.admit(&first).and_then(|first| compressor.finish(first.to_vec())),
        };
        (compressor, result)
    }

    /// Returns whether it can take more of the body: the last piece was compressed, and the client has room for more.
    pub(super) fn wants_input(&self) -> bool {
        matches!(self.state, State::Idle(_)) && self.output.is_empty()
    }

    /// Returns whether the client has got everything.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Finished) && self.output.is_empty()
    }

    pub(super) fn has_failed(&self) -> bool {
        matches!(self.state, State::Failed)
    }

    /// Returns the memory that it uses for output, bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        size_of::<Compressor>() + self.output.capacity()
    }

    /// Takes compressed bytes, as many as fit into the buffer.
    pub(super) fn take(&mut self, buffer: &mut [u8]) -> usize {
        let bytes = &self.output[self.sent..];
        let count = bytes.len().min(buffer.len());
        buffer[..count].copy_from_slice(&bytes[..count]);
        self.sent += count;
        if self.sent == self.output.len() {
            (self.output, self.sent) = (Vec::new(), 0);
        }
        count
    }

    /// Compresses a piece of the body.
    ///
    /// # Errors
    /// The reason, if the body is too long.
    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        let bytes = self.admit(bytes)?.to_vec();
        if !bytes.is_empty() {
            self.is_flushed = false;
            self.submit(bytes, End::Open);
        }
        Ok(())
    }

    /// Nothing more has arrived.
    pub(super) fn flush(&mut self) {
        if !mem::replace(&mut self.is_flushed, true) {
            self.submit(Vec::new(), End::Flushed);
        }
    }

    /// The body is complete with these bytes.
    ///
    /// # Errors
    /// The reason, if it is shorter than announced.
    pub(super) fn finish(&mut self, last: Vec<u8>) -> Result<(), &'static str> {
        if self.missing.is_some_and(|missing| missing > 0) {
            return Err(CUT_SHORT);
        }
        self.submit(last, End::Finished);
        Ok(())
    }

    /// Takes back the encoder.
    pub(super) fn note_done(&mut self, Encoded { result, .. }: Encoded) {
        (self.state, self.output) = match result {
            Ok((Some(encoder), output)) => (State::Idle(encoder), output),
            Ok((None, output)) => (State::Finished, output),
            Err(error) => {
                say!("cannot compress a response: {error}");
                (State::Failed, Vec::new())
            }
        };
    }

    /// Returns the part of these bytes that belongs to the body: output beyond its announced length is dropped.
    fn admit<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], &'static str> {
        self.left = self.left.checked_sub(bytes.len() as u64).ok_or(TOO_LONG)?;
        let Some(missing) = &mut self.missing else { return Ok(bytes) };
        let count = usize::try_from(*missing).unwrap_or(usize::MAX).min(bytes.len());
        *missing -= count as u64;
        Ok(&bytes[..count])
    }

    fn submit(&mut self, input: Vec<u8>, end: End) {
        let State::Idle(encoder) = mem::replace(&mut self.state, State::Busy) else {
            unreachable!("one piece at a time");
        };
        let (owner, results) = (self.owner, Arc::clone(&self.results));
        let job = Job { encoder, input, end, owner, results, alive: Arc::downgrade(&self.alive) };
        if queue().is_none_or(|queue| queue.send(job).is_err()) {
            self.state = State::Failed;
        }
    }
}

/// What follows a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// More, soon.
    Open,
    /// More, at an unknown time: a client must be able to decode everything up to here.
    Flushed,
    /// Nothing.
    Finished,
}

struct Job {
    encoder: Encoder,
    input: Vec<u8>,
    end: End,
    owner: (Token, Ticket),
    results: Results,
    alive: Weak<()>,
}

/// A piece that was compressed.
pub struct Encoded {
    /// The connection, and the ticket of its request.
    pub owner: (Token, Ticket),
    /// Its size.
    pub in_bytes: usize,
    /// The time that it took, without the queue.
    pub time: Duration,
    /// The encoder, if the body may continue, and the compressed bytes.
    result: io::Result<(Option<Encoder>, Vec<u8>)>,
}

impl Encoded {
    /// Returns the size of the result, and whether it is the end of a body.
    pub fn size(&self) -> (usize, bool) {
        self.result.as_ref().map_or((0, false), |(encoder, output)| (output.len(), encoder.is_none()))
    }
}

impl fmt::Debug for Encoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoded").field("owner", &self.owner).field("in_bytes", &self.in_bytes).finish_non_exhaustive()
    }
}

/// An encoder, with the state that connects the pieces of a body.
enum Encoder {
    /// A thread makes it.
    New(Coding),
    Gzip(GzEncoder<Vec<u8>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
    Brotli(Box<CompressorWriter<Vec<u8>>>),
}

impl Encoder {
    /// # Errors
    /// When there is no memory, or no encoder for this coding.
    fn new(coding: Coding) -> io::Result<Encoder> {
        Ok(match coding {
            Coding::Gzip => Encoder::Gzip(GzEncoder::new(Vec::new(), Compression::new(GZIP_LEVEL))),
            Coding::Zstd => {
                let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), ZSTD_LEVEL)?;
                encoder.window_log(WINDOW_LOG.into())?;
                Encoder::Zstd(encoder)
            }
            Coding::Brotli => {
                let (quality, lgwin) = (BROTLI_LEVEL, WINDOW_LOG.into());
                let settings = BrotliEncoderParams { quality, lgwin, ..Default::default() };
                Encoder::Brotli(Box::new(CompressorWriter::with_params(Vec::new(), 16 * 1024, &settings)))
            }
            Coding::Identity => return Err(io::ErrorKind::Unsupported.into()),
        })
    }

    /// Compresses a piece. Returns the encoder, unless that was the last one, and the bytes that follow.
    ///
    /// # Errors
    /// When there is no memory.
    fn encode(self, input: &[u8], end: End) -> io::Result<(Option<Encoder>, Vec<u8>)> {
        let mut encoder = match self {
            Encoder::New(coding) => Encoder::new(coding)?,
            encoder => encoder,
        };
        let writer: &mut dyn Write = match &mut encoder {
            Encoder::New(_) => unreachable!("made above"),
            Encoder::Gzip(encoder) => encoder,
            Encoder::Zstd(encoder) => encoder,
            Encoder::Brotli(encoder) => encoder,
        };
        writer.write_all(input)?;
        if end == End::Flushed {
            writer.flush()?;
        }
        Ok(match (encoder, end) {
            (Encoder::New(_), _) => unreachable!("made above"),
            (Encoder::Gzip(encoder), End::Finished) => (None, encoder.finish()?),
            (Encoder::Zstd(encoder), End::Finished) => (None, encoder.finish()?),
            (Encoder::Brotli(encoder), End::Finished) => (None, encoder.into_inner()),
            (mut encoder, End::Open | End::Flushed) => {
                let output = mem::take(match &mut encoder {
                    Encoder::New(_) => unreachable!("made above"),
                    Encoder::Gzip(encoder) => encoder.get_mut(),
                    Encoder::Zstd(encoder) => encoder.get_mut(),
                    Encoder::Brotli(encoder) => encoder.get_mut(),
                });
                (Some(encoder), output)
            }
        })
    }
}

/// Returns the queue of the process's threads, which are started when first needed. It is as long as there are responses that
/// are being compressed, at most.
fn queue() -> Option<&'static Sender<Job>> {
    static QUEUE: OnceLock<Option<Sender<Job>>> = OnceLock::new();
    let start = || {
        let (queue, jobs) = channel();
        let jobs = Arc::new(Mutex::new(jobs));
        let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        let started = (0..threads).map(|_| {
            let jobs = Arc::clone(&jobs);
            thread::Builder::new().name("app compressor".to_owned()).spawn(move || work_off(&jobs))
        });
        let (started, failed): (Vec<_>, Vec<_>) = started.partition(Result::is_ok);
        if let Some(Err(error)) = failed.first() {
            say!("cannot start a thread that compresses responses: {error}");
        }
        (!started.is_empty()).then_some(queue)
    };
    QUEUE.get_or_init(start).as_ref()
}

/// The main loop of a thread.
fn work_off(jobs: &Mutex<Receiver<Job>>) {
    loop {
        // Locked by the thread that waits for the next job, and never while one is done.
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { encoder, input, end, owner, results, alive }) = job else { return };
        if alive.strong_count() == 0 {
            continue;
        }
        let start = Instant::now();
        let result = encoder.encode(&input, end);
        results.post(Box::new(Encoded { owner, in_bytes: input.len(), time: start.elapsed(), result }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailbox::Mailbox;
    use proptest::prelude::*;
    use std::io::Read;

    /// Decodes as much as there is.
    fn decode(bytes: &[u8], coding: Coding) -> Vec<u8> {
        let mut reader: Box<dyn Read> = match coding {
            Coding::Gzip => Box::new(flate2::read::GzDecoder::new(bytes)),
            Coding::Zstd => Box::new(zstd::stream::read::Decoder::new(bytes).unwrap()),
            Coding::Brotli => Box::new(brotli::Decompressor::new(bytes, 4096)),
            Coding::Identity => panic!(),
        };
        let (mut plain, mut buffer) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = reader.read(&mut buffer) {
            plain.extend_from_slice(&buffer[..count]);
        }
        plain
    }

    #[derive(Debug)]
    struct Result(Box<Encoded>);

    impl From<Box<Encoded>> for Result {
        fn from(done: Box<Encoded>) -> Result {
            Result(done)
        }
    }

    struct Run {
        compressor: Compressor,
        mailbox: Arc<Mailbox<Result>>,
        output: Vec<u8>,
    }

    impl Run {
        fn new(
            coding: Coding,
            first: &[u8],
            is_last: bool,
            length: Option<u64>,
            max_bytes: u64,
        ) -> std::result::Result<Run, &'static str> {
            let mailbox = Arc::new(Mailbox::<Result>::new().unwrap());
            let results: Results = Arc::<Mailbox<Result>>::clone(&mailbox);
            let work = StreamWork { coding, first: first.to_vec(), is_last, length, max_bytes, slot: Arc::default() };
            let (compressor, result) = Compressor::new((Token::from_number(0), Ticket(1)), work, &results);
            result?;
            let mut run = Run { compressor, mailbox, output: Vec::new() };
            run.settle();
            Ok(run)
        }

        /// Waits for the threads, and takes the output in small steps.
        fn settle(&mut self) {
            let mut messages = Vec::new();
            while matches!(self.compressor.state, State::Busy) {
                self.mailbox.take(&mut messages);
                messages.drain(..).for_each(|Result(done)| self.compressor.note_done(*done));
                thread::yield_now();
            }
            let mut buffer = [0; 1000];
            while let count @ 1.. = self.compressor.take(&mut buffer) {
                self.output.extend_from_slice(&buffer[..count]);
            }
        }
    }

    fn text(size: usize, seed: u64) -> Vec<u8> {
        let words = (seed..).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50);
        words.flat_map(|word| format!("{word} ").into_bytes()).take(size).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn pieces_decode_to_the_body_and_flushed_ones_at_once(
            coding in prop::sample::select(Coding::SIBLINGS.to_vec()),
            pieces in prop::collection::vec((0..70_000_usize, any::<bool>()), 0..12),
            seed: u64,
        ) {
            let total = pieces.iter().map(|(size, _)| size).sum();
            let body = text(total, seed);
            let mut run = Run::new(coding, b"", false, None, u64::MAX).unwrap();
            let mut at = 0;
            for (size, is_flushed) in pieces {
                run.compressor.put(&body[at..at + size]).unwrap();
                run.settle();
                at += size;
                if is_flushed {
                    run.compressor.flush();
                    run.settle();
                    prop_assert!(decode(&run.output, coding) == body[..at]);
                }
            }
            run.compressor.finish(Vec::new()).unwrap();
            run.settle();
            prop_assert!(run.compressor.is_over());
            prop_assert!(decode(&run.output, coding) == body);
        }
    }

    #[test]
    fn body_is_as_long_as_announced_or_fails() {
        let body = text(5000, 1);
        for coding in Coding::SIBLINGS {
            let run = Run::new(coding, &body, true, None, 5000).unwrap();
            assert!(run.compressor.is_over() && decode(&run.output, coding) == body);
            // What exceeds the length is dropped.
            let mut run = Run::new(coding, &body[..3000], false, Some(4000), 5000).unwrap();
            run.compressor.put(&body[3000..]).unwrap();
            run.settle();
            run.compressor.finish(Vec::new()).unwrap();
            run.settle();
            assert!(decode(&run.output, coding) == body[..4000]);
            assert_eq!(Run::new(coding, &body, true, Some(5001), 6000).err(), Some(CUT_SHORT));
            assert_eq!(Run::new(coding, &body, true, None, 4999).err(), Some(TOO_LONG));
            let mut run = Run::new(coding, &body, false, None, 9999).unwrap();
            assert_eq!(run.compressor.put(&body), Err(TOO_LONG));
            let mut run = Run::new(coding, &body, false, Some(6000), 9999).unwrap();
            assert_eq!(run.compressor.finish(Vec::new()), Err(CUT_SHORT));
            run.settle();
        }
    }
}
