//! A server under test, and a client that reads strictly and writes any bytes.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustls::ClientConnection;
use tempfile::TempDir;

/// Timeout of every wait in a test. No test asserts that anything takes less.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Values of `send.content`.
#[allow(dead_code, reason = "unused by the tests with other programs")]
pub const MODES: [&str; 4] = ["mixed", "copy", "mmap", "sendfile"];

/// The program under test. Tests of another program find it beside theirs.
pub fn program() -> Command {
    let beside = || Some(Path::new(option_env!("CARGO_BIN_EXE_amped-acme")?).with_file_name("amped"));
    let program = option_env!("CARGO_BIN_EXE_amped").map(PathBuf::from).or_else(beside).unwrap();
    assert!(program.exists(), "{} is missing: cargo build --package amped", program.display());
    Command::new(program)
}

/// The architecture under test, in a harness that is part of the suite (`wire::mt::harness`); elsewhere `None`, the
/// default.
pub fn architecture() -> Option<&'static str> {
    module_path!().split("::").nth(1).filter(|&module| module != "harness")
}

/// Returns whether the workers are a pool, each with one connection at a time.
pub fn is_pool() -> bool {
    matches!(architecture(), Some("mt" | "mp"))
}

/// Returns whether the workers are processes.
pub fn has_processes() -> bool {
    architecture() == Some("mp")
}

/// Workers of a pool unless the test sets a number: more than any test has connections, and few enough to start
/// quickly.
const POOL: usize = 32;

/// Whether the suite runs over TLS: with `AMPED_TEST_TLS=1`, all its servers have certificates, and all clients use them. With
/// `AMPED_TEST_TLS=process`, a process of its own has the keys (`tls.keys`).
pub fn is_secure() -> bool {
    architecture().is_some() && std::env::var_os("AMPED_TEST_TLS").is_some()
}

/// Whether the suite runs over HTTP/2: with `AMPED_TEST_HTTP2=1`, its clients translate requests and responses.
pub fn is_http2() -> bool {
    architecture().is_some() && std::env::var_os("AMPED_TEST_HTTP2").is_some()
}

/// Numbers of workers to try: one loop and two loops, or pools large enough for all clients of a test.
pub fn crews() -> [usize; 2] {
    if is_pool() { [24, 32] } else { [1, 2] }
}

/// Configuration prefix for tests of cache contents: limits an architecture with caches per process to one process.
/// Such a test sends all its requests over one connection at a time.
pub fn one_set_of_caches() -> &'static str {
    if has_processes() { "workers = 1\n" } else { "" }
}

/// A directory with files, removed when dropped.
pub struct Site {
    pub folder: TempDir,
}

impl Site {
    pub fn new() -> Site {
        Site { folder: tempfile::tempdir().unwrap() }
    }

    /// Creates a site on the disk of the build directory, for tests about disks (`/tmp` may be memory).
    pub fn on_disk() -> Site {
        Site { folder: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file and creates its parent directories.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // The configuration beside it and the CA certificates of its backends, if a test wrote them.
        let _ = fs::remove_file(self.path().with_extension("toml"));
        let _ = fs::remove_file(self.path().with_extension("ca.pem"));
    }
}

/// Waits until files are old enough to be read without a delay: a file that changed within the last 50 ms may still be
/// written to, and a helper waits for it.
pub fn let_files_settle() {
    thread::sleep(Duration::from_millis(50));
}

/// A running server. Stopped when dropped.
pub struct Server {
    child: Child,
    /// The first address that the server reported.
    pub address: SocketAddr,
    said: Arc<Mutex<String>>,
    /// Reads its standard error until every writer has closed it.
    listener: JoinHandle<()>,
    /// Written for it alone.
    files: Vec<PathBuf>,
}

impl Server {
    /// Serves a site with the default configuration.
    pub fn serve(site: &Site) -> Server {
        Server::start(&[site.path().to_str().unwrap()])
    }

    /// Serves a site with a configuration: `root` and `listen` are put before the text.
    pub fn configured(site: &Site, toml: &str) -> Server {
        let config = site.folder.path().with_extension("toml");
        fs::write(&config, configuration(site.path(), toml)).unwrap();
        Server::start(&["--config", config.to_str().unwrap()])
    }

    /// Serves a site with these keys in its own table; the text may continue with other tables.
    pub fn with_site(site: &Site, toml: &str) -> Server {
        let config = site.folder.path().with_extension("toml");
        let root = site.path();
        fs::write(&config, format!("listen = [\"127.0.0.1:0\"]\n[[site]]\nroot = {root:?}\n{toml}\n")).unwrap();
        Server::start(&["--config", config.to_str().unwrap()])
    }

    /// Starts `amped serve` with these arguments; adds `--listen` with a free port if they have none.
    pub fn start(args: &[&str]) -> Server {
        let mut command = program();
        command.arg("serve").args(args);
        if !args.iter().any(|arg| arg.starts_with("--listen") || *arg == "--config") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        Server::spawn(command)
    }

