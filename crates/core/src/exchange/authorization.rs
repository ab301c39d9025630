//! A request's authorization by an application: what that is asked, and what its response means.
//!
//! Before it, `decide` has found that the requested path is in such a directory. The exchange passes the question to the application
//! and the output here; an admitted request continues with the fields that the response adds to it.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use amped_http::cgi::{self, BadScript};
use amped_http::h1::request::{self, Framing, HeadLimits, OwnedRequest, Request};
use amped_http::method::Method;
use amped_http::status::Status;
use amped_http::text;
use amped_http::uri::{self, Target};

use super::context::{Context, Protocol};
use crate::app::{self, AppHead, Audience, Input};
use crate::authorize::AuthorizeRule;
use crate::decide::PreparedResponse;
use crate::event::{Action, Ticket};
use crate::file::FileHandle;
use crate::login::{self, Variable};
use crate::plan::Resolved;
use crate::record::Outcome;
use crate::reply;
use crate::request_id::RequestId;

/// A request that waits for its authorization.
#[derive(Debug)]
pub(super) struct Authorization {
    pub(super) ticket: Ticket,
    /// The index of the rule among those of the site.
    pub(super) rule: usize,
    /// The head of the response, as received so far.
    head: Vec<u8>,
    /// Timeout without progress of the application.
    pub(super) time: Duration,
}

/// Names and values of fields.
pub(super) type Fields = Vec<(Box<str>, Box<[u8]>)>;

/// The meaning of the application's response.
pub(super) enum Ruling {
    /// The request continues.
    Admitted(Approval),
    /// The client does not get what it requests.
    Denied(Denial),
    /// There is no ruling, for this reason.
    Failed(&'static str),
}

/// How a request continues.
pub(super) struct Approval {
    /// The request with further fields.
    pub(super) request: Box<OwnedRequest>,
    /// The name of its user, if the application has named it.
    pub(super) user: Option<Box<[u8]>>,
    /// Fields that are added to its response.
    pub(super) fields: Fields,
}

/// What the client gets instead.
#[derive(Debug)]
pub(super) struct Denial {
    status: Status,
    fields: Fields,
}

impl Denial {
    /// A redirect to a login page in its place.
    fn into_redirect(mut self, login: Vec<u8>) -> Denial {
        self.fields.retain(|(name, _)| !name.eq_ignore_ascii_case("WWW-Authenticate"));
        self.fields.push(("Location".into(), login.into()));
        Denial { status: Status::FOUND, ..self }
    }

    /// The response.
    pub(super) fn reply<F: FileHandle>(
        &self,
        cx: &Context<'_, F>,
        request: &Request<'_>,
        resolved: &Resolved<'_>,
    ) -> PreparedResponse<F> {
        let fields = self.fields.iter().map(|(name, value)| (&**name, &**value));
        let site = cx.shared.sites.of(resolved.site);
        let (head, body) = reply::denial(site, request, &resolved.requested, self.status, fields);
        PreparedResponse { head, body, outcome: Outcome::App }
    }
}

impl Authorization {
    /// Asks the application of the next rule. `user`: the authenticated user, if any. `None`: there is no such application.
    pub(super) fn begin<F, P: Protocol<F>>(
        cx: &mut Context<'_, F>,
        (request, head, id): (&Request<'_>, &[u8], Option<&RequestId>),
        resolved: &Resolved<'_>,
        user: Option<&[u8]>,
        protocol: &mut P,
    ) -> Option<Authorization> {
        let site = cx.shared.sites.of(resolved.site);
        let (rule, asking) = resolved.pending_authorizations(site, request).next()?;
        let target = asking.request.as_deref()?;
        let uri = uri_of(request, &resolved.requested);
        let question = question(request, head, (target, &uri));
        let asked = request::parse_own(&question, &HeadLimits::unlimited(request.secure)).ok()?;
        let asked = Request { client: request.client, ..asked };
        let mut scratch = Vec::new();
        let path = target.split('?').next().unwrap_or(target);
        let (path, _) = uri::clean_path_with_slashes(path.as_bytes(), &mut scratch).ok()?;
        let handler = app::handler_of(site, path, &asked).ok()??;
        let time = handler.rule(&cx.shared.sites)?.timeout;
        let fields = [("X-Forwarded-Method", request.method_text), ("X-Forwarded-Uri", &*uri)];
        let head = AppHead { request: &asked, bytes: &question, requested: path, id };
        let generation = cx.shared.caches.generation();
        let audience = Audience::Server(&fields);
        let work = handler.work(&cx.shared.sites, generation, head, Framing::None, user, audience);
        let ticket = protocol.next_ticket();
        cx.actions.push(Action::App(ticket, Input::Start(work.into())));
        Some(Authorization { ticket, rule, head: Vec::new(), time })
    }

    /// Notifies the driver that the response is no longer needed, with the reason.
    pub(super) fn leave<F>(&self, cx: &mut Context<'_, F>, why: &'static str) {
        cx.actions.push(Action::App(self.ticket, Input::Leave(why)));
    }

    /// Heap memory in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        self.head.capacity()
    }

