//! Full-screen terminal mode: entered, drawn on, and restored, also after a panic and before an
//! exit that runs no destructors.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use amped_measure::Failure;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

/// Whether full-screen mode is active.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal in full-screen mode; dropping it restores the terminal. Only one may exist at a time.
pub(crate) struct Terminal(ratatui::DefaultTerminal);

impl Terminal {
    /// Enters the alternate screen and raw mode. A panic restores the terminal before its message is printed.
    pub(crate) fn take() -> Result<Terminal, Failure> {
        TAKEN.store(true, Ordering::Relaxed);
        ratatui::try_init().map(Terminal).map_err(|error| {
            restore();
            Failure::failed(format!("cannot draw on this terminal: {error}"))
        })
    }

    /// Draws one frame.
    pub(crate) fn draw(&mut self, picture: impl FnOnce(&mut Frame<'_>)) -> Result<(), Failure> {
        self.0.draw(picture).map(drop).map_err(Failure::io("draw the screen"))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal if full-screen mode is active. For code that exits the process directly.
pub(crate) fn restore() {
    if TAKEN.swap(false, Ordering::Relaxed) {
        ratatui::restore();
    }
}

/// A user's keyboard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// No input, or a key without a function.
    Nothing,
    /// The terminal was resized.
    Redraw,
    /// Seek in a recording.
    Go(Go),
    /// Quit: `q`, Escape or Ctrl-C, which raises no signal in raw mode.
    End,
}

/// A seek in a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Go {
    /// By this many ticks, forward or back.
    By(isize),
    /// To the first tick.
    First,
    /// To the last tick.
    Last,
    /// Start or stop playback at recorded speed.
    Play,
}

/// Key bindings, as in `below` and in pagers.
fn go(code: KeyCode) -> Option<Go> {
    const PAGE: isize = 10;
    match code {
        KeyCode::Right | KeyCode::Down | KeyCode::Char('t' | 'j') => Some(Go::By(1)),
        KeyCode::Left | KeyCode::Up | KeyCode::Char('T' | 'k') => Some(Go::By(-1)),
        KeyCode::PageDown => Some(Go::By(PAGE)),
        KeyCode::PageUp => Some(Go::By(-PAGE)),
        KeyCode::Home | KeyCode::Char('g') => Some(Go::First),
        KeyCode::End | KeyCode::Char('G') => Some(Go::Last),
        KeyCode::Char(' ') => Some(Go::Play),
        _ => None,
    }
}

/// Waits up to `timeout` for input. Reads all pending events; quit takes precedence over a resize.
pub(crate) fn input(timeout: Duration) -> Result<Input, Failure> {
    let (mut input, mut timeout) = (Input::Nothing, timeout);
    while event::poll(timeout).map_err(Failure::io("read the keyboard"))? {
        timeout = Duration::ZERO;
        match event::read().map_err(Failure::io("read the keyboard"))? {
            Event::Key(key) if key.kind == KeyEventKind::Press => {
                let is_control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                if is_control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                    return Ok(Input::End);
                }
                // Return each key on its own: two key presses are two steps.
                if let Some(go) = go(key.code) {
                    return Ok(Input::Go(go));
                }
            }
            Event::Resize(..) => input = Input::Redraw,
            _ => {}
        }
    }
    Ok(input)
}
