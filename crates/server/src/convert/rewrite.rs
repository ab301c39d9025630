//! nginx's module `rewrite`: `return`, `rewrite` and `if` become tables of `[[site.route]]`.
//!
//! A redirect of amped names its host literally, so that no client can choose it. `https://$host/...` therefore becomes one route for each
//! name of the server, with a condition on the host.

use amped_core::glob::Glob;
use serde_json::{Map, Value, json};

use super::paths::{Paths, escape};
use super::regexes;
use super::tree::Directive;

/// What the routes of a location depend on.
pub(super) struct Place<'a> {
    pub(super) paths: &'a Paths,
    /// Whether the server has the ports that URLs omit.
    pub(super) has_default_ports: bool,
    /// The names of the server, without wildcards.
    pub(super) names: &'a [String],
    /// The media type of responses without a file.
    pub(super) default_type: &'a str,
}

/// Routes, or the reason why there are none.
pub(super) type Routes = Result<Vec<Value>, String>;

/// The routes of a `return`.
pub(super) fn returned(directive: &Directive, place: &Place<'_>) -> Routes {
    let (first, text) = (directive.arg(0), directive.args.get(1));
    let (status, text) = match (first.parse::<u16>(), text) {
        (Ok(status), text) => (status, text.map(String::as_str)),
        (Err(_), _) => (302, Some(first)),
    };
    let pattern = place.paths.pattern();
    match (status, text) {
        (301 | 302 | 303 | 307 | 308, Some(target)) => redirects(target, status, place),
        (444, _) => Err("a connection cannot be closed without a response; clients get 403".to_owned()),
        (400 | 403 | 404 | 410 | 429 | 451 | 500 | 503, None) => {
            Ok(vec![json!({ "match": pattern, "deny": true, "status": status })])
        }
        (206 | 304 | 401 | 416, _) | (0..200 | 600.., _) => Err("no fixed response can have this status".to_owned()),
        (_, Some(text)) if text.contains('$') => Err("a fixed response has no variables".to_owned()),
        (204, _) | (_, None | Some("")) => Ok(vec![json!({ "match": pattern, "respond": "", "status": status })]),
        (_, Some(text)) => {
            let headers = json!({ "Content-Type": place.default_type });
            Ok(vec![json!({ "match": pattern, "respond": text, "status": status, "headers": headers })])
        }
    }
}

/// Redirects of all paths of a location to a URL with variables.
fn redirects(target: &str, status: u16, place: &Place<'_>) -> Routes {
    let (target, mut keeps_query) = without_query_variable(target);
    let (origin, rest) = split_origin(target);
    let is_whole = ["$request_uri", "$uri", "$document_uri"].iter().find(|name| rest.ends_with(*name));
    let (pattern, rest) = match is_whole {
        Some(name) => {
            keeps_query |= *name == "$request_uri";
            let (pattern, own) = whole(place.paths)?;
            let before = rest.strip_suffix(name).unwrap_or_default();
            (pattern, format!("{before}{own}"))
        }
        None => (place.paths.pattern(), rest.to_owned()),
    };
    let captures = if is_whole.is_some() { "123456789" } else { captures(place.paths) };
    check_variables(&rest, captures)?;
    let mut table = json!({ "match": pattern, "status": status, "query": if keeps_query { "keep" } else { "drop" } });
    // The default of a redirect.
    if keeps_query != rest.contains('?') {
        table.as_object_mut().and_then(|table| table.remove("query"));
    }
    Ok(origins(origin, place)?
        .into_iter()
        .filter_map(|(origin, when)| {
            let mut table = table.clone();
            let root = if rest.is_empty() && origin.is_empty() { "/" } else { "" };
            table["redirect"] = format!("{origin}{root}{rest}").into();
            and(&mut table, &when).then_some(table)
        })
        .collect())
}

/// The pattern and target that keep the whole path.
fn whole(paths: &Paths) -> Result<(String, String), String> {
    match paths {
        Paths::Exact(path) => Ok((escape(path), path.clone())),
        Paths::Prefix { path, .. } => Ok((format!("{}**", escape(path)), format!("{path}$1"))),
        Paths::Regex { .. } | Paths::Named(_) => {
            Err("a route with a regular expression can insert its groups only, not the whole path".to_owned())
        }
    }
}

/// The captures that a target may use.
fn captures(paths: &Paths) -> &'static str {
    if matches!(paths, Paths::Regex { .. }) { "123456789" } else { "" }
}

