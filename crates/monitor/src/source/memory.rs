//! `/proc/meminfo` and `/proc/vmstat` (proc_meminfo(5), proc_vmstat(5)): what memory holds, and what was paged.

use serde::{Deserialize, Serialize};

use super::number_after;

/// What memory holds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// All there is.
    pub total_bytes: u64,
    /// Unused.
    pub free_bytes: u64,
    /// What programs could have without swapping.
    pub available_bytes: u64,
    /// The page cache.
    pub cached_bytes: u64,
    /// Of that, what is to be written.
    pub dirty_bytes: u64,
}

impl Memory {
    /// Reads `/proc/meminfo`.
    pub fn parse(text: &str) -> Option<Memory> {
        let field = |name| Some(text.lines().find_map(|line| number_after(line, name))?.saturating_mul(1024));
        Some(Memory {
            total_bytes: field("MemTotal")?,
            free_bytes: field("MemFree")?,
            available_bytes: field("MemAvailable")?,
            cached_bytes: field("Cached")?,
            dirty_bytes: field("Dirty")?,
        })
    }
}

/// What was paged since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paging {
    /// Bytes read from block devices.
    pub in_bytes: u64,
    /// Bytes written to them.
    pub out_bytes: u64,
    /// Pages brought back from swap.
    pub swap_in_pages: u64,
    /// Pages put there.
    pub swap_out_pages: u64,
    /// Page faults.
    pub faults: u64,
    /// Page faults that waited for a disk.
    pub major_faults: u64,
}

impl Paging {
    /// Reads `/proc/vmstat`.
    pub fn parse(text: &str) -> Option<Paging> {
        let mut paging = Paging::default();
        let mut wanted = [
            ("pgpgin", &mut paging.in_bytes, 1024),
            ("pgpgout", &mut paging.out_bytes, 1024),
            ("pswpin", &mut paging.swap_in_pages, 1),
            ("pswpout", &mut paging.swap_out_pages, 1),
            ("pgfault", &mut paging.faults, 1),
            ("pgmajfault", &mut paging.major_faults, 1),
        ];
        let mut found = 0;
        for line in text.lines() {
            let Some((name, number)) = line.split_once(' ') else { continue };
            if let Some((_, place, unit)) = wanted.iter_mut().find(|(wanted, ..)| *wanted == name) {
                **place = number.parse::<u64>().ok()?.wrapping_mul(*unit);
                found += 1;
            }
        }
        // Without swap in the kernel those two lines are missing.
        (found >= 4).then_some(paging)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory() {
        let text = "MemTotal:       24684096 kB\nMemFree:        20369060 kB\nMemAvailable:   23333880 kB\n\
            Buffers:           27880 kB\nCached:          3146944 kB\nSwapCached:            0 kB\nDirty:   5556 kB\n";
        let memory = Memory::parse(text).unwrap();
        assert_eq!((memory.total_bytes, memory.cached_bytes), (24_684_096 * 1024, 3_146_944 * 1024));
        assert_eq!((memory.free_bytes, memory.dirty_bytes), (20_369_060 * 1024, 5_556 * 1024));
        for bad in ["", "MemTotal: 1 kB", "MemTotal:"] {
            assert_eq!(Memory::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn paging() {
        let text = "nr_free_pages 5\npgpgin 117457629\npgpgout 791941144\npswpin 1\npswpout 2\npgalloc_normal 9\n\
            pgfault 495510604\npgmajfault 146054\n";
        let expected = Paging {
            in_bytes: 117_457_629 * 1024,
            out_bytes: 791_941_144 * 1024,
            swap_in_pages: 1,
            swap_out_pages: 2,
            faults: 495_510_604,
            major_faults: 146_054,
        };
        assert_eq!(Paging::parse(text), Some(expected));
        for bad in ["", "pgfault 1\n", "pgpgin x\npgpgout 1\npgfault 1\npgmajfault 1"] {
            assert_eq!(Paging::parse(bad), None, "{bad:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_stop(text in "((pgpgin|pgfault|MemTotal:|Dirty:|\\PC{0,5}) ?[0-9]{0,25}( kB)?\n){0,9}") {
            Memory::parse(&text);
            Paging::parse(&text);
        }
    }
}
