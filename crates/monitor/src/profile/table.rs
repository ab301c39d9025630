//! The tables of kernel and program functions, `kernel.txt` and `program.txt`: parsed once, and looked up by name.

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
            _ if name.is_empty() => Err(format!("{pattern}: matches every name")),
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

/// The table of program functions.
#[derive(Debug, Default)]
pub(crate) struct ProgramTable {
    /// Function to category.
    functions: Patterns,
    /// Shared library to the category of all of its code.
    libraries: HashMap<&'static str, &'static str>,
}

impl ProgramTable {
    /// The built-in table.
    pub(crate) fn new() -> ProgramTable {
        // A test parses it, so it is valid.
        ProgramTable::parse(include_str!("program.txt")).unwrap_or_default()
    }

    fn parse(text: &'static str) -> Result<ProgramTable, String> {
        let mut table = ProgramTable::default();
        let mut section = ("", "");
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if let Some(name) = line.strip_prefix('[') {
                let name = name.strip_suffix(']').ok_or_else(|| format!("{line}: no `]`"))?;
                section = name.split_once(' ').ok_or_else(|| format!("{line}: no category"))?;
                continue;
            }
            for pattern in line.split_whitespace() {
                match section {
                    ("category", name) => table.functions.add(pattern, name)?,
                    ("library", name) => drop(table.libraries.insert(pattern, name)),
                    (kind, _) => return Err(format!("[{kind}]: unexpected {pattern}")),
                }
            }
        }
        Ok(table)
    }

    /// The category of a function in the file of this name; `None` if it is not known.
    pub(crate) fn of(&self, file: &str, function: Option<&str>) -> Option<&'static str> {
        let library = file.split_once(".so").and_then(|(name, _)| self.libraries.get(name)).copied();
        library.or_else(|| self.functions.of(function?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cryptography_of_programs_is_known() {
        let table = ProgramTable::parse(include_str!("program.txt")).unwrap();
        let check = |file: &str, function: Option<&str>, expected: Option<&str>| {
            assert_eq!(table.of(file, function), expected, "{function:?} in {file}");
        };
        let crypto = Some("crypto");
        for function in [
            "aws_lc_0_35_0_EVP_DigestSign",
            "aws_lc_rs::aead::LessSafeKey::seal_in_place",
            "<aws_lc_rs::agreement::EphemeralPrivateKey as core::fmt::Debug>::fmt",
            "ring_core_0_17_14__x25519_scalar_mult_generic_masked",
            "EVP_PKEY_sign",
            "RSA_private_encrypt",
            "EC_POINT_mul",
            "AES_encrypt",
            "aes_gcm_enc_update_vaes_avx2",
            "chacha20_poly1305_seal",
            "sha256_block_data_order",
            "x25519_scalar_mult",
            "Lcurve25519_x25519_scalarloop",
            "mlkem768_decaps",
            "__gmpn_mul_1",
        ] {
            check("amped", Some(function), crypto);
        }
        for (file, function) in
            [("libcrypto.so.3", Some("ERR_put_error")), ("libcrypto.so.3", None), ("libgmp.so.10.4.1", None)]
        {
            check(file, function, crypto);
        }
        // A file of another name without symbols; the C library's name services; TLS above cryptography.
        for (file, function) in [
            ("nginx", None),
            ("libnss_files.so.2", None),
            ("libssl.so.3", Some("SSL_read")),
            ("amped", Some("rustls::client::ClientConnection::new")),
            ("amped", Some("memcpy")),
            ("", Some("")),
        ] {
            check(file, function, None);
        }
        for (text, why) in [("x", "unexpected"), ("[category]\nx", "no category"), ("[category a\nx", "no `]`")] {
            assert!(ProgramTable::parse(text).unwrap_err().contains(why), "{text}");
        }
    }

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
            ("[category a]\n_*", "every name"),
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
