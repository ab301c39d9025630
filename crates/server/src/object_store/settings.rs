//! What is needed to ask a store: its address, credentials, certificates, and where sites are in it. Read with the configuration.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rustls::pki_types::CertificateDer;

use super::credentials::{self, Credentials};
use crate::backend_tls::{UnusableKeys, authorities};
use crate::config::settings::ObjectStorageSettings;

/// What is needed to ask a store, and to keep what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    /// The table of the configuration, with absolute paths.
    pub keys: ObjectStorageSettings,
    /// The credentials; `None`: requests are anonymous.
    pub credentials: Option<Credentials>,
    /// The file of the credentials, if they are in one.
    pub credentials_file: Option<PathBuf>,
    /// The directory of local copies.
    pub directory: PathBuf,
    /// Maximum bytes in it.
    pub bytes_max: u64,
    /// Bytes of a window: objects with more are fetched in windows. A multiple of [`WINDOW_STEP`], and not less than the largest file
    /// that is served from memory.
    pub window_bytes: u64,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// Host, and port if it is not the default one.
    pub authority: String,
    /// Certificates that are trusted, if the store has TLS.
    pub authorities: Vec<CertificateDer<'static>>,
}

/// Unit of `window_bytes`, in bytes. It is the unit of sending too, so one send never spans two windows.
pub const WINDOW_STEP: u64 = 256 * 1024;

/// Why settings cannot be used: the key with the error, if one has it, a message, and what to do.
pub type Unusable = (Option<&'static str>, String, String);

impl StoreSettings {
    /// Reads credentials and certificates. `bytes_max`: of the directory; `content_file_bytes_max`: of a file that is served from memory.
    ///
    /// # Errors
    /// A file cannot be read or is invalid.
    pub fn read(
        keys: ObjectStorageSettings,
        directory: PathBuf,
        (bytes_max, content_file_bytes_max): (u64, u64),
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<StoreSettings, Unusable> {
        let endpoint = keys.endpoint.as_deref().map(str::to_owned);
        let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{}.amazonaws.com", keys.region));
        let (scheme, port, authority) = match endpoint.split_once("://") {
            Some(("http", authority)) => ("http", ":80", authority),
            Some((_, authority)) => ("https", ":443", authority),
            None => ("https", ":443", &*endpoint),
        };
        let authority = authority.trim_end_matches('/');
        let authority = authority.strip_suffix(port).unwrap_or(authority).to_owned();
        let credentials_file = credentials::file(keys.credentials.as_deref(), &variable);
        let credentials = credentials::read(credentials_file.as_deref(), variable)
            .map_err(|(message, help)| (keys.credentials.as_ref().map(|_| "credentials"), message, help))?;
        let authorities = match scheme {
            "https" => authorities(keys.ca.as_deref()).map_err(|UnusableKeys { message, help, .. }| {
                (keys.ca.as_ref().map(|_| "ca"), message, help.replace("tls_ca", "ca"))
            })?,
            _ => Vec::new(),
        };
        // With a window larger than the directory there are none.
        let window_bytes = keys.window.0.max(content_file_bytes_max).min(1 << 56).next_multiple_of(WINDOW_STEP);
        Ok(StoreSettings {
            keys,
            credentials,
            credentials_file,
            directory,
            bytes_max,
            window_bytes,
            scheme,
            authority,
            authorities,
        })
    }

    /// Returns the URL of the store.
    pub fn endpoint(&self) -> String {
        format!("{}://{}", self.scheme, self.authority)
    }
}

/// The place of a site's content: a bucket, and what its keys begin with.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// The bucket.
    pub bucket: String,
    /// Empty, or ends in a slash.
    pub prefix: String,
}

impl Location {
    /// Reads a root such as `s3://BUCKET/PREFIX`; `None`: it is a directory.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn of(root: &Path) -> Option<Result<Location, &'static str>> {
        let rest = root.as_os_str().as_encoded_bytes().strip_prefix(b"s3://")?;
        let Ok(rest) = std::str::from_utf8(rest) else { return Some(Err("is not UTF-8")) };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_in_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if bucket.len() < 3 || bucket.len() > 63 || !bucket.chars().all(is_in_name) {
            return Some(Err("has no valid name of a bucket"));
        }
        let prefix = prefix.trim_matches('/');
        if !prefix.is_empty() && prefix.split('/').any(|step| matches!(step, "" | "." | "..")) {
            return Some(Err("has a prefix with `.`, `..` or an empty step, which no URL path has"));
        }
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Some(Ok(Location { bucket: bucket.to_owned(), prefix }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_read() {
        let check = |root: &str, expected: Option<Result<(&str, &str), &str>>| {
            let found = Location::of(Path::new(root));
            let found = found.as_ref().map(|found| match found {
                Ok(Location { bucket, prefix }) => Ok((&**bucket, &**prefix)),
                Err(why) => Err(*why),
            });
            assert_eq!(found, expected, "{root}");
        };
        check("/var/www", None);
        check("s3", None);
        check("s3://site", Some(Ok(("site", ""))));
        check("s3://my.site_1/", Some(Ok(("my.site_1", ""))));
        check("s3://site/a/b/", Some(Ok(("site", "a/b/"))));
        check("s3://site/a//b", Some(Err("has a prefix with `.`, `..` or an empty step, which no URL path has")));
        check("s3://site/../b", Some(Err("has a prefix with `.`, `..` or an empty step, which no URL path has")));
        check("s3:///a", Some(Err("has no valid name of a bucket")));
        check("s3://a b", Some(Err("has no valid name of a bucket")));
    }
}
