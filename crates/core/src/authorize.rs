//! Directories whose requests an application authorises first, as single sign-on does (nginx's `auth_request`).
//!
//! `decide` finds the rule before anything about a name in such a directory is looked up, and `exchange/authorization` asks the
//! application. As a [`Guard`](crate::auth::Guard), a rule covers a directory rather than a pattern: an index page, variant or
//! script lies in the same directory as the requested name, so the check cannot be bypassed.

use alloc::boxed::Box;
use alloc::vec::Vec;

use amped_units::Form as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::forms::{AppendedFieldName, AuthorizedFieldName, DeniedFieldName, FolderPath, HealthPath};
use crate::login::LoginUrl;

/// Directory whose requests an application authorises first (single sign-on; `auth_request` of nginx)
///
/// Of nested directories, the innermost table applies. If a route rewrites a path, those of both are asked. A status of 2xx admits the client; 401, 403 and redirects become its
/// response; after anything else it gets 500.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub struct AuthorizeRule {
    /// Path of the directory, with a slash at both ends; includes everything below it
    #[schemars(example = "/")]
    #[serde(deserialize_with = "FolderPath::text")]
    pub directory: Box<str>,
    /// Path of the site at which an application (`[[site.app]]`) is asked; default: none, every request is admitted
    ///
    /// It gets a GET request with the client's fields, without its body, and with X-Original-Method, X-Original-URI,
    /// X-Original-URL, X-Forwarded-Method and X-Forwarded-Uri.
    #[schemars(example = "/oauth2/auth")]
    #[serde(default, deserialize_with = "HealthPath::text")]
    pub request: Option<Box<str>>,
    /// Fields of its response that the request for an application gets; what clients send in them is removed
    #[serde(default, deserialize_with = "AuthorizedFieldName::list")]
    #[schemars(extend("examples" = [["Remote-User", "Remote-Groups"]]))]
    pub copy_to_request: Vec<Box<str>>,
    /// Field of its response with the name of the user, by which `[[site.limit]]` may count
    #[serde(default, deserialize_with = "AuthorizedFieldName::text")]
    #[schemars(example = "Remote-User")]
    pub user: Option<Box<str>>,
    /// Login page to which a browser is sent that the application denies with 401, without a Location of its own; default: it gets 401
    ///
    /// A path or URL, in which `$scheme`, `$host` and `$request_uri` are those of the request, encoded as values of a query. Only page loads by GET are
    /// redirected (Sec-Fetch-Mode `navigate`, or none); scripts get 401.
    #[serde(default, deserialize_with = "LoginUrl::text")]
    #[schemars(example = "/oauth2/sign_in?rd=$request_uri")]
    pub login: Option<Box<str>>,
    /// Fields of a denial that the client gets
    #[serde(default = "denial_fields", deserialize_with = "DeniedFieldName::list")]
    pub copy_to_client: Vec<Box<str>>,
    /// Fields of its response that are added to the response of a request it admits
    ///
    /// An application renews its session by Set-Cookie. A response with a copied Set-Cookie is private, whatever other rules say.
    #[serde(default, deserialize_with = "AppendedFieldName::list")]
    #[schemars(extend("examples" = [["Set-Cookie"]]))]
    pub copy_to_response: Vec<Box<str>>,
}

fn denial_fields() -> Vec<Box<str>> {
    ["WWW-Authenticate", "Location", "Set-Cookie"].map(Box::from).into()
}

impl AuthorizeRule {
    /// The name, as configured, of a field that the request for an application gets; `None` for others. Many servers do not
    /// tell an underscore in a name from a hyphen.
    pub(crate) fn copied_name(&self, name: &str) -> Option<&str> {
        let name = name.replace('_', "-");
        self.copy_to_request
            .iter()
            .find(|known| known.replace('_', "-").eq_ignore_ascii_case(&name))
            .map(|known| &**known)
    }
}
