//! Scripted applications: the behaviour of an application for a request is fixed in advance, so that a test knows the
//! expected result; its timing and the sizes of its reads and writes are random.
//!
//! A request selects its script by a number in its query. `world` keeps the contract
//! of `server/app`: output is delivered only while it is wanted, an application that
//! has ended gets no more input, and room is reported once all input has been read.

use std::fmt;
use std::time::Duration;

use amped_core::app::{AppTrouble, AppWork, Output};
use amped_core::event::Ticket;
use amped_http::h1::request_fields::ClientConnection;
use amped_units::Time;

use crate::seed::{Dice, RngExt};

/// The behaviour of an application for one request.
#[derive(Clone)]
pub(crate) struct Play {
    /// It is not started, for this reason.
    pub(crate) refused: Option<AppTrouble>,
    /// It writes this output,
    pub(crate) says: Vec<u8>,
    /// followed by the part of the body that it has read.
    pub(crate) echoes: bool,
    /// It reads the whole body; otherwise none of it.
    pub(crate) reads: bool,
    /// It switches to another protocol first.
    pub(crate) switches: bool,
    /// How it ends after its output.
    pub(crate) end: End,
    /// Maximum pause between two of its actions.
    pub(crate) pause_max: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By exiting.
    Whole,
    /// By a signal.
    Dies,
    /// It does not end.
    Stalls,
}

impl Play {
    /// An application that reads the whole body, writes this and exits.
    pub(crate) fn says(text: impl Into<Vec<u8>>) -> Play {
        let pause_max = Duration::ZERO;
        let says = text.into();
        Play { refused: None, says, echoes: false, reads: true, switches: false, end: End::Whole, pause_max }
    }
}

impl fmt::Debug for Play {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Play { refused, says, echoes, reads, switches, end, pause_max } = self;
        let (length, says) = (says.len(), String::from_utf8_lossy(&says[..says.len().min(100)]));
        write!(
            f,
            "Play {{ {refused:?} says {says:?} in {length} bytes, echoes {echoes}, reads {reads}, switches {switches}, \
             {end:?}, {pause_max:?} }}"
        )
    }
}

/// The number of the script that a request selects.
pub(crate) fn number(work: &AppWork) -> usize {
    if let Some(forward) = &work.forward {
        let mut head = Vec::new();
        forward.write(&mut head, &ClientConnection::default(), "", true);
        let line = String::from_utf8(head).expect("ASCII");
        let query = line.split(' ').nth(1).and_then(|target| target.split('?').nth(1));
        return query.expect("a query").parse().expect("a number");
    }
    let query = work.variables.iter().find(|(name, _)| name == b"QUERY_STRING").map(|(_, value)| &value[..]);
    let text = std::str::from_utf8(query.expect("a query")).expect("ASCII");
    text.parse().expect("a number")
}

/// A running application.
#[derive(Debug)]
pub(crate) struct Application {
    pub(crate) play: Play,
    pub(crate) ticket: Ticket,
    /// The input that it has not read yet, and whether that includes the end of the body.
    pub(crate) input: Vec<u8>,
    pub(crate) input_ended: bool,
    /// The output that it has not written yet.
    to_say: Vec<u8>,
    is_begun: bool,
    /// It has yet to switch.
    is_to_switch: bool,
    /// When it acts next.
    pub(crate) act_at: Time,
}

impl Application {
    pub(crate) fn new(play: Play, ticket: Ticket, now: Time, has_body: bool) -> Application {
        let to_say = play.says.clone();
        let (input, input_ended) = (Vec::new(), !has_body);
        let is_to_switch = play.switches;
        Application { play, ticket, input, input_ended, to_say, is_begun: false, is_to_switch, act_at: now }
    }

    /// Whether it may read its input at once.
    pub(crate) fn reads_at_once(&self) -> bool {
        self.is_begun && self.play.reads
    }

    /// Reads all input available.
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

    /// Whether it has written all output, and no more can be added.
    fn is_done(&self) -> bool {
        let waits = self.play.reads && !(self.input_ended && self.input.is_empty());
        self.to_say.is_empty() && !waits && !self.is_to_switch
    }

    /// Whether it can act.
    pub(crate) fn can_act(&self, wants_output: bool) -> bool {
        let ends = self.is_done() && self.play.end != End::Stalls;
        !self.is_begun
            || self.is_to_switch
            || (self.play.reads && !self.input.is_empty())
            || (wants_output && (!self.to_say.is_empty() || ends))
    }

    /// Performs one possible action.
    pub(crate) fn act<'a>(&mut self, dice: &mut Dice, wants_output: bool, buffer: &'a mut Vec<u8>) -> Output<'a> {
        if !std::mem::replace(&mut self.is_begun, true) {
            return self.play.refused.map_or(Output::Started(None), Output::Failed);
        }
        if std::mem::take(&mut self.is_to_switch) {
            self.input_ended = false;
            buffer.extend_from_slice(b"HTTP/1.1 101 Switching\nX-App: tunnel\n\n");
            return Output::Switched(buffer);
        }
        let may_say = wants_output && !self.to_say.is_empty();
        if self.play.reads && !self.input.is_empty() && !(may_say && dice.random_bool(0.5)) {
            let count = dice.random_range(1..=self.input.len());
            self.take(count);
            // A partial read is not reported.
            return if self.input.is_empty() { Output::Room } else { Output::Started(None) };
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
            End::Stalls => unreachable!("a stalled application cannot act"),
        }
    }
}
