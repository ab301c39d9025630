//! Sites whose content is in an object store: which objects are known, when the store is asked, and what happens if it fails.
//!
//! `disk` (stop 8) looks a name up in a [`Bucket`] as in a directory. The loop uses only what is known and current; anything else
//! would wait, and is done by a helper: [`Bucket::open`] there asks the store (`client`), and keeps the object as a file (`mirror`), from
//! which it is then served as any file is. Threads share what is known; processes share the files, and ask again what they cannot
//! see in them.
//!
//! An object that is larger than a window is there in part (`windows`): the request that finds it brings the window that its client
//! begins with, and the others come when they are about to be sent ([`ObjectWindows::fetch`]).

pub mod breaker;
pub mod client;
pub mod credentials;
pub mod layout;
pub mod list;
pub mod mirror;
pub mod settings;
pub mod sign;
pub mod windows;

use std::collections::HashMap;
use std::ffi::CString;
use std::fmt;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use amped_core::cache::policy;
use amped_core::file::{FileVersion, ObjectHead};
use amped_core::listing::Entry;
use amped_sys::file::Patience;
use aws_lc_rs::digest::{Context, SHA256};

use breaker::{Breaker, jittered};
use client::{Answer, Client, Metadata, Part, StoreError, Wanted, lifetime, read_body};
use layout::{Layout, Slot, finish, length};
use list::Page;
use mirror::{Claim, Mirror, Name, ObjectRecord, is_strong};
use settings::{Location, StoreSettings};
use windows::Windows;

use crate::clock;
use crate::counters::StoreCounts;
use crate::say;

/// A store, with the local copies of its objects.
pub struct ObjectStore {
    settings: Arc<StoreSettings>,
    client: Client,
    mirror: Mirror,
    breaker: Mutex<Breaker>,
    known: Mutex<policy::Store<Id, Known>>,
    /// The last messages to the operator about failures, so that a store that is down does not fill the log.
    said: Mutex<HashMap<String, Instant>>,
    random: RandomState,
    counts: Mutex<StoreCounts>,
}

impl fmt::Debug for ObjectStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectStore")
            .field("settings", &self.settings)
            .field("mirror", &self.mirror)
            .finish_non_exhaustive()
    }
}

/// The key of an object with its bucket, or a prefix that ends in a slash.
type Id = Box<[u8]>;

/// What is known of an object.
#[derive(Clone, Debug)]
enum Known {
    Object {
        object: Object,
        until: Instant,
        name: Name,
        was_used: bool,
    },
    /// None has this key.
    Absent {
        since: Instant,
    },
    /// These credentials may not read it.
    Denied {
        since: Instant,
    },
    /// Keys begin with this prefix. The version changes with each look.
    Prefix {
        version: FileVersion,
        since: Instant,
    },
    /// The store must be asked, unless another process has done so since.
    Purged {
        at: SystemTime,
    },
}

/// An object that is kept as a file.
#[derive(Clone, Debug)]
struct Object {
    bytes: Arc<CString>,
    head: Arc<ObjectHead>,
    /// Which windows of it are there, if it is a large one.
    windows: Option<Arc<Windows>>,
}

/// A bucket, a key in it, and the ID of both.
type Of<'a> = (&'a str, &'a [u8], &'a [u8]);

/// The file of an object.
#[derive(Debug)]
pub struct ObjectFile {
    /// The file.
    pub file: OwnedFd,
    /// What the store says about it.
    pub head: Arc<ObjectHead>,
    /// Its windows; `None`: the file is complete.
    pub windows: Option<ObjectWindows>,
}

/// The windows of an open file of a large object.
pub struct ObjectWindows {
    store: Arc<ObjectStore>,
    windows: Arc<Windows>,
    /// Bytes that are counted for the file, if it has no name any more.
    orphaned: AtomicU64,
}

impl fmt::Debug for ObjectWindows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.windows.fmt(f)
    }
}

impl ObjectWindows {
    /// Returns the windows.
    pub fn windows(&self) -> &Windows {
        &self.windows
    }

    /// Returns whether the file had lost its name when a window was fetched. Then all of it counts until it is closed.
    pub fn is_orphaned(&self) -> bool {
        self.orphaned.load(Ordering::Relaxed) > 0
    }

