//! `--screen`: a run in progress: rates with their trends, open connections, bytes, percentiles of
//! the clocks so far, and the lateness of the generator.
//!
//! Drawn by the thread that reports seconds, which does not measure, and by the one that reads keys, when the size
//! changes. In raw mode Ctrl-C is a key: the first ends the run, the second the program.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ammeter_load::drive::Stop;
use ammeter_load::tally::{Clocks, Interval, Spread};
use ammeter_load::window::Second;
use amped_measure::Failure;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Row, Table};

use super::summary::{LATE_MS, short};
use crate::terminal::{self, Input, Terminal};

/// The screen of one run or of several in sequence.
pub(super) struct Live {
    shared: Arc<Shared>,
    keys: Option<JoinHandle<()>>,
}

struct Shared {
    /// Screen and terminal; the terminal is dropped at the first failure to draw.
    screen: Mutex<(Screen, Option<Terminal>)>,
    is_over: AtomicBool,
}

impl Live {
    /// Takes over the terminal. Keys that end the run trigger `stop`.
    pub(super) fn begin(stop: &Stop) -> Result<Live, Failure> {
        let screen = Mutex::new((Screen::default(), Some(Terminal::take()?)));
        let shared = Arc::new(Shared { screen, is_over: AtomicBool::new(false) });
        let (keys, stop) = (Arc::clone(&shared), stop.clone());
        let keys = thread::Builder::new().name("keys".to_owned()).spawn(move || keys.read_keys(&stop));
        let keys = keys.map_err(Failure::io("start a thread"))?;
        Ok(Live { shared, keys: Some(keys) })
    }

    /// Begins a run.
    pub(super) fn next_run(&self, title: String, length: Duration) {
        self.shared.draw(|screen| *screen = Screen { title, length_s: length.as_secs_f64(), ..Screen::default() });
    }

    /// Adds a second.
    pub(super) fn hear(&self, interval: &Interval) {
        self.shared.draw(|screen| screen.add(interval));
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(keys) = self.keys.take() {
            let _ = keys.join();
        }
    }
}

impl Shared {
    fn draw(&self, change: impl FnOnce(&mut Screen)) {
        let mut both: MutexGuard<'_, (Screen, Option<Terminal>)> =
            self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        let (screen, terminal) = &mut *both;
        change(screen);
        if let Some(drawn) = terminal
            && drawn.draw(|frame| screen.draw(frame)).is_err()
        {
            // The result does not depend on the terminal.
            *terminal = None;
        }
    }

    fn read_keys(&self, stop: &Stop) {
        const NAP: Duration = Duration::from_millis(100);
        while !self.is_over.load(Ordering::Relaxed) {
            match terminal::input(NAP) {
                Ok(Input::Nothing | Input::Go(_)) => {}
                Ok(Input::Redraw) => self.draw(|_| {}),
                Ok(Input::End) if stop.is_stopped() => {
                    terminal::restore();
                    std::process::exit(130);
                }
                Ok(Input::End) => stop.stop(),
                // Without a keyboard, only a signal ends the run early.
                Err(_) => return,
            }
        }
    }
}

/// The content of the screen.
#[derive(Default)]
struct Screen {
    /// The kind of run, and its target.
    title: String,
    /// How long connections are opened.
    length_s: f64,
    /// The seconds so far, at most as many as a wide terminal has columns; newest last.
    seconds: VecDeque<Second>,
    /// Connections started, correct replies and failures so far.
    counts: [u64; 3],
    /// The clocks of all seconds so far.
    clocks: Clocks,
}

