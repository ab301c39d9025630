//! Whether loops turn: each is asked for its statistics, and the answer is looked for later, without waiting.
//!
//! A loop that hangs never answers. One that waits for the disk answers afterwards, so the question stays open until enough
//! loops have answered it, and at most one is in a mailbox.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use crate::counters::Snapshot;
use crate::mailbox::Mailbox;
use crate::message::Message;

/// The question that loops were asked last.
#[derive(Debug, Default)]
pub struct Heartbeat {
    answers: Option<Receiver<Snapshot>>,
    answered: usize,
}

impl Heartbeat {
    /// Returns whether at least `needed` loops have answered, or none was asked yet; if so, asks all of them again.
    pub fn beat(&mut self, mailboxes: &[Arc<Mailbox<Message>>], needed: usize) -> bool {
        if let Some(answers) = &self.answers {
            self.answered += answers.try_iter().count();
            if self.answered < needed {
                return false;
            }
        }
        let (to, from) = channel();
        for mailbox in mailboxes {
            mailbox.put(Message::Report(to.clone()));
        }
        (self.answers, self.answered) = (Some(from), 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers the questions in a mailbox, as its loop does; returns their number.
    fn turn(mailbox: &Mailbox<Message>) -> usize {
        let mut messages = Vec::new();
        mailbox.take(&mut messages);
        for message in &messages {
            let Message::Report(to) = message else { panic!("another message: {message:?}") };
            to.send(Snapshot::default()).unwrap();
        }
        messages.len()
    }

    #[test]
    fn loop_that_hangs_has_no_heartbeat_and_gets_one_question() {
        let mailboxes: Vec<_> = (0..3).map(|_| Arc::new(Mailbox::new().unwrap())).collect();
        let mut heartbeat = Heartbeat::default();
        assert!(heartbeat.beat(&mailboxes, 3));
        assert!(!heartbeat.beat(&mailboxes, 3));
        assert_eq!((turn(&mailboxes[0]), turn(&mailboxes[1])), (1, 1));
        assert!(!heartbeat.beat(&mailboxes, 3) && !heartbeat.beat(&mailboxes, 3));
        // The third one was late.
        assert_eq!(turn(&mailboxes[2]), 1);
        assert!(heartbeat.beat(&mailboxes, 3));
        // Of a pool one is enough.
        assert!(!heartbeat.beat(&mailboxes, 1));
        assert_eq!(turn(&mailboxes[1]), 1);
        assert!(heartbeat.beat(&mailboxes, 1));
    }
}
