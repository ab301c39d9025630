//! Amounts in three digits and a unit.

/// Bytes with the prefix that leaves three digits: `1.5M`. Powers of 1024.
pub(super) fn bytes(amount: f64) -> String {
    let mut amount = amount;
    for unit in ["", "K", "M", "G", "T"] {
        if amount < 1000.0 {
            return if unit.is_empty() || amount >= 99.95 {
                format!("{amount:.0}{unit}")
            } else {
                format!("{amount:.1}{unit}")
            };
        }
        amount /= 1024.0;
    }
    format!("{amount:.1}P")
}

/// A count with the prefix that leaves three digits: `12.3k`.
pub(super) fn count(amount: f64) -> String {
    let mut amount = amount;
    for unit in ["", "k", "M", "G"] {
        if amount < 1000.0 {
            return if unit.is_empty() || amount >= 99.95 {
                format!("{amount:.0}{unit}")
            } else {
                format!("{amount:.1}{unit}")
            };
        }
        amount /= 1000.0;
    }
    format!("{amount:.1}T")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let check = |amount: f64, as_bytes: &str, as_count: &str| {
            assert_eq!((bytes(amount).as_str(), count(amount).as_str()), (as_bytes, as_count), "{amount}");
        };
        check(0.0, "0", "0");
        check(999.0, "999", "999");
        check(1000.0, "1.0K", "1.0k");
        check(150_000.0, "146K", "150k");
        check(99_960.0, "97.6K", "100k");
        check(3e9, "2.8G", "3.0G");
        check(5e12, "4.5T", "5.0T");
    }
}
