//! Log lines that wait for a host name lookup.
//!
//! Lines are written in the order in which they arrived: a line that waits blocks those behind it until its name is
//! known or its timeout, which [`HostnameCache`] defines, expires. No line is lost here. When the buffer is full, the
//! oldest lines are released with whatever names are known by then.
//!
//! Pure: time is an argument.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::ops::Range;

use amped_core::cache::hostname::{HostnameAnswer, HostnameCache};
use amped_units::{Bytes, Time};

use crate::config::log_format::LogFormat;

/// The text of a JSON line before the time, and the text between the time and the client. The position of the client is
/// derived from them.
pub(super) const JSON_TIME: &[u8] = b"{\"time\":\"";
pub(super) const JSON_CLIENT: &[u8] = b"\",\"client\":\"";

/// Maximum text held: as much as the queue of the writer holds (`BATCHES_MAX` of the default buffer). With a silent
/// name server, this is 30,000 lines a second for 5 s.
const HELD_MAX: Bytes = Bytes::mib(16);

/// Memory kept for reuse after a burst of waiting lines.
pub(super) const SPARE_MAX: usize = 1 << 20;

/// The waiting lines, oldest first.
pub(super) struct Held {
    /// `text.len() - begin <= bytes_max`, except for a single line that is longer.
    bytes_max: usize,
    /// Their text; the first `begin` bytes have already been released.
    text: Vec<u8>,
    begin: usize,
    lines: VecDeque<Line>,
}

struct Line {
    length: usize,
    /// The position of the address in the line.
    address: Range<usize>,
    host: HostnameAnswer,
}

impl Default for Held {
    fn default() -> Held {
        Held { bytes_max: HELD_MAX.as_usize(), text: Vec::new(), begin: 0, lines: VecDeque::new() }
    }
}

impl Held {
    /// Returns whether no line waits.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Adds complete lines, and requests their host names if these are `wanted`. Lines released to make room are
    /// appended to `out`. Returns the number of lines released.
    pub(super) fn push(
        &mut self,
        lines: &[u8],
        format: &LogFormat,
        wanted: bool,
        names: &mut HostnameCache,
        now: Time,
        out: &mut Vec<u8>,
    ) -> u64 {
        let mut released = 0;
        for line in lines.split_inclusive(|&byte| byte == b'\n') {
            while !self.lines.is_empty() && self.text.len() - self.begin + line.len() > self.bytes_max {
                released += u64::from(self.release_one(Time::NEVER, names, out).is_ok());
            }
            let address = address_of(line, format);
            let text = std::str::from_utf8(line.get(address.clone()).unwrap_or_default()).unwrap_or_default();
            let host = match text.parse::<IpAddr>() {
                Ok(address) if wanted => names.ask(now, address),
                // `-`: the kernel did not report the client's address.
                _ => HostnameAnswer::Known(None),
            };
            self.text.extend_from_slice(line);
            self.lines.push_back(Line { length: line.len(), address, host });
        }
        released
    }

    /// Appends to `out` the lines that need not wait any longer, or all of them at [`Time::NEVER`]. Returns
    /// their number, and when to call this again.
    pub(super) fn release(&mut self, now: Time, names: &mut HostnameCache, out: &mut Vec<u8>) -> (u64, Time) {
        let mut released = 0;
        let due = loop {
            match self.release_one(now, names, out) {
                Ok(()) => released += 1,
                Err(due) => break due,
            }
        };
        // Released bytes are discarded once they are as many as the rest, so
        // each byte is moved at most once on average.
        if self.begin >= self.text.len() - self.begin {
            self.text.drain(..self.begin);
            self.text.shrink_to(SPARE_MAX);
            self.begin = 0;
        }
        (released, due)
    }

    fn release_one(&mut self, now: Time, names: &mut HostnameCache, out: &mut Vec<u8>) -> Result<(), Time> {
        let line = self.lines.front().ok_or(Time::NEVER)?;
        let name = match &line.host {
            HostnameAnswer::Known(name) => name.clone(),
            HostnameAnswer::Later(id) => names.collect(now, *id)?,
        };
        let text = &self.text[self.begin..self.begin + line.length];
        match &name {
            Some(name) => {
                out.extend_from_slice(&text[..line.address.start]);
                out.extend_from_slice(name.as_bytes());
                out.extend_from_slice(&text[line.address.end..]);
            }
            None => out.extend_from_slice(text),
        }
        self.begin += line.length;
        self.lines.pop_front();
        Ok(())
    }
}

