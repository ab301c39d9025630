//! The command line as it was typed.
//!
//! clap checks each flag alone and ends with status 2. What flags and file mean together is `checked`'s business, so
//! an absent flag is `None` here and no default is filled in. Help, manual and completions come from [`command`].

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, PossibleValue, PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use super::optimise::ALL;
use super::schema;
use super::settings::{Architecture, ContentMode, HelperKind, LogFormat, LogTarget, Residency, parse_listen};

/// The command to carry out.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Serve a folder
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(Box<Serve>),
    /// Load the new version of pages into a running server
    #[command(after_help = PRELOAD_EXAMPLES)]
    Preload(Preload),
    /// Check a configuration file
    #[command(after_help = CHECK_EXAMPLES)]
    Check(Check),
    /// Print the example, the reference or the JSON Schema of the configuration file
    Config(Config),
}

/// The flags of `amped serve`.
#[derive(Args, Clone, Debug, Default)]
#[allow(missing_docs, reason = "a flag that sets a key has the description of the key")]
pub struct Serve {
    /// Folder to serve: the root of the default site [default: the root in the configuration]
    pub dir: Option<PathBuf>,
    /// Address and port to listen on; may be given again. `*:8080` is every address, IPv4 and IPv6,
    /// and an IPv6 address stands in brackets: `[::1]:8080` [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_listen, verbatim_doc_comment)]
    pub listen: Vec<SocketAddr>,
    /// Configuration file (TOML); a flag goes before what it says [default: none]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[arg(long, value_enum, help = help("architecture"))]
    pub architecture: Option<Architecture>,
    #[arg(long, value_name = "N", value_parser = number("workers"), help = help("workers"))]
    pub workers: Option<usize>,
    #[arg(long, value_name = "N", value_parser = number("helpers.max"), help = help("helpers.max"))]
    pub helpers: Option<usize>,
    #[arg(long = "helpers-kind", value_enum, value_name = "KIND", help = help("helpers.kind"))]
    pub helpers_kind: Option<HelperKind>,
    #[arg(long, value_enum, value_name = "TEST", help = help("send.residency"))]
    pub residency: Option<Residency>,
    #[arg(long, value_enum, value_name = "MODE", help = help("send.content"))]
    pub content: Option<ContentMode>,
    #[arg(long, value_name = "FILE|-|off", value_parser = log_target(), help = help("log.access"))]
    pub access_log: Option<LogTarget>,
    #[arg(long, value_enum, value_name = "FORMAT", help = help("log.format"))]
    pub log_format: Option<LogFormat>,
    /// List folders that have no index page, on every site [default: they are forbidden]
    #[arg(long)]
    pub listing: bool,
    /// Optimisations to disable, separated by commas, or `all`
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = switches(true))]
    pub without: Vec<String>,
    /// Optimisations to enable, also with `--without all`
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = switches(false))]
    pub with: Vec<String>,
    #[arg(long, value_name = "NAME", help = help("user"))]
    pub user: Option<String>,
    #[arg(long, value_name = "SOCKET", help = help("control.socket"))]
    pub control: Option<PathBuf>,
    #[arg(long, value_name = "FILE", help = help("metrics.file"))]
    pub metrics_file: Option<PathBuf>,
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_listen, help = help("metrics.listen"))]
    pub metrics_listen: Option<SocketAddr>,
    /// Print the whole configuration as it would be used, defaults included, and end
    #[arg(long)]
    pub print_config: bool,
}

/// The flags of `amped check`.
#[derive(Args, Clone, Debug)]
pub struct Check {
    /// Configuration file to check
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
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
    /// Host name whose site the paths are of [default: the default site]
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    /// One JSON object a line
    #[arg(long)]
    pub json: bool,
    /// Paths as in a URL; one with a slash at its end is a folder's index page
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<OsString>,
}

/// Reads the command line, the program's name first. The error prints itself and knows its exit status: help and
/// version are 0, wrong usage 2. Bare, without a command, the answer is the help.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, clap::Error> {
    let args: Vec<OsString> = args.into_iter().collect();
    if args.len() <= 1 {
        return Amped::try_parse_from(["amped", "--help"]).map(|amped| amped.command);
    }
    Amped::try_parse_from(args).map(|amped| amped.command)
}

/// The whole command line, for manual pages and completions.
pub fn command() -> clap::Command {
    Amped::command()
}

/// A web server whose event loop never waits for the disk
#[derive(Parser)]
#[command(name = "amped", version, after_help = EXAMPLES)]
struct Amped {
    #[command(subcommand)]
    command: Command,
}

/// The description of a key of the configuration, and its default, for the flag that sets it.
fn help(key: &str) -> String {
    let way: Vec<&str> = key.split('.').collect();
    let schema = schema::of(&way);
    let about = schema::description(schema).0;
    match &schema["default"] {
        serde_json::Value::String(default) => format!("{about} [default: {default}]"),
        serde_json::Value::Null => about,
        default => format!("{about} [default: {default}]"),
    }
}

