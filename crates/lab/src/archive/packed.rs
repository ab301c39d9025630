//! An archive in one file, `archive.tar.zst`: the input of its report, small enough to be kept beside the sources.
//!
//! It includes the raw records of the runs (samples, histograms, logs) if the whole is small. Else `omitted.json` lists them
//! with size and hash, and a report says that they are missing. The same archive always yields the same bytes.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use amped_measure::Failure;
use serde::Serialize;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::name;

/// A packed archive that includes raw records has at most this many bytes.
const WITH_RECORDS_MAX: usize = 256 << 10;

/// The level of zstd above which more time saves no bytes.
const LEVEL: i32 = 19;

/// The list of omitted files, in a packed archive.
const OMITTED: &str = "omitted.json";

/// The files of a run from which figures and claims are computed.
const OF_REPORT: [&str; 7] =
    [name::RUN, name::HOSTS, name::LOAD, name::WARM_UP, name::BESIDE, name::PROFILE, name::SERVER_CONFIG];

/// A file that is not in a packed archive.
#[derive(Debug, Serialize)]
struct Omitted {
    path: String,
    bytes: u64,
    /// SHA-256, in hexadecimal.
    sha256: String,
}

/// Packs the archive in `dir` into `file`, which is replaced.
///
/// # Errors
/// If a file cannot be read or written.
pub(crate) fn pack(dir: &Path, file: &Path) -> Result<(), Failure> {
    let packed = packed(dir, WITH_RECORDS_MAX).map_err(Failure::io(format_args!("pack {}", dir.display())))?;
    let beside = file.with_extension("new");
    fs::write(&beside, packed)
        .and_then(|()| fs::rename(&beside, file))
        .map_err(Failure::io(format_args!("write {}", file.display())))
}

/// Unpacks `file` into a temporary directory.
///
/// # Errors
/// If it cannot be read, or is damaged.
pub(crate) fn unpack(file: &Path) -> Result<TempDir, Failure> {
    let unpack = || {
        let dir = tempfile::tempdir()?;
        let archive = zstd::Decoder::new(File::open(file)?)?;
        tar::Archive::new(archive).unpack(dir.path()).map(|()| dir)
    };
    unpack().map_err(Failure::io(format_args!("unpack {}", file.display())))
}

fn packed(dir: &Path, with_records_max: usize) -> io::Result<Vec<u8>> {
    let mut files = Vec::new();
    list(dir, Path::new(""), &mut files)?;
    let whole = compressed(dir, &files, None)?;
    if whole.len() <= with_records_max {
        return Ok(whole);
    }
    let (kept, omitted): (Vec<PathBuf>, Vec<PathBuf>) = files.into_iter().partition(|path| is_of_report(path));
    let omitted = omitted.iter().map(|path| Omitted::of(dir, path)).collect::<io::Result<Vec<_>>>()?;
    compressed(dir, &kept, Some(&serde_json::to_vec_pretty(&omitted)?))
}

/// Appends the files of the archive under `dir/path`, in order. Omits reports, which can be generated again, and runs
/// in progress.
fn list(dir: &Path, path: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut entries = fs::read_dir(dir.join(path))?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        let path = path.join(&name);
        if name.as_encoded_bytes().starts_with(b".") || path == Path::new(name::REPORT) {
            continue;
        }
        if kind.is_dir() {
            list(dir, &path, files)?;
        } else if kind.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

fn is_of_report(path: &Path) -> bool {
    !path.starts_with(name::RUNS) || path.file_name().is_some_and(|name| OF_REPORT.iter().any(|known| name == *known))
}

fn compressed(dir: &Path, files: &[PathBuf], omitted: Option<&[u8]>) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(zstd::Encoder::new(Vec::new(), LEVEL)?);
    for path in files {
        append(&mut archive, path, &fs::read(dir.join(path))?)?;
    }
    if let Some(omitted) = omitted {
        append(&mut archive, Path::new(OMITTED), omitted)?;
    }
    archive.into_inner()?.finish()
}

/// Appends a file without owner, mode and time, which differ between machines.
fn append(archive: &mut tar::Builder<impl io::Write>, path: &Path, content: &[u8]) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    archive.append_data(&mut header, path, content)
}

impl Omitted {
    fn of(dir: &Path, path: &Path) -> io::Result<Omitted> {
        let content = fs::read(dir.join(path))?;
        let digest = Sha256::digest(&content);
        Ok(Omitted {
            path: path.display().to_string(),
            bytes: content.len() as u64,
            sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::Archive;
    use crate::report::report;
    use crate::report::tests::{archive, store};

    #[test]
    fn packed_archive_yields_same_report() {
        let folder = tempfile::tempdir().unwrap();
        store(&archive(&folder.path().join("a"), 2));
        let file = folder.path().join("archive.tar.zst");
        fs::write(folder.path().join("a/report.html"), "drawn before").unwrap();
        pack(&folder.path().join("a"), &file).unwrap();
        let first = fs::read(&file).unwrap();
        pack(&folder.path().join("a"), &file).unwrap();
        assert!(first == fs::read(&file).unwrap(), "the same archive yields the same bytes");
        let unpacked = Archive::open(&file).unwrap();
        assert!(!unpacked.dir.join(name::REPORT).exists());
        let whole = report(&Archive::open(&folder.path().join("a")).unwrap());
        assert_eq!(report(&unpacked).html, whole.html);
    }

    #[test]
    fn large_records_are_omitted_and_listed() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("a");
        store(&archive(&dir, 2));
        let whole = report(&Archive::open(&dir).unwrap());
        let run = dir.join(name::RUNS).join(&Archive::open(&dir).unwrap().runs[0].plan.id);
        fs::write(run.join(name::SERVER_LOG), "abc").unwrap();
        let file = folder.path().join("b.tar.zst");
        fs::write(&file, packed(&dir, 0).unwrap()).unwrap();
        let unpacked = Archive::open(&file).unwrap();
        let listed = fs::read_to_string(unpacked.dir.join(OMITTED)).unwrap();
        // FIPS 180-2, B.1.
        assert!(listed.contains("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"), "{listed}");
        assert!(listed.contains("server.log") && listed.contains(name::MONITOR), "{listed}");
        let rendered = report(&unpacked);
        assert!(rendered.html.contains("no monitor.zst of "), "the page lists missing files");
        assert_eq!(rendered.figures, whole.figures);
        assert_eq!(format!("{:?}", rendered.summary.claims), format!("{:?}", whole.summary.claims));
    }

    #[test]
    fn damaged_file_is_reported_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("b.tar.zst");
        store(&archive(&folder.path().join("a"), 2));
        let whole = packed(&folder.path().join("a"), usize::MAX).unwrap();
        for damaged in [&b"no archive"[..], &whole[..whole.len() / 2]] {
            fs::write(&file, damaged).unwrap();
            let error = Archive::open(&file).unwrap_err().to_string();
            assert!(error.contains("cannot unpack") && error.contains("b.tar.zst"), "{error}");
        }
    }
}