    /// Handles output of the application. `None`: the head of its response is incomplete.
    pub(super) fn take_output<F>(
        &mut self,
        cx: &Context<'_, F>,
        bytes: &[u8],
        request: &OwnedRequest,
        resolved: &Resolved<'_>,
    ) -> Option<Ruling> {
        self.head.extend_from_slice(bytes);
        let answer = match cgi::parse(&self.head) {
            Ok(Some((answer, _))) => answer,
            Ok(None) => return None,
            Err(BadScript(why)) => return Some(Ruling::Failed(why)),
        };
        let (head, request) = (request.head(), request.request());
        let site = cx.shared.sites.of(resolved.site);
        let Some(rule) = site.authorizations.get(self.rule) else {
            return Some(Ruling::Failed("the configuration was reloaded"));
        };
        let by_default = if answer.location.is_some() { Status::FOUND } else { Status::OK };
        Some(match answer.status.unwrap_or(by_default) {
            Status(200..=299) => {
                let pending: Vec<_> = resolved.pending_authorizations(site, &request).map(|(_, rule)| rule).collect();
                match admitted((&request, head), (rule, &pending), &answer) {
                    Some(admitted) => Ruling::Admitted(Approval {
                        request: Box::new(admitted),
                        user: user_of(rule, &answer),
                        fields: copied(&rule.copy_to_response, &answer),
                    }),
                    None => Ruling::Failed("the fields of the authorization cannot be added to the request"),
                }
            }
            status @ (Status::UNAUTHORIZED | Status::FORBIDDEN | Status(301 | 302 | 303 | 307 | 308)) => {
                let denial = Denial { status, fields: copied(&rule.copy_to_client, &answer) };
                let is_answered = status != Status::UNAUTHORIZED || answer.location.is_some();
                let login = if is_answered { None } else { login_for(rule, (&request, head), &resolved.requested) };
                Ruling::Denied(match login {
                    Some(login) => denial.into_redirect(login),
                    None => denial,
                })
            }
            _ => Ruling::Failed("the authorization has another status than 2xx, 401, 403 or a redirect"),
        })
    }
}

/// The path and query that a request is for: the path as this server has resolved it, by which it chooses the rule and
/// the file. The path as sent may have dots, empty segments or needless escapes, and so look like another one.
fn uri_of(request: &Request<'_>, requested: &[u8]) -> Vec<u8> {
    match request.target {
        Target::Origin { query, .. } | Target::Absolute { query, .. } => {
            let mut uri = Vec::with_capacity(requested.len());
            uri::encode_path(requested, &mut uri);
            query.iter().for_each(|query| uri.extend_from_slice(&[b"?", *query].concat()));
            uri
        }
        Target::Asterisk | Target::Authority(_) => request.target_text.to_vec(),
    }
}

/// The address of the login page for a request that is not authorised; `None` without one, or if no browser loads a page by it: a
/// script could not use the login page, and takes 401 as it is.
fn login_for(rule: &AuthorizeRule, (request, head): (&Request<'_>, &[u8]), requested: &[u8]) -> Option<Vec<u8>> {
    let address = rule.login.as_deref()?;
    let field = |wanted: &str| {
        let mut fields = app::fields(request.target, head);
        fields.find(|(name, _)| name.eq_ignore_ascii_case(wanted.as_bytes())).map(|(_, value)| value)
    };
    let is_navigation = field("sec-fetch-mode").is_none_or(|mode| mode == b"navigate");
    if !is_navigation || !matches!(request.method, Some(Method::Get | Method::Head)) {
        return None;
    }
    let (host, uri) = (field("host").unwrap_or_default(), uri_of(request, requested));
    Some(login::fill(address, |variable| match variable {
        Variable::Scheme if request.secure => b"https",
        Variable::Scheme => b"http",
        Variable::Host => host,
        Variable::RequestUri => &uri,
    }))
}

/// Fields that the question does not have: those of the body and of the connection, and conditions on what is requested.
const OF_REQUEST: [&str; 18] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "http2-settings",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "keep-alive",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "proxy-connection",
];

/// Beginnings of the names of fields that the question has, or that belong to a handshake.
const OF_QUESTION: [&str; 4] = ["x-original-", "x-forwarded-method", "x-forwarded-uri", "sec-websocket-"];

/// The head of the request that asks the application for an authorization of this one, whose path and query are `uri`.
fn question(request: &Request<'_>, head: &[u8], (target, uri): (&str, &[u8])) -> Vec<u8> {
    let mut made = [b"GET ", target.as_bytes(), b" ", request.version.name().as_bytes(), b"\r\n"].concat();
    let mut host = &b""[..];
    for (name, value) in app::fields(request.target, head) {
        let is = |known: &&str| name.eq_ignore_ascii_case(known.as_bytes());
        let begins =
            |start: &str| name.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start.as_bytes()));
        if is(&"host") {
            host = value;
        }
        if !OF_REQUEST.iter().any(is) && !OF_QUESTION.iter().any(|start| begins(start)) {
            push_field(&mut made, name, value);
        }
    }
    push_field(&mut made, b"X-Original-Method", request.method_text);
    push_field(&mut made, b"X-Original-URI", uri);
    if !host.is_empty() {
        let scheme: &[u8] = if request.secure { b"https://" } else { b"http://" };
        push_field(&mut made, b"X-Original-URL", &[scheme, host, uri].concat());
    }
    made.extend_from_slice(b"\r\n");
    made
}

