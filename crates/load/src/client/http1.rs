//! A connection of HTTP/1: requests are sent in groups of `pipeline`, the next group after the last reply.

use amped_http::h1::body::BodyReader;
use amped_http::h1::reply::{self, ReplyBody, ReplyHead};
use amped_units::Time;

use super::plan::{Next, Plan, Whole, mismatch};
use super::template::Template;
use crate::tally::{Fault, Tally};
use crate::workload::{Digest, Request};

/// An established connection of HTTP/1.
#[derive(Debug)]
pub(super) struct Http1 {
    reader: Reader,
    /// Requests sent so far, `sent <= per_connection`.
    sent: u64,
    /// The current group: the number of its first request, its length, and the replies so far.
    base: u64,
    group: u64,
    answered: u64,
    /// When this group was due: the scheduled time, or the end of the previous group.
    planned: Time,
    /// When the first byte of the current reply came; [`Time::NEVER`] if it has not.
    first: Time,
}

impl Http1 {
    pub(super) fn new(planned: Time) -> Http1 {
        Http1 { reader: Reader::new(), sent: 0, base: 0, group: 0, answered: 0, planned, first: Time::NEVER }
    }

    pub(super) fn planned(&self) -> Time {
        self.planned
    }

    pub(super) fn is_idle(&self) -> bool {
        self.answered == self.group
    }

    pub(super) fn ask(&mut self, planned: Time, base: u64, plan: &Plan, out: &mut Vec<u8>) -> u64 {
        let Template::Http1(after) = &plan.template else { return 0 };
        (self.base, self.group, self.answered, self.planned) = (base, 0, 0, planned);
        self.first = Time::NEVER;
        while self.group < plan.at_once && self.sent < plan.per_connection {
            let Some(request) = plan.requests.get(base + self.group) else { break };
            self.group += 1;
            self.sent += 1;
            let more = self.sent < plan.per_connection && plan.requests.index(base + self.group).is_some();
            let method = if request.head { "HEAD" } else { &*plan.texts.method };
            for part in [method.as_bytes(), b" ", &*request.target, &after[usize::from(!more)]] {
                out.extend_from_slice(part);
            }
        }
        self.group
    }

    pub(super) fn room(&self, plan: &Plan) -> u64 {
        plan.at_once.min(plan.per_connection - self.sent)
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    pub(super) fn handle_bytes(&mut self, now: Time, mut bytes: &[u8], plan: &Plan, tally: &mut Tally) -> Next {
        tally.received += bytes.len() as u64;
        while !bytes.is_empty() {
            let Some(request) = self.awaited(plan) else {
                // Unsolicited bytes: client and server are out of step.
                tally.stray += 1;
                return Next::Close;
            };
            if self.first == Time::NEVER {
                self.first = now;
            }
            let digesting = request.expect.is_some_and(|expect| expect.content.is_some());
            match self.reader.read(bytes, plan.is_head(request), digesting) {
                Err(reply::BadReply) => return self.handle_fault(Fault::Malformed, plan, tally),
                Ok((_, None)) => return Next::Bytes,
                Ok((used, Some(whole))) => {
                    bytes = &bytes[used..];
                    let next = self.take(now, whole, plan, tally);
                    if next == Next::Close {
                        // Surplus bytes after the last reply.
                        tally.stray += u64::from(!bytes.is_empty());
                        return next;
                    }
                    if self.answered == self.group && bytes.is_empty() {
                        return next;
                    }
                }
            }
        }
        Next::Bytes
    }

    pub(super) fn handle_end(&mut self, now: Time, plan: &Plan, tally: &mut Tally) {
        match self.reader.end() {
            End::Whole(whole) => {
                if self.awaited(plan).is_some() {
                    self.take(now, whole, plan, tally);
                }
            }
            End::Idle => {
                self.handle_fault(Fault::Closed, plan, tally);
            }
            End::Within => {
                self.handle_fault(Fault::Short, plan, tally);
            }
        }
    }

    pub(super) fn handle_cut(&mut self, plan: &Plan, tally: &mut Tally) -> Next {
        let fault = if matches!(self.reader.end(), End::Idle) { Fault::Closed } else { Fault::Short };
        self.handle_fault(fault, plan, tally)
    }

    pub(super) fn handle_fault(&mut self, fault: Fault, plan: &Plan, tally: &mut Tally) -> Next {
        while let Some(request) = self.awaited(plan) {
            tally.fail(fault, request.class);
            self.answered += 1;
        }
        Next::Close
    }

    /// The request whose reply comes next.
    fn awaited<'a>(&self, plan: &'a Plan) -> Option<&'a Request> {
        (self.answered < self.group).then(|| plan.requests.get(self.base + self.answered)).flatten()
    }

    fn take(&mut self, now: Time, whole: Whole, plan: &Plan, tally: &mut Tally) -> Next {
        let Some(request) = self.awaited(plan) else { return Next::Close };
        self.answered += 1;
        tally.count_status(whole.status);
        match mismatch(request, &whole, &plan.statuses) {
            Some(fault) => tally.fail(fault, request.class),
            None => tally.reply(request.class, self.planned, self.first, now),
        }
        self.first = Time::NEVER;
        let is_last = self.sent >= plan.per_connection || plan.requests.index(self.base + self.group).is_none();
        match (self.answered == self.group, whole.keep_alive) {
            (true, _) if is_last => Next::Close,
            (true, true) => Next::Ask,
            (false, true) => Next::Bytes,
            // The outstanding requests will not be answered (RFC 9112, 9.6).
            (_, false) => self.handle_fault(Fault::Closed, plan, tally),
        }
    }
}

