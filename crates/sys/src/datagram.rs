//! Datagram sockets with the kernel's arrival time of each packet, which does not depend on when the reader runs.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd};

use nix::sys::socket::sockopt::ReceiveTimestampns;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt};
use nix::sys::time::TimeSpec;
use rustix::time::{ClockId, clock_gettime};

use crate::clock::{monotonic_ns, nanos};

/// Makes the kernel record when it receives packets for this socket (`SO_TIMESTAMPNS`, socket(7)).
///
/// # Errors
/// None for a socket.
pub fn stamp_arrivals(socket: impl AsFd) -> io::Result<()> {
    Ok(setsockopt(&socket.as_fd(), ReceiveTimestampns, &true)?)
}

/// Receives a packet into `buffer`. Returns its length and when the kernel received it, in nanoseconds as in
/// [`crate::clock::monotonic_ns`]; without [`stamp_arrivals`] that is the current time.
///
/// # Errors
/// Those of recvmsg(2); [`io::ErrorKind::WouldBlock`] when the socket's timeout expires.
pub fn receive_stamped(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, u64)> {
    let mut control = nix::cmsg_space!(TimeSpec);
    let mut pieces = [IoSliceMut::new(buffer)];
    let message = recvmsg::<()>(socket.as_fd().as_raw_fd(), &mut pieces, Some(&mut control), MsgFlags::empty())?;
    // Read in immediate succession, so that both mean the same moment.
    let (monotonic, real) = (monotonic_ns(), nanos(clock_gettime(ClockId::Realtime)));
    let stamp = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::ScmTimestampns(stamp) => {
            Some(stamp.tv_sec() as u64 * 1_000_000_000 + stamp.tv_nsec() as u64)
        }
        _ => None,
    });
    let arrived = stamp.map_or(monotonic, |stamp| monotonic - real.saturating_sub(stamp).min(monotonic));
    Ok((message.bytes, arrived))
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