/// A request with the fields that this response to its authorization adds; what the client has sent in them, or in those of another
/// rule that is still `pending`, is removed. `None` if they make it too large.
fn admitted(
    (request, head): (&Request<'_>, &[u8]),
    (rule, pending): (&AuthorizeRule, &[&AuthorizeRule]),
    answer: &cgi::ScriptHead<'_>,
) -> Option<OwnedRequest> {
    let is_copied = |name: &[u8]| {
        let name = String::from_utf8_lossy(name);
        pending.iter().any(|rule| rule.copied_name(&name).is_some())
    };
    // A client could name a copied field in Connection, and so have it removed on the way to the application. Therefore
    // this request has neither a Connection field nor the fields that it names (RFC 9110, 7.6.1).
    let options: Vec<&[u8]> = request::fields(head)
        .filter(|(name, _)| name.eq_ignore_ascii_case(b"connection"))
        .flat_map(|(_, value)| text::list(value))
        .collect();
    let is_option = |name: &[u8]| options.iter().any(|option| option.eq_ignore_ascii_case(name));
    let is_needed = |name: &[u8]| NEVER_OPTIONS.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()));
    let upgrades = is_option(b"upgrade");
    let line = head.iter().position(|&byte| byte == b'\n')? + 1;
    let mut made = head[..line].to_vec();
    for (name, value) in request::fields(head) {
        let is_dropped = is_option(name) && !is_needed(name) || name.eq_ignore_ascii_case(b"connection");
        if !is_dropped && !is_copied(name) {
            push_field(&mut made, name, value);
        }
    }
    if upgrades {
        push_field(&mut made, b"Connection", b"Upgrade");
    }
    for (name, value) in &answer.fields {
        if let Some(name) = rule.copied_name(name) {
            push_field(&mut made, name.as_bytes(), value);
        }
    }
    made.extend_from_slice(b"\r\n");
    let parsed = request::parse_own(&made, &HeadLimits::unlimited(request.secure)).ok()?;
    let Request { client, keep_alive, framing, expectation, .. } = *request;
    Some(OwnedRequest::new(&Request { client, keep_alive, framing, expectation, ..parsed }, &made))
}

/// The fields of a response with these names.
fn copied(names: &[Box<str>], answer: &cgi::ScriptHead<'_>) -> Fields {
    let is_copied = |name: &str| names.iter().any(|known| known.eq_ignore_ascii_case(name));
    let fields = answer.fields.iter().filter(|(name, _)| is_copied(name));
    fields.map(|&(name, value)| (Box::from(name), Box::from(value))).collect()
}

/// The name of the user in this response, if it has one.
fn user_of(rule: &AuthorizeRule, answer: &cgi::ScriptHead<'_>) -> Option<Box<[u8]>> {
    let field = rule.user.as_deref()?;
    let named = answer.fields.iter().find(|(name, value)| name.eq_ignore_ascii_case(field) && !value.is_empty());
    named.map(|&(_, user)| user.into())
}

/// Fields that are kept even if Connection names them: without them, the request would mean something else.
const NEVER_OPTIONS: [&str; 4] = ["content-length", "host", "transfer-encoding", "upgrade"];

