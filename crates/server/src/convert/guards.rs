//! Access: the directives that restrict who gets what, and those in force at a location.
//!
//! [`Guards::of`] gives each such directive to one of its fields, or to `unknown`, for which the location is refused. So none can be
//! lost: [`restricts`] is the only list of them, and [`unseen`] checks at the end that all were seen.

use std::collections::HashSet;

use amped_core::forms::{AppendedFieldName, AuthorizedFieldName};
use amped_core::network::Network;
use amped_units::Form as _;

use super::scope::Scope;
use super::tree::Directive;

/// Directives that restrict access.
const RESTRICTING: &[&str] = &[
    "allow",
    "auth_basic",
    "auth_basic_user_file",
    "auth_request",
    "deny",
    "internal",
    "limit_except",
    "ssl_verify_client",
];

/// The beginnings of the names of such directives in other modules.
const FOREIGN: &[&str] = &["access_by_", "auth_", "content_by_", "js_access", "js_content", "perl", "rewrite_by_"];

/// Directives that begin like these, but restrict nothing.
const HARMLESS: &[&str] = &["auth_delay", "auth_request_set"];

/// Whether a directive restricts access. Conditions with `return` do so too; see [`super::rewrite`].
pub(super) fn restricts(directive: &Directive) -> bool {
    let name = directive.name.as_str();
    RESTRICTING.contains(&name) || FOREIGN.iter().any(|start| name.starts_with(start)) && !HARMLESS.contains(&name)
}

const NO_NETWORK: &str = "this is no address or network";

/// Which addresses are admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Access {
    All,
    None,
    /// Those in `allow`, or all if that is empty, without those in `deny`.
    Some {
        allow: Vec<String>,
        deny: Vec<String>,
    },
}

/// The password of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Password {
    pub(super) realm: String,
    /// The file of accounts.
    pub(super) file: String,
    /// Addresses that need none.
    pub(super) exempt: Vec<String>,
}

/// The authorisation of requests by an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Authorization {
    /// The path of its location.
    pub(super) path: String,
    /// Fields of its response that the application of the location gets.
    pub(super) copied: Vec<String>,
    /// Fields of its response that are added to that of the location.
    pub(super) added: Vec<String>,
}

/// The restrictions in force at a location.
#[derive(Clone, Debug)]
pub(super) struct Guards<'a> {
    pub(super) access: Access,
    pub(super) password: Option<Password>,
    pub(super) authorization: Option<Authorization>,
    /// The error page of clients that are not authorised.
    pub(super) denied_page: Option<&'a Directive>,
    /// The login page to which they are sent, if that page is one.
    pub(super) login: Option<Box<str>>,
    pub(super) is_internal: bool,
    /// `limit_except`
    pub(super) methods: Option<&'a Directive>,
    /// Those that no rule can express, and why.
    pub(super) unknown: Vec<(&'a Directive, &'static str)>,
    /// Differences that only restrict more.
    pub(super) stricter: Vec<(&'a Directive, &'static str)>,
    /// The directives of `access`, `password` and `authorization`.
    pub(super) from: [Option<&'a Directive>; 3],
    /// All directives that these come from.
    pub(super) seen: Vec<&'a Directive>,
}