    /// Makes the window that has this byte of the file be there. Asks the store, unless another thread or process has done so.
    ///
    /// # Errors
    /// One of [`is_unavailable`]: the store cannot be asked, or has another version, or the window cannot be kept.
    pub fn fetch(&self, file: impl AsFd, offset: u64) -> io::Result<()> {
        let (store, windows) = (&*self.store, &*self.windows);
        let window = windows.at(offset);
        if windows.is_present(window) {
            return Ok(());
        }
        if windows.is_replaced() {
            return Err(unavailable());
        }
        let file = File::from(file.as_fd().try_clone_to_owned()?);
        if let Err(error) = store.fill(windows, &file, window, &self.orphaned) {
            if matches!(error, StoreError::Replaced | StoreError::Absent) {
                windows.note_replaced();
                store.forget_version(&self.windows);
            }
            store.report_failure(&error, &windows.bucket, &windows.key);
            return Err(unavailable());
        }
        windows.note_present(window);
        Ok(())
    }
}

impl Drop for ObjectWindows {
    fn drop(&mut self) {
        self.store.mirror.release(*self.orphaned.get_mut());
    }
}

/// Maximum objects whose state is known, and the bytes for it.
const KNOWN_MAX: usize = 256 * 1024;
const KNOWN_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// How long an absent object is remembered, if it was asked for by its own name.
pub const ABSENT: Duration = Duration::from_secs(1);

/// After a failure of the store, how long a stale object is used without asking again.
const STALE_PAUSE: Duration = Duration::from_secs(1);

/// Further attempts for an object of which there is no local copy, and the pause before the first, which doubles.
const RETRIES: u32 = 2;
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Interval of messages about the same failure.
const SAID_AGAIN: Duration = Duration::from_secs(60);

/// Maximum different messages in this time.
const SAID_MAX: usize = 100;

/// Maximum length of a key (Amazon S3).
const KEY_MAX: usize = 1024;

/// Keys in a page of a listing, and maximum pages that are read.
const PAGE_KEYS: usize = 1000;
const PAGES_MAX: usize = 100;