/// Checks that all variables of a target are captures.
fn check_variables(text: &str, captures: &str) -> Result<(), String> {
    match text.split('$').skip(1).find(|rest| !rest.starts_with(|c: char| captures.contains(c))) {
        None => Ok(()),
        Some(rest) => {
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || "_{}".contains(*c)).collect();
            Err(format!("a route cannot insert `${name}`"))
        }
    }
}

/// A target without the query of the request at its end, and whether it had that.
fn without_query_variable(target: &str) -> (&str, bool) {
    let ends = ["$is_args$args", "$is_args$query_string", "?$args", "?$query_string", "&$args", "&$query_string"];
    match ends.iter().find_map(|end| target.strip_suffix(end)) {
        Some(rest) => (rest, true),
        None => (target, false),
    }
}

/// Splits `https://host/path` behind the host; a path has no origin.
fn split_origin(target: &str) -> (&str, &str) {
    let Some(start) = target.find("://").map(|colon| colon + 3) else { return ("", target) };
    // A variable with the path may follow the host at once.
    let rest = &target[start..];
    let path = ["/", "$request_uri", "$uri", "$document_uri", "?"].iter().filter_map(|sign| rest.find(sign)).min();
    target.split_at(path.map_or(target.len(), |path| start + path))
}

/// The scheme and host of a URL, and the conditions under which they are meant.
type Origin = (String, Map<String, Value>);

/// The literal origins that one with variables stands for, each with its condition.
fn origins(origin: &str, place: &Place<'_>) -> Result<Vec<Origin>, String> {
    let Place { names, has_default_ports, .. } = *place;
    let mut all = vec![(origin.replace("${host}", "$host"), Map::new())];
    if let Some(rest) = all[0].0.strip_prefix("$scheme") {
        let with = |scheme: &str| (format!("{scheme}{rest}"), condition("scheme", scheme.into()));
        all = vec![with("http"), with("https")];
    }
    let Some(variable) = ["$host", "$http_host", "$server_name"].into_iter().find(|name| all[0].0.contains(name))
    else {
        return if all[0].0.contains('$') { Err(literal_host()) } else { Ok(all) };
    };
    let same: &[&str] =
        if has_default_ports { &["$scheme://$host", "$scheme://$http_host"] } else { &["$scheme://$http_host"] };
    if names.is_empty() && same.contains(&&*origin.replace("${host}", "$host")) {
        // The server has any name, and the client stays where it is.
        return Ok(vec![(String::new(), Map::new())]);
    }
    let names = if variable == "$server_name" { &names[..names.len().min(1)] } else { names };
    if names.is_empty() {
        return Err(literal_host());
    }
    let with = |(origin, when): &Origin, name: &String| {
        let mut when = when.clone();
        if names.len() > 1 {
            when.insert("hosts".to_owned(), json!([name]));
        }
        (origin.replace(variable, name), when)
    };
    let all: Vec<_> = all.iter().flat_map(|one| names.iter().map(move |name| with(one, name))).collect();
    if all.iter().any(|(origin, _)| origin.contains('$')) { Err(literal_host()) } else { Ok(all) }
}

fn literal_host() -> String {
    "a redirect names its host literally; `redirect_to_https = true` keeps the host".to_owned()
}

fn condition(key: &str, value: Value) -> Map<String, Value> {
    Map::from_iter([(key.to_owned(), value)])
}

/// Adds conditions to a table; returns whether both can hold.
fn and(table: &mut Value, more: &Map<String, Value>) -> bool {
    if more.is_empty() {
        return true;
    }
    let when = &mut table["when"];
    if when.is_null() {
        *when = json!({});
    }
    for (key, value) in more {
        match when.get_mut(key) {
            // The names and fields of two conditions together.
            Some(Value::Object(known)) if value.is_object() => {
                known
                    .extend(value.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), value.clone())));
            }
            // One list has names, the other patterns.
            Some(known) if key == "hosts" => {
                let both = hosts_of_both(known, value);
                if both.is_empty() {
                    return false;
                }
                *known = both.into();
            }
            Some(Value::Array(known)) if key == "not" => known.extend(value.as_array().into_iter().flatten().cloned()),
            Some(known) if known != value => return false,
            _ => when[key] = value.clone(),
        }
    }
    true
}

/// The hosts of one list that match a pattern of the other.
fn hosts_of_both(a: &Value, b: &Value) -> Vec<Value> {
    let texts =
        |list: &Value| list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    let (a, b): (Vec<String>, Vec<String>) = (texts(a), texts(b));
    let among = |hosts: &[String], patterns: &[String]| -> Vec<Value> {
        let globs: Vec<Glob> = patterns.iter().filter_map(|pattern| Glob::of_text(pattern).ok()).collect();
        let matching = hosts.iter().filter(|host| globs.iter().any(|glob| glob.matches(host.as_bytes())));
        matching.map(|host| host.as_str().into()).collect()
    };
    let found = among(&a, &b);
    if found.is_empty() { among(&b, &a) } else { found }
}