/// Parses a sequence of replies.
#[derive(Debug)]
struct Reader {
    state: State,
    /// The start of an incomplete head. Most heads arrive whole and are never copied.
    partial: Vec<u8>,
}

#[derive(Debug)]
enum State {
    Head,
    Body { head: ReplyHead, body: Option<BodyReader>, length: u64, digest: Digest },
}

/// The state of a reader when the connection ends.
enum End {
    /// The end completed the body.
    Whole(Whole),
    /// No byte of a reply had arrived.
    Idle,
    /// A reply is incomplete.
    Within,
}

impl Reader {
    fn new() -> Reader {
        Reader { state: State::Head, partial: Vec::new() }
    }

    /// Reads to the end of a reply (`to_head`: to a HEAD request),
    /// and returns the bytes used; `None` if it used all of them.
    fn read(
        &mut self,
        bytes: &[u8],
        to_head: bool,
        digesting: bool,
    ) -> Result<(usize, Option<Whole>), reply::BadReply> {
        let mut at = 0;
        loop {
            if let State::Head = self.state {
                let before = self.partial.len();
                let parsed = if before == 0 {
                    reply::parse(&bytes[at..], to_head)?
                } else {
                    self.partial.extend_from_slice(&bytes[at..]);
                    reply::parse(&self.partial, to_head)?
                };
                let Some((head, length)) = parsed else {
                    if before == 0 {
                        self.partial.extend_from_slice(&bytes[at..]);
                    }
                    return Ok((bytes.len(), None));
                };
                self.partial.clear();
                // The bytes before were no complete head, so the end of the head is among the new bytes.
                at += length - before;
                if head.is_interim() {
                    if at == bytes.len() {
                        return Ok((at, None));
                    }
                    continue;
                }
                let body = match head.body {
                    ReplyBody::Framed(framing) => Some(BodyReader::new(framing)),
                    ReplyBody::UntilClose => None,
                };
                self.state = State::Body { head, body, length: 0, digest: Digest::default() };
            }
            let State::Body { head, body, length, digest } = &mut self.state else { continue };
            let rest = &bytes[at..];
            let Some(body) = body else {
                *length += rest.len() as u64;
                if digesting {
                    digest.update(rest);
                }
                return Ok((bytes.len(), None));
            };
            while !body.is_done() && at < bytes.len() {
                let piece = body.next(&bytes[at..]).map_err(|_| reply::BadReply)?;
                at += piece.used;
                *length += piece.data.len() as u64;
                if digesting {
                    digest.update(piece.data);
                }
            }
            if !body.is_done() {
                return Ok((at, None));
            }
            let whole = whole(head, *length, *digest);
            self.state = State::Head;
            return Ok((at, Some(whole)));
        }
    }

