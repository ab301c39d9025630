//! A link: frames, with descriptors, over a socket pair between two processes of the server.
//!
//! A frame is its length, the number of its descriptors, and its bytes, which `portable` writes and reads.
//! The descriptors are sent with the first byte, and the kernel delivers none before its byte, so they arrive in the
//! order of the frames. A loop never blocks here: what the socket does not accept stays in a queue, and an incomplete
//! frame is not returned. The other side may block, and does.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use amped_core::file::{Content, Stored};
use amped_sys::epoll::{Epoll, Interest};
use amped_sys::file::Patience;
use amped_sys::socket;

use crate::open_file::OpenFile;

/// A received frame.
#[derive(Debug)]
pub(super) struct Frame {
    pub bytes: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
    /// Descriptors were sent with it, but this process had no room for them.
    pub incomplete: bool,
}

/// A descriptor that is kept open until it is sent.
#[derive(Debug)]
pub(super) enum Attachment {
    Descriptor(Arc<OwnedFd>),
    Content(Arc<Content<OpenFile>>),
}

/// One end of a link.
#[derive(Debug)]
pub(super) struct Link {
    socket: OwnedFd,
    /// Incomplete frames, and descriptors that belong to them.
    input: Vec<u8>,
    received: VecDeque<OwnedFd>,
    /// Some descriptors were lost, so it is unknown which belong to which frame.
    lost: bool,
    /// Frames not sent completely, and how much of the first has been sent.
    output: VecDeque<(Vec<u8>, Vec<Attachment>)>,
    sent: usize,
    /// Whether epoll waits for room to write.
    waits_for_room: bool,
}

/// Length, number of descriptors.
const HEADER: usize = 5;

/// Maximum bytes per receive.
const PIECE: usize = 64 * 1024;

impl Link {
    pub(super) fn new(socket: OwnedFd) -> Link {
        let (input, received, output) = Default::default();
        Link { socket, input, received, lost: false, output, sent: 0, waits_for_room: false }
    }

    /// Queues a frame.
    pub(super) fn put(&mut self, bytes: &[u8], attachments: Vec<Attachment>) {
        self.output.push_back((with_header(bytes, attachments.len()), attachments));
    }

