//! Symbolises program addresses: finds the function of an address in a process.
//!
//! `/proc/PID/maps` gives the file of each executable mapping; blazesym finds the function in that file's symbols, and
//! demangles names of Rust and C++. The file is opened as the process has it, through `/proc/PID/map_files`: that is
//! the right one also in a container, and after the file was replaced.
//!
//! Runs after the sampling, so that it does not affect the measurement. A process that has ended by then has no names.
//!
//! A program without frame pointers yields invalid chains. An address outside of
//! executable memory indicates that, and ends the chain.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolizer};

use super::table::ProgramTable;

/// Finds the functions of programs.
pub(crate) struct Programs {
    symbolizer: Symbolizer,
    table: ProgramTable,
}

/// A function of a program.
#[derive(Debug, PartialEq)]
pub(crate) struct Function {
    /// Its name; that of its file in brackets, if it has none.
    pub(crate) name: String,
    /// Its category, if it has one of its own.
    pub(crate) category: Option<&'static str>,
}

impl Programs {
    pub(crate) fn new() -> Programs {
        let symbolizer = Symbolizer::builder().enable_code_info(false).enable_inlined_fns(false).build();
        Programs { symbolizer, table: ProgramTable::new() }
    }

    /// The functions of these addresses in the process `pid`. Code without symbols is named after its file, in
    /// brackets, or after `program` if it has no file. Addresses outside of code are omitted.
    pub(crate) fn functions(&self, pid: u32, program: &str, addresses: &[u64]) -> HashMap<u64, Function> {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let Ok(maps) = fs::read(process.join("maps")) else { return HashMap::new() };
        let maps = String::from_utf8_lossy(&maps);
        let mut functions = HashMap::new();
        for area in maps.lines().filter_map(Area::parse) {
            let inside: Vec<u64> = addresses.iter().copied().filter(|at| (area.start..area.end).contains(at)).collect();
            if inside.is_empty() {
                continue;
            }
            let names = area.file(&process).and_then(|file| self.names(&file, &area, &inside)).unwrap_or_default();
            let unnamed = area.unnamed(program);
            for (index, address) in inside.into_iter().enumerate() {
                let name = names.get(index).and_then(|name| name.as_deref());
                let category = self.table.of(area.file_name(), name);
                functions.insert(address, Function { name: frame(name.unwrap_or(&unnamed)), category });
            }
        }
        functions
    }

    /// `None` if the file has no symbols or is not an object file.
    fn names(&self, file: &Path, area: &Area, addresses: &[u64]) -> Option<Vec<Option<String>>> {
        let offsets: Vec<u64> = addresses.iter().map(|address| address - area.start + area.offset).collect();
        let mut elf = Elf::new(file);
        elf.debug_syms = false;
        let found = self.symbolizer.symbolize(&Source::Elf(elf), Input::FileOffset(&offsets)).ok()?;
        Some(found.iter().map(|one| one.as_sym().map(|symbol| symbol.name.to_string())).collect())
    }
}

/// Converts a name to a frame of a folded stack, where semicolons separate frames.
fn frame(name: &str) -> String {
    name.replace(';', ":").replace(char::is_control, "?")
}

/// An executable mapping: a line of `/proc/PID/maps`, proc_pid_maps(5).
#[derive(Debug, PartialEq)]
struct Area<'a> {
    start: u64,
    end: u64,
    offset: u64,
    inode: u64,
    path: &'a str,
}

impl Area<'_> {
    /// `None` if it is not executable.
    fn parse(line: &str) -> Option<Area<'_>> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let hexadecimal = |word| u64::from_str_radix(word, 16).ok();
        let (start, end) = (hexadecimal(start)?, hexadecimal(end)?);
        let is_executable = words.next()?.as_bytes().get(2) == Some(&b'x');
        let offset = hexadecimal(words.next()?)?;
        let inode = words.nth(1)?.parse().ok()?;
        let path = words.next().unwrap_or("").trim_start();
        is_executable.then_some(Area { start, end, offset, inode, path })
    }

    /// A readable path of the mapped file. The first one requires privileges; the
    /// others must prove to be the same file.
    fn file(&self, process: &Path) -> Option<PathBuf> {
        if !self.path.starts_with('/') {
            return None;
        }
        let mapped = process.join(format!("map_files/{:x}-{:x}", self.start, self.end));
        if fs::File::open(&mapped).is_ok() {
            return Some(mapped);
        }
        let named = process.join("root").join(self.path.trim_start_matches('/'));
        let is_same = |path: &PathBuf| fs::metadata(path).is_ok_and(|file| file.is_file() && file.ino() == self.inode);
        [named, process.join("exe")].into_iter().find(is_same)
    }

    /// The name of its code without symbols: `[nginx]`, `[vdso]`.
    fn unnamed(&self, program: &str) -> String {
        match self.file_name() {
            _ if self.path.starts_with('[') => self.path.to_owned(),
            "" => format!("[{program}]"),
            file => format!("[{file}]"),
        }
    }

    /// The name of the mapped file, without directories; empty if there is none.
    fn file_name(&self) -> &str {
        let path = self.path.strip_suffix(" (deleted)").unwrap_or(self.path);
        path.rsplit_once('/').filter(|_| self.inode != 0).map_or("", |(_, file)| file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_mappings_have_file_or_name() {
        let check = |line, expected: Option<(u64, &str)>| {
            let found = Area::parse(line).map(|area| (area.start, area.unnamed("node")));
            assert_eq!(found.as_ref().map(|(start, name)| (*start, name.as_str())), expected, "{line}");
        };
        check("1000-2000 r-xp 00001000 fd:00 7    /usr/bin/a b (deleted)", Some((0x1000, "[a b]")));
        check("7ffd033ab000-7ffd033ad000 r-xp 00000000 00:00 0    [vdso]", Some((0x7ffd_033a_b000, "[vdso]")));
        check("3000-4000 rwxp 00000000 00:00 0 ", Some((0x3000, "[node]")));
        check("3000-4000 rwxp 00000000 00:00 0    //anon", Some((0x3000, "[node]")));
        check("3000-4000 rw-p 00000000 00:00 0    [heap]", None);
        check("3000-4000 r-xp", None);
        check("", None);
        check("x", None);
    }

    #[test]
    fn own_function_is_found_and_demangled() {
        let address = own_function_is_found_and_demangled as fn() as usize as u64;
        let found = Programs::new().functions(std::process::id(), "p", &[address, 8]);
        assert!(found[&address].name.ends_with("programs::tests::own_function_is_found_and_demangled"), "{found:?}");
        assert_eq!(found.len(), 1, "address 8 is in no code");
        assert!(Programs::new().functions(u32::MAX, "p", &[address]).is_empty());
    }

    #[test]
    fn frame_name_has_no_separator() {
        assert_eq!(frame("<[u8; 4] as A>::b\n"), "<[u8: 4] as A>::b?");
    }
}
