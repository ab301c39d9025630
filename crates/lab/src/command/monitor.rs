//! `ammeter monitor`: the activity of a server and its machine, live, as lines, or from a record.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ammeter_monitor::show::{self, Screen};
use ammeter_monitor::{Endpoint, Head, Next, Recorder, Replay, Sample, Sampler, Settings, Stop, Target, Tick, replay};
use amped_measure::host::Machine;
use amped_measure::{Failure, Verdict};

use super::{duration, percentage};
use crate::say;
use crate::terminal::{self, Go, Input, Terminal};

/// The command-line flags.
#[derive(clap::Args, Debug)]
#[command(arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetFlags,
    /// Sampling interval; longer if the budget requires it
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s")]
    interval: Duration,
    /// Interval for counting connections; longer if the budget requires it
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s")]
    census: Duration,
    /// Maximum CPU use of the monitor, as a share of one processor
    #[arg(long, value_name = "PERCENT", value_parser = percentage, default_value = "0.5%")]
    budget: f64,
    /// Metrics file of the server [default: the one that it has mapped, if any]
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    server_file: Option<PathBuf>,
    /// Address on which to serve /metrics in OpenMetrics format [default: none]
    #[arg(long, value_name = "ADDR:PORT", value_parser = address, conflicts_with = "replay")]
    metrics_listen: Option<SocketAddr>,
    /// Allow other machines to read /metrics
    #[arg(long, requires = "metrics_listen")]
    metrics_public: bool,
    /// Stop after this time, but not before the first sample [default: until interrupted or the server exits]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Record all samples to a new file, for --replay
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    record: Option<PathBuf>,
    /// Show a recording instead of a server: in a terminal as a screen with keys, else as lines
    #[arg(long, value_name = "FILE", conflicts_with_all = ["port", "pid", "duration"])]
    replay: Option<PathBuf>,
    /// Print one JSON object per sample, with all metrics
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print one CSV row per sample, after a header
    #[arg(long)]
    csv: bool,
    /// Print lines instead of the screen, also in a terminal
    #[arg(long, conflicts_with_all = ["json", "csv"])]
    lines: bool,
}

/// An address to listen on.
fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let port = text.trim_start_matches(':').parse().unwrap_or(9146_u16);
        format!("write an address and a port, such as 127.0.0.1:{port}")
    })
}

/// The server to watch.
#[derive(clap::Args, Debug)]
pub(crate) struct TargetFlags {
    /// Server that listens on this TCP port
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..), conflicts_with = "pid")]
    port: Option<u16>,
    /// Process to watch, with its descendants, also in another network namespace
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
}

impl TargetFlags {
    /// The target, if one was named.
    pub(crate) fn target(&self) -> Option<Target> {
        self.port.map(Target::Port).or(self.pid.map(Target::Pid))
    }

    /// The target, which is required.
    pub(crate) fn needed(&self) -> Result<Target, Failure> {
        self.target()
            .ok_or_else(|| Failure::usage("no server given; write its port (--port 8080) or a process (--pid 1234)"))
    }
}

const EXAMPLES: &str = "\
Examples:
  ammeter monitor --port 8080                           a screen in a terminal, else lines
  ammeter monitor --port 8080 --interval 100ms --budget 2% --record run.zst
  ammeter monitor --replay run.zst                      a screen: space plays, arrows step, PgUp and PgDn 10 ticks, Home, End, q
  ammeter monitor --replay run.zst --lines | less
  ammeter monitor --replay run.zst --csv > run.csv
  ammeter monitor --pid 1234 --duration 10s --json
  ammeter monitor --port 8080 --server-file /run/amped/metrics
  ammeter monitor --port 8080 --metrics-listen 127.0.0.1:9146     for Prometheus; alone with --lines > /dev/null

Works with any server. For one with a metrics file, such as `amped --metrics-file`, it also shows the time of requests by class
and phase, caches, helpers and loops. Without root it shows what /proc and sock_diag give a user, and a line for what is missing.

Exit status: 0, also after Ctrl-C; 1 if the server exits or a recording is truncated: samples up to then are kept.";

pub(crate) fn run(args: &Args) -> Result<Verdict, Failure> {
    match &args.replay {
        Some(path) => show_record(args, replay(path)?),
        None => watch(args),
    }
}

