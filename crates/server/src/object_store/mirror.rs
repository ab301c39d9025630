//! The local copies of objects: a directory that survives the server, and that processes share.
//!
//! An object is two files. `NAME`, the *record*, describes it and names the other one, `NAME.DIGEST`, which has its bytes. NAME is
//! a hash of the store, the bucket and the key, so that any key is possible, whatever file systems allow. Bytes never
//! change under their name; the record is replaced by renaming, which is the moment at which the new version replaces
//! the old one. Its modification time is when the store last said that it is current, its access time when it was last
//! used, which eviction clears (CLOCK's reference bit).
//!
//! Who changes an object holds its *claim*: a lock on `NAME.lock`, which the kernel releases when its process dies. New bytes are written to
//! `NAME.part`. So a crash leaves at most such files, and bytes without a record, which are removed at the next start.
//!
//! A large object is there in part: its file (`layout`) has the windows that were asked for, and its record comes with the first of
//! them. A missing window is filled in place, by the holder of the lock on `NAME.wNUMBER`.
//!
//! All names together never have more bytes than configured. An evicted object that a response has open stays on the disk
//! until the response ends; its bytes are not counted. A window that is added to such a file is counted, and the file
//! with it ([`Mirror::fill`]).

use std::ffi::CStr;
use std::fs::{self, File, FileTimes, TryLockError};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use amped_core::file::ObjectHead;
use amped_core::forms::is_value;
use amped_sys::file::{self, Patience};
use amped_sys::words::Words;
use aws_lc_rs::digest::{Context, SHA256, digest};
use serde::{Deserialize, Serialize};

use super::layout::{Layout, Slot, length};
use super::sign::hex;
use crate::clock;

/// The local copies of objects.
#[derive(Debug)]
pub struct Mirror {
    path: PathBuf,
    folder: Arc<OwnedFd>,
    bytes_max: u64,
    /// Shared by all processes of the server: [`BYTES`] and [`HAND`].
    words: Words,
    /// The number of this run of the server: what it has not written itself, it verifies before use.
    run: u64,
}

/// The bytes of all objects, with those that are being written.
const BYTES: usize = 0;

/// Where eviction continues: the first 16 digits of a name.
const HAND: usize = 1;

/// What a file takes beyond its bytes.
const PAGE: u64 = 4096;

/// Describes an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectRecord {
    /// The bucket and the key, for people.
    pub of: String,
    /// Bytes.
    pub size: u64,
    /// SHA-256 of the bytes, in hexadecimal; of a large object, whose bytes are not all known, another unique number.
    pub sha256: String,
    /// The run of the server that wrote or verified the bytes; that of a large object is in its slots.
    pub run: u64,
    /// How a large object is kept; `None`: it is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
    /// When the record of a new version was written, nanoseconds since 1970.
    #[serde(default)]
    pub created_ns: i64,
    /// What the store says about it.
    pub head: ObjectHead,
    /// Last-Modified, seconds since 1970.
    pub modified_seconds: Option<i64>,
}

/// The name of an object's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(String);

impl ObjectRecord {
    /// Returns the length of the file with the bytes.
    fn file_bytes(&self) -> u64 {
        self.layout.map_or(self.size, |layout| layout.file_bytes())
    }

    /// Returns the bytes in use of that file.
    fn occupied(&self, file: &File) -> io::Result<u64> {
        match &self.layout {
            Some(layout) => layout.occupied(file),
            None => Ok(file.metadata()?.len()),
        }
    }
}

/// Digits of a name, and of a digest in the name of bytes.
const NAME_DIGITS: usize = 32;

impl Name {
    /// Returns the name of this object.
    pub fn of(endpoint: &str, bucket: &str, key: &[u8]) -> Name {
        let text = [endpoint.as_bytes(), b"\n", bucket.as_bytes(), b"\n", key].concat();
        let mut name = hex(digest(&SHA256, &text).as_ref());
        name.truncate(NAME_DIGITS);
        Name(name)
    }

    /// Returns the name of the file with the bytes of this record.
    pub fn bytes(&self, record: &ObjectRecord) -> String {
        format!("{}.{}", self.0, record.sha256.get(..NAME_DIGITS).unwrap_or_default())
    }
}

