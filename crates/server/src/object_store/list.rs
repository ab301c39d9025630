//! Reads a page of a listing: the XML that ListObjectsV2 returns.
//!
//! Only the elements that a listing needs are read, by their names; the store encodes keys as in URLs (`encoding-type=url`), so no key
//! can look like XML.

use amped_http::date::Civil;
use amped_http::uri;

/// A page of a listing.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The objects.
    pub objects: Vec<Object>,
    /// Common prefixes up to the delimiter.
    pub prefixes: Vec<Vec<u8>>,
    /// Requests the next page; `None`: this is the last one.
    pub next: Option<String>,
}

/// An object in a listing.
#[derive(Debug, PartialEq, Eq)]
pub struct Object {
    /// Its key.
    pub key: Vec<u8>,
    /// Bytes.
    pub size: u64,
    /// Seconds since 1970.
    pub modified_seconds: i64,
}

impl Page {
    /// Reads a page; `None` if this is none.
    pub fn read(text: &str) -> Option<Page> {
        let text = element(text, "ListBucketResult")?;
        let is_encoded = element(text, "EncodingType").is_some_and(|kind| kind == "url");
        let key = |text: &str| match is_encoded {
            true => uri::decode_query(unescape(text).as_bytes()).into_owned(),
            false => unescape(text).into_bytes(),
        };
        let object = |text: &str| {
            Some(Object {
                key: key(element(text, "Key")?),
                size: element(text, "Size")?.parse().ok()?,
                modified_seconds: element(text, "LastModified").and_then(time)?,
            })
        };
        let next = element(text, "NextContinuationToken").map(unescape);
        Some(Page {
            objects: elements(text, "Contents").map(object).collect::<Option<_>>()?,
            prefixes: elements(text, "CommonPrefixes").filter_map(|text| element(text, "Prefix").map(key)).collect(),
            next: next.filter(|_| element(text, "IsTruncated").is_some_and(|flag| flag == "true")),
        })
    }
}

/// Returns the code and the message of an error.
pub fn error(text: &str) -> Option<(String, String)> {
    let text = element(text, "Error")?;
    Some((unescape(element(text, "Code")?), element(text, "Message").map(unescape).unwrap_or_default()))
}

/// Returns the text of the first element of this name.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    elements(text, name).next()
}

/// Returns the texts of the elements of this name. They do not nest in themselves.
fn elements<'a>(text: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let (start, end) = (format!("<{name}"), format!("</{name}>"));
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            rest = &rest[rest.find(&start)? + start.len()..];
            // Another name may begin with this one; attributes, such as the name space, may follow.
            if rest.starts_with(['>', ' ']) {
                break;
            }
        }
        let inner = &rest[rest.find('>')? + 1..];
        let length = inner.find(&end)?;
        rest = &inner[length + end.len()..];
        Some(&inner[..length])
    })
}

fn unescape(text: &str) -> String {
    let named = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#34;", "\""), ("&apos;", "'"), ("&#39;", "'")];
    let text = named.iter().fold(text.to_owned(), |text, (name, character)| text.replace(name, character));
    // Last, so that nothing is replaced twice.
    text.replace("&amp;", "&")
}

/// Reads a time such as `2009-10-12T17:50:30.000Z`, in seconds since 1970.
fn time(text: &str) -> Option<i64> {
    let two = |at: usize| text.get(at..at + 2)?.parse::<u8>().ok();
    let year = text.get(0..4)?.parse().ok().filter(|year| (1970..=9999).contains(year))?;
    let (month, day, hour, minute, second) = (two(5)?, two(8)?, two(11)?, two(14)?, two(17)?);
    Civil { year, month, day, hour, minute, second, weekday: 0 }.to_unix()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_read() {
        let page = "<?xml version=\"1.0\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name>\
            <Prefix>docs/</Prefix><EncodingType>url</EncodingType><KeyCount>3</KeyCount><IsTruncated>true</IsTruncated>\
            <Contents><Key>docs/a+b%26.txt</Key><LastModified>2009-10-12T17:50:30.000Z</LastModified><ETag>&quot;x&quot;</ETag>\
            <Size>434234</Size></Contents><Contents><Key>docs/z</Key><LastModified>2024-02-29T00:00:00Z</LastModified><Size>0</Size>\
            </Contents><CommonPrefixes><Prefix>docs/sub/</Prefix></CommonPrefixes>\
            <NextContinuationToken>a&amp;lt;b=</NextContinuationToken></ListBucketResult>";
        let object = |key: &str, size, modified_seconds| Object { key: key.into(), size, modified_seconds };
        let expected = Page {
            objects: vec![object("docs/a b&.txt", 434_234, 1_255_369_830), object("docs/z", 0, 1_709_164_800)],
            prefixes: vec![b"docs/sub/".to_vec()],
            next: Some("a&lt;b=".to_owned()),
        };
        assert_eq!(Page::read(page), Some(expected));
        let last =
            page.replace("<IsTruncated>true", "<IsTruncated>false").replace("<EncodingType>url</EncodingType>", "");
        let last = Page::read(&last).unwrap();
        assert_eq!((last.next, &*last.objects[0].key), (None, &b"docs/a+b%26.txt"[..]));
    }

    #[test]
    fn other_texts_are_no_page() {
        for text in [
            "",
            "<html>",
            "<ListBucketResult>",
            "<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>",
        ] {
            assert_eq!(Page::read(text), None, "{text}");
        }
        assert_eq!(Page::read("<ListBucketResult></ListBucketResult>"), Some(Page::default()));
    }

    #[test]
    fn error_is_read() {
        let text = "<Error><Code>NoSuchBucket</Code><Message>it&apos;s gone</Message></Error>";
        assert_eq!(error(text), Some(("NoSuchBucket".to_owned(), "it's gone".to_owned())));
        assert_eq!(error("<html>"), None);
    }
}
