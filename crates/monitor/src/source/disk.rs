//! `/proc/diskstats` (the kernel's `Documentation/admin-guide/iostats.rst`): what each block device did.

use serde::{Deserialize, Serialize};

/// One block device, counted since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// Its name, as in `/dev`.
    pub name: String,
    /// Reads that were completed.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Milliseconds that reads took, all together.
    pub read_ms: u64,
    /// Writes that were completed.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Milliseconds that writes took, all together.
    pub write_ms: u64,
    /// Under way at this moment.
    pub in_flight: u64,
    /// Milliseconds with at least one under way.
    pub busy_ms: u64,
}

impl Disk {
    /// Reads `/proc/diskstats`: the devices that ever did something and that `is_disk` calls whole, as parts would be counted
    /// twice.
    pub fn parse(text: &str, mut is_disk: impl FnMut(&str) -> bool) -> Vec<Disk> {
        let disk = |line: &str| {
            let mut fields = line.split_ascii_whitespace().skip(2);
            let name = fields.next()?;
            let mut numbers = [0_u64; 10];
            for number in &mut numbers {
                *number = fields.next()?.parse().ok()?;
            }
            let [reads, _, sectors_read, read_ms, writes, _, sectors_written, write_ms, in_flight, busy_ms] = numbers;
            // A sector is 512 bytes here, whatever the device has.
            let (read_bytes, write_bytes) = (sectors_read.wrapping_mul(512), sectors_written.wrapping_mul(512));
            let name = (reads | writes != 0).then(|| name.to_owned())?;
            Some(Disk { name, reads, read_bytes, read_ms, writes, write_bytes, write_ms, in_flight, busy_ms })
        };
        text.lines().filter_map(disk).filter(|disk| is_disk(&disk.name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
 254       0 vda 4655410 207401 234915258 4390666 1233973 922513 1583882288 6879541 3 1221324 12221103 1547005 251 1
 254       1 vda1 4655410 207401 234915258 4390666 1233973 922513 1583882288 6879541 0 1221324 12221103
";

    #[test]
    fn whole_devices_that_did_something() {
        let disks = Disk::parse(TEXT, |name| name != "vda1");
        let expected = Disk {
            name: "vda".to_owned(),
            reads: 4_655_410,
            read_bytes: 234_915_258 * 512,
            read_ms: 4_390_666,
            writes: 1_233_973,
            write_bytes: 1_583_882_288 * 512,
            write_ms: 6_879_541,
            in_flight: 3,
            busy_ms: 1_221_324,
        };
        assert_eq!(disks, [expected]);
        assert_eq!(Disk::parse(TEXT, |_| true).len(), 2);
        assert_eq!(Disk::parse("254 0 vda 1 2", |_| true), []);
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_stop(text in "\\PC{0,100}", cut in 0..TEXT.len()) {
            Disk::parse(&text, |_| true);
            Disk::parse(&TEXT[..cut], |_| true);
        }
    }
}
