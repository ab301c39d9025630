//! A load from several generators: each runs a slice of one plan, and the slices together are the plan.
//!
//! Each generator draws the whole plan from a seed. Of N generators the I-th runs every N-th connection, with the
//! request numbers of the whole, so that requests and instants do not depend on N. In a closed loop it runs every N-th
//! client and every N-th request. The generators exchange nothing but the start time.

use std::fmt;
use std::str::FromStr;

/// One of several equal parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The index, `index < of`.
    index: u64,
    /// The number of slices.
    of: u64,
}

/// Maximum number of slices.
const MOST: u64 = 1000;

impl Default for Slice {
    /// The whole plan.
    fn default() -> Slice {
        Slice { index: 0, of: 1 }
    }
}

impl Slice {
    /// Slice number `index`, from 0, of `of`; `None` if there is no such slice.
    pub fn new(index: usize, of: usize) -> Option<Slice> {
        let slice = Slice { index: index as u64, of: of as u64 };
        (slice.index < slice.of && slice.of <= MOST).then_some(slice)
    }

    /// The number of slices.
    pub fn count(self) -> u64 {
        self.of
    }

    /// Whether the slice is the whole plan.
    pub fn is_whole(self) -> bool {
        self.of == 1
    }

    /// The number in the plan of the slice's item `n`, both from 0.
    pub fn number(self, n: u64) -> u64 {
        n.saturating_mul(self.of).saturating_add(self.index)
    }

    /// The number of items of the slice, of `count` in the plan.
    pub fn share(self, count: u64) -> u64 {
        count.saturating_sub(self.index).div_ceil(self.of)
    }
}

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index + 1, self.of)
    }
}

impl FromStr for Slice {
    type Err = String;

    fn from_str(text: &str) -> Result<Slice, String> {
        let parts = || {
            let (index, of) = text.split_once('/')?;
            let (index, of) = (index.trim().parse::<usize>().ok()?, of.trim().parse().ok()?);
            Slice::new(index.checked_sub(1)?, of)
        };
        parts().ok_or_else(|| {
            format!("invalid slice {text:?}: write I/N, such as 1/3, 2/3 and 3/3 on three machines, N at most {MOST}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Arrivals, Schedule};
    use crate::workload::{Order, Request, Requests};
    use proptest::prelude::*;
    use std::time::Duration;

    fn slices(of: usize) -> impl Iterator<Item = Slice> {
        (0..of).map(move |index| Slice::new(index, of).expect("there is such a part"))
    }

    proptest! {
        #[test]
        fn slices_of_plan_form_whole_plan(of in 1..9_usize, seed: u64, rate in 1.0..2000.0_f64, kind in 0..3_usize) {
            let arrivals = ["constant", "poisson", "bursty:3,20%,100ms"][kind].parse::<Arrivals>().unwrap();
            let schedule = Schedule::new(&arrivals, rate, Duration::from_millis(500), seed).unwrap();
            let whole: Vec<(u64, u64)> = schedule.arrivals().collect();
            let mut united = Vec::new();
            for slice in slices(of) {
                let part = schedule.clone().slice(slice);
                // All parts have the common window, and none more than its share.
                prop_assert_eq!(part.duration(), schedule.duration());
                prop_assert_eq!(part.at_ns().len() as u64, slice.share(whole.len() as u64));
                united.extend(part.arrivals());
            }
            united.sort_unstable();
            prop_assert_eq!(united, whole);
        }

        #[test]
        fn slices_of_workload_form_whole_workload(of in 1..9_usize, seed: u64, count in 1..200_usize, order in 0..4_usize) {
            let table = vec![Request::default(); count];
            let order = match order {
                0 => Order::Cycle,
                1 => Order::Once,
                2 => Order::Listed((0..count as u32).rev().collect()),
                _ => Order::Drawn { seed, sums: (1..=count).map(|sum| sum as f64).collect() },
            };
            let requests = Requests::new(table, order);
            let mut found: Vec<Option<usize>> = vec![None; 300];
            for slice in slices(of) {
                let part = requests.clone().slice(slice);
                prop_assert_eq!(part.len(), requests.len().map(|length| slice.share(length)));
                for n in 0..slice.share(300) {
                    found[slice.number(n) as usize] = part.index(n);
                }
            }
            let whole: Vec<Option<usize>> = (0..300).map(|n| requests.index(n)).collect();
            prop_assert_eq!(found, whole);
        }

        #[test]
        fn random_text_does_not_panic(text in "[0-9 /+-]{0,8}") {
            if let Ok(slice) = text.parse::<Slice>() {
                prop_assert_eq!(slice.to_string().parse(), Ok(slice));
            }
        }
    }

    #[test]
    fn slice_numbers_start_at_one() {
        let check = |text: &str, expected: Option<(usize, usize)>| {
            let expected = expected.and_then(|(index, of)| Slice::new(index, of));
            assert_eq!(text.parse::<Slice>().ok(), expected, "{text}");
        };
        check("1/1", Some((0, 1)));
        check("2/3", Some((1, 3)));
        check("3/3", Some((2, 3)));
        for bad in ["", "1", "0/3", "4/3", "a/b", "1/0", "1/1001", "-1/2", "1/2/3"] {
            check(bad, None);
        }
        assert!(Slice::default().is_whole() && Slice::default().to_string() == "1/1");
        assert_eq!([0, 1, 2, 3, 7].map(|count| Slice::new(1, 3).unwrap().share(count)), [0, 0, 1, 1, 2]);
    }
}
