//! Media types by file name suffix.
//!
//! `mime_guess` has most of them. [`OVERRIDES`] takes precedence and has only types that this crate lacks, or has under
//! a name that browsers reject or that a registration has replaced. `[site.types]` of the configuration override both.

/// Types that `mime_guess` 2.0.5 lacks or has wrong.
const OVERRIDES: &[(&str, &str)] = &[
    // RFC 9239, 6: text/javascript is the only name; browsers run modules under others too, but proxies may not know
    // them.
    ("cjs", "text/javascript"),
    ("mjs", "text/javascript"),
    // A source map is JSON; the crate has text/plain.
    ("map", "application/json"),
    // RFC 8081; the crate has the older application types.
    ("otf", "font/otf"),
    ("woff", "font/woff"),
    // RFC 3555; the crate has video/vnd.dlna.mpeg-tts, which HLS players reject.
    ("ts", "video/mp2t"),
    // RFC 4337.
    ("m4a", "audio/mp4"),
    // RFC 6713: a tgz is a gzip file; the crate has application/x-compressed.
    ("tgz", "application/gzip"),
    // RFC 8878.
    ("zst", "application/zstd"),
    // RFC 9512; the crate has the older text/x-yaml.
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
    // Registered with IANA in 2024; the crate has text/x-toml.
    ("toml", "application/toml"),
];

/// Returns the media type for this suffix, in lower case and without its dot. It has no charset.
pub fn known(ending: &str) -> Option<&'static str> {
    let overridden = OVERRIDES.iter().find(|(name, _)| *name == ending).map(|(_, kind)| *kind);
    overridden.or_else(|| mime_guess::from_ext(ending).first_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_extensions_have_media_types() {
        let check = |endings: &str, expected: Option<&str>| {
            for ending in endings.split(' ') {
                assert_eq!(known(ending), expected, "{ending}");
            }
        };
        check("html htm", Some("text/html"));
        check("css", Some("text/css"));
        check("js mjs cjs", Some("text/javascript"));
        check("json map", Some("application/json"));
        check("wasm", Some("application/wasm"));
        check("md", Some("text/markdown"));
        check("txt log", Some("text/plain"));
        check("xml", Some("text/xml"));
        check("webmanifest", Some("application/manifest+json"));
        check("woff", Some("font/woff"));
        check("woff2", Some("font/woff2"));
        check("ttf", Some("font/ttf"));
        check("otf", Some("font/otf"));
        check("svg", Some("image/svg+xml"));
        check("avif", Some("image/avif"));
        check("webp", Some("image/webp"));
        check("png", Some("image/png"));
        check("jpg jpeg", Some("image/jpeg"));
        check("ico", Some("image/x-icon"));
        check("mp4", Some("video/mp4"));
        check("webm", Some("video/webm"));
        check("ts", Some("video/mp2t"));
        check("m4a", Some("audio/mp4"));
        check("pdf", Some("application/pdf"));
        check("zip", Some("application/zip"));
        check("gz tgz", Some("application/gzip"));
        check("zst", Some("application/zstd"));
        check("no-such-ending", None);
        check("", None);
    }

    #[test]
    fn overrides_differ_from_mime_guess() {
        for (ending, kind) in OVERRIDES {
            assert_ne!(mime_guess::from_ext(ending).first_raw(), Some(*kind), "{ending} is correct in the crate");
        }
    }
}
