//! Parses `/proc/net/{snmp,netstat,sockstat,dev}` (proc_pid_net(5)): the traffic of one network namespace.
//!
//! The first two are pairs of lines, names and numbers. They are parsed by name: kernels insert
//! fields in the middle, and column numbers would be wrong.

use crate::figure::figures;

figures! {
    /// TCP as a whole (RFC 4022, and the kernel's `net/ipv4/proc.c`), since the namespace was created.
    Tcp "tcp"
    /// Connections opened by this side.
    active_opens: Option<N> => Counter Things "ActiveOpens",
    /// Connections opened by other hosts.
    passive_opens: Option<N> => Counter Things "PassiveOpens",
    /// Connections reset.
    resets: Option<N> => Counter Things "EstabResets" as "resets",
    /// Segments received.
    segments_in: Option<N> => Counter Things "InSegs" as "in",
    /// Segments sent, without retransmissions.
    segments_out: Option<N> => Counter Things "OutSegs" as "out",
    /// Segments with data sent, without retransmissions.
    data_segments_out: Option<N> => Counter Things "TCPOrigDataSent",
    /// Segments retransmitted.
    retransmits: Option<N> => Counter Things "RetransSegs" as "retrans",
    /// Overflows of the accept queue of any listener.
    listen_overflows: Option<N> => Counter Things "ListenOverflows",
    /// Connections dropped by any listener, for this or another reason.
    listen_drops: Option<N> => Counter Things "ListenDrops",
    /// SYN cookies sent because the queue of half-open connections was full.
    syn_cookies_sent: Option<N> => Counter Things "SyncookiesSent",
    /// Segments dropped because the backlog of their socket was full: its process did not run or read in time.
    backlog_drops: Option<N> => Counter Things "TCPBacklogDrop",
    /// Retransmission timeouts.
    timeouts: Option<N> => Counter Things "TCPTimeouts",
    /// Sockets in TIME_WAIT.
    time_wait: Option<N> => Gauge Things "tw",
    /// Sockets without a descriptor that still have data to send.
    orphans: Option<N> => Gauge Things "orphan",
}

impl Tcp {
    /// Parses the table of this name in `/proc/net/snmp` or `netstat`: a line of names, and one of numbers.
    pub fn take_table(&mut self, table: &str, text: &str) {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(table));
        let (names, numbers) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        for (name, number) in names.split_ascii_whitespace().zip(numbers.split_ascii_whitespace()) {
            number.parse().into_iter().for_each(|number| self.take(name, number));
        }
    }

    /// Parses `/proc/net/sockstat`: alternating names and numbers.
    pub fn take_sockets(&mut self, text: &str) {
        let line = text.lines().find_map(|line| line.strip_prefix("TCP:")).unwrap_or_default();
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        for [name, number] in words.as_chunks().0 {
            number.parse().into_iter().for_each(|number| self.take(name, number));
        }
    }
}

figures! {
    /// A network interface, since it was created.
    Interface "network" {
        /// Its name.
        device: String,
    }
    /// Bytes received.
    received: N => Counter Bytes as "in",
    /// Packets received; larger than on the wire if the interface merges segments.
    received_packets: N => Counter Things,
    /// Received packets that were dropped.
    received_drops: N => Counter Things,
    /// Bytes sent.
    sent: N => Counter Bytes as "out",
    /// Packets sent.
    sent_packets: N => Counter Things,
    /// Outgoing packets that were dropped.
    sent_drops: N => Counter Things,
}

impl Interface {
    /// Parses `/proc/net/dev`: interfaces with any traffic.
    pub fn parse(text: &str) -> Vec<Interface> {
        let interface = |line: &str| {
            let (device, numbers) = line.split_once(':')?;
            let mut fields = [0_u64; 12];
            let mut numbers = numbers.split_ascii_whitespace();
            for field in &mut fields {
                *field = numbers.next()?.parse().ok()?;
            }
            let [received, received_packets, _, received_drops, _, _, _, _, sent, sent_packets, _, sent_drops] = fields;
            let device = (received_packets | sent_packets != 0).then(|| device.trim().to_owned())?;
            Some(Interface { device, received, received_packets, received_drops, sent, sent_packets, sent_drops })
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

    fn tcp(snmp: &str, netstat: &str, sockstat: &str) -> Tcp {
        let mut tcp = Tcp::default();
        tcp.take_table("Tcp:", snmp);
        tcp.take_table("TcpExt:", netstat);
        tcp.take_sockets(sockstat);
        tcp
    }

    #[test]
    fn tcp_counters_are_parsed_by_name() {
        let expected = Tcp {
            active_opens: Some(5_255_298),
            passive_opens: Some(5_150_412),
            resets: Some(1_264_143),
            segments_in: Some(306_024_276),
            segments_out: Some(306_277_915),
            data_segments_out: Some(13),
            retransmits: Some(248_986),
            listen_overflows: Some(7),
            listen_drops: Some(9),
            syn_cookies_sent: Some(0),
            timeouts: Some(11),
            time_wait: Some(12),
            orphans: Some(4),
            ..Tcp::default()
        };
        assert_eq!(tcp(SNMP, NETSTAT, SOCKSTAT), expected);
        // A field that a later kernel inserts.
        let more = NETSTAT.replace("ListenDrops", "New ListenDrops").replace(" 9 ", " 5 9 ");
        assert_eq!(tcp(SNMP, &more, SOCKSTAT), expected);
        // Missing fields are unknown, the others are not affected.
        let less = tcp(SNMP, "", "TCP: inuse 1 tw");
        assert_eq!((less.listen_drops, less.time_wait, less.retransmits), (None, None, expected.retransmits));
    }

    #[test]
    fn active_interfaces_are_listed() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes    packets errs drop\n\
            \u{20}   lo: 2784826248601 306011582    0    1    0     0          0         0 2784826248602 306011583    0    2    0     0       0          0\n\
            \u{20} ifb0:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0\n";
        let expected = Interface {
            device: "lo".to_owned(),
            received: 2_784_826_248_601,
            received_packets: 306_011_582,
            received_drops: 1,
            sent: 2_784_826_248_602,
            sent_packets: 306_011_583,
            sent_drops: 2,
        };
        assert_eq!(Interface::parse(text), [expected]);
    }

    proptest::proptest! {
        #[test]
        fn random_text_does_not_panic(text in "\\PC{0,100}", cut in 0..SNMP.len()) {
            Interface::parse(&text);
            tcp(&SNMP[..cut], NETSTAT, &text);
        }
    }
}
