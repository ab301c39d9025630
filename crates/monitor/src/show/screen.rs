//! Draws the live screen: processors by mode, the accept queue, connections by state and limit, the server's threads,
//! and the monitor's own cost. Draws cells only; the caller owns the terminal.

use std::slice;

use amped_exporter::{Kind, Unit};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Row, Sparkline, Table};

use super::number::{bytes, count};
use crate::figure::{Figure, Figures};
use crate::rates::{ModuleRate, Tick};

/// The content of the screen besides the tick.
#[derive(Clone, Debug, Default)]
pub struct Screen {
    /// The monitored server.
    pub title: String,
    /// The sources that cannot be read, one line each.
    pub missing: Vec<String>,
    /// The server's CPU use in earlier ticks, in thousandths of a processor, newest last.
    pub history: Vec<u64>,
}

impl Screen {
    /// Records the values of this tick that later screens show.
    pub fn remember(&mut self, tick: &Tick) {
        const HISTORY_MAX: usize = 512;
        if self.history.len() == HISTORY_MAX {
            self.history.remove(0);
        }
        self.history.push((tick.server_cpu() * 1e3) as u64);
    }
}

/// Draws a tick.
pub fn draw(frame: &mut Frame<'_>, screen: &Screen, tick: &Tick) {
    let missing = screen.missing.len().min(3) as u16;
    let [head, cpu, middle, threads, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(5),
        Constraint::Length(13),
        Constraint::Min(4),
        Constraint::Length(1 + missing),
    ])
    .areas(frame.area());
    // On a small screen the machine's part is omitted first; the server's own figures are above its threads.
    let is_narrow = frame.area().width < 110;
    let part = if is_narrow { Constraint::Length(0) } else { Constraint::Fill(1) };
    let [queue, states, machine] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1), part]).areas(middle);
    let title = format!(" {}   {:.1} s, ticks of {:.2} s", screen.title, tick.at_s, tick.interval_s);
    frame.render_widget(Paragraph::new(title).style(Style::new().add_modifier(Modifier::BOLD)), head);
    processors(frame, cpu, screen, tick);
    listeners(frame, queue, tick);
    connections(frame, states, tick);
    the_machine(frame, machine, tick);
    match &tick.module {
        None => the_threads(frame, threads, tick),
        Some(module) if is_narrow => {
            // Borders, three lines, and the classes below their header.
            let height = 6 + module.classes.len() as u16;
            let [above, below] = Layout::vertical([Constraint::Max(height), Constraint::Fill(1)]).areas(threads);
            the_module(frame, above, module);
            the_threads(frame, below, tick);
        }
        Some(module) => {
            let [left, right] = Layout::horizontal([Constraint::Length(64), Constraint::Fill(1)]).areas(threads);
            the_threads(frame, left, tick);
            the_module(frame, right, module);
        }
    }
    let mut lines =
        vec![Line::from(format!(" q or Ctrl-C quits   monitor: {:.2} % of a processor", tick.own_cpu_so_far * 100.0))];
    lines.extend(screen.missing.iter().take(3).map(|text| Line::from(format!(" {text}")).style(Color::Yellow)));
    frame.render_widget(Paragraph::new(lines), foot);
}

