//! Packet loss on the wire, independent of the queue before it.
//!
//! Four models, from one that is easy to analyse to one that replays a recording. Each link draws from a seed of its
//! own, so the losses of one path do not depend on the traffic of another.

use std::sync::Arc;

use amped_measure::stats::Random;

/// A loss model.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Loss {
    /// No loss.
    #[default]
    None,
    /// Each packet is lost independently with this probability.
    Bernoulli(f64),
    /// In bursts, see [`GilbertElliott`].
    GilbertElliott(GilbertElliott),
    /// Packets whose element is `true` are lost, from the first packet on; the pattern repeats. Never empty.
    Pattern(Arc<[bool]>),
}

/// A channel with a good and a bad state (Gilbert, Capacity of a Burst-Noise Channel,
/// 1960; Elliott 1963). Before each packet the state may change; then the packet is
/// lost with the probability of the state. All four are probabilities, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GilbertElliott {
    /// Probability of the change from good to bad.
    pub to_bad: f64,
    /// Probability of the change from bad to good; bursts of loss are 1 / `to_good` packets long.
    pub to_good: f64,
    /// Probability of loss in the bad state: Elliott's 1 - h.
    pub lost_in_bad: f64,
    /// Probability of loss in the good state: Elliott's 1 - k.
    pub lost_in_good: f64,
}

impl Loss {
    /// The long-term share of lost packets, 0 to 1.
    pub fn mean(&self) -> f64 {
        match self {
            Loss::None => 0.0,
            Loss::Bernoulli(probability) => *probability,
            Loss::GilbertElliott(wire) => {
                // The stationary distribution of the two states; a channel that never changes stays good.
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
    /// Position of the next packet in the pattern.
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

    /// Checks that the share of lost packets lies within five
    /// standard deviations, which bursts of `burst` packets increase.
    fn check(loss: Loss, burst: f64) {
        for seed in 0..5 {
            let share = lost(&loss, seed).iter().filter(|lost| **lost).count() as f64 / PACKETS as f64;
            let requested = loss.mean();
            let deviation = (requested * (1.0 - requested) * burst * 2.0 / PACKETS as f64).sqrt();
            assert!((share - requested).abs() <= 5.0 * deviation, "{loss:?}, seed {seed}: {share}");
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