/// Whether requests may be refused, or redirected, by a directive of the module.
pub(super) fn may_refuse(directive: &Directive) -> bool {
    match directive.name.as_str() {
        "return" => !matches!(directive.arg(0).as_bytes(), [b'2' | b'5', _, _]),
        "if" => directive.inner().iter().any(|inner| inner.name == "rewrite" || may_refuse(inner)),
        _ => false,
    }
}

/// Whether a `rewrite` keeps the location although the new path is outside it.
pub(super) fn leaves(directive: &Directive, paths: &Paths) -> bool {
    let is_within = |target: &str| match paths {
        Paths::Prefix { path, .. } => target.starts_with(path.as_str()),
        _ => false,
    };
    let own = directive.name == "rewrite" && directive.arg(2) == "break" && !is_within(directive.arg(1));
    own || directive.name == "if" && directive.inner().iter().any(|inner| leaves(inner, paths))
}

/// The paths to which a route rewrites.
pub(super) fn target(route: &Value) -> Option<Paths> {
    let target = route["rewrite"].as_str()?;
    let path = target.split('?').next().unwrap_or_default();
    Some(match path.split_once('$') {
        Some((start, _)) => Paths::Prefix { path: start.to_owned(), is_final: false },
        None => Paths::Exact(path.to_owned()),
    })
}

/// How the routes of an `if` differ from it, if they do.
pub(super) fn approximation(directive: &Directive) -> Option<&'static str> {
    let is_inexact = |inner: &Directive| inner.name == "return" && ["401", "444"].contains(&inner.arg(0));
    let differs = directive.name == "if" && directive.inner().iter().any(is_inexact);
    differs.then_some("no route has this status; clients get 403")
}

/// The routes of a `rewrite`.
pub(super) fn rewritten(directive: &Directive, place: &Place<'_>) -> Routes {
    let (regex, target, flag) = (directive.arg(0), directive.arg(1), directive.arg(2));
    let is_redirect =
        target.contains("://") || target.starts_with("$scheme") || ["redirect", "permanent"].contains(&flag);
    let pattern = match place.paths {
        _ if matches!(regex, "^" | ".*" | "^.*" | "^.*$" | "^/" | ".") => place.paths.pattern(),
        Paths::Exact(path) if regex.strip_prefix('^').is_some_and(|regex| regex.trim_end_matches('$') == path) => {
            place.paths.pattern()
        }
        paths if paths.is_all() || regex.starts_with(&format!("^{}", prefix(paths))) => format!("~{regex}"),
        _ => return Err("its pattern would apply outside the location too; write the path into it".to_owned()),
    };
    // A question mark at the end drops the query of the request.
    let (target, drops) = target.strip_suffix('?').map_or((target, false), |target| (target, true));
    let (target, _) = without_query_variable(target);
    let mut table = json!({ "match": pattern });
    if drops {
        table["query"] = "drop".into();
    }
    let groups = if pattern.starts_with('~') { "123456789" } else { "" };
    if !is_redirect {
        check_variables(target, groups)?;
        table["rewrite"] = target.into();
        return Ok(vec![table]);
    }
    if !drops && target.contains('?') {
        table["query"] = "keep".into();
    }
    table["status"] = if flag == "permanent" { 301 } else { 302 }.into();
    let (origin, rest) = split_origin(target);
    check_variables(rest, groups)?;
    let all = origins(origin, place)?.into_iter().filter_map(|(origin, when)| {
        let mut table = table.clone();
        let root = if rest.is_empty() && origin.is_empty() { "/" } else { "" };
        table["redirect"] = format!("{origin}{root}{rest}").into();
        and(&mut table, &when).then_some(table)
    });
    Ok(all.collect())
}

/// The literal beginning of the paths, or a text with which no regular expression begins.
fn prefix(paths: &Paths) -> &str {
    match paths {
        Paths::Prefix { path, .. } => path,
        Paths::Exact(_) | Paths::Regex { .. } | Paths::Named(_) => "\0",
    }
}

