//! The files that a configuration includes: `include = ["sites/*.toml"]`.
//!
//! `mod` calls this for the main file; `read` then parses all texts and appends the sites of the included files. Only the
//! last component of a path is a pattern, and included files include no others, so there is no recursion and no cycle.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use amped_core::glob::Glob;

use super::error::{Findings, Source};
use super::read;

/// Reads a configuration file.
pub(super) fn text_of(path: &Path) -> io::Result<String> {
    String::from_utf8(std::fs::read(path)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::new(io::ErrorKind::InvalidData, format!("it is not UTF-8 text, at byte {at}"))
    })
}

/// Returns the main file and those that it includes, in the order of `include` and then of their names, each once. Paths
/// are relative to `folder`. All are added to `findings`.
pub(super) fn sources(main: Source, folder: &Path, findings: &mut Findings) -> Vec<Arc<Source>> {
    let patterns = read::includes(&main.text);
    let shown = Path::new(&main.name).parent().map_or_else(PathBuf::new, Path::to_path_buf);
    let mut end = main.end();
    let mut sources = vec![Arc::new(main)];
    findings.add(Arc::clone(&sources[0]));
    let mut seen: Vec<PathBuf> = Vec::new();
    for (span, pattern) in patterns {
        for path in paths(&pattern, folder, &span, findings) {
            if seen.contains(&path) {
                continue;
            }
            let name = shown.join(&path).display().to_string();
            match text_of(&folder.join(&path)) {
                Ok(text) => {
                    let source = Arc::new(Source { name, text, start: end });
                    end = source.end();
                    findings.add(Arc::clone(&source));
                    sources.push(source);
                }
                Err(reason) => unreadable(&name, &reason, span.clone(), findings),
            }
            seen.push(path);
        }
    }
    sources
}

/// Returns the paths that an element of `include` stands for, in the order of their names.
fn paths(pattern: &str, folder: &Path, span: &Range<usize>, findings: &mut Findings) -> Vec<PathBuf> {
    let (directory, name) = pattern.split_at(pattern.rfind('/').map_or(0, |slash| slash + 1));
    if name.is_empty() {
        let help = "name files, such as \"sites/*.toml\"";
        findings.at(span.clone(), format!("`{pattern}` in `include` names no file"), help);
        return Vec::new();
    }
    if is_pattern(directory) {
        let help = "write one pattern for each directory; only the file name may have `*`, `?` and `{`";
        findings.at(span.clone(), format!("the directory `{directory}` in `include` is a pattern"), help);
        return Vec::new();
    }
    if !is_pattern(name) {
        return vec![PathBuf::from(pattern)];
    }
    let glob = match Glob::parse(name) {
        Ok(glob) => glob,
        Err(why) => {
            findings.at(span.clone(), format!("invalid pattern `{}`", name.escape_debug()), why);
            return Vec::new();
        }
    };
    match matching(&folder.join(directory), &glob) {
        Ok(names) => names.into_iter().map(|name| Path::new(directory).join(name)).collect(),
        // As empty as a directory without such files.
        Err(reason) if reason.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(reason) => {
            let message = format!("cannot list the directory `{directory}` in `include`: {reason}");
            findings.at(span.clone(), message, "make it readable by the user that starts the server");
            Vec::new()
        }
    }
}

fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '{', '\\'])
}

/// Returns the names in a directory that match, sorted by their bytes. Hidden files and directories do not: editors and
/// package managers leave the former behind.
fn matching(directory: &Path, glob: &Glob) -> io::Result<Vec<String>> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let is_file = std::fs::metadata(entry.path()).is_ok_and(|state| state.is_file());
        // A link to nowhere is an error when it is read: a site would be missing unnoticed.
        let is_broken = || entry.file_type().is_ok_and(|kind| kind.is_symlink()) && !entry.path().exists();
        if !name.starts_with('.') && glob.matches(format!("/{name}").as_bytes()) && (is_file || is_broken()) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn unreadable(name: &str, reason: &io::Error, span: Range<usize>, findings: &mut Findings) {
    let help = match reason.kind() {
        io::ErrorKind::NotFound => "create it, or correct the path; it is relative to the directory of the main file",
        io::ErrorKind::PermissionDenied => {
            "make it readable by the user that starts the server, and for SIGHUP by `user`"
        }
        io::ErrorKind::IsADirectory => "name its files: add \"/*.toml\" to the path",
        _ => "",
    };
    findings.at(span, format!("cannot read the included file {name}: {reason}"), help);
}