    fn end(&mut self) -> End {
        match &self.state {
            State::Head if self.partial.is_empty() => End::Idle,
            State::Body { head, body: None, length, digest } => End::Whole(whole(head, *length, *digest)),
            State::Head | State::Body { .. } => End::Within,
        }
    }
}

fn whole(head: &ReplyHead, length: u64, digest: Digest) -> Whole {
    Whole { status: head.status, length, content: digest.finish(), keep_alive: head.keep_alive }
}

#[cfg(test)]
mod tests {
    use super::super::{Connection, Next, Plan};
    use super::Time;
    use crate::tally::{Fault, Tally};
    use crate::workload::{Digest, Expect, Order, Request, Requests};
    use amped_http::h1::request::Version;

    const ONE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";

    fn plan(per_connection: u64, pipeline: u64, expect: Option<Expect>) -> Plan {
        let request = Request { target: b"/x".as_slice().into(), expect, ..Request::default() };
        let requests = Requests::new(vec![request], Order::Cycle);
        Plan::new(requests, Version::Http11, "h", "", per_connection, pipeline)
    }

    /// Feeds replies in pieces of each size, then the end, and checks `ok` and the counted faults. The text after a `|`
    /// arrives after the next group was sent.
    fn check(plan: &Plan, server: &str, expected_ok: u64, expected: &[(Fault, u64)]) {
        for piece in [1, 2, 7, 100_000] {
            let mut tally = Tally::new(1);
            let mut connection = Connection::new(Time::START, plan);
            let (mut out, mut base, mut next) = (Vec::new(), 0, Next::Ask);
            let mut groups = server.split('|');
            let mut pieces = [].chunks(piece);
            loop {
                match next {
                    Next::Ask => {
                        base += connection.ask(Time::from_millis(1), base, plan, &mut out);
                        pieces = groups.next().unwrap_or_default().as_bytes().chunks(piece);
                        next = Next::Bytes;
                    }
                    Next::Bytes => match pieces.next() {
                        Some(bytes) => next = connection.handle_bytes(Time::from_millis(5), bytes, plan, &mut tally),
                        None => {
                            connection.handle_end(Time::from_millis(6), plan, &mut tally);
                            break;
                        }
                    },
                    Next::Close => break,
                }
            }
            let found: Vec<(Fault, u64)> =
                Fault::ALL.iter().map(|fault| (*fault, tally.failed(*fault))).filter(|(_, n)| *n > 0).collect();
            assert_eq!((tally.ok(), &found[..]), (expected_ok, expected), "{server:?} by {piece}");
            assert_eq!(tally.ok() + tally.all_failed(), connection.sent(), "every request ends once: {server:?}");
        }
    }