impl Mirror {
    /// Opens a directory: removes what a crash left, and counts the rest.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub fn open(path: &Path, bytes_max: u64, run: u64) -> io::Result<Mirror> {
        let folder = Arc::new(file::open_root(path, Patience::Wait)?);
        let mirror = Mirror { path: path.to_owned(), folder, bytes_max, words: Words::new(2)?, run };
        mirror.clean()?;
        Ok(mirror)
    }

    /// Returns the number of this run of the server.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// Returns the directory.
    pub fn folder(&self) -> &Arc<OwnedFd> {
        &self.folder
    }

    /// Opens bytes.
    ///
    /// # Errors
    /// Those of openat2(2); `WouldBlock` if that would wait and may not.
    pub fn open_bytes(&self, name: &CStr, patience: Patience) -> io::Result<OwnedFd> {
        file::open_beneath(self.folder.as_fd(), name, patience)
    }

    /// Opens the file of a large object, so that missing windows can be filled.
    ///
    /// # Errors
    /// Those of [`open_bytes`](Mirror::open_bytes).
    pub fn open_windows(&self, name: &CStr, patience: Patience) -> io::Result<OwnedFd> {
        file::open_beneath_for_update(self.folder.as_fd(), name, patience)
    }

    /// Waits until no other thread or process changes this object, and claims it.
    ///
    /// # Errors
    /// Those of open(2) and flock(2).
    pub fn claim(&self, name: &Name) -> io::Result<Claim<'_>> {
        loop {
            if let Some(claim) = self.claimed(name, |file| file.lock().map(|()| true))? {
                return Ok(claim);
            }
        }
    }

    /// Locks the file of a claim; `None`: its holder has just removed it, or `lock` returns false.
    fn claimed(&self, name: &Name, lock: impl FnOnce(&File) -> io::Result<bool>) -> io::Result<Option<Claim<'_>>> {
        let lock = self.locked(&self.path.join(format!("{}.lock", name.0)), lock)?;
        Ok(lock.map(|lock| Claim { mirror: self, name: name.clone(), part: None, _lock: lock }))
    }

    /// Creates a file and locks it; `None`: another holder of the lock has just removed it, or `lock` returns false.
    fn locked(&self, path: &Path, lock: impl FnOnce(&File) -> io::Result<bool>) -> io::Result<Option<File>> {
        let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        if !lock(&file)? {
            return Ok(None);
        }
        let inode = |status: fs::Metadata| (status.dev(), status.ino());
        let is_it =
            fs::symlink_metadata(path).is_ok_and(|found| file.metadata().is_ok_and(|own| inode(found) == inode(own)));
        Ok(is_it.then_some(file))
    }

    fn try_claim(&self, name: &Name) -> io::Result<Option<Claim<'_>>> {
        self.claimed(name, try_lock)
    }

    /// Waits until no other thread or process fills this window of an object, and claims it.
    ///
    /// # Errors
    /// Those of [`claim`](Mirror::claim).
    pub fn claim_window(&self, name: &Name, window: u64) -> io::Result<WindowClaim> {
        let path = self.path.join(format!("{}.w{window}", name.0));
        loop {
            if let Some(lock) = self.locked(&path, |file| file.lock().map(|()| true))? {
                return Ok(WindowClaim { path, _lock: lock });
            }
        }
    }

    /// Removes what a crash left, and counts the bytes of the objects.
    fn clean(&self) -> io::Result<()> {
        let (mut bytes, mut files) = (0, Vec::new());
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            files.extend(name.into_string().ok().filter(|name| is_ours(name)));
        }
        for file in &files {
            let Some((start, ending)) = file.split_once('.') else { continue };
            let (name, path) = (Name(start.to_owned()), self.path.join(file));
            let named =
                || self.read(&name).map(|(record, _)| record).filter(|record| record.sha256.starts_with(ending));
            let is_named = || named().is_some();
            if is_window_lock(ending) {
                if let Some(lock) = self.locked(&path, try_lock)? {
                    drop(WindowClaim { path, _lock: lock });
                }
            } else if let Some(record) = named() {
                bytes += self.count_file(&name, &record, &path).unwrap_or(0);
            } else if let Some(_claim) = self.try_claim(&name)?
                && !is_named()
            {
                // Nobody is at work: neither this server nor one that it replaces.
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        self.words.all()[BYTES].store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the bytes in use of a file. A window that was being filled when the server was killed is removed from it.
    fn count_file(&self, name: &Name, record: &ObjectRecord, path: &Path) -> io::Result<u64> {
        let Some(layout) = &record.layout else { return Ok(path.metadata()?.len()) };
        let file = File::options().read(true).write(true).open(path)?;
        let occupied = layout.occupied(&file)?;
        if file.metadata()?.blocks() * 512 > occupied.next_multiple_of(PAGE) + PAGE {
            for window in 0..layout.windows() {
                let path = self.path.join(format!("{}.w{window}", name.0));
                if layout.slot(&file, window)?.is_none()
                    && let Some(lock) = self.locked(&path, try_lock)?
                {
                    let _claim = WindowClaim { path, _lock: lock };
                    // Where files have no holes, it is overwritten when it is asked for.
                    let _ = layout.clear(&file, window);
                }
            }
        }
        Ok(occupied)
    }

    /// Returns the record of an object, and when the store last said that it is current.
    pub fn read(&self, name: &Name) -> Option<(ObjectRecord, SystemTime)> {
        let mut file = File::open(self.path.join(&name.0)).ok()?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).ok()?;
        let record: ObjectRecord = serde_json::from_slice(&text).ok()?;
        // Whatever is in the file: no client gets a field that is none.
        let ObjectHead { etag, media_type, encoding, cache_control } = &record.head;
        let is_sound = [etag, media_type, encoding, cache_control].into_iter().flatten().all(|value| is_value(value));
        let has_layout = record.layout.is_none_or(|layout| {
            layout.size == record.size && layout.is_sound() && etag.as_deref().is_some_and(is_strong)
        });
        (is_sound && has_layout).then_some((record, file.metadata().ok()?.modified().ok()?))
    }

    /// Notes that an object was used.
    pub fn used(&self, name: &Name) {
        // Without it the object is only evicted sooner.
        let _ = self.stamp(name, FileTimes::new().set_accessed(SystemTime::now()));
    }

    fn stamp(&self, name: &Name, times: FileTimes) -> io::Result<()> {
        File::open(self.path.join(&name.0))?.set_times(times)
    }

    /// Removes objects until there is room (CLOCK): each that was not used since the hand passed last. `used` notes what this process has
    /// used. An object that is being changed is passed over, and so is `spared`. Returns how many were removed.
    ///
    /// # Errors
    /// The directory cannot be read.
    fn make_room(&self, used: impl FnOnce(), spared: Option<&Name>) -> io::Result<u64> {
        if self.bytes() <= self.bytes_max {
            return Ok(0);
        }
        let hand = self.hand()?;
        if self.bytes() <= self.bytes_max {
            // Another thread or process has made room.
            return Ok(0);
        }
        used();
        let mut names: Vec<Name> = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name().into_string();
            names.extend(name.ok().filter(|name| is_ours(name) && !name.contains('.')).map(Name));
        }
        names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let position = self.words.all()[HAND].load(Ordering::Relaxed);
        let start = names.partition_point(|name| place(name) <= position);
        // A little more, so that the directory is not read again for the next object.
        let target = self.bytes_max - self.bytes_max / 16;
        let mut removed = 0;
        // The first round clears what was used, so that the second one finds enough.
        for name in names.iter().cycle().skip(start).take(2 * names.len()) {
            if self.bytes() <= target {
                break;
            }
            self.words.all()[HAND].store(place(name), Ordering::Relaxed);
            let path = self.path.join(&name.0);
            let Ok(accessed) = path.metadata().and_then(|status| status.accessed()) else { continue };
            if accessed > SystemTime::UNIX_EPOCH {
                let _ = self.stamp(name, FileTimes::new().set_accessed(SystemTime::UNIX_EPOCH));
            } else if Some(name) != spared
                && let Some(claim) = self.try_claim(name)?
            {
                claim.remove_with(&hand)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Waits until no other thread or process removes an object, or completes a window.
    fn hand(&self) -> io::Result<Hand> {
        let folder = File::open(&self.path)?;
        folder.lock()?;
        Ok(Hand(folder))
    }

    /// Removes bytes, and no longer counts them.
    fn remove_bytes(&self, path: &Path, record: &ObjectRecord, _hand: &Hand) -> io::Result<()> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        fs::remove_file(path)?;
        self.count(0, record.occupied(&file).unwrap_or(0));
        Ok(())
    }

    /// Counts bytes that are about to be written, and makes room for them: `used` notes what this process has used. Returns how many
    /// objects were removed for them, or `None` if there is no room, because others are being written. They are counted in any case.
    fn reserve(&self, bytes: u64, used: impl FnOnce(), spared: &Name) -> io::Result<Option<u64>> {
        self.count(bytes, 0);
        let removed = self.make_room(used, Some(spared))?;
        Ok((self.bytes() <= self.bytes_max).then_some(removed))
    }

    /// Fills a window of a large object: `write` writes its bytes, and returns their SHA-256. The caller has claimed it, and it is missing.
    /// Returns how many objects were removed for it.
    ///
    /// If the object has been evicted meanwhile, its file gets the window all the same, for the responses that have it open. Such a file
    /// is counted from then on, in `orphaned`, until [`release`](Mirror::release).
    ///
    /// # Errors
    /// That of `write`; `full()` if there is no room. Then the window is still missing, and takes no space.
    pub fn fill<E: From<io::Error>>(
        &self,
        (name, layout, file): (&Name, &Layout, &File),
        window: u64,
        orphaned: &AtomicU64,
        used: impl FnOnce(),
        full: impl FnOnce() -> E,
        write: impl FnOnce() -> Result<Slot, E>,
    ) -> Result<u64, E> {
        let bytes = length(&layout.range(window));
        self.adopt(file, layout, orphaned)?;
        let filled = match self.reserve(bytes, used, name) {
            Ok(Some(removed)) => write().map(|slot| (removed, slot)),
            Ok(None) => Err(full()),
            Err(error) => Err(error.into()),
        };
        match filled {
            Ok((removed, slot)) => match self.complete((layout, file), window, &slot, orphaned) {
                Ok(()) => Ok(removed),
                Err(error) => {
                    // Its bytes stay: its slot may have been written.
                    self.count(0, bytes);
                    Err(error.into())
                }
            },
            Err(error) => {
                // Where files have no holes, what there is of it is overwritten next time.
                let _ = layout.clear(file, window);
                self.count(0, bytes);
                Err(error)
            }
        }
    }

    /// Makes a window be there whose bytes were written and counted.
    fn complete(
        &self,
        (layout, file): (&Layout, &File),
        window: u64,
        slot: &Slot,
        orphaned: &AtomicU64,
    ) -> io::Result<()> {
        // A removal of the object is either over now, or finds the slot.
        let _hand = self.hand()?;
        self.adopt(file, layout, orphaned)?;
        let is_orphaned = file.metadata()?.nlink() == 0;
        layout.put_slot(file, window, Some(slot))?;
        if is_orphaned {
            orphaned.fetch_add(length(&layout.range(window)), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Counts the bytes of a file without a name, once.
    fn adopt(&self, file: &File, layout: &Layout, orphaned: &AtomicU64) -> io::Result<()> {
        if orphaned.load(Ordering::Relaxed) == 0 && file.metadata()?.nlink() == 0 {
            let bytes = layout.occupied(file)?;
            // Unless another thread has just done so.
            if orphaned.compare_exchange(0, bytes, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                self.count(bytes, 0);
            }
        }
        Ok(())
    }

    /// Makes a window missing whose bytes do not fit its slot. The caller has claimed it.
    ///
    /// # Errors
    /// Those of pwrite(2).
    pub fn empty(&self, layout: &Layout, file: &File, window: u64) -> io::Result<()> {
        let _hand = self.hand()?;
        layout.put_slot(file, window, None)?;
        let _ = layout.clear(file, window);
        // A file without a name is counted as it was.
        if file.metadata()?.nlink() > 0 {
            self.count(0, length(&layout.range(window)));
        }
        Ok(())
    }

    /// No longer counts a file without a name: this process has closed it.
    pub fn release(&self, orphaned: u64) {
        self.count(0, orphaned);
    }

    fn count(&self, added: u64, removed: u64) {
        let word = &self.words.all()[BYTES];
        let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bytes| {
            Some(bytes.saturating_add(added).saturating_sub(removed))
        });
    }

    /// Returns the bytes of all objects, with those that are being written.
    pub fn bytes(&self) -> u64 {
        self.words.all()[BYTES].load(Ordering::Relaxed)
    }
}

fn place(name: &Name) -> u64 {
    u64::from_str_radix(&name.0[..16], 16).unwrap_or(0)
}

/// Returns whether this is the name of a file of ours: others are left alone.
fn is_ours(name: &str) -> bool {
    let (start, ending) = name.split_once('.').unwrap_or((name, "part"));
    let is_hex = |text: &str| text.len() == NAME_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex(start) && (matches!(ending, "lock" | "part" | "new") || is_hex(ending) || is_window_lock(ending))
}

/// Returns whether this entity tag identifies bytes (RFC 9110, 8.8.1).
pub fn is_strong(etag: &str) -> bool {
    etag.starts_with('"')
}

/// Returns whether this is the ending of the lock of a window.
fn is_window_lock(ending: &str) -> bool {
    ending.strip_prefix('w').is_some_and(|number| number.parse::<u64>().is_ok())
}

fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The right to remove objects, and to complete windows.
struct Hand(#[expect(dead_code, reason = "its lock is held")] File);

/// The right to fill a window, until it is dropped.
#[derive(Debug)]
pub struct WindowClaim {
    path: PathBuf,
    _lock: File,
}

impl Drop for WindowClaim {
    fn drop(&mut self) {
        // While it is locked, as that of a claim.
        let _ = fs::remove_file(&self.path);
    }
}

/// The right to change an object, until it is dropped.
pub struct Claim<'a> {
    mirror: &'a Mirror,
    name: Name,
    part: Option<Part>,
    _lock: File,
}

/// Bytes of a new version.
struct Part {
    file: File,
    digest: Context,
    size: u64,
    /// How it is kept, if it is large: then its first window is written by [`Claim::file`].
    layout: Option<Layout>,
    /// Bytes that are counted for it.
    reserved: u64,
}

impl Claim<'_> {
    /// Returns the record of the object and when it was last known to be current, if its bytes are complete and correct.
    pub fn stored(&self) -> Option<(ObjectRecord, SystemTime)> {
        let (mut record, current) = self.mirror.read(&self.name)?;
        let file = File::open(self.bytes_of(&record)).ok()?;
        if file.metadata().ok()?.len() != record.file_bytes() {
            return None;
        }
        // The windows of a large object are verified one by one.
        if record.layout.is_none() && record.run != self.mirror.run {
            // Written before a restart: the machine may have lost what was not on the disk yet.
            if sha256(file).ok()? != record.sha256 {
                return None;
            }
            record.run = self.mirror.run;
            self.write_record(&record, current).ok()?;
        }
        Some((record, current))
    }

    /// Begins a new version of this length, as far as that is known, instead of one that was begun before, after making room for it:
    /// `used` notes what this process has used. Returns how many objects were removed for it, or `None` if there is no room, because
    /// others are being written.
    ///
    /// # Errors
    /// Those of open(2); the directory cannot be read.
    pub fn begin(&mut self, length: u64, used: impl FnOnce()) -> io::Result<Option<u64>> {
        self.begin_part(length, None, used)
    }

    /// Begins a new version of a large object, of which this window is written first, into [`file`](Claim::file). Otherwise as
    /// [`begin`](Claim::begin).
    ///
    /// # Errors
    /// As there; those of ftruncate(2).
    pub fn begin_windows(&mut self, layout: Layout, window: u64, used: impl FnOnce()) -> io::Result<Option<u64>> {
        let bytes = layout.slots_bytes() + length(&layout.range(window));
        self.begin_part(bytes, Some(layout), used)
    }

    fn begin_part(&mut self, bytes: u64, layout: Option<Layout>, used: impl FnOnce()) -> io::Result<Option<u64>> {
        self.discard();
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(self.file_name("part"))?;
        if let Some(layout) = layout {
            file.set_len(layout.file_bytes())?;
        }
        self.part = Some(Part { file, digest: Context::new(&SHA256), size: 0, layout, reserved: bytes });
        self.mirror.reserve(bytes, used, &self.name)
    }

    /// Returns the file of the new version.
    pub fn file(&self) -> Option<&File> {
        Some(&self.part.as_ref()?.file)
    }

    fn discard(&mut self) {
        if let Some(part) = self.part.take() {
            let _ = fs::remove_file(self.file_name("part"));
            self.mirror.count(0, part.reserved);
        }
    }

    /// Adds bytes to it.
    ///
    /// # Errors
    /// Those of write(2).
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let part = self.part.as_mut().ok_or(io::ErrorKind::NotFound)?;
        part.file.write_all(bytes)?;
        part.digest.update(bytes);
        part.size += bytes.len() as u64;
        if let Some(more) = part.size.checked_sub(part.reserved) {
            self.mirror.count(more, 0);
            part.reserved = part.size;
        }
        Ok(())
    }

    /// Replaces the object by it: it is complete, or has its first window, and is current now.
    ///
    /// # Errors
    /// A file cannot be written or renamed; the old version stays.
    pub fn commit(&mut self, of: String, head: ObjectHead, modified_seconds: Option<i64>) -> io::Result<ObjectRecord> {
        let part = self.part.take().ok_or(io::ErrorKind::NotFound)?;
        let reserved = part.reserved;
        self.install(part, of, head, modified_seconds).inspect_err(|_| {
            let _ = fs::remove_file(self.file_name("part"));
            self.mirror.count(0, reserved);
        })
    }

    fn install(
        &self,
        part: Part,
        of: String,
        head: ObjectHead,
        modified_seconds: Option<i64>,
    ) -> io::Result<ObjectRecord> {
        let Part { file, digest, size, layout, .. } = part;
        let old = self.mirror.read(&self.name).map(|(record, _)| record);
        let created_ns = i64::try_from(clock::since_1970().as_nanos()).unwrap_or(i64::MAX);
        let (size, sha256) = match layout {
            None => (size, hex(digest.finish().as_ref())),
            // Unique, as its bytes are not known: another version gets another file.
            Some(layout) => {
                let text = format!("{} {created_ns} {:?} {}", self.mirror.run, head.etag, file.metadata()?.ino());
                (layout.size, hex(self::digest(&SHA256, text.as_bytes()).as_ref()))
            }
        };
        let record =
            ObjectRecord { of, size, sha256, run: self.mirror.run, layout, created_ns, head, modified_seconds };
        let modified = modified_seconds.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
        if let Some(modified) = modified.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since)) {
            file.set_times(FileTimes::new().set_modified(modified))?;
        }
        let bytes = self.bytes_of(&record);
        let replaced = match &old {
            // The same bytes, whose file is replaced.
            Some(old) if self.bytes_of(old) == bytes => bytes.metadata().map_or(0, |status| status.len()),
            _ => 0,
        };
        // From now on they are bytes without a record, until that is written.
        fs::rename(self.file_name("part"), &bytes)?;
        self.write_record(&record, SystemTime::now())?;
        self.mirror.count(0, replaced);
        if let Some(old) = old
            && self.bytes_of(&old) != bytes
        {
            let hand = self.mirror.hand()?;
            let _ = self.mirror.remove_bytes(&self.bytes_of(&old), &old, &hand);
        }
        Ok(record)
    }

    /// Notes that the store has just said that the object is current.
    ///
    /// # Errors
    /// Those of utimensat(2).
    pub fn confirm(&self) -> io::Result<()> {
        let now = SystemTime::now();
        self.mirror.stamp(&self.name, FileTimes::new().set_accessed(now).set_modified(now))
    }

    /// Removes the object. Responses that have it open continue.
    ///
    /// # Errors
    /// Those of unlink(2).
    pub fn remove(&self) -> io::Result<()> {
        self.remove_with(&self.mirror.hand()?)
    }

    fn remove_with(&self, hand: &Hand) -> io::Result<()> {
        let stored = self.mirror.read(&self.name);
        match fs::remove_file(self.mirror.path.join(&self.name.0)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        match stored {
            Some((record, _)) => self.mirror.remove_bytes(&self.bytes_of(&record), &record, hand),
            None => Ok(()),
        }
    }

    fn bytes_of(&self, record: &ObjectRecord) -> PathBuf {
        self.mirror.path.join(self.name.bytes(record))
    }

    fn file_name(&self, ending: &str) -> PathBuf {
        self.mirror.path.join(format!("{}.{ending}", self.name.0))
    }

    fn write_record(&self, record: &ObjectRecord, current: SystemTime) -> io::Result<()> {
        let new = self.file_name("new");
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        file.set_times(FileTimes::new().set_accessed(SystemTime::now()).set_modified(current))?;
        fs::rename(&new, self.mirror.path.join(&self.name.0))
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.discard();
        // While it is locked: a thread that waits for the lock then finds that the file is gone.
        let _ = fs::remove_file(self.file_name("lock"));
    }
}

