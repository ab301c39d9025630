//! HTTP dates: seconds since 1970 to text and back (RFC 9110, 5.6.7).
//!
//! Before it comes a clock, which lives elsewhere: the current time is an argument. After
//! it come the `Date` and `Last-Modified` of each response, the `If-Modified-Since` of a
//! request, and the access log, which formats a [`Civil`] itself.
//! The calendar is our own because httpdate uses `std::time::SystemTime` and this crate has
//! no `std`; httpdate is the oracle of the tests instead. Years are counted from 1 March, so
//! that the leap day is the last day of its year and the lengths of the months before it
//! follow one formula (Howard Hinnant, "chrono-compatible low-level date algorithms").
//! Not a time library: no time zones and no leap seconds, except
//! that second 60 is accepted as the first of the next minute.

use core::fmt;

/// Bytes in an IMF-fixdate. The length is fixed, so a `Date` line can be patched in place.
pub const LEN: usize = 29;

/// The last second that has a four-digit year: 9999-12-31 23:59:59.
const UNIX_SECONDS_MAX: i64 = 253_402_300_799;

/// Writes an IMF-fixdate, `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, 5.6.7).
///
/// Clamped to the years 1970 to 9999: a file with an absurd time stamp still gets a well-formed `Last-Modified`.
pub fn format(unix_seconds: i64) -> [u8; LEN] {
    let civil = Civil::from_unix(unix_seconds);
    let mut text = *b"___, __ ___ ____ __:__:__ GMT";
    text[0..3].copy_from_slice(&civil.weekday_name().as_bytes()[..3]);
    text[5..7].copy_from_slice(&two_digits(civil.day));
    text[8..11].copy_from_slice(&civil.month_name().as_bytes()[..3]);
    text[12..14].copy_from_slice(&two_digits((civil.year / 100) as u8));
    text[14..16].copy_from_slice(&two_digits((civil.year % 100) as u8));
    text[17..19].copy_from_slice(&two_digits(civil.hour));
    text[20..22].copy_from_slice(&two_digits(civil.minute));
    text[23..25].copy_from_slice(&two_digits(civil.second));
    text
}

/// Parses an HTTP-date in any of its three forms (RFC 9110, 5.6.7): IMF-fixdate, RFC 850, asctime.
///
/// Strict about the form, the length of the month and leap years. The day name must be valid, but may be the wrong day,
/// since clients that compute it wrongly still mean the date. `now_unix_seconds` resolves the two-digit year of RFC
/// 850. A date before 1970 is negative.
pub fn parse(text: &[u8], now_unix_seconds: i64) -> Option<i64> {
    let weekday = WEEKDAYS.iter().find(|name| text.starts_with(&name.as_bytes()[..3]))?;
    // The fourth byte distinguishes the forms: "Sun, ", "Sun " or a letter of "Sunday".
    match text.get(3)? {
        b',' => read(text, b"___, __ ___ ____ __:__:__ GMT", [5, 8, 12, 17])?.to_unix(),
        b' ' => read(text, b"___ ___ __ __:__:__ ____", [8, 4, 20, 11])?.to_unix(),
        _ => {
            let rest = text.strip_prefix(weekday.as_bytes())?;
            let mut civil = read(rest, b", __-___-__ __:__:__ GMT", [2, 5, 9, 12])?;
            // RFC 9110, 5.6.7: a date more than 50 years ahead is the most recent year in the past with the same
            // digits. So take the latest year with these two digits within 50 years from now. 1970 + 50 - 99 - 100 is
            // still positive.
            let limit = Civil::from_unix(now_unix_seconds);
            let limit = Civil { year: limit.year + 50, weekday: 0, ..limit };
            civil.year = limit.year - (limit.year + 100 - civil.year) % 100;
            civil.year -= if civil > limit { 100 } else { 0 };
            civil.to_unix()
        }
    }
}

/// Parses a date of this form, in which underscores represent letters and digits, with day, month, year and time at
/// these positions. The weekday is not computed.
fn read(text: &[u8], form: &[u8], [day, month, year, time]: [usize; 4]) -> Option<Civil> {
    let is_of_form = text.iter().zip(form).all(|(byte, of_form)| byte == of_form || *of_form == b'_');
    if text.len() != form.len() || !is_of_form {
        return None;
    }
    let number = |at: usize, digits: usize| {
        text[at..at + digits]
            .iter()
            .try_fold(0, |value, digit| digit.is_ascii_digit().then(|| value * 10 + u16::from(digit - b'0')))
    };
    let two = |at: usize| Some(number(at, 2)? as u8);
    // RFC 9110, 5.6.7: HTTP-date is case sensitive.
    let name = &text[month..month + 3];
    Some(Civil {
        year: number(year, form[year..].iter().take_while(|byte| **byte == b'_').count())?,
        month: MONTHS.iter().position(|known| known.as_bytes() == name)? as u8 + 1,
        // RFC 9110, 5.6.7: in asctime, date3 = month SP ( 2DIGIT / ( SP 1DIGIT )).
        day: if day > month && text[day] == b' ' { number(day + 1, 1)? as u8 } else { two(day)? },
        hour: two(time)?,
        minute: two(time + 3)?,
        second: two(time + 6)?,
        weekday: 0,
    })
}

