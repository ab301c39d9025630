//! The contract between a connection and whoever drives it: what goes in, what comes out.
//!
//! A driver owns the socket, the clock and the disk; a connection owns the decisions. The disk is the connection's second
//! peer: a question goes out as an [`Action::Disk`] and its answer comes back as an [`Event::Disk`], at once or much later,
//! and nobody but the driver knows which. An application is the third ([`Action::App`], [`Event::App`]); its answer comes in
//! pieces. What is asked and answered ([`Work`], [`Found`]) is plain data beside the opened
//! file, so that it can cross to another thread or process.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use amped_http::auth::Credentials;
use amped_http::negotiate::Coding;
use amped_http::status::Status;
use serde::{Deserialize, Serialize};

use crate::app::{Input, Output};
use crate::auth::Verdict;
use crate::cache::page::PageName;
use crate::cache::path::LookupResult;
use crate::file::{Content, FileVersion, NotUnpacked, Stored};
use crate::listing::{ListForm, ListOrder, Listing};
use crate::reply::Reply;

/// What happened.
pub enum Event<'a, F> {
    /// The client sent these bytes. All of them are taken.
    Bytes(&'a [u8]),
    /// The client will send nothing more.
    Ended,
    /// The disk's answer to the work with this ticket.
    Disk(Ticket, Answer<F>),
    /// That answer will take a while: a helper has been asked, or would have to be and cannot.
    Late(Ticket, Delay),
    /// What the application says that was begun with this ticket.
    App(Ticket, Output<'a>),
    /// Some of what is to be sent has gone out, `all`: the last of it.
    Sent {
        /// Whether nothing is left to send.
        all: bool,
    },
    /// The moment of [`next_due`](crate::http1::Conn::next_due) has come.
    Deadline,
    /// The server is about to stop: finish what is under way, begin nothing new.
    Finish,
    /// Others take its place: as [`Finish`](Event::Finish), but who has begun to ask, or has just come, is answered.
    Retire,
}

/// What is to be done, in the order given.
#[derive(Debug)]
pub enum Action<F> {
    /// Ask the disk.
    Disk(Ticket, Work),
    /// Verify a password; the verdict comes back as the disk's answers do. It computes for long on purpose, so the driver
    /// gives it to a helper of its own kind.
    Verify(Ticket, VerifyWork),
    /// This goes to the application that was begun, or is, with this ticket.
    App(Ticket, Input),
    /// Send this reply behind all that has been given before.
    Send(Reply<F>),
    /// More of the body of the reply that was given last, which was [`Body::Open`](crate::reply::Body::Open). So many bytes
    /// of it are framing and not the body's own.
    Piece(Vec<u8>, usize),
    /// That body is complete.
    PieceEnd,
    /// Write this line to the error log.
    Log(String),
    /// Send these bytes, which belong to no reply.
    Interim(&'static [u8]),
    /// Tell the client that nothing more will come, and go on reading.
    HalfClose,
    /// Close, and drop whatever is left.
    Close,
}

/// Which question an answer belongs to; counted for each connection by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Ticket(pub u32);

/// Why an answer takes a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// The disk has to be waited for. What is known of the name may serve in the meantime.
    Disk,
    /// The file is being changed at this moment. What was known of it is not true any more.
    Change,
}

/// Work for the disk side. Any of it may block.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Work {
    /// Find out what a name means, and open it.
    Name(NameWork),
    /// Make a listing of a directory.
    List(ListWork),
}

impl Work {
    /// The configuration under which the question was asked; its answer says nothing about another one.
    pub fn generation(&self) -> u32 {
        match self {
            Work::Name(work) => work.generation,
            Work::List(work) => work.generation,
        }
    }
}

