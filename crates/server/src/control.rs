//! The control socket: how `amped preload` reaches a server that runs.
//!
//! The thread that waits for signals serves it (`front`). One order is under way at a time. It goes to
//! all workers, and is over when all have done it, or after [`ORDER_TIME`].
//!
//! A line is an order: `preload HOST PATH`, the host `-` for the default site, the path as in a URL. A line is the answer:
//! `STATUS SIZE DONE OF REASON`, that is the status that a request would get, the size of the file, how many workers
//! answered, of how many, and why not 200, for people.
//!
//! Only the server's user and root may connect: the mode of the name says so to the kernel, and each client is asked again.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use amped_core::event::AnswerKind;
use amped_core::plan;
use amped_core::site::Sites;
use amped_http::status::Status;
use amped_sys::eventfd::EventFd;
use amped_sys::poll::Awaited;
use amped_sys::{local, process};

use crate::say;

/// How long workers have for an order. One that waits for the disk, or is at a long download in MP, may take longer; the
/// answer says how many did.
pub const ORDER_TIME: Duration = Duration::from_secs(5);

/// Clients at once; others wait to be accepted.
const CLIENTS_MAX: usize = 8;

/// The longest line, so longer than the longest path in a request by default.
const LINE_MAX: usize = 16 * 1024;

/// A client that has no order under way and sends none for so long is not waited for.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// Those who carry orders out.
pub trait Orders {
    /// Tells all to forget this name of this site and to look it up anew. Returns how many will answer.
    fn preload(&mut self, number: u64, site: u16, path: &Arc<[u8]>) -> usize;

    /// Takes the answers to the order of this number that have come since the last time.
    fn answers(&mut self, number: u64) -> Vec<AnswerKind>;

    /// What can be read when there may be some.
    fn bells(&self) -> Vec<BorrowedFd<'_>>;
}

/// Answers of threads, and a bell that rings when there are any.
#[derive(Debug)]
pub struct Answers {
    answers: Mutex<Vec<(u64, AnswerKind)>>,
    bell: EventFd,
}

impl Answers {
    /// None yet.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new() -> io::Result<Answers> {
        Ok(Answers { answers: Mutex::default(), bell: EventFd::new()? })
    }

    /// An answer to the order of this number.
    pub fn put(&self, number: u64, answer: AnswerKind) {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).push((number, answer));
        self.bell.ring();
    }

    /// Takes the answers to the order of this number; those to earlier ones came too late.
    pub fn take(&self, number: u64) -> Vec<AnswerKind> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        self.bell.silence();
        answers.drain(..).filter(|(of, _)| *of == number).map(|(_, answer)| answer).collect()
    }
}

impl AsFd for Answers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// The socket, its clients, and the order that is under way.
#[derive(Debug)]
pub struct Control {
    path: PathBuf,
    listener: UnixListener,
    clients: Vec<Client>,
    round: Option<Round>,
    orders: u64,
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    /// `received.len() <= LINE_MAX`
    received: Vec<u8>,
    /// It will send nothing more.
    ended: bool,
    /// When it last had something to say, or was told something.
    busy: Instant,
    /// The order of this number is its own; 0: none is.
    order: u64,
}

/// An order that is under way.
#[derive(Debug)]
struct Round {
    number: u64,
    of: usize,
    answers: Vec<AnswerKind>,
    until: Instant,
}

