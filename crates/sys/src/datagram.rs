//! Datagram sockets with the kernel's arrival time of each packet, which does not depend on when the reader runs.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

use rustix::time::{ClockId, clock_gettime};

use crate::clock::{monotonic_ns, nanos};

/// Makes the kernel record when it receives packets for this socket (`SO_TIMESTAMPNS`, socket(7)).
///
/// # Errors
/// None for a socket.
pub fn stamp_arrivals(socket: impl AsFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: setsockopt(2) reads one int from `on`, alive for the call, and its length is given; the descriptor is open as it
    // is borrowed. JUSTIFICATION: neither std nor rustix has this option.
    match unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, (&raw const on).cast(), length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Receives a packet into `buffer`. Returns its length and when the kernel received it, in nanoseconds as in
/// [`crate::clock::monotonic_ns`]; without [`stamp_arrivals`] that is the current time.
///
/// # Errors
/// As recvmsg(2); [`io::ErrorKind::WouldBlock`] when the socket's timeout expires.
pub fn receive_stamped(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, u64)> {
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // Words, so that a header may be at their beginning; one message with a time needs 32 bytes.
    let mut control = [0u64; 16];
    // SAFETY: all of its fields are numbers and pointers, for which zero is a valid value.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: `message` points to `piece` and `control` with their lengths, and `piece` to `buffer` with
    // its length; all are alive, and nothing else accesses them during the call. JUSTIFICATION: neither std
    // nor rustix returns this kind of message.
    let length = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, 0) };
    let Ok(length) = usize::try_from(length) else { return Err(io::Error::last_os_error()) };
    // Read in immediate succession, so that both mean the same moment.
    let (monotonic, real) = (monotonic_ns(), nanos(clock_gettime(ClockId::Realtime)));
    let mut arrived = monotonic;
    // SAFETY: recvmsg(2) has filled in `message`; CMSG_FIRSTHDR and CMSG_NXTHDR yield null or headers within its control part.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: not null, so a header within `control`, which is alive; see above.
        let found = unsafe { header.read_unaligned() };
        if (found.cmsg_level, found.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
            // SAFETY: the data of a message of this type are one timespec (socket(7)).
            let stamp = unsafe { libc::CMSG_DATA(header).cast::<libc::timespec>().read_unaligned() };
            let stamp = stamp.tv_sec as u64 * 1_000_000_000 + stamp.tv_nsec as u64;
            arrived = monotonic - real.saturating_sub(stamp).min(monotonic);
        }
        // SAFETY: as for the first one.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    Ok((length, arrived))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn packet_timestamp_is_arrival_time() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
        socket.connect(socket.local_addr().expect("bound")).expect("connected");
        stamp_arrivals(&socket).expect("set");
        // The kernel starts to take timestamps a moment after the first request.
        let pause = Duration::from_millis(30);
        let shows = (0..100).any(|_| {
            let before = monotonic_ns();
            socket.send(b"packet").expect("sent");
            let sent = monotonic_ns();
            thread::sleep(pause);
            let (length, arrived) = receive_stamped(&socket, &mut [0; 16]).expect("received");
            assert_eq!(length, 6);
            // The two clocks are read in succession; other threads may run in between.
            arrived + 1_000_000 >= before && arrived < sent + pause.as_nanos() as u64 / 2
        });
        assert!(shows);
        socket.set_read_timeout(Some(Duration::from_millis(1))).expect("set");
        let error = receive_stamped(&socket, &mut [0; 16]).expect_err("no packet");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
