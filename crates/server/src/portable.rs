//! Lookups, results and messages as bytes, for transfer to another process.
//!
//! The types are those of the core, [`Work`](amped_core::event::Work) and [`Found`], serialised by serde and postcard.
//! They cross a socket between a loop and a helper process (`helper`), or memory that processes share (`shared_cache`).
//! The parent and the children of MP (`processes`) and the process manager (`app`) [`send`] each other messages.
//!
//! A serialised result is its *outline*: for each file it says where the content is, and the contents follow in the
//! same order, bodies as they are (each as long as its version says), descriptors in a control message. So a body is
//! not copied to be written, and a reader that has it already skips it.
//!
//! Both ends are the same program, started once. Even so the reader validates everything: data left by a dying process
//! cause [`Malformed`], and neither a panic nor an excessive allocation.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use amped_core::event::{Found, Opened};
use amped_core::file::{FileVersion, Stored};
use amped_sys::file::Patience;
use amped_sys::process::Ending;
use amped_sys::socket;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The bytes were not written here, or were damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid message: the bytes are damaged")
    }
}

impl std::error::Error for Malformed {}

/// Serialises a value.
pub fn write(value: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(value).expect("all lengths are known, and memory suffices")
}

/// Deserialises a value.
///
/// # Errors
/// When the bytes are invalid, or some are left over.
pub fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Malformed> {
    let (value, rest) = read_start(bytes)?;
    if rest.is_empty() { Ok(value) } else { Err(Malformed) }
}

fn read_start<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8]), Malformed> {
    postcard::take_from_bytes(bytes).map_err(|_| Malformed)
}

/// Maximum bytes of a message.
pub const MESSAGE_MAX: usize = 128 * 1024;

/// Sends a value and descriptors as one message, on a socket that keeps the boundaries of messages.
///
/// # Errors
/// Those of [`socket::send_with_descriptors`]; `InvalidInput` when the value takes more than 128 KiB.
pub fn send(
    socket: impl AsFd,
    value: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
    patience: Patience,
) -> io::Result<()> {
    let bytes = write(value);
    if bytes.len() > MESSAGE_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    socket::send_with_descriptors(socket, &bytes, descriptors, patience).map(drop)
}

/// Receives a message of [`send`]; appends its descriptors.
///
/// # Errors
/// Those of [`socket::receive_with_descriptors`]; `UnexpectedEof` when the peer has closed, and `InvalidData` when the
/// bytes are invalid.
pub fn receive<T: DeserializeOwned>(
    socket: impl AsFd,
    descriptors: &mut Vec<OwnedFd>,
    patience: Patience,
) -> io::Result<T> {
    let mut bytes = vec![0; MESSAGE_MAX];
    match socket::receive_with_descriptors(socket, &mut bytes, descriptors, patience)?.bytes {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => read(&bytes[..count]).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why)),
    }
}

/// The error number of a process that is out of descriptors, and so has lost those of a message (`EMFILE`, errno(3)).
pub const NO_DESCRIPTORS: i32 = 24;

/// How a process has ended, in a message.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Ending")]
pub enum PortableEnding {
    /// See [`Ending::Status`].
    Status(i32),
    /// See [`Ending::Signal`].
    Signal(i32),
}

/// Deserialises an answer from its outline; `fetch` reads the content of a file of this version from its place, or of
/// another version that it returns instead. Called in the order of the files.
///
/// # Errors
/// When the outline is invalid, or `fetch` fails.
pub fn read_outline<F>(
    bytes: &[u8],
    fetch: impl FnMut(&mut FileVersion, Option<Stored<()>>) -> Result<Option<Stored<F>>, Malformed>,
) -> Result<Found<F>, Malformed> {
    fill(read(bytes)?, fetch)
}

fn fill<F>(
    outline: Found<()>,
    mut fetch: impl FnMut(&mut FileVersion, Option<Stored<()>>) -> Result<Option<Stored<F>>, Malformed>,
) -> Result<Found<F>, Malformed> {
    if matches!(&outline, Found::Variants { names, files } if names.len() != files.len()) {
        return Err(Malformed);
    }
    outline.try_map(|Opened { coding, mut version, object, content }| {
        let content = fetch(&mut version, content)?;
        Ok(Opened { coding, version, object, content })
    })
}

/// Serialises a whole answer: its outline, then the bodies. Returns with it the open files whose
/// descriptors are sent along, in their order.
pub fn pack<F>(found: &Found<F>) -> (Vec<u8>, Vec<&F>) {
    let mut files = Vec::new();
    let mut out = write(found);
    for opened in found.files() {
        match &opened.content {
            None => {}
            Some(Stored::Memory(body)) => out.extend_from_slice(body),
            Some(Stored::File(file)) => files.push(file),
        }
    }
    (out, files)
}

