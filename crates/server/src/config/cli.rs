//! The command line.
//!
//! A flag that sets a key of the configuration file has no meaning of its own: its value replaces that of the key
//! ([`Serve::overrides`]), and is parsed and checked as if it were in the file. clap rejects unknown flags, and
//! generates help, manual and completions, whose texts come from the schema ([`command`]).

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, ValueHint};
use clap::{Arg, ArgAction, ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use serde_json::Value;

use super::optimise::Optimise;
use super::schema;

/// The command to carry out.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Serve a directory
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(Box<Serve>),
    /// Reload pages into the caches of a running server
    #[command(after_help = PRELOAD_EXAMPLES)]
    Preload(Preload),
    /// Show, renew or revoke certificates that a running server obtains (ACME)
    #[command(after_help = ACME_EXAMPLES)]
    Acme(Acme),
    /// Replace a running server by the current version of its program, without closing connections
    #[command(after_help = UPGRADE_EXAMPLES)]
    Upgrade(Upgrade),
    /// Check a configuration file
    #[command(after_help = CHECK_EXAMPLES)]
    Check(Check),
    /// Print the example, the reference or the JSON Schema of the configuration file
    Config(Config),
    /// Convert a configuration of nginx
    #[command(after_help = CONVERT_EXAMPLES)]
    Convert(Convert),
}

/// The flags of `amped serve`.
#[derive(Args, Clone, Debug, Default)]
pub struct Serve {
    /// Directory to serve: the root of the default site [default: the root in the configuration]
    pub dir: Option<PathBuf>,
    /// Configuration file (TOML); flags override it [default: none]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Flags that set a key of the configuration
    #[command(flatten)]
    pub keys: Keys,
    /// List directories without an index page, on every site [default: respond with 403]
    #[arg(long)]
    pub listing: bool,
    /// Optimisations to disable, separated by commas, or `all`
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub without: Vec<String>,
    /// Optimisations to enable, also with `--without all`
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub with: Vec<String>,
    /// Print the complete configuration, with defaults, and exit
    #[arg(long)]
    pub print_config: bool,
}

/// The flags that set a key: flag, key, and the name of the value in the help. Description, default, choices and checks
/// are those of the key.
const KEYS: [(&str, &str, &str); 13] = [
    ("listen", "listen", "ADDR:PORT"),
    ("architecture", "architecture", "ARCHITECTURE"),
    ("workers", "workers", NUMBER),
    ("helpers", "helpers.max", NUMBER),
    ("helpers-kind", "helpers.kind", "KIND"),
    ("residency", "send.residency", "TEST"),
    ("content", "send.content", "MODE"),
    ("access-log", "log.access", "FILE|-|off"),
    ("log-format", "log.format", "FORMAT"),
    ("user", "user", "NAME"),
    ("control", "control.socket", "SOCKET"),
    ("metrics-file", "metrics.file", "FILE"),
    ("metrics-listen", "metrics.listen", "ADDR:PORT"),
];

const NUMBER: &str = "N";

/// The value of `--without` for all switches.
const ALL: &str = "all";

/// Values of the flags in [`KEYS`], each with flag and key, as TOML.
#[derive(Clone, Debug, Default)]
pub struct Keys(Vec<Override>);

/// A key that a flag sets.
#[derive(Clone, Debug)]
pub(super) struct Override {
    pub(super) flag: &'static str,
    /// The table that has the key; empty for the top level.
    pub(super) table: &'static str,
    pub(super) key: String,
    /// The value as TOML.
    pub(super) value: String,
}

impl Override {
    fn new(flag: &'static str, path: &'static str, value: impl Into<toml::Value>) -> Override {
        let (table, key) = path.rsplit_once('.').unwrap_or(("", path));
        Override { flag, table, key: key.to_owned(), value: value.into().to_string() }
    }
}

impl Serve {
    /// The keys that flags set.
    pub(super) fn overrides(&self) -> Vec<Override> {
        let mut all = self.keys.0.clone();
        for (flag, names, value) in [("without", &self.without, false), ("with", &self.with, true)] {
            let every = names.iter().any(|name| name == ALL).then(Optimise::names);
            let names = every.as_ref().unwrap_or(names).iter().map(|name| name.replace('-', "_"));
            all.extend(names.map(|key| Override { flag, table: "optimise", key, value: value.to_string() }));
        }
        all
    }
}

