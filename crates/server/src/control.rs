//! The control socket: how `amped preload`, `amped acme` and `amped upgrade` reach a running server.
//!
//! The signal thread serves it (`admin`). One command is executed at a time. It goes to all workers, and completes when
//! all have answered, or after [`ORDER_TIME`].
//!
//! A command is one line: `preload HOST PATH`, with host `-` for the default site and the path as in a URL. The reply
//! is one line: `STATUS SIZE DONE OF REASON`, which are the status that a request would get, the size of the file, how
//! many workers answered, of how many, and a readable reason if the status is not 200.
//!
//! `acme status`, `acme renew NAME` and `acme revoke NAME` concern certificates that the server obtains. The reply is
//! `STATUS TEXT`, where the text of `acme status` is JSON. It comes when the command is complete, which may take minutes.
//!
//! `upgrade` makes another process take over (`upgrade`). The reply, `STATUS TEXT`, comes when that serves or has failed.
//!
//! Only the server's user and root may connect: the kernel enforces the mode of the socket file, and
//! each client's credentials are checked again.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use amped_core::event::PreloadResult;
use amped_core::plan;
use amped_core::site::Sites;
use amped_http::status::Status;
use amped_sys::poll::Awaited;
use amped_sys::{foreign, local, process};

use crate::acme::Acme;
use crate::say;

/// How long workers may take for a command. A worker that waits for the disk, or in MP serves a long download, may take
/// longer; the reply says how many answered.
pub const ORDER_TIME: Duration = Duration::from_secs(5);

/// Maximum concurrent clients; others wait to be accepted.
const CLIENTS_MAX: usize = 8;

/// Maximum line length; exceeds the default maximum length of a request's path.
const LINE_MAX: usize = 16 * 1024;

/// Timeout of a client that has no command in progress and sends none.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// The workers that execute commands.
pub trait Orders {
    /// Makes all workers drop this name of this site and look it up again. Returns how many will answer.
    fn preload(&mut self, number: u64, site: u16, path: &Arc<[u8]>) -> usize;

    /// Takes the answers to the command of this number that have arrived since the last call.
    fn answers(&mut self, number: u64) -> Vec<PreloadResult>;

    /// Returns the descriptors that are readable when there may be answers.
    fn bells(&self) -> Vec<BorrowedFd<'_>>;
}

/// The socket, its clients, and the command in progress.
#[derive(Debug)]
pub struct Control {
    path: PathBuf,
    listener: UnixListener,
    clients: Vec<Client>,
    round: Option<Round>,
    orders: u64,
    /// Numbers of the commands that wait for an upgrade.
    upgrades: Vec<u64>,
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    /// `received.len() <= LINE_MAX`
    received: Vec<u8>,
    /// It has closed its side.
    ended: bool,
    /// When it last sent data or received a reply.
    busy: Instant,
    /// The number of its command in progress; 0: none.
    order: u64,
}

/// A command in progress.
#[derive(Debug)]
struct Round {
    number: u64,
    of: usize,
    answers: Vec<PreloadResult>,
    until: Instant,
}

