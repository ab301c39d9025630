//! The client that proxies name: never a panic; what a client has sent does not matter if a proxy adds a line of its own,
//! unless it is malformed.
#![no_main]

use std::net::{IpAddr, Ipv4Addr};

use amped_http::forwarded::{ClientField, Malformed, chain, origin};

const PROXY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let cases = [
        (ClientField::XForwardedFor, "X-Forwarded-For", "192.0.2.1, 10.0.0.1"),
        (ClientField::Forwarded, "Forwarded", "for=192.0.2.1;proto=https, for=10.0.0.1"),
    ];
    for (field, name, own) in cases {
        let alone = || [(name.as_bytes(), bytes)].into_iter();
        if let Ok(origin) = origin(alone, field, |address| address == PROXY)
            && let Some((address, count)) = origin.client
        {
            let chain = chain(alone(), field, count);
            assert_eq!((chain.first(), chain.len()), (Some(&address), count));
        }
        let fields = || alone().chain([(name.as_bytes(), own.as_bytes())]);
        match origin(fields, field, |address| address == PROXY) {
            Ok(origin) => assert_eq!(origin.client, Some((CLIENT, 2))),
            Err(Malformed) => assert_eq!(field, ClientField::Forwarded),
        }
    }
});
