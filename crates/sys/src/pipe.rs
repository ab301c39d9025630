//! pipe(2), between this process and a program that it starts: this process's end never blocks, the other one does.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::pipe::{PipeFlags, pipe_with};

/// The two ends of a pipe. Both are closed on exec, so a program has only the ends passed to it.
#[derive(Debug)]
pub struct Pipe {
    /// This process's end, which does not block.
    pub ours: OwnedFd,
    /// The program's end.
    pub theirs: OwnedFd,
}

/// Creates a pipe that the program writes to.
///
/// # Errors
/// When the process is out of descriptors.
pub fn from_program() -> io::Result<Pipe> {
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok(Pipe { ours, theirs })
}

/// Creates a pipe that the program reads from.
///
/// # Errors
/// When the process is out of descriptors.
pub fn to_program() -> io::Result<Pipe> {
    let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok(Pipe { ours, theirs })
}

/// Reads available data. `Ok(0)`: all writers have closed it.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] when there is none yet.
pub fn read(pipe: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::io::retry_on_intr(|| rustix::io::read(&pipe, &mut *buffer))?)
}

/// Writes as much as there is room for.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] when there is none, [`io::ErrorKind::BrokenPipe`] when the reader has
/// closed it (Rust programs ignore SIGPIPE).
pub fn write(pipe: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::io::retry_on_intr(|| rustix::io::write(&pipe, bytes))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_end_of_pipe_is_nonblocking() {
        let Pipe { ours, theirs } = from_program().expect("made");
        let mut buffer = [0; 10];
        assert_eq!(read(&ours, &mut buffer).expect_err("nothing yet").kind(), io::ErrorKind::WouldBlock);
        assert_eq!(write(&theirs, b"abc").expect("written"), 3);
        drop(theirs);
        assert_eq!(read(&ours, &mut buffer).expect("read"), 3);
        assert_eq!(read(&ours, &mut buffer).expect("the end"), 0);

        let Pipe { ours, theirs } = to_program().expect("made");
        let full = loop {
            if let Err(error) = write(&ours, &[0; 4096]) {
                break error;
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        drop(theirs);
        assert_eq!(write(&ours, b"x").expect_err("no reader").kind(), io::ErrorKind::BrokenPipe);
    }
}
