//! The parts of a packet that the router needs: its addresses, its size, and where to segment it.
//!
//! A TCP sender hands over up to 64 KiB at once, a *large packet*, which a network card would segment. The models see
//! each segment; segments that leave together are written as one large packet again, or as several, or as single ones:
//! see [`Packet::write`]. Input is not trusted: a packet that contradicts its header is `None`.

use std::io::{self, IoSlice};
use std::net::IpAddr;

use amped_sys::tun::HEADER_BYTES;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum field holds the sum of the pseudo header alone.
const NEEDS_CHECKSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_TCPV4`.
const GSO_TCP4: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_TCPV6`.
const GSO_TCP6: u8 = 4;
/// `VIRTIO_NET_HDR_GSO_ECN`: a flag in addition to the other two.
const GSO_ECN: u8 = 0x80;

/// The layout of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// Number of segments that a network card would make of it; 1 for most packets.
    pub segments: u32,
    /// Offset of the TCP header; for large packets only.
    tcp: usize,
    /// Offset of the data to be segmented.
    data: usize,
    /// Bytes of data in each segment but the last.
    segment_data: usize,
}

/// Parses the header of a packet from [`amped_sys::tun::Tun::read`].
pub fn layout(packet: &[u8]) -> Option<Layout> {
    let (header, ip) = packet.split_at_checked(HEADER_BYTES)?;
    let (source, destination): (IpAddr, IpAddr) = match ip.first()? >> 4 {
        4 => {
            let addresses = ip.get(12..20)?;
            let address = |at: usize| <[u8; 4]>::try_from(&addresses[at..at + 4]).map(IpAddr::from);
            (address(0).ok()?, address(4).ok()?)
        }
        6 => {
            let addresses = ip.get(8..40)?;
            let address = |at: usize| <[u8; 16]>::try_from(&addresses[at..at + 16]).map(IpAddr::from);
            (address(0).ok()?, address(16).ok()?)
        }
        _ => return None,
    };
    let whole = Layout { source, destination, segments: 1, tcp: ip.len(), data: ip.len(), segment_data: 0 };
    let field = |at: usize| usize::from(u16::from_ne_bytes([header[at], header[at + 1]]));
    match header[1] & !GSO_ECN {
        0 => Some(whole),
        kind @ (GSO_TCP4 | GSO_TCP6) => {
            if (kind == GSO_TCP4) != source.is_ipv4() || header[0] & NEEDS_CHECKSUM == 0 {
                return None;
            }
            let (segment_data, tcp) = (field(4), field(6));
            let data = tcp + usize::from(ip.get(tcp + 12)? >> 4) * 4;
            let ip_header = if source.is_ipv4() { 20 } else { 40 };
            if tcp < ip_header || data < tcp + 20 || data > ip.len() || segment_data == 0 {
                return None;
            }
            let segments = (ip.len() - data).div_ceil(segment_data).max(1) as u32;
            Some(Layout { segments, tcp, data, segment_data, ..whole })
        }
        _ => None,
    }
}

/// A packet with its device header, as read.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The device header, followed by the IP packet.
    pub bytes: &'a [u8],
    /// The result of [`layout`].
    pub layout: &'a Layout,
}

