//! Parses `/proc/meminfo` and `/proc/vmstat` (proc_meminfo(5), proc_vmstat(5)): memory use and paging.

use crate::figure::figures;

figures! {
    /// Memory use.
    Memory "memory"
    /// Total memory of the machine.
    total: Option<N> => Gauge Bytes "MemTotal",
    /// Unused memory.
    free: Option<N> => Gauge Bytes "MemFree",
    /// Memory available to programs without swapping.
    available: Option<N> => Gauge Bytes "MemAvailable" as "available",
    /// Page cache.
    cached: Option<N> => Gauge Bytes "Cached",
    /// Memory that must be written to disks.
    dirty: Option<N> => Gauge Bytes "Dirty",
}

impl Memory {
    /// Parses `/proc/meminfo`.
    pub fn parse(text: &str) -> Memory {
        let mut memory = Memory::default();
        for (name, number) in text.lines().filter_map(|line| line.split_once(':')) {
            if let Some(kib) = number.split_ascii_whitespace().next().and_then(|number| number.parse::<u64>().ok()) {
                memory.take(name, kib.saturating_mul(1024));
            }
        }
        memory
    }
}

figures! {
    /// Paging since boot.
    Paging ""
    /// Bytes read from block devices.
    paged_in: Option<N> => Counter Bytes "pgpgin",
    /// Bytes written to block devices.
    paged_out: Option<N> => Counter Bytes "pgpgout",
    /// Pages read from swap.
    swapped_in_pages: Option<N> => Counter Things "pswpin",
    /// Pages written to swap.
    swapped_out_pages: Option<N> => Counter Things "pswpout",
    /// Page faults.
    page_faults: Option<N> => Counter Things "pgfault" as "faults",
    /// Page faults that waited for a disk.
    major_page_faults: Option<N> => Counter Things "pgmajfault" as "major",
}

impl Paging {
    /// Parses `/proc/vmstat`.
    pub fn parse(text: &str) -> Paging {
        let mut paging = Paging::default();
        for (name, number) in text.lines().filter_map(|line| line.split_once(' ')) {
            // These two are in KiB; the others are pages and events.
            let unit = if matches!(name, "pgpgin" | "pgpgout") { 1024 } else { 1 };
            number.parse::<u64>().into_iter().for_each(|number| paging.take(name, number.wrapping_mul(unit)));
        }
        paging
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_parsed() {
        let text = "MemTotal:       24684096 kB\nMemFree:        20369060 kB\nMemAvailable:   23333880 kB\n\
            Buffers:           27880 kB\nCached:          3146944 kB\nSwapCached:            0 kB\nDirty:   5556 kB\n";
        let expected = Memory {
            total: Some(24_684_096 * 1024),
            free: Some(20_369_060 * 1024),
            available: Some(23_333_880 * 1024),
            cached: Some(3_146_944 * 1024),
            dirty: Some(5_556 * 1024),
        };
        assert_eq!(Memory::parse(text), expected);
        for bad in ["", "MemTotal: x kB", "MemTotal:"] {
            assert_eq!(Memory::parse(bad), Memory::default(), "{bad:?}");
        }
    }

    #[test]
    fn vmstat_is_parsed() {
        // A kernel without swap lacks those two lines.
        let text =
            "nr_free_pages 5\npgpgin 117457629\npgpgout x\npgalloc_normal 9\npgfault 495510604\npgmajfault 146054\n";
        let expected = Paging {
            paged_in: Some(117_457_629 * 1024),
            page_faults: Some(495_510_604),
            major_page_faults: Some(146_054),
            ..Paging::default()
        };
        assert_eq!(Paging::parse(text), expected);
    }

    proptest::proptest! {
        #[test]
        fn random_text_does_not_panic(text in "((pgpgin|pgfault|MemTotal:|Dirty:|\\PC{0,5}) ?[0-9]{0,25}( kB)?\n){0,9}") {
            Memory::parse(&text);
            Paging::parse(&text);
        }
    }
}