/// The routes of an `if`, of whose block only `return` and `rewrite` are possible.
pub(super) fn conditional(directive: &Directive, place: &Place<'_>) -> Routes {
    let whens = conditions(&directive.args)?;
    let mut all = Vec::new();
    for inner in directive.inner() {
        let routes = match inner.name.as_str() {
            "return" if approximation(directive).is_some() && ["401", "444"].contains(&inner.arg(0)) => {
                vec![json!({ "match": place.paths.pattern(), "deny": true })]
            }
            "return" => returned(inner, place)?,
            "rewrite" => rewritten(inner, place)?,
            "break" => continue,
            name => return Err(format!("`{name}` cannot depend on such a condition")),
        };
        for when in &whens {
            all.extend(routes.iter().filter_map(|route| {
                let mut route = route.clone();
                and(&mut route, when).then_some(route)
            }));
        }
    }
    if all.is_empty() && directive.inner().iter().any(|inner| inner.name == "break") {
        return Err("`break` cannot depend on a condition".to_owned());
    }
    Ok(all)
}

/// The words of a condition, without the parentheses: variable, operator, value.
pub(super) fn condition_words(args: &[String]) -> (String, String, String) {
    let text = args.join(" ");
    let text = text.trim().strip_prefix('(').unwrap_or(&text);
    let text = text.strip_suffix(')').unwrap_or(text).trim();
    let mut words = text.splitn(3, ' ').map(str::to_owned);
    let mut next = || words.next().unwrap_or_default();
    (next(), next(), next())
}

/// Conditions of routes, of which one must hold.
fn conditions(args: &[String]) -> Result<Vec<Map<String, Value>>, String> {
    let (variable, operator, value) = condition_words(args);
    let name = variable.trim_start_matches('$');
    let condition_of = |kind: &str| format!("no condition on `{variable}` can be expressed{kind}");
    // A request has one of these.
    let is_single = ["host", "request_method"].contains(&name);
    if let Some(positive) = operator.strip_prefix('!').filter(|_| is_single && !value.is_empty()) {
        let patterns = text_patterns(positive, &value).ok_or_else(|| condition_of(" with this operator"))?;
        let one = match name {
            "host" => condition("hosts", json!(patterns)),
            _ => condition("methods", json!(methods(&patterns)?)),
        };
        return Ok(vec![condition("not", json!([one]))]);
    }
    match (name, operator.as_str(), value.as_str()) {
        ("scheme", "=", scheme @ ("http" | "https")) => return Ok(vec![condition("scheme", scheme.into())]),
        ("scheme", "!=", "https") | ("https", "=", "") | ("https", "!=", "on") => {
            return Ok(vec![condition("scheme", "http".into())]);
        }
        ("https", "=", "on") => return Ok(vec![condition("scheme", "https".into())]),
        _ => {}
    }
    let patterns = text_patterns(&operator, &value).ok_or_else(|| condition_of(" with this operator"))?;
    let is_negative = operator.starts_with('!');
    let each = |table: &str, key: String| {
        let of = |pattern: &String| condition(table, json!({ key.clone(): pattern }));
        patterns.iter().map(of).collect()
    };
    match name {
        "http_host" if is_negative || value.contains(|c: char| c == ':' || c.is_uppercase()) => {
            Err(condition_of(", whose port and case count"))
        }
        "host" | "http_host" => Ok(vec![condition("hosts", json!(patterns))]),
        "request_method" if patterns.iter().all(|pattern| is_method(pattern)) => {
            Ok(vec![condition("methods", json!(patterns))])
        }
        "request_method" => {
            // Unknown methods are among those that match, so that none is forwarded that nginx refuses.
            let matching = methods(&patterns)?;
            let others: Vec<&str> = METHODS.split(' ').filter(|one| !matching.iter().any(|own| own == one)).collect();
            Ok(vec![condition("not", json!([condition("methods", json!(others))]))])
        }
        _ => match (name.strip_prefix("http_"), name.strip_prefix("arg_")) {
            (Some(field), _) => Ok(each("header", field_name(field))),
            (_, Some(_)) if is_negative => Err(condition_of(" with this operator")),
            (_, Some(parameter)) => Ok(each("query", parameter.to_owned())),
            _ => Err(condition_of("")),
        },
    }
}

const METHODS: &str =
    "GET HEAD POST PUT DELETE OPTIONS PATCH TRACE CONNECT PROPFIND PROPPATCH MKCOL COPY MOVE LOCK UNLOCK";

/// Whether a pattern is a method.
fn is_method(pattern: &str) -> bool {
    pattern.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') && !pattern.is_empty()
}