impl Control {
    /// Listens on this path, for one user only, to which the socket file is given. A socket left
    /// over by a server that has ended is replaced.
    ///
    /// # Errors
    /// A message with a remedy.
    pub fn open(path: &Path, owner: Option<(u32, u32)>) -> Result<Control, String> {
        let shown = path.display();
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => {
                format!(
                    "cannot create control socket {shown}: its directory does not exist; create it, or name another socket"
                )
            }
            _ => format!("cannot create control socket {shown}: {error}"),
        };
        let listener = match local::listen(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                match local::connect(path, Duration::from_secs(1)) {
                    // No server listens on it any more.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && is_socket(path) => {
                        std::fs::remove_file(path).map_err(failed)?;
                        local::listen(path).map_err(failed)?
                    }
                    Err(_) if !is_socket(path) => {
                        return Err(format!(
                            "cannot create control socket {shown}: the file exists and is not a socket; name another"
                        ));
                    }
                    Ok(_) | Err(_) => {
                        return Err(format!(
                            "another server listens on control socket {shown}; stop it, or name another socket with \
                             --control or [control] socket"
                        ));
                    }
                }
            }
            other => other.map_err(failed)?,
        };
        if let Some((uid, gid)) = owner {
            foreign::give_created(path, uid, gid).map_err(failed)?;
        }
        Ok(Control::on(path, listener))
    }

    /// Serves this listener, which has this path.
    pub fn on(path: &Path, listener: UnixListener) -> Control {
        let (clients, upgrades) = (Vec::new(), Vec::new());
        Control { path: path.to_owned(), listener, clients, round: None, orders: 0, upgrades }
    }

    /// Returns the listener.
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Returns whether a client waits for an upgrade.
    pub fn wants_upgrade(&self) -> bool {
        !self.upgrades.is_empty()
    }

    /// Replies to the clients that wait for an upgrade.
    pub fn end_upgrade(&mut self, outcome: &Result<String, String>) {
        for number in std::mem::take(&mut self.upgrades) {
            self.complete_with(number, outcome.as_deref());
        }
    }

    /// Returns the number of commands so far.
    pub fn orders(&self) -> u64 {
        self.orders
    }

    /// Adds the descriptors and timeouts that it waits for.
    pub fn await_in<'a>(&'a self, workers: &'a (impl Orders + ?Sized), awaited: &mut Awaited<'a>) {
        self.clients.iter().filter(|client| client.order == 0).for_each(|client| awaited.until(client.due()));
        if let Some(round) = &self.round {
            awaited.until(round.until);
            workers.bells().into_iter().for_each(|bell| awaited.readable(bell));
        }
        if self.clients.len() < CLIENTS_MAX {
            awaited.readable(self.listener.as_fd());
        }
        for client in self.clients.iter().filter(|client| client.has_room()) {
            awaited.readable(client.stream.as_fd());
        }
    }

    /// Handles everything that is ready, without blocking.
    pub fn turn(&mut self, sites: &Sites, workers: &mut (impl Orders + ?Sized), mut acme: Option<&mut Acme>) {
        while self.clients.len() < CLIENTS_MAX
            && let Ok((stream, _)) = self.listener.accept()
        {
            if local::peer(&stream).is_ok_and(|uid| uid == 0 || process::is_user(uid))
                && stream.set_nonblocking(true).is_ok()
            {
                let (received, busy) = (Vec::new(), Instant::now());
                self.clients.push(Client { stream, received, ended: false, busy, order: 0 });
            }
        }
        self.clients.iter_mut().for_each(Client::receive);
        while let Some((number, result)) = acme.as_mut().and_then(|acme| acme.result()) {
            self.complete_with(number, result.as_deref());
        }
        self.collect(workers);
        while self.round.is_none()
            && let Some(at) = self.clients.iter().position(|client| client.line().is_some())
        {
            // Back to the end of the list: other clients are served before its next line.
            let mut client = self.clients.remove(at);
            let line = client.take_line();
            if let Some(command) = line.strip_prefix(b"acme ") {
                self.orders += 1;
                match acme_command(command, self.orders, acme.as_deref_mut()) {
                    Some(reply) => client.respond(&reply),
                    None => client.order = self.orders,
                }
                self.clients.push(client);
                continue;
            }
            if line == b"upgrade" {
                self.orders += 1;
                client.order = self.orders;
                self.upgrades.push(self.orders);
                self.clients.push(client);
                continue;
            }
            match read_order(&line, sites) {
                Ok((site, path)) => {
                    self.orders += 1;
                    client.order = self.orders;
                    let of = workers.preload(self.orders, site, &path.into());
                    let until = Instant::now() + ORDER_TIME;
                    self.round = Some(Round { number: self.orders, of, answers: Vec::new(), until });
                }
                Err((status, why)) => client.respond(&format!("{} 0 0 0 {why}\n", status.0)),
            }
            self.clients.push(client);
            self.collect(workers);
        }
        self.clients.retain(|client| client.order != 0 || !client.is_over());
    }

    /// Collects the answers to the command in progress. When these are complete or it
    /// has timed out, the client gets its reply.
    fn collect(&mut self, workers: &mut (impl Orders + ?Sized)) {
        let Some(round) = &mut self.round else { return };
        round.answers.extend(workers.answers(round.number));
        if round.answers.len() < round.of && Instant::now() < round.until {
            return;
        }
        let (number, reply) = (round.number, sum_up(&round.answers, round.of));
        self.round = None;
        self.complete(number, &reply);
    }

    /// Sends a result to the client of this command.
    fn complete_with(&mut self, number: u64, result: Result<&str, impl AsRef<str>>) {
        let (status, text) = match &result {
            Ok(text) => (Status::OK, *text),
            Err(text) => (Status::INTERNAL_SERVER_ERROR, text.as_ref()),
        };
        self.complete(number, &format!("{} {}\n", status.0, text.replace(char::is_control, " ")));
    }

    /// Sends the reply to the client of this command, if it is still connected.
    fn complete(&mut self, number: u64, reply: &str) {
        if let Some(client) = self.clients.iter_mut().find(|client| client.order == number) {
            client.order = 0;
            client.respond(reply);
        }
    }

    /// Closes the socket and removes its file.
    pub fn close(self) {
        if let Err(error) = std::fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            say!(
                "cannot remove control socket {}: {error}; the next start replaces it (its directory should belong to the \
                 server's user)",
                self.path.display()
            );
        }
    }
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::symlink_metadata(path).is_ok_and(|status| status.file_type().is_socket())
}

