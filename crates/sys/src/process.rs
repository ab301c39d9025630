//! The process: its user, its limit on descriptors, its children, and the disk use of its threads.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::signal::KNOWN;

/// A user account (passwd(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Its UID.
    pub uid: u32,
    /// The GID of its primary group.
    pub gid: u32,
    /// Its home directory.
    pub home: PathBuf,
}

/// Looks up the account of this name; `None` if there is none. May wait for a disk or a directory service.
///
/// # Errors
/// Those of getpwnam_r(3).
pub fn user(name: &CStr) -> io::Result<Option<User>> {
    let found = nix::unistd::User::from_name(&name.to_string_lossy())?;
    Ok(found.map(|user| User { uid: user.uid.as_raw(), gid: user.gid.as_raw(), home: user.dir }))
}

/// Looks up the GID of the group of this name; `None` if there is none.
///
/// # Errors
/// Those of getgrnam_r(3).
pub fn group(name: &CStr) -> io::Result<Option<u32>> {
    Ok(nix::unistd::Group::from_name(&name.to_string_lossy())?.map(|group| group.gid.as_raw()))
}

/// Returns whether this process runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns whether this process runs as this user.
pub fn is_user(uid: u32) -> bool {
    rustix::process::geteuid().as_raw() == uid
}

/// Switches to another user permanently: groups, then group, then user, each in all its forms, so that it cannot be
/// undone. Glibc does it for all threads of the process.
///
/// # Errors
/// Those of setresuid(2): when this process is not root.
pub fn become_user(name: &CStr, uid: u32, gid: u32) -> io::Result<()> {
    // The raw system calls, which rustix offers, change only one thread.
    use nix::unistd::{Gid, Uid, initgroups, setresgid, setresuid};
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    initgroups(name, gid)?;
    setresgid(gid, gid, gid)?;
    Ok(setresuid(uid, uid, uid)?)
}

/// What a process has as another user: user, group, and all groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    uid: u32,
    gid: u32,
    groups: Vec<libc::gid_t>,
}

impl Identity {
    /// Looks up that of a user. May wait for a disk or a directory service.
    ///
    /// # Errors
    /// Those of getgrouplist(3).
    pub fn of(name: &CStr, user: &User) -> io::Result<Identity> {
        let groups = nix::unistd::getgrouplist(name, nix::unistd::Gid::from_raw(user.gid))?;
        Ok(Identity { uid: user.uid, gid: user.gid, groups: groups.into_iter().map(|gid| gid.as_raw()).collect() })
    }
}

/// Switches to another user permanently, if there is one, and keeps only what starting programs as further users takes: the
/// capabilities to change users and groups, and to signal their processes. Programs do not inherit them. Must be called while there is one
/// thread.
///
/// # Errors
/// Those of [`become_user`] and capset(2).
pub fn keep_changing_users(owner: Option<(&CStr, u32, u32)>) -> io::Result<()> {
    use rustix::thread::{CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities};
    rustix::thread::set_keep_capabilities(true)?;
    if let Some((name, uid, gid)) = owner {
        become_user(name, uid, gid)?;
    }
    let kept = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::KILL;
    clear_ambient_capability_set()?;
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() })?;
    Ok(rustix::thread::set_keep_capabilities(false)?)
}

