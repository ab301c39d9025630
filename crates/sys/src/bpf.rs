//! bpf(2): a program of sixteen instructions that reports, at each sample of a
//! processor, which system call the thread is in.
//!
//! A sample's call chain lacks the system call's own function if that continued with a jump, as
//! `writev` does. The number itself is in the registers that were saved when the thread entered the
//! kernel. perf does not report it (`orig_ax` is not among those that `PERF_SAMPLE_REGS_USER` knows),
//! but a program that runs with the sample can read it.
//!
//! The instructions are written out here, by constructors named after what they do, so that
//! neither a compiler for them nor a library nor an object file is needed. The instructions are in
//! Documentation/bpf/standardization/instruction-set.rst; the helper functions, `enum
//! bpf_func_id`, in include/uapi/linux/bpf.h.
//!
//! ```text
//! regs = task_pt_regs(current)                       needs the kernel's own types (CONFIG_DEBUG_INFO_BTF), Linux 5.15
//! number = regs->orig_ax                             x86-64; syscallno on aarch64
//! perf_event_output(ctx, rings, this processor, &number, 8)
//! return 1                                           otherwise the sample would not be taken
//! ```

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The program, and the map of the rings that it writes to: one for each processor. Rings that
/// use it keep it alive: it may be dropped.
#[derive(Debug)]
pub struct SyscallNumbers {
    program: OwnedFd,
    rings: OwnedFd,
}

impl SyscallNumbers {
    /// Loads the program, for processors with numbers below `processors`.
    ///
    /// # Errors
    /// EPERM: this needs `CAP_BPF` and `CAP_PERFMON`. EINVAL: the kernel is older than 5.15. ENOSYS, ENOTSUPP: it was
    /// built without BPF or its types. `Unsupported`: the registers of this architecture are unknown here.
    pub fn load(processors: u32) -> io::Result<SyscallNumbers> {
        let field = SAVED_NUMBER.ok_or(io::ErrorKind::Unsupported)?;
        let map = CreateMap { kind: PERF_EVENT_ARRAY, key: 4, value: 4, entries: processors, flags: PRESERVE_ELEMENTS };
        let rings = owned(order(MAP_CREATE, &map)?);
        let program = program(&field, rings.as_raw_fd());
        // The helpers are for programs under the GPL, which this one is as well as under the MIT licence.
        let (instructions, licence) = (program.as_ptr() as u64, c"Dual MIT/GPL".as_ptr() as u64);
        let load = LoadProgram { kind: PERF_EVENT, count: program.len() as u32, instructions, licence, log: [0; 4] };
        let program = owned(order(PROGRAM_LOAD, &load)?);
        Ok(SyscallNumbers { program, rings })
    }

    /// Directs the output for samples of this processor to this event.
    pub(crate) fn write_to(&self, processor: u32, event: BorrowedFd<'_>) -> io::Result<()> {
        let event = event.as_raw_fd();
        let (key, value) = (&raw const processor as u64, &raw const event as u64);
        order(MAP_UPDATE, &UpdateMap { map: self.rings.as_raw_fd(), _pad: 0, key, value, flags: 0 }).map(drop)
    }
}

impl AsFd for SyscallNumbers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}

/// The position of the system call's number in the saved registers (`struct pt_regs`): offset in bytes, and size.
#[derive(Debug)]
struct Field {
    at: i16,
    size: u8,
}

/// `orig_ax` (arch/x86/include/asm/ptrace.h).
#[cfg(target_arch = "x86_64")]
const SAVED_NUMBER: Option<Field> = Some(Field { at: 120, size: DOUBLE_WORD });
/// `syscallno` (arch/arm64/include/asm/ptrace.h), of 32 bits, after 31 registers, sp, pc, pstate and `orig_x0`.
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
const SAVED_NUMBER: Option<Field> = Some(Field { at: 280, size: WORD });
#[cfg(not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little"))))]
const SAVED_NUMBER: Option<Field> = None;

/// `struct bpf_insn`: the operation, the registers (target in the low half), an offset, an immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    number: i32,
}

// Registers: R0 holds results, R1 to R5 are arguments and lost in a call, R6 is preserved, R10 is the end of the stack.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R4: u8 = 4;
const R5: u8 = 5;
const R6: u8 = 6;
const R10: u8 = 10;

/// `BPF_W`: 4 bytes.
#[cfg_attr(not(target_arch = "aarch64"), allow(dead_code, reason = "aarch64 saves the number in 4 bytes"))]
const WORD: u8 = 0x00;
/// `BPF_DW`: 8 bytes.
const DOUBLE_WORD: u8 = 0x18;

// Helpers, by their numbers in `enum bpf_func_id`.
const PERF_EVENT_OUTPUT: i32 = 25;
const GET_CURRENT_TASK_BTF: i32 = 158;
const TASK_PT_REGS: i32 = 175;

const fn instruction(code: u8, to: u8, from: u8, offset: i16, number: i32) -> Instruction {
    Instruction { code, registers: from << 4 | to, offset, number }
}

/// `to = from` (`BPF_ALU64 | BPF_MOV | BPF_X`).
const fn copy(to: u8, from: u8) -> Instruction {
    instruction(0xbf, to, from, 0, 0)
}

/// `to = number`, whose upper half becomes 0 (`BPF_ALU | BPF_MOV | BPF_K`).
const fn set(to: u8, number: i32) -> Instruction {
    instruction(0xb4, to, 0, 0, number)
}

/// `to += number` (`BPF_ALU64 | BPF_ADD | BPF_K`).
const fn add(to: u8, number: i32) -> Instruction {
    instruction(0x07, to, 0, 0, number)
}

