//! The priority of a response (RFC 9218, 4): how urgent it is, and whether parts of it are of use.
//!
//! It comes from the Priority field of a request, or from PRIORITY_UPDATE; the schedule of an HTTP/2 connection uses it.
//! The value is a dictionary of structured fields (RFC 9651, 3.2). Members that are unknown, out of range or of another
//! type are ignored; a value that is no dictionary counts as absent (RFC 9651, 4.2). So its whole syntax is checked,
//! although only two members matter.

/// The priority of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Priority {
    /// 0, the most urgent, to 7 (RFC 9218, 4.1).
    pub urgency: u8,
    /// Whether the client can use parts of it, so that it may share the connection with others of the same urgency
    /// (RFC 9218, 4.2).
    pub incremental: bool,
}

impl Default for Priority {
    fn default() -> Priority {
        Priority { urgency: 3, incremental: false }
    }
}

impl Priority {
    /// Parses the value of a Priority field. Several lines must have been joined by commas.
    pub fn parse(value: &[u8]) -> Priority {
        parse_dictionary(value).unwrap_or_default()
    }
}

/// The values that matter; others are only skipped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Item {
    Integer(i64),
    Boolean(bool),
    Other,
}

/// RFC 9651, 4.2.2; `None` if the text is not a dictionary.
fn parse_dictionary(text: &[u8]) -> Option<Priority> {
    let mut rest = Rest(text);
    let mut priority = Priority::default();
    rest.skip(b" ");
    while !rest.0.is_empty() {
        let key = rest.key()?;
        let item = if rest.take(b'=') { rest.member()? } else { Item::Boolean(true) };
        rest.parameters()?;
        // RFC 9651, 4.2.2: the last of equal keys counts, even if its value is then ignored.
        match (key, item) {
            (b"u", Item::Integer(urgency @ 0..=7)) => priority.urgency = urgency as u8,
            (b"u", _) => priority.urgency = Priority::default().urgency,
            (b"i", Item::Boolean(incremental)) => priority.incremental = incremental,
            (b"i", _) => priority.incremental = false,
            _ => {}
        }
        rest.skip(b" \t");
        if rest.0.is_empty() {
            return Some(priority);
        }
        if !rest.take(b',') {
            return None;
        }
        rest.skip(b" \t");
        if rest.0.is_empty() {
            return None;
        }
    }
    Some(priority)
}

