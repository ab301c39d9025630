//! Several disks, each as slow as is wanted: file systems in files, behind loop devices.
//!
//! A control group limits each device by itself, so what one reader at a time gets is the bandwidth of one, and several
//! readers get that of several: as from an array, or from a disk across a network, which has many requests under way. The
//! files are read past the page cache (`--direct-io`), or the kernel would hold everything twice.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{Outcome, output, program, run as run_command};

/// The folder of each disk below the root of the site; of a single one it is the site itself.
pub(super) fn folders(site: &Path, count: usize) -> Vec<PathBuf> {
    if count == 1 { vec![site.to_owned()] } else { (0..count).map(|n| site.join(folder(n))).collect() }
}

/// The name of a disk's folder.
pub(super) fn folder(number: usize) -> String {
    format!("disk{number}")
}

/// Makes disks of so many bytes, whose files lie in `images`, and mounts them below `site`. Until [`release`].
pub(super) fn make(images: &Path, site: &Path, count: usize, bytes: u64) -> Outcome {
    for (number, folder) in folders(site, count).iter().enumerate() {
        let image = images.join(format!("disk{number}.img"));
        let made = fs::create_dir_all(folder)
            .and_then(|()| fs::File::create(&image)?.set_len(bytes.next_multiple_of(1 << 20)));
        made.map_err(|error| format!("cannot make {}: {error}", image.display()))?;
        // Nothing is to be written while others read.
        let features = ["-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=0"];
        run_command(program("mkfs.ext4").args(features).arg(&image))?;
        let device = output(program("losetup").args(["--find", "--show", "--direct-io=on"]).arg(&image))?;
        run_command(program("mount").args(["-o", "noatime", device.trim()]).arg(folder))?;
    }
    Ok(())
}

/// Takes down what was made of files in `images`; nothing if there is nothing.
pub(super) fn release(images: &Path) {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    for device in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let backing = fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
        if !Path::new(backing.trim()).starts_with(images) {
            continue;
        }
        let device = Path::new("/dev").join(device.file_name()).to_string_lossy().into_owned();
        let mounted = mounts.lines().any(|line| line.starts_with(&format!("{device} ")));
        let unmounted = if mounted { run_command(program("umount").arg(&device)) } else { Ok(()) };
        if let Err(text) = unmounted.and_then(|()| run_command(program("losetup").args(["--detach", &device]))) {
            eprintln!("xtask: {text}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::files::disk_of;
    use super::*;

    #[test]
    fn disks_are_devices_of_their_own_until_they_are_released() {
        let folder = crate::command::target_dir().join(format!("disks-test-{}", std::process::id()));
        let site = folder.join("site");
        fs::create_dir_all(&site).unwrap();
        let made = make(&folder, &site, 2, 8 << 20);
        let numbers: Vec<_> = folders(&site, 2).iter().map(|folder| disk_of(folder)).collect();
        release(&folder);
        let after: Vec<_> = folders(&site, 2).iter().map(|folder| disk_of(folder)).collect();
        let below = disk_of(&folder);
        fs::remove_dir_all(&folder).unwrap();
        made.unwrap();
        assert!(numbers[0] != numbers[1] && numbers[0] != below, "{numbers:?}");
        assert_eq!(after, [below.clone(), below]);
    }
}