/// A rate on the screen: name, color, and amount in a second.
type Figure = (&'static str, Color, fn(&Second) -> u64);

const RATES: [Figure; 3] = [
    ("offered", Color::Blue, |second| second.started),
    ("completed", Color::Green, |second| second.ok),
    ("failed", Color::Red, |second| second.failed),
];

/// Lines of the table of rates, with border and heading.
const RATE_LINES: u16 = 8;
/// Lines of the latencies: heading, last second, each clock, and border.
const CLOCK_LINES: u16 = 9;
/// Columns of a trend.
const TREND: usize = 24;

impl Screen {
    fn add(&mut self, interval: &Interval) {
        const KEPT: usize = 512;
        let second = interval.second;
        if self.seconds.len() == KEPT {
            self.seconds.pop_front();
        }
        self.seconds.push_back(second);
        for (all, new) in self.counts.iter_mut().zip([second.started, second.ok, second.failed]) {
            *all += new;
        }
        self.clocks.add(&interval.clocks);
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let is_low = frame.area().height < 1 + 1 + RATE_LINES + CLOCK_LINES + 1;
        let rates = if is_low { Constraint::Length(1) } else { Constraint::Length(RATE_LINES) };
        let clocks = if is_low { Constraint::Fill(1) } else { Constraint::Length(CLOCK_LINES) };
        let space = if is_low { Constraint::Length(0) } else { Constraint::Fill(1) };
        let line = Constraint::Length(1);
        let [head, progress, rates, clocks, _, foot] =
            Layout::vertical([line, line, rates, clocks, space, line]).areas(frame.area());
        frame.render_widget(Paragraph::new(format!(" {}", self.title)).bold(), head);
        frame.render_widget(Paragraph::new(self.progress(progress.width)), progress);
        if is_low {
            self.rates_in_a_line(frame, rates)
        } else {
            self.rates(frame, rates)
        }
        self.clocks(frame, clocks);
        let ends = ["q, Escape or Ctrl-C ends the run; the result so far is printed", "q or Ctrl-C ends the run"];
        frame.render_widget(Paragraph::new(fitting(foot, ends.map(str::to_owned))), foot);
    }

    /// The progress of the run: a thin bar if its length is known, and the time.
    fn progress(&self, width: u16) -> Line<'static> {
        const BAR: usize = 24;
        let at_s = self.seconds.back().map_or(0.0, |second| second.at_s + second.length_s);
        if self.length_s <= 0.0 {
            return Line::from(format!(" {at_s:.0} s"));
        }
        let text = if at_s > self.length_s {
            format!(" {at_s:.0} s: draining, no new connections")
        } else {
            format!(" {at_s:.0} s of {:.0} s", self.length_s)
        };
        if usize::from(width) < BAR + text.len() + 2 {
            return Line::from(text);
        }
        let done = ((at_s / self.length_s).min(1.0) * BAR as f64).round() as usize;
        Line::from(vec![" ".into(), "━".repeat(done).fg(Color::Blue), "─".repeat(BAR - done).dim(), text.into()])
    }

    fn now(&self, count: fn(&Second) -> u64) -> f64 {
        self.seconds.back().map_or(0.0, |second| second.rate(count(second)))
    }

    fn alarm(&self) -> Color {
        if self.counts[2] > 0 { Color::Red } else { Color::Reset }
    }

    fn rates_in_a_line(&self, frame: &mut Frame<'_>, area: Rect) {
        let mut line = Line::default();
        for (name, color, count) in RATES {
            let color = if name == "failed" { self.alarm() } else { color };
            line.push_span(format!(" {name} {}/s ", short(self.now(count).round())).fg(color));
        }
        line.push_span(format!("({} total)", self.counts[2]).fg(self.alarm()));
        frame.render_widget(line, area);
    }

    /// Rates of the last second, their means and trends; the backlog; bytes.
    fn rates(&self, frame: &mut Frame<'_>, area: Rect) {
        let seconds: f64 = self.seconds.iter().map(|second| second.length_s).sum();
        let mean = |value: fn(&Second) -> u64| {
            self.seconds.iter().map(value).fold(0, u64::saturating_add) as f64 / seconds.max(1e-9)
        };
        let right = |text: String| Line::from(text).right_aligned();
        let row = |name: &'static str, cells: [String; 3], trend: String, color: Color| {
            let [now, mean, all] = cells.map(right);
            Row::new([Line::from(name), now, mean, all, Line::from(trend).fg(color)])
        };
        let mut rows: Vec<Row<'_>> = RATES
            .into_iter()
            .zip(self.counts)
            .map(|((name, color, count), all)| {
                let cells = [format!("{:.0}", self.now(count)), format!("{:.0}", mean(count)), all.to_string()];
                let row = row(name, cells, self.trend(|second| second.rate(count(second))), color);
                if name == "failed" { row.style(self.alarm()) } else { row }
            })
            .collect();
        let backlog = self.seconds.back().map_or(0, |second| second.backlog);
        let most = self.seconds.iter().map(|second| second.backlog).max().unwrap_or(0);
        let trend = self.trend(|second| second.backlog as f64);
        rows.push(row("open", [backlog.to_string(), String::new(), format!("{most} max")], trend, Color::Yellow));
        let megabytes = |bytes: f64| format!("{:.1}", bytes / 1e6);
        let received: fn(&Second) -> u64 = |second| second.received_bytes;
        let trend = self.trend(|second| second.rate(second.received_bytes));
        let cells = [megabytes(self.now(received)), megabytes(mean(received)), String::new()];
        rows.push(row("MB/s", cells, trend, Color::Cyan));
        let widths = [10, 9, 9, 13].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
        let head = Row::new([
            Line::from("per second"),
            right("now".into()),
            right("mean".into()),
            right("total".into()),
            Line::from("trend"),
        ]);
        frame.render_widget(Table::new(rows, widths).header(head.bold()).block(Block::bordered()), area);
    }

    /// The last seconds as small bars, scaled to the highest.
    fn trend(&self, value: impl Fn(&Second) -> f64) -> String {
        const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let from = self.seconds.len().saturating_sub(TREND);
        let values: Vec<f64> = self.seconds.range(from..).map(value).collect();
        let most = values.iter().copied().fold(0.0, f64::max);
        let bar = |value: f64| if most > 0.0 { BARS[((value / most * 8.0) as usize).clamp(1, 8) - 1] } else { BARS[0] };
        values.into_iter().map(bar).collect()
    }

    /// The clocks so far, and the latency of the last second; lateness is red if the verdict would object.
    fn clocks(&self, frame: &mut Frame<'_>, area: Rect) {
        let cells = |name: String, figures: [String; 6]| {
            Row::new([Line::from(name)].into_iter().chain(figures.map(|text| Line::from(text).right_aligned())))
        };
        let row = |(name, clock): (&str, _)| {
            let Spread { count, p50_ms, p90_ms, p95_ms, p99_ms, p999_ms, max_ms, .. } = Spread::of(clock);
            let figure = |ms: f64| if count > 0 { number(ms) } else { "-".to_owned() };
            let style = if name == "lateness" && p99_ms > LATE_MS { Style::from(Color::Red) } else { Style::new() };
            let figures = [p50_ms, p90_ms, p95_ms, p99_ms, p999_ms, max_ms].map(figure);
            cells(name.replace('_', " "), figures).style(style)
        };
        let last = self.seconds.back().filter(|second| second.ok > 0).map(|second| {
            let Second { p50_ms, p90_ms, p99_ms, max_ms, .. } = *second;
            let known = |ms| number(ms);
            let dash = || "-".to_owned();
            cells(
                "latency now".to_owned(),
                [known(p50_ms), known(p90_ms), dash(), known(p99_ms), dash(), known(max_ms)],
            )
        });
        // On a small screen, the whole run takes precedence over its last second.
        let last = last.filter(|_| area.height >= CLOCK_LINES);
        let rows = last.into_iter().map(|row| row.fg(Color::Green)).chain(self.clocks.each().map(row));
        let widths = [Constraint::Length(12)].into_iter().chain([Constraint::Fill(1); 6]);
        let head = cells("ms".to_owned(), ["p50", "p90", "p95", "p99", "p99.9", "max"].map(str::to_owned));
        let block = Block::bordered().title(" since the scheduled time, the whole run ");
        frame.render_widget(Table::new(rows, widths).header(head.bold()).block(block), area);
    }
}