impl Packet<'_> {
    /// The size of segment number `n` at layer 3.
    pub fn segment_bytes(&self, n: u32) -> u32 {
        let (from, to) = self.data_of(n, n + 1);
        (self.layout.data + to - from) as u32
    }

    /// The range of the data of segments `first..end`, relative to the end of all headers.
    fn data_of(&self, first: u32, end: u32) -> (usize, usize) {
        let all = self.bytes.len() - HEADER_BYTES - self.layout.data;
        let at = |n: u32| (n as usize * self.layout.segment_data).min(all);
        (at(first), at(end))
    }

    /// Writes segments `first..end` as one packet, by calling `write` with its pieces. `scratch` holds a new header.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn write(
        &self,
        first: u32,
        end: u32,
        scratch: &mut Vec<u8>,
        write: impl FnOnce(&[IoSlice<'_>]) -> io::Result<()>,
    ) -> io::Result<()> {
        if first == 0 && end == self.layout.segments {
            return write(&[IoSlice::new(self.bytes)]);
        }
        let (from, to) = self.data_of(first, end);
        let Layout { tcp, data, segments, .. } = *self.layout;
        let headers = HEADER_BYTES + data;
        scratch.clear();
        scratch.extend_from_slice(&self.bytes[..headers]);
        let (vnet, ip) = scratch.split_at_mut(HEADER_BYTES);
        if end - first == 1 {
            // No longer a large packet: type and segment size are 0.
            vnet[1] = 0;
            vnet[4..6].fill(0);
        }
        let bytes = data + to - from;
        // As a network card segments (Linux, `inet_gso_segment` and `tcp_gso_segment`).
        if self.layout.source.is_ipv4() {
            ip[2..4].copy_from_slice(&(bytes as u16).to_be_bytes());
            let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(first as u16);
            ip[4..6].copy_from_slice(&id.to_be_bytes());
            ip[10..12].fill(0);
            let header = usize::from(ip[0] & 0x0f).max(5) * 4;
            let checksum = !folded(sum(&ip[..header.min(tcp)]));
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        } else {
            ip[4..6].copy_from_slice(&((bytes - 40) as u16).to_be_bytes());
        }
        let addresses = if self.layout.source.is_ipv4() { sum(&ip[12..20]) } else { sum(&ip[8..40]) };
        let header = &mut ip[tcp..];
        let sequence = u32::from_be_bytes([header[4], header[5], header[6], header[7]]).wrapping_add(from as u32);
        header[4..8].copy_from_slice(&sequence.to_be_bytes());
        if end < segments {
            header[13] &= !(FIN | PSH);
        }
        if first > 0 {
            header[13] &= !CWR;
        }
        // The pseudo header of RFC 9293, 3.1: addresses, protocol, length.
        // The kernel completes the checksum if the packet leaves the machine.
        let pseudo = folded(addresses + PROTOCOL_TCP + (bytes - tcp) as u64);
        header[16..18].copy_from_slice(&pseudo.to_be_bytes());
        write(&[IoSlice::new(scratch), IoSlice::new(&self.bytes[headers + from..headers + to])])
    }
}

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;
const PROTOCOL_TCP: u64 = 6;

/// The sum of RFC 1071 over 16-bit words, before folding.
fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0))).sum()
}

