//! perf_event_open(2): samples of what a processor executes, taken by its clock and read from a ring in shared memory.
//!
//! One `cpu-clock` event for each processor, since a virtual machine may have no hardware counter. At 199 Hz the cost
//! to a server is not measurable, whereas counting each system call costs 2 to 3 %. The software clock cannot fire
//! while interrupts are off: such time is attributed to the place where they are enabled again.
//!
//! The kernel writes at `data_head` and never overtakes `data_tail`, which this side writes: records that do not fit
//! are lost, and another record counts them.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

/// The state of a processor at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The process; 0 is the idle task.
    pub pid: u32,
    /// Whether it was in the kernel.
    pub in_kernel: bool,
    /// Return addresses in the kernel, innermost first. Empty in user code.
    pub kernel_chain: Vec<u64>,
    /// Addresses in the program, innermost first: where it was, or where it entered the kernel, then the return address
    /// of each function. Valid as far as the program keeps frame pointers; beyond that, arbitrary data.
    pub user_chain: Vec<u64>,
}

/// A record of the ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A sample.
    Sample(Sample),
    /// So many records were lost because the ring was full.
    Lost(u64),
}

/// The sampler of one processor.
#[derive(Debug)]
pub struct Ring {
    event: OwnedFd,
    start: *mut u8,
    page: usize,
    /// A power of two.
    data: usize,
    scratch: Vec<u8>,
}

/// Pages of the ring, without that of its counters: 512 KiB, as much as a user without privileges
/// may lock (`kernel.perf_event_mlock_kb`).
const PAGES: usize = 128;

/// The number of the largest possible samples that fit into a ring: each has 127 addresses
/// (`kernel.perf_event_max_stack`), marks and a header.
pub const RING_SAMPLES: u32 = 400;

/// The first version of `struct perf_event_attr` (`PERF_ATTR_SIZE_VER0`), which later kernels accept as well.
#[repr(C)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    frequency: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wake_up: u32,
    breakpoint_type: u32,
    config1: u64,
}

impl Ring {
    /// Samples everything that runs on this processor, `frequency` times a second,
    /// once [`enable`](Ring::enable) is called.
    ///
    /// # Errors
    /// EACCES or EPERM: the process may not observe others (`kernel.perf_event_paranoid`,
    /// `CAP_PERFMON`); ENODEV: there is no such processor.
    pub fn open(processor: u32, frequency: u32) -> io::Result<Ring> {
        const CLOSE_ON_EXEC: libc::c_ulong = 8;
        let attributes = Attributes {
            kind: 1, // PERF_TYPE_SOFTWARE
            size: size_of::<Attributes>() as u32,
            config: 0, // PERF_COUNT_SW_CPU_CLOCK
            frequency: u64::from(frequency),
            sample_type: TID | CALLCHAIN,
            read_format: 0,
            flags: 1 | 1 << 10, // disabled, freq
            wake_up: 0,
            breakpoint_type: 0,
            config1: 0,
        };
        let processor = libc::c_int::try_from(processor).map_err(|_| io::ErrorKind::InvalidInput)?;
        let this = &raw const attributes;
        // SAFETY: perf_event_open(2) reads the attributes, which contain their size, and takes numbers; no group.
        // JUSTIFICATION: neither std nor rustix has the call.
        let event = unsafe { libc::syscall(libc::SYS_perf_event_open, this, -1, processor, -1, CLOSE_ON_EXEC) };
        if event < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it has just been created, and nothing else owns it. A descriptor fits into an int.
        let event = unsafe { OwnedFd::from_raw_fd(event as libc::c_int) };
        let page = rustix::param::page_size();
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let length = (1 + PAGES) * page;
        // SAFETY: mmap(2) with a null address takes a free range, which only this value uses until its drop.
        // JUSTIFICATION: the ring is available only as a mapping.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, protection, flags, &event, 0)? };
        let (start, data) = (start.cast(), PAGES * page);
        Ok(Ring { event, start, page, data, scratch: Vec::new() })
    }

    /// Starts or resumes sampling.
    ///
    /// # Errors
    /// None known.
    pub fn enable(&self) -> io::Result<()> {
        order(&self.event, 0x2400, 0) // PERF_EVENT_IOC_ENABLE
    }

