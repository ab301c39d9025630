//! `--screen`: a run as it goes on. What is begun, answered and failed over time, the clocks so far, and how late the
//! generator itself is.
//!
//! It is drawn by the thread that tells the seconds, which measures nothing, and by the one that reads keys, when the size
//! changes. Ctrl-C is a key while the terminal is taken: it ends the run, a second one the program.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ammeter_load::drive::Stop;
use ammeter_load::outcome::{Clocks, Interval, Second, Spread};
use amped_measure::Failure;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Gauge, Paragraph, Row, Sparkline, Table};

use crate::terminal::{self, Terminal, Wish};

/// The screen of a run, or of several one after the other.
pub(super) struct Live {
    shared: Arc<Shared>,
    keys: Option<JoinHandle<()>>,
}

struct Shared {
    /// Screen and terminal; no terminal any more after the first failure to draw.
    screen: Mutex<(Screen, Option<Terminal>)>,
    is_over: AtomicBool,
}

impl Live {
    /// Takes the terminal over. Who wants to end it says so to `stop`.
    pub(super) fn begin(stop: &Stop) -> Result<Live, Failure> {
        let screen = Mutex::new((Screen::default(), Some(Terminal::take()?)));
        let shared = Arc::new(Shared { screen, is_over: AtomicBool::new(false) });
        let (keys, stop) = (Arc::clone(&shared), stop.clone());
        let keys = thread::Builder::new().name("keys".to_owned()).spawn(move || keys.read_keys(&stop));
        let keys = keys.map_err(Failure::io("start a thread"))?;
        Ok(Live { shared, keys: Some(keys) })
    }

    /// A run begins.
    pub(super) fn next_run(&self, title: String, length: Duration) {
        self.shared.draw(|screen| *screen = Screen { title, length_s: length.as_secs_f64(), ..Screen::default() });
    }

    /// A second of it is over.
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
            // Whoever took the terminal away has the result all the same.
            *terminal = None;
        }
    }

    fn read_keys(&self, stop: &Stop) {
        const NAP: Duration = Duration::from_millis(100);
        while !self.is_over.load(Ordering::Relaxed) {
            match terminal::wish(NAP) {
                Ok(Wish::Nothing) => {}
                Ok(Wish::Redraw) => self.draw(|_| {}),
                Ok(Wish::End) if stop.is_stopped() => {
                    terminal::restore();
                    std::process::exit(130);
                }
                Ok(Wish::End) => stop.stop(),
                // No keyboard: signals are left.
                Err(_) => return,
            }
        }
    }
}

/// What is drawn.
#[derive(Default)]
struct Screen {
    /// What is run, and against whom.
    title: String,
    /// How long connections are begun.
    length_s: f64,
    /// The seconds so far, as many as a wide terminal has columns; the newest last.
    seconds: VecDeque<Second>,
    /// Connections begun, right replies and failures so far.
    counts: [u64; 3],
    /// Of all seconds so far.
    clocks: Clocks,
}

/// What is drawn as a rate: its name, its color, and how many of it a second has.
type Figure = (&'static str, Color, fn(&Second) -> u64);

/// Lines that the clocks take, with their frame.
const CLOCKS: u16 = 9;

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
        // The lines that rates are drawn with need as many for themselves; where they are missing, a line has the figures.
        let is_low = frame.area().height < 1 + 1 + 4 + CLOCKS + 1;
        let (rates, lower) = match is_low {
            true => (Constraint::Length(1), Constraint::Fill(1)),
            false => (Constraint::Fill(1), Constraint::Length(CLOCKS)),
        };
        let [head, progress, rates, lower, foot] =
            Layout::vertical([Constraint::Length(1), Constraint::Length(1), rates, lower, Constraint::Length(1)])
                .areas(frame.area());
        frame.render_widget(Paragraph::new(format!(" {}", self.title)).bold(), head);
        let at_s = self.seconds.back().map_or(0.0, |second| second.at_s + second.length_s);
        let part = if self.length_s > 0.0 { (at_s / self.length_s).min(1.0) } else { 0.0 };
        let label = if at_s > self.length_s {
            format!("{at_s:.0} s: waiting for the last replies")
        } else {
            format!("{at_s:.0} s of {:.0} s", self.length_s)
        };
        frame.render_widget(Gauge::default().ratio(part).label(label).gauge_style(Color::Blue), progress);
        let alarm = if self.counts[2] > 0 { Color::Red } else { Color::Gray };
        let figures: [Figure; 3] = [
            ("begun", Color::Blue, |second| second.started),
            ("answered", Color::Green, |second| second.ok),
            ("failed", alarm, |second| second.failed),
        ];
        let now = |count: fn(&Second) -> u64| self.seconds.back().map_or(0.0, |second| second.rate(count(second)));
        if is_low {
            let mut line = Line::default();
            for (name, color, count) in figures {
                line.push_span(format!(" {name} {:.0}/s ", now(count)).fg(color));
            }
            line.push_span(format!("({} in all)", self.counts[2]).fg(alarm));
            frame.render_widget(line, rates);
        } else {
            let places: [Rect; 3] = Layout::horizontal([Constraint::Fill(1); 3]).areas(rates);
            for (((name, color, count), all), place) in figures.into_iter().zip(self.counts).zip(places) {
                let rate = now(count);
                let title =
                    fitting(place, [format!("{name} {rate:.0}/s, {all} in all"), format!("{name} {rate:.0}/s, {all}")]);
                let block = Block::bordered().title(title);
                self.line(frame, place, block, color, |second| second.rate(count(second)).round() as u64);
            }
        }
        let [clocks, latency] = Layout::horizontal([Constraint::Length(66), Constraint::Fill(1)]).areas(lower);
        self.clocks(frame, clocks);
        let p99 = self.seconds.back().map_or_else(String::new, |second| format!("{} ms", number(second.p99_ms)));
        let block =
            Block::bordered().title(fitting(latency, [format!("p99 of each second: {p99}"), format!("p99 {p99}")]));
        self.line(frame, latency, block, Color::Yellow, |second| (second.p99_ms * 1e3) as u64);
        let ends =
            ["q, Escape or Ctrl-C ends the run; what there is until then is the result", "q or Ctrl-C ends the run"];
        frame.render_widget(Paragraph::new(fitting(foot, ends.map(str::to_owned))), foot);
    }

    fn line(&self, frame: &mut Frame<'_>, area: Rect, block: Block<'_>, color: Color, value: impl Fn(&Second) -> u64) {
        let width = usize::from(block.inner(area).width);
        let from = self.seconds.len().saturating_sub(width);
        let values: Vec<u64> = self.seconds.range(from..).map(value).collect();
        frame.render_widget(Sparkline::default().data(&values).style(color).block(block), area);
    }

    /// The clocks so far; and lateness in red where it is what a verdict would call late.
    fn clocks(&self, frame: &mut Frame<'_>, area: Rect) {
        let row = |(name, clock): (&str, _)| {
            let Spread { count, p50_ms, p90_ms, p99_ms, p999_ms, max_ms, .. } = Spread::of(clock);
            let figure = |ms: f64| if count > 0 { format!("{ms:.3}") } else { "-".to_owned() };
            let figures = [p50_ms, p90_ms, p99_ms, p999_ms, max_ms].map(|ms| Line::from(figure(ms)).right_aligned());
            let style = if name == "lateness" && p99_ms > 1.0 { Style::from(Color::Red) } else { Style::new() };
            Row::new([Line::from(name.replace('_', " "))].into_iter().chain(figures)).style(style)
        };
        let widths = [Constraint::Length(12), Constraint::Fill(1), Constraint::Fill(1), Constraint::Fill(1)];
        let widths = widths.into_iter().chain([Constraint::Fill(1); 2]);
        let head = ["ms", "p50", "p90", "p99", "p99.9", "max"];
        let head = head.map(|name| if name == "ms" { Line::from(name) } else { Line::from(name).right_aligned() });
        let table = Table::new(self.clocks.each().map(row), widths).header(Row::new(head).bold());
        frame.render_widget(table.block(Block::bordered().title(" since the planned instant, so far ")), area);
    }
}

