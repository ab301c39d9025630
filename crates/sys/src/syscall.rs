//! Names of system calls by number.
//!
//! The tables are data, one for each supported architecture; on others no number has a name.

#[cfg(target_arch = "x86_64")]
const TABLE: &str = include_str!("syscall/x86_64.txt");
#[cfg(target_arch = "aarch64")]
const TABLE: &str = include_str!("syscall/aarch64.txt");
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const TABLE: &str = "";

/// Returns the name of the system call of this number, as in programs and syscalls(2). `None`:
/// there is none, or it is newer than the table.
pub fn name(number: u64) -> Option<&'static str> {
    TABLE.lines().find_map(|line| {
        // Comments do not begin with a number.
        let (first, names) = line.split_once(' ')?;
        names.split(' ').nth(usize::try_from(number.checked_sub(first.parse().ok()?)?).ok()?)
    })
}

#[cfg(test)]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod tests {
    use super::*;

    #[test]
    fn system_call_names_match_libc() {
        let check = |number: libc::c_long, expected| assert_eq!(name(number as u64), Some(expected), "{number}");
        check(libc::SYS_read, "read");
        check(libc::SYS_writev, "writev");
        check(libc::SYS_pread64, "pread64");
        check(libc::SYS_sendfile, "sendfile");
        check(libc::SYS_getppid, "getppid");
        check(libc::SYS_accept4, "accept4");
        check(libc::SYS_newfstatat, "newfstatat");
        check(libc::SYS_epoll_pwait, "epoll_pwait");
        check(libc::SYS_exit_group, "exit_group");
        check(libc::SYS_preadv2, "preadv2");
        check(libc::SYS_statx, "statx");
        check(libc::SYS_pidfd_send_signal, "pidfd_send_signal");
        check(libc::SYS_openat2, "openat2");
        check(libc::SYS_epoll_pwait2, "epoll_pwait2");
        check(libc::SYS_mseal, "mseal");
        for number in [400, 600, u64::MAX] {
            assert_eq!(name(number), None, "{number}");
        }
    }

    #[test]
    fn system_call_numbers_and_names_are_unique() {
        let mut seen = std::collections::BTreeMap::new();
        let mut end = 0;
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            let (first, names) = line.split_once(' ').expect("a number, then names");
            let first: u64 = first.parse().expect("a number");
            assert!(first >= end, "{line}");
            end = first;
            for name in names.split(' ') {
                assert!(seen.insert(name, end).is_none(), "{name} twice");
                end += 1;
            }
        }
        assert!(seen.len() > 300, "{}", seen.len());
    }
}
