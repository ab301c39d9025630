//! The table of kernel functions, `kernel.txt`: parsed once, and looked up by name.

use std::collections::HashMap;

/// Patterns of one kind with their meanings.
#[derive(Debug, Default)]
pub(crate) struct Patterns {
    exact: HashMap<&'static str, &'static str>,
    prefixes: HashMap<&'static str, &'static str>,
}

impl Patterns {
    /// The meaning of the longest matching pattern.
    pub(crate) fn of(&self, function: &str) -> Option<&'static str> {
        let name = bare(function);
        self.exact
            .get(name)
            .or_else(|| {
                name.char_indices().rev().find_map(|(at, letter)| self.prefixes.get(&name[..at + letter.len_utf8()]))
            })
            .copied()
    }

    fn add(&mut self, pattern: &'static str, meaning: &'static str) -> Result<(), String> {
        let (into, name) = match pattern.strip_suffix('*') {
            Some(prefix) => (&mut self.prefixes, prefix),
            None => (&mut self.exact, pattern),
        };
        let name = name.trim_start_matches('_');
        // The same name with other underscores may occur again, with the same meaning.
        match into.insert(name, meaning) {
            Some(before) if before != meaning => Err(format!("{pattern}: both `{before}` and `{meaning}`")),
            _ if name.is_empty() => Err(format!("{pattern}: fits everything")),
            _ => Ok(()),
        }
    }
}

/// The name without leading underscores and compiler suffixes.
fn bare(function: &str) -> &str {
    let name = function.trim_start_matches('_');
    name.split_once('.').map_or(name, |(name, _)| name)
}

/// The whole table.
#[derive(Debug, Default)]
pub(crate) struct KernelTable {
    /// Function to category; `caller` is [`CALLER`].
    pub(crate) categories: Patterns,
    /// Functions that enter a context: to its kind, or for a soft interrupt to `softirq`.
    pub(crate) entries: Patterns,
    /// Functions that a soft interrupt runs, to its kind.
    pub(crate) softirqs: Patterns,
    /// Functions that a system call continues with, to its name.
    pub(crate) syscalls: Patterns,
    /// Kernel names of system calls that differ from their usual names, to these.
    pub(crate) renamed: Patterns,
}

/// The category of functions that work on behalf of their caller.
pub(crate) const CALLER: &str = "caller";

impl KernelTable {
    /// The built-in table.
    pub(crate) fn new() -> KernelTable {
        // A test parses it, so it is valid.
        KernelTable::parse(include_str!("kernel.txt")).unwrap_or_default()
    }

    fn parse(text: &'static str) -> Result<KernelTable, String> {
        let mut table = KernelTable::default();
        let mut section = "";
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if let Some(name) = line.strip_prefix('[') {
                section = name.strip_suffix(']').ok_or_else(|| format!("{line}: no `]`"))?;
                continue;
            }
            for pattern in line.split_whitespace() {
                match (section, section.split_once(' '), pattern.split_once('=')) {
                    ("syscall", _, Some((function, name))) => table.syscalls.add(function, name)?,
                    ("renamed", _, Some((function, name))) => table.renamed.add(function, name)?,
                    ("caller", _, None) => table.categories.add(pattern, CALLER)?,
                    ("interrupt" | "fault" | "softirq" | "entry" | "kthread" | "idle", _, None) => {
                        table.entries.add(pattern, section)?;
                    }
                    (_, Some(("category", name)), None) => table.categories.add(pattern, name)?,
                    (_, Some(("softirq", kind)), None) => table.softirqs.add(pattern, kind)?,
                    _ => return Err(format!("[{section}]: unexpected {pattern}")),
                }
            }
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_table_is_valid() {
        let table = KernelTable::parse(include_str!("kernel.txt")).unwrap();
        assert!(table.categories.prefixes.len() > 200);
    }

    #[test]
    fn function_names_match_category() {
        let table = KernelTable::new();
        let check = |function: &str, expected: Option<&str>| {
            assert_eq!(table.categories.of(function), expected, "{function}");
        };
        check("tcp_sendmsg_locked", Some("tcp/ip and sockets"));
        check("__tcp_push_pending_frames", Some("tcp/ip and sockets"));
        check("tcp_v4_rcv.cold", Some("tcp/ip and sockets"));
        check("__alloc_skb", Some("low-level network"));
        check("ext4_file_read_iter", Some("low-level file system"));
        check("filemap_read", Some("high-level file system"));
        check("rep_movs_alternative", Some("copying"));
        check("_raw_spin_lock_irqsave", Some("locking"));
        check("_raw_spin_unlock_irqrestore", Some(CALLER));
        check("___slab_alloc", Some("memory"));
        check("psi_group_change", Some("scheduling"));
        check("hrtimer_start_range_ns", Some("timers"));
        check("do_syscall_64", Some("entry and exit"));
        check("qqq_unheard_of", None);
        check("", None);
    }

    #[test]
    fn invalid_table_is_reported() {
        for (text, why) in [
            ("x", "unexpected"),
            ("[category a\nx", "no `]`"),
            ("[category a]\nx\n[category b]\n_x", "both"),
            ("[category a]\n_*", "everything"),
            ("[syscall]\nx", "unexpected"),
            ("[softirq a]\nx=y", "unexpected"),
        ] {
            let error = KernelTable::parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn random_name_does_not_panic(name in "\\PC{0,30}") {
            KernelTable::new().categories.of(&name);
        }
    }
}