impl ObjectStore {
    /// Opens the local copies. The store itself is not asked: it may be down now.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub fn open(settings: Arc<StoreSettings>) -> io::Result<ObjectStore> {
        // The same in all processes, which are forked, and under all configurations.
        static RUN: OnceLock<u64> = OnceLock::new();
        let random = RandomState::new();
        let run = *RUN.get_or_init(|| random.hash_one(SystemTime::now()).max(1));
        let mirror = Mirror::open(&settings.directory, settings.bytes_max, run)?;
        Ok(ObjectStore {
            client: Client::new(Arc::clone(&settings)),
            settings,
            mirror,
            breaker: Mutex::default(),
            known: Mutex::new(policy::Store::new(KNOWN_MAX, KNOWN_BYTES_MAX)),
            said: Mutex::default(),
            random,
            counts: Mutex::default(),
        })
    }

    /// Returns its settings.
    pub fn settings(&self) -> &StoreSettings {
        &self.settings
    }

    /// Returns the statistics of this process.
    pub fn counts(&self) -> StoreCounts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, add: impl FnOnce(&mut StoreCounts)) {
        add(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the directory of local copies.
    pub fn folder(&self) -> &Arc<OwnedFd> {
        self.mirror.folder()
    }

    fn lock_known(&self) -> MutexGuard<'_, policy::Store<Id, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn learn(&self, id: &[u8], known: Known) {
        let windows = match &known {
            Known::Object { object: Object { windows: Some(windows), .. }, .. } => windows.layout.windows(),
            _ => 0,
        };
        let weight = 256 + id.len() as u64 + windows;
        self.lock_known().insert(id.into(), known, weight);
    }

    /// Returns what is known and current. An absence may be as old as `absent_for`.
    fn current(&self, id: &[u8], absent_for: Duration) -> Option<io::Result<Object>> {
        let mut known = self.lock_known();
        match known.get(id)? {
            Known::Object { object, until, was_used, .. } if Instant::now() < *until => {
                *was_used = true;
                Some(Ok(object.clone()))
            }
            Known::Absent { since } if since.elapsed() < absent_for => Some(Err(io::ErrorKind::NotFound.into())),
            Known::Denied { since } if since.elapsed() < ABSENT => Some(Err(io::ErrorKind::PermissionDenied.into())),
            _ => None,
        }
    }

    /// Asks the store for an object, unless that was done in the meantime. Returns what to serve. Of a large object only the
    /// window is fetched that has the byte `from`.
    fn fetch(&self, of: Of<'_>, absent_for: Duration, from: u64) -> io::Result<Object> {
        let (bucket, key, id) = of;
        let name = Name::of(&self.settings.endpoint(), bucket, key);
        let mut claim = self.mirror.claim(&name).map_err(|error| self.cannot_keep(&error))?;
        let purged = match self.lock_known().peek(id) {
            Some(Known::Purged { at }) => *at,
            _ => SystemTime::UNIX_EPOCH,
        };
        // Another thread may have asked while this one waited for the claim; or another process, or this server before a restart.
        if let Some(current) = self.current(id, absent_for) {
            return current;
        }
        let stored = claim.stored();
        if let Some((record, current_at)) = &stored
            && *current_at > purged
            && let Some(left) = self.lifetime(record).checked_sub(age(*current_at))
        {
            self.mirror.used(&name);
            return Ok(self.keep(of, &name, record, left));
        }
        let is_usable = |(record, current_at): &(ObjectRecord, SystemTime)| {
            age(*current_at).saturating_sub(self.lifetime(record)) < self.settings.keys.stale_max
        };
        // With a stale object at hand nobody has to wait for another attempt.
        let retries = if stored.as_ref().is_some_and(is_usable) { 0 } else { RETRIES };
        let record = stored.as_ref().map(|(record, _)| record);
        match self.retried(retries, || self.request((bucket, key), record, from, &mut claim)) {
            Ok(record) => Ok(self.keep(of, &name, &record, self.lifetime(&record))),
            Err(error) => {
                let stale = stored.filter(is_usable).map(|(record, _)| (name, record));
                self.fail(&error, of, stale, &claim)
            }
        }
    }

    /// Returns what to serve after an error: an object that is not current, or the error.
    fn fail(
        &self,
        error: &StoreError,
        of: Of<'_>,
        stale: Option<(Name, ObjectRecord)>,
        claim: &Claim<'_>,
    ) -> io::Result<Object> {
        let (since, (bucket, key, id)) = (Instant::now(), of);
        if let StoreError::Absent | StoreError::Denied = error {
            let is_absent = matches!(error, StoreError::Absent);
            self.learn(id, if is_absent { Known::Absent { since } } else { Known::Denied { since } });
            claim.remove().map_err(|error| self.cannot_keep(&error))?;
            if is_absent {
                return Err(io::ErrorKind::NotFound.into());
            }
        }
        self.report_failure(error, bucket, key);
        match stale {
            _ if matches!(error, StoreError::Denied) => Err(io::ErrorKind::PermissionDenied.into()),
            Some((name, record)) => {
                self.count(|counts| counts.stale += 1);
                Ok(self.keep(of, &name, &record, STALE_PAUSE))
            }
            None => Err(unavailable()),
        }
    }

    /// Reports why an object cannot be fetched, unless `guarded` has done so.
    fn report_failure(&self, error: &StoreError, bucket: &str, key: &[u8]) {
        match error {
            StoreError::Denied => {
                self.report(&format!(
                    "the store denies access to objects of {bucket}: allow these credentials, or everybody, to read them \
                     (s3:GetObject); without s3:ListBucket it also denies access to those that do not exist"
                ));
            }
            StoreError::TooLarge(max) => {
                let key = String::from_utf8_lossy(key);
                self.report(&format!(
                    "{bucket}/{} has more than {max} bytes: raise `max_object`, or `disk_bytes`",
                    key.escape_debug()
                ));
            }
            StoreError::Full => {
                let directory = self.settings.directory.display();
                self.report(&format!("the objects that are being fetched fill {directory}: raise `disk_bytes`"));
            }
            StoreError::Local(error) => {
                self.cannot_keep(error);
            }
            StoreError::Absent | StoreError::Replaced | StoreError::Unavailable(_) | StoreError::Refused(..) => {}
        }
    }

    /// Makes a request, again if that may help.
    fn retried<T>(&self, retries: u32, mut request: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
        let mut pause = RETRY_PAUSE;
        for _ in 0..retries {
            match self.guarded(&mut request) {
                Err(StoreError::Unavailable(_)) if self.may_ask() => thread::sleep(jittered(pause, self.random())),
                other => return other,
            }
            pause *= 2;
        }
        self.guarded(request)
    }

    /// Asks the store for an object, and keeps what it says.
    fn request(
        &self,
        (bucket, key): (&str, &[u8]),
        stored: Option<&ObjectRecord>,
        from: u64,
        claim: &mut Claim<'_>,
    ) -> Result<ObjectRecord, StoreError> {
        let etag = stored.and_then(|record| record.head.etag.as_deref());
        let mut answer = self.first_part((bucket, key), etag, from)?;
        if let (Answer::NotModified(metadata), Some(stored)) = (&answer, stored) {
            if is_same(metadata, stored) {
                claim.confirm().map_err(StoreError::Local)?;
                self.count(|counts| counts.confirmed += 1);
                return Ok(stored.clone());
            }
            // The same bytes with other metadata, of which a store may send only some with a 304.
            answer = self.first_part((bucket, key), None, from)?;
        }
        let bytes_max = self.settings.keys.max_object.0.min(self.settings.bytes_max);
        let of = format!("{bucket}/{}", String::from_utf8_lossy(key));
        let metadata = match answer {
            Answer::Part(Part { total, .. }) if total > bytes_max => return Err(StoreError::TooLarge(bytes_max)),
            Answer::Part(part) if part.total > self.settings.window_bytes => self.receive_first_window(part, claim)?,
            Answer::Part(Part { metadata, total, body, .. }) => {
                self.receive_whole(body, Some(total), bytes_max, claim)?;
                metadata
            }
            Answer::Object(metadata, length, body) => {
                self.receive_whole(body, length, bytes_max, claim)?;
                metadata
            }
            Answer::NotModified(_) | Answer::OutOfRange => {
                return Err(StoreError::Unavailable(
                    "the store answers a request that has neither condition nor range with 304 or 416".to_owned(),
                ));
            }
        };
        claim.commit(of, metadata.head, metadata.modified_seconds).map_err(StoreError::Local)
    }

    /// Requests the window that has the byte `from`, or else the first one, or else the whole object, if it has no windows.
    fn first_part(&self, (bucket, key): (&str, &[u8]), unless: Option<&str>, from: u64) -> Result<Answer, StoreError> {
        let window_bytes = self.settings.window_bytes;
        let start = from - from % window_bytes;
        let window_at = |start: u64| start..start.saturating_add(window_bytes);
        for range in [window_at(start), window_at(0)] {
            let wanted = Wanted { unless, range: Some(range), ..Wanted::default() };
            match self.client.get(bucket, key, &wanted)? {
                // An empty object, or a shorter one than its client expects.
                Answer::OutOfRange if start > 0 => {}
                Answer::OutOfRange => break,
                // Only a strong entity tag shows that two windows are of one version.
                Answer::Part(Part { total, metadata, .. })
                    if total > window_bytes && !metadata.head.etag.as_deref().is_some_and(is_strong) =>
                {
                    break;
                }
                answer => return Ok(answer),
            }
        }
        self.client.get(bucket, key, &Wanted { unless, ..Wanted::default() })
    }

    fn receive_whole(
        &self,
        body: ureq::Body,
        length: Option<u64>,
        bytes_max: u64,
        claim: &mut Claim<'_>,
    ) -> Result<(), StoreError> {
        if length.is_some_and(|length| length > bytes_max) {
            return Err(StoreError::TooLarge(bytes_max));
        }
        self.note_room(claim.begin(length.unwrap_or(0), || self.note_use()).map_err(StoreError::Local)?)?;
        read_body(body, length, bytes_max, |bytes| {
            self.count(|counts| counts.fetched_bytes += bytes.len() as u64);
            claim.write(bytes)
        })?;
        Ok(())
    }

    /// Begins a large object with a window of it.
    fn receive_first_window(&self, part: Part, claim: &mut Claim<'_>) -> Result<Metadata, StoreError> {
        let layout = Layout { size: part.total, window_bytes: self.settings.window_bytes };
        if layout.file_bytes() > self.settings.bytes_max {
            return Err(StoreError::TooLarge(self.settings.bytes_max));
        }
        let window = part.range.start / layout.window_bytes;
        self.note_room(claim.begin_windows(layout, window, || self.note_use()).map_err(StoreError::Local)?)?;
        let file = claim.file().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let slot = self.receive_window(part.body, part.range.clone(), file, &part.range)?;
        layout.put_slot(file, window, Some(&slot))?;
        Ok(part.metadata)
    }

    fn note_room(&self, removed: Option<u64>) -> Result<(), StoreError> {
        self.count(|counts| counts.evictions += removed.unwrap_or(0));
        removed.map(|_| ()).ok_or(StoreError::Full)
    }

    /// Makes a window of a large object be there: another process may have filled it, or this server before a restart.
    fn fill(&self, windows: &Windows, file: &File, window: u64, orphaned: &AtomicU64) -> Result<(), StoreError> {
        let (Windows { name, layout, .. }, run) = (windows, self.mirror.run());
        let _claim = self.mirror.claim_window(name, window)?;
        match layout.slot(file, window)? {
            Some(slot) if slot.run == run => return Ok(()),
            // The machine may have lost what was not on the disk yet.
            Some(slot) if layout.sha256(file, window).is_ok_and(|sha256| sha256 == slot.sha256) => {
                layout.put_slot(file, window, Some(&Slot { run, ..slot }))?;
                return Ok(());
            }
            Some(_) => self.mirror.empty(layout, file, window)?,
            None => {}
        }
        let removed = self.mirror.fill(
            (name, layout, file),
            window,
            orphaned,
            || self.note_use(),
            || StoreError::Full,
            || self.retried(RETRIES, || self.request_window(windows, window, file)),
        )?;
        self.count(|counts| counts.evictions += removed);
        self.mirror.used(name);
        Ok(())
    }

    /// Requests a window of a large object, in its version.
    fn request_window(&self, windows: &Windows, window: u64, file: &File) -> Result<Slot, StoreError> {
        let Windows { bucket, key, etag, layout, .. } = windows;
        let wanted = layout.range(window);
        let request = Wanted { only: Some(etag), range: Some(wanted.clone()), ..Wanted::default() };
        // A store may ignore the condition, or the range.
        let (metadata, total, range, body) = match self.client.get(bucket, key, &request)? {
            Answer::Part(Part { metadata, total, range, body }) => (metadata, total, range, body),
            Answer::Object(metadata, Some(total), body) => (metadata, total, 0..total, body),
            Answer::Object(..) | Answer::NotModified(_) | Answer::OutOfRange => return Err(StoreError::Replaced),
        };
        if metadata.head.etag.as_ref() != Some(etag) || total != layout.size {
            return Err(StoreError::Replaced);
        }
        self.receive_window(body, range, file, &wanted)
    }

    /// Writes those bytes of a body that are `wanted` into a file; `range`: those that the body has.
    fn receive_window(
        &self,
        body: ureq::Body,
        range: Range<u64>,
        file: &File,
        wanted: &Range<u64>,
    ) -> Result<Slot, StoreError> {
        let (mut digest, mut at) = (Context::new(&SHA256), range.start);
        read_body(body, Some(length(&range)), length(&range), |bytes| {
            self.count(|counts| counts.fetched_bytes += bytes.len() as u64);
            let within = |offset: u64| offset.clamp(at, at + bytes.len() as u64);
            let (start, end) = (within(wanted.start), within(wanted.end));
            let part = &bytes[(start - at) as usize..(end - at) as usize];
            digest.update(part);
            file.write_all_at(part, start)?;
            at += bytes.len() as u64;
            Ok(())
        })?;
        Ok(Slot { run: self.mirror.run(), sha256: finish(digest) })
    }

    /// Makes the next look at an object ask the store, if this version is what is known of it.
    fn forget_version(&self, windows: &Arc<Windows>) {
        let id = id_of(&windows.bucket, &windows.key);
        let is_known = matches!(self.lock_known().peek(&*id),
            Some(Known::Object { object: Object { windows: Some(known), .. }, .. }) if Arc::ptr_eq(known, windows));
        if is_known {
            self.learn(&id, Known::Purged { at: SystemTime::now() });
        }
    }

    /// Makes a request, unless the store has just failed several times, and notes how it ends.
    fn guarded<T>(&self, request: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
        let lock = || self.breaker.lock().unwrap_or_else(PoisonError::into_inner);
        self.count(|counts| counts.requests += 1);
        if !lock().admits(Instant::now()) {
            self.count(|counts| counts.failures += 1);
            return Err(StoreError::Unavailable(String::new()));
        }
        let result = request();
        let endpoint = self.settings.endpoint();
        match &result {
            Err(StoreError::Unavailable(why)) => {
                self.count(|counts| counts.failures += 1);
                let pause = lock().failed(Instant::now(), self.random());
                self.report(&format!("object store {endpoint}: {why}"));
                if let Some(pause) = pause {
                    say!("object store {endpoint} fails: it is asked again in {:.1} s", pause.as_secs_f64());
                }
            }
            Err(StoreError::Refused(why, help)) => {
                self.count(|counts| counts.failures += 1);
                lock().succeeded();
                self.report(&format!("object store {endpoint}: {why}; {help}"));
            }
            _ if lock().succeeded() => say!("object store {endpoint} answers again"),
            _ => {}
        }
        result
    }

    fn may_ask(&self) -> bool {
        !self.breaker.lock().unwrap_or_else(PoisonError::into_inner).is_open(Instant::now())
    }

    fn random(&self) -> u64 {
        self.random.hash_one(Instant::now())
    }

    fn lifetime(&self, record: &ObjectRecord) -> Duration {
        lifetime(record.head.cache_control.as_deref(), self.settings.keys.revalidate)
    }

    /// Remembers an object as current for this long.
    fn keep(&self, (bucket, key, id): Of<'_>, name: &Name, record: &ObjectRecord, current_for: Duration) -> Object {
        let bytes = CString::new(name.bytes(record)).unwrap_or_default();
        let known = match self.lock_known().peek(id) {
            Some(Known::Object { object, .. }) if *object.bytes == bytes => object.windows.clone(),
            _ => None,
        };
        let windows = known.or_else(|| {
            let etag = record.head.etag.as_deref()?;
            let modified_ns = record.modified_seconds.map(|seconds| seconds.saturating_mul(1_000_000_000));
            let times_ns = (modified_ns.unwrap_or(record.created_ns), record.created_ns);
            Some(Arc::new(Windows::new(name.clone(), (bucket, key), etag, record.layout?, times_ns)))
        });
        let object = Object { bytes: Arc::new(bytes), head: Arc::new(record.head.clone()), windows };
        let until = Instant::now() + current_for;
        self.learn(id, Known::Object { object: object.clone(), until, name: name.clone(), was_used: false });
        object
    }

    /// Notes in the files which objects were used by this process.
    fn note_use(&self) {
        let used = |known: &mut Known| match known {
            Known::Object { name, was_used, .. } => std::mem::take(was_used).then(|| name.clone()),
            _ => None,
        };
        // The lock is not held during disk access.
        let used: Vec<Name> = self.lock_known().values_mut().filter_map(used).collect();
        used.iter().for_each(|name| self.mirror.used(name));
    }

    /// Reports a failure of the local copies.
    fn cannot_keep(&self, error: &io::Error) -> io::Error {
        let directory = self.settings.directory.display();
        self.report(&format!(
            "cannot keep objects in {directory}: {error}; the server's user must be able to write there"
        ));
        unavailable()
    }

    /// Reports a failure, unless it was reported a moment ago.
    fn report(&self, message: &str) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.retain(|_, at| at.elapsed() < SAID_AGAIN);
        // Clients choose which objects they ask for, and so how many messages there are.
        if said.len() < SAID_MAX && said.insert(message.to_owned(), Instant::now()).is_none() {
            say!("{message}");
        }
    }
}

