//! Limits the system calls of this thread, and of all that it starts (seccomp(2)).
//!
//! One list serves the whole process: threads share memory, so a narrower list for one of them would be no obstacle to a fault that makes
//! another do its work. The list has what the server, Rust's library and the C library call. It lacks, above all, executing programs,
//! namespaces, mounts, tracing, loading of kernel code, io_uring, keys, and changes of user.

use std::collections::BTreeMap;
use std::io;

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// The answer to a call that is not permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It fails with `EPERM`.
    Error,
    /// It ends the process, with `SIGSYS`.
    Kill,
}

/// Calls that are permitted with any argument.
const CALLS: &[c_long] = &[
    // Files.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_statfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_lseek,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_fadvise64,
    libc::SYS_readahead,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_utimensat,
    libc::SYS_linkat,
    // 32-bit and newer processors have only the next one.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_mkdirat,
    libc::SYS_umask,
    libc::SYS_memfd_create,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_rm_watch,
    // Sockets.
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_shutdown,
    // Waiting.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_eventfd2,
    libc::SYS_signalfd4,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_restart_syscall,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_mlockall,
    libc::SYS_munlock,
    libc::SYS_munlockall,
    libc::SYS_msync,
    libc::SYS_membarrier,
    // Threads, processes and signals. `clone3` is refused by another filter.
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_kill,
    libc::SYS_tgkill,
    libc::SYS_tkill,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_gettid,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_getpriority,
    libc::SYS_setpriority,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_prctl,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_prlimit64,
    libc::SYS_seccomp,
    // The rest.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getgroups,
    libc::SYS_sysinfo,
    libc::SYS_uname,
];

/// Calls that only this architecture has.
#[cfg(target_arch = "x86_64")]
const OLD_CALLS: &[c_long] = &[
    libc::SYS_access,
    libc::SYS_arch_prctl,
    libc::SYS_chmod,
    libc::SYS_dup2,
    libc::SYS_epoll_wait,
    libc::SYS_fork,
    libc::SYS_getrlimit,
    libc::SYS_link,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_open,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_rmdir,
    libc::SYS_select,
    libc::SYS_stat,
    libc::SYS_time,
    libc::SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_CALLS: &[c_long] = &[];

/// Families of sockets that are permitted: the last for the C library, which asks the kernel for this machine's addresses.
const FAMILIES: [i32; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Flags of clone(2) for namespaces.
const NAMESPACES: i32 = libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS;

/// Requests of ioctl(2) that type into the terminal of the user who started the server: TIOCSTI and TIOCLINUX.
const TYPING: [i32; 2] = [0x5412, 0x541c];

/// Permits this thread, and all threads and processes that it starts, only the calls that a server needs, forever. They cannot gain
/// privileges either (`PR_SET_NO_NEW_PRIVS`). Returns `false` if the kernel does not support it. Must be called while there is one thread.
///
/// # Errors
/// Those of seccomp(2); the list cannot be expressed for this processor.
pub fn restrict(refusal: Refusal) -> io::Result<bool> {
    let action = match refusal {
        Refusal::Error => SeccompAction::Errno(libc::EPERM.unsigned_abs()),
        Refusal::Kill => SeccompAction::KillProcess,
    };
    let list = filter(permitted()?, action, SeccompAction::Allow)?;
    // A filter cannot read the flags of clone3(2), which are in memory. The C library then calls clone(2).
    let missing = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let no_clone3 = filter([(libc::SYS_clone3, vec![])].into(), SeccompAction::Allow, missing)?;
    match seccompiler::apply_filter(&no_clone3) {
        Ok(()) => {}
        Err(seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error))
            if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) =>
        {
            return Ok(false);
        }
        Err(error) => return Err(io::Error::other(error)),
    }
    seccompiler::apply_filter(&list).map(|()| true).map_err(io::Error::other)
}

/// Compiles a filter: `rules` lead to `matched`, all other calls to `other`.
fn filter(
    rules: BTreeMap<c_long, Vec<SeccompRule>>,
    other: SeccompAction,
    matched: SeccompAction,
) -> io::Result<BpfProgram> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    let filter = SeccompFilter::new(rules, other, matched, architecture).map_err(io::Error::other)?;
    filter.try_into().map_err(|error: BackendError| io::Error::other(error))
}

