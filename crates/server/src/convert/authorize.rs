//! The application that is asked for an authorization (`auth_request`).
//!
//! nginx asks a location, which may change the request's path; amped asks the application of a path.

use std::collections::BTreeSet;

use amped_core::login::LoginUrl;
use amped_units::Form as _;

use super::guards::Guards;
use super::location::Location;
use super::paths::Paths;
use super::tree::Directive;

/// The index of the location that nginx chooses for a path.
fn first(path: &str, locations: &[Location<'_>]) -> Option<usize> {
    locations.iter().position(|location| location.paths.matches(path))
}

/// The path of the application that `auth_request` with this path asks.
///
/// # Errors
/// Why there is none.
fn target(path: &str, locations: &[Location<'_>]) -> Result<String, &'static str> {
    let at = first(path, locations).ok_or("no location has the path of `auth_request`")?;
    let location = &locations[at];
    if location.refused.is_some() || location.is_answered() {
        return Err("the location of `auth_request` has no application that could be asked");
    }
    let Some(uri) = uri(location) else {
        return Err("the location of `auth_request` has no application that could be asked");
    };
    if uri.is_empty() || uri == path {
        return Ok(path.to_owned());
    }
    // The site would have two locations with this path.
    let is_free = first(&uri, locations).is_none_or(|other| locations[other].paths.is_all());
    let is_plain = matches!(location.paths, Paths::Exact(_)) && !uri.contains(['?', '$']) && is_free;
    if is_plain {
        Ok(uri)
    } else {
        Err("the application of `auth_request` gets another path, which the site may have itself")
    }
}

/// The path of a `proxy_pass`; `None` if there is none.
fn uri(location: &Location<'_>) -> Option<String> {
    let pass = location.scope.own("proxy_pass").next()?.arg(0);
    let (_, rest) = pass.split_once("://")?;
    let at = if rest.starts_with("unix:") { None } else { rest.find('/') };
    Some(at.map_or(String::new(), |at| rest[at..].to_owned()))
}

/// The login page that an error page for 401 is: that of an application, or where a named location redirects. `None`: it is another page.
fn login(page: &Directive, locations: &[Location<'_>], named: &[Location<'_>]) -> Option<Box<str>> {
    let target = page.args.last()?;
    let address = match target.starts_with('@') {
        true => {
            let is_it = |location: &&Location<'_>| matches!(&location.paths, Paths::Named(name) if name == target);
            let returned = named.iter().find(is_it)?.scope.own("return").next()?;
            let is_redirect = ["301", "302", "303", "307", "308"].contains(&returned.arg(0));
            let url = if is_redirect { returned.arg(1) } else { returned.arg(0) }.replace("$http_host", "$host");
            // A page of this site.
            let own = ["$scheme", "https", "http"].iter().find_map(|scheme| {
                let path = url.strip_prefix(scheme)?.strip_prefix("://$host")?;
                path.starts_with('/').then(|| path.to_owned())
            });
            own.unwrap_or(url)
        }
        false => {
            let location = &locations[first(target.split('?').next()?, locations)?];
            uri(location)?;
            // oauth2-proxy takes the page to which the browser returns from this field of nginx's own request, or from the query.
            let mut fields = location.scope.all("proxy_set_header");
            let return_field = fields.find(|field| field.arg(0).eq_ignore_ascii_case("X-Auth-Request-Redirect"));
            let with_return =
                return_field.map(|field| format!("{target}?rd={}", field.arg(1).replace("$http_host", "$host")));
            with_return.filter(|url| !target.contains('?') && LoginUrl::parse(url).is_ok()).unwrap_or(target.clone())
        }
    };
    let is_open = |path: &str| first(path, locations).is_none_or(|at| locations[at].guards.authorization.is_none());
    let is_usable = !address.starts_with('/') || address.split('?').next().is_some_and(is_open);
    LoginUrl::parse(&address).ok().filter(|_| is_usable)
}

/// Sets the login pages of the authorizations in force. Returns the directives that are nothing but these.
pub(super) fn set_logins<'a>(
    server: &mut Guards<'a>,
    locations: &mut [Location<'a>],
    named: &[Location<'_>],
) -> BTreeSet<(String, String)> {
    let mut converted = BTreeSet::new();
    let logins: Vec<Option<Box<str>>> = [&*server]
        .into_iter()
        .chain(locations.iter().map(|location| &location.guards))
        .map(|guards| {
            let page = guards.denied_page.filter(|_| guards.authorization.is_some())?;
            let login = login(page, locations, named)?;
            let (_, statuses) = page.args.split_last()?;
            if statuses.iter().all(|status| status == "401" || status.starts_with('=')) {
                converted.insert((page.place(), page.text()));
            }
            Some(login)
        })
        .collect();
    let all = [server].into_iter().chain(locations.iter_mut().map(|location| &mut location.guards));
    all.zip(logins).for_each(|(guards, login)| guards.login = login);
    converted
}

/// Sets the paths of the applications in the authorizations in force. A location whose authorization
/// has no application is refused.
pub(super) fn resolve<'a>(server: &mut Guards<'a>, locations: &mut [Location<'a>]) {
    for at in 0..locations.len() {
        let Some(own) = &locations[at].guards.authorization else { continue };
        match target(&own.path, locations) {
            Ok(path) => locations[at].guards.set_authorization(path),
            // A subrequest is not authorised itself.
            Err(_) if first(&own.path, locations) == Some(at) => locations[at].guards.authorization = None,
            Err(why) => locations[at].refused = locations[at].refused.or(Some(why)),
        }
    }
    let of_server = server.authorization.as_ref().map(|own| target(&own.path, locations));
    match of_server {
        Some(Ok(path)) => server.set_authorization(path),
        // Each location that inherits it is refused.
        Some(Err(_)) => server.authorization = None,
        None => {}
    }
    let asked: Vec<(usize, String)> = (0..locations.len())
        .filter_map(|at| {
            let Paths::Exact(path) = &locations[at].paths else { return None };
            let uri = uri(&locations[at])?;
            let uri = if uri.is_empty() { path.clone() } else { uri };
            let is_asked = |guards: &Guards<'_>| guards.authorization.as_ref().is_some_and(|own| own.path == uri);
            (is_asked(server) || locations.iter().any(|other| is_asked(&other.guards))).then_some((at, uri))
        })
        .collect();
    for (at, uri) in asked {
        locations[at].asked_at = Some(uri);
    }
}