/// Returns the ID of an object. A bucket has no slash in its name.
fn id_of(bucket: &str, key: &[u8]) -> Vec<u8> {
    [bucket.as_bytes(), b"/", key].concat()
}

/// Returns whether a 304 describes the stored object, as far as it says anything.
fn is_same(said: &Metadata, stored: &ObjectRecord) -> bool {
    fn agree<T: PartialEq>(said: &Option<T>, stored: &Option<T>) -> bool {
        said.is_none() || said == stored
    }
    agree(&said.modified_seconds, &stored.modified_seconds)
        && agree(&said.head.cache_control, &stored.head.cache_control)
        && agree(&said.head.etag, &stored.head.etag)
}

/// Returns how long ago this was, by the clock of the day. If that was set back, it is unknown, and very long.
fn age(at: SystemTime) -> Duration {
    at.elapsed().unwrap_or(Duration::MAX)
}

/// The error of a store that does not answer. No file of a local disk has it.
fn unavailable() -> io::Error {
    io::ErrorKind::HostUnreachable.into()
}

/// Returns whether this is the error of a store that does not answer.
pub fn is_unavailable(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::HostUnreachable
}

/// The content of a site.
#[derive(Clone, Debug)]
pub struct Bucket {
    store: Arc<ObjectStore>,
    location: Location,
}

