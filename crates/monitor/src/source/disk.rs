//! Parses `/proc/diskstats` (the kernel's `Documentation/admin-guide/iostats.rst`): the activity of block devices.

use crate::figure::figures;

figures! {
    /// A block device, since boot.
    Disk "disk" {
        /// Name, as in `/dev`.
        device: String,
    }
    /// Reads completed.
    reads: N => Counter Things,
    /// Bytes read.
    read: N => Counter Bytes as "read",
    /// Time that reads took, in total.
    read_time: N => Counter Seconds,
    /// Writes completed.
    writes: N => Counter Things,
    /// Bytes written.
    written: N => Counter Bytes as "written",
    /// Time that writes took, in total.
    write_time: N => Counter Seconds,
    /// Requests in flight.
    in_flight: N => Gauge Things,
    /// Time with at least one request in flight.
    busy: N => Counter Seconds as "busy",
}

impl Disk {
    /// Parses `/proc/diskstats`: devices with any activity that `is_disk` accepts as whole
    /// disks, as partitions would be counted twice.
    pub fn parse(text: &str, mut is_disk: impl FnMut(&str) -> bool) -> Vec<Disk> {
        let disk = |line: &str| {
            let mut fields = line.split_ascii_whitespace().skip(2);
            let device = fields.next()?;
            let mut numbers = [0_u64; 10];
            for number in &mut numbers {
                *number = fields.next()?.parse().ok()?;
            }
            let [reads, _, sectors_read, read_ms, writes, _, sectors_written, write_ms, in_flight, busy_ms] = numbers;
            let device = (reads | writes != 0).then(|| device.to_owned())?;
            // A sector is 512 bytes here, regardless of the device.
            let (read, written) = (sectors_read.wrapping_mul(512), sectors_written.wrapping_mul(512));
            let [read_time, write_time, busy] = [read_ms, write_ms, busy_ms].map(|ms| ms.saturating_mul(1_000_000));
            Some(Disk { device, reads, read, read_time, writes, written, write_time, in_flight, busy })
        };
        text.lines().filter_map(disk).filter(|disk| is_disk(&disk.device)).collect()
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
    fn active_whole_devices_are_listed() {
        let disks = Disk::parse(TEXT, |name| name != "vda1");
        let expected = Disk {
            device: "vda".to_owned(),
            reads: 4_655_410,
            read: 234_915_258 * 512,
            read_time: 4_390_666_000_000,
            writes: 1_233_973,
            written: 1_583_882_288 * 512,
            write_time: 6_879_541_000_000,
            in_flight: 3,
            busy: 1_221_324_000_000,
        };
        assert_eq!(disks, [expected]);
        assert_eq!(Disk::parse(TEXT, |_| true).len(), 2);
        assert_eq!(Disk::parse("254 0 vda 1 2", |_| true), []);
    }

    proptest::proptest! {
        #[test]
        fn random_text_does_not_panic(text in "\\PC{0,100}", cut in 0..TEXT.len()) {
            Disk::parse(&text, |_| true);
            Disk::parse(&TEXT[..cut], |_| true);
        }
    }
}
