//! Apache's mod_negotiation on the same files: every difference in the choice must have a reason.
//!
//! Debian's apache2 runs with MultiViews, its server-driven algorithm and `ForceLanguagePriority Prefer`. Both servers
//! receive seeded random fields, and must return the same variant, or both a 406. Each intended difference is an entry
//! of [`DIFFERENCES`], with its reason; an entry that no longer occurs fails too, so the list stays accurate.
//!
//! A further test reads the files of Apache's htpasswd.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::harness::{Client, Server, Site, let_files_settle};
use super::ports::free_addresses;
use super::requests::{Draw, Random};
use super::{peer, said};

/// A running apache2 with one process. Stopped when dropped.
struct Apache {
    child: Child,
    address: SocketAddr,
}

impl Apache {
    fn start(folder: &Path, root: &Path) -> Apache {
        let [address] = free_addresses();
        let modules: String = ["mpm_event", "authz_core", "mime", "negotiation", "dir"]
            .map(|name| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"))
            .concat();
        let text = format!(
            "ServerRoot {folder:?}\nServerName localhost\nListen {address}\nPidFile pid\nErrorLog error.log\n\
             User nobody\nGroup nogroup\n{modules}DocumentRoot {root:?}\nTypesConfig /dev/null\n\
             AddType text/html .html\nAddType text/plain .txt\nAddType application/pdf .pdf\nAddEncoding gzip .gz\n\
             AddLanguage en .en\nAddLanguage fr .fr\nAddLanguage pt-br .pt-br\n\
             AddCharset utf-8 .utf-8\nAddCharset iso-8859-1 .iso-8859-1\n\
             <Directory />\nOptions +MultiViews\nRequire all granted\n\
             LanguagePriority en fr pt-br\nForceLanguagePriority Prefer\n</Directory>\n"
        );
        let config = folder.join("apache.conf");
        fs::write(&config, text).unwrap();
        // One process, so that its id is enough to stop it.
        let mut command = peer("apache2");
        command.arg("-X").arg("-f").arg(&config).stdout(Stdio::null()).stderr(Stdio::null());
        let mut apache = Apache { child: command.spawn().unwrap(), address };
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            let ended = apache.child.try_wait().unwrap();
            let log = || fs::read_to_string(folder.join("error.log")).unwrap_or_default();
            assert!(ended.is_none() && begun.elapsed() < Duration::from_secs(60), "apache2 does not listen: {}", log());
            thread::sleep(Duration::from_millis(5));
        }
        apache
    }
}

