//! `/proc/net/{snmp,netstat,sockstat,dev}` (proc_pid_net(5)): what the network did, in one network namespace.
//!
//! The first two are pairs of lines, names and numbers. They are read by name: kernels add fields in the middle, and who
//! counts columns reads the wrong ones.

use serde::{Deserialize, Serialize};

/// What the network did since the namespace was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// TCP.
    pub tcp: Tcp,
    /// The interfaces.
    pub interfaces: Vec<Interface>,
}

/// TCP as a whole (RFC 4022, and the kernel's `net/ipv4/proc.c`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tcp {
    /// Connections that this side began.
    pub active_opens: u64,
    /// Connections that others began.
    pub passive_opens: u64,
    /// Connections that were reset.
    pub resets: u64,
    /// Segments that came.
    pub segments_in: u64,
    /// Segments that went, without those sent again.
    pub segments_out: u64,
    /// Of these, the ones with data.
    #[serde(default)]
    pub data_segments_out: u64,
    /// Segments that were sent again.
    pub segments_again: u64,
    /// Times that the queue of a listener was full.
    pub listen_overflows: u64,
    /// Connections that a listener turned away, for this or another reason.
    pub listen_drops: u64,
    /// Time-outs of retransmission.
    pub timeouts: u64,
    /// Sockets in `TIME_WAIT` at this moment.
    pub time_wait_now: u64,
    /// Sockets without a descriptor at this moment, that still have something to send.
    pub orphans_now: u64,
}

impl Tcp {
    /// Reads the three files.
    pub fn parse(snmp: &str, netstat: &str, sockstat: &str) -> Option<Tcp> {
        let mut tcp = Tcp::default();
        let known = [
            (snmp, "Tcp:", "ActiveOpens", &mut tcp.active_opens),
            (snmp, "Tcp:", "PassiveOpens", &mut tcp.passive_opens),
            (snmp, "Tcp:", "EstabResets", &mut tcp.resets),
            (snmp, "Tcp:", "InSegs", &mut tcp.segments_in),
            (snmp, "Tcp:", "OutSegs", &mut tcp.segments_out),
            (netstat, "TcpExt:", "TCPOrigDataSent", &mut tcp.data_segments_out),
            (snmp, "Tcp:", "RetransSegs", &mut tcp.segments_again),
            (netstat, "TcpExt:", "ListenOverflows", &mut tcp.listen_overflows),
            (netstat, "TcpExt:", "ListenDrops", &mut tcp.listen_drops),
            (netstat, "TcpExt:", "TCPTimeouts", &mut tcp.timeouts),
        ];
        for (text, table, name, place) in known {
            *place = field(text, table, name)?;
        }
        let line = sockstat.lines().find_map(|line| line.strip_prefix("TCP:"))?;
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let now = |name: &str| -> Option<u64> {
            words.as_chunks::<2>().0.iter().find(|[word, _]| *word == name)?[1].parse().ok()
        };
        (tcp.time_wait_now, tcp.orphans_now) = (now("tw")?, now("orphan")?);
        Some(tcp)
    }
}

/// The number below this name, in the table that begins so.
fn field(text: &str, table: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with(table));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let column = names.split_ascii_whitespace().position(|one| one == name)?;
    numbers.split_ascii_whitespace().nth(column)?.parse().ok()
}

/// One interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Bytes received.
    pub in_bytes: u64,
    /// Packets received; behind an interface that joins segments, larger ones than on the wire.
    pub in_packets: u64,
    /// Packets that were received and dropped.
    pub in_drops: u64,
    /// Bytes sent.
    pub out_bytes: u64,
    /// Packets sent.
    pub out_packets: u64,
    /// Packets that were not sent.
    pub out_drops: u64,
}

impl Interface {
    /// Reads `/proc/net/dev`: those that ever did something.
    pub fn parse(text: &str) -> Vec<Interface> {
        let interface = |line: &str| {
            let (name, numbers) = line.split_once(':')?;
            let mut fields = [0_u64; 12];
            let mut numbers = numbers.split_ascii_whitespace();
            for field in &mut fields {
                *field = numbers.next()?.parse().ok()?;
            }
            let [in_bytes, in_packets, _, in_drops, _, _, _, _, out_bytes, out_packets, _, out_drops] = fields;
            let name = (in_packets | out_packets != 0).then(|| name.trim().to_owned())?;
            Some(Interface { name, in_bytes, in_packets, in_drops, out_bytes, out_packets, out_drops })
        };
        text.lines().filter_map(interface).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SNMP: &str = "Ip: Forwarding DefaultTTL\nIp: 2 64\n\
        Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails EstabResets CurrEstab InSegs OutSegs RetransSegs InErrs OutRsts InCsumErrors\n\
        Tcp: 1 200 120000 -1 5255298 5150412 104711 1264143 0 306024276 306277915 248986 0 901927 0\n";
    const NETSTAT: &str = "TcpExt: SyncookiesSent ListenOverflows ListenDrops TCPTimeouts TCPOrigDataSent\nTcpExt: 0 7 9 11 13\n\
        IpExt: InNoRoutes\nIpExt: 0\n";
    const SOCKSTAT: &str = "sockets: used 13\nTCP: inuse 1 orphan 4 tw 12 alloc 1 mem 212\nUDP: inuse 0 mem 0\n";

    #[test]
    fn tcp_by_name() {
        let expected = Tcp {
            active_opens: 5_255_298,
            passive_opens: 5_150_412,
            resets: 1_264_143,
            segments_in: 306_024_276,
            segments_out: 306_277_915,
            data_segments_out: 13,
            segments_again: 248_986,
            listen_overflows: 7,
            listen_drops: 9,
            timeouts: 11,
            time_wait_now: 12,
            orphans_now: 4,
        };
        assert_eq!(Tcp::parse(SNMP, NETSTAT, SOCKSTAT), Some(expected));
        // A field that a later kernel puts between.
        let more = NETSTAT.replace("ListenDrops", "New ListenDrops").replace(" 9 ", " 5 9 ");
        assert_eq!(Tcp::parse(SNMP, &more, SOCKSTAT), Some(expected));
        assert_eq!(Tcp::parse(SNMP, "", SOCKSTAT), None);
        assert_eq!(Tcp::parse(SNMP, NETSTAT, "TCP: inuse 1"), None);
    }

    #[test]
    fn interfaces_that_did_something() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes    packets errs drop\n\
            \u{20}   lo: 2784826248601 306011582    0    1    0     0          0         0 2784826248602 306011583    0    2    0     0       0          0\n\
            \u{20} ifb0:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0\n";
        let expected = Interface {
            name: "lo".to_owned(),
            in_bytes: 2_784_826_248_601,
            in_packets: 306_011_582,
            in_drops: 1,
            out_bytes: 2_784_826_248_602,
            out_packets: 306_011_583,
            out_drops: 2,
        };
        assert_eq!(Interface::parse(text), [expected]);
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_stop(text in "\\PC{0,100}", cut in 0..SNMP.len()) {
            Interface::parse(&text);
            Tcp::parse(&SNMP[..cut], NETSTAT, SOCKSTAT);
            Tcp::parse(SNMP, NETSTAT, &text);
        }
    }
}
