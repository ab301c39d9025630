//! The cost of monitoring for the server, measured on the user's machine, under the user's load, in pairs.
//!
//! Short windows, in blocks of three in random order: one monitored and two not. Each block gives one ratio of the
//! server's CPU time per unit of work, monitored to unmonitored; the ratio of its two unmonitored windows is the noise
//! of this machine, measured in the same minutes by the same means. The report has medians and their intervals, and
//! nothing finer than the noise. 220 pairs of 0.2 s determined a ratio to 0.4 %, 16 pairs of 1 s to 10 %.
//!
//! The unit of work is a request if the server publishes how many it has read (`published`). For other servers the
//! kernel's counters replace it: segments with data, which are proportional to requests as long as the load is uniform.
//! Counting connections would not work: one with a hundred requests within a window would be one unit.
//!
//! In a monitored window the monitor samples three times, which at the default
//! window is fifteen times as often as `ammeter monitor` does by default.

use std::time::{Duration, Instant};

use amped_measure::Failure;
use amped_measure::stats::{Random, Summary};
use amped_sys::perf::Ring;
use serde::Serialize;

use crate::sample::{Sampler, Settings as Watch, Unit, Used};
use crate::server::Target;
use crate::stop::Stop;

/// The settings of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The server, which must be under load.
    pub target: Target,
    /// Number of blocks of three windows.
    pub blocks: u32,
    /// The length of a window.
    pub window: Duration,
    /// Whether the monitor runs.
    pub monitor: bool,
    /// Whether the profiler samples.
    pub profile: bool,
    /// Profiler samples per second and processor.
    pub frequency: u32,
    /// The seed of the order of windows.
    pub seed: u64,
}

/// The result of a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Overhead {
    /// Server CPU time per unit of work, monitored to unmonitored; 1 means no cost.
    pub watched: Ratio,
    /// The same ratio of two unmonitored windows: the noise.
    pub noise: Ratio,
    /// Valid blocks: those with load in all windows.
    pub blocks: usize,
    /// Blocks without load in some window.
    pub idle_blocks: usize,
    /// The unit of work.
    pub unit: Unit,
    /// Median server CPU time per unit of work, unmonitored, in microseconds.
    pub cpu_us: f64,
    /// Median units of work per second, unmonitored.
    pub work_per_s: f64,
    /// The seed of the order of windows.
    pub seed: u64,
}

/// A median of ratios and its interval.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Ratio {
    /// The median.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// The probability that such an interval contains the true median.
    pub coverage: f64,
}

/// The cost of a window.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// Nanoseconds of CPU time per unit of work.
    ns: f64,
    work_per_s: f64,
}

/// The instruments that run in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Window {
    Watched,
    Plain,
    PlainAgain,
}

/// Measures until all blocks are done or the user stops it.
///
/// # Errors
/// Those of `Sampler::begin`; when sampling is refused; when there was no load.
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

/// Waits for the end of a window; returns `true` if the user stopped it.
fn pass(
    is_watched: bool,
    settings: &Settings,
    sampler: &mut Sampler,
    rings: &mut [Ring],
    stop: &Stop,
) -> Result<bool, Failure> {
    let begun = Instant::now();
    if is_watched {
        rings.iter().try_for_each(Ring::enable).map_err(Failure::io("start sampling"))?;
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
        ring.disable().map_err(Failure::io("stop sampling"))?;
        ring.take(drop);
    }
    Ok(false)
}

/// Computes the result from the costs of windows: monitored, unmonitored, and unmonitored again.
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
            "no load in any of {idle_blocks} blocks: put load on the server, with `ammeter load URL` or any other \
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
        let used = |run_ns, unit, work| Used { run_ns, work: (unit, work) };
        let requests = |run, work| used(run, Unit::Requests, work);
        let from = requests(1000, 50);
        let check = |to: &Used, unit, expected| assert_eq!(to.since(&from, unit), expected, "{to:?}");
        check(&requests(2000, 55), Unit::Requests, Some((1000, 5)));
        check(&requests(2000, 50), Unit::Requests, None);
        check(&requests(1000, 55), Unit::Requests, None);
        // Another server has taken over, with a counter that starts again or is another one's.
        check(&requests(2000, 3), Unit::Requests, None);
        check(&used(2000, Unit::Segments, 99), Unit::Requests, None);
        check(&requests(2000, 55), Unit::Segments, None);
    }
}