/// Makes `command` run as another user. Must be called before [`end_with_this_thread`], as the kernel forgets the death signal
/// when the user changes.
pub fn run_as(command: &mut std::process::Command, identity: &Identity) {
    use std::os::unix::process::CommandExt;
    let Identity { uid, gid, groups } = identity.clone();
    let change = move || {
        // SAFETY: setgroups(2) reads the numbers of a vector that this closure owns, with its length; setresgid(2) and
        // setresuid(2) take plain numbers. All are system calls, which may be made between fork(2) and execve(2).
        // JUSTIFICATION: std does not support groups, and rustix has no setgroups(2) for a child.
        let results = unsafe {
            [
                libc::setgroups(groups.len(), groups.as_ptr()),
                libc::setresgid(gid, gid, gid),
                libc::setresuid(uid, uid, uid),
            ]
        };
        if results == [0; 3] { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: `change` makes three system calls. JUSTIFICATION: as for `end_with_this_thread`.
    unsafe { command.pre_exec(change) };
}

/// The number of the first descriptor after the standard three; with it begin those that are handed over (`SD_LISTEN_FDS_START`).
const FIRST_INHERITED: u16 = 3;

/// Closes all inherited descriptors except the standard three and the `kept` ones after them: otherwise a listener or a
/// secret of the program that started this one would stay open as long as the server, and in everything that it starts
/// (close_range(2)). Must be called before anything was opened.
///
/// # Errors
/// Those of close_range(2): before Linux 5.9, or if a sandbox forbids it.
pub fn close_inherited(kept: u16) -> io::Result<()> {
    let first = libc::c_uint::from(FIRST_INHERITED) + libc::c_uint::from(kept);
    // SAFETY: close_range(2) takes plain numbers. Nothing of this program is open yet except standard streams, as the
    // caller guarantees. JUSTIFICATION: neither std nor rustix has it.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Takes the first `count` inherited descriptors after the standard three, which programs that this one starts do not
/// get. Must be called once, before anything was opened.
///
/// # Errors
/// One of them is not open (`EBADF`).
pub fn take_inherited(count: u16) -> io::Result<Vec<OwnedFd>> {
    use std::os::fd::FromRawFd;
    let take = |n: u16| {
        let number = libc::c_int::from(FIRST_INHERITED) + libc::c_int::from(n);
        // SAFETY: fcntl(2) with F_SETFD takes plain numbers. JUSTIFICATION: those of std and rustix take a descriptor that
        // is known to be open.
        if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it is open, as fcntl(2) has succeeded, and nothing in this program owns it: nothing was opened yet, as
        // the caller guarantees. JUSTIFICATION: an inherited descriptor is known by its number alone.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    };
    (0..count).map(take).collect()
}

/// Prevents this thread, and all processes and threads that it starts, from gaining privileges by executing a program:
/// set-uid bits and file capabilities are ignored (`PR_SET_NO_NEW_PRIVS`), and the bounding set of capabilities is
/// emptied, as far as this process may. It keeps its own privileges. Must be called while there is one thread.
///
/// # Errors
/// Those of prctl(2).
pub fn gain_no_privileges() -> io::Result<()> {
    use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set, set_no_new_privs};
    set_no_new_privs(true)?;
    let drop = |number: u32| remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)).is_ok();
    // Up to the last one that the kernel supports (EINVAL). Without CAP_SETPCAP none can be dropped (EPERM).
    (0..64).all(drop);
    Ok(())
}

/// Drops all capabilities of this thread: those that it has, those that it may have, and those that programs inherit. Threads and
/// processes that it starts later have none either. Must be called while there is one thread.
///
/// # Errors
/// Those of capset(2); none, since any thread may drop what it has.
pub fn drop_capabilities() -> io::Result<()> {
    use rustix::thread::{CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities};
    let none = CapabilitySet::empty();
    clear_ambient_capability_set()?;
    Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
}

/// The limit on core dumps with which this process was started, if it was changed.
static CORE_BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// Prevents core dumps of this process (`RLIMIT_CORE`). Programs started with [`end_with_this_thread`] get the original
/// limit back.
pub fn forbid_core_dumps() {
    let before = *CORE_BEFORE.get_or_init(|| getrlimit(Resource::Core));
    // Lowering the soft limit is always permitted; the hard one stays, so that programs can get theirs back.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), ..before });
}

/// The umask with which this process was started, plus one; 0: it was not changed.
static MASK_BEFORE: AtomicU32 = AtomicU32::new(0);

/// Makes new files of this process inaccessible to others (umask 0027). Programs started with
/// [`end_with_this_thread`] get the original umask back.
pub fn keep_files_private() {
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o027));
    MASK_BEFORE.store(before.as_raw_mode() + 1, Relaxed);
}

/// Lowers the priority of this thread a little (nice 5). On Linux nice(2) applies to the calling thread.
pub fn lower_priority() {
    // Lowering one's own priority is always permitted.
    let _ = rustix::process::nice(5);
}

/// Lowers the priority of this thread as far as possible (nice 19): it runs when nothing else would, apart from a small share.
pub fn take_lowest_priority() {
    // As above.
    let _ = rustix::process::nice(19);
}

/// Keeps the memory of this process out of core dumps and from other processes of its user (`PR_SET_DUMPABLE`). Processes that
/// it forks inherit this; programs that it executes do not.
///
/// # Errors
/// Those of prctl(2).
pub fn keep_memory_private() -> io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?)
}

/// How much the out-of-memory killer prefers this process, open for writing (proc_pid_oom_score_adj(5)): once the process is
/// confined, or its memory is private, it could not be opened any more.
#[derive(Debug)]
pub struct OomScore {
    file: std::fs::File,
    own: i32,
}

impl OomScore {
    /// Opens that of this process; `None` if /proc is not mounted: then the kernel decides by size alone.
    pub fn open() -> Option<OomScore> {
        const FILE: &str = "/proc/self/oom_score_adj";
        let own = std::fs::read_to_string(FILE).ok()?.trim().parse().ok()?;
        Some(OomScore { file: std::fs::File::options().write(true).open(FILE).ok()?, own })
    }

    /// Forks a process that the killer prefers to others that use as much memory: `more` thousandths of all memory are
    /// added to its use. It inherits that from this process, which has it for a moment: any process may raise its own value,
    /// and lower it again.
    ///
    /// # Errors
    /// Those of [`fork`].
    pub fn fork(score: Option<&OomScore>, more: i32) -> io::Result<Fork> {
        use std::os::unix::fs::FileExt;
        let set = |value: i32| score.map(|score| score.file.write_at(value.to_string().as_bytes(), 0));
        let _ = score.map(|score| set((score.own + more).min(1000)));
        let forked = fork();
        if !matches!(forked, Ok(Fork::Child)) {
            let _ = score.map(|score| set(score.own));
        }
        forked
    }
}