/// The calls that are permitted, with the conditions on their arguments: one of them must hold.
fn permitted() -> io::Result<BTreeMap<c_long, Vec<SeccompRule>>> {
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> =
        CALLS.iter().chain(OLD_CALLS).map(|&call| (call, Vec::new())).collect();
    let of_families = FAMILIES.map(|family| vec![(0, Eq, family)]);
    rules.insert(libc::SYS_socket, any_of(of_families)?);
    rules.insert(libc::SYS_socketpair, any_of([vec![(0, Eq, libc::AF_UNIX)]])?);
    rules.insert(libc::SYS_clone, any_of([vec![(0, MaskedEq(bits(NAMESPACES)), 0)]])?);
    // No mapping is both written and executed, and none becomes executable; libraries, which the C library loads to look up names, are executed only.
    let both = bits(libc::PROT_WRITE | libc::PROT_EXEC);
    let not_both = [libc::PROT_NONE, libc::PROT_WRITE, libc::PROT_EXEC].map(|one| vec![(2, MaskedEq(both), one)]);
    rules.insert(libc::SYS_mmap, any_of(not_both)?);
    rules.insert(libc::SYS_mprotect, any_of([vec![(2, MaskedEq(bits(libc::PROT_EXEC)), 0)]])?);
    rules.insert(libc::SYS_ioctl, any_of([TYPING.map(|request| (1, Ne, request)).into()])?);
    Ok(rules)
}

/// A condition: the number of an argument, how it is compared, with what.
type Condition = (u8, SeccompCmpOp, i32);

fn any_of<const N: usize>(alternatives: [Vec<Condition>; N]) -> io::Result<Vec<SeccompRule>> {
    let condition = |(number, operator, value): Condition| {
        SeccompCondition::new(number, SeccompCmpArgLen::Dword, operator, bits(value))
    };
    let rule =
        |conditions: Vec<Condition>| SeccompRule::new(conditions.into_iter().map(condition).collect::<Result<_, _>>()?);
    alternatives.into_iter().map(rule).collect::<Result<_, BackendError>>().map_err(io::Error::other)
}

/// The bits of an argument.
fn bits(value: i32) -> u64 {
    u64::from(value.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::{self, NetNs};
    use std::io::ErrorKind;
    use std::net::TcpStream;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::thread;

    #[test]
    fn only_what_a_server_needs_is_permitted() {
        // It applies to the thread.
        let limited = thread::spawn(|| {
            assert!(
                restrict(Refusal::Error).expect("restricted"),
                "this kernel has no seccomp (CONFIG_SECCOMP_FILTER)"
            );
            let kind = |result: io::Result<()>| result.map_err(|error| error.kind());
            let denied = Err(ErrorKind::PermissionDenied);
            assert_eq!(kind(Command::new("/bin/true").status().map(drop)), denied, "a program was executed");
            assert_eq!(kind(netns::become_root_of_new_users()), denied);
            assert_eq!(kind(NetNs::unshare()), denied);
            // What a server does.
            assert!(std::fs::read("/proc/self/status").is_ok());
            assert!(thread::spawn(|| Command::new("/bin/true").status().is_err()).join().expect("joined"));
            let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
            TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
            std::net::ToSocketAddrs::to_socket_addrs("localhost:1").expect("looked up");
        });
        limited.join().expect("as asserted");
        assert!(Command::new("/bin/true").status().is_ok(), "other threads are not limited");
    }

    #[test]
    fn process_ends_if_calls_are_to_end_it() {
        /// Set for the child.
        const CHILD: &str = "AMPED_TEST_SECCOMP_CHILD";
        if std::env::var_os(CHILD).is_some() {
            assert!(restrict(Refusal::Kill).expect("restricted"));
            panic!("it goes on: {:?}", NetNs::unshare());
        }
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "seccomp::tests::process_ends_if_calls_are_to_end_it"]).env(CHILD, "1");
        assert_eq!(command.output().expect("run").status.signal(), Some(libc::SIGSYS));
    }
}