    #[test]
    fn every_request_ends_as_one_response_or_one_failure() {
        let one = plan(1, 1, None);
        check(&one, ONE, 1, &[]);
        check(&one, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", 1, &[]);
        check(&one, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 1, &[]);
        check(&one, "HTTP/1.0 200 OK\r\n\r\nabc", 1, &[]);
        check(&one, "", 0, &[(Fault::Closed, 1)]);
        check(&one, "HTTP/1.1 200 OK\r\nContent-Len", 0, &[(Fault::Short, 1)]);
        check(&one, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", 0, &[(Fault::Short, 1)]);
        check(&one, "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", 0, &[(Fault::Status, 1)]);
        check(&one, "SSH-2.0-x\r\n", 0, &[(Fault::Malformed, 1)]);
        check(&one, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 0, &[(Fault::Malformed, 1)]);
    }

    #[test]
    fn head_response_ends_with_its_header() {
        let request = |head| Request { target: b"/x".as_slice().into(), head, ..Request::default() };
        let requests = Requests::new(vec![request(true), request(false)], Order::Cycle);
        let plan = Plan::new(requests, Version::Http11, "h", "", 3, 3);
        let (mut connection, mut out) = (Connection::new(Time::START, &plan), Vec::new());
        connection.ask(Time::START, 0, &plan, &mut out);
        let sent = String::from_utf8(out).unwrap();
        assert_eq!(sent.lines().filter(|line| line.starts_with("HEAD /x ")).count(), 2, "{sent}");
        let head = ONE.strip_suffix("abc").unwrap();
        check(&plan, &format!("{head}{ONE}{head}"), 3, &[]);
        // An unexpected body would be taken for the next reply.
        check(&plan, &format!("{ONE}{ONE}"), 1, &[(Fault::Malformed, 2)]);
    }

    #[test]
    fn connection_carries_several_requests() {
        let three = ONE.repeat(3);
        check(&plan(3, 1, None), &format!("{ONE}|{ONE}|{ONE}"), 3, &[]);
        check(&plan(3, 3, None), &three, 3, &[]);
        check(&plan(3, 2, None), &format!("{ONE}{ONE}|{ONE}"), 3, &[]);
        check(&plan(4, 2, None), &format!("{ONE}{ONE}|{ONE}"), 3, &[(Fault::Closed, 1)]);
        // The server closes early: outstanding requests fail.
        let closing = ONE.replace("Content", "Connection: close\r\nContent");
        check(&plan(3, 1, None), &closing, 1, &[]);
        check(&plan(3, 3, None), &closing, 1, &[(Fault::Closed, 2)]);
    }

    #[test]
    fn surplus_bytes_end_connection() {
        // For a single request, for the last of several, and for one before others.
        for (per_connection, before) in [(1, 0), (2, 1), (3, 0)] {
            let plan = plan(per_connection, 1, None);
            let (mut tally, mut connection) = (Tally::new(1), Connection::new(Time::START, &plan));
            for base in 0..=before {
                connection.ask(Time::START, base, &plan, &mut Vec::new());
                let (reply, next) = if base < before { (ONE, Next::Ask) } else { (&*format!("{ONE}de"), Next::Close) };
                assert_eq!(connection.handle_bytes(Time::START, reply.as_bytes(), &plan, &mut tally), next);
            }
            connection.count_unsent(plan.requests_of(0), &mut tally);
            let found = (tally.ok(), tally.failed(Fault::Malformed), tally.unsent, tally.stray);
            assert_eq!(found, (before + 1, 0, per_connection - before - 1, 1), "{per_connection} requests");
        }
    }

    #[test]
    fn responses_are_checked() {
        let mut digest = Digest::default();
        digest.update(b"abc");
        let right = Expect { status: Some(200), length: Some(3), content: Some(digest.finish()) };
        check(&plan(1, 1, Some(right)), ONE, 1, &[]);
        check(&plan(1, 1, Some(right)), &ONE.replace("abc", "abd"), 0, &[(Fault::Content, 1)]);
        check(&plan(1, 1, Some(Expect { length: Some(4), ..right })), ONE, 0, &[(Fault::Length, 1)]);
        check(&plan(1, 1, Some(Expect { status: Some(206), ..right })), ONE, 0, &[(Fault::Status, 1)]);
        let missing = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
        check(&plan(1, 1, Some(Expect { status: Some(404), length: None, content: None })), missing, 1, &[]);
    }

    #[test]
    fn last_request_has_connection_close() {
        let check = |version, per_connection, expected: &str| {
            let plan = Plan::new(Requests::same(b"/a?b"), version, "h:1", "A: b\r\n", per_connection, 2);
            let (mut connection, mut out) = (Connection::new(Time::START, &plan), Vec::new());
            assert_eq!(connection.ask(Time::START, 0, &plan, &mut out), 2.min(per_connection));
            assert_eq!(String::from_utf8(out).unwrap().replace("\r\n", "|"), expected);
        };
        check(Version::Http11, 1, "GET /a?b HTTP/1.1|Host: h:1|Connection: close|A: b||");
        check(Version::Http10, 1, "GET /a?b HTTP/1.0|Host: h:1|A: b||");
        let two = "GET /a?b HTTP/1.0|Host: h:1|Connection: keep-alive|A: b||GET /a?b HTTP/1.0|Host: h:1|A: b||";
        check(Version::Http10, 2, two);
        let endless = "GET /a?b HTTP/1.1|Host: h:1|A: b||";
        check(Version::Http11, u64::MAX, &endless.repeat(2));
    }

    #[test]
    fn method_and_body_are_sent_and_response_is_parsed_by_method() {
        let check = |method: &str, body: &[u8], expected: &str| {
            let plan =
                Plan::new(Requests::same(b"/x"), Version::Http11, "h", "A: b\r\n", 1, 1).with_method(method, body);
            let (mut connection, mut out) = (Connection::new(Time::START, &plan), Vec::new());
            connection.ask(Time::START, 0, &plan, &mut out);
            assert_eq!(String::from_utf8(out).unwrap().replace("\r\n", "|"), expected);
        };
        check("POST", b"a=1", "POST /x HTTP/1.1|Host: h|Connection: close|A: b|Content-Length: 3||a=1");
        check("PUT", b"", "PUT /x HTTP/1.1|Host: h|Connection: close|A: b|Content-Length: 0||");
        check("DELETE", b"", "DELETE /x HTTP/1.1|Host: h|Connection: close|A: b||");
        check("PROPFIND", b"<x/>", "PROPFIND /x HTTP/1.1|Host: h|Connection: close|A: b|Content-Length: 4||<x/>");
        // A reply to HEAD announces the length of a body that does not follow.
        let head = plan(2, 1, None).with_method("HEAD", b"");
        check_replies(
            &head,
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n|HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n",
            2,
        );
        let post = plan(2, 1, None).with_method("POST", b"a=1");
        check_replies(&post, &format!("{ONE}|HTTP/1.1 204 No Content\r\n\r\n"), 2);
    }

    fn check_replies(plan: &Plan, server: &str, expected_ok: u64) {
        check(plan, server, expected_ok, &[]);
    }

    #[test]
    fn only_expected_statuses_are_correct() {
        let missing = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
        let expecting = |text: &str| plan(1, 1, None).with_statuses(text.parse().unwrap());
        check(&expecting("2xx,404"), missing, 1, &[]);
        check(&expecting("2xx,404"), ONE, 1, &[]);
        check(&expecting("404"), ONE, 0, &[(Fault::Status, 1)]);
        check(&expecting("2xx"), "HTTP/1.1 304 Not Modified\r\n\r\n", 0, &[(Fault::Status, 1)]);
        // A request's own expectation takes precedence.
        let own = Expect { status: Some(200), ..Expect::default() };
        check(&plan(1, 1, Some(own)).with_statuses("404".parse().unwrap()), ONE, 1, &[]);
    }

    #[test]
    fn end_of_list_closes_connection() {
        let requests = Requests::new(vec![Request::default(), Request::default()], Order::Once);
        let plan = Plan::new(requests, Version::Http11, "h", "", 5, 1);
        let (mut tally, mut connection, mut out) = (Tally::new(1), Connection::new(Time::START, &plan), Vec::new());
        assert_eq!(connection.ask(Time::START, 0, &plan, &mut out), 1);
        assert_eq!(connection.handle_bytes(Time::START, ONE.as_bytes(), &plan, &mut tally), Next::Ask);
        assert_eq!(connection.ask(Time::START, 1, &plan, &mut out), 1);
        assert_eq!(connection.handle_bytes(Time::START, ONE.as_bytes(), &plan, &mut tally), Next::Close);
        connection.count_unsent(plan.requests_of(0), &mut tally);
        assert_eq!((tally.ok(), tally.unsent), (2, 0));
    }
}