/// Formats the reply to a command: the worst result of any worker.
fn sum_up(answers: &[PreloadResult], of: usize) -> String {
    match answers.iter().max_by_key(|answer| answer.status) {
        Some(PreloadResult { status, size, why }) => format!("{status} {size} {} {of} {why}\n", answers.len()),
        None => format!("{} 0 0 {of} no worker answered\n", Status::SERVICE_UNAVAILABLE.0),
    }
}

/// Parses a command: returns the site's number and the clean path.
///
/// # Errors
/// The status and a readable reason.
fn read_order(line: &[u8], sites: &Sites) -> Result<(u16, Vec<u8>), (Status, &'static str)> {
    const UNKNOWN: (Status, &str) =
        (Status::BAD_REQUEST, "invalid command; expected `preload HOST PATH`, `acme ...` or `upgrade`");
    let rest = line.strip_prefix(b"preload ").ok_or(UNKNOWN)?;
    let space = rest.iter().position(|&byte| byte == b' ').ok_or(UNKNOWN)?;
    let (host, path) = (&rest[..space], &rest[space + 1..]);
    if !path.starts_with(b"/") {
        return Err((Status::BAD_REQUEST, "the path must begin with a slash: it is a URL path, not a file name"));
    }
    let site = if host == b"-" { sites.first() } else { sites.for_host(host) };
    let mut scratch = Vec::new();
    let path = plan::name_of(site, path, &mut scratch)?;
    Ok((site.number, path.to_vec()))
}

/// Executes a command about certificates. `None`: its reply follows under this number.
fn acme_command(command: &[u8], number: u64, acme: Option<&mut Acme>) -> Option<String> {
    let reply = |status: Status, text: &str| Some(format!("{} {text}\n", status.0));
    let Some(acme) = acme else {
        return reply(Status::NOT_FOUND, "no site of this server has `acme = true`");
    };
    let command = String::from_utf8_lossy(command);
    let words: Vec<&str> = command.split(' ').collect();
    let is_revocation = match words[..] {
        ["status"] => {
            return match serde_json::to_string(acme.status()) {
                Ok(text) => reply(Status::OK, &text),
                Err(why) => reply(Status::INTERNAL_SERVER_ERROR, &why.to_string()),
            };
        }
        ["renew", _] => false,
        ["revoke", _] => true,
        _ => return reply(Status::BAD_REQUEST, "invalid command; expected `acme status|renew NAME|revoke NAME`"),
    };
    let begun = acme.command(number, words[1], is_revocation);
    begun.err().and_then(|why| reply(Status::SERVICE_UNAVAILABLE, &why))
}