impl Drop for Apache {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A field: its names, and their weights in tenths.
type Field = Vec<(&'static str, Option<u32>)>;

/// A request for a document; `None` means without that field.
#[derive(Clone, Debug)]
struct Request {
    target: &'static str,
    accept: Option<Field>,
    language: Option<Field>,
    charset: Option<Field>,
    encoding: Option<Field>,
}

impl Request {
    fn random(random: &mut Random) -> Request {
        let target = random.one_of(&["/a", "/b", "/c", "/d", "/e", "/f", "/g", "/h.html"]);
        let types = ["text/html", "text/plain", "application/pdf", "text/*", "*/*", "image/png"];
        let languages = ["en", "fr", "pt-br", "en-us", "fr-ch", "pt-pt", "pt", "de", "*"];
        Request {
            target,
            accept: field(random, 2, &types),
            language: field(random, 2, &languages),
            charset: field(random, if target == "/e" { 1 } else { 12 }, &["utf-8", "iso-8859-1", "*", "utf-16"]),
            encoding: field(random, 2, &["gzip", "identity", "deflate", "*"]),
        }
    }

    /// The fields as sent.
    fn text(&self) -> Vec<(&'static str, String)> {
        let text = |field: &Field| -> String {
            let element = |(name, weight): &(&str, Option<u32>)| match weight {
                None => (*name).to_owned(),
                Some(tenths) => format!("{name};q={}.{}", tenths / 10, tenths % 10),
            };
            field.iter().map(element).collect::<Vec<_>>().join(", ")
        };
        let fields = [
            ("Accept", &self.accept),
            ("Accept-Language", &self.language),
            ("Accept-Charset", &self.charset),
            ("Accept-Encoding", &self.encoding),
        ];
        fields.into_iter().filter_map(|(name, field)| Some((name, text(field.as_ref()?)))).collect()
    }
}

/// Draws a field in one request of `rarity`, with each name at most once, so that no name has two weights.
fn field(random: &mut Random, rarity: usize, names: &[&'static str]) -> Option<Field> {
    if random.below(rarity) > 0 {
        return None;
    }
    let mut left = names.to_vec();
    let count = 1 + random.below(names.len().min(4));
    let weighted = random.below(3) > 0;
    let mut one = || {
        let name = left.remove(random.below(left.len()));
        let weight = (weighted && random.below(4) > 0).then(|| random.one_of(&[0, 1, 2, 3, 5, 5, 8, 9, 10]));
        (name, weight)
    };
    Some((0..count).map(|_| one()).collect())
}

fn names(field: &Option<Field>, name: &str) -> bool {
    field.iter().flatten().any(|(known, _)| *known == name)
}

fn excludes(field: &Option<Field>, name: &str) -> bool {
    field.iter().flatten().any(|(known, weight)| *known == name && *weight == Some(0))
}

/// The reason why the two servers choose differently.
struct Difference {
    reason: &'static str,
    applies: fn(&Request) -> bool,
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        reason: "of two media types with the same weight, the named one is preferred here; Apache prefers it to a \
                 wildcard only if Accept contains no weight",
        applies: |query| {
            let weighted = query.accept.iter().flatten().any(|(_, weight)| weight.is_some());
            weighted && query.accept.iter().flatten().any(|(name, _)| name.ends_with('*'))
        },
    },
    Difference {
        reason: "a shortened range (en of en-us) keeps its weight here (RFC 4647, 3.4), and is not acceptable if that \
                 is 0; in Apache its weight is always 0.001",
        applies: |query| query.language.iter().flatten().any(|(name, _)| ["en-us", "fr-ch", "pt-pt"].contains(name)),
    },
    Difference {
        reason: "ISO-8859-1 is a charset like any other (RFC 9110, 12.5.2); Apache accepts it unless it is excluded, \
                 and assumes it for texts without a charset, as in RFC 2616",
        applies: |query| query.charset.is_some(),
    },
    Difference {
        reason: "an uncoded file is better than none, even if the client excludes identity (RFC 9110, 12.4.1); Apache \
                 rejects it",
        applies: |query| {
            let star = excludes(&query.encoding, "*") && !names(&query.encoding, "identity");
            star || excludes(&query.encoding, "identity")
        },
    },
    Difference {
        reason: "`*` in Accept-Encoding prefers coded files, and uncoded ones are the last resort; Apache ranks both \
                 equally, and sends the shortest",
        applies: |query| names(&query.encoding, "*"),
    },
    Difference {
        reason: "the coding is chosen after the variant, and so does not distinguish variants; in Apache each coded \
                 file is a variant, and is preferred to an uncoded one of another type",
        applies: |query| query.target == "/g" && names(&query.encoding, "gzip"),
    },
];

#[test]
fn negotiation_agrees_with_apache() {
    const REQUESTS: u32 = 8000;
    const SEED: u64 = 5;
    let site = Site::new();
    for (name, size) in [
        ("a.en.html", 500),
        ("a.fr.html", 400),
        ("a.pt-br.html", 300),
        ("b.html", 500),
        ("b.txt", 400),
        ("b.pdf", 300),
        ("c.en.html", 500),
        ("c.fr.html", 450),
        ("c.fr.txt", 400),
        ("c.pdf", 600),
        ("d.en.html", 500),
        ("d.en.html.gz", 100),
        ("d.fr.html", 300),
        ("e.html.utf-8", 500),
        ("e.html.iso-8859-1", 400),
        ("f.en.html.gz", 200),
        ("f.fr.html", 400),
        ("g.html", 500),
        ("g.html.gz", 100),
        ("g.txt", 300),
        ("h.html.en", 500),
        ("h.html.fr", 400),
    ] {
        let path = site.file(name, format!("{name} ").repeat(size));
        fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
    }
    fs::set_permissions(site.path(), Permissions::from_mode(0o755)).unwrap();
    let_files_settle();
    let folder = tempfile::tempdir().unwrap();
    let apache = Apache::start(folder.path(), site.path());
    let rule = "precompressed = ['gzip']\n[[site.negotiation]]\nmatch = '**'\nlanguages = ['en', 'fr', 'pt-BR']\n\
                charsets = ['utf-8', 'iso-8859-1']\nunacceptable = '406'";
    let server = Server::with_site(&site, rule);

    let mut random = Random(SEED);
    let mut to_amped = server.connect();
    let mut to_apache = Client::connect(apache.address);
    // Differences that were the only explanation at least once.
    let mut seen = BTreeSet::new();
    let mut sent = BTreeMap::<String, u32>::new();
    let mut unexplained = Vec::new();
    for _ in 0..REQUESTS {
        let query = Request::random(&mut random);
        let fields = query.text();
        let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, &**value)).collect();
        let theirs = ask(&mut to_apache, apache.address, query.target, &fields);
        let ours = ask(&mut to_amped, server.address, query.target, &fields);
        *sent.entry(ours.clone()).or_default() += 1;
        if theirs != ours {
            let applying = (0..DIFFERENCES.len()).filter(|&n| (DIFFERENCES[n].applies)(&query));
            match applying.collect::<Vec<_>>()[..] {
                [] => unexplained.push(format!("apache {theirs}, amped {ours}: {} {fields:?}\n", query.target)),
                [alone] => _ = seen.insert(alone),
                [..] => {}
            }
        }
    }
    println!("{sent:?}, differences {seen:?}");
    let text: String = unexplained.iter().take(10).cloned().collect();
    assert!(unexplained.is_empty(), "{} unexplained differences, among them\n{text}", unexplained.len());
    for (n, difference) in DIFFERENCES.iter().enumerate() {
        assert!(seen.contains(&n), "this difference no longer occurs: {}", difference.reason);
    }
    // Every file was the best choice of some request, and some request had none.
    assert_eq!(sent.len(), 22 + 1, "{sent:?}");
}