    /// Starts a command that is the server, or becomes it, in the architecture under test.
    pub fn spawn(mut command: Command) -> Server {
        let mut files = Vec::new();
        if is_secure() && command.get_program() == program().get_program() {
            (command, files) = identity::secured(&command);
        }
        if let Some(architecture) = architecture() {
            command.args(["--architecture", architecture]);
        }
        if is_pool() && !says_how_many_workers(&command) {
            command.args(["--workers", &POOL.to_string()]);
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
        let (said, is_secured) = (Arc::new(Mutex::new(String::new())), !files.is_empty());
        let (to, from) = mpsc::channel();
        let heard = Arc::clone(&said);
        let stderr = child.stderr.take().unwrap();
        let listener = thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if let Some(rest) = line.strip_prefix("amped: serving on http")
                    && let Some((scheme, rest)) = rest.split_once("://")
                {
                    let host = rest.split('/').next().unwrap().replace("localhost", "127.0.0.1");
                    let address = host.parse::<SocketAddr>().unwrap();
                    if is_secured && scheme == "s" {
                        identity::add(address);
                    }
                    let _ = to.send(address);
                }
                heard.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        match from.recv_timeout(PATIENCE) {
            Ok(address) => Server { child, address, said, listener, files },
            Err(_) => {
                let _ = child.kill();
                panic!("the server did not start: {}", said.lock().unwrap());
            }
        }
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// Sends one request on a connection of its own.
    pub fn get(&self, target: &str) -> Response {
        self.connect().request("GET", target, &[])
    }

    /// Its process ID, or after upgrades that of the process that serves now.
    pub fn pid(&self) -> u32 {
        let said = self.said();
        let last = said.lines().rev().find_map(|line| line.strip_prefix("amped: process ")?.split_once(" serves;"));
        last.map_or_else(|| self.child.id(), |(pid, _)| pid.parse().unwrap())
    }

    /// Makes it upgrade, and returns the process that serves then.
    pub fn upgrade(&self) -> u32 {
        let before = self.pid();
        self.signal("USR2");
        wait_until(&format!("the upgrade of {before}"), || self.pid() != before);
        self.pid()
    }

    /// Child processes of the server (proc_pid_task_children(5)).
    pub fn children(&self) -> Vec<u32> {
        let text = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid())).unwrap_or_default();
        text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }

    /// All processes of the server.
    pub fn pids(&self) -> Vec<u32> {
        [&[self.pid()], &*self.children()].concat()
    }

    /// Programs that the server or one of its processes has started: children that execute another file.
    pub fn programs(&self) -> Vec<u32> {
        let file = |pid: u32| fs::read_link(format!("/proc/{pid}/exe")).ok();
        let own = file(self.pid());
        let mut children = children();
        let mut of = |pid: u32| children.remove(&pid).unwrap_or_default();
        let (processes, programs): (Vec<u32>, _) = of(self.pid()).into_iter().partition(|pid| file(*pid) == own);
        let of_processes = processes.into_iter().flat_map(of).filter(|pid| file(*pid) != own);
        of_processes.chain::<Vec<u32>>(programs).collect()
    }

    /// CPU time of all its processes (proc_pid_stat(5), fields 14 and 15).
    pub fn cpu_time(&self) -> Duration {
        let of = |pid: u32| {
            // A process that has ended since then counts as zero.
            let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // The name, in parentheses, may contain anything; the third field follows it.
            let fields = text.rsplit(") ").next().unwrap().split(' ');
            let ticks: u64 = fields.skip(14 - 3).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum();
            // USER_HZ is 100 on every supported Linux.
            Duration::from_millis(ticks * 10)
        };
        self.pids().into_iter().map(of).sum()
    }

    /// Targets of the open file descriptors of all its processes.
    pub fn descriptors(&self) -> Vec<PathBuf> {
        self.pids().into_iter().flat_map(descriptors_of).collect()
    }

    /// Sends a signal by name, as `kill -HUP`.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Everything that the server has written to standard error so far.
    pub fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Waits until standard error contains `text`.
    pub fn wait_for(&self, text: &str) {
        wait_until(&format!("{text:?} on standard error, which is {}", self.said()), || self.said().contains(text));
    }

    /// Waits until the process exits.
    pub fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                // Its last lines may still be in the pipe, and a program that it started may hold the other end open.
                for _ in 0..400 {
                    if !self.listener.is_finished() {
                        thread::sleep(Duration::from_millis(5));
                    }
                }
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "the server does not exit; its output is {}", self.said());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Takes standard output, for a log that goes there. It ends with the process.
    pub fn take_stdout(&mut self) -> impl Read + use<> {
        self.child.stdout.take().unwrap()
    }

    /// Reads a figure from the report that SIGQUIT requests, as `report("connections")` or `report("cache_hits path")`.
    pub fn report(&self, figure: &str) -> u64 {
        let before = self.said().len();
        self.signal("QUIT");
        wait_until("the report", || self.said()[before..].contains("loops: answered="));
        figure_in(&self.said()[before..], figure)
    }
}

/// Reads a figure from the last report in a text (see [`Server::report`]).
pub fn figure_in(said: &str, figure: &str) -> u64 {
    let value = |name: &str, before: &str| {
        let line = said.lines().rev().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))?;
        line.split(' ').find_map(|value| value.strip_prefix(before)?.parse().ok())
    };
    let labelled = || figure.rsplit_once(' ').and_then(|(name, label)| value(name, &format!("{label}=")));
    value(figure, "").or_else(labelled).unwrap_or_else(|| panic!("no {figure} in {said}"))
}

/// Targets of the open file descriptors of a process, in order.
pub fn descriptors_of(pid: u32) -> Vec<PathBuf> {
    let folder = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> = folder.filter_map(|entry| fs::read_link(entry.path()).ok()).collect();
    all.sort();
    all
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.pid() != self.child.id() {
            let _ = Command::new("kill").args(["-KILL", &self.pid().to_string()]).stderr(Stdio::null()).status();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
    }
}

/// A service manager, as far as it gets messages.
pub struct ServiceManager {
    folder: TempDir,
    /// The messages. A thread reads them as they arrive, so that none waits.
    messages: Receiver<String>,
}