/// A second of the Gregorian calendar, in UTC. The ordering is chronological: fields compare from the year down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Civil {
    /// 1970 to 9999 if made by [`Civil::from_unix`].
    pub year: u16,
    /// 1 to 12.
    pub month: u8,
    /// 1 to the length of the month.
    pub day: u8,
    /// 0 to 23.
    pub hour: u8,
    /// 0 to 59.
    pub minute: u8,
    /// 0 to 59; 60 only as sent by a peer.
    pub second: u8,
    /// 0 to 6, from Sunday.
    pub weekday: u8,
}

impl fmt::Display for Civil {
    /// RFC 3339 without the zone: `1994-11-06T08:49:37`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Civil { year, month, day, hour, minute, second, .. } = self;
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
    }
}

impl Civil {
    /// Converts seconds since 1970-01-01 00:00:00, clamped to the years 1970 to 9999.
    pub fn from_unix(unix_seconds: i64) -> Civil {
        let seconds = unix_seconds.clamp(0, UNIX_SECONDS_MAX) as u64;
        // At most 2932896 days, so everything below fits u32, which divides faster.
        let days = (seconds / 86_400) as u32;
        let of_day = (seconds % 86_400) as u32;

        let from_march_0 = days + DAYS_FROM_MARCH_0_TO_1970;
        let era = from_march_0 / DAYS_PER_ERA;
        let day_of_era = from_march_0 % DAYS_PER_ERA;
        // Remove the leap days before dividing: one every 4 years (1460 days), none every 100, one every 400.
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        // Any five months from March on have 153 days; the fraction reproduces 31, 30, 31, 30, 31.
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = era * 400 + year_of_era + u32::from(month <= 2);

        Civil {
            year: year as u16,
            month: month as u8,
            day: day as u8,
            hour: (of_day / 3600) as u8,
            minute: (of_day / 60 % 60) as u8,
            second: (of_day % 60) as u8,
            // 1970-01-01 was a Thursday.
            weekday: ((days + 4) % 7) as u8,
        }
    }

    /// `Jan` to `Dec`, as HTTP and the Common Log Format write it.
    pub fn month_name(&self) -> &'static str {
        MONTHS.get(usize::from(self.month).wrapping_sub(1)).copied().unwrap_or("???")
    }

    /// `Sun` to `Sat`.
    pub fn weekday_name(&self) -> &'static str {
        WEEKDAYS.get(usize::from(self.weekday)).map_or("???", |name| &name[..3])
    }

    /// Converts to seconds since 1970; `None` if the calendar has no such second. Ignores the weekday.
    pub fn to_unix(self) -> Option<i64> {
        let Civil { year, month, day, hour, minute, second, weekday: _ } = self;
        let possible = (1..=month_length(year, month)).contains(&day) && hour <= 23 && minute <= 59 && second <= 60;
        if !possible {
            return None;
        }
        // The inverse of `from_unix`. January and February belong to the year before, which may be -1.
        let year = i64::from(year) - i64::from(month <= 2);
        let month_from_march = (i64::from(month) + 9) % 12;
        let day_of_year = (153 * month_from_march + 2) / 5 + i64::from(day) - 1;
        let days = 365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year
            - i64::from(DAYS_FROM_MARCH_0_TO_1970);
        Some(days * 86_400 + i64::from(hour) * 3600 + i64::from(minute) * 60 + i64::from(second))
    }
}

/// Days from 1 March of year 0 to 1 January 1970.
const DAYS_FROM_MARCH_0_TO_1970: u32 = 719_468;

/// Days in 400 years, after which the calendar repeats.
const DAYS_PER_ERA: u32 = 146_097;

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

fn month_length(year: u16, month: u8) -> u8 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => 0,
    }
}

