//! Which packets the wire loses, whatever the queue before it does.
//!
//! Four models, from the one that is easy to reason about to the one that repeats what was recorded. Each link draws from
//! a seed of its own, so what one path loses does not depend on what passes another.

use std::sync::Arc;

use amped_measure::stats::Random;

/// How packets are chosen to be lost.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Loss {
    /// None is.
    #[default]
    None,
    /// Each with this probability, whatever became of the others.
    Bernoulli(f64),
    /// In bursts, see [`GilbertElliott`].
    GilbertElliott(GilbertElliott),
    /// The packets for which it says `true`, from the first packet on, and again from the beginning
    /// after its end. Never empty.
    Pattern(Arc<[bool]>),
}

/// A wire that is now good, now bad (Gilbert, Capacity of a Burst-Noise Channel, 1960; Elliott 1963). Before each packet it
/// may change; then the packet is lost with the probability of the state. All four are probabilities, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GilbertElliott {
    /// That a good wire turns bad before a packet.
    pub to_bad: f64,
    /// That a bad wire turns good before a packet; bursts of loss are 1 / `to_good` packets long.
    pub to_good: f64,
    /// That a packet is lost while the wire is bad: Elliott's 1 - h.
    pub lost_in_bad: f64,
    /// That a packet is lost while the wire is good: Elliott's 1 - k.
    pub lost_in_good: f64,
}

impl Loss {
    /// The share of packets that is lost in the long run, 0 to 1.
    pub fn mean(&self) -> f64 {
        match self {
            Loss::None => 0.0,
            Loss::Bernoulli(probability) => *probability,
            Loss::GilbertElliott(wire) => {
                // The stationary distribution of its two states; a wire that never changes stays good.
                let changes = wire.to_bad + wire.to_good;
                let bad = if changes > 0.0 { wire.to_bad / changes } else { 0.0 };
                bad * wire.lost_in_bad + (1.0 - bad) * wire.lost_in_good
            }
            Loss::Pattern(lost) => lost.iter().filter(|lost| **lost).count() as f64 / lost.len() as f64,
        }
    }
}

/// A wire that loses packets.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    loss: Loss,
    random: Random,
    is_bad: bool,
    /// Of the pattern: where the next packet stands.
    at: usize,
}

impl Wire {
    pub(crate) fn new(loss: Loss, seed: u64) -> Wire {
        Wire { loss, random: Random(seed), is_bad: false, at: 0 }
    }

    /// Whether the next packet is lost.
    pub(crate) fn loses(&mut self) -> bool {
        match &self.loss {
            Loss::None => false,
            Loss::Bernoulli(probability) => self.random.fraction() < *probability,
            Loss::GilbertElliott(wire) => {
                let change = if self.is_bad { wire.to_good } else { wire.to_bad };
                self.is_bad ^= self.random.fraction() < change;
                self.random.fraction() < if self.is_bad { wire.lost_in_bad } else { wire.lost_in_good }
            }
            Loss::Pattern(lost) => {
                let is_lost = lost[self.at];
                self.at = (self.at + 1) % lost.len();
                is_lost
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKETS: usize = 200_000;

    fn lost(loss: &Loss, seed: u64) -> Vec<bool> {
        let mut wire = Wire::new(loss.clone(), seed);
        (0..PACKETS).map(|_| wire.loses()).collect()
    }

    /// The share that is lost lies within five standard deviations, of which bursts of `burst` packets make more.
    fn check(loss: Loss, burst: f64) {
        for seed in 0..5 {
            let share = lost(&loss, seed).iter().filter(|lost| **lost).count() as f64 / PACKETS as f64;
            let asked = loss.mean();
            let deviation = (asked * (1.0 - asked) * burst * 2.0 / PACKETS as f64).sqrt();
            assert!((share - asked).abs() <= 5.0 * deviation, "{loss:?}, seed {seed}: {share}");
        }
    }

    #[test]
    fn loss_rate_matches_request() {
        check(Loss::None, 1.0);
        check(Loss::Bernoulli(0.0), 1.0);
        check(Loss::Bernoulli(1.0), 1.0);
        check(Loss::Bernoulli(0.01), 1.0);
        check(Loss::Bernoulli(0.3), 1.0);
        let bursts = GilbertElliott { to_bad: 0.005, to_good: 0.2, lost_in_bad: 0.9, lost_in_good: 0.001 };
        check(Loss::GilbertElliott(bursts), 5.0);
        check(Loss::GilbertElliott(GilbertElliott { to_bad: 0.0, to_good: 0.0, ..bursts }), 1.0);
    }

    #[test]
    fn burst_length_matches_request() {
        let wire = GilbertElliott { to_bad: 0.01, to_good: 0.25, lost_in_bad: 1.0, lost_in_good: 0.0 };
        let lost = lost(&Loss::GilbertElliott(wire), 3);
        let bursts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count();
        let mean = lost.iter().filter(|lost| **lost).count() as f64 / bursts as f64;
        assert!((mean - 4.0).abs() < 0.3, "{mean} packets");
    }

    #[test]
    fn loss_pattern_repeats() {
        let pattern = Loss::Pattern([false, true, true].into());
        let mut wire = Wire::new(pattern.clone(), 1);
        let seen: Vec<bool> = (0..7).map(|_| wire.loses()).collect();
        assert_eq!(seen, [false, true, true, false, true, true, false]);
        assert!((pattern.mean() - 2.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn seed_determines_losses() {
        let loss = Loss::Bernoulli(0.5);
        assert_eq!(lost(&loss, 1), lost(&loss, 1));
        assert_ne!(lost(&loss, 1), lost(&loss, 2));
    }
}
