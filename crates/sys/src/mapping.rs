//! Parts of files mapped into memory: to test which pages are resident, and to send them.
//!
//! A mapping never becomes a `&[u8]`. If the file becomes shorter, pages beyond its end vanish: touching one in user
//! space raises SIGBUS and ends the process, while the kernel, which copies for sendmsg(2), returns EFAULT. So a
//! mapping passes its ranges by address, only to the kernel.

use std::ffi::c_void;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// A part of a file in the address space, for reading. Unmapped when dropped. Like a descriptor, it keeps the file's
/// blocks on the disk after the last name is removed.
#[derive(Debug)]
pub struct Mapping {
    start: *mut c_void,
    /// `length > 0`
    length: usize,
}

// SAFETY: an address range of the process, which all its threads share; nothing is read or written through `start`, and
// the kernel lets any thread send from it or unmap it.
unsafe impl Send for Mapping {}
// SAFETY: as above; methods that take `&self` pass the address to system calls that only read.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes from `offset`, a multiple of the page size. Reads
    /// nothing: pages are loaded when they are touched.
    ///
    /// # Errors
    /// Those of mmap(2): a file system without mmap (ENODEV), too many mappings
    /// (ENOMEM, `vm.max_map_count`), a length of zero.
    pub fn new(file: impl AsFd, offset: u64, length: usize) -> io::Result<Mapping> {
        let (protection, flags) = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: mmap(2) with a null address takes a free range, so no memory known to Rust is touched. Only this
        // value uses the range until its drop. JUSTIFICATION: sending from a mapping is the purpose of this module.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, protection, flags, file, offset)? };
        Ok(Mapping { start, length })
    }

    /// Returns the mapped length, bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns whether all pages of a range are in memory (mincore(2)): the residency test of Flash. Since Linux 5.2 it
    /// reports every page resident to a process that neither owns nor may write the file. Its result for pages beyond
    /// the end of a file that has become shorter is meaningless.
    pub fn is_resident(&self, range: Range<usize>) -> bool {
        let page = rustix::param::page_size();
        let range = range.start / page * page..range.end.min(self.length);
        // A window of 256 KiB has 64 pages of 4 KiB; longer ranges are tested in pieces.
        let mut pages = [0_u8; 64];
        range.clone().step_by(pages.len() * page).all(|at| {
            let length = (range.end - at).min(pages.len() * page);
            // SAFETY: mincore(2) writes a byte for each page of the range to `pages`, which has room for 64, and the range
            // has no more. It begins on a page, as the mapping does, and lies within it. JUSTIFICATION: rustix has no
            // mincore.
            let result = unsafe { libc::mincore(self.start.byte_add(at), length, pages.as_mut_ptr()) };
            result == 0 && pages[..length.div_ceil(page)].iter().all(|page| page & 1 == 1)
        })
    }

    /// Sends `before`, at most [`BEFORE_MAX`] pieces, followed by a range of the mapping, in one call, like
    /// [`socket::send_vectored`](crate::socket::send_vectored). Waits for the disk for pages that are not in memory.
    ///
    /// # Errors
    /// Those of sendmsg(2); EFAULT if the file has become so short that the range does not exist.
    ///
    /// # Panics
    /// With more pieces, or if the range is not within the mapping.
    pub fn send(
        &self,
        socket: impl AsFd,
        before: &[IoSlice<'_>],
        range: Range<usize>,
        more: bool,
    ) -> io::Result<usize> {
        assert!(before.len() <= BEFORE_MAX && range.start <= range.end && range.end <= self.length);
        let mut pieces = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BEFORE_MAX + 1];
        for (piece, bytes) in pieces.iter_mut().zip(before) {
            *piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        }
        pieces[before.len()] =
            libc::iovec { iov_base: self.start.wrapping_byte_add(range.start), iov_len: range.len() };
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | if more { libc::MSG_MORE } else { 0 };
        // SAFETY: an all-zero msghdr is valid: no address, no control data, no pieces.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = pieces.as_mut_ptr();
        message.msg_iovlen = (before.len() + 1) as _;
        // SAFETY: sendmsg(2) reads the message and its pieces, all alive; the pieces in `before` are borrowed slices,
        // and the last lies within the mapping, which is not unmapped while it is borrowed. If the file no longer has
        // such pages, the call fails. JUSTIFICATION: rustix takes slices, which a mapping must not be.
        let sent = unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const message, flags) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// Maximum pieces that [`Mapping::send`] takes before the mapping.
pub const BEFORE_MAX: usize = 64;

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, nothing else uses it, and no borrow of this value is left.
        let result: Result<(), Errno> = unsafe { rustix::mm::munmap(self.start, self.length) };
        debug_assert!(result.is_ok(), "munmap: {result:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    const PAGE: usize = 4096;

    fn file_of(bytes: &[u8]) -> (tempfile::TempDir, File) {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("file");
        std::fs::write(&path, bytes).expect("written");
        (folder, File::options().read(true).write(true).open(path).expect("opened"))
    }

    #[test]
    fn header_and_mapped_body_are_sent_in_one_call() {
        let bytes: Vec<u8> = (0..3 * PAGE).map(|at| (at / 100) as u8).collect();
        let (_folder, file) = file_of(&bytes);
        let mapping = Mapping::new(&file, PAGE as u64, 2 * PAGE).expect("mapped");
        let (from, mut to) = UnixStream::pair().expect("a pair");
        let before = [IoSlice::new(b"he"), IoSlice::new(b"ad")];
        assert_eq!(mapping.send(&from, &before, 10..5000, false).expect("sent"), 4 + 4990);
        drop(from);
        let mut received = Vec::new();
        to.read_to_end(&mut received).expect("received");
        assert!(received == [b"head", &bytes[PAGE + 10..PAGE + 5000]].concat());
    }

    #[test]
    fn access_beyond_truncated_file_is_an_error() {
        let (_folder, file) = file_of(&vec![7; 4 * PAGE]);
        let mapping = Mapping::new(&file, 0, 4 * PAGE).expect("mapped");
        assert!(mapping.is_resident(0..4 * PAGE));
        file.set_len(10).expect("cut");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        let socket = std::net::TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let error = mapping.send(&socket, &[], PAGE..2 * PAGE, false).expect_err("pages that do not exist");
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }

    #[test]
    fn page_residency_is_reported() {
        let folder = tempfile::tempdir_in(".").expect("a directory on a disk");
        let path = folder.path().join("file");
        // More pages than are tested at once.
        const PAGES: usize = 200;
        std::fs::write(&path, vec![7; PAGES * PAGE]).expect("written");
        let file = File::open(&path).expect("opened");
        let mapping = Mapping::new(&file, 0, PAGES * PAGE).expect("mapped");
        assert!(mapping.is_resident(0..PAGES * PAGE));
        file.sync_all().expect("synced");
        let is_evicted = || {
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advised");
            !mapping.is_resident(0..1)
        };
        // On a busy machine other processes may hold pages for a moment, which are not evicted then.
        let evicted = (0..1000).any(|_| {
            is_evicted() || {
                std::thread::sleep(std::time::Duration::from_millis(5));
                false
            }
        });
        assert!(evicted, "if the build directory is not on a disk, build elsewhere");
        let at = 150 * PAGE;
        crate::file::read_at(&file, &mut [0], at as u64, crate::file::Patience::Wait).expect("read");
        assert!(mapping.is_resident(at + 5..at + 10) && !mapping.is_resident(0..at + 10));
    }
}