/// Formats `n`, which must be below 100.
fn two_digits(n: u8) -> [u8; 2] {
    [b'0' + n / 10, b'0' + n % 10]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::format as text;
    use std::string::ToString;
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    /// 2026-11-21 00:00:00.
    const NOW: i64 = 1_795_219_200;

    #[test]
    fn formats_what_it_parses() {
        #[track_caller]
        fn check(unix_seconds: i64, expected: &str) {
            let formatted = format(unix_seconds);
            assert_eq!(core::str::from_utf8(&formatted).unwrap(), expected);
            assert_eq!(parse(&formatted, NOW), Some(unix_seconds.clamp(0, UNIX_SECONDS_MAX)));
        }
        check(784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT");
        check(0, "Thu, 01 Jan 1970 00:00:00 GMT");
        check(951_782_399, "Mon, 28 Feb 2000 23:59:59 GMT");
        check(951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT");
        check(951_868_800, "Wed, 01 Mar 2000 00:00:00 GMT");
        check(4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT");
        check(4_107_542_399, "Sun, 28 Feb 2100 23:59:59 GMT");
        check(UNIX_SECONDS_MAX, "Fri, 31 Dec 9999 23:59:59 GMT");
        check(UNIX_SECONDS_MAX + 1, "Fri, 31 Dec 9999 23:59:59 GMT");
        check(i64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT");
        check(-1, "Thu, 01 Jan 1970 00:00:00 GMT");
        check(i64::MIN, "Thu, 01 Jan 1970 00:00:00 GMT");
    }

    #[test]
    fn parses_three_formats() {
        #[track_caller]
        fn check(text: &str, expected: Option<i64>) {
            assert_eq!(parse(text.as_bytes(), NOW), expected, "{text}");
        }
        check("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777));
        check("Sunday, 06-Nov-94 08:49:37 GMT", Some(784_111_777));
        check("Sun Nov  6 08:49:37 1994", Some(784_111_777));
        check("Sun Nov 16 08:49:37 1994", Some(784_975_777));
        // A valid weekday, but not of this date.
        check("Mon, 06 Nov 1994 08:49:37 GMT", Some(784_111_777));
        check("Wednesday, 06-Nov-94 08:49:37 GMT", Some(784_111_777));
        check("Xxx, 06 Nov 1994 08:49:37 GMT", None);
        check("Sonntag, 06-Nov-94 08:49:37 GMT", None);
        check("Xxx Nov  6 08:49:37 1994", None);
        // Limits of each field.
        check("Sat, 31 Dec 2016 23:59:60 GMT", Some(1_483_228_800));
        check("Sat, 31 Dec 2016 23:59:61 GMT", None);
        check("Sat, 31 Dec 2016 23:60:00 GMT", None);
        check("Sat, 31 Dec 2016 24:00:00 GMT", None);
        check("Sat, 00 Dec 2016 00:00:00 GMT", None);
        check("Sat, 32 Dec 2016 00:00:00 GMT", None);
        check("Sat, 31 Nov 2016 00:00:00 GMT", None);
        check("Sat, 29 Feb 2016 00:00:00 GMT", Some(1_456_704_000));
        check("Sat, 29 Feb 2015 00:00:00 GMT", None);
        check("Sat, 29 Feb 2000 00:00:00 GMT", Some(951_782_400));
        check("Sat, 29 Feb 1900 00:00:00 GMT", None);
        check("Sat, 30 Feb 2016 00:00:00 GMT", None);
        // Before 1970, down to the earliest representable year.
        check("Wed, 31 Dec 1969 23:59:59 GMT", Some(-1));
        check("Sat, 01 Jan 0000 00:00:00 GMT", Some(-62_167_219_200));
        check("Fri, 31 Dec 9999 23:59:60 GMT", Some(UNIX_SECONDS_MAX + 1));
        // Nearly the form.
        check("", None);
        check("Sun", None);
        check("Sun,", None);
        check("Sun, 06 Nov 1994 08:49:37 UTC", None);
        check("Sun, 06 Nov 1994 08:49:37 gmt", None);
        check("sun, 06 Nov 1994 08:49:37 GMT", None);
        check("Sun, 06 nov 1994 08:49:37 GMT", None);
        check("Sun, 06 Nov 1994 08:49:37", None);
        check("Sun, 06 Nov 1994 08:49:37 GMT ", None);
        check(" Sun, 06 Nov 1994 08:49:37 GMT", None);
        check("Sun, 6 Nov 1994 08:49:37 GMT", None);
        check("Sun,  6 Nov 1994 08:49:37 GMT", None);
        check("Sun, 06-Nov-1994 08:49:37 GMT", None);
        check("Sun, 06 Nov 94 08:49:37 GMT", None);
        check("Sun, 06 Nov 1994 8:49:37 GMT", None);
        check("Sun, 06 Nov 1994 08.49.37 GMT", None);
        check("Sun, 06 Nov 1994 08:49 GMT", None);
        check("Sun, +6 Nov 1994 08:49:37 GMT", None);
        check("Sunday, 06-Nov-1994 08:49:37 GMT", None);
        check("Sunday, 06 Nov 94 08:49:37 GMT", None);
        check("Sun Nov 6 08:49:37 1994", None);
        check("Sun Nov 06 08:49:37 1994 GMT", None);
        check("Sun Nov   6 08:49:37 1994", None);
        check("784111777", None);
    }

    #[test]
    fn two_digit_years_keep_within_fifty_years_ahead() {
        #[track_caller]
        fn check(now: &str, text: &str, expected: &str) {
            let now_unix_seconds = parse(now.as_bytes(), 0).unwrap();
            let seconds = parse(text.as_bytes(), now_unix_seconds).unwrap();
            assert_eq!(core::str::from_utf8(&format(seconds)).unwrap(), expected);
        }
        let now = "Sat, 21 Nov 2026 12:00:00 GMT";
        check(now, "Saturday, 21-Nov-26 12:00:00 GMT", "Sat, 21 Nov 2026 12:00:00 GMT");
        check(now, "Friday, 31-Dec-99 23:59:59 GMT", "Fri, 31 Dec 1999 23:59:59 GMT");
        check(now, "Saturday, 01-Jan-00 00:00:00 GMT", "Sat, 01 Jan 2000 00:00:00 GMT");
        // Exactly fifty years are not more than fifty.
        check(now, "Saturday, 21-Nov-76 12:00:00 GMT", "Sat, 21 Nov 2076 12:00:00 GMT");
        check(now, "Saturday, 21-Nov-76 12:00:01 GMT", "Sun, 21 Nov 1976 12:00:01 GMT");
        check(now, "Saturday, 21-Nov-77 12:00:00 GMT", "Mon, 21 Nov 1977 12:00:00 GMT");
        // Across the end of a century.
        check("Sat, 01 Jun 2075 00:00:00 GMT", "Monday, 01-Jan-10 00:00:00 GMT", "Wed, 01 Jan 2110 00:00:00 GMT");
        check("Thu, 01 Jan 1970 00:00:00 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:37 GMT");
    }

    #[test]
    fn invalid_month_and_weekday_do_not_panic() {
        let odd = Civil { year: 0, month: 0, day: 0, hour: 0, minute: 0, second: 0, weekday: 7 };
        assert_eq!((odd.month_name(), odd.weekday_name()), ("???", "???"));
        assert_eq!(odd.to_unix(), None);
    }

    fn system_time(unix_seconds: i64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(unix_seconds as u64)
    }

    proptest! {
        #[test]
        fn formats_as_httpdate_does(unix_seconds in 0..=UNIX_SECONDS_MAX) {
            let expected = httpdate::fmt_http_date(system_time(unix_seconds));
            let formatted = format(unix_seconds);
            prop_assert_eq!(core::str::from_utf8(&formatted).unwrap(), expected);
        }

        #[test]
        fn parses_as_httpdate_does(unix_seconds in 0..=UNIX_SECONDS_MAX) {
            let civil = Civil::from_unix(unix_seconds);
            let (year, month, weekday) = (civil.year, civil.month_name(), civil.weekday_name());
            let time = text!("{:02}:{:02}:{:02}", civil.hour, civil.minute, civil.second);
            for written in [
                text!("{weekday}, {:02} {month} {year:04} {time} GMT", civil.day),
                text!("{weekday} {month} {:2} {time} {year:04}", civil.day),
            ] {
                let ours = parse(written.as_bytes(), NOW).map(system_time);
                prop_assert_eq!(ours, httpdate::parse_http_date(&written).ok(), "{}", written);
            }
        }

        // httpdate reads two digits as 1970 to 2069; our parser agrees at the end of 2019, 50 years before.
        #[test]
        fn parses_rfc850_as_httpdate_does(unix_seconds in 0..3_155_760_000_i64) {
            let civil = Civil::from_unix(unix_seconds);
            let written = text!(
                "{}, {:02}-{}-{:02} {:02}:{:02}:{:02} GMT",
                WEEKDAYS[usize::from(civil.weekday)], civil.day, civil.month_name(), civil.year % 100,
                civil.hour, civil.minute, civil.second,
            );
            let end_of_2019 = 1_577_836_799;
            let ours = parse(written.as_bytes(), end_of_2019).map(system_time);
            prop_assert_eq!(ours, httpdate::parse_http_date(&written).ok(), "{}", written);
        }

        #[test]
        fn single_changed_byte_is_not_parsed_leniently(
            unix_seconds in 0..=UNIX_SECONDS_MAX, at in 0..LEN, byte: u8,
        ) {
            let mut written = format(unix_seconds);
            written[at] = byte;
            if let Some(parsed) = parse(&written, NOW) {
                // Only the weekday and second 60 may differ from the canonical text.
                let canonical = format(parsed);
                prop_assert!(canonical[3..17] == written[3..17] || written[23..25] == *b"60" || parsed < 0);
            }
        }

        #[test]
        fn never_panics(bytes: std::vec::Vec<u8>, now: i64) {
            let _ = parse(&bytes, now);
            let _ = format(now).to_vec();
            let _ = Civil::from_unix(now).month_name().to_string();
        }
    }
}