/// The first of these that has room within the ends of a line there, else the last.
fn fitting<const N: usize>(area: Rect, texts: [String; N]) -> String {
    let room = usize::from(area.width.saturating_sub(4));
    let fits = texts.iter().position(|text| text.chars().count() <= room).unwrap_or(N - 1);
    format!(" {} ", texts[fits])
}

/// A time in as many digits as are read in passing.
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

    /// So many seconds, each with more replies than the one before.
    fn after(seconds: u64) -> Screen {
        let mut screen = Screen { title: "http://h/ at 1000/s".to_owned(), length_s: 10.0, ..Screen::default() };
        for number in 0..seconds {
            let mut clocks = Clocks::new();
            clocks.latency.saturating_record(7_000_000);
            clocks.lateness.saturating_record(2_000_000);
            let (at_s, ok) = (number as f64, 100 * number);
            let second = Second { at_s, length_s: 1.0, started: 1000, ok, failed: 3, p99_ms: 7.5, ..Second::default() };
            screen.add(&Interval { began_s: 0.0, second, clocks });
        }
        screen
    }

    #[test]
    fn everything_has_its_place() {
        let text = drawn(&after(5), 120, 30);
        for part in [
            "http://h/ at 1000/s",
            "5 s of 10 s",
            "begun 1000/s, 5000 in all",
            "answered 400/s, 1000 in all",
            "failed 3/s, 15 in all",
            "p99 of each second: 7.50 ms",
            "first byte",
            "p99.9",
            "lateness",
            "Ctrl-C",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(text.lines().any(|line| line.contains("│latency") && line.matches("7.00").count() == 5), "{text}");
        assert!(drawn(&after(12), 120, 30).contains("12 s: waiting for the last replies"));
    }

    /// On the terminal that everybody has, and on a narrower one, no word is cut.
    #[test]
    fn on_a_narrow_one_titles_are_short_and_whole() {
        let check = |width, parts: &[&str]| {
            let text = drawn(&after(5), width, 24);
            for part in parts {
                assert!(text.contains(part), "{part} is not in\n{text}");
            }
        };
        let titles =
            ["┌ begun 1000/s, 5000 ─", "┌ answered 400/s, 1000 ─", "┌ failed 3/s, 15 in all ─", "┌ p99 7.50 ms┐"];
        check(80, &titles);
        check(80, &["ends the run; what there is until then is the result "]);
        check(60, &["┌ failed 3/s, 15 ─", " q or Ctrl-C ends the run "]);
    }

    #[test]
    fn a_low_one_has_the_figures() {
        let text = drawn(&after(5), 60, 12);
        for part in ["begun 1000/s", "answered 400/s", "failed 3/s (15 in all)", "lateness", "5 s of 10 s"] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn no_size_and_no_run_is_too_small() {
        for (width, height) in [(1, 1), (20, 5), (60, 12), (300, 100)] {
            drawn(&after(20), width, height);
            drawn(&Screen::default(), width, height);
        }
    }

    #[test]
    fn the_past_is_bounded() {
        let mut screen = Screen::default();
        let second = Second { started: 1000, ..Second::default() };
        let interval = Interval { began_s: 0.0, second, clocks: Clocks::new() };
        (0..700).for_each(|_| screen.add(&interval));
        assert_eq!((screen.seconds.len(), screen.counts[0]), (512, 700_000));
    }
}