impl<'a> Guards<'a> {
    /// The restrictions in force in a scope.
    pub(super) fn of(scope: &Scope<'a>) -> Guards<'a> {
        let mut guards = Guards {
            access: Access::All,
            password: None,
            authorization: None,
            denied_page: None,
            login: None,
            is_internal: false,
            methods: None,
            unknown: Vec::new(),
            stricter: Vec::new(),
            from: [None; 3],
            seen: scope.directives().filter(|directive| restricts(directive)).collect(),
        };
        for directive in guards.seen.clone() {
            match directive.name.as_str() {
                // Handled below: the innermost block that has any applies.
                "allow" | "deny" | "auth_basic" | "auth_basic_user_file" | "auth_request" => {}
                "internal" => guards.is_internal = true,
                // `limit_except` is not inherited.
                "limit_except" => guards.methods = scope.own("limit_except").next(),
                // `main_block` translates it, for a whole server.
                "ssl_verify_client" => {}
                _ if directive.arg(0) == "off" => {}
                _ => guards.unknown.push((directive, "no equivalent")),
            }
        }
        guards.passwords(scope);
        guards.authorizations(scope);
        if !guards.exemptions(scope) {
            guards.addresses(scope);
        }
        guards
    }

    /// nginx applies the first rule that matches the address; in amped, `deny` takes precedence over `allow`.
    fn addresses(&mut self, scope: &Scope<'a>) {
        let (mut allow, mut deny) = (Vec::new(), Vec::new());
        let mut is_open = true;
        for rule in address_rules(scope) {
            self.from[0].get_or_insert(rule);
            let is_allowed = rule.name == "allow";
            // Clients of a Unix socket have no address.
            if rule.arg(0) == "unix:" {
                continue;
            }
            if rule.arg(0) != "all" && Network::parse(rule.arg(0)).is_err() {
                self.unknown.push((rule, NO_NETWORK));
                continue;
            }
            match rule.arg(0) {
                "all" => {
                    is_open = is_allowed;
                    break;
                }
                who if is_allowed => allow.push(who.to_owned()),
                who => {
                    if !allow.is_empty() {
                        self.stricter.push((rule, "`deny` takes precedence over `allow`, whichever comes first"));
                    }
                    deny.push(who.to_owned());
                }
            }
        }
        self.access = match is_open {
            true if deny.is_empty() => Access::All,
            true => Access::Some { allow: Vec::new(), deny },
            false if allow.is_empty() => Access::None,
            false => Access::Some { allow, deny },
        };
    }

    /// With `satisfy any`, the addresses that are admitted need no password. Returns whether that is so here.
    fn exemptions(&mut self, scope: &Scope<'a>) -> bool {
        let Some(satisfy) = scope.get("satisfy").filter(|own| own.arg(0) == "any") else { return false };
        let has_rules = address_rules(scope).next().is_some();
        let restrictions = [has_rules, self.password.is_some(), self.authorization.is_some()];
        if restrictions.iter().filter(|is_there| **is_there).count() < 2 {
            return false;
        }
        let (Some(password), None) = (&mut self.password, &self.authorization) else {
            self.unknown.push((satisfy, "an authorization has no alternative"));
            return true;
        };
        self.from[1] = Some(satisfy);
        let mut is_denied = false;
        for rule in address_rules(scope) {
            match (rule.name == "allow", rule.arg(0)) {
                // Clients of a Unix socket have no address.
                (_, "unix:") => {}
                (false, "all") => break,
                (false, _) => is_denied = true,
                (true, _) if is_denied => {
                    self.unknown.push((rule, "`exempt` cannot leave out an address that `deny` names first"));
                    break;
                }
                (true, "all") => {
                    password.exempt = ["0.0.0.0/0", "::/0"].map(str::to_owned).to_vec();
                    break;
                }
                (true, who) if Network::parse(who).is_err() => self.unknown.push((rule, NO_NETWORK)),
                (true, who) => password.exempt.push(who.to_owned()),
            }
        }
        true
    }

    fn passwords(&mut self, scope: &Scope<'a>) {
        let Some(realm) = scope.get("auth_basic") else { return };
        let file = scope.get("auth_basic_user_file");
        if realm.arg(0) == "off" {
            self.from[1] = Some(realm);
            return;
        }
        // The inner one of the two: it is the reason why a location's password differs.
        let own = ["auth_basic", "auth_basic_user_file"].iter().find_map(|name| scope.own(name).next());
        self.from[1] = own.or(Some(realm));
        match file {
            Some(file) if !file.arg(0).contains('$') && !realm.arg(0).contains('$') => {
                let (realm, file) = (realm.arg(0).to_owned(), file.arg(0).to_owned());
                self.password = Some(Password { realm, file, exempt: Vec::new() });
            }
            Some(file) => self.unknown.push((file, "realm and file of a password have no variables")),
            None => self.unknown.push((realm, "no `auth_basic_user_file`")),
        }
    }

    fn authorizations(&mut self, scope: &Scope<'a>) {
        let Some(request) = scope.get("auth_request") else { return };
        self.from[2] = Some(request);
        if request.arg(0) == "off" {
            return;
        }
        let mut copied: Vec<String> = Vec::new();
        for field in scope.all("proxy_set_header").chain(scope.all("fastcgi_param")) {
            if !scope.all("auth_request_set").any(|set| field.arg(1) == set.arg(0)) {
                continue;
            }
            let name = field_of_variable(scope, field.arg(1)).filter(|name| AuthorizedFieldName::parse(name).is_ok());
            let is_of_request = field.name == "proxy_set_header";
            let variable = format!("HTTP_{}", name.as_deref().unwrap_or_default().replace('-', "_"));
            let copy = match name {
                Some(name) if name.eq_ignore_ascii_case(&field.arg(0).replace('_', "-")) => field.arg(0).to_owned(),
                // `request_fields` gives it another name.
                Some(name) if is_of_request || variable.eq_ignore_ascii_case(field.arg(0)) => name,
                // The client could send this field itself.
                _ => {
                    self.unknown.push((field, "a field that an authorization sets keeps its name"));
                    continue;
                }
            };
            if !copied.iter().any(|known| known.eq_ignore_ascii_case(&copy)) {
                copied.push(copy);
            }
        }
        let added = scope.all("add_header").filter(|field| is_authorization_field(scope, field));
        let added = added.map(|field| field.arg(0).to_owned()).collect();
        self.authorization = Some(Authorization { path: request.arg(0).to_owned(), copied, added });
        let is_for_denied = |page: &&Directive| page.args.iter().rev().skip(1).any(|status| status == "401");
        self.denied_page = scope.all("error_page").find(is_for_denied);
    }

    /// Sets the path that is asked for an authorization.
    pub(super) fn set_authorization(&mut self, path: String) {
        if let Some(own) = &mut self.authorization {
            own.path = path;
        }
    }

    /// Whether nothing is restricted.
    pub(super) fn are_none(&self) -> bool {
        let Guards { access, password, authorization, is_internal, methods, unknown, .. } = self;
        *access == Access::All
            && password.is_none()
            && authorization.is_none()
            && !is_internal
            && methods.is_none()
            && unknown.is_empty()
    }

    /// Only what tables express: a path that nobody may access is denied by a route.
    pub(super) fn without_routes(mut self) -> Guards<'a> {
        if self.access == Access::None {
            self.access = Access::All;
        }
        self
    }