/// Returns the position of the client's address in a line. Nothing before it comes from the client: it is the first
/// field of Common and Combined, and the second of JSON, after the time; neither contains a quote.
fn address_of(line: &[u8], format: &LogFormat) -> Range<usize> {
    let up_to = |start: usize, end: u8| {
        let length = line.get(start..).and_then(|rest| rest.iter().position(|&byte| byte == end));
        start..start + length.unwrap_or(0)
    };
    match format {
        LogFormat::Common | LogFormat::Combined => up_to(0, b' '),
        LogFormat::Json => {
            let time = up_to(JSON_TIME.len(), b'"');
            up_to(time.end + JSON_CLIENT.len(), b'"')
        }
        // The configuration accepts no host names with these.
        LogFormat::Template(_) | LogFormat::Fields(_) => 0..0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_log::{AccessLog, Peer, Writer};
    use crate::clock::Clock;
    use crate::config::settings::{LogSettings, LogTarget};
    use amped_core::cache::hostname::HostnameLimits;
    use amped_core::record::Record;
    use amped_core::reply::WallClock;
    use proptest::prelude::*;
    use std::time::Duration;

    fn names() -> HostnameCache {
        HostnameCache::new(HostnameLimits::default())
    }

    fn at(seconds: u64) -> Time {
        Time::from_millis(seconds * 1000)
    }

    /// Answers all lookups: the last byte of the address determines the name, and odd ones have no name.
    fn answer(names: &mut HostnameCache, now: Time) {
        while let Some((id, address)) = names.next_lookup(now) {
            names.learn(now, id, name_of(address).map(Into::into));
        }
    }

    fn name_of(address: IpAddr) -> Option<String> {
        let IpAddr::V4(address) = address else { return Some("six.test".to_owned()) };
        let last = address.octets()[3];
        last.is_multiple_of(2).then(|| format!("host{last}.test"))
    }

    /// A line as a loop writes it, whose only client-supplied text is the address.
    fn line(format: LogFormat, peer: Option<&str>) -> String {
        let settings = LogSettings {
            access: LogTarget::Stdout,
            format,
            buffer: Bytes::mib(1),
            flush: Duration::from_secs(1),
            delayed: true,
            string_caches: true,
            hostnames: true,
            ..LogSettings::default()
        };
        let mut log = AccessLog::new(&settings, Some(Writer::new(&settings, Clock::start())));
        let mut record = Record::default();
        record.note_unreadable(b"10.0.0.9 - - {\"time\":\"x\",\"client\":\"10.0.0.9\" 10.0.0.2", Time::START);
        let peer = Peer::new(peer.map(|address| format!("{address}:80").parse().unwrap()));
        log.write(&record, (&peer, None), 0, &WallClock::at(0), Time::START);
        String::from_utf8(log.buffer).unwrap()
    }

    #[test]
    fn host_name_replaces_only_client_address() {
        for format in [LogFormat::Common, LogFormat::Combined, LogFormat::Json] {
            let check = |peer: Option<&str>, from: &str, to: &str| {
                let (mut held, mut names, mut out) = (Held::default(), names(), Vec::new());
                let line = line(format.clone(), peer);
                assert_eq!(held.push(line.as_bytes(), &format, true, &mut names, at(0), &mut out), 0);
                answer(&mut names, at(0));
                assert_eq!(held.release(at(0), &mut names, &mut out), (1, Time::NEVER));
                assert_eq!(String::from_utf8(out).unwrap(), line.replacen(from, to, 1));
            };
            check(Some("10.0.0.2"), "10.0.0.2", "host2.test");
            check(Some("10.0.0.1"), "10.0.0.1", "10.0.0.1");
            check(Some("[2001:db8::1]"), "2001:db8::1", "six.test");
            check(None, "-", "-");
        }
    }

    #[test]
    fn lines_wait_only_for_preceding_line() {
        let (mut held, mut names, mut out) = (Held::default(), names(), Vec::new());
        let push = |held: &mut Held, names: &mut HostnameCache, line: &str, now| {
            held.push(line.as_bytes(), &LogFormat::Common, true, names, now, &mut Vec::new());
        };
        push(&mut held, &mut names, "10.0.0.2 a\n10.0.0.4 b\n", at(0));
        let (slow, _) = names.next_lookup(at(0)).unwrap();
        answer(&mut names, at(1));
        assert_eq!(held.release(at(1), &mut names, &mut out), (0, at(5)));
        push(&mut held, &mut names, "10.0.0.2 c\n10.0.0.4 d\n- e\n", at(4));
        assert_eq!(held.release(at(4), &mut names, &mut out), (0, at(5)));
        assert_eq!((out.as_slice(), names.counts().hits), (&b""[..], 1));
        // The first lookup times out, and with it the other one for this address: they share a query.
        assert_eq!(held.release(at(5), &mut names, &mut out), (5, Time::NEVER));
        assert_eq!(out, b"10.0.0.2 a\nhost4.test b\n10.0.0.2 c\nhost4.test d\n- e\n");
        assert!(held.is_empty() && held.text.is_empty());
        names.learn(at(6), slow, Some("late.test".into()));
        out.clear();
        push(&mut held, &mut names, "10.0.0.2 f\n", at(6));
        assert_eq!(held.release(at(6), &mut names, &mut out), (1, Time::NEVER));
        assert_eq!(out, b"late.test f\n");
    }

    #[test]
    fn lookup_is_skipped_when_names_are_disabled() {
        let (mut held, mut names, mut out) = (Held::default(), names(), Vec::new());
        held.push(b"10.0.0.2 a\n", &LogFormat::Common, true, &mut names, at(0), &mut out);
        // Lookups are switched off meanwhile, while an earlier line still waits.
        held.push(b"10.0.0.4 b\n", &LogFormat::Common, false, &mut names, at(0), &mut out);
        assert_eq!((names.waiting(), names.counts().misses), (1, 1));
        answer(&mut names, at(0));
        assert_eq!(held.release(at(0), &mut names, &mut out), (2, Time::NEVER));
        assert_eq!(out, b"host2.test a\n10.0.0.4 b\n");
    }

    proptest! {
        #[test]
        fn every_line_is_written_once_in_order(
            bytes_max in 0usize..200,
            steps in prop::collection::vec((0u8..8, 0u8..6, 0u64..4), 0..100),
        ) {
            let mut held = Held { bytes_max, ..Held::default() };
            let (mut names, mut out) = (names(), Vec::new());
            let (mut now, mut released, mut pushed) = (0, 0, Vec::new());
            for (n, (step, client, seconds)) in steps.into_iter().enumerate() {
                match step {
                    0..4 => {
                        let line = format!("10.0.0.{client} {n}\n");
                        released += held.push(line.as_bytes(), &LogFormat::Common, true, &mut names, at(now), &mut out);
                        pushed.push((client, n));
                    }
                    4 => now += seconds,
                    5 => if let Some((id, address)) = names.next_lookup(at(now)) {
                        names.learn(at(now), id, name_of(address).map(Into::into));
                    },
                    _ => {
                        let (lines, due) = held.release(at(now), &mut names, &mut out);
                        released += lines;
                        prop_assert!(due > at(now) && (due == Time::NEVER) == held.is_empty());
                        prop_assert!(due == Time::NEVER || due <= at(now + 5));
                    }
                }
                prop_assert!(held.text.len() - held.begin <= bytes_max || held.lines.len() == 1);
                prop_assert_eq!(out.iter().filter(|&&byte| byte == b'\n').count() as u64, released);
            }
            held.release(Time::NEVER, &mut names, &mut out);
            let out = String::from_utf8(out).unwrap();
            prop_assert_eq!(out.lines().count(), pushed.len());
            for (line, (client, n)) in out.lines().zip(pushed) {
                let (host, rest) = line.split_once(' ').unwrap();
                let address = format!("10.0.0.{client}");
                let name = name_of(address.parse().unwrap());
                prop_assert!(host == address || Some(host) == name.as_deref(), "{}", line);
                prop_assert_eq!(rest, n.to_string());
            }
            prop_assert!(held.is_empty() && held.text.is_empty());
        }
    }
}