impl Client {
    fn due(&self) -> Instant {
        self.busy + IDLE_TIME
    }

    fn has_room(&self) -> bool {
        !self.ended && self.received.len() < LINE_MAX
    }

    fn receive(&mut self) {
        let mut piece = [0; 4096];
        while self.has_room() {
            let most = piece.len().min(LINE_MAX - self.received.len());
            match self.stream.read(&mut piece[..most]) {
                Ok(0) => self.ended = true,
                Ok(count) => {
                    self.received.extend_from_slice(&piece[..count]);
                    self.busy = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.ended = true,
            }
        }
    }

    /// Returns the length of its next line, if it is complete and no command of this client is in progress.
    fn line(&self) -> Option<usize> {
        if self.order != 0 {
            return None;
        }
        self.received.iter().position(|&byte| byte == b'\n')
    }

    fn take_line(&mut self) -> Vec<u8> {
        let Some(length) = self.line() else { return Vec::new() };
        let mut line: Vec<u8> = self.received.drain(..=length).collect();
        line.pop();
        line
    }

    /// Sends a reply. Replies are short and fit into the socket buffer; a client that does not read them is dropped.
    fn respond(&mut self, answer: &str) {
        self.busy = Instant::now();
        if !matches!(self.stream.write(answer.as_bytes()), Ok(count) if count == answer.len()) {
            (self.ended, self.received) = (true, Vec::new());
        }
    }

    /// Returns whether it can be dropped: it has closed, sends an endless line, or is idle for too long.
    fn is_over(&self) -> bool {
        self.line().is_none() && (!self.has_room() || Instant::now() >= self.due())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amped_core::site::Site;
    use amped_sys::eventfd::EventFd;

    fn sites() -> Sites {
        let other = Site { hosts: vec!["other.example".into()], ..Site::default() };
        Sites::new(vec![Site::default(), other]).unwrap()
    }

    #[test]
    fn valid_commands_parse_and_invalid_ones_fail() {
        let sites = sites();
        let check = |line: &str, expected: Result<(u16, &str), u16>| {
            let read = read_order(line.as_bytes(), &sites).map_err(|(status, _)| status.0);
            let expected = expected.map(|(site, path)| (site, path.as_bytes().to_vec()));
            assert_eq!(read, expected, "{line:?}");
        };
        check("preload - /a.html", Ok((0, "/a.html")));
        check("preload other.example /a//b/../c%20d", Ok((1, "/a/c d")));
        check("preload Other.EXAMPLE /", Ok((1, "/")));
        check("preload - /with space", Ok((0, "/with space")));
        check("preload - a", Err(400));
        check("preload - ", Err(400));
        check("preload -", Err(400));
        check("preload", Err(400));
        check("forget - /a", Err(400));
        check("", Err(400));
        check("preload - /../a", Err(400));
        check("preload - /a%", Err(400));
        check("preload - /.hidden", Err(404));
        check("preload - /a%2fb", Err(404));
    }

    fn result(status: u16, size: u64) -> PreloadResult {
        PreloadResult { status, size, why: "".into() }
    }

    #[test]
    fn worst_worker_result_is_reported() {
        let file = || result(200, 7);
        assert_eq!(sum_up(&[file(), file()], 2), "200 7 2 2 \n");
        assert_eq!(sum_up(&[file(), result(404, 0), file()], 4), "404 0 3 4 \n");
        assert_eq!(sum_up(&[], 4), "503 0 0 4 no worker answered\n");
    }

    /// Workers that answer at once and record the commands.
    #[derive(Default)]
    struct Workers(Vec<(u64, Vec<u8>)>);

    impl Orders for Workers {
        fn preload(&mut self, number: u64, _: u16, path: &Arc<[u8]>) -> usize {
            self.0.push((number, path.to_vec()));
            1
        }

        fn answers(&mut self, _: u64) -> Vec<PreloadResult> {
            vec![result(200, 5)]
        }

        fn bells(&self) -> Vec<BorrowedFd<'_>> {
            Vec::new()
        }
    }

    #[test]
    fn silent_client_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let mut control = Control::open(&path, None).unwrap();
        let (mut workers, sites) = (Workers::default(), sites());
        let client = local::connect(&path, Duration::from_secs(10)).unwrap();
        control.turn(&sites, &mut workers, None);
        assert_eq!(control.clients.len(), 1);
        control.clients[0].busy = Instant::now().checked_sub(IDLE_TIME).unwrap();
        // Its time is over, so this waits for nothing.
        let bell = EventFd::new().unwrap();
        let mut awaited = Awaited::default();
        awaited.readable(bell.as_fd());
        control.await_in(&workers, &mut awaited);
        awaited.wait(Duration::MAX);
        control.turn(&sites, &mut workers, None);
        assert_eq!((&client).read(&mut [0]).unwrap(), 0);
        // A ninth waits until one of the eight has closed.
        let mut all: Vec<_> =
            (0..=CLIENTS_MAX).map(|_| local::connect(&path, Duration::from_secs(10)).unwrap()).collect();
        control.turn(&sites, &mut workers, None);
        assert_eq!(control.clients.len(), CLIENTS_MAX);
        all.pop().unwrap().write_all(b"preload - /late\n").unwrap();
        control.turn(&sites, &mut workers, None);
        assert_eq!(workers.0.len(), 0);
        all.clear();
        control.turn(&sites, &mut workers, None);
        control.turn(&sites, &mut workers, None);
        assert_eq!(workers.0.len(), 1);
    }