impl Bucket {
    /// Returns this place in a store.
    pub fn new(store: Arc<ObjectStore>, location: Location) -> Bucket {
        Bucket { store, location }
    }

    fn key(&self, path: &[u8]) -> Vec<u8> {
        [self.location.prefix.as_bytes(), path].concat()
    }

    fn id(&self, path: &[u8]) -> Vec<u8> {
        id_of(&self.location.bucket, &self.key(path))
    }

    /// Opens the local copy of the object with this path below the prefix, and returns what the store says about it. An absence that is as
    /// old as `absent_for` is believed. If the store is asked for a large object, it sends the window that has the byte `from`.
    ///
    /// # Errors
    /// `WouldBlock`: the store must be asked, or the disk read, and `patience` forbids it. `NotFound`, `PermissionDenied`; one of
    /// [`is_unavailable`]; those of openat2(2).
    pub fn open(&self, path: &[u8], patience: Patience, absent_for: Duration, from: u64) -> io::Result<ObjectFile> {
        if path.is_empty() || path.ends_with(b"/") || path.contains(&0) || self.key(path).len() > KEY_MAX {
            return Err(io::ErrorKind::NotFound.into());
        }
        let (store, id) = (&*self.store, self.id(path));
        // The second time if it has just been evicted.
        for _ in 0..2 {
            let object = match store.current(&id, absent_for) {
                Some(current) => current?,
                None if patience == Patience::Now => return Err(io::ErrorKind::WouldBlock.into()),
                None => store.fetch((&self.location.bucket, &self.key(path), &id), absent_for, from)?,
            };
            let Object { bytes, head, windows } = object;
            let opened = match &windows {
                Some(_) => store.mirror.open_windows(&bytes, patience),
                None => store.mirror.open_bytes(&bytes, patience),
            };
            match opened {
                Ok(file) => {
                    let orphaned = AtomicU64::new(0);
                    let windows =
                        windows.map(|windows| ObjectWindows { store: Arc::clone(&self.store), windows, orphaned });
                    return Ok(ObjectFile { file, head, windows });
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    store.lock_known().remove(&*id);
                }
                Err(error) => return Err(error),
            }
        }
        Err(if patience == Patience::Now { io::ErrorKind::WouldBlock.into() } else { unavailable() })
    }

