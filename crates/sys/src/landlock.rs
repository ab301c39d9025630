//! Landlock: limits the files that this thread, and all that it starts, may open by name (landlock(7)).
//!
//! Only opening is limited, and changes of directories: a descriptor that is open stays as it is, and calls that take a path
//! without opening it, such as stat(2) and connect(2), are not affected. Programs cannot be executed at all.

use std::io;
use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    RulesetStatus,
};

/// The rights that are handled: everything about files that the kernels up to this version know; older ones handle fewer.
const HANDLED: ABI = ABI::V5;

/// What is permitted of a file, or of everything in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading files and directories.
    Read,
    /// Reading and writing files that exist, and those without a name.
    Write,
    /// The same, and creating files.
    Create,
    /// Naming, renaming and removing files, not opening them.
    Name,
    /// Everything about the files of a directory.
    Manage,
}

impl Access {
    fn rights(self) -> BitFlags<AccessFs> {
        match self {
            Access::Read => AccessFs::ReadFile | AccessFs::ReadDir,
            Access::Write => AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate,
            Access::Create => Access::Write.rights() | AccessFs::MakeReg,
            Access::Name => AccessFs::MakeReg | AccessFs::RemoveFile,
            Access::Manage => Access::Create.rights() | Access::Name.rights() | AccessFs::ReadDir,
        }
    }

    /// Returns whether it permits everything that `other` does.
    pub fn includes(self, other: Access) -> bool {
        self.rights().contains(other.rights())
    }
}

/// Permits this thread, and all threads and processes that it starts, only what these rules say, forever. They cannot gain
/// privileges either (`PR_SET_NO_NEW_PRIVS`). A path that does not exist is omitted. Returns `false` if the kernel does not
/// support it. Must be called while there is one thread.
///
/// # Errors
/// Those of landlock_restrict_self(2): there are 16 layers already.
pub fn restrict<'a>(rules: impl IntoIterator<Item = (&'a Path, Access)>) -> io::Result<bool> {
    let failed = |error: RulesetError| io::Error::other(error.to_string());
    let mut ruleset =
        Ruleset::default().handle_access(AccessFs::from_all(HANDLED)).map_err(failed)?.create().map_err(failed)?;
    for (path, access) in rules {
        let Ok(descriptor) = PathFd::new(path) else { continue };
        let is_directory = path.is_dir();
        let of_files = AccessFs::from_file(HANDLED);
        let rights = if is_directory { access.rights() } else { access.rights() & of_files };
        if !rights.is_empty() {
            ruleset = ruleset.add_rule(PathBeneath::new(descriptor, rights)).map_err(failed)?;
        }
    }
    let status = ruleset.restrict_self().map_err(failed)?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::io::ErrorKind;

    #[test]
    fn thread_opens_only_what_rules_permit() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().to_owned();
        let at = move |name: &str| path.join(name);
        for name in ["read", "write", "create", "name", "other"] {
            fs::create_dir(at(name)).expect("made");
            fs::write(at(name).join("file"), name).expect("written");
        }
        fs::write(at("single"), "x").expect("written");
        let rules = [
            (at("read"), Access::Read),
            (at("write"), Access::Write),
            (at("create"), Access::Create),
            (at("name"), Access::Name),
            (at("single"), Access::Create),
            (at("missing"), Access::Read),
        ];
        // It applies to the thread.
        let restricted = std::thread::spawn(move || {
            let in_force = restrict(rules.iter().map(|(path, access)| (path.as_path(), *access))).expect("restricted");
            assert!(in_force, "this kernel has no Landlock (CONFIG_SECURITY_LANDLOCK, and `lsm=` at boot)");
            let kind = |result: io::Result<()>| result.map_err(|error| error.kind());
            let read = |name: &str| kind(fs::read(at(name).join("file")).map(drop));
            let write = |name: &str| kind(File::options().write(true).open(at(name).join("file")).map(drop));
            let create = |name: &str| kind(File::create_new(at(name).join("new")).map(drop));
            let remove = |name: &str| kind(fs::remove_file(at(name).join("file")));
            let denied = Err(ErrorKind::PermissionDenied);
            assert_eq!((read("read"), write("read"), create("read"), remove("read")), (Ok(()), denied, denied, denied));
            assert_eq!(
                (read("write"), write("write"), create("write"), remove("write")),
                (Ok(()), Ok(()), denied, denied)
            );
            assert_eq!((write("create"), create("create"), remove("create")), (Ok(()), Ok(()), denied));
            assert_eq!((read("name"), write("name"), remove("name")), (denied, denied, Ok(())));
            assert_eq!((read("other"), write("other"), remove("other")), (denied, denied, denied));
            assert!(fs::read(at("single")).is_ok() && File::open("/etc/passwd").is_err());
            assert!(std::process::Command::new("/bin/true").status().is_err(), "a program was executed");
            assert!(std::thread::spawn(|| File::open("/etc/passwd").is_err()).join().expect("joined"));
            // Not limited: opening for a path alone.
            assert!(fs::metadata("/etc/passwd").is_ok());
        });
        restricted.join().expect("as asserted");
        assert!(File::open("/etc/passwd").is_ok(), "other threads are not restricted");
    }

    #[test]
    fn access_includes_less() {
        assert!(Access::Create.includes(Access::Write) && !Access::Write.includes(Access::Create));
        assert!(!Access::Read.includes(Access::Write) && !Access::Create.includes(Access::Name));
    }
}