    /// Stops sampling until it is enabled again.
    ///
    /// # Errors
    /// None known.
    pub fn disable(&self) -> io::Result<()> {
        order(&self.event, 0x2401, 0) // PERF_EVENT_IOC_DISABLE
    }

    /// Takes the records since the last call.
    pub fn take(&mut self, mut each: impl FnMut(Record)) {
        let end = self.counter(HEAD).load(Ordering::Acquire);
        let begin = self.counter(TAIL).load(Ordering::Relaxed);
        let length = usize::try_from(end.wrapping_sub(begin)).map_or(self.data, |length| length.min(self.data));
        let from = begin as usize & (self.data - 1);
        let first = length.min(self.data - from);
        self.scratch.resize(length, 0);
        // SAFETY: `from + first <= data` and `length - first <= from`, so both pieces lie in the data pages, which
        // begin one page after `start` and stay mapped. The kernel does not write between tail and head, as the tail is
        // advanced only below; `scratch` has `length` bytes. JUSTIFICATION: shared memory cannot be a slice.
        unsafe {
            let data = self.start.add(self.page);
            std::ptr::copy_nonoverlapping(data.add(from), self.scratch.as_mut_ptr(), first);
            std::ptr::copy_nonoverlapping(data, self.scratch.as_mut_ptr().add(first), length - first);
        }
        self.counter(TAIL).store(end, Ordering::Release);
        records(&self.scratch, &mut each);
    }

    /// Returns a counter of the first page.
    fn counter(&self, at: usize) -> &AtomicU64 {
        // SAFETY: `at` is a multiple of 8 within the first page, which is mapped for reading and writing as long as
        // `self` lives; the kernel too reads and writes it as one word.
        unsafe { AtomicU64::from_ptr(self.start.add(at).cast()) }
    }
}

/// `data_head` in `struct perf_event_mmap_page`.
const HEAD: usize = 1024;
/// `data_tail`.
const TAIL: usize = 1032;
/// Issues a command to an event.
fn order(event: &OwnedFd, request: libc::c_ulong, with: libc::c_int) -> io::Result<()> {
    // SAFETY: the requests of this file take a number or a descriptor, all of which are open.
    // JUSTIFICATION: rustix has no such ioctl.
    let result = unsafe { libc::ioctl(event.as_raw_fd(), request, with) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `PERF_SAMPLE_TID`.
const TID: u64 = 1 << 1;
/// `PERF_SAMPLE_CALLCHAIN`.
const CALLCHAIN: u64 = 1 << 5;

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `open`, nothing else uses it, and no borrow of this value is left.
        let result = unsafe { rustix::mm::munmap(self.start.cast(), self.page + self.data) };
        debug_assert!(result.is_ok(), "munmap: {result:?}");
    }
}

/// Parses whole records of a ring (`struct perf_event_header` and what follows it), and stops at an invalid one.
pub fn records(mut bytes: &[u8], each: &mut impl FnMut(Record)) {
    const LOST: u32 = 2;
    const SAMPLE: u32 = 9;
    while let Some(header) = word(bytes, 0) {
        // `struct perf_event_header`: type, misc, size.
        let header = header.to_ne_bytes();
        let (Some(kind), misc) = (half(&header, 0), header[4]) else { return };
        let size = usize::from(u16::from_ne_bytes([header[6], header[7]]));
        let (true, Some(body)) = (size >= 8, bytes.get(8..size)) else { return };
        let record = match kind {
            // An ID, then the count.
            LOST => word(body, 8).map(Record::Lost),
            // `PERF_RECORD_MISC_KERNEL` in `PERF_RECORD_MISC_CPUMODE_MASK`.
            SAMPLE => sample(body, misc & 7 == 1).map(Record::Sample),
            _ => None,
        };
        if let Some(record) = record {
            each(record);
        }
        bytes = bytes.get(size..).unwrap_or(&[]);
    }
}