/// Returns the name of the file in the response, taken from its content, or the status of a response without a file.
fn ask(client: &mut Client, address: SocketAddr, target: &str, fields: &[(&str, &str)]) -> String {
    client.send_request("GET", target, fields);
    let response =
        client.try_response("GET").unwrap_or_else(|error| panic!("{error}: {target} {fields:?} to {address}"));
    if response.field("Connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
        *client = Client::connect(address);
    }
    match response.status {
        200 => response.text().split(' ').next().unwrap_or_default().to_owned(),
        status => status.to_string(),
    }
}

/// Every hash that `htpasswd` and `openssl passwd` write, except unsupported ones.
#[test]
fn htpasswd_and_openssl_hashes_are_accepted() {
    let site = Site::new();
    site.file("index.html", "inside");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users");
    let htpasswd =
        [("-B", "ann"), ("-m", "bob"), ("-s", "carl"), ("-2", "dora"), ("-5", "emil"), ("-d", "des"), ("-p", "plain")];
    for (n, (form, name)) in htpasswd.into_iter().enumerate() {
        let flags = if n == 0 { "-cb" } else { "-b" };
        said(peer("htpasswd").args([flags, form]).arg(&file).args([name, "ge:heim"]));
    }
    let mut text = fs::read_to_string(&file).unwrap();
    for (form, name) in [("-apr1", "fritz"), ("-1", "gerd"), ("-5", "hans"), ("-6", "inge")] {
        text += &format!("{name}:{}", said(peer("openssl").args(["passwd", form, "ge:heim"])));
        text += "\n";
    }
    text = text.replace("\n\n", "\n");
    fs::write(&file, &text).unwrap();
    let_files_settle();
    let server = Server::with_site(&site, &format!("[[site.auth]]\ndirectory = '/'\naccounts = {file:?}"));
    let url = format!("http://{}/", server.address);
    let status =
        |pair: &str| said(peer("curl").args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "-u", pair, &url]));
    for name in ["ann", "bob", "carl", "dora", "emil", "fritz", "gerd", "hans", "inge"] {
        assert_eq!([status(&format!("{name}:ge:heim")), status(&format!("{name}:geheim"))], ["200", "401"], "{name}");
    }
    assert_eq!([status("des:ge:heim"), status("plain:ge:heim")], ["401", "401"]);

    let config = site.file(
        "amped.toml",
        format!("root = '.'\n[[site]]\nroot = '.'\nhosts = ['a']\n[[site.auth]]\ndirectory = '/'\naccounts = {file:?}"),
    );
    let words = said(super::harness::program().args(["check", "--config"]).arg(&config));
    let warned: Vec<&str> = words.lines().filter(|line| line.starts_with("warning: ")).collect();
    let place = |line: usize| format!("warning: {}:{line}: invalid entry: ", file.display());
    assert!(warned.len() == 2 && warned[0].starts_with(&place(6)) && warned[1].starts_with(&place(7)), "{words}");
}