/// Changes the owner of an open file; for a log that is opened as root and reopened as that user.
///
/// # Errors
/// Those of fchown(2).
pub fn give_to(file: impl AsFd, uid: u32, gid: u32) -> io::Result<()> {
    use rustix::fs::{Gid, Uid, fchown};
    Ok(fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?)
}

/// Makes programs that `command` starts handle signals as usual, though this process may block or
/// ignore them, and end with this thread: they get SIGKILL when it ends, for whatever reason. Programs
/// that they start themselves are not affected.
pub fn end_with_this_thread(command: &mut std::process::Command) {
    restore(command, Some(std::process::id()));
}

/// Makes programs that `command` starts handle signals as usual, though this process may block or ignore them.
pub fn handle_signals(command: &mut std::process::Command) {
    restore(command, None);
}

/// Undoes in the child what this process has changed for itself: signals, umask, limit on core dumps. `ends_with`: its parent,
/// with whose thread the child ends.
fn restore(command: &mut std::process::Command, ends_with: Option<u32>) {
    use std::os::unix::process::CommandExt;
    let prepare = move || {
        // SAFETY: an empty set is a valid argument, initialised by sigemptyset(3); signal(2) gets numbers of signals
        // and a disposition that is not a function; prctl(2) takes plain numbers, getppid(2) none. All may be called
        // between fork(2) and execve(2) (signal-safety(7)), and nothing here allocates. JUSTIFICATION: std passes on
        // the signal mask and ignored signals of its caller, and does not support a death signal.
        unsafe {
            for number in KNOWN.map(|(number, _)| number as libc::c_int) {
                libc::signal(number, libc::SIG_DFL);
            }
            if let Some(mask) = MASK_BEFORE.load(Relaxed).checked_sub(1) {
                libc::umask(mask);
            }
            if let Some(before) = CORE_BEFORE.get() {
                let _ = setrlimit(Resource::Core, *before);
            }
            let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(none.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
            if let Some(parent) = ends_with {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong);
                // A parent that was killed between fork(2) and prctl(2) sends no signal any more.
                if libc::getppid().unsigned_abs() != parent {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
            }
        }
        Ok(())
    };
    // SAFETY: `prepare` does only what signal-safety(7) allows, see there. JUSTIFICATION: there is no other way to run
    // code in a child of std before it executes another program.
    unsafe { command.pre_exec(prepare) };
}

/// Passes no descriptors to programs that `command` starts except the three that it sets: not even those that this
/// process has inherited itself (close_range(2)).
pub fn keep_descriptors_from(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    let prepare = || {
        // SAFETY: close_range(2) takes plain numbers, and only marks descriptors as close-on-exec; it
        // may be called between fork(2) and execve(2), like any system call. JUSTIFICATION: std
        // passes on all descriptors without that mark.
        let result = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: `prepare` is one system call. JUSTIFICATION: as for `end_with_this_thread`.
    unsafe { command.pre_exec(prepare) };
}

/// Makes `command` execute this very file (execveat(2)), whatever its name refers to by now. The program's first
/// argument is the command's name, and these are all its variables. Must be called after all other preparations of a
/// command. Not for a file that begins with `#!`: its interpreter would get `/dev/fd/N` as the name of the script.
///
/// Any other text is run by the shell, as execvp(3) does. The shell opens it by its name: the command fails with ESTALE if that refers to
/// another file by now.
pub fn execute_file(command: &mut std::process::Command, file: OwnedFd, variables: Vec<CString>) {
    use std::os::unix::process::CommandExt;
    const SHELL: &CStr = c"/bin/sh";
    let name = CString::new(command.get_program().as_bytes()).unwrap_or_default();
    // As addresses, since a closure that other threads may own cannot hold pointers.
    let list = |texts: &[&CStr]| texts.iter().map(|text| text.as_ptr().addr()).chain([0]).collect::<Vec<usize>>();
    let variable_texts: Vec<&CStr> = variables.iter().map(CString::as_c_str).collect();
    let (arguments, addresses) = (list(&[&name]), list(&variable_texts));
    let arguments_of_shell = list(&[SHELL, &name]);
    let execute = move || {
        // The addresses point to these.
        let _alive = (&name, &variables);
        // SAFETY: execveat(2) reads the empty name and two null-terminated lists of addresses of NUL-terminated
        // strings, all of them owned by this closure. It returns only when it fails. It may be called between fork(2)
        // and execve(2), like any system call. JUSTIFICATION: std executes only names.
        unsafe {
            let (file, empty) = (file.as_raw_fd(), c"".as_ptr());
            libc::syscall(libc::SYS_execveat, file, empty, arguments.as_ptr(), addresses.as_ptr(), libc::AT_EMPTY_PATH);
        }
        match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENOEXEC) => {}
            error => return Err(error),
        }
        let opened = file_of(|state| {
            // SAFETY: fstat(2) takes a descriptor that this closure owns, and writes to `state`, which is alive.
            // JUSTIFICATION: as for `file_of`.
            unsafe { libc::fstat(file.as_raw_fd(), state) }
        });
        if opened.is_none() || opened != file_of_name(&name) {
            return Err(io::Error::from_raw_os_error(libc::ESTALE));
        }
        // SAFETY: execve(2) reads a name and two lists, as execveat(2) above. JUSTIFICATION: if this closure returned
        // `Ok`, std would execute the name without the comparison.
        unsafe { libc::execve(SHELL.as_ptr(), arguments_of_shell.as_ptr().cast(), addresses.as_ptr().cast()) };
        Err(io::Error::last_os_error())
    };
    // SAFETY: `execute` makes system calls, and reads the thread's error number. JUSTIFICATION: as for `end_with_this_thread`.
    unsafe { command.pre_exec(execute) };
}

