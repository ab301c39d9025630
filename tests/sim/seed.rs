//! Seeds: a few fixed ones, so that a change of behaviour shows, and a few fresh ones,
//! so that the tests keep exploring. `SEED` in the environment replaces all of them,
//! `FRESH` sets the number of fresh ones: `FRESH=1000` is a good night's work.

use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) use rand::RngExt;
use rand::SeedableRng;
pub(crate) use rand_xoshiro::Xoshiro256PlusPlus as Dice;

/// Fresh seeds per run.
const FRESH: u64 = 3;

/// Runs `test` with the random generator of each of the `fixed` seeds and of a few fresh ones.
pub(crate) fn each_seed(fixed: u64, mut test: impl FnMut(Dice)) {
    let seeds: Vec<u64> = match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().expect("SEED is a number")],
        Err(_) => {
            let clock = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
            let fresh = std::env::var("FRESH").map_or(FRESH, |count| count.parse().expect("FRESH is a number"));
            (0..fixed).chain((0..fresh).map(|n| clock.wrapping_add(n))).collect()
        }
    };
    for seed in seeds {
        let guard = PrintSeed(seed);
        test(Dice::seed_from_u64(seed));
        drop(guard);
    }
}

/// Prints the seed if a test fails.
struct PrintSeed(u64);

impl Drop for PrintSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("reproduce with SEED={}", self.0);
        }
    }
}

/// Picks one of these.
pub(crate) fn one_of<'a, T: ?Sized>(dice: &mut Dice, options: &[&'a T]) -> &'a T {
    options[dice.random_range(0..options.len())]
}