/// The first of these texts that fits into the width, otherwise the last.
fn fitting<const N: usize>(area: Rect, texts: [String; N]) -> String {
    let room = usize::from(area.width.saturating_sub(4));
    let fits = texts.iter().position(|text| text.chars().count() <= room).unwrap_or(N - 1);
    format!(" {} ", texts[fits])
}

/// A time in few digits.
fn number(ms: f64) -> String {
    match ms {
        ms if ms >= 100.0 => format!("{ms:.0}"),
        ms if ms >= 10.0 => format!("{ms:.1}"),
        ms => format!("{ms:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::backend::TestBackend;

    fn drawn(screen: &Screen, width: u16, height: u16) -> String {
        let mut terminal = ratatui::Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| row(y) + "\n").collect()
    }

    /// The screen after `seconds` seconds, each with more replies than the one before.
    fn after(seconds: u64) -> Screen {
        let mut screen = Screen { title: "http://h/ at 1000/s".to_owned(), length_s: 10.0, ..Screen::default() };
        for number in 0..seconds {
            let mut clocks = Clocks::default();
            clocks.latency.saturating_record(7_000_000);
            clocks.lateness.saturating_record(2_000_000);
            let (at_s, ok) = (number as f64, 100 * number);
            let second = Second {
                at_s,
                length_s: 1.0,
                started: 1000,
                ok,
                failed: 3,
                backlog: 10 * number,
                received_bytes: 2_000_000,
                p99_ms: 7.5,
                ..Second::default()
            };
            screen.add(&Interval { began_s: 0.0, second, clocks });
        }
        screen
    }

    #[test]
    fn screen_shows_all_panels() {
        let text = drawn(&after(5), 120, 30);
        for part in [
            "http://h/ at 1000/s",
            "5 s of 10 s",
            "━━━━━━━━━━━━────────────",
            "first byte",
            "p99.9",
            "lateness",
            "Ctrl-C",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        let words = |name: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{name}: {text}"));
            line.split_whitespace().filter(|word| *word != "│").map(|word| word.trim_matches('│').to_owned()).collect()
        };
        assert_eq!(words("│offered"), ["offered", "1000", "1000", "5000", "█████"]);
        assert_eq!(words("│completed"), ["completed", "400", "200", "1000", "▁▂▄▆█"]);
        assert_eq!(words("│failed")[..4], ["failed", "3", "3", "15"]);
        assert_eq!(words("│open")[..4], ["open", "40", "40", "max"]);
        assert_eq!(words("│MB/s")[..3], ["MB/s", "2.0", "2.0"]);
        assert_eq!(words("│latency now")[..6], ["latency", "now", "0.00", "0.00", "-", "7.50"]);
        assert!(text.lines().any(|line| line.contains("│latency ") && line.matches("7.00").count() == 6), "{text}");
        assert!(drawn(&after(12), 120, 30).contains("12 s: draining"));
        // A run that ends after a number of requests has no length.
        let endless = Screen { length_s: 0.0, ..after(3) };
        assert!(drawn(&endless, 80, 24).contains(" 3 s ") && !drawn(&endless, 80, 24).contains("3 s of"));
    }

    /// On 80 columns, and on fewer, no word is cut.
    #[test]
    fn narrow_screen_has_short_untruncated_titles() {
        let check = |width, parts: &[&str]| {
            let text = drawn(&after(5), width, 24);
            for part in parts {
                assert!(text.contains(part), "{part} is not in\n{text}");
            }
        };
        let all = [
            "per second",
            "total",
            "trend",
            "completed",
            "40 max",
            "MB/s",
            "p99.9",
            "max│",
            "since the scheduled time",
        ];
        check(80, &all);
        check(80, &["ends the run; the result so far is printed "]);
        check(60, &["completed", "total", " q or Ctrl-C ends the run "]);
    }

    #[test]
    fn short_screen_shows_figures() {
        let text = drawn(&after(5), 60, 12);
        for part in ["offered 1000/s", "completed 400/s", "failed 3/s", "(15 total)", "lateness", "5 s of 10 s"] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn any_size_and_empty_run_do_not_panic() {
        for (width, height) in [(1, 1), (20, 5), (60, 12), (300, 100)] {
            drawn(&after(20), width, height);
            drawn(&Screen::default(), width, height);
        }
    }

    #[test]
    fn history_is_bounded() {
        let mut screen = Screen::default();
        let second = Second { started: 1000, ..Second::default() };
        let interval = Interval { began_s: 0.0, second, clocks: Clocks::default() };
        (0..700).for_each(|_| screen.add(&interval));
        assert_eq!((screen.seconds.len(), screen.counts[0]), (512, 700_000));
    }
}