impl ServiceManager {
    pub fn new() -> ServiceManager {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        let (sender, messages) = mpsc::channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length) = socket.recv(&mut buffer) {
                if sender.send(String::from_utf8(buffer[..length].to_vec()).unwrap()).is_err() {
                    break;
                }
            }
        });
        ServiceManager { folder, messages }
    }

    /// Makes a server that this command starts send its messages here.
    pub fn supervise(&self, command: &mut Command) {
        command.env("NOTIFY_SOCKET", self.folder.path().join("notify"));
    }

    /// Starts a supervised server with these variables in its environment.
    pub fn start(&self, config: &str, variables: &[(&str, &str)]) -> Server {
        let mut command = program();
        command.args(["serve", "--config", config]).envs(variables.iter().copied());
        self.supervise(&mut command);
        Server::spawn(command)
    }

    /// Waits until no more messages arrive for a second.
    pub fn wait_for_silence(&self) {
        let begin = Instant::now();
        while self.next_within(Duration::from_secs(1)).is_some() {
            assert!(begin.elapsed() < PATIENCE, "messages still arrive");
        }
    }

    /// Waits for so many messages, all of which must be this one.
    pub fn expect_only(&self, message: &str, count: usize) {
        (0..count).for_each(|_| assert_eq!(self.next(), message));
    }

    /// Returns the next message, if there is one within this time.
    pub fn next_within(&self, time: Duration) -> Option<String> {
        self.messages.recv_timeout(time).ok()
    }

    /// Returns the next message.
    pub fn next(&self) -> String {
        self.next_within(PATIENCE).expect("a message of the server")
    }
}

/// Returns whether the arguments of a server, or the configuration that they name, set the number of workers.
fn says_how_many_workers(command: &Command) -> bool {
    let arguments: Vec<_> = command.get_args().collect();
    let config = arguments.iter().skip_while(|argument| **argument != "--config").nth(1);
    let config = config.map(|path| fs::read_to_string(path).unwrap()).unwrap_or_default();
    arguments.iter().any(|argument| *argument == "--workers") || config.lines().any(|line| line.starts_with("workers"))
}

/// Returns a configuration for this root on a free port.
pub fn configuration(root: &Path, toml: &str) -> String {
    format!("root = {:?}\nlisten = [\"127.0.0.1:0\"]\n{toml}\n", root.to_str().unwrap())
}

/// Exit status and output of a finished program.
#[derive(Debug)]
pub struct Ended {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Runs `amped` with these arguments until it exits.
pub fn run(args: &[&str]) -> Ended {
    let mut command = program();
    command.args(args);
    run_command(command)
}

/// Runs a command that exits on its own and writes little.
pub fn run_command(mut command: Command) -> Ended {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("{command:?} does not exit: {:?}", child.wait_with_output());
        }
        thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let status = output.status.code().expect("no signal ended it");
    Ended { status, stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Panics unless the test runs as root.
pub fn need_root(what_for: &str) {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test {what_for}, which requires root: run it as root, or as root in a container (`unshare -r` is not enough)"
    );
}

/// Allows core dumps of this process, and of servers that it starts.
pub fn allow_core_dumps() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Core).maximum;
    assert!(maximum.is_none_or(|maximum| maximum > 0), "this test needs a hard limit on core dumps (`ulimit -Hc`)");
    setrlimit(Resource::Core, Rlimit { current: maximum, maximum }).unwrap();
}

/// Polls a condition until it holds.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "timed out waiting for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Sets a flag when dropped, even after a failed assertion, so that threads of a scope that wait for the flag end.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the state and the parent of a process (proc_pid_stat(5), fields 3 and 4), or `None` if it has exited, reaped
/// or not.
pub fn parent_of(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    (!matches!(state, 'Z' | 'X')).then_some((state, parent))
}

