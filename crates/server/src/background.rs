//! A page's revalidation in the background: the application request of a client that does not wait for it.
//!
//! A turn (`turn`) has answered a client with a page that is not fresh. The worker keeps this beside its connections, since the
//! client may leave at any time, and serves it as it serves the application requests of a connection. `core/revalidation`
//! decides; this file passes its input to the application and the output back.

use std::sync::Arc;

use amped_core::app::Output;
use amped_core::event::{Action, Ticket};
use amped_core::revalidation::Revalidation;
use amped_units::Time;

use crate::app::{AppRequest, Ends, Room, TurnResult};
use crate::open_file::OpenFile;
use crate::say;
use crate::token::Token;
use crate::turn::LoopContext;

/// A revalidation in progress.
pub(crate) struct Background {
    revalidation: Revalidation,
    pub(crate) app: Option<Box<AppRequest>>,
    /// The addresses of the client's connection.
    ends: Arc<Ends>,
    is_over: bool,
}

/// What remains after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remains {
    /// It waits for an event.
    Waits,
    /// There is more to do, after a turn of the connections.
    More,
    /// Nothing: it is over.
    Nothing,
}

impl Background {
    /// A revalidation that has begun; its first actions follow.
    pub(crate) fn new(revalidation: Revalidation, ends: Arc<Ends>) -> Background {
        Background { revalidation, app: None, ends, is_over: false }
    }

    /// Gives it a turn: handles this output, executes the actions, and reads what the application has sent.
    pub(crate) fn turn(
        &mut self,
        (token, now): (Token, Time),
        output: Option<(Ticket, Output<'_>)>,
        context: &mut LoopContext,
        actions: &mut Vec<Action<OpenFile>>,
    ) -> Remains {
        if let Some(output) = output {
            self.is_over |= self.revalidation.handle(now, output, &mut context.shared, actions);
        }
        for _ in 0..READS_A_TURN {
            self.carry_out((token, now), context, actions);
            if self.is_over {
                context.apps.abandon(self.app.take());
                return Remains::Nothing;
            }
            let Some(app) = &mut self.app else { return Remains::Waits };
            match context.apps.turn(app, token, now, Room::alone(true), &mut context.buffer) {
                TurnResult::Nothing => return Remains::Waits,
                TurnResult::Again => {}
                TurnResult::Output(ticket, output) => {
                    self.is_over |= self.revalidation.handle(now, (ticket, output), &mut context.shared, actions);
                }
            }
        }
        self.carry_out((token, now), context, actions);
        Remains::More
    }

    /// Gives it up: its time has expired.
    pub(crate) fn give_up(
        &mut self,
        (token, now): (Token, Time),
        context: &mut LoopContext,
        actions: &mut Vec<Action<OpenFile>>,
    ) {
        self.revalidation.give_up(now, &mut context.shared, actions);
        self.carry_out((token, now), context, actions);
        context.apps.abandon(self.app.take());
    }

    /// Executes the actions. The list is empty afterwards.
    fn carry_out(
        &mut self,
        (token, now): (Token, Time),
        context: &mut LoopContext,
        actions: &mut Vec<Action<OpenFile>>,
    ) {
        let mut at = 0;
        // The list grows during the loop: output of the application results in further actions.
        while at < actions.len() {
            match std::mem::replace(&mut actions[at], Action::Close) {
                Action::App(ticket, input) => {
                    let (ends, config) = (|| Arc::clone(&self.ends), context.generation.app_context());
                    let output = context.apps.take(&mut self.app, (token, now), (ticket, input), ends, &config);
                    if let Some(output) = output {
                        self.is_over |= self.revalidation.handle(now, (ticket, output), &mut context.shared, actions);
                    }
                }
                Action::Log(line) => say!("{line}"),
                // There is no client.
                _ => {}
            }
            at += 1;
        }
        actions.clear();
    }
}

/// Maximum reads from an application in one turn.
const READS_A_TURN: usize = 16;