    /// Returns the version of a directory, if keys begin with this path, which is empty or ends in a slash.
    ///
    /// # Errors
    /// As for [`open`](Bucket::open).
    pub fn prefix(&self, path: &[u8], patience: Patience) -> io::Result<Option<FileVersion>> {
        let id = self.prefix_id(path);
        match self.store.lock_known().get(&*id) {
            Some(Known::Prefix { version, since }) if since.elapsed() < self.store.settings.keys.revalidate => {
                return Ok(Some(*version));
            }
            Some(Known::Absent { since }) if since.elapsed() < ABSENT => return Ok(None),
            _ => {}
        }
        if patience == Patience::Now {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let page = self.page(path, 1, None)?;
        let since = Instant::now();
        // The root exists, even if it is empty.
        let exists = path.is_empty() || !page.objects.is_empty() || !page.prefixes.is_empty();
        let now_ns = i64::try_from(clock::since_1970().as_nanos()).unwrap_or(i64::MAX);
        let version = FileVersion { mtime_ns: now_ns, ctime_ns: now_ns, ..FileVersion::default() };
        self.store.learn(&id, if exists { Known::Prefix { version, since } } else { Known::Absent { since } });
        Ok(exists.then_some(version))
    }

    /// The ID of a directory differs from that of any object, whose key does not end in a slash here.
    fn prefix_id(&self, path: &[u8]) -> Vec<u8> {
        [&*self.id(path), b"/"].concat()
    }

    /// Lists what is directly below this path, which is empty or ends in a slash. Asks the store.
    ///
    /// # Errors
    /// As for [`open`](Bucket::open).
    pub fn list(&self, path: &[u8]) -> io::Result<Vec<Entry>> {
        let (mut entries, mut token) = (Vec::new(), None);
        let own = self.key(path).len();
        for number in 1.. {
            let page = self.page(path, PAGE_KEYS, token.as_deref())?;
            let objects = page.objects.iter().map(|object| (&object.key, false, object.size, object.modified_seconds));
            let prefixes = page.prefixes.iter().map(|prefix| (prefix, true, 0, 0));
            for (key, is_directory, size, modified_seconds) in objects.chain(prefixes) {
                let name = key.get(own..).unwrap_or_default();
                let name = if is_directory { name.strip_suffix(b"/").unwrap_or(name) } else { name };
                // No URL path has such names; an empty one is that of the directory itself.
                if !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') {
                    entries.push(Entry { name: name.to_vec(), is_directory, size, modified_seconds });
                }
            }
            token = page.next;
            if token.is_none() {
                break;
            }
            if number == PAGES_MAX {
                let path = String::from_utf8_lossy(path);
                self.store.report(&format!("the listing of /{path} ends after {} keys", PAGES_MAX * PAGE_KEYS));
                break;
            }
        }
        Ok(entries)
    }

