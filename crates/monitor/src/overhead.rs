//! What watching costs the server, measured the honest way: on the user's machine, under the user's load, in pairs.
//!
//! Short windows, in blocks of three in random order: watched, and twice not. The ratio of the server's CPU time for each
//! piece of work, watched to not, is one value a block; the ratio of the two that were not watched is the noise of this
//! machine, found in the same minutes by the same means. What is said are medians and their intervals, and nothing finer
//! than the noise. 220 pairs of 0.2 s knew a ratio to 0.4 % where 16 pairs of 1 s knew it to 10 %.
//!
//! A piece of work is a request where the server publishes how many it has read (`published`). Of any other the kernel's
//! counters have to do: segments with data, of which a request is always as many as long as the load is of one kind.
//! Counting connections would not do: one of a hundred requests that comes and goes within a window would be one piece.
//!
//! In a watched window the monitor looks three times, which at the default window is fifteen times as often as
//! `ammeter monitor` does by default.

use std::time::{Duration, Instant};

use amped_measure::Failure;
use amped_measure::stats::{Random, Summary};
use amped_sys::perf::Ring;
use serde::Serialize;

use crate::sample::{Sampler, Settings as Watch, Unit, Used};
use crate::server::Target;
use crate::stop::Stop;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The server, which is to be under load.
    pub target: Target,
    /// Blocks of three windows.
    pub blocks: u32,
    /// The length of a window.
    pub window: Duration,
    /// Whether the monitor looks.
    pub monitor: bool,
    /// Whether the profiler samples.
    pub profile: bool,
    /// Samples a second of each processor.
    pub frequency: u32,
    /// What the order of windows is drawn from.
    pub seed: u64,
}

/// What it costs.
#[derive(Clone, Debug, Serialize)]
pub struct Overhead {
    /// Server CPU time for each piece of work, watched to not; 1 is no cost.
    pub watched: Ratio,
    /// The same of two windows that were not watched: the noise.
    pub noise: Ratio,
    /// Blocks that count: those in which there was load in all windows.
    pub blocks: usize,
    /// Blocks without load in some window.
    pub idle_blocks: usize,
    /// What a piece of work is.
    pub unit: Unit,
    /// Server CPU time for each piece of work while it was not watched, in microseconds, the median.
    pub cpu_us: f64,
    /// Pieces of work a second while it was not watched, the median.
    pub work_per_s: f64,
    /// What the order was drawn from.
    pub seed: u64,
}

/// A median of ratios and its interval.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Ratio {
    /// The median.
    pub median: f64,
    /// Where its interval begins.
    pub low: f64,
    /// Where it ends.
    pub high: f64,
    /// With which probability such an interval contains the true median.
    pub coverage: f64,
}

/// What a window came to.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// Nanoseconds of processor time for a piece of work.
    ns: f64,
    work_per_s: f64,
}

/// What is done in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Window {
    Watched,
    Plain,
    PlainAgain,
}

/// Measures until the blocks are done or the user has had enough.
///
/// # Errors
/// As `Sampler::begin`; sampling is refused; there was no load.
pub fn run(settings: &Settings, stop: &Stop) -> Result<Overhead, Failure> {
    let interval = settings.window;
    let mut sampler = Sampler::begin(Watch {
        target: settings.target,
        interval,
        census_interval: interval,
        budget: 1.0,
        server_file: None,
    })?;
    let mut rings = Vec::new();
    let processors = if settings.profile { crate::profile::processors()? } else { Vec::new() };
    for processor in processors {
        let ring = Ring::open(processor, settings.frequency);
        rings.push(ring.map_err(|error| Failure::failed(crate::profile::refused(&error)))?);
    }
    let unit = sampler.used()?.work.0;
    let mut random = Random(settings.seed);
    let (mut costs, mut idle_blocks) = (Vec::new(), 0);
    'blocks: for _ in 0..settings.blocks {
        let mut order = [Window::Watched, Window::Plain, Window::PlainAgain];
        random.shuffle(&mut order);
        let mut block = [None; 3];
        for window in order {
            let (begun, at): (Used, Instant) = (sampler.used()?, Instant::now());
            if pass(window == Window::Watched, settings, &mut sampler, &mut rings, stop)? {
                break 'blocks;
            }
            let seconds = at.elapsed().as_secs_f64();
            let cost = |(ns, work)| Cost { ns: ns as f64 / work as f64, work_per_s: work as f64 / seconds };
            block[window as usize] = sampler.used()?.since(&begun, unit).map(cost);
        }
        match block {
            [Some(watched), Some(plain), Some(again)] => costs.push([watched, plain, again]),
            _ => idle_blocks += 1,
        }
    }
    weigh(&costs, idle_blocks, unit, settings.seed)
}