    /// Sends as much as the socket accepts; the rest when `epoll`, where this link has the
    /// number `token`, reports that it is writable.
    ///
    /// # Errors
    /// The other side has closed, or descriptors cannot be sent.
    pub(super) fn flush(&mut self, epoll: &Epoll, token: u64) -> io::Result<()> {
        while let Some((bytes, attachments)) = self.output.front() {
            let descriptors: Vec<BorrowedFd<'_>> = match self.sent {
                0 => attachments.iter().filter_map(Attachment::descriptor).collect(),
                _ => Vec::new(),
            };
            match socket::send_with_descriptors(&self.socket, &bytes[self.sent..], &descriptors, Patience::Now) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            if self.sent == bytes.len() {
                self.output.pop_front();
                self.sent = 0;
            }
        }
        let waits = !self.output.is_empty();
        if waits != self.waits_for_room {
            self.waits_for_room = waits;
            epoll.change(&self.socket, token, if waits { Interest::Both } else { Interest::Readable })?;
        }
        Ok(())
    }

    /// Sends a whole frame, however long it takes.
    ///
    /// # Errors
    /// Those of [`flush`](Link::flush).
    pub(super) fn say(&self, bytes: &[u8], mut descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = with_header(bytes, descriptors.len());
        let mut sent = 0;
        while sent < bytes.len() {
            sent += socket::send_with_descriptors(&self.socket, &bytes[sent..], descriptors, Patience::Wait)?;
            descriptors = &[];
        }
        Ok(())
    }

    /// Receives once. `Ok(false)`: there is no data yet, only with [`Patience::Now`].
    ///
    /// # Errors
    /// The other side has closed.
    pub(super) fn receive(&mut self, patience: Patience) -> io::Result<bool> {
        let at = self.input.len();
        self.input.resize(at + PIECE, 0);
        let received =
            socket::receive_with_descriptors(&self.socket, &mut self.input[at..], &mut self.received, patience);
        self.input.truncate(at + received.as_ref().map_or(0, |received| received.bytes));
        match received {
            Ok(received) if received.bytes == 0 => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(received) => {
                self.lost |= received.lost_descriptors;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the next frame, if it is complete.
    pub(super) fn take(&mut self) -> Option<Frame> {
        let (&[a, b, c, d, count], rest) = self.input.split_first_chunk::<HEADER>()?;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if rest.len() < length {
            return None;
        }
        let rest = self.input.split_off(HEADER + length);
        let mut bytes = std::mem::replace(&mut self.input, rest);
        bytes.drain(..HEADER);
        // Another frame may follow it only if several are sent ahead, which happens only towards helpers; a
        // helper that loses any descriptor gives up.
        let lost = std::mem::take(&mut self.lost);
        let there = if lost { self.received.len() } else { usize::from(count).min(self.received.len()) };
        Some(Frame {
            bytes,
            descriptors: self.received.drain(..there).collect(),
            incomplete: lost || there < usize::from(count),
        })
    }

    /// Closes this direction, which the other side reads as end of file.
    pub(super) fn end(&self) {
        // It may have closed already.
        let _ = socket::half_close(&self.socket);
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Attachment {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Attachment::Descriptor(descriptor) => Some(descriptor.as_fd()),
            Attachment::Content(content) => match &content.store {
                Stored::File(file) => Some(file.as_fd()),
                Stored::Memory(_) => None,
            },
        }
    }
}

fn with_header(bytes: &[u8], descriptors: usize) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("a frame is shorter than 4 GiB");
    let count = u8::try_from(descriptors).expect("no more than are sent at once");
    let mut frame = Vec::with_capacity(HEADER + bytes.len());
    frame.extend(length.to_le_bytes());
    frame.push(count);
    frame.extend_from_slice(bytes);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use amped_sys::epoll::Events;
    use std::time::Duration;

    fn links() -> (Link, Link, Epoll) {
        let (ours, theirs) = socket::pair().expect("made");
        let epoll = Epoll::new().expect("made");
        epoll.add(&ours, 7, Interest::Readable).expect("added");
        (Link::new(ours), Link::new(theirs), epoll)
    }

    fn attachments(name: &str) -> Attachment {
        Attachment::Descriptor(Arc::new(std::fs::File::open(name).expect("there").into()))
    }

    /// Receives everything available.
    fn frames(link: &mut Link) -> Vec<Frame> {
        let mut frames = Vec::new();
        while link.receive(Patience::Now).expect("open") {
            frames.extend(std::iter::from_fn(|| link.take()));
        }
        frames
    }

    #[test]
    fn frames_carry_their_descriptors() {
        let (mut ours, mut theirs, epoll) = links();
        ours.put(b"", vec![]);
        ours.put(b"a", vec![attachments("Cargo.toml"), attachments("src/lib.rs")]);
        ours.put(b"bc", vec![attachments("Cargo.toml")]);
        ours.flush(&epoll, 7).expect("sent");
        let frames = frames(&mut theirs);
        let shape = |frame: &Frame| (frame.bytes.clone(), frame.descriptors.len(), frame.incomplete);
        let expected = [(vec![], 0, false), (b"a".to_vec(), 2, false), (b"bc".to_vec(), 1, false)];
        assert_eq!(frames.iter().map(shape).collect::<Vec<_>>(), expected);
        drop(ours);
        assert!(theirs.receive(Patience::Wait).is_err(), "the end");
    }

    #[test]
    fn unsent_frames_are_flushed_when_socket_is_writable() {
        let (mut ours, mut theirs, epoll) = links();
        let large = vec![5; 3 << 20];
        for _ in 0..3 {
            ours.put(&large, vec![attachments("Cargo.toml")]);
        }
        ours.flush(&epoll, 7).expect("a part");
        let mut events = Events::with_capacity(4);
        let mut received = Vec::new();
        let mut rounds = 0;
        while received.len() < 3 {
            received.extend(frames(&mut theirs));
            epoll.wait(&mut events, Some(Duration::ZERO)).expect("waited");
            if !ours.output.is_empty() {
                assert!(events.iter().any(|ready| ready.token == 7 && ready.writable), "room is not reported");
                ours.flush(&epoll, 7).expect("a part");
            }
            rounds += 1;
        }
        assert!(rounds > 2, "it was sent at once");
        assert!(received.iter().all(|frame| frame.bytes == large && frame.descriptors.len() == 1));
        epoll.wait(&mut events, Some(Duration::ZERO)).expect("waited");
        assert!(events.is_empty(), "epoll waits for room although the queue is empty");
    }

    #[test]
    fn frame_without_its_descriptors_is_an_error() {
        let (ours, mut theirs, _) = links();
        // As if two had been sent, and the kernel had room for neither.
        let frame = with_header(b"x", 2);
        socket::send_with_descriptors(&ours.socket, &frame, &[], Patience::Now).expect("sent");
        ours.say(b"", &[]).expect("sent");
        let frames = frames(&mut theirs);
        assert_eq!(frames.iter().map(|frame| frame.incomplete).collect::<Vec<_>>(), [true, false]);
    }
}