fn show_record(args: &Args, mut record: Replay<'_>) -> Result<Verdict, Failure> {
    let is_screen = !args.json && !args.csv && !args.lines && std::io::stdout().is_terminal();
    let mut form = if is_screen { None } else { Some(Form::begin(args)?) };
    let (mut before, mut samples): (Option<Sample>, u64) = (None, 0);
    let mut ticks = Vec::new();
    for sample in record.by_ref() {
        if let Some(tick) = before.as_ref().and_then(|before| Tick::between(before, &sample)) {
            match &mut form {
                Some(form) => {
                    form.show(&tick)?;
                }
                None => ticks.push(tick),
            }
        }
        before = Some(sample);
        samples += 1;
    }
    if is_screen {
        page_through(record.head(), &ticks)?;
    }
    let head = record.head();
    say::plain(&format!("{}, {samples} samples on {}", head.target, head.machine.cpu));
    head.missing.iter().for_each(|line| say::plain(line));
    let mut verdict = Verdict::valid();
    if let Some(why) = record.cut() {
        let text = format!("the recording is truncated ({why}); the samples before are shown");
        say::plain(&format!("ammeter: {text}"));
        verdict.broken.push(text);
    }
    Ok(verdict)
}

/// A position in a record.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    at: usize,
    last: usize,
    is_playing: bool,
}

impl Place {
    /// Moves the position. A manual step stops playback, as does the end.
    fn go(&mut self, go: Go) {
        self.is_playing = go == Go::Play && !self.is_playing;
        self.at = match go {
            Go::By(count) => self.at.saturating_add_signed(count).min(self.last),
            Go::First => 0,
            Go::Last => self.last,
            // At the end, playback starts again.
            Go::Play if self.is_playing && self.at == self.last => 0,
            Go::Play => self.at,
        };
    }

    /// Moves to the next tick during playback.
    fn advance(&mut self) {
        self.at = (self.at + 1).min(self.last);
        self.is_playing &= self.at < self.last;
    }

    /// The position and the keys, for the title of the screen.
    fn title(&self, target: &str) -> String {
        let state = if self.is_playing { "playing" } else { "paused" };
        format!("{target}  {}/{} {state} (space, arrows, q)", self.at + 1, self.last + 1)
    }
}

/// Shows a record on the screen, tick by tick.
fn page_through(head: &Head, ticks: &[Tick]) -> Result<(), Failure> {
    if ticks.is_empty() {
        say::plain("the recording has fewer than two samples: nothing to show");
        return Ok(());
    }
    let mut terminal = Terminal::take()?;
    let mut place = Place { at: 0, last: ticks.len() - 1, is_playing: false };
    let mut shown = Instant::now();
    let mut is_stale = true;
    loop {
        let tick = &ticks[place.at];
        if is_stale {
            let mut screen =
                Screen { title: place.title(&head.target), missing: head.missing.clone(), ..Screen::default() };
            ticks[..=place.at].iter().for_each(|tick| screen.remember(tick));
            terminal.draw(|frame| show::draw(frame, &screen, tick))?;
            (shown, is_stale) = (Instant::now(), false);
        }
        let patience = if place.is_playing {
            let next = ticks.get(place.at + 1).map_or(0.0, |next| next.interval_s.clamp(0.0, 60.0));
            Duration::from_secs_f64(next).saturating_sub(shown.elapsed())
        } else {
            Duration::from_secs(60)
        };
        match terminal::input(patience)? {
            Input::End => return Ok(()),
            Input::Redraw => is_stale = true,
            Input::Go(go) => {
                place.go(go);
                is_stale = true;
            }
            Input::Nothing if place.is_playing => {
                place.advance();
                is_stale = true;
            }
            Input::Nothing => {}
        }
    }
}

