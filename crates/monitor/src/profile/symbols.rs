//! Parses `/proc/kallsyms`: finds the kernel function of an address.

use std::fs;

use amped_measure::Failure;

/// The kernel's functions by address.
#[derive(Debug)]
pub(crate) struct Symbols {
    text: String,
    /// Start address and position of the name in the text, ascending by address.
    functions: Vec<(u64, u32, u32)>,
}

impl Symbols {
    /// Reads the file: 120,000 lines, 0.1 s, once.
    pub(crate) fn read() -> Result<Symbols, Failure> {
        let text = fs::read_to_string("/proc/kallsyms").map_err(Failure::io("read /proc/kallsyms"))?;
        Symbols::parse(text).ok_or_else(|| {
            Failure::failed(
                "/proc/kallsyms hides the addresses of the kernel's functions: run as root, give CAP_SYSLOG \
                 (`setcap cap_perfmon,cap_syslog+ep` on the program), or `sysctl kernel.kptr_restrict=0`",
            )
        })
    }

    /// `None` if it has no addresses.
    fn parse(text: String) -> Option<Symbols> {
        let mut functions = Vec::new();
        let mut at = 0;
        for line in text.split_inclusive('\n') {
            let begin = at;
            at += line.len();
            let mut words = line.split_ascii_whitespace();
            let (Some(address), Some(kind), Some(name)) = (words.next(), words.next(), words.next()) else { continue };
            let Ok(address) = u64::from_str_radix(address, 16) else { continue };
            // Code only, without the padding before a function.
            if !matches!(kind, "t" | "T" | "w" | "W") || address == 0 || name.starts_with("__pfx_") {
                continue;
            }
            let start = begin + (name.as_ptr() as usize - line.as_ptr() as usize);
            functions.push((address, u32::try_from(start).ok()?, u32::try_from(name.len()).ok()?));
        }
        functions.sort_by_key(|(address, ..)| *address);
        // Any of several names for one address will do.
        functions.dedup_by_key(|(address, ..)| *address);
        (!functions.is_empty()).then_some(Symbols { text, functions })
    }

    #[cfg(test)]
    pub(crate) fn for_tests(text: &str) -> Symbols {
        Symbols::parse(text.to_owned()).unwrap()
    }

    /// The number and name of the function that contains this address.
    pub(crate) fn find(&self, address: u64) -> Option<(u32, &str)> {
        let at = self.functions.partition_point(|(begin, ..)| *begin <= address).checked_sub(1)?;
        Some((at as u32, self.name(at as u32)))
    }

    /// The name of the function with this number from `find`.
    pub(crate) fn name(&self, number: u32) -> &str {
        self.functions
            .get(number as usize)
            .map_or("", |(_, start, length)| self.text.get(*start as usize..(start + length) as usize).unwrap_or(""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_resolves_to_preceding_function() {
        let text = "ffff10 T first\nffff40 D data\nffff30 t third\nffff20 t __pfx_x\nffff20 T second\t[module]\n\
            ffff30 T alias\nno line\nxyz T bad\n";
        let symbols = Symbols::parse(text.to_owned()).unwrap();
        let check = |address, expected: Option<&str>| {
            assert_eq!(symbols.find(address).map(|(_, name)| name), expected, "{address:x}");
        };
        check(0xff_ff0f, None);
        check(0xff_ff10, Some("first"));
        check(0xff_ff2f, Some("second"));
        check(0xff_ffff, Some("third"));
        let (number, name) = symbols.find(0xff_ff20).unwrap();
        assert_eq!(symbols.name(number), name);
        assert_eq!(symbols.name(99), "");
    }

    #[test]
    fn hidden_addresses_resolve_to_nothing() {
        assert!(Symbols::parse("0000000000000000 T _text\n0000000000000000 T x\n".to_owned()).is_none());
        assert!(Symbols::parse(String::new()).is_none());
    }

    proptest::proptest! {
        #[test]
        fn random_text_does_not_panic(text in "([0-9a-f]{0,17} [tTD]? \\PC{0,9}\n){0,9}", address: u64) {
            if let Some(symbols) = Symbols::parse(text) {
                symbols.find(address);
            }
        }
    }
}
