//! The client of a request: the peer of its connection, or the one that a trusted proxy names.
//!
//! The protocols call [`identify`] between stops 4 and 5, if the configuration needs clients' addresses. Before it,
//! `server/turn` has put the peer's address into the shared state.

use core::net::IpAddr;

use amped_http::forwarded::{self, Client, Malformed};
use amped_http::h1::request::{self, BadHead, Request};
use amped_http::status::Status;

use crate::site::Sites;

/// Adds the client to a request, and the scheme that it used. `peer`: the other end of the connection; `head`: the bytes
/// from which the request was parsed.
///
/// # Errors
/// A trusted proxy has sent a field in which entries cannot be told apart, so the client may have forged any of them.
pub(crate) fn identify(
    request: &mut Request<'_>,
    head: &[u8],
    peer: Option<IpAddr>,
    sites: &Sites,
) -> Result<(), BadHead> {
    let Some(peer) = peer else { return Ok(()) };
    request.client = Some(Client { address: peer, named: None });
    let Some(proxies) = sites.proxies().filter(|proxies| proxies.are_trusted(peer)) else { return Ok(()) };
    let origin = forwarded::origin(|| request::fields(head), proxies.field, |address| proxies.are_trusted(address))
        .map_err(|Malformed| BadHead { status: Status::BAD_REQUEST, why: "malformed Forwarded field" })?;
    if let Some((address, count)) = origin.client {
        request.client = Some(Client { address, named: Some((proxies.field, count)) });
    }
    request.secure = origin.secure.unwrap_or(request.secure);
    Ok(())
}
