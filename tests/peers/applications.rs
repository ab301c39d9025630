//! Debian's applications, php-fpm with its own pool of five processes and git's smart HTTP, and slow clients.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::harness::{Client, Server, Site, need_root, pattern};
use super::php::Php;
use super::{peer, said};

#[test]
fn slow_clients_hold_no_php_process() {
    need_root("starts php-fpm, whose children are root's");
    let (site, beside) = (Site::new(), tempfile::tempdir().unwrap());
    let socket = beside.path().join("php.sock");
    site.file("count.php", "<?php echo strlen(file_get_contents('php://input'));");
    site.file("large.php", "<?php $s = str_repeat('x', 1 << 20); for ($i = 0; $i < 20; $i++) { echo $s; }");
    let _php = Php::like_debian(beside.path(), &socket);
    let app = format!("[[site.app]]\nmatch = \"*.php\"\nfastcgi = \"unix:{}\"", socket.display());
    let server = Server::with_site(&site, &app);
    let mut uploads: Vec<Client> = (0..8)
        .map(|_| {
            let mut client = server.connect();
            client.send_request("POST", "/count.php", &[("Content-Length", "200000")]);
            client.send(pattern(100_000));
            client
        })
        .collect();
    assert_eq!(server.get("/count.php").text(), "0");
    let mut downloads: Vec<Client> = (0..8)
        .map(|_| {
            let mut client = Client::connect_narrow(server.address, 4096);
            client.send_request("GET", "/large.php", &[]);
            assert!(client.read_head().starts_with("HTTP/1.1 200"));
            client
        })
        .collect();
    assert_eq!(server.get("/count.php").text(), "0");
    for client in &mut uploads {
        client.send(pattern(100_000));
        assert_eq!(client.response("POST").text(), "200000");
    }
    for client in &mut downloads {
        let body = client.read_chunks().unwrap();
        assert!(body.len() == 20 << 20 && body.iter().all(|&byte| byte == b'x'));
    }
}

#[test]
fn curl_decompresses_responses_of_php() {
    need_root("starts php-fpm, whose children are root's");
    let (site, beside) = (Site::new(), tempfile::tempdir().unwrap());
    let socket = beside.path().join("php.sock");
    site.file(
        "text.php",
        "<?php $n = (int) $_GET['n']; mt_srand($n); for ($i = 0; $i < $n; $i++) { echo mt_rand(), \"\\n\"; if ($i % 999 == 0) flush(); }",
    );
    let _php = Php::like_debian(beside.path(), &socket);
    for coding in ["br", "zstd", "gzip"] {
        let app = format!(
            "[[site.app]]\nmatch = \"*.php\"\nfastcgi = \"unix:{}\"\ncompress = ['{coding}']",
            socket.display()
        );
        let server = Server::with_site(&site, &app);
        for count in [0, 1, 1000, 200_000] {
            let url = format!("http://{}/text.php?n={count}", server.address);
            let got = |args: &[&str]| {
                let mut curl = peer("curl");
                curl.args([
                    "--disable",
                    "--silent",
                    "--show-error",
                    "--noproxy",
                    "*",
                    "-w",
                    "%header{content-encoding}",
                ]);
                said(curl.args(args).arg(&url))
            };
            let plain = got(&[]);
            assert_eq!(plain.lines().count(), count);
            assert!(got(&["--compressed"]) == plain + coding, "{coding} {count}");
        }
    }
}

#[test]
fn curl_streams_standard_input_to_php() {
    need_root("starts php-fpm, whose children are root's");
    let (site, beside) = (Site::new(), tempfile::tempdir().unwrap());
    let socket = beside.path().join("php.sock");
    site.file("put.php", "<?php echo $_SERVER['CONTENT_LENGTH'], ' ', md5(file_get_contents('php://input'));");
    let _php = Php::like_debian(beside.path(), &socket);
    let app = format!("[[site.app]]\nmatch = \"*.php\"\nfastcgi = \"unix:{}\"", socket.display());
    let server = Server::with_site(&site, &app);
    let path = beside.path().join("upload");
    fs::write(&path, pattern(3_000_000)).unwrap();
    let digest = said(peer("md5sum").arg(&path));
    let url = format!("http://{}/put.php", server.address);
    let mut curl = peer("curl");
    curl.args(["--disable", "--silent", "--show-error", "--noproxy", "*", "-T", "-", &url]);
    let answer = said(curl.stdin(fs::File::open(&path).unwrap()));
    assert_eq!(answer, format!("3000000 {}", &digest[..32]));
}

#[test]
fn git_pushes_with_chunked_encoding() {
    let (site, beside) = (Site::new(), tempfile::tempdir().unwrap());
    let folder = beside.path();
    let script = format!(
        "#!/bin/sh\nexport GIT_PROJECT_ROOT={} GIT_HTTP_EXPORT_ALL=1\nexec git http-backend\n",
        folder.display()
    );
    let path = site.file("cgi-bin/git", script);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let server = Server::with_site(&site, "[[site.app]]\nmatch = \"/cgi-bin/**\"\ncgi = true");
    let git = |args: &[&str]| {
        let mut command = peer("git");
        command.current_dir(folder).env("HOME", folder).env("GIT_CONFIG_NOSYSTEM", "1");
        command.args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "http.postBuffer=65536"]).args(args);
        said(&mut command)
    };
    git(&["init", "--quiet", "--bare", "there.git"]);
    git(&["-C", "there.git", "config", "http.receivepack", "true"]);
    git(&["-C", "there.git", "symbolic-ref", "HEAD", "refs/heads/m"]);
    git(&["init", "--quiet", "--initial-branch", "m", "here"]);
    // Incompressible, so that the pack is larger than what is sent at once.
    let mut state = 1_u64;
    let blob: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
    .take(4_000_000)
    .collect();
    fs::write(folder.join("here/blob"), &blob).unwrap();
    git(&["-C", "here", "add", "blob"]);
    git(&["-C", "here", "commit", "--quiet", "-m", "x"]);
    let url = format!("http://{}/cgi-bin/git/there.git", server.address);
    git(&["-C", "here", "push", "--quiet", &url, "m"]);
    git(&["clone", "--quiet", &url, "again"]);
    assert!(fs::read(folder.join("again/blob")).unwrap() == blob);
}