/// A bar of the time of all processors by mode, and the server's use over time.
fn processors(frame: &mut Frame<'_>, area: Rect, screen: &Screen, tick: &Tick) {
    let cpu = &tick.cpu;
    let title =
        format!(" processors: idle {:.0} %, busiest core {:.0} % ", cpu.idle * 100.0, tick.busiest_core * 100.0);
    let block = Block::bordered().title(title);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let [bar, legend, history] = Layout::vertical([Constraint::Length(1); 3]).areas(inner);
    let parts = [
        ("user", cpu.user, Color::Green),
        ("system", cpu.system, Color::Blue),
        ("softirq", cpu.softirq, Color::Magenta),
        ("irq", cpu.interrupt, Color::Red),
        ("steal", cpu.steal, Color::Yellow),
        ("iowait", cpu.iowait, Color::Cyan),
    ];
    let (mut cells, mut names, mut drawn, mut sum) = (Vec::new(), Vec::new(), 0, 0.0);
    for (name, share, color) in parts {
        // Ends are rounded, not lengths, so that the whole bar is as long as the sum.
        sum += share;
        let end = (sum * f64::from(bar.width)).round() as usize;
        cells.push(Span::styled("█".repeat(end.saturating_sub(drawn)), color));
        drawn = drawn.max(end);
        names.push((share, Span::styled(format!("■ {name} {:.0} % ", share * 100.0), color)));
    }
    // On a narrow screen, zero shares are omitted.
    let width = |names: &[(f64, Span<'_>)]| names.iter().map(|(_, name)| name.width()).sum::<usize>();
    if width(&names) > usize::from(legend.width) {
        names.retain(|(share, _)| *share >= 0.005);
    }
    let names: Vec<Span<'_>> = names.into_iter().map(|(_, name)| name).collect();
    frame.render_widget(Paragraph::new(Line::from(cells)), bar);
    frame.render_widget(Paragraph::new(Line::from(names)), legend);
    let [text, line] = Layout::horizontal([Constraint::Length(40), Constraint::Fill(1)]).areas(history);
    let server = format!(
        "server {:.0} % user {:.0} % system {:.0} % waits",
        tick.server.user * 100.0,
        tick.server.system * 100.0,
        tick.server.wait * 100.0
    );
    frame.render_widget(Paragraph::new(server), text);
    let from = screen.history.len().saturating_sub(usize::from(line.width));
    frame.render_widget(Sparkline::default().data(&screen.history[from..]), line);
}

fn listeners(frame: &mut Frame<'_>, area: Rect, tick: &Tick) {
    let rows = tick.listeners.iter().map(|one| {
        let drops = one.drops_total.map_or_else(|| "-".to_owned(), |drops| drops.to_string());
        // Full, or dropping connections: highlight it.
        let alarm = one.depth > one.limit || one.drops.is_some_and(|new| new > 0.0);
        let row = Row::new([one.address.clone(), format!("{}/{}", one.depth, one.limit), drops]);
        if alarm { row.style(Color::Red) } else { row }
    });
    let widths = [Constraint::Fill(1), Constraint::Length(11), Constraint::Length(8)];
    let table = Table::new(rows, widths).header(Row::new(["address", "waiting", "dropped"]).bold());
    frame.render_widget(table.block(Block::bordered().title(" listen queue ")), area);
}

fn connections(frame: &mut Frame<'_>, area: Rect, tick: &Tick) {
    let mut lines = Vec::new();
    if let Some(census) = &tick.census {
        lines.extend(census.states.iter().map(|(state, count)| Line::from(format!("{state:<14}{count:>8}"))));
        let limits = &census.limits;
        let share = |part: f64| 100.0 * part / limits.busy.max(1e-9);
        if limits.connections > 0.0 {
            lines.push(Line::from(format!(
                "busy time: window {:.0} %, buffer {:.0} %",
                share(limits.window_closed),
                share(limits.buffer_full)
            )));
            lines.push(Line::from(format!(
                "retransmitted {}, slowest {:.1} ms",
                limits.retransmits,
                limits.round_trip_max * 1e3
            )));
        }
    }
    let title = tick.census.as_ref().map_or_else(
        || " connections ".to_owned(),
        |census| format!(" connections, {:.1} s ago ", (tick.at_s - census.at_us as f64 / 1e6).max(0.0)),
    );
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(title)), area);
}

