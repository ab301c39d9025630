//! Opens names that may lead through symbolic links, with one of four policies.
//!
//! Only the kernel can confine a name to a root without a race (`RESOLVE_BENEATH`, openat2(2)), but it refuses
//! every absolute link and every `..` that passes the root, including those that end inside, as in Debian's
//! packages. Such a name is resolved first, by an `O_PATH` descriptor that gives no access, and the result is
//! then opened a second time by its real path, beneath the root and with links forbidden. So the kernel verifies
//! the result, whatever is renamed meanwhile.
//!
//! Resolving may wait for the disk; a caller that must not wait gets
//! [`io::ErrorKind::WouldBlock`] as soon as the fast path fails.

use std::error::Error;
use std::ffi::{CStr, CString, OsStr};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::file::{self, Kind, Patience, Status};

/// Which symbolic links are followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    /// Those that end beneath the root, including absolute ones.
    #[default]
    Within,
    /// The same, if link and target belong to the same user.
    Owner,
    /// All, even out of the root.
    Any,
    /// None.
    None,
}

/// A link that the policy does not follow, and the reason.
#[derive(Debug)]
pub struct RefusedLink(String);

impl fmt::Display for RefusedLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for RefusedLink {}

impl RefusedLink {
    /// Returns the refusal that this error contains, if any.
    pub fn of(error: &io::Error) -> Option<&RefusedLink> {
        error.get_ref()?.downcast_ref()
    }

    fn error(why: String) -> io::Error {
        io::Error::new(io::ErrorKind::PermissionDenied, RefusedLink(why))
    }
}

