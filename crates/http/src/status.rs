//! Status codes (RFC 9110, 15) and their reason phrases.

/// A status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Status(pub u16);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal $reason:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Status = Status($code);)*

            /// The reason phrase of the code; empty if the code is not listed here.
            pub const fn reason(self) -> &'static str {
                match self.0 { $($code => $reason,)* _ => "" }
            }
        }
    };
}

statuses! {
    /// RFC 9110, 15.2.1.
    CONTINUE = 100 "Continue";
    /// RFC 9110, 15.2.2.
    SWITCHING_PROTOCOLS = 101 "Switching Protocols";
    /// RFC 8297, 2.
    EARLY_HINTS = 103 "Early Hints";
    /// RFC 9110, 15.3.1.
    OK = 200 "OK";
    /// RFC 9110, 15.3.2.
    CREATED = 201 "Created";
    /// RFC 9110, 15.3.3.
    ACCEPTED = 202 "Accepted";
    /// RFC 9110, 15.3.4.
    NON_AUTHORITATIVE = 203 "Non-Authoritative Information";
    /// RFC 9110, 15.3.5.
    NO_CONTENT = 204 "No Content";
    /// RFC 9110, 15.3.6.
    RESET_CONTENT = 205 "Reset Content";
    /// RFC 9110, 15.3.7.
    PARTIAL_CONTENT = 206 "Partial Content";
    /// RFC 4918, 11.1.
    MULTI_STATUS = 207 "Multi-Status";
    /// RFC 5842, 7.1.
    ALREADY_REPORTED = 208 "Already Reported";
    /// RFC 9110, 15.4.1.
    MULTIPLE_CHOICES = 300 "Multiple Choices";
    /// RFC 9110, 15.4.2.
    MOVED_PERMANENTLY = 301 "Moved Permanently";
    /// RFC 9110, 15.4.3.
    FOUND = 302 "Found";
    /// RFC 9110, 15.4.4.
    SEE_OTHER = 303 "See Other";
    /// RFC 9110, 15.4.5.
    NOT_MODIFIED = 304 "Not Modified";
    /// RFC 9110, 15.4.8.
    TEMPORARY_REDIRECT = 307 "Temporary Redirect";
    /// RFC 9110, 15.4.9.
    PERMANENT_REDIRECT = 308 "Permanent Redirect";
    /// RFC 9110, 15.5.1.
    BAD_REQUEST = 400 "Bad Request";
    /// RFC 9110, 15.5.2.
    UNAUTHORIZED = 401 "Unauthorized";
    /// RFC 9110, 15.5.3.
    PAYMENT_REQUIRED = 402 "Payment Required";
    /// RFC 9110, 15.5.4.
    FORBIDDEN = 403 "Forbidden";
    /// RFC 9110, 15.5.5.
    NOT_FOUND = 404 "Not Found";
    /// RFC 9110, 15.5.6.
    METHOD_NOT_ALLOWED = 405 "Method Not Allowed";
    /// RFC 9110, 15.5.7.
    NOT_ACCEPTABLE = 406 "Not Acceptable";
    /// RFC 9110, 15.5.9.
    REQUEST_TIMEOUT = 408 "Request Timeout";
    /// RFC 9110, 15.5.10.
    CONFLICT = 409 "Conflict";
    /// RFC 9110, 15.5.11.
    GONE = 410 "Gone";
    /// RFC 9110, 15.5.12.
    LENGTH_REQUIRED = 411 "Length Required";
    /// RFC 9110, 15.5.13.
    PRECONDITION_FAILED = 412 "Precondition Failed";
    /// RFC 9110, 15.5.14.
    CONTENT_TOO_LARGE = 413 "Content Too Large";
    /// RFC 9110, 15.5.15.
    URI_TOO_LONG = 414 "URI Too Long";
    /// RFC 9110, 15.5.16.
    UNSUPPORTED_MEDIA_TYPE = 415 "Unsupported Media Type";
    /// RFC 9110, 15.5.17.
    RANGE_NOT_SATISFIABLE = 416 "Range Not Satisfiable";
    /// RFC 9110, 15.5.18.
    EXPECTATION_FAILED = 417 "Expectation Failed";
    /// RFC 9110, 15.5.20.
    MISDIRECTED_REQUEST = 421 "Misdirected Request";
    /// RFC 9110, 15.5.21.
    UNPROCESSABLE_CONTENT = 422 "Unprocessable Content";
    /// RFC 4918, 11.3.
    LOCKED = 423 "Locked";
    /// RFC 4918, 11.4.
    FAILED_DEPENDENCY = 424 "Failed Dependency";
    /// RFC 8470, 5.2.
    TOO_EARLY = 425 "Too Early";
    /// RFC 9110, 15.5.22.
    UPGRADE_REQUIRED = 426 "Upgrade Required";
    /// RFC 6585, 3.
    PRECONDITION_REQUIRED = 428 "Precondition Required";
    /// RFC 6585, 4.
    TOO_MANY_REQUESTS = 429 "Too Many Requests";
    /// RFC 6585, 5.
    HEAD_TOO_LARGE = 431 "Request Header Fields Too Large";
    /// RFC 7725, 3.
    UNAVAILABLE_FOR_LEGAL_REASONS = 451 "Unavailable For Legal Reasons";
    /// RFC 9110, 15.6.1.
    INTERNAL_SERVER_ERROR = 500 "Internal Server Error";
    /// RFC 9110, 15.6.2.
    NOT_IMPLEMENTED = 501 "Not Implemented";
    /// RFC 9110, 15.6.3.
    BAD_GATEWAY = 502 "Bad Gateway";
    /// RFC 9110, 15.6.4.
    SERVICE_UNAVAILABLE = 503 "Service Unavailable";
    /// RFC 9110, 15.6.5.
    GATEWAY_TIMEOUT = 504 "Gateway Timeout";
    /// RFC 9110, 15.6.6.
    VERSION_NOT_SUPPORTED = 505 "HTTP Version Not Supported";
    /// RFC 4918, 11.5.
    INSUFFICIENT_STORAGE = 507 "Insufficient Storage";
    /// RFC 5842, 7.2.
    LOOP_DETECTED = 508 "Loop Detected";
    /// RFC 6585, 6.
    NETWORK_AUTHENTICATION_REQUIRED = 511 "Network Authentication Required";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_phrases_match_iana_registry() {
        // IANA, HTTP Status Code Registry: the redirections, which a client may show.
        let phrases = [
            (300, "Multiple Choices"),
            (301, "Moved Permanently"),
            (302, "Found"),
            (303, "See Other"),
            (304, "Not Modified"),
            (307, "Temporary Redirect"),
            (308, "Permanent Redirect"),
        ];
        for (code, phrase) in phrases {
            assert_eq!(Status(code).reason(), phrase, "{code}");
        }
    }
}