/// `to = *(from + at)` (`BPF_LDX | BPF_MEM`).
const fn load(to: u8, from: u8, field: &Field) -> Instruction {
    instruction(0x61 | field.size, to, from, field.at, 0)
}

/// `*(to + at) = from`, 8 bytes (`BPF_STX | BPF_MEM | BPF_DW`).
const fn store(to: u8, at: i16, from: u8) -> Instruction {
    instruction(0x63 | DOUBLE_WORD, to, from, at, 0)
}

/// `to = the map of this descriptor`, which takes two slots (`BPF_LD | BPF_IMM | BPF_DW`, `BPF_PSEUDO_MAP_FD`).
const fn map(to: u8, descriptor: i32) -> [Instruction; 2] {
    const PSEUDO_MAP_FD: u8 = 1;
    [instruction(DOUBLE_WORD, to, PSEUDO_MAP_FD, 0, descriptor), instruction(0, 0, 0, 0, 0)]
}

/// `R0 = helper(R1, R2, R3, R4, R5)` (`BPF_JMP | BPF_CALL`).
const fn call(helper: i32) -> Instruction {
    instruction(0x85, 0, 0, 0, helper)
}

/// `return R0` (`BPF_JMP | BPF_EXIT`).
const fn exit() -> Instruction {
    instruction(0x95, 0, 0, 0, 0)
}

/// Returns the program, for this position of the number and the descriptor of the map.
fn program(field: &Field, rings: i32) -> [Instruction; 16] {
    /// The number, at the end of the stack.
    const NUMBER: i16 = -8;
    /// `BPF_F_CURRENT_CPU`: the index of the processor that this runs on.
    const THIS_PROCESSOR: i32 = -1;
    let [rings, rings_end] = map(R2, rings);
    [
        copy(R6, R1),
        call(GET_CURRENT_TASK_BTF),
        copy(R1, R0),
        call(TASK_PT_REGS),
        load(R1, R0, field),
        store(R10, NUMBER, R1),
        copy(R1, R6),
        rings,
        rings_end,
        set(R3, THIS_PROCESSOR),
        copy(R4, R10),
        add(R4, NUMBER as i32),
        set(R5, 8),
        call(PERF_EVENT_OUTPUT),
        // Take the sample as usual.
        set(R0, 1),
        exit(),
    ]
}

// Commands of bpf(2), and the parts of `union bpf_attr` that they read; the rest is 0.
const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE: libc::c_long = 2;
const PROGRAM_LOAD: libc::c_long = 5;
/// `BPF_MAP_TYPE_PERF_EVENT_ARRAY`: descriptors of events by number.
const PERF_EVENT_ARRAY: u32 = 4;
/// `BPF_PROG_TYPE_PERF_EVENT`: runs when an event produces a sample.
const PERF_EVENT: u32 = 7;

/// `BPF_F_PRESERVE_ELEMS`: elements stay when their descriptor is closed, as long as a program uses the map.
const PRESERVE_ELEMENTS: u32 = 1 << 11;

#[repr(C)]
struct CreateMap {
    kind: u32,
    key: u32,
    value: u32,
    entries: u32,
    flags: u32,
}

#[repr(C)]
struct UpdateMap {
    map: i32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct LoadProgram {
    kind: u32,
    count: u32,
    instructions: u64,
    licence: u64,
    /// The verifier's log is not requested.
    log: [u32; 4],
}

/// Arguments of commands: `repr(C)`, without padding; addresses in them point to live data.
trait Attribute {}
impl Attribute for CreateMap {}
impl Attribute for UpdateMap {}
impl Attribute for LoadProgram {}

/// A descriptor, or 0.
fn order<A: Attribute>(what: libc::c_long, with: &A) -> io::Result<libc::c_long> {
    let with: *const A = with;
    // SAFETY: bpf(2) reads as many bytes of the attribute as its size says, and what these point to: a key, a value, a
    // NUL-terminated text, or as many instructions as are counted, all of which the callers keep until it returns.
    // JUSTIFICATION: neither std nor rustix has the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, what, with, size_of::<A>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(descriptor: libc::c_long) -> OwnedFd {
    // SAFETY: bpf(2) has just created it, open and close-on-exec, and nothing else owns it; it fits into an int.
    unsafe { OwnedFd::from_raw_fd(descriptor as libc::c_int) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_encoded_as_in_standard() {
        let bytes = |one: Instruction| {
            let mut bytes = vec![one.code, one.registers];
            bytes.extend(one.offset.to_le_bytes());
            bytes.extend(one.number.to_le_bytes());
            bytes
        };
        let check = |one, expected: [u8; 8]| assert_eq!(bytes(one), expected, "{one:?}");
        // As `llvm-mc -triple bpfel -show-encoding` encodes them.
        check(copy(R6, R1), [0xbf, 0x16, 0, 0, 0, 0, 0, 0]);
        check(set(R3, -1), [0xb4, 0x03, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        check(add(R4, -8), [0x07, 0x04, 0, 0, 0xf8, 0xff, 0xff, 0xff]);
        check(load(R1, R0, &Field { at: 120, size: DOUBLE_WORD }), [0x79, 0x01, 120, 0, 0, 0, 0, 0]);
        check(load(R1, R0, &Field { at: 280, size: WORD }), [0x61, 0x01, 0x18, 0x01, 0, 0, 0, 0]);
        check(store(R10, -8, R1), [0x7b, 0x1a, 0xf8, 0xff, 0, 0, 0, 0]);
        check(map(R2, 7)[0], [0x18, 0x12, 0, 0, 7, 0, 0, 0]);
        check(map(R2, 7)[1], [0; 8]);
        check(call(25), [0x85, 0, 0, 0, 25, 0, 0, 0]);
        check(exit(), [0x95, 0, 0, 0, 0, 0, 0, 0]);
    }
}