/// The known methods that match one of these patterns. A literal pattern may name any method.
fn methods(patterns: &[String]) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for pattern in patterns {
        if is_method(pattern) {
            all.push(pattern.clone());
            continue;
        }
        let glob = Glob::of_text(pattern).map_err(|why| why.to_string())?;
        all.extend(METHODS.split(' ').filter(|method| glob.matches(method.as_bytes())).map(str::to_owned));
    }
    match all.is_empty() {
        true => Err("no method matches this condition".to_owned()),
        false => Ok(all),
    }
}

/// `user_agent` is `User-Agent`.
pub(super) fn field_name(variable: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        letters.next().map_or(String::new(), |first| first.to_ascii_uppercase().to_string() + letters.as_str())
    };
    variable.split('_').map(word).collect::<Vec<_>>().join("-")
}

/// Patterns that match what this operator and value do; the empty one matches what is missing.
fn text_patterns(operator: &str, value: &str) -> Option<Vec<String>> {
    let value = value.trim_matches('"');
    match operator {
        "" => Some(vec!["?*".to_owned()]),
        "=" => Some(vec![escape(value)]),
        "!=" if value.is_empty() => Some(vec!["?*".to_owned()]),
        "!=" => Some(vec![format!("~{}", regexes::other_than_text(value)), String::new()]),
        "~" => of_regex(value).or_else(|| any_regex("~", value)),
        "~*" => any_regex("~*", value),
        _ => None,
    }
}

/// The pattern of a regular expression, and that of missing text if it matches that.
fn any_regex(sign: &str, regex: &str) -> Option<Vec<String>> {
    let exact = regexes::simplified(regex);
    let pattern = format!("{sign}{}", exact.regex);
    let glob = Glob::of_text(&pattern).ok().filter(|_| exact.is_exact)?;
    let missing = glob.matches(b"").then(String::new);
    Some([pattern].into_iter().chain(missing).collect())
}

/// Patterns for a regular expression of literal text and at most one group of alternatives.
fn of_regex(regex: &str) -> Option<Vec<String>> {
    let regex = regex.trim_matches('"');
    let (start, rest) = regex.strip_prefix('^').map_or(("*", regex), |rest| ("", rest));
    let (end, rest) = rest.strip_suffix('$').map_or(("*", rest), |rest| ("", rest));
    let (before, choices, after) = match rest.split_once('(') {
        Some((before, more)) => {
            let (choices, after) = more.split_once(')')?;
            (before, choices.strip_prefix("?:").unwrap_or(choices), after)
        }
        // `a|b` with an anchor would mean `(^a)|b`.
        None if rest.contains('|') && (start.is_empty() || end.is_empty()) => return None,
        None => ("", rest, ""),
    };
    let (before, after) = (plain(before)?, plain(after)?);
    choices.split('|').map(|choice| Some(format!("{start}{before}{}{after}{end}", plain(choice)?))).collect()
}

/// The literal text of a regular expression that has nothing else, escaped for a pattern; `.*` is a star.
fn plain(regex: &str) -> Option<String> {
    let pieces = regex.split(".*").map(|piece| {
        let mut made = String::new();
        let mut rest = piece.chars();
        while let Some(c) = rest.next() {
            match c {
                '\\' => made.push(rest.next().filter(|c| !c.is_alphanumeric())?),
                '.' | '*' | '+' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '|' | '^' | '$' => return None,
                c => made.push(c),
            }
        }
        Some(escape(&made))
    });
    Some(pieces.collect::<Option<Vec<_>>>()?.join("*"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regex_of_literals_becomes_patterns() {
        let check = |regex: &str, expected: Option<&[&str]>| {
            assert_eq!(
                of_regex(regex).as_deref(),
                expected.map(|list| list.iter().map(|&s| s.into()).collect::<Vec<String>>()).as_deref(),
                "{regex}"
            );
        };
        check("^(GET|HEAD)$", Some(&["GET", "HEAD"]));
        check("bot|spider", Some(&["*bot*", "*spider*"]));
        check("^www\\.", Some(&["www.*"]));
        check("^DavClnt", Some(&["DavClnt*"]));
        check("^a.*b$", Some(&["a*b"]));
        check("[ab]", None);
        check("^a|b", None);
        check("\\d", None);
    }

    #[test]
    fn origin_is_split_from_path() {
        let check = |target: &str, expected: (&str, &str)| assert_eq!(split_origin(target), expected);
        check("https://$host$request_uri", ("https://$host", "$request_uri"));
        check("https://a.example/b", ("https://a.example", "/b"));
        check("$scheme://a.example", ("$scheme://a.example", ""));
        check("/a/b", ("", "/a/b"));
    }
}
