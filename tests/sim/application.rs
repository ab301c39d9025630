//! Applications that play a part: what one does with a request is written down beforehand, so that a test knows what is to
//! come of it; when it does it, and in how large pieces, is thrown with dice.
//!
//! A request names its part by a number in its query. `world` keeps to the contract as `server/app` does: output is given
//! only while it is wanted, one that has ended is not spoken to any more, and room is told of when all input was taken.

use std::fmt;
use std::time::Duration;

use amped_core::app::{AppTrouble, AppWork, Output};
use amped_core::event::Ticket;
use amped_units::Time;

use crate::seed::{Dice, RngExt};

/// What an application does with one request.
#[derive(Clone)]
pub(crate) struct Play {
    /// It is not begun, for this reason.
    pub(crate) refused: Option<AppTrouble>,
    /// It says this,
    pub(crate) says: Vec<u8>,
    /// and behind that what of the body it has taken.
    pub(crate) echoes: bool,
    /// It takes the body, to its end; else none of it.
    pub(crate) reads: bool,
    /// How it ends when it has said all that.
    pub(crate) end: End,
    /// Longest pause between two of its deeds.
    pub(crate) pause_max: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By itself.
    Whole,
    /// By a signal.
    Dies,
    /// Not at all.
    Stalls,
}

impl Play {
    /// One that takes all of the body, says this and ends.
    pub(crate) fn says(text: impl Into<Vec<u8>>) -> Play {
        let pause_max = Duration::ZERO;
        Play { refused: None, says: text.into(), echoes: false, reads: true, end: End::Whole, pause_max }
    }
}

impl fmt::Debug for Play {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Play { refused, says, echoes, reads, end, pause_max } = self;
        let (length, says) = (says.len(), String::from_utf8_lossy(&says[..says.len().min(100)]));
        write!(
            f,
            "Play {{ {refused:?} says {says:?} in {length} bytes, echoes {echoes}, reads {reads}, {end:?}, {pause_max:?} }}"
        )
    }
}

/// Which part a request asks for.
pub(crate) fn number(work: &AppWork) -> usize {
    let query = work.variables.iter().find(|(name, _)| name == b"QUERY_STRING").map(|(_, value)| &value[..]);
    let text = std::str::from_utf8(query.expect("it is always there")).expect("ASCII");
    text.parse().expect("a number")
}

/// One at work.
#[derive(Debug)]
pub(crate) struct Application {
    pub(crate) play: Play,
    pub(crate) ticket: Ticket,
    /// What of the body it was given and has not taken, and whether that is the last of it.
    pub(crate) input: Vec<u8>,
    pub(crate) input_ended: bool,
    /// What it has still to say.
    to_say: Vec<u8>,
    is_begun: bool,
    /// When it does something next.
    pub(crate) act_at: Time,
}

impl Application {
    pub(crate) fn new(play: Play, ticket: Ticket, now: Time, has_body: bool) -> Application {
        let to_say = play.says.clone();
        let (input, input_ended) = (Vec::new(), !has_body);
        Application { play, ticket, input, input_ended, to_say, is_begun: false, act_at: now }
    }

    /// Whether what it is given may be taken at once.
    pub(crate) fn reads_at_once(&self) -> bool {
        self.is_begun && self.play.reads
    }

    /// Takes all that there is of the body.
    pub(crate) fn take_all(&mut self) -> Output<'static> {
        self.take(self.input.len());
        Output::Room
    }

    fn take(&mut self, count: usize) {
        let taken = self.input.drain(..count);
        if self.play.echoes {
            self.to_say.extend(taken);
        }
    }

    /// It has said everything, and nothing can be added any more.
    fn is_done(&self) -> bool {
        let waits = self.play.reads && !(self.input_ended && self.input.is_empty());
        self.to_say.is_empty() && !waits
    }

    /// Whether there is something that it can do.
    pub(crate) fn can_act(&self, wants_output: bool) -> bool {
        let ends = self.is_done() && self.play.end != End::Stalls;
        !self.is_begun
            || (self.play.reads && !self.input.is_empty())
            || (wants_output && (!self.to_say.is_empty() || ends))
    }

    /// Does something that it can do.
    pub(crate) fn act<'a>(&mut self, dice: &mut Dice, wants_output: bool, buffer: &'a mut Vec<u8>) -> Output<'a> {
        if !std::mem::replace(&mut self.is_begun, true) {
            return self.play.refused.map_or(Output::Begun, Output::Failed);
        }
        let may_say = wants_output && !self.to_say.is_empty();
        if self.play.reads && !self.input.is_empty() && !(may_say && dice.random_bool(0.5)) {
            let count = dice.random_range(1..=self.input.len());
            self.take(count);
            // Part of it taken is nothing that anybody is told of.
            return if self.input.is_empty() { Output::Room } else { Output::Begun };
        }
        if may_say {
            let most = 1 << dice.random_range(0..17);
            let count = dice.random_range(1..=self.to_say.len().min(most));
            buffer.extend(self.to_say.drain(..count));
            let is_last = self.play.end == End::Whole && self.is_done() && dice.random_bool(0.5);
            return if is_last { Output::Last(buffer) } else { Output::Bytes(buffer) };
        }
        match self.play.end {
            End::Whole => Output::Ended,
            End::Dies => Output::Failed(AppTrouble::Failed),
            End::Stalls => unreachable!("it cannot act"),
        }
    }
}
