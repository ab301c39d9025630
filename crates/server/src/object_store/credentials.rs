//! The credentials of an object store: from a file, the environment, or systemd. Never from the text of the configuration, which people
//! copy into mails and repositories.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

/// An access key.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Its ID.
    pub access_key: Box<str>,
    /// Its secret.
    pub secret_key: Zeroizing<String>,
    /// The token of a temporary one.
    pub session_token: Option<Zeroizing<String>>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

/// The names of the values, in the environment in capitals.
const NAMES: [&str; 3] = ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"];

/// The name of systemd's credential (`LoadCredential=s3:FILE`).
const SYSTEMD: &str = "s3";

/// Returns the file of the credentials, if they are in one: the configured one, or that of systemd unless the environment has some.
pub fn file(configured: Option<&Path>, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(path) = configured {
        return Some(path.to_owned());
    }
    if variable(&NAMES[0].to_ascii_uppercase()).is_some() {
        return None;
    }
    let path = Path::new(&variable("CREDENTIALS_DIRECTORY")?).join(SYSTEMD);
    path.exists().then_some(path)
}

/// Reads the credentials from this file, or else from the environment. `None`: there are none, so requests are anonymous.
///
/// # Errors
/// A message, and what to do.
pub fn read(
    file: Option<&Path>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Option<Credentials>, (String, String)> {
    let (values, place) = match file {
        Some(path) => {
            let text = fs::read_to_string(path).map(Zeroizing::new);
            let shown = path.display();
            let text = text.map_err(|error| {
                let help = "it must be readable by the user that starts the server";
                (format!("cannot read the credentials file {shown}: {error}"), help.to_owned())
            })?;
            (NAMES.map(|name| value_in(&text, name)), shown.to_string())
        }
        None => {
            let value = |name: &str| Some(Zeroizing::new(variable(&name.to_ascii_uppercase())?.into_string().ok()?));
            (NAMES.map(value), "the environment".to_owned())
        }
    };
    let [access_key, secret_key, session_token] = values.map(|value| value.filter(|value| !value.is_empty()));
    match (access_key, secret_key) {
        (None, None) if file.is_none() => Ok(None),
        (Some(access_key), Some(secret_key)) => {
            Ok(Some(Credentials { access_key: access_key.as_str().into(), secret_key, session_token }))
        }
        (access_key, _) => {
            let missing = if access_key.is_none() { NAMES[0] } else { NAMES[1] };
            let missing = if file.is_none() { missing.to_ascii_uppercase() } else { missing.to_owned() };
            let help = "a file has lines `aws_access_key_id = ID` and `aws_secret_access_key = SECRET`, as ~/.aws/credentials has; \
                        the environment has AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
            Err((format!("{place} has no {missing}"), help.to_owned()))
        }
    }
}

/// Returns the value of this name in the first section of a file that has it: `name = value`.
fn value_in(text: &str, name: &str) -> Option<Zeroizing<String>> {
    text.lines().find_map(|line| {
        let (found, value) = line.split_once('=')?;
        (found.trim() == name).then(|| Zeroizing::new(value.trim().to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_precedes_environment_and_both_must_be_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s3");
        let of = |list: &'static [(&str, &str)]| {
            move |name: &str| list.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
        };
        let keys = of(&[("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret")]);
        fs::write(&path, "[default]\naws_access_key_id = file\naws_secret_access_key=a=b\n").unwrap();
        let found = read(Some(&path), keys).unwrap().unwrap();
        assert_eq!((&*found.access_key, found.secret_key.as_str(), found.session_token), ("file", "a=b", None));
        assert_eq!(&*read(None, keys).unwrap().unwrap().access_key, "id");
        assert!(read(None, of(&[])).unwrap().is_none());
        let half = read(None, of(&[("AWS_ACCESS_KEY_ID", "id")])).unwrap_err();
        assert_eq!(half.0, "the environment has no AWS_SECRET_ACCESS_KEY");
        fs::write(&path, "aws_secret_access_key = x\n").unwrap();
        assert!(read(Some(&path), keys).unwrap_err().0.ends_with("has no aws_access_key_id"));
        assert!(read(Some(&folder.path().join("none")), keys).unwrap_err().0.starts_with("cannot read"));
    }

    #[test]
    fn credential_of_systemd_is_found_unless_environment_has_one() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().as_os_str().to_owned();
        let of = |with_key: bool| {
            let directory = directory.clone();
            move |name: &str| match name {
                "CREDENTIALS_DIRECTORY" => Some(directory.clone()),
                "AWS_ACCESS_KEY_ID" if with_key => Some("id".into()),
                _ => None,
            }
        };
        assert_eq!(file(None, of(false)), None);
        fs::write(folder.path().join("s3"), "").unwrap();
        assert_eq!(file(None, of(false)), Some(folder.path().join("s3")));
        assert_eq!(file(None, of(true)), None);
        assert_eq!(file(Some(Path::new("/a")), of(true)), Some("/a".into()));
    }

    #[test]
    fn secret_is_not_shown() {
        let secret_key = Zeroizing::new("hidden".to_owned());
        let credentials = Credentials { access_key: "id".into(), secret_key, session_token: None };
        assert!(!format!("{credentials:?}").contains("hidden"));
    }
}