/// Reads a number in the range of a key of the configuration.
fn number(key: &str) -> RangedU64ValueParser<usize> {
    let way: Vec<&str> = key.split('.').collect();
    let schema = schema::of(&way);
    let (least, most) = (schema["minimum"].as_u64().unwrap_or(0), schema["maximum"].as_u64());
    let parser = RangedU64ValueParser::new().range(least..);
    most.map_or(parser, |most| parser.range(..=most))
}

/// The names of the switches in `[optimise]`, as flags have them.
fn switches(has_all: bool) -> PossibleValuesParser {
    // clap keeps names for ever.
    let value = |(name, schema): (&str, _)| {
        let name: &'static str = name.replace('_', "-").leak();
        PossibleValue::new(name).help(schema::description(schema).0)
    };
    let all = has_all.then(|| PossibleValue::new(ALL).help("All of them"));
    PossibleValuesParser::new(schema::keys(schema::of(&["optimise"])).map(value).chain(all))
}

fn log_target() -> impl TypedValueParser<Value = LogTarget> {
    OsStringValueParser::new().try_map(|text| match text.is_empty() {
        true => Err("give a file, `-` for standard output, or `off`"),
        false => Ok(LogTarget::from(text.as_os_str())),
    })
}

const EXAMPLES: &str = "\
Examples:
  amped serve examples/site              serve a folder on http://127.0.0.1:8080/
  amped serve --config amped.toml        serve by a configuration file
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

Exit status: 0 if the file is good, 1 if something is wrong with it.";

const PRELOAD_EXAMPLES: &str = "\
Examples:
  amped preload --control /run/amped/control /index.html /news/
  amped preload --control /run/amped/control --host static.example.org /app.js
  find . -type f -printf '/%P\\0' | xargs -0 amped preload --control /run/amped/control

Each worker forgets what it knows of the name, that it is not there included, and looks it up anew; when this ends, all
of them serve what is there now. A line for each path says what was found, as the status of a request for it. A path is
that of a URL: a % begins an escape (%25 is a %), and a ? is part of the name.

Exit status: 0 if all workers have loaded all paths, 1 if not, 2 for wrong usage.";

#[cfg(test)]
mod tests {
    use super::*;

    fn serve(args: &[&str]) -> Result<Serve, clap::Error> {
        let args = ["amped", "serve"].iter().chain(args).map(OsString::from);
        match parse(args)? {
            Command::Serve(serve) => Ok(*serve),
            Command::Check(_) | Command::Config(_) | Command::Preload(_) => panic!("asked to serve"),
        }
    }

    #[test]
    fn command_line_definition_is_valid() {
        command().debug_assert();
    }

    #[test]
    fn no_arguments_prints_help_with_example() {
        let help = parse([OsString::from("amped")]).expect_err("there is no command");
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
        check(&["--listen", "8080"], "`*:8080`");
        check(&["--workers", "0"], "--workers");
        check(&["--architecture", "ample"], "amped");
        check(&["--log-format", "combine"], "combined");
        check(&["--lisning"], "--listing");
        check(&["a", "b"], "'b'");
    }

    #[test]
    fn every_flag_is_parsed() {
        let read = serve(&[
            "site",
            "--listen=*:80",
            "--listen=[::1]:81",
            "--config=a.toml",
            "--architecture=amped",
            "--workers=3",
            "--helpers=5",
            "--helpers-kind=processes",
            "--residency=clock",
            "--content=mmap",
            "--access-log=-",
            "--log-format=json",
            "--listing",
            "--user=www-data",
            "--control=sock",
            "--metrics-file=/run/m",
            "--metrics-listen=127.0.0.1:9145",
            "--print-config",
            "--without=all,path-cache",
            "--with=dns-cache",
        ])
        .unwrap();
        assert_eq!(read.dir, Some(PathBuf::from("site")));
        assert_eq!(read.listen, ["[::]:80".parse().unwrap(), "[::1]:81".parse().unwrap()]);
        assert_eq!(read.config, Some(PathBuf::from("a.toml")));
        assert_eq!(read.architecture, Some(Architecture::Amped));
        assert_eq!((read.workers, read.helpers), (Some(3), Some(5)));
        assert_eq!(read.helpers_kind, Some(HelperKind::Processes));
        assert_eq!((read.residency, read.content), (Some(Residency::Clock), Some(ContentMode::Mmap)));
        assert_eq!((read.access_log, read.log_format), (Some(LogTarget::Stdout), Some(LogFormat::Json)));
        assert_eq!(read.without, ["all", "path-cache"]);
        assert_eq!(read.with, ["dns-cache"]);
        assert_eq!(read.control, Some(PathBuf::from("sock")));
        assert_eq!(read.metrics_file, Some(PathBuf::from("/run/m")));
        assert_eq!(read.metrics_listen, Some("127.0.0.1:9145".parse().unwrap()));
        assert_eq!((read.listing, read.user.as_deref(), read.print_config), (true, Some("www-data"), true));
    }
}