impl FromArgMatches for Keys {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Keys, clap::Error> {
        let value = |(flag, key, value_name)| {
            let given: Vec<&str> = matches.get_many::<String>(flag)?.map(String::as_str).collect();
            Some(match (given.last()?.parse::<i64>(), flag) {
                (_, "listen") => Override::new(flag, key, given),
                (Ok(number), _) if value_name == NUMBER => Override::new(flag, key, number),
                _ => Override::new(flag, key, *given.last()?),
            })
        };
        Ok(Keys(KEYS.into_iter().filter_map(value).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Keys::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Keys {
    fn augment_args(command: clap::Command) -> clap::Command {
        command.args(KEYS.map(|(flag, _, value_name)| {
            let arg = Arg::new(flag).long(flag).value_name(value_name);
            if flag == "listen" { arg.action(ArgAction::Append) } else { arg }
        }))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Keys::augment_args(command)
    }
}

/// The whole command line with descriptions and choices, for help, errors, manual pages and completions.
pub fn command() -> clap::Command {
    Amped::command().mut_subcommand("serve", |serve| {
        let serve = KEYS.iter().fold(serve, |serve, (flag, key, value_name)| {
            let schema = schema::of(&key.split('.').collect::<Vec<_>>());
            serve.mut_arg(flag, |arg| {
                let is_path = ["FILE", "FILE|-|off", "SOCKET"].contains(value_name);
                let arg = if is_path { arg.value_hint(ValueHint::AnyPath) } else { arg };
                possible(arg.help(help(schema)), schema::choices(schema))
            })
        });
        let switches = schema::keys(schema::of(&["optimise"]));
        let switches: Vec<_> = switches.map(|(name, schema)| (name, schema::description(schema).0)).collect();
        let all = [(ALL, "All of them".to_owned())];
        let without = switches.iter().cloned().chain(all).collect();
        serve.mut_arg("with", |arg| possible(arg, switches)).mut_arg("without", |arg| possible(arg, without))
    })
}

/// Limits an argument to these values, if there are any.
fn possible(arg: Arg, choices: Vec<(&'static str, String)>) -> Arg {
    if choices.is_empty() {
        return arg;
    }
    // clap requires static names.
    let value = |(name, about): (&str, String)| PossibleValue::new(&*name.replace('_', "-").leak()).help(about);
    arg.value_parser(PossibleValuesParser::new(choices.into_iter().map(value)))
}

/// The description of a key and its default.
fn help(schema: &Value) -> String {
    let about = schema::description(schema).0;
    match &schema["default"] {
        Value::Null => about,
        Value::String(default) => format!("{about} [default: {default}]"),
        Value::Array(defaults) => {
            let defaults: Vec<&str> = defaults.iter().filter_map(Value::as_str).collect();
            format!("{about}; may be repeated [default: {}]", defaults.join(", "))
        }
        default => format!("{about} [default: {default}]"),
    }
}

/// The flags of `amped check`.
#[derive(Args, Clone, Debug)]
pub struct Check {
    /// Configuration file to check
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

/// The flags of `amped convert`.
#[derive(Args, Clone, Debug)]
pub struct Convert {
    /// Configuration file of nginx, or a file of servers such as those in sites-available
    #[arg(value_name = "NGINX_CONF")]
    pub config: PathBuf,
    /// File to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// The flags of `amped config`.
#[derive(Args, Clone, Debug)]
pub struct Config {
    /// Page to print
    #[arg(value_enum)]
    pub page: Page,
}

/// A page about the configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Page {
    /// A commented example to start from
    Example,
    /// All keys with their defaults, in Markdown
    Reference,
    /// JSON Schema for editors
    Schema,
}

/// The flags of `amped preload`.
#[derive(Args, Clone, Debug)]
pub struct Preload {
    /// Socket of the server: its `--control`, or `[control] socket` in its configuration
    #[arg(long, value_name = "SOCKET")]
    pub control: PathBuf,
    /// Host name of the site that has the paths [default: the default site]
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
    /// URL paths; a path that ends in a slash is the index page of a directory
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<OsString>,
}

/// The flags of `amped acme`.
#[derive(Args, Clone, Debug)]
pub struct Acme {
    /// What to do
    #[command(subcommand)]
    pub action: AcmeAction,
    /// Socket of the server: its `--control`, or `[control] socket` in its configuration
    #[arg(long, value_name = "SOCKET", global = true, required = false, default_value = "/run/amped/control")]
    pub control: PathBuf,
}

/// The flags of `amped upgrade`.
#[derive(Args, Clone, Debug)]
pub struct Upgrade {
    /// Socket of the server: its `--control`, or `[control] socket` in its configuration
    #[arg(long, value_name = "SOCKET", default_value = "/run/amped/control")]
    pub control: PathBuf,
}

/// What `amped acme` does.
#[derive(Clone, Debug, Subcommand)]
pub enum AcmeAction {
    /// Show each certificate, its expiry, and when it is renewed
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Obtain a new certificate now, for all names of the site with this name
    Renew {
        /// A name of the certificate
        name: String,
    },
    /// Revoke the certificate of this name, and obtain another one with another key
    Revoke {
        /// A name of the certificate
        name: String,
    },
}

/// Parses the command line, which begins with the program's name. The error can print itself and has an exit status: 0
/// for help and version, 2 for wrong usage. Without a command the result is the help.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, clap::Error> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    if args.len() <= 1 {
        args = ["amped", "--help"].map(OsString::from).into();
    }
    // Descriptions and choices come from the schema; building it takes four times as long as the rest of a start.
    Amped::try_parse_from(&args)
        .or_else(|_| Amped::from_arg_matches(&command().try_get_matches_from(&args)?))
        .map(|amped| amped.command)
}

/// A web server whose event loop never waits for the disk
#[derive(Parser)]
#[command(name = "amped", version, after_help = EXAMPLES)]
struct Amped {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  amped serve examples/site              serve a directory on http://127.0.0.1:8080/
  amped serve --config amped.toml        serve with a configuration file
  amped serve --help                     all flags, and their defaults";

const SERVE_EXAMPLES: &str = "\
Examples:
  amped serve examples/site
  amped serve ~/photos --listing --listen '*:8080' --access-log -
  amped serve --config /etc/amped.toml --workers 4
  amped serve --config amped.toml --print-config > whole.toml";

const CHECK_EXAMPLES: &str = "\
Example:
  amped check --config examples/amped.toml

Exit status: 0 if the file is valid, 1 if not.";

const CONVERT_EXAMPLES: &str = "\
Example:
  amped convert /etc/nginx/nginx.conf -o amped.toml && amped check --config amped.toml

Directives that have no equivalent are listed on standard error, and are comments at their place in the output.

Exit status: 0 if all was converted, 3 if something is left, 1 if the file cannot be read, 2 for wrong usage.";

const ACME_EXAMPLES: &str = "\
Examples:
  amped acme status
  amped acme renew www.example.org --control /run/amped/control

Renewals need no command: the server renews each certificate in time. `renew` does not wait for a delay after a failure; the
rate limits of the CA still apply.

Exit status: 0 if the command was carried out, 1 if not, 2 for wrong usage.";

const UPGRADE_EXAMPLES: &str = "\
Example:
  amped upgrade --control /run/amped/control

The server starts the program again, from the path from which it was started itself and with the same arguments, hands its
listeners over, and ends after the responses in progress. If the new process does not start, the old one goes on, and the
command prints the reason. SIGUSR2 has the same effect.

Exit status: 0 if a new process serves, 1 if not, 2 for wrong usage.";

const PRELOAD_EXAMPLES: &str = "\
Examples:
  amped preload --control /run/amped/control /index.html /news/
  amped preload --control /run/amped/control --host static.example.org /app.js
  find . -type f -printf '/%P\\0' | xargs -0 amped preload --control /run/amped/control

Each worker discards its cache entries for the path, including negative ones, and looks it up again. When the command
exits, all workers serve the current version. It prints a line for each path with the status that a request for it would
get. In a path, % begins an escape (%25 is a %), and ? is part of the name.

Exit status: 0 if all workers have loaded all paths, 1 if not, 2 for wrong usage.";

#[cfg(test)]
mod tests {
    use super::*;

    fn serve(args: &[&str]) -> Result<Serve, clap::Error> {
        let args = ["amped", "serve"].iter().chain(args).map(OsString::from);
        match parse(args)? {
            Command::Serve(serve) => Ok(*serve),
            Command::Acme(_)
            | Command::Check(_)
            | Command::Config(_)
            | Command::Convert(_)
            | Command::Preload(_)
            | Command::Upgrade(_) => {
                panic!("expected `serve`")
            }
        }
    }

    #[test]
    fn command_line_definition_is_valid() {
        command().debug_assert();
    }

    #[test]
    fn no_arguments_prints_help_with_example() {
        let help = parse([OsString::from("amped")]).expect_err("no command given");
        assert_eq!(help.exit_code(), 0);
        assert!(help.to_string().contains("amped serve examples/site"), "{help}");
    }

    #[test]
    fn wrong_usage_exits_with_2() {
        let check = |args: &[&str], says: &str| {
            let error = serve(args).expect_err("wrong");
            assert_eq!(error.exit_code(), 2, "{args:?}");
            assert!(error.to_string().contains(says), "{args:?}: {error}");
        };
        check(&["--lisning"], "--listing");
        check(&["a", "b"], "'b'");
        check(&["--workers"], "--workers <N>");
    }
}