/// Lets a window pass; `true`: the user has had enough.
fn pass(
    is_watched: bool,
    settings: &Settings,
    sampler: &mut Sampler,
    rings: &mut [Ring],
    stop: &Stop,
) -> Result<bool, Failure> {
    let begun = Instant::now();
    if is_watched {
        rings.iter().try_for_each(Ring::enable).map_err(Failure::io("begin to sample"))?;
    }
    const LOOKS: u32 = 3;
    for look in 1..=LOOKS {
        if is_watched && settings.monitor && sampler.look()?.is_none() {
            return Err(Failure::failed("the server exited; too few windows for a result"));
        }
        if stop.wait((begun + settings.window * look / LOOKS).saturating_duration_since(Instant::now())) {
            return Ok(true);
        }
    }
    for ring in rings {
        ring.disable().map_err(Failure::io("stop to sample"))?;
        ring.take(drop);
    }
    Ok(false)
}

/// From the cost of windows, watched, not watched and not watched again.
fn weigh(costs: &[[Cost; 3]], idle_blocks: usize, unit: Unit, seed: u64) -> Result<Overhead, Failure> {
    let summary = |of: fn(&[Cost; 3]) -> f64| Summary::of(costs.iter().map(of));
    let ratio = |of: fn(&[Cost; 3]) -> f64| {
        let Summary { low, median, high, coverage } = summary(of)?;
        Some(Ratio { median, low, high, coverage })
    };
    let watched = ratio(|[watched, plain, again]| watched.ns / f64::midpoint(plain.ns, again.ns));
    let noise = ratio(|[_, plain, again]| again.ns / plain.ns);
    let cpu = summary(|[_, plain, again]| f64::midpoint(plain.ns, again.ns));
    let work = summary(|[_, plain, again]| f64::midpoint(plain.work_per_s, again.work_per_s));
    let (Some(watched), Some(noise), Some(cpu), Some(work)) = (watched, noise, cpu, work) else {
        return Err(Failure::failed(format!(
            "no load in any of {idle_blocks} blocks: load the server meanwhile, by `ammeter load URL` or any other \
             client"
        )));
    };
    Ok(Overhead {
        watched,
        noise,
        blocks: costs.len(),
        idle_blocks,
        unit,
        cpu_us: cpu.median / 1e3,
        work_per_s: work.median,
        seed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overhead_is_separated_from_noise() {
        let mut random = Random(5);
        let mut noisy = |ns: f64| Cost { ns: ns * (1.0 + 0.05 * (random.fraction() - 0.5)), work_per_s: 20_000.0 };
        let costs: Vec<[Cost; 3]> = (0..400).map(|_| [noisy(10_300.0), noisy(10_000.0), noisy(10_000.0)]).collect();
        let found = weigh(&costs, 2, Unit::Requests, 5).unwrap();
        assert!(found.watched.low > 1.02 && found.watched.high < 1.04, "{found:?}");
        assert!(found.noise.low < 1.0 && found.noise.high > 1.0 && found.noise.high < 1.01, "{found:?}");
        assert_eq!(found.work_per_s, 20_000.0);
        assert!((found.cpu_us - 10.0).abs() < 0.1 && found.blocks == 400 && found.idle_blocks == 2);
        let text = weigh(&[], 7, Unit::Requests, 1).unwrap_err().to_string();
        assert!(text.contains("no load in any of 7 blocks"), "{text}");
    }

    #[test]
    fn work_is_difference_between_samples() {
        let used = |run: &[(u32, u64)], unit, work| Used { run_ns: run.iter().copied().collect(), work: (unit, work) };
        let requests = |run, work| used(&[(1, run)], Unit::Requests, work);
        let from = requests(1000, 50);
        let check = |to: &Used, unit, expected| assert_eq!(to.since(&from, unit), expected, "{to:?}");
        check(&requests(2000, 55), Unit::Requests, Some((1000, 5)));
        check(&used(&[(1, 1500), (2, 70)], Unit::Requests, 51), Unit::Requests, Some((570, 1)));
        check(&requests(2000, 50), Unit::Requests, None);
        check(&requests(1000, 55), Unit::Requests, None);
        // Another server has taken over, whose count begins anew or is another's.
        check(&requests(2000, 3), Unit::Requests, None);
        check(&used(&[(1, 2000)], Unit::Segments, 99), Unit::Requests, None);
        check(&requests(2000, 55), Unit::Segments, None);
    }
}