fn sha256(mut file: File) -> io::Result<String> {
    let (mut digest, mut buffer) = (Context::new(&SHA256), vec![0; 64 * 1024]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(digest.finish().as_ref())),
            count => digest.update(&buffer[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    fn name(key: &str) -> Name {
        Name::of("http://store", "bucket", key.as_bytes())
    }

    fn put(mirror: &Mirror, key: &str, bytes: &[u8]) -> ObjectRecord {
        let mut claim = mirror.claim(&name(key)).unwrap();
        claim.begin(0, || {}).unwrap();
        claim.write(bytes).unwrap();
        claim.commit(key.to_owned(), ObjectHead::default(), Some(1000)).unwrap()
    }

    fn stored(mirror: &Mirror, key: &str) -> Option<ObjectRecord> {
        mirror.claim(&name(key)).unwrap().stored().map(|(record, _)| record)
    }

    fn files(folder: &tempfile::TempDir) -> usize {
        fs::read_dir(folder.path()).unwrap().count()
    }

    #[test]
    fn object_survives_restart_and_damage_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let mirror = Mirror::open(folder.path(), 1000, 1).unwrap();
        let first = put(&mirror, "a", b"one");
        assert_eq!(stored(&mirror, "a"), Some(first.clone()));
        let second = put(&mirror, "a", b"three");
        assert_eq!((files(&folder), mirror.bytes()), (2, 5));
        let bytes = folder.path().join(name("a").bytes(&second));
        assert_eq!(bytes.metadata().unwrap().mtime(), 1000);
        let mirror = Mirror::open(folder.path(), 1000, 2).unwrap();
        assert_eq!(mirror.bytes(), 5);
        assert_eq!(stored(&mirror, "a"), Some(ObjectRecord { run: 2, ..second }));
        // A change of equal length, while the server was stopped.
        fs::write(&bytes, b"thrEe").unwrap();
        assert!(stored(&Mirror::open(folder.path(), 1000, 3).unwrap(), "a").is_none());
        fs::write(&bytes, b"thre").unwrap();
        assert!(stored(&mirror, "a").is_none());
        fs::write(&bytes, b"three").unwrap();
        let record = folder.path().join(&name("a").0);
        let text = fs::read_to_string(&record).unwrap();
        fs::write(&record, text.replace("\"etag\":null", "\"etag\":\"\\r\\nX: y\"")).unwrap();
        assert!(stored(&mirror, "a").is_none());
        fs::write(&record, text).unwrap();
        assert!(stored(&mirror, "a").is_some());
        assert_eq!(files(&folder), 2);
    }

    #[test]
    fn remains_of_crash_are_removed_at_start_and_other_files_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mirror = Mirror::open(folder.path(), 1000, 1).unwrap();
        put(&mirror, "a", b"one");
        let (a, b) = (name("a").0, name("b").0);
        // Killed while writing bytes, before and after the record of a new version, and before it was renamed.
        for left in
            [format!("{b}.lock"), format!("{b}.part"), format!("{b}.{a}"), format!("{a}.{b}"), format!("{a}.new")]
        {
            fs::write(at(&left), "half").unwrap();
        }
        fs::write(at("notes.txt"), "mine").unwrap();
        let busy = mirror.claim(&name("c")).unwrap();
        let next = Mirror::open(folder.path(), 1000, 2).unwrap();
        assert_eq!((files(&folder), next.bytes()), (4, 3));
        assert!(at("notes.txt").exists() && busy.file_name("lock").exists());
        drop(busy);
        assert_eq!(files(&folder), 3);
        assert!(stored(&next, "a").is_some());
    }

    #[test]
    fn dropped_claim_leaves_old_version() {
        let folder = tempfile::tempdir().unwrap();
        let mirror = Mirror::open(folder.path(), 1000, 1).unwrap();
        let record = put(&mirror, "a", b"one");
        let mut claim = mirror.claim(&name("a")).unwrap();
        for half in [b"half of th".as_slice(), b"ha"] {
            claim.begin(0, || {}).unwrap();
            claim.write(half).unwrap();
        }
        drop(claim);
        assert_eq!((stored(&mirror, "a"), files(&folder)), (Some(record), 2));
        mirror.claim(&name("a")).unwrap().remove().unwrap();
        assert_eq!((stored(&mirror, "a"), files(&folder), mirror.bytes()), (None, 0, 0));
    }

    #[test]
    fn one_of_many_claims_an_object_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let mirror = Mirror::open(folder.path(), 1000, 1).unwrap();
        let (fetched, at_once) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut claim = mirror.claim(&name("a")).unwrap();
                    assert_eq!(at_once.fetch_add(1, Ordering::SeqCst), 0);
                    if claim.stored().is_none() {
                        fetched.fetch_add(1, Ordering::SeqCst);
                        claim.begin(0, || {}).unwrap();
                        claim.write(b"one").unwrap();
                        at_once.fetch_sub(1, Ordering::SeqCst);
                        claim.commit("a".to_owned(), ObjectHead::default(), None).unwrap();
                    } else {
                        at_once.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!((fetched.into_inner(), files(&folder)), (1, 2));
    }

    #[test]
    fn eviction_spares_what_was_used_and_what_is_being_changed() {
        let folder = tempfile::tempdir().unwrap();
        let mirror = Mirror::open(folder.path(), 16 * 100, 1).unwrap();
        for n in 0..16 {
            put(&mirror, &n.to_string(), &[n; 100]);
        }
        let busy = mirror.claim(&name("3")).unwrap();
        let bytes = CString::new(name("5").bytes(&stored(&mirror, "5").unwrap())).unwrap();
        let opened = mirror.open_bytes(&bytes, Patience::Wait).unwrap();
        // Within its budget nothing is removed.
        assert_eq!(mirror.make_room(|| panic!("nothing to do"), None).unwrap(), 0);
        // The first round only clears: every object is new.
        let mut claim = mirror.claim(&name("16")).unwrap();
        assert_eq!(claim.begin(100, || {}).unwrap(), Some(2));
        assert_eq!(mirror.bytes(), 15 * 100, "with the new one, before any byte of it was written");
        claim.write(&[16; 100]).unwrap();
        claim.commit("16".to_owned(), ObjectHead::default(), None).unwrap();
        drop(claim);
        assert_eq!(mirror.bytes(), 15 * 100);
        assert!(mirror.read(&name("3")).is_some());
        // Those that are used now stay, all others go first.
        let kept: Vec<_> = (0..17).map(|n| n.to_string()).filter(|n| mirror.read(&name(n)).is_some()).collect();
        let clear = |n: &String| mirror.stamp(&name(n), FileTimes::new().set_accessed(SystemTime::UNIX_EPOCH)).unwrap();
        kept.iter().for_each(clear);
        for n in 20..22 {
            put(&mirror, &n.to_string(), &[n; 100]);
        }
        mirror.make_room(|| kept[..8].iter().for_each(|n| mirror.used(&name(n))), None).unwrap();
        assert_eq!(mirror.bytes(), 15 * 100);
        assert!(kept[..8].iter().all(|n| mirror.read(&name(n)).is_some()), "a used object was evicted");
        // Open files stay readable.
        mirror.claim(&name("5")).unwrap().remove().unwrap();
        let mut buffer = [0; 100];
        assert_eq!(file::read_at(&opened, &mut buffer, 0, Patience::Wait).unwrap(), 100);
        assert_eq!(buffer, [5; 100]);
        drop(busy);
    }

    #[test]
    fn objects_that_are_being_written_never_exceed_the_budget_together() {
        let folder = tempfile::tempdir().unwrap();
        let mirror = Mirror::open(folder.path(), 1000, 1).unwrap();
        put(&mirror, "old", &[0; 300]);
        let mut first = mirror.claim(&name("a")).unwrap();
        assert_eq!(first.begin(600, || {}).unwrap(), Some(0));
        let mut second = mirror.claim(&name("b")).unwrap();
        assert_eq!(second.begin(600, || {}).unwrap(), None, "both are too many");
        drop(second);
        assert_eq!(mirror.bytes(), 600, "the old object has made room");
        // Its length was not known.
        let mut third = mirror.claim(&name("c")).unwrap();
        assert_eq!(third.begin(0, || {}).unwrap(), Some(0));
        third.write(&[1; 200]).unwrap();
        assert_eq!(mirror.bytes(), 800);
        drop((first, third));
        assert_eq!((mirror.bytes(), files(&folder)), (0, 0));
    }

    /// Begins an object in windows of 1000 bytes with this one of them, and returns its file.
    fn put_window(mirror: &Mirror, key: &str, layout: Layout, window: u64) -> File {
        let mut claim = mirror.claim(&name(key)).unwrap();
        claim.begin_windows(layout, window, || {}).unwrap().expect("room");
        let file = claim.file().unwrap();
        file.write_all_at(&[7; 1000], layout.range(window).start).unwrap();
        layout.put_slot(file, window, Some(&slot(mirror))).unwrap();
        let head = ObjectHead { etag: Some("\"1\"".into()), ..ObjectHead::default() };
        let record = claim.commit(key.to_owned(), head, None).unwrap();
        File::options().read(true).write(true).open(claim.bytes_of(&record)).unwrap()
    }

    fn slot(mirror: &Mirror) -> Slot {
        Slot { run: mirror.run(), sha256: crate::object_store::layout::finish(digest_of(&[7; 1000])) }
    }

    fn digest_of(bytes: &[u8]) -> Context {
        let mut digest = Context::new(&SHA256);
        digest.update(bytes);
        digest
    }

    /// Fills a window, if there is room; `None`: there is none.
    fn fill(
        mirror: &Mirror,
        key: &str,
        (layout, file): (Layout, &File),
        window: u64,
        orphaned: &AtomicU64,
    ) -> Option<u64> {
        let write = || -> io::Result<Slot> {
            file.write_all_at(&[7; 1000], layout.range(window).start)?;
            Ok(slot(mirror))
        };
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        mirror.fill((&name(key), &layout, file), window, orphaned, || {}, full, write).ok()
    }

    #[test]
    fn windows_are_counted_as_they_come_and_objects_make_room_for_them() {
        let folder = tempfile::tempdir().unwrap();
        let mirror = Mirror::open(folder.path(), 10_000, 1).unwrap();
        let layout = Layout { size: 8000, window_bytes: 1000 };
        let slots = layout.slots_bytes();
        let (first, second) = (put_window(&mirror, "a", layout, 3), put_window(&mirror, "b", layout, 0));
        assert_eq!(mirror.bytes(), 2 * (slots + 1000));
        let orphaned = AtomicU64::new(0);
        for window in [0, 1, 2, 4, 5] {
            assert_eq!(fill(&mirror, "a", (layout, &first), window, &orphaned), Some(0));
        }
        assert_eq!(mirror.bytes(), 2 * slots + 7000);
        // What fails is not counted.
        let fails = || -> io::Result<Slot> { Err(io::ErrorKind::Other.into()) };
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        assert!(mirror.fill((&name("a"), &layout, &first), 6, &orphaned, || {}, full, fails).is_err());
        assert_eq!((mirror.bytes(), layout.slot(&first, 6).unwrap()), (2 * slots + 7000, None));
        // A restart counts the same.
        assert_eq!(Mirror::open(folder.path(), 10_000, 2).unwrap().bytes(), 2 * slots + 7000);
        assert_eq!(fill(&mirror, "a", (layout, &first), 6, &orphaned), Some(0));
        // The other one must go now. It is filled no less, for those who have it open, but then all that it has counts.
        assert_eq!(fill(&mirror, "a", (layout, &first), 7, &orphaned), Some(1));
        assert!(stored(&mirror, "b").is_none() && orphaned.load(Ordering::Relaxed) == 0);
        assert_eq!(mirror.bytes(), slots + 8000);
        assert_eq!(fill(&mirror, "b", (layout, &second), 1, &orphaned), Some(1));
        assert_eq!((orphaned.load(Ordering::Relaxed), mirror.bytes()), (slots + 2000, slots + 2000));
        mirror.release(orphaned.into_inner());
        assert_eq!((mirror.bytes(), files(&folder)), (0, 0));
    }

    #[test]
    fn half_a_window_is_removed_at_start_and_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let mirror = Mirror::open(folder.path(), 1 << 20, 1).unwrap();
        let layout = Layout { size: 1 << 19, window_bytes: 1 << 17 };
        let mut claim = mirror.claim(&name("a")).unwrap();
        claim.begin_windows(layout, 0, || {}).unwrap();
        let file = claim.file().unwrap();
        file.write_all_at(&[7; 3 << 16], 0).unwrap();
        layout.put_slot(file, 0, Some(&slot(&mirror))).unwrap();
        let head = ObjectHead { etag: Some("\"1\"".into()), ..ObjectHead::default() };
        let record = claim.commit("a".to_owned(), head, None).unwrap();
        let path = claim.bytes_of(&record);
        drop(claim);
        // Another server, which this one replaces, is at work on it.
        let busy = mirror.claim_window(&name("a"), 1).unwrap();
        let used = || path.metadata().unwrap().blocks() * 512;
        Mirror::open(folder.path(), 1 << 20, 2).unwrap();
        assert!(used() >= 3 << 16);
        drop(busy);
        fs::write(folder.path().join(format!("{}.w2", name("a").0)), "").unwrap();
        let next = Mirror::open(folder.path(), 1 << 20, 3).unwrap();
        assert_eq!((next.bytes(), files(&folder)), ((1 << 17) + layout.slots_bytes(), 2));
        assert!((1 << 17..3 << 16).contains(&used()), "{}", used());
        let mut bytes = vec![0; 1 << 17];
        File::open(&path).unwrap().read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7));
    }
}