/// Returns device and inode of the file that this name refers to. May be called between fork(2) and execve(2).
fn file_of_name(name: &CStr) -> Option<(u64, u64)> {
    file_of(|state| {
        // SAFETY: stat(2) reads a NUL-terminated string, and writes to `state`, which is alive. JUSTIFICATION: as for `file_of`.
        unsafe { libc::stat(name.as_ptr(), state) }
    })
}

/// Returns device and inode that one of stat(2)'s functions finds; `None` if it fails.
fn file_of(look: impl FnOnce(*mut libc::stat) -> libc::c_int) -> Option<(u64, u64)> {
    let mut state = std::mem::MaybeUninit::<libc::stat>::zeroed();
    let result = look(state.as_mut_ptr());
    // SAFETY: a zeroed one is valid, also if the call fails. JUSTIFICATION: it is called between fork(2) and execve(2)
    // (signal-safety(7)); std's version allocates.
    let state = unsafe { state.assume_init() };
    (result == 0).then_some((state.st_dev, state.st_ino))
}

/// Makes `command` execute its program in place of this one: with these variables, and with these descriptors from number 3 on, as
/// `LISTEN_FDS` and `LISTEN_PID` announce them (sd_listen_fds(3)). The program may outlive this process, and handles signals as
/// usual. The command's own variables are ignored.
///
/// # Errors
/// When the process is out of descriptors.
pub fn hand_over(
    command: &mut std::process::Command,
    descriptors: &[BorrowedFd<'_>],
    mut variables: Vec<CString>,
) -> io::Result<()> {
    use rustix::io::fcntl_dupfd_cloexec;
    use std::os::unix::process::CommandExt;
    let first = libc::c_int::from(FIRST_INHERITED);
    let end = first + i32::try_from(descriptors.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // Above the numbers that the program gets, so that none is overwritten before it is duplicated.
    let copies = descriptors.iter().map(|one| fcntl_dupfd_cloexec(one, end)).collect::<Result<Vec<_>, _>>()?;
    // All of these numbers are taken, so that none is that of the pipe by which std reports an error.
    let mut taken = Vec::new();
    for _ in descriptors {
        taken.push(fcntl_dupfd_cloexec(io::stderr(), first)?);
    }
    restore(command, None);
    let arguments = std::iter::once(command.get_program()).chain(command.get_args());
    let arguments: Vec<CString> =
        arguments.map(|text| CString::new(text.as_bytes())).collect::<Result<_, _>>().map_err(io::Error::other)?;
    variables.push(CString::new(format!("LISTEN_FDS={}", copies.len())).map_err(io::Error::other)?);
    let list = |texts: &[CString]| texts.iter().map(|text| text.as_ptr().addr()).collect::<Vec<usize>>();
    // As addresses, since a closure that other threads may own cannot hold pointers.
    let (mut argv, mut environ) = (list(&arguments), list(&variables));
    argv.push(0);
    // The child writes its process ID into the second one.
    let mut own = b"LISTEN_PID=0000000000\0".to_vec();
    environ.extend([own.as_ptr().addr(), 0]);
    let execute = move || {
        // The addresses point to these.
        let _alive = (&variables, &taken);
        let mut pid = std::process::id();
        for digit in own.iter_mut().rev().skip(1).take(10) {
            *digit = b'0' + (pid % 10) as u8;
            pid /= 10;
        }
        for (number, copy) in (first..).zip(&copies) {
            // SAFETY: dup2(2) takes plain numbers, and closes only the child's copies of descriptors, which the child does not use.
            // JUSTIFICATION: the program expects these numbers; rustix would need owners for them.
            if unsafe { libc::dup2(copy.as_raw_fd(), number) } == -1 {
                return Err(io::Error::last_os_error());
            }
        }
        // SAFETY: execve(2) reads a name and two null-terminated lists of addresses of NUL-terminated strings, all of them
        // owned by this closure. It returns only when it fails. This and dup2(2) may be called between fork(2) and
        // execve(2). JUSTIFICATION: std's variables are set before the child has a process ID.
        unsafe { libc::execve(arguments[0].as_ptr(), argv.as_ptr().cast(), environ.as_ptr().cast()) };
        Err(io::Error::last_os_error())
    };
    // SAFETY: `execute` makes system calls and writes to its own memory. JUSTIFICATION: as for `end_with_this_thread`.
    unsafe { command.pre_exec(execute) };
    Ok(())
}

/// Makes `command` fail with ESTALE, rather than execute what its name refers to by now, if that is
/// not the file with this device and inode.
pub fn expect_file(command: &mut std::process::Command, device: u64, inode: u64) {
    use std::os::unix::process::CommandExt;
    let name = CString::new(command.get_program().as_bytes()).unwrap_or_default();
    let check = move || match file_of_name(&name) == Some((device, inode)) {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(libc::ESTALE)),
    };
    // SAFETY: `check` does only what signal-safety(7) allows. JUSTIFICATION: as for `end_with_this_thread`.
    unsafe { command.pre_exec(check) };
}

/// Sends SIGTERM to a process. It is not an error if the process has already exited.
pub fn terminate(process: u32) {
    use rustix::process::{Signal, kill_process};
    let _ = pid(process).and_then(|pid| kill_process(pid, Signal::TERM));
}

/// The two sides of a [`fork`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fork {
    /// The parent, with the child's process ID.
    Parent(u32),
    /// The child.
    Child,
}