/// Process, thread, and the chain after its length.
fn sample(body: &[u8], in_kernel: bool) -> Option<Sample> {
    let depth = usize::try_from(word(body, 8)?).ok()?;
    let chain = body.get(16..)?.as_chunks::<8>().0.get(..depth)?;
    let (mut kernel_chain, mut user_chain) = (Vec::new(), Vec::new());
    let mut is_user = false;
    for address in chain.iter().map(|one| u64::from_ne_bytes(*one)) {
        // Values above all addresses are marks: they say which part of the chain follows.
        match address {
            CONTEXT_USER => is_user = true,
            mark if mark >= CONTEXT_MAX => is_user = false,
            address if is_user => user_chain.push(address),
            address => kernel_chain.push(address),
        }
    }
    Some(Sample { pid: half(body, 0)?, in_kernel, kernel_chain, user_chain })
}

/// `PERF_CONTEXT_USER`.
const CONTEXT_USER: u64 = 512_u64.wrapping_neg();
/// `PERF_CONTEXT_MAX`.
const CONTEXT_MAX: u64 = 4095_u64.wrapping_neg();

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn spinning_thread_is_sampled() {
        let cores = std::thread::available_parallelism().expect("there are some").get() as u32;
        let mut rings: Vec<Ring> =
            (0..cores).map(|core| Ring::open(core, 499).expect("root, or kernel.perf_event_paranoid=-1")).collect();
        rings.iter().for_each(|ring| ring.enable().expect("enabled"));
        let until = Instant::now() + Duration::from_secs(20);
        let (mut ours, mut kernel, mut spun) = (0_u32, 0_u32, 0_u64);
        // A few in each, rather than a share of a time that other processes may use.
        while (ours < 30 || kernel < 5) && Instant::now() < until {
            let end = Instant::now() + Duration::from_millis(20);
            while Instant::now() < end {
                // A system call now and then, for chains.
                spun += u64::from(std::fs::metadata("/proc/self/stat").is_ok());
            }
            for ring in &mut rings {
                ring.take(|record| {
                    let Record::Sample(sample) = record else { return };
                    if sample.pid == std::process::id() {
                        ours += 1;
                        kernel += u32::from(sample.in_kernel && sample.kernel_chain.len() > 1);
                    }
                });
            }
        }
        assert!(spun > 0 && ours >= 30 && kernel >= 5, "{ours} samples, {kernel} in the kernel");
    }

    #[test]
    fn truncated_records_are_read_as_far_as_possible() {
        let record = |kind: u32, misc: u16, words: &[u64]| {
            let mut bytes = kind.to_ne_bytes().to_vec();
            bytes.extend(misc.to_ne_bytes());
            bytes.extend(((8 + 8 * words.len()) as u16).to_ne_bytes());
            bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
            bytes
        };
        let check = |bytes: &[u8], expected: &[Record]| {
            let mut found = Vec::new();
            records(bytes, &mut |record| found.push(record));
            assert_eq!(found, expected, "{bytes:?}");
        };
        let of = |pid, in_kernel, chain: &[u64]| {
            Record::Sample(Sample { pid, in_kernel, kernel_chain: chain.to_vec(), ..Sample::default() })
        };
        let kernel = 128_u64.wrapping_neg();
        let sample = record(9, 1, &[7, 3, kernel, 0xffff_8000_0000_1000, 0xffff_8000_0000_2000]);
        let whole = of(7, true, &[0xffff_8000_0000_1000, 0xffff_8000_0000_2000]);
        check(&[], &[]);
        check(&sample, std::slice::from_ref(&whole));
        check(&sample[..sample.len() - 1], &[]);
        check(
            &[record(2, 0, &[1, 44]), record(5, 0, &[9]), sample.clone()].concat(),
            &[Record::Lost(44), whole.clone()],
        );
        check(&record(9, 2, &[8, 0]), &[of(8, false, &[])]);
        let user = 512_u64.wrapping_neg();
        let both =
            Sample { user_chain: vec![0x5000, 0x6000], ..Sample { pid: 7, in_kernel: true, ..Sample::default() } };
        let both = Record::Sample(Sample { kernel_chain: vec![0xffff_8000_0000_1000], ..both });
        check(&record(9, 1, &[7, 5, kernel, 0xffff_8000_0000_1000, user, 0x5000, 0x6000]), &[both]);
        check(&record(9, 2, &[8, 99]), &[]);
        check(&[0; 64], &[]);
    }
}