fn watch(args: &Args) -> Result<Verdict, Failure> {
    let target = args.target.needed()?;
    let name = match target {
        Target::Port(port) => format!("port {port}"),
        Target::Pid(pid) => format!("process {pid}"),
    };
    let stop = Stop::listen()?;
    // Clients have a part of the budget, and sampling has the rest.
    let for_looking = if args.metrics_listen.is_some() { 1.0 - Endpoint::PART } else { 1.0 };
    let settings = Settings {
        target,
        interval: args.interval,
        census_interval: args.census,
        budget: args.budget * for_looking,
        server_file: args.server_file.clone(),
    };
    let mut sampler = Sampler::begin(settings)?;
    let begin_record = |path: &PathBuf| {
        let head = Head {
            version: Head::VERSION,
            target: name.clone(),
            interval_us: args.interval.as_micros() as u64,
            budget: args.budget,
            missing: sampler.missing().to_vec(),
            machine: Machine::this()?,
        };
        Recorder::create(path, &head)
    };
    let endpoint = args.metrics_listen.map(|address| open_endpoint(args, address, &name)).transpose()?;
    let mut recorder = args.record.as_ref().map(begin_record).transpose()?;
    let is_screen = !args.json && !args.csv && !args.lines && std::io::stdout().is_terminal();
    let mut tick_output = if is_screen {
        let screen = Screen { title: name.clone(), ..Screen::default() };
        TickOutput::Screen(Box::new(LiveScreen { screen, terminal: Terminal::take()?, last: Tick::default() }))
    } else {
        TickOutput::Form(Form::begin(args)?)
    };
    tick_output.report(sampler.missing());
    let ended = watch_until_the_end(args, &mut sampler, &stop, recorder.as_mut(), endpoint.as_ref(), &mut tick_output);
    drop(tick_output);
    drop(endpoint);
    if let Some(recorder) = recorder {
        recorder.finish()?;
    }
    let end = ended?;
    say::plain(&format!(
        "the monitor used {:.2} % of one processor; the limit is {} %",
        end.own * 100.0,
        (args.budget * 1e4).round() / 1e2
    ));
    if end.has_server_ended {
        return Err(Failure::failed(format!(
            "the server ({name}) has ended; samples up to then are shown and recorded"
        )));
    }
    Ok(Verdict::valid())
}

fn open_endpoint(args: &Args, address: SocketAddr, name: &str) -> Result<Endpoint, Failure> {
    if !address.ip().to_canonical().is_loopback() && !args.metrics_public {
        return Err(Failure::usage(format!(
            "other machines could read the metrics at {address}: write 127.0.0.1:{}, or add --metrics-public to permit \
             it",
            address.port()
        )));
    }
    let endpoint = Endpoint::open(address, name, args.budget)?;
    say::plain(&format!("metrics on http://{}/metrics", endpoint.address()));
    Ok(endpoint)
}

/// How a watch ended.
struct End {
    own: f64,
    has_server_ended: bool,
}

fn watch_until_the_end(
    args: &Args,
    sampler: &mut Sampler,
    stop: &Stop,
    mut recorder: Option<&mut Recorder>,
    endpoint: Option<&Endpoint>,
    tick_output: &mut TickOutput,
) -> Result<End, Failure> {
    let end = args.duration.map(|duration| Instant::now() + duration);
    let mut before: Option<Arc<Sample>> = None;
    let (mut ended, mut has_shown) = (End { own: 0.0, has_server_ended: false }, false);
    loop {
        // A watch shorter than a tick, or one that was delayed, shows one tick nevertheless.
        let end = end.filter(|_| has_shown);
        let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        if left.is_zero() || tick_output.is_quit_requested()? {
            return Ok(ended);
        }
        match sampler.next(stop, left.min(tick_output.patience()))? {
            Next::Waiting => {}
            Next::Stopped => return Ok(ended),
            Next::Ended => {
                ended.has_server_ended = true;
                return Ok(ended);
            }
            Next::Sample(sample) => {
                tick_output.report(sampler.missing());
                if let Some(recorder) = &mut recorder {
                    recorder.add(&sample)?;
                }
                let sample: Arc<Sample> = sample.into();
                let tick = before.as_ref().and_then(|before| Tick::between(before, &sample));
                endpoint.iter().for_each(|endpoint| endpoint.tell(sample.clone(), tick.as_ref()));
                if let Some(tick) = tick {
                    ended.own = tick.own_cpu_so_far;
                    // Records and collectors are consumers too.
                    if !tick_output.show(&tick)? && recorder.is_none() && endpoint.is_none() {
                        return Ok(ended);
                    }
                    has_shown = true;
                }
                before = Some(sample);
            }
        }
    }
}