/// Forks the process.
///
/// # Errors
/// If the process has other threads, whose locks would stay held in the child forever; those of fork(2).
pub fn fork() -> io::Result<Fork> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("cannot fork a process with several threads"));
    }
    // SAFETY: this is the only thread, so the child has everything that the parent had, and no lock is held by a
    // missing thread. JUSTIFICATION: neither std nor rustix offers fork(2).
    match unsafe { libc::fork() } {
        0 => Ok(Fork::Child),
        child if child > 0 => Ok(Fork::Parent(child.unsigned_abs())),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Forks a process that has only its standard descriptors and this one open, and runs
/// `life` to its end. Returns its process ID.
///
/// # Errors
/// Those of [`fork`].
pub fn split_off(kept: OwnedFd, life: impl FnOnce(OwnedFd)) -> io::Result<u32> {
    if let Fork::Parent(child) = fork()? {
        return Ok(child);
    }
    let kept_number = kept.as_raw_fd().unsigned_abs();
    for (first, last) in [(3, kept_number.saturating_sub(1)), (kept_number.saturating_add(1).max(3), libc::c_uint::MAX)]
    {
        if first <= last {
            // SAFETY: close_range(2) takes plain numbers. Nothing uses the closed descriptors: this process has one
            // thread, which never returns to their owners, and so never drops them. JUSTIFICATION: std and rustix close
            // a single owned descriptor, not all of them.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
    life(kept);
    std::process::exit(0)
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It exited with this status.
    Status(i32),
    /// It was killed by this signal.
    Signal(i32),
}

impl Ending {
    /// It was killed, nothing else is known.
    pub const KILLED: Ending = Ending::Signal(libc::SIGKILL);
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ending::Status(status) => write!(f, "ended with status {status}"),
            Ending::Signal(number) => {
                // SAFETY: strsignal(3) takes any number, and returns null or a string.
                let name = unsafe { libc::strsignal(*number) };
                if name.is_null() {
                    return write!(f, "was killed by signal {number}");
                }
                // SAFETY: not null, so a NUL-terminated string, which lives at least
                // until this thread calls strsignal(3) again.
                let name = unsafe { CStr::from_ptr(name) };
                write!(f, "was killed by signal {number} ({})", name.to_string_lossy())
            }
        }
    }
}

/// Reaps a child that has ended; `None` when there is none. Does not wait.
pub fn ended_child() -> Option<(u32, Ending)> {
    use rustix::process::{WaitOptions, wait};
    let (pid, status) = wait(WaitOptions::NOHANG).ok()??;
    Some((pid.as_raw_nonzero().get().unsigned_abs(), ending(status)?))
}

/// Returns how this child ended; `None` if it has not. Does not wait.
pub fn has_ended(child: u32) -> Option<Ending> {
    use rustix::process::{WaitOptions, waitpid};
    waitpid(Some(pid(child).ok()?), WaitOptions::NOHANG).ok()?.and_then(|(_, status)| ending(status))
}

/// Waits until this child has ended, and returns how.
///
/// # Errors
/// When it is not a child of this process, or was reaped already.
pub fn wait_for(child: u32) -> io::Result<Ending> {
    use rustix::process::{WaitOptions, waitpid};
    loop {
        let waited = rustix::io::retry_on_intr(|| waitpid(Some(pid(child)?), WaitOptions::empty()))?;
        if let Some(ending) = waited.and_then(|(_, status)| ending(status)) {
            return Ok(ending);
        }
    }
}

fn ending(status: rustix::process::WaitStatus) -> Option<Ending> {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(status), _) => Some(Ending::Status(status)),
        (None, Some(signal)) => Some(Ending::Signal(signal)),
        (None, None) => None,
    }
}