fn push_field(head: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for part in [name, b": ", value, b"\r\n"] {
        head.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(head: &[u8]) -> Request<'_> {
        request::parse_own(head, &HeadLimits::unlimited(true)).expect("valid")
    }

    fn shown(head: &[u8]) -> String {
        String::from_utf8(head.to_vec()).expect("ASCII").replace("\r\n", "|")
    }

    #[test]
    fn question_names_request_without_its_body() {
        let check = |head: &str, expected: &str| {
            let head = head.replace('|', "\r\n");
            let request = parsed(head.as_bytes());
            let mut scratch = Vec::new();
            let sent = match request.target {
                Target::Origin { path, .. } | Target::Absolute { path, .. } => path,
                Target::Asterisk | Target::Authority(_) => b"/",
            };
            let (requested, _) = uri::clean_path_with_slashes(sent, &mut scratch).expect("valid");
            let made = question(&request, head.as_bytes(), ("/auth?x", &uri_of(&request, requested)));
            assert_eq!(shown(&made), expected, "{head}");
            let made = parsed(&made);
            assert_eq!(made.framing, Framing::None);
        };
        check(
            "POST /a%20b?c HTTP/1.1|Host: h:1|Cookie: d|Content-Length: 5|Content-Type: e|Expect: 100-continue|\
             X-Original-URI: /f|x-original-url: g|If-None-Match: \"i\"|Connection: close, Cookie|Authorization: j||",
            "GET /auth?x HTTP/1.1|Host: h:1|Cookie: d|Authorization: j|X-Original-Method: POST|\
             X-Original-URI: /a%20b?c|X-Original-URL: https://h:1/a%20b?c||",
        );
        check(
            "GET /a HTTP/2.0|host: h|cookie: b||",
            "GET /auth?x HTTP/2.0|host: h|cookie: b|X-Original-Method: GET|X-Original-URI: /a|X-Original-URL: https://h/a||",
        );
        check(
            "GET http://h/a HTTP/1.1|Host: other||",
            "GET /auth?x HTTP/1.1|Host: h|X-Original-Method: GET|X-Original-URI: /a|X-Original-URL: https://h/a||",
        );
        check(
            "GET /a/../%62//%2e/c%2Fd%3F HTTP/1.1|Host: h||",
            "GET /auth?x HTTP/1.1|Host: h|X-Original-Method: GET|X-Original-URI: /b/c/d%3F|X-Original-URL: https://h/b/c/d%3F||",
        );
        check("OPTIONS * HTTP/1.0||", "GET /auth?x HTTP/1.0|X-Original-Method: OPTIONS|X-Original-URI: *||");
    }

    #[test]
    fn admitted_request_has_only_copied_fields_of_response() {
        let rule = |names: &[&str]| AuthorizeRule {
            directory: "/".into(),
            request: None,
            copy_to_request: names.iter().map(|&name| name.into()).collect(),
            user: None,
            login: None,
            copy_to_client: Vec::new(),
            copy_to_response: Vec::new(),
        };
        let (rule, later) = (rule(&["Remote-User", "Remote-Groups"]), rule(&["Remote-Role"]));
        let check = |head: &str, answer: &str, expected: &str| {
            let (head, answer) = (head.replace('|', "\r\n"), answer.replace('|', "\n"));
            let (answer, _) = cgi::parse(answer.as_bytes()).expect("good").expect("whole");
            let request = parsed(head.as_bytes());
            let made = admitted((&request, head.as_bytes()), (&rule, &[&rule, &later]), &answer).expect("valid");
            assert_eq!(shown(made.head()), expected, "{head}");
            assert_eq!(made.request().framing, request.framing);
            assert_eq!(made.request().keep_alive, request.keep_alive);
        };
        check(
            "POST /a HTTP/1.1|Host: h|remote-user: root|Remote_User: root|Content-Length: 5|REMOTE-GROUPS: admin|Cookie: c||",
            "Status: 200|Remote-User: ann|X: y||",
            "POST /a HTTP/1.1|Host: h|Content-Length: 5|Cookie: c|Remote-User: ann||",
        );
        // Another rule, which is pending, copies this field.
        check(
            "GET /a HTTP/1.1|Host: h|Remote-Role: admin|Remote-Other: b||",
            "Status: 200|Remote-User: ann|Remote-Role: c||",
            "GET /a HTTP/1.1|Host: h|Remote-Other: b|Remote-User: ann||",
        );
        // It is not a field of the connection, whatever the client says.
        check(
            "GET /a HTTP/1.1|Host: h|Connection: close, Remote-User||",
            "Status: 204|Remote-User: ann|Remote-Groups: a,b||",
            "GET /a HTTP/1.1|Host: h|Remote-User: ann|Remote-Groups: a,b||",
        );
        check(
            "GET /a HTTP/1.1|Host: h|Connection: Upgrade, Remote-User|Upgrade: websocket||",
            "Status: 200||",
            "GET /a HTTP/1.1|Host: h|Upgrade: websocket|Connection: Upgrade||",
        );
        check(
            "POST /a HTTP/1.1|Host: h|Connection: close, X-Hop|X-Hop: 1|X-End: 2|Connection: host,content-length|Content-Length: 5||",
            "Status: 200|X-Hop: 3||",
            "POST /a HTTP/1.1|Host: h|X-End: 2|Content-Length: 5||",
        );
    }
}