/// Deserialises an answer of [`pack`], with the descriptors received with it; `open` wraps a file that was found in
/// this version, and returns its current version.
///
/// # Errors
/// When the bytes are invalid, or files are missing or left over.
pub fn unpack<D, F>(
    bytes: &[u8],
    descriptors: impl IntoIterator<Item = D>,
    open: impl Fn(D, FileVersion) -> (F, FileVersion),
) -> Result<Found<F>, Malformed> {
    let (outline, mut bodies) = read_start(bytes)?;
    let mut descriptors = descriptors.into_iter();
    let found = fill(outline, |version, place| {
        Ok(match place {
            None => None,
            Some(Stored::Memory(_)) => {
                let size = usize::try_from(version.size).map_err(|_| Malformed)?;
                let (body, rest) = bodies.split_at_checked(size).ok_or(Malformed)?;
                bodies = rest;
                Some(Stored::Memory(body.into()))
            }
            Some(Stored::File(())) => {
                let (file, now) = open(descriptors.next().ok_or(Malformed)?, *version);
                *version = now;
                Some(Stored::File(file))
            }
        })
    })?;
    if descriptors.next().is_none() && bodies.is_empty() { Ok(found) } else { Err(Malformed) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use amped_core::event::{ListWork, Missing, NameWork, Trouble, Work};
    use amped_core::file::{NotUnpacked, ObjectHead};
    use amped_core::listing::{ListForm, ListKey, ListOrder, Listing};
    use amped_http::negotiate::Coding;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn text() -> impl Strategy<Value = Arc<[u8]>> {
        prop::collection::vec(any::<u8>(), 0..60).prop_map(Arc::from)
    }

    fn coding() -> impl Strategy<Value = Coding> {
        prop::sample::select(vec![Coding::Identity, Coding::Gzip, Coding::Zstd, Coding::Brotli])
    }

    fn version() -> impl Strategy<Value = FileVersion> {
        any::<((u64, u64), u64, i64, i64, bool, bool)>().prop_map(
            |((device, inode), size, mtime_ns, ctime_ns, is_changing, is_unpacked)| FileVersion {
                device,
                inode,
                size,
                mtime_ns,
                ctime_ns,
                is_changing,
                is_unpacked,
            },
        )
    }

    fn work() -> impl Strategy<Value = Work> {
        let name = || (any::<u32>(), any::<u16>(), text());
        let known = prop::collection::vec(version(), 0..4);
        let missing = prop::option::of((text(), coding(), version()).prop_map(|(name, coding, version)| Missing {
            name,
            coding,
            version,
        }));
        let keys = prop::sample::select(vec![ListKey::Name, ListKey::Size, ListKey::Time]);
        let forms = prop::sample::select(vec![ListForm::Html, ListForm::Json]);
        prop_oneof![
            (name(), any::<u32>(), known, any::<(bool, bool, u64)>(), missing).prop_map(
                |((generation, site, path), edition, known, (variants, unpack, from), missing)| {
                    Work::Name(NameWork { generation, site, path, edition, known, variants, unpack, missing, from })
                }
            ),
            (name(), any::<u32>(), keys, any::<bool>(), forms).prop_map(
                |((generation, site, path), edition, key, descending, form)| {
                    let order = ListOrder { key, descending };
                    Work::List(ListWork { generation, site, path, edition, order, form })
                }
            ),
        ]
    }

    fn object() -> impl Strategy<Value = Option<Arc<ObjectHead>>> {
        let text = || prop::option::of("[ -~]{0,20}".prop_map(String::into_boxed_str));
        let head = (text(), text(), text(), text()).prop_map(|(etag, media_type, encoding, cache_control)| {
            Arc::new(ObjectHead { etag, media_type, encoding, cache_control })
        });
        prop::option::of(head)
    }

    /// Without content, with a body of less than `body_end` bytes, or with a number in place of an open file.
    pub(crate) fn opened(body_end: usize) -> impl Strategy<Value = Opened<u32>> {
        let bodies = (any::<u8>(), 0..body_end)
            .prop_map(|(first, length)| (0..length).map(|n| first.wrapping_add(n as u8)).collect::<Vec<u8>>());
        (coding(), version(), object(), bodies, any::<Option<u32>>(), any::<bool>()).prop_map(
            |(coding, version, object, body, file, in_memory)| match in_memory {
                true => {
                    let version = FileVersion { size: body.len() as u64, ..version };
                    Opened { coding, version, object, content: Some(Stored::Memory(body.into())) }
                }
                false => Opened { coding, version, object, content: file.map(Stored::File) },
            },
        )
    }

    fn as_found(number: u32, version: FileVersion) -> (u32, FileVersion) {
        (number, version)
    }

    fn found() -> impl Strategy<Value = Found<u32>> {
        let not_unpacked = prop::sample::select(vec![None, Some(NotUnpacked::TooLarge), Some(NotUnpacked::Damaged)]);
        let troubles =
            prop::sample::select(vec![Trouble::Busy, Trouble::Exhausted, Trouble::Failed, Trouble::Unavailable]);
        prop_oneof![
            4 => (text(), prop::collection::vec(opened(100), 0..4), not_unpacked)
                .prop_map(|(name, files, not_unpacked)| Found::File { name, files, not_unpacked }),
            1 => (0..4, version()).prop_map(|(which, version)| match which {
                0 => Found::NeedsSlash,
                1 => Found::Directory(version),
                2 => Found::Absent,
                _ => Found::Forbidden,
            }),
            1 => prop::collection::vec((text(), opened(100)), 0..4).prop_map(|all| {
                let (names, files) = all.into_iter().unzip();
                Found::Variants { names, files }
            }),
            1 => (prop::collection::vec(any::<u8>(), 0..200), any::<i64>(), prop::option::of(version()))
                .prop_map(|(page, changed_ns, folder)| Found::Listing(Listing::new(page, changed_ns, folder))),
            1 => troubles.prop_map(Found::Trouble),
            1 => opened(100).prop_map(Found::Missing),
        ]
    }

    proptest! {
        #[test]
        fn request_round_trips(work in work()) {
            prop_assert_eq!(read::<Work>(&write(&work)), Ok(work));
        }

        #[test]
        fn response_round_trips(found in found()) {
            let (bytes, files) = pack(&found);
            let back = unpack(&bytes, files.iter().map(|&&number| number), as_found);
            prop_assert_eq!(format!("{back:?}"), format!("{:?}", Ok::<_, Malformed>(found)));
        }

        /// A truncated, extended message or one with a surplus file is rejected; one with changed bytes
        /// may be accepted, but never causes a panic.
        #[test]
        fn corrupt_message_does_not_panic(
            work in work(),
            found in found(),
            cut in any::<prop::sample::Index>(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let mut question = write(&work);
            prop_assert_eq!(read::<Work>(&question[..cut.index(question.len())]), Err(Malformed));
            question.push(0);
            prop_assert_eq!(read::<Work>(&question), Err(Malformed));

            let (mut answer, files) = pack(&found);
            let files = || files.iter().map(|&&number| number);
            prop_assert!(unpack(&answer[..cut.index(answer.len())], files(), as_found).is_err());
            prop_assert!(unpack(&answer, files().chain([0]), as_found).is_err());
            answer.push(0);
            prop_assert!(unpack(&answer, files(), as_found).is_err());

            for (at, byte) in damage {
                let (in_question, in_answer) = (at.index(question.len()), at.index(answer.len()));
                question[in_question] = byte;
                answer[in_answer] = byte;
            }
            let _ = read::<Work>(&question);
            let _ = unpack(&answer, files(), as_found);
        }
    }

    #[test]
    fn socket_delivers_messages_and_rejects_others() {
        let (ours, theirs) = socket::packet_pair().unwrap();
        let sent = (7_u64, "text".to_owned());
        let heard = || receive::<(u64, String)>(&theirs, &mut Vec::new(), Patience::Now).map_err(|error| error.kind());
        (0..2).for_each(|_| send(&ours, &sent, &[], Patience::Now).unwrap());
        assert_eq!([heard(), heard()], [Ok(sent.clone()), Ok(sent)]);
        assert_eq!(heard(), Err(io::ErrorKind::WouldBlock));
        for bytes in [&[7, 9][..], &[255; 8], &write(&(7_u64, "text", 1_u8))] {
            socket::send_with_descriptors(&ours, bytes, &[], Patience::Now).unwrap();
            assert_eq!(heard(), Err(io::ErrorKind::InvalidData), "{bytes:?}");
        }
        let most = "x".repeat(MESSAGE_MAX - 4);
        send(&ours, &(7_u64, &most), &[ours.as_fd()], Patience::Now).unwrap();
        let mut descriptors = Vec::new();
        let received: (u64, String) = receive(&theirs, &mut descriptors, Patience::Now).unwrap();
        assert!(received == (7, most.clone()) && descriptors.len() == 1);
        let too_long = send(&ours, &(7_u64, most + "x"), &[], Patience::Now);
        assert_eq!(too_long.map_err(|error| error.kind()), Err(io::ErrorKind::InvalidInput));
        drop((ours, descriptors));
        assert_eq!(heard(), Err(io::ErrorKind::UnexpectedEof));
    }
}