fn pid(number: u32) -> rustix::io::Result<rustix::process::Pid> {
    i32::try_from(number).ok().and_then(rustix::process::Pid::from_raw).ok_or(rustix::io::Errno::SRCH)
}

/// Returns a descriptor that becomes readable when this child has ended (pidfd_open(2)), for epoll.
///
/// # Errors
/// When the process is out of descriptors.
pub fn watch(child: u32) -> io::Result<OwnedFd> {
    use rustix::process::{PidfdFlags, pidfd_open};
    Ok(pidfd_open(pid(child)?, PidfdFlags::empty())?)
}

/// Names this thread, and with it a single-threaded process, for `ps` and `top`; the name is truncated to 15 bytes.
pub fn set_name(name: &CStr) {
    // The name is informative only.
    let _ = rustix::thread::set_name(name);
}

/// Kills a child (SIGKILL). It is not an error if it has ended already.
pub fn kill(child: u32) {
    use rustix::process::{Signal, kill_process};
    let _ = pid(child).and_then(|pid| kill_process(pid, Signal::KILL));
}

/// Kills all processes of a group (SIGKILL), by the process ID of its leader. The ID is certain to be the
/// group's only until the leader is reaped.
pub fn kill_group(leader: u32) {
    use rustix::process::{Signal, kill_process_group};
    let _ = pid(leader).and_then(|pid| kill_process_group(pid, Signal::KILL));
}

/// Raises the limit on descriptors as far as permitted, and returns it.
pub fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum.unwrap_or(u64::MAX),
        Err(_) => limit.current.unwrap_or(u64::MAX),
    }
}

/// Raises the limit on descriptors to at least this many, beyond the administrator's limit if
/// permitted, and returns the resulting limit.
pub fn raise_descriptor_limit_to(count: u64) -> u64 {
    let limit = raise_descriptor_limit();
    if limit >= count {
        return limit;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum: Some(count) }) {
        Ok(()) => count,
        Err(_) => limit,
    }
}

/// Grows the kernel's descriptor table to this size at once, rather than step by step: in a process
/// with several threads each doubling waits for an RCU grace period, 5 to 15 ms.
pub fn make_room_for_descriptors(count: u64) {
    let last = i32::try_from(count.saturating_sub(1)).unwrap_or(i32::MAX);
    // This only improves speed. The copy is closed at once; the room stays.
    let _ = rustix::io::fcntl_dupfd_cloexec(io::stderr(), last);
}

/// Raises the limit on locked memory as far as permitted until [`lock_program`] fits. A process that drops root, and
/// those that it forks then, keep the limit but not the privilege to exceed it.
pub fn make_room_for_locked_program() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    let length: usize = program_mappings(&maps).map(|(_, length)| length).sum();
    // A library may be loaded later, for instance to look up a user.
    let needed = 2 * length as u64;
    let limit = getrlimit(Resource::Memlock);
    if limit.current.is_none_or(|current| current >= needed) {
        return;
    }
    let maximum = limit.maximum.map(|maximum| maximum.max(needed));
    let raised = Rlimit { current: Some(needed), maximum };
    if setrlimit(Resource::Memlock, raised).is_err() {
        // No more than the administrator allows; `lock_program` reports if that is too little.
        let _ = setrlimit(Resource::Memlock, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
}

/// Locks the program and its libraries in memory: code that was evicted to make room for files must be read from the
/// disk before its thread continues, and that may be the thread that must not wait. Locked pages stay for every
/// process that maps the same files, for as long as this one lives; they count towards the limit on locked memory
/// (mlock(2)) unless the process may exceed it.
///
/// # Errors
/// Those of mlock(2): ENOMEM or EPERM if the limit forbids it. Earlier locks remain.
pub fn lock_program() -> io::Result<()> {
    for (start, length) in program_mappings(&std::fs::read_to_string("/proc/self/maps")?) {
        // SAFETY: mlock(2) neither reads nor writes this process's memory, and fails if nothing is mapped there.
        // JUSTIFICATION: std has no such call, and rustix's takes a pointer and is unsafe as well.
        if unsafe { libc::mlock(start as *const libc::c_void, length) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Undoes [`lock_program`] for this process; its forked children have no locked memory anyway (mlock(2)).
pub fn unlock_program() {
    // It cannot fail.
    let _ = rustix::mm::munlockall();
}

/// Returns start and length, in bytes, of the mappings of files (proc_pid_maps(5)):
/// `from-to access offset device inode path`.
fn program_mappings(maps: &str) -> impl Iterator<Item = (usize, usize)> {
    maps.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (from, to) = fields.next()?.split_once('-')?;
        let is_readable = fields.next()?.starts_with('r');
        let is_file = fields.nth(2)? != "0";
        let from = usize::from_str_radix(from, 16).ok()?;
        let to = usize::from_str_radix(to, 16).ok()?;
        (is_readable && is_file).then_some((from, to.checked_sub(from)?))
    })
}

/// The calling thread's use of the disk since it started (getrusage(2), `RUSAGE_THREAD`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// Page faults that needed the disk.
    pub major_faults: i64,
    /// Blocks read from a disk, including those read ahead without a wait.
    pub blocks_read: i64,
    /// Voluntary context switches.
    pub waits: i64,
}

/// Returns the calling thread's use of the disk so far.
pub fn disk_use() -> DiskUse {
    use nix::sys::resource::{UsageWho, getrusage};
    // It fails only for an unknown argument.
    let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) else { return DiskUse::default() };
    DiskUse {
        major_faults: usage.major_page_faults(),
        blocks_read: usage.block_reads(),
        waits: usage.voluntary_context_switches(),
    }
}