impl Control {
    /// Listens under this name, for the user of this number alone, to whom the name is given. One that a server left behind
    /// that is no more is replaced.
    ///
    /// # Errors
    /// In words, with the way out.
    pub fn open(path: &Path, owner: Option<(u32, u32)>) -> Result<Control, String> {
        let shown = path.display();
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => {
                format!(
                    "cannot make the control socket {shown}: its folder is not there; make it, or name another socket"
                )
            }
            _ => format!("cannot make the control socket {shown}: {error}"),
        };
        let listener = match local::listen(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                match local::connect(path, Duration::from_secs(1)) {
                    // Nobody listens at it any more.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && is_socket(path) => {
                        std::fs::remove_file(path).map_err(failed)?;
                        local::listen(path).map_err(failed)?
                    }
                    Err(_) if !is_socket(path) => {
                        return Err(format!(
                            "the control socket {shown} is there already and is no socket: name another"
                        ));
                    }
                    Ok(_) | Err(_) => {
                        return Err(format!(
                            "another server listens at the control socket {shown}: stop it, or name another socket with \
                             --control or [control] socket"
                        ));
                    }
                }
            }
            other => other.map_err(failed)?,
        };
        if let Some((uid, gid)) = owner {
            local::give_to(path, uid, gid).map_err(failed)?;
        }
        Ok(Control { path: path.to_owned(), listener, clients: Vec::new(), round: None, orders: 0 })
    }

    /// Orders so far.
    pub fn orders(&self) -> u64 {
        self.orders
    }

    /// Says what it waits for.
    pub fn await_in<'a>(&'a self, workers: &'a impl Orders, awaited: &mut Awaited<'a>) {
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

    /// Does what there is to do; waits for nobody.
    pub fn turn(&mut self, sites: &Sites, workers: &mut impl Orders) {
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
        self.collect(workers);
        while self.round.is_none()
            && let Some(at) = self.clients.iter().position(|client| client.line().is_some())
        {
            // To the end: others have their turn before its next line.
            let mut client = self.clients.remove(at);
            let line = client.take_line();
            match read_order(&line, sites) {
                Ok((site, path)) => {
                    self.orders += 1;
                    client.order = self.orders;
                    let of = workers.preload(self.orders, site, &path.into());
                    let until = Instant::now() + ORDER_TIME;
                    self.round = Some(Round { number: self.orders, of, answers: Vec::new(), until });
                }
                Err((status, why)) => client.tell(&format!("{} 0 0 0 {why}\n", status.0)),
            }
            self.clients.push(client);
            self.collect(workers);
        }
        self.clients.retain(|client| client.order != 0 || !client.is_over());
    }

    /// Takes the answers to the order that is under way; if these are all, or it has taken too long, its client is told.
    fn collect(&mut self, workers: &mut impl Orders) {
        let Some(round) = &mut self.round else { return };
        round.answers.extend(workers.answers(round.number));
        if round.answers.len() < round.of && Instant::now() < round.until {
            return;
        }
        if let Some(client) = self.clients.iter_mut().find(|client| client.order == round.number) {
            client.order = 0;
            client.tell(&sum_up(&round.answers, round.of));
        }
        self.round = None;
    }

    /// Listens no longer, and takes the name away.
    pub fn close(self) {
        if let Err(error) = std::fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            say!(
                "cannot remove the control socket {}: {error}; the next start replaces it (its folder should be the user's \
                 who serves)",
                self.path.display()
            );
        }
    }
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::symlink_metadata(path).is_ok_and(|status| status.file_type().is_socket())
}

/// What is told of an order: the worst that a worker found.
fn sum_up(answers: &[AnswerKind], of: usize) -> String {
    match answers.iter().max_by_key(|answer| answer.status()) {
        Some(answer) => format!("{} {} {} {of} {}\n", answer.status().0, answer.size, answers.len(), answer.why()),
        None => format!("{} 0 0 {of} no worker has answered\n", Status::SERVICE_UNAVAILABLE.0),
    }
}