fn the_machine(frame: &mut Frame<'_>, area: Rect, tick: &Tick) {
    let mut lines = Vec::new();
    let mut add = |name: &str, items: Vec<String>| {
        // The name is on the first of its lines.
        let mut line = format!("{name:<6}");
        for item in items {
            if line.len() > 6 && line.len() + item.len() + 2 > usize::from(area.width) {
                lines.push(std::mem::replace(&mut line, " ".repeat(6)));
            }
            line += &item;
        }
        if line.len() > 6 {
            lines.push(line);
        }
    };
    add("net", items(&tick.interfaces));
    add("tcp", items(slice::from_ref(&tick.tcp)));
    // Busy disks only: a machine may have a dozen idle ones.
    let mut disks: Vec<_> = tick.disks.iter().filter(|disk| disk.busy > 0.0 || disk.in_flight > 0.0).collect();
    disks.sort_by(|a, b| b.busy.total_cmp(&a.busy));
    disks.into_iter().take(3).for_each(|disk| add(&disk.device, items(slice::from_ref(disk))));
    add("memory", items(slice::from_ref(&tick.memory)));
    add("paging", items(slice::from_ref(&tick.paging)));
    add("waits", items(slice::from_ref(&tick.pressure)));
    add("system", items(slice::from_ref(&tick.system)));
    let lines: Vec<Line<'_>> = lines.into_iter().map(Line::from).collect();
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" machine ")), area);
}

/// The figures with a word for the screen, if known: for several things their sums.
fn items<T: Figures<f64>>(of: &[T]) -> Vec<String> {
    let item = |(at, figure): (usize, &Figure)| {
        let value = of.iter().map(|one| one.values().nth(at).flatten()).sum::<Option<f64>>()?;
        let per_s = if figure.kind == Kind::Counter { "/s" } else { "" };
        Some(match (figure.unit, figure.word?) {
            (Unit::Bytes, word) => format!("{:>7}B{per_s} {word}", bytes(value)),
            (Unit::Seconds, word) => format!(" {word} {:.0} %", value * 100.0),
            (_, word) => format!("{:>7}{per_s} {word}", count(value)),
        })
    };
    let all = T::FIGURES.iter().enumerate().filter(|_| !of.is_empty());
    all.filter_map(item).collect()
}

fn the_threads(frame: &mut Frame<'_>, area: Rect, tick: &Tick) {
    let rows = tick.threads.iter().map(|one| {
        Row::new([
            one.tid.to_string(),
            one.name.clone(),
            one.state.to_string(),
            format!("{:.0} %", one.run * 100.0),
            format!("{:.0} %", one.wait * 100.0),
            format!("{:.0}", one.major_page_faults),
        ])
    });
    let widths = [8, 16, 6, 7, 7, 13].map(Constraint::Length);
    let header = Row::new(["thread", "name", "state", "runs", "waits", "disk faults/s"]).bold();
    let title = format!(" {} threads in {} processes ", tick.server.threads, tick.processes.len());
    frame.render_widget(Table::new(rows, widths).header(header).block(Block::bordered().title(title)), area);
}