fn folded(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A TCP packet over IPv4 or IPv6 with `data` bytes, to be
    /// segmented after each `segment` bytes; 0 for no segmentation.
    fn tcp_packet(v6: bool, data: usize, segment: usize) -> Vec<u8> {
        let ip = if v6 { 40 } else { 20 };
        let mut packet = vec![0; HEADER_BYTES + ip + 32 + data];
        let (vnet, rest) = packet.split_at_mut(HEADER_BYTES);
        vnet[0] = NEEDS_CHECKSUM;
        if segment > 0 {
            vnet[1] = if v6 { GSO_TCP6 } else { GSO_TCP4 };
            vnet[2..4].copy_from_slice(&((ip + 32) as u16).to_ne_bytes());
            vnet[4..6].copy_from_slice(&(segment as u16).to_ne_bytes());
        }
        vnet[6..8].copy_from_slice(&(ip as u16).to_ne_bytes());
        vnet[8..10].copy_from_slice(&16u16.to_ne_bytes());
        if v6 {
            rest[0] = 0x60;
            rest[4..6].copy_from_slice(&((32 + data) as u16).to_be_bytes());
            (rest[6], rest[8], rest[24], rest[23], rest[39]) = (6, 0xfd, 0xfd, 1, 2);
        } else {
            rest[0] = 0x45;
            rest[2..4].copy_from_slice(&((20 + 32 + data) as u16).to_be_bytes());
            rest[9] = 6;
            rest[12..20].copy_from_slice(&[10, 77, 0, 1, 10, 77, 0, 2]);
        }
        let tcp = &mut rest[ip..];
        tcp[4..8].copy_from_slice(&0xffff_ff00u32.to_be_bytes());
        (tcp[12], tcp[13]) = (0x80, 0x10 | FIN | PSH | CWR);
        for (n, byte) in tcp[32..].iter_mut().enumerate() {
            *byte = n as u8;
        }
        packet
    }

    fn written(packet: &[u8], first: u32, end: u32) -> Vec<u8> {
        let layout = layout(packet).expect("a packet");
        let mut out = Vec::new();
        Packet { bytes: packet, layout: &layout }
            .write(first, end, &mut Vec::new(), |pieces| {
                pieces.iter().for_each(|piece| out.extend_from_slice(piece));
                Ok(())
            })
            .expect("no error of write's");
        out
    }

    #[test]
    fn packet_layouts_are_parsed() {
        let check = |packet: &[u8], expected: Option<(&str, &str, u32)>| {
            let found = layout(packet).map(|layout| (layout.source, layout.destination, layout.segments));
            let expected = expected.map(|(from, to, n)| (from.parse().expect("ip"), to.parse().expect("ip"), n));
            assert_eq!(found, expected);
        };
        check(&tcp_packet(false, 100, 0), Some(("10.77.0.1", "10.77.0.2", 1)));
        check(&tcp_packet(false, 1400, 1400), Some(("10.77.0.1", "10.77.0.2", 1)));
        check(&tcp_packet(false, 1401, 1400), Some(("10.77.0.1", "10.77.0.2", 2)));
        check(&tcp_packet(true, 64_000, 1000), Some(("fd00::1", "fd00::2", 64)));
        check(&[], None);
        check(&[0; HEADER_BYTES], None);
        // Truncated in the IP header, in the TCP header, and not truncated.
        let whole = tcp_packet(false, 0, 1400);
        for length in 0..HEADER_BYTES + 20 + 13 {
            check(&whole[..length], None);
        }
        let mut other = tcp_packet(false, 100, 50);
        other[1] = GSO_TCP6;
        check(&other, None);
        other[1] = 3;
        check(&other, None);
    }

    #[test]
    fn segments_match_hardware_offload() {
        for v6 in [false, true] {
            let ip = if v6 { 40 } else { 20 };
            let packet = tcp_packet(v6, 2500, 1000);
            let segments = [written(&packet, 0, 1), written(&packet, 1, 2), written(&packet, 2, 3)];
            for (n, segment) in segments.iter().enumerate() {
                let ip_packet = &segment[HEADER_BYTES..];
                let data = [1000, 1000, 500][n];
                assert_eq!(ip_packet.len(), ip + 32 + data);
                assert_eq!((segment[0], segment[1], &segment[4..6]), (NEEDS_CHECKSUM, 0, &[0, 0][..]));
                let length = |at: usize| usize::from(u16::from_be_bytes([ip_packet[at], ip_packet[at + 1]]));
                if v6 {
                    assert_eq!(length(4), 32 + data);
                } else {
                    assert_eq!((length(2), length(4)), (52 + data, n), "length and number");
                    assert_eq!(folded(sum(&ip_packet[..20])), 0xffff, "checksum of the header");
                }
                let tcp = &ip_packet[ip..];
                let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
                assert_eq!(sequence, 0xffff_ff00u32.wrapping_add(1000 * n as u32));
                assert_eq!(tcp[13], 0x10 | [CWR, 0, FIN | PSH][n], "flags");
                assert_eq!(&tcp[32..], &packet[HEADER_BYTES + ip + 32 + 1000 * n..][..data]);
            }
            let two = written(&packet, 1, 3);
            assert_eq!((two.len(), two[1] != 0), (HEADER_BYTES + ip + 32 + 1500, true), "a large packet still");
            assert_eq!(written(&packet, 0, 3), packet);
        }
    }

    proptest! {
        #[test]
        fn segmentation_preserves_payload(v6: bool, data in 1..9000usize, segment in 1..3000usize, at: u32) {
            let packet = tcp_packet(v6, data, segment);
            let layout = layout(&packet).expect("a packet");
            let view = Packet { bytes: &packet, layout: &layout };
            let headers = layout.data as u32;
            let sizes: u32 = (0..layout.segments).map(|n| view.segment_bytes(n) - headers).sum();
            prop_assert_eq!(sizes as usize, data);
            let at = at % (layout.segments + 1);
            let part = |first, end| if first == end { Vec::new() } else {
                written(&packet, first, end)[HEADER_BYTES + layout.data..].to_vec()
            };
            let joined = [part(0, at), part(at, layout.segments)].concat();
            prop_assert_eq!(&joined[..], &packet[HEADER_BYTES + layout.data..]);
        }

        #[test]
        fn random_packet_does_not_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0..6u8, version in 3..8u8) {
            if bytes.len() > HEADER_BYTES {
                (bytes[0], bytes[1]) = (NEEDS_CHECKSUM, kind);
                let tcp = u16::from(bytes[6] % 64);
                bytes[6..8].copy_from_slice(&tcp.to_ne_bytes());
                bytes[HEADER_BYTES] = version << 4 | bytes[HEADER_BYTES] & 0x0f;
            }
            if let Some(layout) = layout(&bytes) {
                for n in 0..layout.segments.min(50) {
                    written(&bytes, n, n + 1);
                }
            }
        }
    }
}