    /// Whether these, as rules of a directory, refuse all that others do.
    pub(super) fn are_as_strict_as(&self, others: &Guards<'_>) -> bool {
        let is_access = [&Access::All, &Access::None].contains(&&others.access) || self.access == others.access;
        let is_password = |other: &Password| {
            let is_it =
                |own: &Password| own.file == other.file && (own.exempt.is_empty() || own.exempt == other.exempt);
            self.password.as_ref().is_some_and(is_it)
        };
        is_access
            && others.password.as_ref().is_none_or(is_password)
            && (others.authorization.is_none() || self.authorization == others.authorization)
    }

    /// Whether these refuse exactly what others do.
    pub(super) fn are_same_as(&self, others: &Guards<'_>) -> bool {
        self.access == others.access
            && self.password == others.password
            && self.authorization == others.authorization
            && self.methods.is_none()
            && self.unknown.is_empty()
    }

    /// A directive because of which these refuse more than others, if there is one.
    pub(super) fn excess_over(&self, others: &Guards<'_>) -> Option<&'a Directive> {
        let has_more_exempt = |own: &Password, other: &Password| own.exempt.is_empty() && !other.exempt.is_empty();
        let is_password = |own: &Password| others.password.as_ref().is_none_or(|other| has_more_exempt(own, other));
        let excess = [
            self.access != Access::All && others.access == Access::All,
            self.password.as_ref().is_some_and(is_password),
            self.authorization.is_some() && others.authorization.is_none(),
        ];
        excess.iter().zip(self.from).find_map(|(is_excess, from)| from.filter(|_| *is_excess))
    }

    /// Whether tables of a directory express some of these.
    pub(super) fn have_tables(&self) -> bool {
        self.access != Access::All || self.password.is_some() || self.authorization.is_some()
    }
}

/// The field of an authorization's response whose value a variable has.
pub(super) fn field_of_variable(scope: &Scope<'_>, variable: &str) -> Option<String> {
    let set = scope.all("auth_request_set").find(|set| set.arg(0) == variable)?;
    set.arg(1).strip_prefix("$upstream_http_").map(|name| name.replace('_', "-"))
}

/// Whether `add_header` adds a field of the authorization's response.
pub(super) fn is_authorization_field(scope: &Scope<'_>, field: &Directive) -> bool {
    let is_asked = scope.get("auth_request").is_some_and(|request| request.arg(0) != "off");
    is_asked
        && field_of_variable(scope, field.arg(1)).is_some_and(|name| name.eq_ignore_ascii_case(field.arg(0)))
        && AppendedFieldName::parse(field.arg(0)).is_ok()
}

/// The rules `allow` and `deny` in force, in their order.
fn address_rules<'a>(scope: &Scope<'a>) -> impl Iterator<Item = &'a Directive> {
    let names = ["allow", "deny"];
    scope.nearest(&names).iter().filter(move |rule| names.contains(&rule.name.as_str()))
}

/// The first directive of a block that restricts access and is not among those seen. A named location restricts where it is used.
pub(super) fn unseen<'a>(block: &'a [Directive], seen: &HashSet<*const Directive>) -> Option<&'a Directive> {
    block.iter().find_map(|directive| match directive.name.as_str() {
        _ if seen.contains(&std::ptr::from_ref(directive)) => None,
        _ if restricts(directive) => Some(directive),
        "location" if directive.arg(0).starts_with('@') => None,
        _ => unseen(directive.inner(), seen),
    })
}
