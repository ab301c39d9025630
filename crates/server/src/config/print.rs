//! Prints the configuration, with descriptions from its schema: the one in force (`amped serve --print-config`), an
//! example to start from, and the reference.
//!
//! The printed configuration parses to the same settings in any directory, since its paths are absolute. It has every
//! key, those without a value as comments, so that it also lists everything that can be set.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::file::File;
use super::schema::{self, schema};

/// The configuration that is in force, as a file.
pub(super) fn print(file: &File) -> String {
    let mut page = Page("# The complete configuration of amped, with defaults and flags applied.\n\n".to_owned());
    page.table(schema(), &serde_json::to_value(file).unwrap_or_default(), "");
    page.0
}

/// Returns an example to start from: it sets only the keys needed to serve a directory, and has all others as comments.
pub(super) fn example() -> String {
    let site = json!([{ "root": "site", "listing": true }]);
    let set = json!({ "listen": ["127.0.0.1:8080", "[::1]:8080"], "log": { "access": "-" }, "site": site });
    let mut page = Page(
        "#:schema amped.schema.json\n\
         # An example to start from. Serve it with      amped serve --config examples/amped.toml\n\
         # Check your own file with                     amped check --config FILE\n\
         #\n\
         # Every key is optional. A key in a comment has its default, or else an example value; flags override this file.\n\
         # docs/configuration.md describes each key, `amped serve --print-config` prints the values in force.\n\
         # Paths are relative to the directory of this file. Times are \"500ms\", \"10s\", \"2m\", \"1h\"; sizes 512, \"64KiB\", \"10MB\".\n\n"
            .to_owned(),
    );
    page.table(schema(), &set, "");
    page.0
}

/// The keys of `set` alone, without comments, as those of the table at this path, and after them its tables that are not lists.
pub(crate) fn keys_of(path: &[&str], set: &Value) -> String {
    let mut page = String::new();
    let (tables, keys): (Vec<_>, Vec<_>) = schema::keys(schema::table(schema::of(path)))
        .filter(|(key, _)| is_set(&set[*key]))
        .partition(|(_, schema)| schema::is_table(schema));
    for (key, _) in keys {
        let _ = writeln!(page, "{} = {}", name(key), literal(&set[key]));
    }
    for (key, _) in tables {
        let path: Vec<&str> = path.iter().copied().chain([key]).collect();
        let _ = write!(page, "\n[{}]\n{}", path.join("."), keys_of(&path, &set[key]));
    }
    page
}

struct Page(String);

impl Page {
    /// Appends the keys of a table, and the tables in it. `path` is empty for the whole file.
    fn table(&mut self, table: &Value, set: &Value, path: &str) {
        let (tables, keys): (Vec<_>, Vec<_>) = schema::keys(table).partition(|(_, schema)| schema::is_table(schema));
        for (key, schema) in keys {
            let is_rule = path.starts_with("site.");
            if is_set(&set[key]) {
                self.line(&format!("{} = {}", name(key), literal(&set[key])), &comment(schema));
            } else if !is_rule {
                self.line(&format!("# {} = {}", name(key), literal(shown(schema))), &comment(schema));
            }
        }
        for (key, schema) in tables {
            let path = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
            let (about, inner) = (schema::description(schema).0, schema::table(schema));
            if schema.get("items").is_none() {
                self.0.push('\n');
                // A table of a rule may have keys that it must have if it is there.
                if path.starts_with("site.") && !is_set(&set[key]) {
                    self.commented(inner, &format!("# [{path}]"), &about, &path);
                    continue;
                }
                self.line(&format!("[{path}]"), &about);
                self.table(inner, &set[key], &path);
                continue;
            }
            let elements = set[key].as_array().map_or(&[][..], Vec::as_slice);
            for element in elements {
                self.0.push('\n');
                self.line(&format!("[[{path}]]"), &about);
                self.table(inner, element, &path);
            }
            // The list of sites is printed without an example element.
            if elements.is_empty() && path.contains('.') {
                self.0.push('\n');
                self.commented(inner, &format!("# [[{path}]]"), &about, &path);
            }
        }
    }

    /// Appends a table that is not set, as a comment.
    fn commented(&mut self, table: &Value, header: &str, about: &str, path: &str) {
        self.line(header, about);
        let (tables, keys): (Vec<_>, Vec<_>) = schema::keys(table).partition(|(_, schema)| schema::is_table(schema));
        for (key, schema) in keys {
            self.line(&format!("# {} = {}", name(key), literal(shown(schema))), &comment(schema));
        }
        for (key, schema) in tables {
            let path = format!("{path}.{key}");
            self.commented(schema::table(schema), &format!("# [{path}]"), &schema::description(schema).0, &path);
        }
    }

    fn line(&mut self, line: &str, comment: &str) {
        let _ = match comment {
            "" => writeln!(self.0, "{line}"),
            // Writing to a string cannot fail.
            _ => writeln!(self.0, "{line:<40}  # {comment}"),
        };
    }
}

/// Returns whether a key is set: an empty table is not a value, an empty list is.
fn is_set(value: &Value) -> bool {
    !value.is_null() && value.as_object().is_none_or(|table| !table.is_empty())
}