/// The server's own figures: its loops, helpers and caches, and the time of a request of each class.
fn the_module(frame: &mut Frame<'_>, area: Rect, module: &ModuleRate) {
    let block = Block::bordered().title(" reported by the server (elapsed time of a request in us) ");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let [head, classes] = Layout::vertical([Constraint::Length(3), Constraint::Fill(1)]).areas(inner);
    let rate = |key: &str| module.per_s.get(key).copied().unwrap_or(0.0);
    let gauge = |key: &str| module.gauges.get(key).copied().unwrap_or(0);
    // The sum of a family over all labels.
    let all = |family: &str| -> f64 {
        let labelled = format!("{family}{{");
        module.per_s.iter().filter(|(key, _)| *key == family || key.starts_with(&labelled)).map(|(_, rate)| rate).sum()
    };
    let share = |part: f64, rest: f64| if part + rest > 0.0 { 100.0 * part / (part + rest) } else { 0.0 };
    let helped = all("helper_tasks");
    let lines = [
        format!(
            "{:>7} requests/s {:>7}B/s   loops {:.0} % busy, {:.0} stalls/s",
            count(rate("requests")),
            bytes(rate("sent_bytes")),
            rate("loop_busy_ns") / 1e7,
            rate("loop_stalls")
        ),
        format!(
            "helpers: {} waiting, {} tasks/s of {:.1} ms   probes missed {}/s",
            gauge("helper_queue"),
            count(helped),
            if helped > 0.0 { all("helper_wait_ns") / helped / 1e6 } else { 0.0 },
            count(all("probe_misses"))
        ),
        format!("caches: {:.1} % of lookups found", share(all("cache_hits"), all("cache_misses"))),
    ];
    let lines: Vec<Line<'_>> = lines.into_iter().map(Line::from).collect();
    frame.render_widget(Paragraph::new(lines), head);
    let names = module.classes.iter().find(|class| !class.phases.is_empty()).map_or(&[][..], |class| &class.phases);
    let titles = ["class", "responses/s"].into_iter().map(str::to_owned);
    let header = titles.chain(names.iter().map(|phase| phase.name.clone())).chain(["CPU".to_owned()]);
    let rows = module.classes.iter().map(|class| {
        let name = if class.kind == "static" { class.size.clone() } else { format!("{} {}", class.size, class.kind) };
        let mut cells = vec![name, count(class.replies_per_s)];
        match class.whole_us() {
            None => cells.extend(names.iter().map(|_| "-".to_owned()).chain(["-".to_owned()])),
            Some((_, cpu)) => {
                cells.extend(class.phases.iter().map(|phase| format!("{:.1}", phase.elapsed_us)));
                cells.push(format!("{cpu:.1}"));
            }
        }
        Row::new(cells)
    });
    let widths = [Constraint::Length(14), Constraint::Length(9)].into_iter();
    let widths = widths.chain(std::iter::repeat_n(Constraint::Length(10), names.len())).chain([Constraint::Length(8)]);
    frame.render_widget(Table::new(rows, widths).header(Row::new(header).bold()), classes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::{ClassRate, CpuShare, PhaseTime, ServerUse};
    use crate::sample::{Census, CensusLimits, Listener};
    use crate::source::{Interface, Memory, Pressure, Tcp, Thread};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(width: u16, height: u16, screen: &Screen, tick: &Tick) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, screen, tick)).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| row(y) + "\n").collect()
    }

    fn full() -> (Screen, Tick) {
        let mut screen = Screen { title: "port 8080".into(), missing: vec!["no pressure".into()], ..Screen::default() };
        let tick = Tick {
            at_s: 3.0,
            cpu: CpuShare { user: 0.5, system: 0.25, idle: 0.25, ..CpuShare::default() },
            server: ServerUse { user: 0.7, ..ServerUse::default() },
            census: Some(Census {
                backends: Vec::new(),
                states: [("established".into(), 4321)].into(),
                limits: CensusLimits {
                    connections: 4321.0,
                    busy: 100.0,
                    window_closed: 25.0,
                    ..CensusLimits::default()
                },
                at_us: 2_000_000,
            }),
            listeners: vec![Listener {
                address: "0.0.0.0:8080".into(),
                inode: 1,
                depth: 5.0,
                limit: 4.0,
                drops: Some(3.0),
                drops_total: Some(14),
            }],
            threads: vec![Thread { tid: 77, name: "worker".into(), run: 0.31, ..Thread::default() }],
            tcp: Tcp { segments_in: Some(12_345.0), retransmits: Some(67.0), ..Tcp::default() },
            interfaces: vec![Interface { received: 1e6, sent: 1e9, ..Interface::default() }; 2],
            memory: Memory { available: Some(1e9), ..Memory::default() },
            pressure: Pressure { io_some: Some(0.25), ..Pressure::default() },
            ..Tick::default()
        };
        screen.remember(&tick);
        (screen, tick)
    }

    #[test]
    fn screen_shows_all_panels() {
        let (screen, tick) = full();
        let text = drawn(140, 32, &screen, &tick);
        for part in [
            "port 8080",
            "user 50 %",
            "5/4",
            "14",
            "established",
            "4321",
            "window 25 %",
            "worker",
            "31 %",
            "no pressure",
            "1.0 s ago",
            "1.9MB/s in   1.9GB/s out",
            "12.3k/s in     67/s retrans",
            "954MB available",
            "disk 25 %",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        // Three quarters of a bar of 138 cells.
        let bar = text.chars().filter(|cell| *cell == '█').count();
        assert!((103..=105).contains(&bar), "{bar} cells in\n{text}");
    }

    #[test]
    fn server_figures_are_beside_its_threads() {
        let (screen, mut tick) = full();
        let phase =
            |name: &str, elapsed_us| PhaseTime { name: name.into(), elapsed_us, cpu_us: 1.5, ..PhaseTime::default() };
        let per_s = [
            ("requests", 12_345.0),
            ("loop_busy_ns", 4.2e8),
            ("helper_tasks{cause=\"name\"}", 6.0),
            ("helper_tasks{cause=\"window\"}", 4.0),
            ("helper_wait_ns{cause=\"window\"}", 2.5e7),
            ("cache_hits{cache=\"path\"}", 99.0),
            ("cache_misses{cache=\"path\"}", 1.0),
        ];
        tick.module = Some(ModuleRate {
            per_s: per_s.map(|(key, rate)| (key.to_owned(), rate)).into(),
            gauges: [("helper_queue".to_owned(), 17)].into(),
            classes: vec![
                ClassRate {
                    size: "<10K".into(),
                    kind: "static".into(),
                    replies_per_s: 321.0,
                    phases: vec![phase("parsing", 2.25), phase("logging", 0.75)],
                    ..ClassRate::default()
                },
                ClassRate { size: "<1K".into(), kind: "dynamic".into(), ..ClassRate::default() },
            ],
            ..ModuleRate::default()
        });
        let text = drawn(140, 40, &screen, &tick);
        for part in [
            "12.3k requests/s",
            "loops 42 % busy",
            "17 waiting, 10 tasks/s of 2.5 ms",
            "99.0 % of lookups",
            "parsing",
            "321",
            "2.2",
            "0.8",
            "3.0",
            "<1K dynamic",
            "worker",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        for (width, height) in [(1, 1), (20, 5), (70, 30), (300, 100)] {
            drawn(width, height, &screen, &tick);
        }
        // A terminal of 80 columns has the most important figures.
        let text = drawn(80, 34, &screen, &tick);
        for part in
            ["0.0.0.0:8080", "5/4", "established", "12.3k requests/s", "99.0 % of lookups", "<1K dynamic", "worker"]
        {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    /// On 80 columns, and on half of that, no word is cut.
    #[test]
    fn narrow_screen_truncates_no_word() {
        let (screen, mut tick) = full();
        // A census slightly newer than the tick, from the noise of the clocks.
        tick.census.as_mut().unwrap().at_us = 3_000_010;
        tick.cpu = CpuShare { user: 0.55, system: 0.15, softirq: 0.12, steal: 0.13, idle: 0.05, ..CpuShare::default() };
        for (width, height) in [(80, 24), (60, 24)] {
            let text = drawn(width, height, &screen, &tick);
            for part in [
                "processors: idle 5 %, busiest core 0 %",
                "■ user 55 % ■ system 15 % ■ softirq 12 % ",
                "■ steal 13 %",
                "connections, 0.0 s ago",
                "disk faults/s",
                "quits   monitor: 0.00 % of a processor",
            ] {
                assert!(text.contains(part), "{part} is not in\n{text}");
            }
            assert_eq!(text.contains("■ irq 0 %"), width == 80, "{text}");
        }
    }

    #[test]
    fn any_size_and_empty_tick_do_not_panic() {
        let (screen, tick) = full();
        for (width, height) in [(1, 1), (20, 5), (60, 12), (300, 100)] {
            drawn(width, height, &screen, &tick);
            drawn(width, height, &Screen::default(), &Tick::default());
        }
    }

    #[test]
    fn history_is_bounded() {
        let (mut screen, tick) = full();
        (0..2000).for_each(|_| screen.remember(&tick));
        assert_eq!(screen.history.len(), 512);
    }
}
