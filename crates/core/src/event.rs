//! The interface between a connection and its driver: events in, actions out.
//!
//! A driver owns the socket, the clock and the disk; a connection makes the decisions. The disk is the connection's
//! second peer: a lookup goes out as an [`Action::Disk`] and its result comes back as an [`Event::Disk`], at once or
//! much later, as the driver sees fit. An application is the third peer ([`Action::App`], [`Event::App`]); its response
//! arrives in pieces. Lookups and results ([`Work`], [`Found`]) are plain data apart from the opened file, so that they
//! can cross to another thread or process.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use amped_http::auth::Credentials;
use amped_http::negotiate::Coding;
use amped_http::status::Status;
use serde::{Deserialize, Serialize};

use crate::app::{Input, Output, RevalidateWork};
use crate::auth::Verdict;
use crate::cache::page::PageName;
use crate::cache::path::LookupResult;
use crate::file::{Content, FileVersion, NotUnpacked, ObjectHead, Stored};
use crate::listing::{ListForm, ListOrder, Listing};
use crate::record::Record;
use crate::reply::Reply;

/// An input to a connection.
pub enum Event<'a, F> {
    /// The client sent these bytes. The connection takes all of them.
    Bytes(&'a [u8]),
    /// The client sent these bytes without TLS on a port for TLS. What follows is without TLS too.
    NotTls(&'a [u8]),
    /// The client has closed its side.
    Ended,
    /// The result of the disk work with this ticket.
    Disk(Ticket, Answer<F>),
    /// That result is delayed: a helper is doing the work, or is needed and not available.
    Late(Ticket, Delay),
    /// Output of the application request with this ticket.
    App(Ticket, Output<'a>),
    /// Part of the pending output has been sent.
    Sent {
        /// Whether all of it has been sent.
        all: bool,
    },
    /// The client has received some of the output that was sent before, as far as its system has acknowledged it. Only before a
    /// [`Deadline`](Event::Deadline).
    Received {
        /// Bytes since the last such event, `u64::MAX` if the server has nothing more to wait for.
        bytes: u64,
    },
    /// The server had to wait, for its disk: its client's time begins again.
    Resumed,
    /// The deadline of [`next_due`](crate::http1::Conn::next_due) has passed.
    Deadline,
    /// The server is stopping: finish requests in progress, accept no new ones.
    Finish,
    /// New workers take over: as [`Finish`](Event::Finish), but a request that has
    /// begun to arrive, or the first one of a new connection, is still served.
    Retire,
    /// New connections go to another process ([`SharedState::is_draining`](crate::shared_state::SharedState::is_draining)
    /// is set): responses end their connection, and an idle one waits for its next request.
    Drain,
}

/// An output of a connection; actions are executed in order.
#[derive(Debug)]
pub enum Action<F> {
    /// Do disk work.
    Disk(Ticket, Work),
    /// Verify a password; the verdict comes back in the same way as a disk result. Verification is slow by design, so
    /// the driver passes it to a dedicated helper.
    Verify(Ticket, VerifyWork),
    /// Pass this to the application request with this ticket.
    App(Ticket, Input),
    /// Revalidate a page of an application. Nobody waits for the result, and the connection need not outlive it.
    Revalidate(Box<RevalidateWork>),
    /// Send this response after all earlier ones of its lane.
    Send(Lane, Reply<F>),
    /// More of the body of the lane's last response, which was
    /// [`Body::Open`](crate::reply::Body::Open). The number counts the bytes that are framing.
    Piece(Lane, Vec<u8>, usize),
    /// That body is complete.
    PieceEnd(Lane),
    /// Send these bytes, which belong to no response, before any response that has not begun to be sent.
    Control(Vec<u8>),
    /// Drop what a lane has to send.
    Cancel(Lane),
    /// Log this request, which gets no response.
    Unanswered(Box<Record>),
    /// Write this line to the error log.
    Log(String),
    /// Send these bytes, which belong to no response.
    Interim(Vec<u8>),
    /// Shut down the sending side, and continue to read.
    HalfClose,
    /// Close the connection, and drop unsent data.
    Close,
}

/// A sequence of output: the stream of a response. HTTP/1 has one, number 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Lane(pub u32);

/// Matches a result to its request; counted per connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Ticket(pub u32);

/// Why a result is delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// The disk must be read. A cached resolution of the name may be served meanwhile.
    Disk,
    /// The file is being changed. Its cached state is no longer valid.
    Change,
}

/// Work for the disk side. Any of it may block.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Work {
    /// Resolve a name and open the file.
    Name(NameWork),
    /// Generate a directory listing.
    List(ListWork),
}

impl Work {
    /// The configuration of the request; its result is valid for that configuration only.
    pub fn generation(&self) -> u32 {
        match self {
            Work::Name(work) => work.generation,
            Work::List(work) => work.generation,
        }
    }
}

