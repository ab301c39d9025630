//! Names of addresses and addresses of names, through the C library: from files, the DNS, or wherever
//! nsswitch.conf(5) and resolv.conf(5) say.
//!
//! Both functions block; with a silent name server for as long as resolv.conf(5) says: 10 s for each server by default.
//! A thread with other duties must not call them.

use std::ffi::{CStr, CString};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ptr;

use rustix::net::SocketAddrAny;
use rustix::net::addr::SocketAddrArg;

/// Returns the host name of an address, according to the owner of the address; bytes that are not
/// UTF-8 become U+FFFD. `None`: it has no name.
///
/// # Errors
/// When no name server answers, or as getnameinfo(3).
pub fn name_of(address: IpAddr) -> io::Result<Option<String>> {
    // NI_MAXHOST of <netdb.h>; names of the DNS are shorter.
    let mut host = [0; 1025];
    let (host_start, host_length) = (host.as_mut_ptr(), host.len() as libc::socklen_t);
    let (no_service, flags) = (ptr::null_mut(), libc::NI_NAMEREQD);
    // SAFETY: `with_sockaddr` lends a socket address and its length for the time of the call. getnameinfo(3) reads it
    // and writes a NUL-terminated text to `host`, whose length is given; no service is requested. JUSTIFICATION: std
    // resolves names to addresses, but not addresses to names.
    let error = unsafe {
        SocketAddr::new(address, 0).with_sockaddr(|start, length| {
            libc::getnameinfo(start.cast(), length, host_start, host_length, no_service, 0, flags)
        })
    };
    match error {
        // SAFETY: getnameinfo(3) succeeded, so `host`, which lives until the end, contains a NUL-terminated text.
        0 => Ok(Some(unsafe { CStr::from_ptr(host.as_ptr()) }.to_string_lossy().into_owned())),
        libc::EAI_NONAME => Ok(None),
        error => Err(failure(error)),
    }
}

/// Returns whether a host of this name has this address.
///
/// # Errors
/// When no name server answers, or as getaddrinfo(3).
pub fn has_address(name: &str, address: IpAddr) -> io::Result<bool> {
    let name = CString::new(name)?;
    let hints = libc::addrinfo {
        // One address family is one DNS query; std queries both.
        ai_family: if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 },
        // Each address once, rather than for each socket type.
        ai_socktype: libc::SOCK_STREAM,
        ai_flags: 0,
        ai_protocol: 0,
        ai_addrlen: 0,
        ai_addr: ptr::null_mut(),
        ai_canonname: ptr::null_mut(),
        ai_next: ptr::null_mut(),
    };
    let mut list = ptr::null_mut();
    // SAFETY: getaddrinfo(3) reads the NUL-terminated name and the hints, and writes a list, or nothing, to `list`; all three
    // live until it returns. JUSTIFICATION: the hints, see there.
    let error = unsafe { libc::getaddrinfo(name.as_ptr(), ptr::null(), &raw const hints, &raw mut list) };
    match error {
        0 => {}
        libc::EAI_NONAME | libc::EAI_NODATA => return Ok(false),
        error => return Err(failure(error)),
    }
    let (mut found, mut at) = (false, list);
    // SAFETY: getaddrinfo(3) succeeded, so `list` is a list that ends with a null pointer and lives until freeaddrinfo(3),
    // below; each `ai_addr` in it is a socket address of `ai_addrlen` bytes.
    unsafe {
        while let Some(one) = at.as_ref() {
            let socket_address = SocketAddrAny::read(one.ai_addr.cast(), one.ai_addrlen);
            found |= SocketAddr::try_from(socket_address).is_ok_and(|found| found.ip() == address);
            at = one.ai_next;
        }
        libc::freeaddrinfo(list);
    }
    Ok(found)
}

/// Converts an error of getaddrinfo(3) or getnameinfo(3).
fn failure(error: libc::c_int) -> io::Error {
    if error == libc::EAI_SYSTEM {
        return io::Error::last_os_error();
    }
    // SAFETY: gai_strerror(3) takes any number, and returns a constant text.
    io::Error::other(unsafe { CStr::from_ptr(libc::gai_strerror(error)) }.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    /// Without the DNS: only names that every machine has in its `/etc/hosts`.
    #[test]
    fn loopback_address_has_confirmed_name() {
        let address = IpAddr::from([127, 0, 0, 1]);
        let name = name_of(address).expect("answered").expect("127.0.0.1 is in /etc/hosts");
        assert!(has_address(&name, address).expect("answered"));
        assert!(!has_address(&name, IpAddr::from([127, 0, 0, 77])).expect("answered"));
        assert!(has_address("::1", Ipv6Addr::LOCALHOST.into()).expect("an address is its own name"));
        assert!(!has_address("::2", Ipv6Addr::LOCALHOST.into()).expect("and no other's"));
        assert!(has_address("a\0b", address).is_err());
    }
}
