//! The bandwidth of responses: they average their rate, delay no other, and cost no processor time while they wait.
//!
//! A response takes five seconds at its rate. It may not be much faster, and not twice as slow, even on a busy machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::{Duration, Instant};

use super::frames::Http2;
use super::harness::*;

const KB: usize = 1000;

/// A large file, one that is cached in memory, and a script that writes as much.
fn site() -> Site {
    let site = Site::new();
    site.file("slow/large", pattern(4000 * KB));
    site.file("slow/small", pattern(50 * KB));
    site.file("shared/large", pattern(1000 * KB));
    site.file("shared/small", pattern(50 * KB));
    site.file("shared/tiny", pattern(2 * KB));
    site.file("fast/large", pattern(4000 * KB));
    let text = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'\nhead -c 500000 /dev/zero\n";
    let script = site.file("cgi-bin/zeros", text);
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let_files_settle();
    site
}

fn serve(site: &Site) -> Server {
    let tables = "[[site.limit]]\nmatch = '/slow/large'\nrate = '400kB/s'\nrate_after = '2MB'\n\
                  [[site.limit]]\nmatch = '/slow/small'\nrate = '10kB/s'\n\
                  [[site.limit]]\nmatch = '/shared/**'\nconnection_rate = '400kB/s'\n\
                  [[site.limit]]\nmatch = '/cgi-bin/**'\nrate = '100kB/s'\n\
                  [[site.app]]\nmatch = '/cgi-bin/**'\ncgi = true\n\
                  [send]\nsendfile_min_age = '0s'\n";
    Server::with_site(site, tables)
}

/// Never sooner than the bandwidth permits; on a busy machine later, but at some time.
fn assert_is_five_seconds(took: Duration, what: &str) {
    let seconds = took.as_secs_f64();
    assert!((4.5..60.0).contains(&seconds), "{what}: {seconds} s");
}

#[test]
fn responses_average_their_rate_without_using_the_processor() {
    let site = site();
    let server = serve(&site);
    // The second one is from the cache.
    let mut warm = server.connect();
    warm.send_request("HEAD", "/slow/small", &[]);
    assert_eq!(warm.response("HEAD").status, 200);
    let before = server.cpu_time();
    let begin = Instant::now();
    thread::scope(|scope| {
        for (target, length) in [("/slow/large", 4000 * KB), ("/slow/small", 50 * KB), ("/cgi-bin/zeros", 500 * KB)] {
            let server = &server;
            scope.spawn(move || {
                let mut client = server.connect();
                let body = client.get(target).body;
                assert_is_five_seconds(begin.elapsed(), target);
                assert_eq!(body.len(), length);
                assert!(target.starts_with("/cgi-bin") || body == pattern(length), "{target}");
                // The connection goes on at its own speed.
                assert_eq!(client.get("/fast/large").body.len(), 4000 * KB);
            });
        }
        // Others are not delayed.
        assert_eq!(server.get("/fast/large").body.len(), 4000 * KB);
        assert!(begin.elapsed() < Duration::from_secs(4));
        thread::sleep(Duration::from_secs(1));
    });
    let used = server.cpu_time() - before;
    assert!(used < Duration::from_secs(2), "{used:?} of processor time");
}

#[test]
fn bytes_before_the_limit_are_fast() {
    let site = site();
    let server = serve(&site);
    let begin = Instant::now();
    let mut client = server.connect();
    let range = [("Range", "bytes=100-1999999")];
    assert_eq!(client.request("GET", "/slow/large", &range).body, pattern(4000 * KB)[100..2000 * KB]);
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
}

#[test]
fn pipelined_responses_have_bandwidths_of_their_own() {
    let site = site();
    let server = serve(&site);
    let mut client = server.connect();
    let begin = Instant::now();
    for target in ["/fast/large", "/slow/small", "/fast/large"] {
        client.send_request("GET", target, &[]);
    }
    assert_eq!(client.response("GET").body.len(), 4000 * KB);
    assert!(begin.elapsed() < Duration::from_secs(4));
    assert_eq!(client.response("GET").body, pattern(50 * KB));
    assert_is_five_seconds(begin.elapsed(), "the second");
    assert_eq!(client.response("GET").body.len(), 4000 * KB);
    assert!(begin.elapsed() < Duration::from_secs(9));
}

/// Requests these targets in streams of one connection, each of which is to be slow, and a fast one beside them.
/// Returns how many bytes each response has, and when it was complete, in their order.
fn paced_streams(targets: &[&str]) -> Vec<(usize, Duration)> {
    let site = site();
    let server = serve(&site);
    let mut http2 = Http2::connect(&server);
    let before = server.cpu_time();
    let begin = Instant::now();
    let paced: Vec<_> = targets.iter().map(|target| http2.request("GET", target, &[])).collect();
    assert_eq!(http2.get("/fast/large").body.len(), 4000 * KB);
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    let responses = paced.into_iter().map(|stream| (http2.response(stream).body.len(), begin.elapsed())).collect();
    assert!(server.cpu_time() - before < Duration::from_secs(2));
    responses
}

#[test]
fn paced_stream_of_http2_delays_no_other() {
    if is_secure() {
        return;
    }
    let responses = paced_streams(&["/slow/small", "/slow/small", "/cgi-bin/zeros"]);
    for ((bytes, took), expected) in responses.into_iter().zip([50, 50, 500]) {
        assert_eq!(bytes, expected * KB);
        assert_is_five_seconds(took, "a stream");
    }
}

#[test]
fn streams_of_http2_share_the_bandwidth_of_their_connection() {
    if is_secure() {
        return;
    }
    // 2 MB at 400 kB/s.
    let responses = paced_streams(&[vec!["/shared/large"], vec!["/shared/small"; 20]].concat());
    assert_eq!(responses.iter().map(|(bytes, _)| bytes).sum::<usize>(), 2000 * KB);
    assert_is_five_seconds(responses.iter().map(|(_, took)| *took).max().unwrap(), "all streams");
}

#[test]
fn responses_of_http1_share_the_bandwidth_of_their_connection() {
    let site = site();
    let server = serve(&site);
    let begin = Instant::now();
    thread::scope(|scope| {
        // One after the other, or many at once; each response alone is shorter than what may be sent at once.
        for number in [1, 500] {
            let server = &server;
            scope.spawn(move || {
                let mut client = server.connect();
                for _ in 0..1000 / number {
                    (0..number).for_each(|_| client.send_request("GET", "/shared/tiny", &[]));
                    (0..number).for_each(|_| assert_eq!(client.response("GET").body, pattern(2 * KB)));
                }
                // The end of the last step was sent before its time.
                assert_eq!(client.get("/fast/large").body.len(), 4000 * KB);
                assert_is_five_seconds(begin.elapsed(), "2 MB in small responses");
            });
        }
        scope.spawn(|| {
            let mut client = server.connect();
            (0..2).for_each(|_| assert_eq!(client.get("/shared/large").body, pattern(1000 * KB)));
            assert_is_five_seconds(begin.elapsed(), "2 MB in large responses");
        });
    });
}