/// Resolve a name: find the file, or the directory's index file, open it and its siblings, and read small files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NameWork {
    /// The number of the configuration, counted from the start.
    pub generation: u32,
    /// The site's number.
    pub site: u16,
    /// The clean path.
    pub path: Arc<[u8]>,
    /// How often the name had been invalidated at the time of the request. A lookup of a later edition is separate: it
    /// neither waits for this one's result nor is overwritten by it.
    pub edition: u32,
    /// Versions whose content is cached and need not be returned.
    pub known: Vec<FileVersion>,
    /// Whether to return possible variants if no file has this name.
    pub variants: bool,
    /// Whether to decompress a file that exists only in compressed form.
    pub unpack: bool,
    /// The name is already resolved and only this content is missing: if it can be opened, nothing else is looked up.
    pub missing: Option<Missing>,
    /// The first byte of the file that is needed, if it comes from an object store.
    pub from: u64,
}

/// A file whose version is known and whose content is not cached.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Missing {
    /// The clean path of the file, without the extension of its coding.
    pub name: Arc<[u8]>,
    /// Its content coding.
    pub coding: Coding,
    /// Its version.
    pub version: FileVersion,
}

/// Generate the listing of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ListWork {
    /// The number of the configuration, counted from the start.
    pub generation: u32,
    /// The site's number.
    pub site: u16,
    /// The clean path, with its final slash.
    pub path: Arc<[u8]>,
    /// How often the name had been invalidated at the time of the request, as in [`NameWork::edition`].
    pub edition: u32,
    /// The sort order.
    pub order: ListOrder,
    /// The format.
    pub form: ListForm,
}

impl ListWork {
    /// The name of the generated page.
    pub fn page_name(&self) -> PageName {
        let ListWork { generation, site, ref path, edition: _, order, form } = *self;
        PageName::Listing { generation, site, path: Arc::clone(path), order, form }
    }
}

/// Verify a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyWork {
    /// The configuration of the request, as in [`NameWork::generation`].
    pub generation: u32,
    /// The index of the account list.
    pub accounts: u16,
    /// The credentials of the request.
    pub credentials: Credentials,
    /// The address of the client; `None`: that of the connection's peer.
    pub client: Option<IpAddr>,
}

/// A result of the disk side.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(serialize = "", deserialize = "F: Default"))]
pub enum Found<F> {
    /// A file.
    File {
        /// Its clean path; for a directory, that of its index file.
        name: Arc<[u8]>,
        /// The file itself first, then its siblings that are not older. If only a compressed file exists: that file,
        /// then its decompressed form, if requested.
        files: Vec<Opened<F>>,
        /// Why decompression failed, if it was requested.
        not_unpacked: Option<NotUnpacked>,
    },
    /// No file of this name, but possible variants of it.
    Variants {
        /// Their clean paths.
        names: Vec<Arc<[u8]>>,
        /// Their files, in the same order; the coding follows from the name.
        files: Vec<Opened<F>>,
    },
    /// The missing content.
    Missing(Opened<F>),
    /// A directory, requested without its final slash.
    NeedsSlash,
    /// A directory without an index file, in this state.
    Directory(FileVersion),
    /// A listing, ready to send.
    Listing(Listing),
    /// No such file.
    Absent,
    /// Permission denied, or outside the root.
    Forbidden,
    /// The work failed.
    Trouble(Trouble),
}

impl<F> Found<F> {
    /// Whether it is a file that exists only in compressed form, and decompression was not tried.
    pub fn is_packed(&self) -> bool {
        matches!(self, Found::File { files, not_unpacked: None, .. }
            if matches!(files[..], [Opened { coding, .. }] if coding != Coding::Identity))
    }

    /// The files in the result.
    pub fn files(&self) -> &[Opened<F>] {
        match self {
            Found::File { files, .. } | Found::Variants { files, .. } => files,
            Found::Missing(opened) => core::slice::from_ref(opened),
            Found::NeedsSlash | Found::Directory(_) | Found::Listing(_) => &[],
            Found::Absent | Found::Forbidden | Found::Trouble(_) => &[],
        }
    }
}

impl<F> Found<F> {
    /// The same result without contents; `content` supplies a placeholder for that of each file.
    pub fn outline<'a>(&'a self, mut content: impl FnMut(&'a Opened<F>) -> Option<Stored<()>>) -> Found<()> {
        let mut outline = |opened: &'a Opened<F>| {
            let Opened { coding, version, .. } = *opened;
            Opened { coding, version, object: opened.object.clone(), content: content(opened) }
        };
        match self {
            Found::File { name, files, not_unpacked } => Found::File {
                name: Arc::clone(name),
                files: files.iter().map(outline).collect(),
                not_unpacked: *not_unpacked,
            },
            Found::Variants { names, files } => {
                Found::Variants { names: names.clone(), files: files.iter().map(outline).collect() }
            }
            Found::Missing(opened) => Found::Missing(outline(opened)),
            Found::NeedsSlash => Found::NeedsSlash,
            Found::Directory(version) => Found::Directory(*version),
            Found::Listing(listing) => Found::Listing(listing.clone()),
            Found::Absent => Found::Absent,
            Found::Forbidden => Found::Forbidden,
            Found::Trouble(trouble) => Found::Trouble(*trouble),
        }
    }

    /// The same result with each file converted by `change`, in order.
    ///
    /// # Errors
    /// The first error of `change`.
    pub fn try_map<G, E>(self, mut change: impl FnMut(Opened<F>) -> Result<Opened<G>, E>) -> Result<Found<G>, E> {
        Ok(match self {
            Found::File { name, files, not_unpacked } => {
                let files = files.into_iter().map(change).collect::<Result<_, _>>()?;
                Found::File { name, files, not_unpacked }
            }
            Found::Variants { names, files } => {
                Found::Variants { names, files: files.into_iter().map(change).collect::<Result<_, _>>()? }
            }
            Found::Missing(opened) => Found::Missing(change(opened)?),
            Found::NeedsSlash => Found::NeedsSlash,
            Found::Directory(version) => Found::Directory(version),
            Found::Listing(listing) => Found::Listing(listing),
            Found::Absent => Found::Absent,
            Found::Forbidden => Found::Forbidden,
            Found::Trouble(trouble) => Found::Trouble(trouble),
        })
    }
}