/// Child processes that have not exited, by their parent.
fn children() -> BTreeMap<u32, Vec<u32>> {
    let mut children = BTreeMap::<u32, Vec<u32>>::new();
    let all = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    for pid in all {
        if let Some((_, parent)) = parent_of(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    children
}

/// Child processes that have not exited.
pub fn children_of(pid: u32) -> Vec<u32> {
    children().remove(&pid).unwrap_or_default()
}

/// The client's side of a connection.
pub struct Client {
    stream: TcpStream,
    /// Its session, if it uses TLS.
    tls: Option<Box<ClientConnection>>,
    /// Received bytes that no call has returned yet.
    buffer: Vec<u8>,
    /// Translates to and from HTTP/2, if the suite runs over it.
    translation: Option<Box<translation::Translation>>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Client {
        Client::over(TcpStream::connect(address).unwrap(), address)
    }

    fn over(stream: TcpStream, address: SocketAddr) -> Client {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let translation = is_http2().then(Box::default);
        Client { stream, tls: identity::session(address), buffer: Vec::new(), translation }
    }

    /// The same connection without translation.
    pub fn untranslated(mut self) -> Client {
        self.translation = None;
        self
    }

    /// Connects from this address of the loopback network.
    pub fn connect_from(address: SocketAddr, from: Ipv4Addr) -> Client {
        use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
        let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        net::bind(&socket, &SocketAddr::from((from, 0))).unwrap();
        net::connect(&socket, &address).unwrap();
        Client::over(TcpStream::from(socket), address)
    }

    /// Connects with a small receive buffer: the kernel takes in about twice this size until the client reads, so the
    /// server notices a slow reader.
    pub fn connect_narrow(address: SocketAddr, receive_buffer: usize) -> Client {
        use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
        // CLOEXEC: otherwise the servers of other tests would hold it open.
        let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        // Before connect(2), which negotiates the window scale.
        sockopt::set_socket_recv_buffer_size(&socket, receive_buffer).unwrap();
        net::connect(&socket, &address).unwrap();
        Client::over(TcpStream::from(socket), address)
    }

    /// Opens a second handle on the same connection, for concurrent use.
    pub fn on(stream: &TcpStream) -> Client {
        Client { stream: stream.try_clone().unwrap(), tls: None, buffer: Vec::new(), translation: None }
    }

    /// Uses TLS from now on. The handshake takes place with the first bytes that are sent or received.
    pub fn secure(mut self, tls: ClientConnection) -> Client {
        self.tls = Some(Box::new(tls));
        self
    }

    /// The session, if it uses TLS.
    pub fn tls(&mut self) -> Option<&mut ClientConnection> {
        self.tls.as_deref_mut()
    }

    /// Sends bytes, unchanged or in a TLS session. Ignores that the server has already closed, because its earlier response
    /// counts.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        match self.translation.take() {
            Some(mut translation) => {
                self.send_unchanged(&translation.request(bytes.as_ref()));
                self.translation = Some(translation);
            }
            None => self.send_unchanged(bytes.as_ref()),
        }
    }

    fn send_unchanged(&mut self, bytes: &[u8]) {
        let _ = match &mut self.tls {
            Some(tls) => {
                let mut stream = rustls::Stream::new(&mut **tls, &mut self.stream);
                stream.write_all(bytes).and_then(|()| stream.flush())
            }
            None => self.stream.write_all(bytes),
        };
    }

    /// Reads once. With TLS, an end that the server has not announced (close_notify) is an error.
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        let Some(mut translation) = self.translation.take() else { return self.read_unchanged(piece) };
        let result = loop {
            match translation.take(piece) {
                Ok(None) => {}
                Ok(Some(count)) => break Ok(count),
                Err(error) => break Err(error),
            }
            match self.read_unchanged(piece) {
                Ok(0) => break translation.end(),
                Ok(count) => {
                    let answers = translation.response(&piece[..count]);
                    self.send_unchanged(&answers);
                }
                Err(error) => break Err(error),
            }
        };
        self.translation = Some(translation);
        result
    }

    fn read_unchanged(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            Some(tls) => rustls::Stream::new(&mut **tls, &mut self.stream).read(piece),
            None => self.stream.read(piece),
        }
    }

    /// Sends a request with a Host field and these fields.
    pub fn send_request(&mut self, method: &str, target: &str, fields: &[(&str, &str)]) {
        let mut text = format!("{method} {target} HTTP/1.1\r\n");
        if !fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            text += "Host: localhost\r\n";
        }
        for (name, value) in fields {
            text += &format!("{name}: {value}\r\n");
        }
        self.send(text + "\r\n");
    }

    pub fn request(&mut self, method: &str, target: &str, fields: &[(&str, &str)]) -> Response {
        self.send_request(method, target, fields);
        self.response(method)
    }

    pub fn get(&mut self, target: &str) -> Response {
        self.request("GET", target, &[])
    }

    /// Like `get`, but returns `None` if the connection breaks before the response is complete.
    pub fn try_get(&mut self, target: &str) -> Option<Response> {
        self.send_request("GET", target, &[]);
        self.try_response("GET").ok()
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub fn half_close(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            let _ = tls.complete_io(&mut self.stream);
        }
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Waits until bytes have arrived for the next read.
    pub fn wait_for_bytes(&mut self) {
        assert!(self.fill().unwrap() > 0, "the connection ended");
    }

    /// Waits until at least `count` bytes have arrived.
    pub fn wait_for_many_bytes(&mut self, count: usize) {
        while self.buffer.len() < count {
            self.wait_for_bytes();
        }
    }

    fn fill(&mut self) -> io::Result<usize> {
        let mut piece = [0; 64 * 1024];
        // A read with a timeout is not restarted after a process was stopped and continued (signal(7)), as on a busy
        // machine.
        let count = loop {
            match self.read(&mut piece) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        self.buffer.extend_from_slice(&piece[..count]);
        Ok(count)
    }

    /// The bytes received that no call has returned yet.
    pub fn buffered(&self) -> &[u8] {
        &self.buffer
    }

    /// Removes the first of them.
    pub fn discard(&mut self, count: usize) {
        self.buffer.drain(..count);
    }

    /// Reads at most so many bytes, if any have arrived.
    pub fn fill_at_most(&mut self, count: usize) {
        let mut piece = vec![0; count];
        self.stream.set_nonblocking(true).unwrap();
        let received = self.read_unchanged(&mut piece);
        self.stream.set_nonblocking(false).unwrap();
        self.buffer.extend_from_slice(&piece[..received.unwrap_or(0)]);
    }

    /// Waits for more bytes; returns whether any have arrived before the end.
    pub fn try_fill(&mut self) -> bool {
        match self.fill() {
            Ok(count) => count > 0,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => panic!("nothing arrives"),
            Err(_) => false,
        }
    }

    /// Reads one response to a request with this method, and no byte after it.
    pub fn response(&mut self, method: &str) -> Response {
        self.try_response(method).unwrap_or_else(|error| panic!("no complete response: {error}"))
    }

    /// Like `response`, but returns an error if the connection breaks; its text contains the bytes received until then.
    pub fn try_response(&mut self, method: &str) -> io::Result<Response> {
        let cut = |what: &str| io::Error::new(io::ErrorKind::UnexpectedEof, format!("the connection ended in {what}"));
        let end = loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                break end;
            }
            if self.fill()? == 0 {
                return Err(cut("the head"));
            }
        };
        let head = take_front(&mut self.buffer, end + 4);
        let head = String::from_utf8(head).expect("the server's heads are ASCII");
        let mut lines = head.trim_end_matches("\r\n").split("\r\n");
        let status_line = lines.next().unwrap();
        let (version, rest) = status_line.split_once(' ').expect("a status line");
        assert_eq!(version, "HTTP/1.1", "{status_line}");
        let (status, _reason) = rest.split_once(' ').expect("a space after the status");
        let status: u16 = status.parse().expect("a status");
        let fields: Vec<(String, String)> = lines
            .map(|line| {
                let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("not a field: {line:?}"));
                assert!(!name.contains(' ') && !line.contains(['\r', '\n']), "{line:?}");
                (name.to_owned(), value.trim().to_owned())
            })
            .collect();
        let mut response = Response { status, fields, body: Vec::new() };
        // RFC 9112, 6.3: these responses have no body, whatever their fields say.
        if method == "HEAD" || status < 200 || status == 204 || status == 304 {
            return Ok(response);
        }
        if let Some(coding) = response.field("Transfer-Encoding") {
            assert!(coding == "chunked" && response.field("Content-Length").is_none(), "{response:?}");
            response.body = self.read_chunks()?;
            return Ok(response);
        }
        let length: usize = response.field("Content-Length").expect("every body has a length").parse().unwrap();
        while self.buffer.len() < length {
            if self.fill()? == 0 {
                return Err(cut(&format!("a body, {} of {length} bytes", self.buffer.len())));
            }
        }
        response.body = take_front(&mut self.buffer, length);
        Ok(response)
    }

    /// Reads a chunked body to its end (RFC 9112, 7.1).
    pub fn read_chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let end = loop {
                match find(&self.buffer, b"\r\n") {
                    Some(end) => break end,
                    None if self.fill()? == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    None => {}
                }
            };
            let size = std::str::from_utf8(&self.buffer[..end]).expect("chunk sizes are ASCII");
            let size = usize::from_str_radix(size, 16).expect("the server's chunks have no extensions");
            while self.buffer.len() < end + 2 + size + 2 {
                if self.fill()? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            body.extend_from_slice(&self.buffer[end + 2..end + 2 + size]);
            assert_eq!(&self.buffer[end + 2 + size..end + 4 + size], b"\r\n");
            self.buffer.drain(..end + 4 + size);
            if size == 0 {
                return Ok(body);
            }
        }
    }

    /// Reads up to the end of a head, for a response too large for a [`Response`].
    pub fn read_head(&mut self) -> String {
        let end = loop {
            match find(&self.buffer, b"\r\n\r\n") {
                Some(end) => break end + 4,
                None => assert!(self.fill().unwrap() > 0, "the connection ended within the head"),
            }
        };
        String::from_utf8(take_front(&mut self.buffer, end)).unwrap()
    }

    /// Reads and discards `length` bytes; fails if fewer arrive.
    pub fn read_body(&mut self, length: usize) -> io::Result<usize> {
        let mut received = self.buffer.len();
        self.buffer.clear();
        let mut piece = vec![0; 256 * 1024];
        while received < length {
            let most = piece.len().min(length - received);
            match self.read(&mut piece[..most]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => received += count,
                // As in `fill`.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        assert_eq!(received, length, "data after the body");
        Ok(received)
    }

    /// Returns whether the server closes without sending another byte. Panics if it does neither.
    pub fn is_closed(&mut self) -> bool {
        self.buffer.is_empty()
            && match self.fill() {
                Ok(count) => count == 0,
                Err(error) => {
                    assert_ne!(error.kind(), io::ErrorKind::WouldBlock, "the connection stays open");
                    true
                }
            }
    }

    /// Returns whether the server sends nothing for this long and keeps the connection open.
    pub fn is_quiet(&mut self, time: Duration) -> bool {
        self.stream.set_read_timeout(Some(time)).unwrap();
        let filled = self.fill();
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        self.buffer.is_empty() && matches!(filled, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Returns whether the server ends its side by a FIN without another byte. A reset or a timeout is `false`;
    /// [`Client::is_closed`] does not tell these apart.
    pub fn ends(&mut self) -> bool {
        self.buffer.is_empty() && matches!(self.fill(), Ok(0))
    }

    /// Reads until the end of the connection.
    pub fn read_to_end(&mut self) -> Vec<u8> {
        while matches!(self.fill(), Ok(count) if count > 0) {}
        std::mem::take(&mut self.buffer)
    }
}

/// Translates the requests of the suite to HTTP/2, and the responses back, in the order of the requests.
mod translation {
    use std::collections::VecDeque;

    use amped_http::h2::fields::FieldList;
    use amped_http::h2::frame::{self, FRAME_BYTES, Frame, PREFACE, StreamId, setting};
    use amped_http::h2::hpack::{self, Decoder};

    use super::*;

    pub struct Translation {
        has_begun: bool,
        /// Bytes of requests that are not translated yet.
        requests: Vec<u8>,
        /// The body that follows the last head.
        body: Body,
        frames: Vec<u8>,
        decoder: Decoder,
        streams: VecDeque<Stream>,
        next_stream: u32,
        /// Bytes that may be sent on the connection, and on a new stream.
        window: i64,
        initial_window: i64,
        /// Translated responses.
        responses: Vec<u8>,
        /// Whether the connection appears to end after the response of the oldest stream.
        has_ended: bool,
    }

    struct Stream {
        id: u32,
        is_head: bool,
        /// The client wants the connection closed.
        closes: bool,
        upload: Vec<u8>,
        /// The end of the body must still be sent.
        owes_end: bool,
        window: i64,
        is_chunked: bool,
        response: Vec<u8>,
        is_complete: bool,
        is_reset: bool,
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Body {
        None,
        Length(usize),
        Chunked,
    }

    impl Default for Translation {
        fn default() -> Translation {
            Translation {
                has_begun: false,
                requests: Vec::new(),
                body: Body::None,
                frames: Vec::new(),
                decoder: Decoder::new(),
                streams: VecDeque::new(),
                next_stream: 1,
                window: 65_535,
                initial_window: 65_535,
                responses: Vec::new(),
                has_ended: false,
            }
        }
    }

    impl Translation {
        /// Translates bytes of the client; returns what is to be sent.
        pub fn request(&mut self, bytes: &[u8]) -> Vec<u8> {
            let mut out = Vec::new();
            if !std::mem::replace(&mut self.has_begun, true) {
                out.extend_from_slice(PREFACE);
                frame::settings(&mut out, &[(setting::INITIAL_WINDOW_SIZE, frame::WINDOW_MAX)]);
                frame::window_update(&mut out, StreamId::CONNECTION, frame::WINDOW_MAX - 65_535);
            }
            self.requests.extend_from_slice(bytes);
            while self.translate_one(&mut out) {}
            self.upload(&mut out);
            out
        }

        fn translate_one(&mut self, out: &mut Vec<u8>) -> bool {
            match self.body {
                Body::None => {
                    while self.requests.starts_with(b"\r\n") {
                        self.requests.drain(..2);
                    }
                    let Some(end) = find(&self.requests, b"\r\n\r\n") else { return false };
                    let head = take_front(&mut self.requests, end + 4);
                    self.translate_head(&head, out);
                }
                Body::Length(length) => {
                    let count = length.min(self.requests.len());
                    let stream = self.streams.back_mut().unwrap();
                    stream.upload.append(&mut take_front(&mut self.requests, count));
                    stream.owes_end = count == length;
                    self.body = if count == length { Body::None } else { Body::Length(length - count) };
                    return count > 0 && self.body == Body::None;
                }
                Body::Chunked => {
                    let Some(end) = find(&self.requests, b"\r\n") else { return false };
                    let size = std::str::from_utf8(&self.requests[..end]).unwrap().split(';').next().unwrap().trim();
                    let size = usize::from_str_radix(size, 16).unwrap();
                    if self.requests.len() < end + 2 + size + 2 {
                        return false;
                    }
                    let stream = self.streams.back_mut().unwrap();
                    stream.upload.extend_from_slice(&self.requests[end + 2..end + 2 + size]);
                    self.requests.drain(..end + 2 + size + 2);
                    if size == 0 {
                        stream.owes_end = true;
                        self.body = Body::None;
                    }
                }
            }
            true
        }

        fn translate_head(&mut self, head: &[u8], out: &mut Vec<u8>) {
            let text = String::from_utf8_lossy(head).into_owned();
            let (line, _) = text.split_once("\r\n").unwrap();
            let words: Vec<&str> = line.split(' ').collect();
            let mut host = None;
            let mut fields = Vec::new();
            let mut closes = words[2] == "HTTP/1.0";
            self.body = Body::None;
            for (name, value) in amped_http::h1::request::fields(head) {
                let name = String::from_utf8_lossy(name).to_ascii_lowercase();
                match name.as_str() {
                    "host" => host = Some(value.to_vec()),
                    "connection" => closes |= value.eq_ignore_ascii_case(b"close"),
                    "transfer-encoding" => self.body = Body::Chunked,
                    "keep-alive" | "upgrade" | "proxy-connection" | "te" => {}
                    _ => fields.push((name.clone(), value.to_vec())),
                }
                if name == "content-length" {
                    let length = std::str::from_utf8(value).unwrap().parse().unwrap();
                    self.body = if length == 0 { Body::None } else { Body::Length(length) };
                }
            }
            let mut path = words[1].to_owned();
            if let Some(rest) = words[1].strip_prefix("http://").or(words[1].strip_prefix("https://")) {
                let slash = rest.find('/').unwrap_or(rest.len());
                host = Some(rest.as_bytes()[..slash].to_vec());
                path = if slash == rest.len() { "/".to_owned() } else { rest[slash..].to_owned() };
            }
            let mut block = Vec::new();
            hpack::write_field(&mut block, b":method", words[0].as_bytes());
            hpack::write_field(&mut block, b":scheme", if is_secure() { b"https" } else { b"http" });
            hpack::write_field(&mut block, b":authority", &host.unwrap_or_default());
            hpack::write_field(&mut block, b":path", path.as_bytes());
            fields.iter().for_each(|(name, value)| hpack::write_field(&mut block, name.as_bytes(), value));
            let id = self.next_stream;
            self.next_stream += 2;
            frame::headers(out, StreamId(id), &block, self.body == Body::None, FRAME_BYTES);
            self.streams.push_back(Stream {
                id,
                is_head: words[0] == "HEAD",
                closes,
                upload: Vec::new(),
                owes_end: false,
                window: self.initial_window,
                is_chunked: false,
                response: Vec::new(),
                is_complete: false,
                is_reset: false,
            });
        }

        /// Sends bodies as far as the windows permit.
        fn upload(&mut self, out: &mut Vec<u8>) {
            for stream in &mut self.streams {
                let mut sent = 0;
                while sent < stream.upload.len() {
                    let room = stream.window.min(self.window).clamp(0, FRAME_BYTES as i64) as usize;
                    let count = room.min(stream.upload.len() - sent);
                    if count == 0 {
                        break;
                    }
                    let is_last = stream.owes_end && sent + count == stream.upload.len();
                    out.extend(frame::data_head(count, StreamId(stream.id), is_last));
                    out.extend_from_slice(&stream.upload[sent..sent + count]);
                    sent += count;
                    stream.window -= count as i64;
                    self.window -= count as i64;
                    stream.owes_end &= !is_last;
                }
                stream.upload.drain(..sent);
                if stream.upload.is_empty() && std::mem::take(&mut stream.owes_end) {
                    out.extend(frame::data_head(0, StreamId(stream.id), true));
                }
            }
        }

        /// Takes bytes of the server; returns what is to be sent in answer.
        pub fn response(&mut self, bytes: &[u8]) -> Vec<u8> {
            self.frames.extend_from_slice(bytes);
            let mut out = Vec::new();
            let frames = std::mem::take(&mut self.frames);
            let mut at = 0;
            while let Some((frame, length)) = frame::parse(&frames[at..]).unwrap() {
                at += length;
                self.take_frame(frame, &mut out);
            }
            self.frames = frames[at..].to_vec();
            self.upload(&mut out);
            out
        }

        fn take_frame(&mut self, frame: Frame<'_>, out: &mut Vec<u8>) {
            match frame {
                Frame::Headers { stream, block, end_stream, .. } => {
                    let mut fields = FieldList::new(usize::MAX, usize::MAX);
                    self.decoder.decode(block, &mut fields).unwrap();
                    let Some(stream) = self.streams.iter_mut().find(|open| open.id == stream.0) else { return };
                    stream.take_head(&fields, end_stream);
                }
                Frame::Data { stream, data, end_stream, .. } => {
                    let Some(stream) = self.streams.iter_mut().find(|open| open.id == stream.0) else { return };
                    stream.take_data(data, end_stream);
                }
                Frame::Reset { stream, .. } => {
                    let open = self.streams.iter_mut().find(|open| open.id == stream.0);
                    open.into_iter().for_each(|open| open.is_reset |= !open.is_complete);
                }
                Frame::Settings(settings) => {
                    for (id, value) in settings {
                        if id == setting::INITIAL_WINDOW_SIZE {
                            let difference = i64::from(value) - self.initial_window;
                            self.initial_window += difference;
                            self.streams.iter_mut().for_each(|open| open.window += difference);
                        }
                    }
                    frame::settings_ack(out);
                }
                Frame::Ping { ack: false, data } => frame::ping(out, true, data),
                Frame::WindowUpdate { stream: StreamId::CONNECTION, increment } => self.window += i64::from(increment),
                Frame::WindowUpdate { stream, increment } => {
                    let open = self.streams.iter_mut().find(|open| open.id == stream.0);
                    open.into_iter().for_each(|open| open.window += i64::from(increment));
                }
                _ => {}
            }
        }

        /// Moves translated bytes to `piece`; `None` if there are none yet.
        pub fn take(&mut self, piece: &mut [u8]) -> io::Result<Option<usize>> {
            while let Some(first) = self.streams.front_mut() {
                self.responses.append(&mut first.response);
                if first.is_reset && self.responses.is_empty() {
                    return Err(io::ErrorKind::ConnectionReset.into());
                }
                if !first.is_complete {
                    break;
                }
                self.has_ended |= first.closes;
                self.streams.pop_front();
            }
            if self.responses.is_empty() {
                return Ok(self.has_ended.then_some(0));
            }
            let count = self.responses.len().min(piece.len());
            piece[..count].copy_from_slice(&self.responses[..count]);
            self.responses.drain(..count);
            Ok(Some(count))
        }

        /// The connection has ended.
        pub fn end(&self) -> io::Result<usize> {
            if self.streams.is_empty() { Ok(0) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
        }
    }

    impl Stream {
        fn take_head(&mut self, fields: &FieldList, end_stream: bool) {
            let mut status = 0;
            let mut has_length = false;
            for (name, value) in fields.iter() {
                if name == b":status" {
                    status = std::str::from_utf8(value).unwrap().parse().unwrap();
                    let reason = amped_http::status::Status(status).reason();
                    self.response.extend_from_slice(format!("HTTP/1.1 {status} {reason}\r\n").as_bytes());
                    continue;
                }
                has_length |= name == b"content-length";
                self.response.extend_from_slice(titled(name).as_bytes());
                self.response.extend_from_slice(b": ");
                self.response.extend_from_slice(value);
                self.response.extend_from_slice(b"\r\n");
            }
            let has_no_body = self.is_head || status < 200 || status == 204 || status == 304;
            self.is_chunked = !has_no_body && !has_length;
            self.response.extend_from_slice(if self.is_chunked {
                b"Transfer-Encoding: chunked\r\n\r\n"
            } else {
                b"\r\n"
            });
            self.end(end_stream);
        }

        fn take_data(&mut self, data: &[u8], end_stream: bool) {
            if self.is_chunked && !data.is_empty() {
                self.response.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
            }
            self.response.extend_from_slice(data);
            if self.is_chunked && !data.is_empty() {
                self.response.extend_from_slice(b"\r\n");
            }
            self.end(end_stream);
        }

        fn end(&mut self, end_stream: bool) {
            self.is_complete = end_stream;
            if end_stream && self.is_chunked {
                self.response.extend_from_slice(b"0\r\n\r\n");
            }
        }
    }

    /// The usual form of a field's name in HTTP/1.
    fn titled(name: &[u8]) -> String {
        let name = std::str::from_utf8(name).unwrap();
        match name {
            "etag" => "ETag".to_owned(),
            "www-authenticate" => "WWW-Authenticate".to_owned(),
            _ => {
                let title = |word: &str| word[..1].to_ascii_uppercase() + &word[1..];
                name.split('-').map(title).collect::<Vec<_>>().join("-")
            }
        }
    }
}

/// The certificate of the servers of the suite over TLS, and the addresses where they have it.
mod identity {
    use std::collections::HashSet;
    use std::sync::{LazyLock, PoisonError};

    use rustls::RootCertStore;
    use rustls::pki_types::ServerName;

    use super::*;

    static ADDRESSES: Mutex<Option<HashSet<SocketAddr>>> = Mutex::new(None);

    static CERTIFICATE: LazyLock<rcgen::CertifiedKey<rcgen::KeyPair>> =
        LazyLock::new(|| rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap());

    static CONFIG: LazyLock<Arc<rustls::ClientConfig>> = LazyLock::new(|| {
        let mut roots = RootCertStore::empty();
        roots.add(CERTIFICATE.cert.der().clone()).unwrap();
        let config = rustls::ClientConfig::builder().with_root_certificates(roots);
        Arc::new(config.with_no_client_auth())
    });

    /// From now on clients of this address use TLS.
    pub fn add(address: SocketAddr) {
        ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().insert(address);
    }

    /// A session of a client of this address, if it uses TLS.
    pub fn session(address: SocketAddr) -> Option<Box<ClientConnection>> {
        let addresses = ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.as_ref()?.get(&address)?;
        let name = ServerName::try_from("localhost").unwrap();
        Some(Box::new(ClientConnection::new(Arc::clone(&CONFIG), name).unwrap()))
    }

    /// The command of a server, with TLS at all its addresses and a certificate for its first site.
    pub fn secured(command: &Command) -> (Command, Vec<PathBuf>) {
        let mut arguments: Vec<String> = command.get_args().map(|arg| arg.to_str().unwrap().to_owned()).collect();
        let at = arguments.iter().position(|argument| argument == "--config");
        let path = at.map_or_else(
            || std::env::temp_dir().join(format!("amped-test-{}.toml", std::process::id())),
            |at| PathBuf::from(&arguments[at + 1]),
        );
        let text = if at.is_some() { fs::read_to_string(&path).unwrap() } else { String::new() };
        // A configuration that has TLS, or an error, is unchanged.
        let config = if text.contains(" tls\"") { None } else { text.parse::<toml::Table>().ok() };
        let Some(mut config) = config else { return (copied(command, arguments), Vec::new()) };
        let files = write(&mut config, &path);
        let written = files[2].to_str().unwrap().to_owned();
        match at {
            Some(at) => arguments[at + 1] = written,
            None => arguments.extend(["--config".to_owned(), written]),
        }
        for n in 0..arguments.len() {
            if arguments[n] == "--listen" {
                arguments[n + 1] += " tls";
            }
        }
        (copied(command, arguments), files.into())
    }

    /// Writes a certificate, its key, and this configuration with TLS.
    fn write(config: &mut toml::Table, path: &Path) -> [PathBuf; 3] {
        for address in config.get_mut("listen").and_then(toml::Value::as_array_mut).into_iter().flatten() {
            *address = format!("{} tls", address.as_str().unwrap()).into();
        }
        // Only programs that the server starts differ: the process manager starts them. A call that is missing from the list of those that are
        // permitted ends the server.
        let contain = config.entry("contain").or_insert_with(|| toml::Table::new().into()).as_table_mut().unwrap();
        contain.entry("seccomp").or_insert_with(|| "kill".into());
        if std::env::var_os("AMPED_TEST_TLS").is_some_and(|value| value == "process") {
            let tls = config.entry("tls").or_insert_with(|| toml::Table::new().into()).as_table_mut().unwrap();
            tls.entry("keys").or_insert_with(|| "process".into());
        }
        let root = config.remove("root");
        let sites = config.entry("site").or_insert_with(|| toml::Value::Array(Vec::new())).as_array_mut().unwrap();
        if root.is_some() || sites.is_empty() {
            sites.insert(0, toml::Table::from_iter(root.map(|root| ("root".to_owned(), root))).into());
        }
        let site = sites[0].as_table_mut().unwrap();
        let mut put = |key: &str, text: String| {
            let file = path.with_extension(format!("tls.{key}"));
            fs::write(&file, text).unwrap();
            site.insert(key.to_owned(), vec![file.to_str().unwrap().to_owned()].into());
            file
        };
        let certificate = put("certificate", CERTIFICATE.cert.pem());
        let key = put("key", CERTIFICATE.signing_key.serialize_pem());
        let secured = path.with_extension("tls.toml");
        fs::write(&secured, toml::to_string(config).unwrap()).unwrap();
        [certificate, key, secured]
    }
}

/// The same command with other arguments.
fn copied(command: &Command, arguments: Vec<String>) -> Command {
    let mut copy = Command::new(command.get_program());
    copy.args(arguments);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => copy.env(name, value),
            None => copy.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        copy.current_dir(directory);
    }
    copy
}

/// Removes the first bytes of a buffer and returns them. Without optimisation `drain` would pass them on one by one.
fn take_front(buffer: &mut Vec<u8>, count: usize) -> Vec<u8> {
    let front = buffer[..count].to_vec();
    buffer.drain(..count);
    front
}

pub fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    /// The value of a field that occurs once; panics if it occurs twice.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut found = self.fields.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "{name} occurs twice");
        value
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// All fields but Date, which follows the clock: the fields that two equal responses share.
    pub fn lasting_fields(&self) -> Vec<(String, String)> {
        self.fields.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("Date")).cloned().collect()
    }
}

/// Starts a FastCGI application at this socket. It answers each request with these bytes and an end record in one
/// write, then closes the connection.
#[allow(dead_code, reason = "not every suite that shares this file uses it")]
pub fn answer_by_fastcgi(socket: &Path, answer: &str) {
    let listener = UnixListener::bind(socket).unwrap();
    let length = (answer.len() as u16).to_be_bytes();
    let head = [1, 6, 0, 1, length[0], length[1], 0, 0];
    let said = [&head, answer.as_bytes(), &[1, 3, 0, 1, 0, 8, 0, 0], &[0; 8]].concat();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut request = Vec::new();
            // The last record of a request is an empty one of its body.
            while !request.ends_with(&[1, 5, 0, 1, 0, 0, 0, 0]) {
                let mut buffer = [0; 4096];
                match stream.read(&mut buffer) {
                    Ok(0) | Err(_) => break,
                    Ok(count) => request.extend_from_slice(&buffer[..count]),
                }
            }
            let _ = stream.write_all(&said);
        }
    });
}

/// Returns bytes that depend on their position, so that a shifted, repeated or missing piece is visible.
///
/// Byte `at` is the lowest byte of `at ^ (at >> 8) ^ (at >> 16) * 37`. Whole rows are copied: computed one by one without
/// optimisation, the bytes took half of the processor time of the suite.
pub fn pattern(size: usize) -> Vec<u8> {
    /// Row `n` has the bytes `n ^ 0` to `n ^ 255`.
    static ROWS: [[u8; 256]; 256] = {
        let mut rows = [[0; 256]; 256];
        let mut at = 0;
        while at < 256 * 256 {
            rows[at / 256][at % 256] = ((at / 256) ^ (at % 256)) as u8;
            at += 1;
        }
        rows
    };
    let mut bytes = Vec::with_capacity(size.next_multiple_of(256));
    for row in 0..size.div_ceil(256) {
        bytes.extend_from_slice(&ROWS[(row ^ (row >> 8).wrapping_mul(37)) & 255]);
    }
    bytes.truncate(size);
    bytes
}