/// What is left to parse.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn skip(&mut self, set: &[u8]) {
        self.take_while(|byte| set.contains(&byte));
    }

    fn take(&mut self, byte: u8) -> bool {
        match self.0.strip_prefix(&[byte]) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    fn next(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    fn take_while(&mut self, is_part: impl Fn(u8) -> bool) -> &'a [u8] {
        let length = self.0.iter().position(|&byte| !is_part(byte)).unwrap_or(self.0.len());
        let (part, rest) = self.0.split_at(length);
        self.0 = rest;
        part
    }

    /// RFC 9651, 4.2.3.3.
    fn key(&mut self) -> Option<&'a [u8]> {
        let starts = self.0.first().is_some_and(|&byte| byte.is_ascii_lowercase() || byte == b'*');
        let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte);
        starts.then(|| self.take_while(is_part))
    }

    /// An item or an inner list (RFC 9651, 4.2.1.1).
    fn member(&mut self) -> Option<Item> {
        if !self.take(b'(') {
            return self.item();
        }
        loop {
            self.skip(b" ");
            if self.take(b')') {
                return Some(Item::Other);
            }
            self.item()?;
            self.parameters()?;
            if !matches!(self.0.first(), Some(b' ' | b')')) {
                return None;
            }
        }
    }

    /// RFC 9651, 4.2.3.2.
    fn parameters(&mut self) -> Option<()> {
        while self.take(b';') {
            self.skip(b" ");
            self.key()?;
            if self.take(b'=') {
                self.item()?;
            }
        }
        Some(())
    }

    /// A bare item (RFC 9651, 4.2.3.1).
    fn item(&mut self) -> Option<Item> {
        match *self.0.first()? {
            b'-' | b'0'..=b'9' => self.number(),
            b'?' => {
                self.next();
                match self.next()? {
                    b'0' => Some(Item::Boolean(false)),
                    b'1' => Some(Item::Boolean(true)),
                    _ => None,
                }
            }
            b'"' => self.string(),
            b'%' => self.display_string(),
            b':' => {
                self.next();
                self.take_while(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
                self.take(b':').then_some(Item::Other)
            }
            b'@' => {
                self.next();
                self.number().filter(|item| matches!(item, Item::Integer(_))).map(|_| Item::Other)
            }
            b'*' | b'a'..=b'z' | b'A'..=b'Z' => {
                self.take_while(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte));
                Some(Item::Other)
            }
            _ => None,
        }
    }

    /// An integer of at most 15 digits, or a decimal of at most 12 and 3 (RFC 9651, 4.2.4).
    fn number(&mut self) -> Option<Item> {
        let sign = if self.take(b'-') { -1 } else { 1 };
        let digits = self.take_while(|byte| byte.is_ascii_digit());
        if self.take(b'.') {
            let fraction = self.take_while(|byte| byte.is_ascii_digit());
            let is_valid = (1..=12).contains(&digits.len()) && (1..=3).contains(&fraction.len());
            return is_valid.then_some(Item::Other);
        }
        let value =
            digits.iter().fold(0_i64, |value, digit| value.wrapping_mul(10).wrapping_add(i64::from(digit - b'0')));
        (1..=15).contains(&digits.len()).then_some(Item::Integer(sign * value))
    }

    /// RFC 9651, 4.2.5.
    fn string(&mut self) -> Option<Item> {
        self.next();
        loop {
            match self.next()? {
                b'"' => return Some(Item::Other),
                b'\\' if !matches!(self.next()?, b'"' | b'\\') => return None,
                b'\\' | b' '..=b'~' => {}
                _ => return None,
            }
        }
    }

    /// RFC 9651, 4.2.10; that the decoded text is UTF-8 is not checked.
    fn display_string(&mut self) -> Option<Item> {
        self.next();
        if !self.take(b'"') {
            return None;
        }
        loop {
            match self.next()? {
                b'"' => return Some(Item::Other),
                b'%' => {
                    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
                    if !is_hex(self.next()?) || !is_hex(self.next()?) {
                        return None;
                    }
                }
                b' '..=b'~' => {}
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn members_are_parsed_and_others_ignored() {
        #[track_caller]
        fn check(text: &str, urgency: u8, incremental: bool) {
            assert_eq!(Priority::parse(text.as_bytes()), Priority { urgency, incremental }, "{text:?}");
        }
        check("", 3, false);
        check("u=0", 0, false);
        check("u=5, i", 5, true);
        check("  i ,\tu=7  ", 7, true);
        check("i=?0", 3, false);
        check("i=?1,u=1", 1, true);
        check("u=2;x=1;y, i;z=\"a\"", 2, true);
        // Unknown members, of every type.
        check("a=(1 \"b;,\" c;d=?1);e, b=:YQ==:, c=-1.5, d=@1, *e=*t/k:, f=%\"%c3%bc\", u=4", 4, false);
        check("a=(), u=4", 4, false);
        check("a=\"\\\"\\\\,u=1\", u=4", 4, false);
        // RFC 9218, 4: values out of range or of another type are ignored.
        check("u=8, i", 3, true);
        check("u=-1", 3, false);
        check("u=1.0, i", 3, true);
        check("u, i=1", 3, false);
        check("u=\"1\"", 3, false);
        // RFC 9651, 4.2.2: the last of equal keys counts.
        check("u=1, u=6", 6, false);
        check("u=1, u=9", 3, false);
        check("i, i=?0", 3, false);
        // Not a dictionary: all of it is ignored.
        let broken = [
            "u=1,",
            ",u=1",
            "u=1 i",
            "u=1;;",
            "u=",
            "U=1",
            "u=1, i=?2",
            "u=1, a=(1",
            "u=1, a=(1,2)",
            "u=1, a=\"b",
            "u=1, a=\"\\b\"",
            "u=1, a=:YQ",
            "u=1, a=1.",
            "u=1, a=1234567890123456",
            "u=1, a=1.2345",
            "u=1, a=-",
            "u=1\n",
            "u=1, a=@1.5",
            "u=1, a=%\"%C3\"",
            "u=1, a=é",
            "\tu=1",
            "u =1",
            "u= 1",
        ];
        broken.iter().for_each(|text| check(text, 3, false));
    }

    proptest! {
        #[test]
        fn never_panics(text in "[ui=,;?01(): \"\\\\%@*.-]{0,20}") {
            prop_assert!(Priority::parse(text.as_bytes()).urgency <= 7);
        }
    }
}