/// Returns the CPU time that this process has used since it started, all threads together.
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Returns the CPU time that another process has used since it started: all threads, including those that have ended,
/// without its children. Needs no permission.
///
/// # Errors
/// Those of clock_getcpuclockid(3): when there is no such process.
pub fn cpu_time_of(pid: u32) -> io::Result<Duration> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: clock_getcpuclockid(3) writes a clock to `clock`, which is alive. JUSTIFICATION: neither std nor rustix
    // has it.
    match unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) } {
        0 => {}
        error => return Err(io::Error::from_raw_os_error(error)),
    }
    // SAFETY: clock_gettime(2) writes to `time`, which is alive. JUSTIFICATION: rustix does not take such a clock.
    match unsafe { libc::clock_gettime(clock, &raw mut time) } {
        0 => Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the kernel's ticks per second in `/proc` (`USER_HZ`): 100 on all current machines.
pub fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second()
}

/// Returns the size of a page of memory, bytes.
pub fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// Returns the size of the machine's memory, bytes (sysinfo(2)).
pub fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    u64::from(info.mem_unit) * info.totalram
}

/// Returns how many seconds local time is ahead of UTC at this time (localtime_r(3)).
pub fn local_offset(unix_seconds: i64) -> i32 {
    let mut local = std::mem::MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: localtime_r(3) reads the time and writes the broken-down one to `local`, both alive. A zeroed `tm` is
    // valid (numbers and a null pointer), also if the call fails. JUSTIFICATION: std does not support time zones.
    let local = unsafe {
        libc::localtime_r(&raw const unix_seconds, local.as_mut_ptr());
        local.assume_init()
    };
    i32::try_from(local.tm_gmtoff).unwrap_or(0)
}