/// Opens `path`, relative to `root` and without `..`, for reading. A pipe is opened without waiting for its writer.
///
/// # Errors
/// Those of openat2(2); a [`RefusedLink`] if the policy forbids it; [`io::ErrorKind::WouldBlock`] if it would block.
pub fn open(root: BorrowedFd<'_>, path: &CStr, links: Links, patience: Patience) -> io::Result<OwnedFd> {
    let no_links = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let (attempt, resolve): (_, fn(BorrowedFd<'_>, &CStr) -> io::Result<OwnedFd>) = match links {
        Links::Any => return file::open_at(root, path, ResolveFlags::empty(), patience),
        Links::None => {
            let opened = file::open_at(root, path, no_links, patience);
            return opened.map_err(|error| match file::is_link_loop(&error) {
                true => RefusedLink::error("it leads through a symbolic link, and none is followed".to_owned()),
                false => error,
            });
        }
        Links::Within => (file::open_beneath(root, path, patience), reach),
        Links::Owner => (file::open_at(root, path, no_links, patience), reach_by_owner),
    };
    match attempt {
        Err(error) if file::is_escape(&error) || (links == Links::Owner && file::is_link_loop(&error)) => {}
        attempt => return attempt,
    }
    if patience == Patience::Now {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    // A rename between the two steps makes them disagree: both are repeated.
    let mut last = None;
    for _ in 0..4 {
        let reached = resolve(root, path).map_err(|error| match file::is_link_loop(&error) {
            true => RefusedLink::error("symbolic links form a loop, or lead through a link of /proc".to_owned()),
            false => error,
        })?;
        match verify(root, reached)? {
            Ok(opened) => return Ok(opened),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| Errno::IO.into()))
}

/// Resolves a name, wherever it leads.
fn reach(root: BorrowedFd<'_>, path: &CStr) -> io::Result<OwnedFd> {
    look(root, path, OFlags::empty())
}

/// Resolves a name through links whose owner is that of their target. Exchanging a link between the two checks gains
/// nothing: a new link belongs to its creator too.
fn reach_by_owner(root: BorrowedFd<'_>, path: &CStr) -> io::Result<OwnedFd> {
    let mut at = look(root, c".", OFlags::empty())?;
    for name in path.to_bytes().split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
        let name = CString::new(name).expect("part of a C string");
        let mut found = look(at.as_fd(), &name, OFlags::NOFOLLOW)?;
        let link = rustix::fs::fstat(&found)?;
        if file::status(&found)?.kind == Kind::Link {
            found = look(at.as_fd(), &name, OFlags::empty())?;
            let target = rustix::fs::fstat(&found)?;
            if link.st_uid != target.st_uid {
                return Err(RefusedLink::error(format!(
                    "the symbolic link {} belongs to user {}, and its target to user {}",
                    name.to_string_lossy().escape_debug(),
                    link.st_uid,
                    target.st_uid
                )));
            }
        }
        at = found;
    }
    // A trailing slash requires a directory.
    if path.to_bytes().ends_with(b"/") && file::status(&at)?.kind != Kind::Directory {
        return Err(Errno::NOTDIR.into());
    }
    Ok(at)
}

/// Opens a descriptor that gives no access, for checking what a name refers to.
fn look(folder: BorrowedFd<'_>, path: &CStr, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | flags;
    Ok(rustix::fs::openat2(folder, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)?)
}

/// Opens the resolved file again, beneath the root and through no link. The inner error requests another attempt.
fn verify(root: BorrowedFd<'_>, reached: OwnedFd) -> io::Result<io::Result<OwnedFd>> {
    let (base, real) = (real_path(root)?, real_path(reached.as_fd())?);
    let inner = match &base[..] {
        b"/" => real.strip_prefix(b"/"),
        base => real.strip_prefix(base).and_then(|rest| match rest {
            [] => Some(rest),
            _ => rest.strip_prefix(b"/"),
        }),
    };
    let Some(inner) = inner else {
        let shown = Path::new(OsStr::from_bytes(&real)).display().to_string();
        return Err(RefusedLink::error(format!("a symbolic link leads to {}, outside the root", shown.escape_debug())));
    };
    let inner = CString::new(if inner.is_empty() { b"." } else { inner }).expect("the kernel returns no NUL");
    let opened = file::open_at(root, &inner, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS, Patience::Wait);
    let is_same = |a: &Status, b: &Status| (a.device, a.inode) == (b.device, b.inode);
    match opened {
        Ok(opened) if is_same(&file::status(&opened)?, &file::status(&reached)?) => Ok(Ok(opened)),
        Ok(_) => Ok(Err(Errno::IO.into())),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied || file::is_exhaustion(&error) => Err(error),
        Err(error) => Ok(Err(error)),
    }
}

/// Returns the current path of an open file.
fn real_path(file: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let path = rustix::fs::readlink(format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new());
    match path.map(CString::into_bytes) {
        Ok(path) if path.starts_with(b"/") => Ok(path),
        Ok(_) | Err(Errno::NOENT | Errno::ACCESS) => {
            Err(RefusedLink::error("following an absolute symbolic link requires /proc to be mounted".to_owned()))
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{lchown, symlink};
    use std::time::{Duration, Instant};

    fn opened(root: &Path, path: &str, links: Links, patience: Patience) -> Result<String, String> {
        let folder = file::open_root(root, Patience::Wait).expect("opened");
        let path = CString::new(path).expect("no NUL");
        let opened = open(folder.as_fd(), &path, links, patience).map_err(|error| match RefusedLink::of(&error) {
            Some(refused) => format!("refused: {refused}"),
            None => format!("{:?}", error.kind()),
        })?;
        Ok(match file::status(&opened).expect("status").kind {
            Kind::Directory => "a folder".to_owned(),
            _ => fs::read_to_string(format!("/proc/self/fd/{}", opened.as_raw_fd())).expect("read"),
        })
    }

    #[test]
    fn symlink_policy_is_obeyed() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let outside = folder.path().canonicalize().expect("there");
        let root = outside.join("root");
        fs::create_dir_all(root.join("sub")).expect("made");
        fs::write(outside.join("secret"), "secret").expect("written");
        fs::write(root.join("page"), "page").expect("written");
        fs::write(root.join("sub/deep"), "deep").expect("written");
        let root_again = outside.join("alias");
        symlink(&root, &root_again).expect("linked");
        let at = |name: &str| outside.join(name);
        for (link, target) in [
            ("relative", "page".into()),
            ("absolute", at("root/page")),
            ("folder", at("root/sub")),
            ("alias", at("alias/page")),
            ("round", "../root/page".into()),
            ("twice", at("root/absolute")),
            ("up", "../secret".into()),
            ("out", at("secret")),
            ("beside", at("root-other")),
            ("itself", at("root/itself")),
            ("top", root.clone()),
            ("magic", "/proc/self/root/etc/hostname".into()),
        ] {
            symlink(target, root.join(link)).expect("linked");
        }
        fs::create_dir(at("root-other")).expect("made");
        let check = |path: &str, links: Links, expected: Result<&str, &str>| {
            for root in [&root, &root_again] {
                let came_out = opened(root, path, links, Patience::Wait);
                let is_right = match (&came_out, expected) {
                    (Ok(text), Ok(expected)) => text == expected,
                    (Err(text), Err(expected)) => text.starts_with(expected),
                    _ => false,
                };
                assert!(is_right, "{path} {links:?}: {came_out:?}");
            }
        };
        for links in [Links::Within, Links::Owner, Links::Any] {
            for path in ["page", "relative", "absolute", "alias", "round", "twice"] {
                check(path, links, Ok("page"));
            }
            check("folder/deep", links, Ok("deep"));
            check("folder/", links, Ok("a folder"));
            check("top", links, Ok("a folder"));
            check("top/folder/deep", links, Ok("deep"));
            check("absolute/", links, Err("NotADirectory"));
            check("none", links, Err("NotFound"));
            assert!(opened(&root, "itself", links, Patience::Wait).is_err());
            assert!(opened(&root, "magic", links, Patience::Wait).is_err());
        }
        for links in [Links::Within, Links::Owner] {
            for path in ["up", "out", "beside"] {
                check(path, links, Err("refused: a symbolic link leads to "));
            }
        }
        check("up", Links::Any, Ok("secret"));
        check("out", Links::Any, Ok("secret"));
        check("page", Links::None, Ok("page"));
        check("sub/deep", Links::None, Ok("deep"));
        for path in ["relative", "absolute", "folder/deep", "out"] {
            check(path, Links::None, Err("refused: it leads through a symbolic link"));
        }
        // A caller that must not wait gets an error if the fast path is not enough.
        assert_eq!(opened(&root, "absolute", Links::Within, Patience::Now), Err("WouldBlock".to_owned()));
        assert_eq!(opened(&root, "relative", Links::Within, Patience::Now), Ok("page".to_owned()));
        assert_eq!(opened(&root, "relative", Links::Owner, Patience::Now), Err("WouldBlock".to_owned()));
    }

    #[test]
    fn owner_policy_refuses_links_of_other_owner() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let root = folder.path().canonicalize().expect("there");
        fs::write(root.join("page"), "page").expect("written");
        symlink("page", root.join("theirs")).expect("linked");
        lchown(root.join("theirs"), Some(12_345), None).expect("this test needs root");
        assert_eq!(opened(&root, "theirs", Links::Within, Patience::Wait), Ok("page".to_owned()));
        let refused = opened(&root, "theirs", Links::Owner, Patience::Wait).expect_err("refused");
        assert!(refused.contains("belongs to user 12345"), "{refused}");
    }

    /// Whatever is exchanged meanwhile, nothing outside is opened.
    #[test]
    fn changing_link_does_not_escape_root() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let outside = folder.path().canonicalize().expect("there");
        let root = outside.join("root");
        fs::create_dir_all(root.join("a")).expect("made");
        fs::create_dir_all(outside.join("b")).expect("made");
        fs::write(root.join("a/page"), "inside").expect("written");
        fs::write(outside.join("b/page"), "outside").expect("written");
        let switch = |target: &Path| {
            symlink(target, root.join("next")).expect("linked");
            fs::rename(root.join("next"), root.join("link")).expect("renamed");
        };
        switch(&root.join("a"));
        let mut inside = 0;
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut tries, mut count, start) = (0, 0, Instant::now());
                // On a busy machine, the other thread may not run for long.
                while tries < 2000 || (count == 0 && start.elapsed() < Duration::from_secs(60)) {
                    tries += 1;
                    match opened(&root, "link/page", Links::Within, Patience::Wait) {
                        Ok(text) => {
                            assert_eq!(text, "inside");
                            count += 1;
                        }
                        Err(why) => assert!(why.starts_with("refused") || why == "NotFound" || why == "Other", "{why}"),
                    }
                }
                count
            });
            let mut is_inside = true;
            while !reader.is_finished() {
                is_inside = !is_inside;
                switch(&if is_inside { outside.join("root/a") } else { outside.join("b") });
            }
            inside = reader.join().expect("no panic");
        });
        assert!(inside > 0, "it never resolved inside the root");
    }
}
