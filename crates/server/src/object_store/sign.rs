//! Signatures of requests to an object store (AWS Signature Version 4), and the text of their targets.
//!
//! Pure: time and credentials are arguments. The algorithm is that of "Authenticating Requests (AWS Signature Version 4)" in the
//! reference of Amazon S3, whose examples are the tests below. Requests have no body.

use amped_http::date::Civil;
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac::{HMAC_SHA256, Key, Tag, sign};

use super::credentials::Credentials;

/// The SHA-256 of an empty body.
pub const EMPTY_BODY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// A request to sign. Its Host, `x-amz-content-sha256` and `x-amz-date` are signed, and its `x-amz-security-token` if it has one.
#[derive(Debug)]
pub struct Unsigned<'a> {
    /// Value of Host.
    pub host: &'a str,
    /// The path, encoded as by [`encode`].
    pub path: &'a str,
    /// The query as by [`query`].
    pub query: &'a str,
    /// The region of the bucket.
    pub region: &'a str,
    /// Seconds since 1970. The store refuses times that differ from its own by more than 15 minutes.
    pub now_seconds: i64,
}

/// Returns the fields that authenticate a request: names and values.
pub fn fields(request: &Unsigned<'_>, credentials: &Credentials) -> Vec<(&'static str, String)> {
    let Civil { year, month, day, hour, minute, second, .. } = Civil::from_unix(request.now_seconds);
    let day = format!("{year:04}{month:02}{day:02}");
    let time = format!("{day}T{hour:02}{minute:02}{second:02}Z");
    let mut fields = vec![("x-amz-content-sha256", EMPTY_BODY.to_owned()), ("x-amz-date", time.clone())];
    if let Some(token) = &credentials.session_token {
        fields.push(("x-amz-security-token", token.to_string()));
    }
    let mut canonical = format!("GET\n{}\n{}\nhost:{}\n", request.path, request.query, request.host);
    let mut signed = "host".to_owned();
    for (name, value) in &fields {
        canonical += &format!("{name}:{value}\n");
        signed = format!("{signed};{name}");
    }
    canonical += &format!("\n{signed}\n{EMPTY_BODY}");
    let scope = format!("{day}/{}/s3/aws4_request", request.region);
    let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hex(digest(&SHA256, canonical.as_bytes()).as_ref()));
    let secret = [b"AWS4", credentials.secret_key.as_bytes()].concat();
    let steps = [day.as_bytes(), request.region.as_bytes(), b"s3", b"aws4_request"];
    let key = steps.iter().fold(secret, |key, step| mac(&key, step).as_ref().to_vec());
    let signature = hex(mac(&key, text.as_bytes()).as_ref());
    let id = &credentials.access_key;
    let value = format!("AWS4-HMAC-SHA256 Credential={id}/{scope},SignedHeaders={signed},Signature={signature}");
    fields.push(("authorization", value));
    fields
}

fn mac(key: &[u8], text: &[u8]) -> Tag {
    sign(&Key::new(HMAC_SHA256, key), text)
}

/// Returns these bytes in lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Encodes a text as signatures require: everything but unreserved characters (RFC 3986, 2.3), and slashes unless `slashes`.
pub fn encode(text: &[u8], slashes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for &byte in text {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            b'/' if !slashes => out.push('/'),
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

/// Returns a query of these names, which are in order, and values.
pub fn query(pairs: &[(&str, &[u8])]) -> String {
    let pairs = pairs.iter().map(|(name, value)| format!("{name}={}", encode(value, true)));
    pairs.collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys and the time of the examples in the reference.
    fn signature(query: &str) -> String {
        let host = "examplebucket.s3.amazonaws.com";
        let request = Unsigned { host, path: "/", query, region: "us-east-1", now_seconds: 1_369_353_600 };
        let credentials = Credentials {
            access_key: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned().into(),
            session_token: None,
        };
        let fields = fields(&request, &credentials);
        let (_, authorization) = fields.last().expect("it is the last one");
        assert!(authorization.starts_with(
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
             SignedHeaders=host;x-amz-content-sha256;x-amz-date,Signature="
        ));
        authorization.rsplit('=').next().expect("a signature").to_owned()
    }

    #[test]
    fn signatures_are_those_of_the_reference() {
        // "GET Bucket (List Objects)".
        assert_eq!(
            signature(&query(&[("max-keys", b"2"), ("prefix", b"J")])),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
        );
        // "GET Bucket Lifecycle".
        assert_eq!(
            signature(&query(&[("lifecycle", b"")])),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
        );
    }

    #[test]
    fn only_unreserved_characters_are_literal() {
        assert_eq!(encode(b"a b/\xc3\xa9+~.css", false), "a%20b/%C3%A9%2B~.css");
        assert_eq!(query(&[("prefix", b"a/b&c"), ("x", b"")]), "prefix=a%2Fb%26c&x=");
    }
}