/// An opened file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(serialize = "", deserialize = "F: Default"))]
pub struct Opened<F> {
    /// Its content coding.
    pub coding: Coding,
    /// Its version, from fstat on the open descriptor.
    pub version: FileVersion,
    /// Its metadata, if it is an object of an object store.
    pub object: Option<Arc<ObjectHead>>,
    /// Its content; `None` if the requester has this version cached.
    pub content: Option<Stored<F>>,
}

/// Why disk work failed. Never cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trouble {
    /// The queue is full: 503, with a short retry interval.
    Busy,
    /// Out of descriptors or memory: 503 as well.
    Exhausted,
    /// The disk or file system failed: 500.
    Failed,
    /// The object store does not answer, or refuses to: 503.
    Unavailable,
}

/// The result as connections get it, after the caches were updated.
/// May be shared by several connections that requested the same.
#[derive(Debug)]
pub enum Answer<F> {
    /// The resolution of the name, with the contents that were opened.
    Name(LookupResult, Vec<Arc<Content<F>>>),
    /// A listing.
    Listing(Listing),
    /// The verdict on a password.
    Verified(Verdict),
    /// The work failed.
    Trouble(Trouble),
    /// The request is outdated, because newer data is cached. Repeat the lookup.
    Outdated,
}

/// A result for callers without a request (preloading).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreloadResult {
    /// The status of the response to a request.
    pub status: u16,
    /// The size of the file in bytes; 0 if there is none.
    pub size: u64,
    /// Why there is no file, for people; empty if there is one, or if the status is sufficient.
    pub why: Cow<'static, str>,
}

impl PreloadResult {
    /// Summarises a result; `listing`: whether directories are listed.
    pub fn of<F>(answer: &Answer<F>, listing: bool) -> PreloadResult {
        let mut size = 0;
        let (status, why) = match answer {
            Answer::Name(LookupResult::File(resource), _) => {
                size = resource.representations[0].version.size;
                (Status::OK, "")
            }
            Answer::Name(LookupResult::Directory(_), _) if listing => (Status::OK, LISTED),
            Answer::Listing(_) => (Status::OK, LISTED),
            Answer::Name(LookupResult::Variants(_), _) => {
                (Status::OK, "a document with variants: load each by its own name")
            }
            Answer::Name(LookupResult::NeedsSlash, _) => {
                (Status::MOVED_PERMANENTLY, "a directory: add a slash for its index page")
            }
            Answer::Name(LookupResult::Directory(_), _) => (Status::FORBIDDEN, "a directory without an index page"),
            Answer::Name(LookupResult::Forbidden, _) => (Status::FORBIDDEN, "permission denied"),
            Answer::Name(LookupResult::Absent, _) => (Status::NOT_FOUND, ""),
            Answer::Trouble(Trouble::Failed) => (Status::INTERNAL_SERVER_ERROR, "read error"),
            Answer::Trouble(Trouble::Unavailable) => {
                (Status::SERVICE_UNAVAILABLE, "the object store failed; see the error log")
            }
            Answer::Trouble(Trouble::Busy | Trouble::Exhausted) => {
                (Status::SERVICE_UNAVAILABLE, "disk queue full or out of file descriptors: try again")
            }
            // A verdict does not occur without a request.
            Answer::Outdated | Answer::Verified(_) => {
                (Status::SERVICE_UNAVAILABLE, "the configuration was reloaded: try again")
            }
        };
        PreloadResult { status: status.0, size, why: why.into() }
    }
}

/// The result of preloading a directory that is listed.
const LISTED: &str = "a directory listing, generated on request";

impl<F> Clone for Answer<F> {
    fn clone(&self) -> Self {
        match self {
            Answer::Name(meaning, contents) => Answer::Name(meaning.clone(), contents.clone()),
            Answer::Listing(listing) => Answer::Listing(listing.clone()),
            Answer::Verified(verdict) => Answer::Verified(*verdict),
            Answer::Trouble(trouble) => Answer::Trouble(*trouble),
            Answer::Outdated => Answer::Outdated,
        }
    }
}
