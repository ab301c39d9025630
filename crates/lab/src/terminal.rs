//! The terminal as a screen: taken over, drawn on, and given back as it was, also after a panic and before an end that runs
//! no destructors.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use amped_measure::Failure;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

/// Whether the terminal is ours.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal, which is as it was when this is dropped. One at a time.
pub(crate) struct Terminal(ratatui::DefaultTerminal);

impl Terminal {
    /// Takes it over: the alternate screen, and keys without echo. A panic gives it back before it is told.
    pub(crate) fn take() -> Result<Terminal, Failure> {
        TAKEN.store(true, Ordering::Relaxed);
        ratatui::try_init().map(Terminal).map_err(|error| {
            restore();
            Failure::failed(format!("this terminal is none that can be drawn on: {error}"))
        })
    }

    /// Draws a picture.
    pub(crate) fn draw(&mut self, picture: impl FnOnce(&mut Frame<'_>)) -> Result<(), Failure> {
        self.0.draw(picture).map(drop).map_err(Failure::io("draw the screen"))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back, if it is taken: for who ends the program without coming back.
pub(crate) fn restore() {
    if TAKEN.swap(false, Ordering::Relaxed) {
        ratatui::restore();
    }
}

/// What somebody at the keyboard wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Nothing, or nothing that means something here.
    Nothing,
    /// The screen has another size.
    Redraw,
    /// To see another moment of a record.
    Go(Go),
    /// `q`, Escape or Ctrl-C, which is no signal while the terminal is taken.
    End,
}

/// Where in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Go {
    /// So many ticks on, or back.
    By(isize),
    /// To the first.
    First,
    /// To the last.
    Last,
    /// On by itself, as fast as it was recorded; or no more.
    Play,
}

/// The keys of `below` and of pagers.
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

/// Waits so long for a wish. All that is there is read; an end outweighs the rest.
pub(crate) fn wish(timeout: Duration) -> Result<Wish, Failure> {
    let (mut wish, mut timeout) = (Wish::Nothing, timeout);
    while event::poll(timeout).map_err(Failure::io("read the keyboard"))? {
        timeout = Duration::ZERO;
        match event::read().map_err(Failure::io("read the keyboard"))? {
            Event::Key(key) if key.kind == KeyEventKind::Press => {
                let is_control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                if is_control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                    return Ok(Wish::End);
                }
                // One after the other: two keys are two steps.
                if let Some(go) = go(key.code) {
                    return Ok(Wish::Go(go));
                }
            }
            Event::Resize(..) => wish = Wish::Redraw,
            _ => {}
        }
    }
    Ok(wish)
}