    #[test]
    fn random_input_does_not_stop_control_socket_or_leak() {
        use proptest::prelude::*;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let control = std::cell::RefCell::new(Control::open(&path, None).unwrap());
        let workers = std::cell::RefCell::new(Workers::default());
        let sites = sites();
        let turn = || control.borrow_mut().turn(&sites, &mut *workers.borrow_mut(), None);
        let scrap = prop_oneof![
            Just(b"preload - /a\n".to_vec()),
            Just(b"preload ".to_vec()),
            Just(b"\n".to_vec()),
            Just(vec![b'/'; 5000]),
            prop::collection::vec(any::<u8>(), 0..40),
        ];
        proptest!(ProptestConfig::with_cases(64), |(scraps in prop::collection::vec(scrap, 0..12))| {
            let client = local::connect(&path, Duration::from_secs(10)).unwrap();
            for scrap in &scraps {
                // It may have been disconnected.
                let _ = (&client).write_all(scrap);
                turn();
                prop_assert!(control.borrow().clients.iter().all(|client| client.received.len() <= LINE_MAX));
            }
            client.shutdown(std::net::Shutdown::Write).unwrap();
            turn();
            prop_assert!(control.borrow().clients.is_empty());
            // A valid command is answered after all that.
            let mut client = local::connect(&path, Duration::from_secs(10)).unwrap();
            client.write_all(b"preload - /after\n").unwrap();
            turn();
            let mut answer = [0; 11];
            client.read_exact(&mut answer).unwrap();
            prop_assert_eq!(&answer, b"200 5 1 1 \n");
            drop(client);
            turn();
        });
        assert_eq!(workers.borrow().0.last().unwrap().1, b"/after");
        control.into_inner().close();
        assert!(!path.exists());
    }
}