/// Returns the value to show for a key that is not set: an example, else its default.
fn shown(schema: &Value) -> &Value {
    schema.get("examples").map_or(&schema["default"], |examples| &examples[0])
}

/// Returns the description of a key, with its possible values.
fn comment(schema: &Value) -> String {
    let about = schema::description(schema).0;
    let choices = if schema["type"] == "array" { Vec::new() } else { schema::choices(schema) };
    match choices.split_last() {
        None => about,
        Some(((last, _), others)) => {
            let others: Vec<&str> = others.iter().map(|(name, _)| *name).collect();
            format!("{about}: {} or {last}", others.join(", "))
        }
    }
}

/// Formats a value as TOML.
pub(super) fn literal(value: &Value) -> String {
    match value {
        Value::String(text) => toml::Value::from(text.as_str()).to_string(),
        Value::Array(list) => format!("[{}]", list.iter().map(literal).collect::<Vec<_>>().join(", ")),
        Value::Object(table) => {
            let entries = table.iter().map(|(key, value)| format!("{} = {}", name(key), literal(value)));
            format!("{{ {} }}", entries.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// Formats a key as TOML.
fn name(key: &str) -> String {
    let is_bare = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    if is_bare { key.to_owned() } else { literal(&key.into()) }
}

/// The reference of all keys, in Markdown.
pub(super) fn reference() -> String {
    let mut page = "# Configuration\n\n\
        `amped serve --config FILE` reads a file of TOML; [examples/amped.toml](../examples/amped.toml) is one to start from, \
        `amped check --config FILE` reports its errors, and `amped serve --print-config` prints all values in force. Flags \
        override the file. Paths are relative to the directory of the file. A time is a whole number with a unit: `500ms`, `10s`, `2m`, \
        `1h`; a size is a number of bytes or text such as `64KiB`, `10MB`, `1GiB`. A pattern matches paths: `*` within a directory, `**` \
        across directories, `?` one character, `{a,b}` either; one without a slash matches the name of a file in any directory. After \
        `~`, or `~*` for any case, it is a regular expression as in nginx, which matches anywhere in a path, without look-around and \
        backreferences: `'~^/uploads/.*\\.php$'`. SIGHUP reads the file again.\n\n\
        **Conditions.** `when` is a table of conditions that a request must fulfil, all of them, besides `match`. `methods = [\"POST\"]`: \
        the method is one of these. `hosts = [\"www.*\"]`: the host, in lower case, matches one of these patterns. `query = { action = \
        \"register\" }`: the decoded value of each of these parameters matches its pattern. `header = { User-Agent = \"*bot*\" }`: the same for \
        header fields, which `Vary` then names in all responses of the site. `scheme = \"https\"`, or `\"http\"`. In these patterns `*` \
        matches any text; an empty one matches a parameter or field that is missing or empty. `not = [{ hosts = [\"example.org\"] }]`: none \
        of these conditions holds.\n\n\
        Editors complete and check the file with [amped.schema.json](../examples/amped.schema.json). This page is generated: \
        `amped config reference`.\n"
        .to_owned();
    section(&mut page, schema(), "");
    page
}

fn section(page: &mut String, table: &Value, path: &str) {
    let (tables, keys): (Vec<_>, Vec<_>) = schema::keys(table).partition(|(_, schema)| schema::is_table(schema));
    *page += "\n| key | type | default | |\n|---|---|---|---|\n";
    for (key, schema) in keys {
        let (first, rest) = schema::description(schema);
        let mut about = if rest.is_empty() { first } else { format!("{first}. {rest}") };
        for (choice, meaning) in schema::choices(schema) {
            let _ = write!(about, "<br>`{choice}`: {meaning}");
        }
        let default = match &schema["default"] {
            // An optional value may be null, or is null by default.
            Value::Null if schema.get("default").is_none() && schema["type"].is_string() => "required".to_owned(),
            Value::Null => String::new(),
            default => format!("`{}`", literal(default)),
        };
        let _ = writeln!(page, "| `{key}` | {} | {default} | {} |", kind(schema), about.replace('|', "\\|"));
    }
    for (key, schema) in tables {
        let path = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        let header = if schema.get("items").is_some() { format!("[[{path}]]") } else { format!("[{path}]") };
        let (first, rest) = schema::description(schema);
        let _ = writeln!(page, "\n## `{header}`\n\n{first}.{}{rest}", if rest.is_empty() { "" } else { " " });
        section(page, schema::table(schema), &path);
    }
}

/// The type of a key, and its range.
fn kind(schema: &Value) -> String {
    let name = schema["type"].as_str().or(schema["type"][0].as_str()).unwrap_or("string");
    let name = match (schema["format"].as_str(), name) {
        (Some("bytes"), _) => "size",
        (Some(format @ ("time" | "pattern" | "address")), _) => format,
        (_, "array") => "list",
        (_, "object") => "table",
        (_, "string") => "text",
        (_, name) => name,
    };
    match (schema["minimum"].as_u64(), schema["maximum"].as_u64()) {
        (Some(least), Some(most)) if name == "integer" => format!("{name}, {least} to {most}"),
        (Some(least), None) if name == "integer" && least > 0 => format!("{name}, at least {least}"),
        _ if schema["x-positive"] == true => format!("{name}, not zero"),
        _ => name.to_owned(),
    }
}