/// Translate a name: find the file, or the directory's index file, open it and its siblings, and read what is small.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NameWork {
    /// Counts the configurations that have been in force.
    pub generation: u32,
    /// The site's number.
    pub site: u16,
    /// The clean path.
    pub path: Arc<[u8]>,
    /// How often the name had been forgotten when the question was asked: one that is asked after that is another, which
    /// neither waits for this one's answer nor is overtaken by it.
    pub edition: u32,
    /// States whose content is at hand already and need not be brought again.
    pub known: Vec<FileVersion>,
    /// Whether, if there is nothing of this name, the files beside it are wanted that may be its variants.
    pub variants: bool,
    /// Whether a file that is there compressed alone is to be unpacked.
    pub unpack: bool,
    /// What the name means is known, and only this content is missing: if it is still to be had, nothing else is looked for.
    pub missing: Option<Missing>,
}

/// A file whose state is known and whose content is not at hand.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Missing {
    /// The clean path of the file, without the ending of its coding.
    pub name: Arc<[u8]>,
    /// How it is coded.
    pub coding: Coding,
    /// Its state.
    pub version: FileVersion,
}

/// List a directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ListWork {
    /// Counts the configurations that have been in force.
    pub generation: u32,
    /// The site's number.
    pub site: u16,
    /// The clean path, with its final slash.
    pub path: Arc<[u8]>,
    /// How often its name had been forgotten when the question was asked, as in [`NameWork::edition`].
    pub edition: u32,
    /// In which order.
    pub order: ListOrder,
    /// As what.
    pub form: ListForm,
}

impl ListWork {
    /// The name of the page that this work makes.
    pub fn page_name(&self) -> PageName {
        let ListWork { generation, site, ref path, edition: _, order, form } = *self;
        PageName::Listing { generation, site, path: Arc::clone(path), order, form }
    }
}

/// Verify a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyWork {
    /// The configuration under which the question was asked, as in [`NameWork::generation`].
    pub generation: u32,
    /// Which list of the server's has the accounts.
    pub accounts: u16,
    /// The name and the password that the request gives.
    pub credentials: Credentials,
}

/// What the disk side found.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(serialize = "", deserialize = "F: Default"))]
pub enum Found<F> {
    /// A file.
    File {
        /// Its clean path: for a directory that of its index file.
        name: Arc<[u8]>,
        /// The file itself first, then its siblings that are not older. Where there is the file compressed alone: that one,
        /// then, if it was unpacked, what it unpacks to.
        files: Vec<Opened<F>>,
        /// Why it was not unpacked although it was to be.
        not_unpacked: Option<NotUnpacked>,
    },
    /// Nothing of this name, but files that may be its variants.
    Variants {
        /// Their clean paths.
        names: Vec<Arc<[u8]>>,
        /// As many; how each is coded its name will tell.
        files: Vec<Opened<F>>,
    },
    /// The content that was missing.
    Missing(Opened<F>),
    /// A directory, asked for without its slash.
    NeedsSlash,
    /// A directory without an index file, in this state.
    Directory(FileVersion),
    /// A listing, ready to send.
    Listing(Listing),
    /// Nothing there.
    Absent,
    /// It must not be read, or lies outside the root.
    Forbidden,
    /// The question could not be answered.
    Trouble(Trouble),
}

impl<F> Found<F> {
    /// Whether it is a file that is there compressed alone, and nobody has tried to unpack it.
    pub fn is_packed(&self) -> bool {
        matches!(self, Found::File { files, not_unpacked: None, .. }
            if matches!(files[..], [Opened { coding, .. }] if coding != Coding::Identity))
    }