    /// Returns the names directly below a directory that begin with `start`, up to a page of them. Asks the store.
    ///
    /// # Errors
    /// As for [`open`](Bucket::open).
    pub fn names(&self, folder: &[u8], start: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let own = self.key(folder).len();
        let page = self.page(&[folder, start].concat(), PAGE_KEYS, None)?;
        Ok(page.objects.iter().filter_map(|object| Some(object.key.get(own..)?.to_vec())).collect())
    }

    fn page(&self, path: &[u8], max: usize, token: Option<&str>) -> io::Result<Page> {
        let (store, bucket) = (&*self.store, &*self.location.bucket);
        match store.guarded(|| store.client.list(bucket, &self.key(path), max, token)) {
            Ok(page) => Ok(page),
            Err(StoreError::Denied) => {
                store.report(&format!(
                    "the store denies listing {bucket}: allow it (s3:ListBucket), or set `listing = false`"
                ));
                Err(io::ErrorKind::PermissionDenied.into())
            }
            Err(_) => Err(unavailable()),
        }
    }

    /// Makes the next look at this path ask the store.
    pub fn purge(&self, path: &[u8]) {
        let at = SystemTime::now();
        self.store.learn(&self.id(path), Known::Purged { at });
        self.store.learn(&self.prefix_id(path), Known::Purged { at });
    }