/// Converts a text to a C string; `None` if it contains a NUL.
pub fn c_string(text: impl Into<Vec<u8>>) -> Option<CString> {
    CString::new(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_kept_private() {
        use rustix::process::{DumpableBehavior, dumpable_behavior, set_dumpable_behavior};
        let before = dumpable_behavior().expect("known");
        keep_memory_private().expect("allowed");
        assert_eq!(dumpable_behavior().expect("known"), DumpableBehavior::NotDumpable);
        set_dumpable_behavior(before).expect("allowed");
    }
    use crate::file;

    #[test]
    fn cpu_time_of_process_includes_ended_threads() {
        let spin = || {
            let begun = crate::clock::cpu_time();
            while crate::clock::cpu_time() - begun < Duration::from_millis(20) {}
        };
        let before = cpu_time_of(std::process::id()).expect("known");
        std::thread::spawn(spin).join().expect("ends");
        let after = cpu_time_of(std::process::id()).expect("known");
        assert!(after - before >= Duration::from_millis(20) && after <= cpu_time(), "{before:?} {after:?}");
        // PIDs are at most 2^22.
        assert!(cpu_time_of(5_000_000).is_err() && cpu_time_of(u32::MAX).is_err());
    }

    #[test]
    fn users_and_groups_are_looked_up() {
        let root = user(c"root").expect("asked").expect("there");
        assert_eq!((root.uid, root.gid), (0, 0));
        assert_eq!(user(c"nobody of this name").expect("asked"), None);
        assert_eq!(group(c"root").expect("asked"), Some(0));
        assert_eq!(group(c"no group of this name").expect("asked"), None);
    }

    #[test]
    fn program_of_exited_parent_is_not_started() {
        let mut command = std::process::Command::new("/bin/true");
        end_with_this_thread(&mut command);
        assert!(command.status().expect("started").success());
        let mut orphan = std::process::Command::new("/bin/true");
        restore(&mut orphan, Some(1));
        assert!(orphan.status().is_err(), "the program would outlive the server");
    }

    #[test]
    fn opened_file_is_executed_after_rename() {
        let folder = tempfile::tempdir().expect("a directory");
        let name = folder.path().join("program");
        std::fs::copy("/bin/sh", &name).expect("copied");
        let file = std::fs::File::open(&name).expect("there");
        std::fs::remove_file(&name).expect("removed");
        std::os::unix::fs::symlink("/bin/false", &name).expect("linked");
        let variables = vec![c"A=b".to_owned()];
        let mut command = std::process::Command::new(&name);
        command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
        execute_file(&mut command, file.into(), variables);
        assert!(command.status().expect("started").success(), "the shell succeeds without input, `false` does not");
    }

    #[test]
    fn shell_runs_text_only_while_its_name_refers_to_opened_file() {
        let folder = tempfile::tempdir().expect("a directory");
        let (name, other) = (folder.path().join("text"), folder.path().join("other"));
        let run = |file: &std::path::Path| {
            let file = std::fs::File::open(file).expect("there");
            let mut command = std::process::Command::new(&name);
            command.stdout(std::process::Stdio::piped());
            execute_file(&mut command, file.into(), vec![c"A=b".to_owned()]);
            command.output()
        };
        for path in [&name, &other] {
            std::fs::write(path, "echo $0 $A\n").expect("written");
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("set");
        }
        let output = run(&name).expect("started").stdout;
        assert_eq!(String::from_utf8(output).expect("text"), format!("{} b\n", name.display()));
        let error = run(&other).expect_err("the name is another file's");
        assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
    }

    #[test]
    fn descriptors_are_handed_over_from_3_on_with_own_process_id() {
        use std::io::{Read, Write};
        let (mut one, its_one) = std::os::unix::net::UnixStream::pair().expect("made");
        let (mut two, its_two) = std::os::unix::net::UnixStream::pair().expect("made");
        let mut command = std::process::Command::new("/bin/bash");
        command.args(["-c", "test $((10#$LISTEN_PID)) = $$ && echo $A $LISTEN_FDS >&4; /bin/cat <&3 >&4"]);
        hand_over(&mut command, &[its_one.as_fd(), its_two.as_fd()], vec![c"A=b".to_owned()]).expect("prepared");
        let mut child = command.spawn().expect("started");
        drop((command, its_one, its_two));
        one.write_all(b"end").expect("written");
        drop(one);
        let mut said = String::new();
        two.read_to_string(&mut said).expect("read");
        assert_eq!(said, "b 2\nend");
        assert!(child.wait().expect("waited").success());
        let mut missing = std::process::Command::new("/nonexistent");
        hand_over(&mut missing, &[two.as_fd()], Vec::new()).expect("prepared");
        assert_eq!(missing.spawn().expect_err("missing").kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn replaced_file_is_not_executed() {
        use std::os::unix::fs::MetadataExt;
        let state = std::fs::metadata("/bin/true").expect("there");
        let run = |inode| {
            let mut command = std::process::Command::new("/bin/true");
            expect_file(&mut command, state.dev(), inode);
            command.status()
        };
        assert!(run(state.ino()).expect("started").success());
        let error = run(state.ino() + 1).expect_err("another file");
        assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
    }

    #[test]
    fn file_mappings_are_parsed() {
        let maps = "55a0d000-55a0f000 r--p 00000000 fd:01 1234   /usr/bin/a program\n\
                    55a0f000-55a10000 r-xp 00002000 fd:01 1234   /usr/bin/a program\n\
                    55a10000-55a11000 ---p 00003000 fd:01 1234   /usr/bin/a program\n\
                    55b00000-55b21000 rw-p 00000000 00:00 0      [heap]\n\
                    7fff0000-7fff1000 r-xp 00000000 00:00 0      [vdso]\n\
                    cut off";
        let mappings: Vec<_> = program_mappings(maps).collect();
        assert_eq!(mappings, [(0x55a0_d000, 0x2000), (0x55a0_f000, 0x1000)]);
    }

    #[test]
    fn blocking_disk_read_is_counted() {
        let folder = tempfile::tempdir_in(".").expect("a directory on a disk");
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7; 64 * 1024]).expect("written");
        let file = std::fs::File::open(&path).expect("opened");
        file.sync_all().expect("synced");
        let blocks_of_a_read = || {
            let before = disk_use();
            file::read_at(&file, &mut [0; 4096], 0, file::Patience::Wait).expect("read");
            disk_use().blocks_read - before.blocks_read
        };
        // On a busy machine other processes may hold pages for a moment, which are not evicted then.
        let shows = (0..1000).any(|_| {
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advised");
            blocks_of_a_read() > 0 || {
                std::thread::sleep(Duration::from_millis(5));
                false
            }
        });
        assert!(shows, "evicted and read; if the build directory is not on a disk, build elsewhere");
        assert_eq!(blocks_of_a_read(), 0, "it is in memory");
    }
}