/// The output format: lines, CSV or JSON.
struct Form {
    json: bool,
    csv: bool,
    lines: u32,
    /// How many of the lines about missing sources have been printed.
    reported: usize,
}

impl Form {
    fn begin(args: &Args) -> Result<Form, Failure> {
        if args.csv {
            say::out(&show::csv_header())?;
        }
        Ok(Form { json: args.json, csv: args.csv, lines: 0, reported: 0 })
    }

    /// Prints a tick; `false` if the output was closed.
    fn show(&mut self, tick: &Tick) -> Result<bool, Failure> {
        // At least the height of a terminal.
        const BETWEEN_HEADERS: u32 = 20;
        if self.json {
            return say::read(&say::as_json(tick)?);
        }
        if self.csv {
            return say::read(&show::csv_row(tick));
        }
        if self.lines.is_multiple_of(BETWEEN_HEADERS) {
            say::out(&show::line_header())?;
        }
        self.lines += 1;
        say::read(&show::line(tick))
    }
}

/// The consumer of ticks: the screen or standard output.
enum TickOutput {
    Form(Form),
    Screen(Box<LiveScreen>),
}

/// The screen with its terminal.
struct LiveScreen {
    screen: Screen,
    terminal: Terminal,
    /// The tick on the screen.
    last: Tick,
}

impl LiveScreen {
    fn draw(&mut self) -> Result<(), Failure> {
        let LiveScreen { screen, terminal, last } = self;
        terminal.draw(|frame| show::draw(frame, screen, last))
    }
}

impl TickOutput {
    /// Shows the sources that are missing; the list may grow.
    fn report(&mut self, missing: &[String]) {
        match self {
            TickOutput::Form(form) => {
                missing[form.reported..].iter().for_each(|line| say::plain(line));
                form.reported = missing.len();
            }
            TickOutput::Screen(live) => live.screen.missing = missing.to_vec(),
        }
    }

    /// Draws a sample; `false` if the terminal was closed.
    fn show(&mut self, tick: &Tick) -> Result<bool, Failure> {
        match self {
            TickOutput::Form(form) => form.show(tick),
            TickOutput::Screen(live) => {
                live.screen.remember(tick);
                live.last = tick.clone();
                live.draw().map(|()| true)
            }
        }
    }

    /// Whether the user pressed a key that quits.
    fn is_quit_requested(&mut self) -> Result<bool, Failure> {
        let TickOutput::Screen(live) = self else { return Ok(false) };
        match terminal::input(Duration::ZERO)? {
            Input::End => Ok(true),
            Input::Redraw => live.draw().map(|()| false),
            Input::Nothing | Input::Go(_) => Ok(false),
        }
    }

    /// Maximum wait before keys are polled, so that a key takes effect long before a tick of a minute ends.
    fn patience(&self) -> Duration {
        match self {
            TickOutput::Form(_) => Duration::MAX,
            TickOutput::Screen(_) => Duration::from_millis(100),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_page_through_and_play_recording() {
        let mut place = Place { at: 0, last: 24, is_playing: false };
        let steps = [
            (Go::By(-1), 0),
            (Go::By(1), 1),
            (Go::By(10), 11),
            (Go::By(isize::MAX), 24),
            (Go::First, 0),
            (Go::By(isize::MIN), 0),
            (Go::Last, 24),
        ];
        for (go, expected) in steps {
            place.go(go);
            assert_eq!((place.at, place.is_playing), (expected, false), "{go:?}");
        }
        place.go(Go::Play);
        assert_eq!((place.at, place.is_playing), (0, true), "from the end it plays again");
        place.advance();
        place.go(Go::Play);
        assert_eq!((place.at, place.is_playing), (1, false));
        place.go(Go::Play);
        place.go(Go::By(1));
        assert_eq!((place.at, place.is_playing), (2, false), "a step by hand ends it");
        place.go(Go::Play);
        (0..40).for_each(|_| place.advance());
        assert_eq!((place.at, place.is_playing), (24, false), "it ends with the record");
        assert!(place.title("port 80").contains("25/25 paused"));
    }
}