    /// Tries the bucket: lists a key, or else looks for an index page. Returns what to say about it. A store that cannot be reached is
    /// no error: it may be down now, and the server can serve its local copies.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub fn check(settings: &Arc<StoreSettings>, location: &Location) -> Result<String, (String, String)> {
        let client = Client::new(Arc::clone(settings));
        let Location { bucket, prefix } = location;
        let shown = format!("bucket {bucket} at {}", settings.endpoint());
        let index = format!("{prefix}index.html");
        let (denied, listed) = match client.list(bucket, prefix.as_bytes(), 1, None) {
            Err(StoreError::Denied) => (true, client.get(bucket, index.as_bytes(), &Wanted::default()).map(|_| true)),
            listed => (false, listed.map(|page| !page.objects.is_empty() || !page.prefixes.is_empty())),
        };
        match listed {
            Ok(_) | Err(StoreError::Absent) if denied => Ok(format!(
                "warning: {shown}: objects can be read, but not listed (s3:ListBucket): directories are not found, and requests for \
                 missing objects may get 403\n"
            )),
            Ok(true) => Ok(format!("{shown}: ok\n")),
            Ok(false) => Ok(format!("warning: {shown}: no key begins with {prefix:?}\n")),
            Err(StoreError::Unavailable(why)) => Ok(format!("warning: cannot reach {shown}: {why}\n")),
            Err(StoreError::Refused(why, help)) => Err((format!("cannot use {shown}: {why}"), help)),
            Err(
                StoreError::Absent
                | StoreError::Denied
                | StoreError::Replaced
                | StoreError::TooLarge(_)
                | StoreError::Full
                | StoreError::Local(_),
            ) => {
                let help = match settings.credentials {
                    None => {
                        "set `credentials`, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; or let everybody read the bucket"
                    }
                    Some(_) => "allow these credentials s3:GetObject and s3:ListBucket",
                };
                Err((format!("the store denies access to {shown}"), help.to_owned()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_metadata_of_the_same_bytes_are_noticed() {
        let head = ObjectHead { cache_control: Some("max-age=1".into()), ..ObjectHead::default() };
        let modified_seconds = Some(5);
        let (of, sha256) = (String::new(), String::new());
        let (layout, created_ns) = (None, 0);
        let record =
            ObjectRecord { of, size: 0, sha256, run: 0, layout, created_ns, head: head.clone(), modified_seconds };
        let said = Metadata { head, modified_seconds };
        assert!(is_same(&said, &record) && is_same(&Metadata::default(), &record));
        assert!(!is_same(&Metadata { modified_seconds: Some(6), ..said.clone() }, &record));
        let head = ObjectHead { cache_control: Some("max-age=2".into()), ..ObjectHead::default() };
        assert!(!is_same(&Metadata { head, ..said }, &record));
    }
}