/// Reads the order in a line: the site's number and the clean path.
///
/// # Errors
/// The status and the reason for people.
fn read_order(line: &[u8], sites: &Sites) -> Result<(u16, Vec<u8>), (Status, &'static str)> {
    const UNKNOWN: (Status, &str) = (Status::BAD_REQUEST, "an order is `preload HOST PATH`");
    let rest = line.strip_prefix(b"preload ").ok_or(UNKNOWN)?;
    let space = rest.iter().position(|&byte| byte == b' ').ok_or(UNKNOWN)?;
    let (host, path) = (&rest[..space], &rest[space + 1..]);
    if !path.starts_with(b"/") {
        return Err((Status::BAD_REQUEST, "a path begins with a slash: it is that of a URL, not of a file"));
    }
    let site = if host == b"-" { sites.first() } else { sites.for_host(host) };
    let mut scratch = Vec::new();
    let path = plan::name_of(site, path, &mut scratch)?;
    Ok((site.number, path.to_vec()))
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

    /// The length of its next line, if it is whole. Not while an order of its own is under way.
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

    /// Answers are short, and wait in the socket. Who does not take them has gone, or never meant to.
    fn tell(&mut self, answer: &str) {
        self.busy = Instant::now();
        if !matches!(self.stream.write(answer.as_bytes()), Ok(count) if count == answer.len()) {
            (self.ended, self.received) = (true, Vec::new());
        }
    }

    /// Nothing more is to be heard from it: it has gone, sends no line that ends, or nothing at all.
    fn is_over(&self) -> bool {
        self.line().is_none() && (!self.has_room() || Instant::now() >= self.due())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amped_core::site::Site;

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

    #[test]
    fn worst_worker_result_is_reported() {
        let (file, absent) = (brief(0, 7), brief(5, 0));
        assert_eq!(sum_up(&[file, file], 2), "200 7 2 2 \n");
        assert_eq!(sum_up(&[file, absent, file], 4), "404 0 3 4 \n");
        assert_eq!(sum_up(&[], 4), "503 0 0 4 no worker has answered\n");
    }

    /// As it comes from another process.
    fn brief(kind: u8, size: u64) -> AnswerKind {
        AnswerKind::from_bytes(&[&[kind][..], &size.to_le_bytes()].concat()).unwrap()
    }

    /// Answers at once, and keeps count.
    #[derive(Default)]
    struct Workers(Vec<(u64, Vec<u8>)>);

    impl Orders for Workers {
        fn preload(&mut self, number: u64, _: u16, path: &Arc<[u8]>) -> usize {
            self.0.push((number, path.to_vec()));
            1
        }

        fn answers(&mut self, _: u64) -> Vec<AnswerKind> {
            vec![brief(0, 5)]
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
        control.turn(&sites, &mut workers);
        assert_eq!(control.clients.len(), 1);
        control.clients[0].busy = Instant::now().checked_sub(IDLE_TIME).unwrap();
        // Its time is over, so nothing is waited for.
        let bell = EventFd::new().unwrap();
        let mut awaited = Awaited::default();
        awaited.readable(bell.as_fd());
        control.await_in(&workers, &mut awaited);
        awaited.wait(Duration::MAX);
        control.turn(&sites, &mut workers);
        assert_eq!((&client).read(&mut [0]).unwrap(), 0);
        // A ninth waits until one of eight has gone.
        let mut all: Vec<_> =
            (0..=CLIENTS_MAX).map(|_| local::connect(&path, Duration::from_secs(10)).unwrap()).collect();
        control.turn(&sites, &mut workers);
        assert_eq!(control.clients.len(), CLIENTS_MAX);
        all.pop().unwrap().write_all(b"preload - /late\n").unwrap();
        control.turn(&sites, &mut workers);
        assert_eq!(workers.0.len(), 0);
        all.clear();
        control.turn(&sites, &mut workers);
        control.turn(&sites, &mut workers);
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
        let turn = || control.borrow_mut().turn(&sites, &mut *workers.borrow_mut());
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
                // It may have been shown the door.
                let _ = (&client).write_all(scrap);
                turn();
                prop_assert!(control.borrow().clients.iter().all(|client| client.received.len() <= LINE_MAX));
            }
            client.shutdown(std::net::Shutdown::Write).unwrap();
            turn();
            prop_assert!(control.borrow().clients.is_empty());
            // A whole order is answered after all that.
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