    /// The files that it tells of.
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
    /// The same without contents; `content` says of each file what stands for its content.
    pub fn outline<'a>(&'a self, mut content: impl FnMut(&'a Opened<F>) -> Option<Stored<()>>) -> Found<()> {
        let mut outline = |opened: &'a Opened<F>| {
            let Opened { coding, version, .. } = *opened;
            Opened { coding, version, content: content(opened) }
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

    /// The same with the files that `change` makes of its files, in their order.
    ///
    /// # Errors
    /// The first of `change`.
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

/// One file that was opened.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(serialize = "", deserialize = "F: Default"))]
pub struct Opened<F> {
    /// How it is coded.
    pub coding: Coding,
    /// Its state, read from the very descriptor.
    pub version: FileVersion,
    /// Its content; `None` if the asker knows that state.
    pub content: Option<Stored<F>>,
}

/// Why there is no answer. Never cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trouble {
    /// Too much work is waiting already: answered 503, to be tried again soon.
    Busy,
    /// Out of descriptors or memory: answered 503 as well.
    Exhausted,
    /// The disk or file system failed: answered 500.
    Failed,
}

/// The answer that connections get: what was found, after the caches have taken note of it. May be handed to several
/// connections that asked the same.
#[derive(Debug)]
pub enum Answer<F> {
    /// What the name means, with the contents that were opened.
    Name(LookupResult, Vec<Arc<Content<F>>>),
    /// A listing.
    Listing(Listing),
    /// What became of a name and its password.
    Verified(Verdict),
    /// None.
    Trouble(Trouble),
    /// The question has lost its sense, since something else is known by now. Ask anew.
    Outdated,
}

/// What an answer comes to, in short: for whoever asked without a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerKind {
    /// Which of [`AnswerKind::KINDS`].
    kind: u8,
    /// Bytes of the file; 0 if it is none.
    pub size: u64,
}

impl AnswerKind {
    /// The status that a request would be answered with, and why not with a file.
    const KINDS: [(Status, &str); 10] = [
        (Status::OK, ""),
        (Status::OK, "a listing, which is made when it is asked for"),
        (Status::MOVED_PERMANENTLY, "a folder: add a slash for its index page"),
        (Status::FORBIDDEN, "a folder without an index page"),
        (Status::FORBIDDEN, "not for reading"),
        (Status::NOT_FOUND, ""),
        (Status::INTERNAL_SERVER_ERROR, "it could not be read"),
        (Status::SERVICE_UNAVAILABLE, "too much is waiting for the disk, or descriptors are short: try again"),
        (Status::SERVICE_UNAVAILABLE, "the configuration has changed meanwhile: try again"),
        (Status::OK, "a document in variants: load each by its own name"),
    ];

    /// Too much is waiting for the disk.
    pub const BUSY: AnswerKind = AnswerKind { kind: 7, size: 0 };

    /// What this answer comes to; `listing`: whether folders are listed.
    pub fn of<F>(answer: &Answer<F>, listing: bool) -> AnswerKind {
        let (kind, size) = match answer {
            Answer::Name(LookupResult::File(resource), _) => (0, resource.representations[0].version.size),
            Answer::Name(LookupResult::Directory(_), _) if listing => (1, 0),
            Answer::Listing(_) => (1, 0),
            Answer::Name(LookupResult::NeedsSlash, _) => (2, 0),
            Answer::Name(LookupResult::Directory(_), _) => (3, 0),
            Answer::Name(LookupResult::Forbidden, _) => (4, 0),
            Answer::Name(LookupResult::Absent, _) => (5, 0),
            Answer::Trouble(Trouble::Failed) => (6, 0),
            Answer::Trouble(Trouble::Busy | Trouble::Exhausted) => (7, 0),
            // Nobody asks for that without a request.
            Answer::Outdated | Answer::Verified(_) => (8, 0),
            Answer::Name(LookupResult::Variants(_), _) => (9, 0),
        };
        AnswerKind { kind, size }
    }

    /// As bytes, for another process of the same program.
    pub fn to_bytes(self) -> [u8; 9] {
        let mut bytes = [self.kind; 9];
        bytes[1..].copy_from_slice(&self.size.to_le_bytes());
        bytes
    }

    /// Back from these bytes; `None` if they are none.
    pub fn from_bytes(bytes: &[u8]) -> Option<AnswerKind> {
        let [kind, size @ ..]: [u8; 9] = bytes.try_into().ok()?;
        (usize::from(kind) < AnswerKind::KINDS.len()).then_some(AnswerKind { kind, size: u64::from_le_bytes(size) })
    }

    /// The status that a request would be answered with.
    pub fn status(self) -> Status {
        AnswerKind::KINDS[usize::from(self.kind)].0
    }

    /// Why there is no file, for people; empty if there is, or if the status says it all.
    pub fn why(self) -> &'static str {
        AnswerKind::KINDS[usize::from(self.kind)].1
    }
}

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
