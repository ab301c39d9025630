//! A write(2) that stops in its middle, for tests of what readers see meanwhile.
//!
//! The second half of the buffer is memory that does not exist until userfaultfd(2) provides it, so the kernel stops
//! when it starts to copy that half: inside the call, with the file's lock, after it has updated the timestamps. A slow
//! disk under the buffer, or a limit on dirty pages, has the same effect on real writers.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, munmap, userfaultfd};

/// Writes `bytes` at `offset` in one call, in the middle of which `pause` runs. Returns the result of the call.
///
/// # Errors
/// Those of pwrite(2) and userfaultfd(2), which requires root by default;
/// `InvalidInput` if the bytes fill less than two pages.
pub fn write_with_pause(file: impl AsFd, bytes: &[u8], offset: u64, pause: impl FnOnce() + Send) -> io::Result<usize> {
    let page = rustix::param::page_size();
    let split = bytes.len() / 2 / page * page;
    if split == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let buffer = Buffer::new(bytes.len().next_multiple_of(page))?;
    // SAFETY: a new descriptor touches no memory; below it is used only for memory of this function.
    let faults = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC)? };
    let mut api = Api { version: UFFD_API, features: 0, ioctls: 0 };
    ioctl(&faults, UFFDIO_API, (&raw mut api).cast())?;
    let late = buffer.start.as_ptr() as u64 + split as u64;
    let late_bytes = (buffer.length - split) as u64;
    let mut range = Register { start: late, length: late_bytes, mode: REGISTER_MISSING, ioctls: 0 };
    ioctl(&faults, UFFDIO_REGISTER, (&raw mut range).cast())?;
    // SAFETY: the first half lies in the mapping, is not registered, and does not overlap `bytes`.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.start.as_ptr(), split) };
    let mut rest = bytes[split..].to_vec();
    rest.resize(late_bytes as usize, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // An event: the kernel has reached the second half. If reading fails, or the write ends early, the rest is
            // provided nevertheless, so that nothing waits forever.
            let _ = rustix::io::read(&faults, &mut [0; 32]);
            pause();
            let source = rest.as_ptr() as u64;
            let mut copy = Copy { destination: late, source, length: late_bytes, mode: 0, copied: 0 };
            if ioctl(&faults, UFFDIO_COPY, (&raw mut copy).cast()).is_err() {
                std::process::abort();
            }
        });
        // SAFETY: pwrite(2) reads `bytes.len()` bytes of the mapping, which lives until the end of this function.
        // JUSTIFICATION: a slice must not be made of memory that another thread fills.
        let written = unsafe {
            libc::pwrite(
                file.as_fd().as_raw_fd(),
                buffer.start.as_ptr() as *const c_void,
                bytes.len(),
                offset.cast_signed(),
            )
        };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    })
}

/// Anonymous memory that is unmapped when dropped.
struct Buffer {
    start: NonNull<u8>,
    length: usize,
}

impl Buffer {
    fn new(length: usize) -> io::Result<Buffer> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: without a requested address, mmap(2) touches no existing mapping.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, flags)? };
        Ok(Buffer { start: NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?, length })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: `new` created this mapping, and nothing points into it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// linux/userfaultfd.h: numbers and structures of its ioctls.
const UFFD_API: u64 = 0xaa;
const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_COPY: u64 = 0xc028_aa03;
const REGISTER_MISSING: u64 = 1;

#[repr(C)]
struct Api {
    version: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Copy {
    destination: u64,
    source: u64,
    length: u64,
    mode: u64,
    copied: i64,
}

fn ioctl(faults: impl AsFd, request: u64, argument: *mut c_void) -> io::Result<()> {
    // SAFETY: each request has its own structure above, alive and as large as the number says. JUSTIFICATION: rustix
    // offers userfaultfd(2) without its ioctls.
    let result = unsafe { libc::ioctl(faults.as_fd().as_raw_fd(), request as _, argument) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{self, Patience};
    use std::os::unix::fs::FileExt;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn barrier_waits_for_write_in_progress() {
        // The build directory, and memory: the file systems of most sites.
        for folder in [".", "/dev/shm"] {
            let file = tempfile::tempfile_in(folder).expect("a file");
            file.write_all_at(&[b'a'; 64 << 10], 0).expect("written");
            let before = file::status(&file).expect("status");
            // Past the resolution of the clock, so that the next timestamp differs.
            std::thread::sleep(Duration::from_millis(20));
            let (paused, is_paused) = channel();
            let (resume, goes_on) = channel::<()>();
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    write_with_pause(&file, &[b'b'; 64 << 10], 0, move || {
                        paused.send(()).expect("the test waits");
                        let _ = goes_on.recv();
                    })
                });
                is_paused.recv().expect("the writer pauses");
                let mut bytes = [0; 64 << 10];
                file::read_at(&file, &mut bytes, 0, Patience::Now).expect("read");
                assert_eq!((bytes[0], bytes[(64 << 10) - 1]), (b'b', b'a'), "half of each");
                let during = file::status(&file).expect("status");
                assert!(during.ctime_ns > before.ctime_ns, "timestamps are updated at the beginning");
                let barrier = scope.spawn(|| {
                    file::wait_for_writer(&file);
                    let mut last = [0];
                    file.read_exact_at(&mut last, (64 << 10) - 1).expect("read");
                    last[0]
                });
                std::thread::sleep(Duration::from_millis(50));
                assert!(!barrier.is_finished(), "{folder}: it waits for the writer");
                drop(resume);
                assert_eq!(barrier.join().expect("no panic"), b'b');
                assert_eq!(writer.join().expect("no panic").expect("written"), 64 << 10);
                let after = file::status(&file).expect("status");
                assert_eq!(after.ctime_ns, during.ctime_ns, "and not updated again");
            });
        }
    }
}
