//! Makes the runs of servers that are alive at once and measured in turns: what is compared was measured within seconds.
//!
//! All servers of one load stand on the same cores, each in a control group of its own. In each block every one of them has its
//! turn, a window of load, in an order of the plan's; its CPU time for a response is that of its group within the window. There is
//! no monitor, and no network namespace for each: what is asked of one is nothing to the others, which sleep.
//!
//! Before the first window all are asked for everything once. A server that answers otherwise than the first is not measured. The
//! floor (`command/floor_server`) is started after that, with what the first has answered.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ammeter_load::drive::Stop;
use ammeter_load::workload::manifest::Manifest;
use amped_measure::Failure;

use crate::archive::{self, Run};
use crate::environment::{Site, TestEnvironment};
use crate::experiment::Settings;
use crate::run::{self, Order, Side};
use crate::subject::{Answer, Kind};

/// A server that waits for its turn, or why it cannot have one.
struct Server {
    arm: String,
    site: Site,
    side: Result<Side, String>,
}

/// Makes these runs in their order; `done` gets each with its number as soon as it is over.
///
/// # Errors
/// When nothing could be measured at all: no program, no disk, an interrupt; what `done` says.
pub(crate) fn work(
    environment: &TestEnvironment,
    orders: &[Order],
    stop: &Stop,
    done: &mut (dyn FnMut(usize, Run) -> Result<(), Failure> + Send),
) -> Result<(), Failure> {
    run::apart(environment, stop, move |environment, stop| {
        let folder = environment.folder()?;
        let mut servers = start(environment, orders, &folder.path, stop)?;
        for (at, order) in orders.iter().enumerate() {
            let server = servers.iter_mut().find(|server| server.arm == order.planned.arm);
            let Some(Server { site, side, .. }) = server else { continue };
            let run = match side {
                Ok(side) => side.window(environment, site, order, stop)?,
                // That is a result: this server cannot be run so.
                Err(why) => run::refused(Run::begun(order.planned.clone(), run::now_s()), "server", why),
            };
            done(at, run)?;
        }
        for side in servers.into_iter().filter_map(|server| server.side.ok()) {
            side.end(stop)?;
        }
        Ok(())
    })
}

/// Starts the servers of these runs, looks at what they answer and puts a load on each that is not counted. The floor comes last,
/// since it answers what another has answered.
fn start(environment: &TestEnvironment, orders: &[Order], folder: &Path, stop: &Stop) -> Result<Vec<Server>, Failure> {
    let mut firsts: Vec<&Order> = Vec::new();
    for order in orders {
        if !firsts.iter().any(|first| first.planned.arm == order.planned.arm) {
            firsts.push(order);
        }
    }
    // In the order of the arms, whatever that of the windows is: the first one is the one that others are held against.
    let number = |order: &Order| order.planned.arm.trim_start_matches('a').parse::<usize>();
    firsts.sort_by_key(|order| (order.settings.subject.kind == Kind::Floor, number(order).unwrap_or(usize::MAX)));
    let (mut servers, mut reference) = (Vec::new(), None::<Reference>);
    for order in firsts {
        let mut site = environment.site_for(&order.settings, order.seed)?;
        let is_floor = order.settings.subject.kind == Kind::Floor;
        site.replies = reference.as_ref().filter(|_| is_floor).map(|reference| reference.replies.clone());
        let mut side = Side::begin(environment, &order.settings, &site, Duration::ZERO, None, &order.into, stop)?;
        if let Ok(begun) = &mut side {
            let found = look(order, &site, begun, reference.as_ref(), &folder.join("replies"));
            match found {
                Ok(found) => {
                    reference.get_or_insert(found);
                    begun.warm_up(order, &site, stop)?;
                }
                Err(why) => side = Err(why),
            }
        }
        servers.push(Server { arm: order.planned.arm.clone(), site, side });
    }
    Ok(servers)
}

/// What the first server has answered.
struct Reference {
    answers: Vec<Answer>,
    /// The same as the file that the floor reads.
    replies: PathBuf,
}

/// Asks a server for everything once.
///
/// # Errors
/// What it does not answer, or otherwise than the first server did.
fn look(
    order: &Order,
    site: &Site,
    side: &Side,
    reference: Option<&Reference>,
    replies: &Path,
) -> Result<Reference, String> {
    let targets = targets(&order.settings, site)?;
    let mut fields = run::fields(&order.settings, side.address(), &targets[0]);
    if order.settings.load.requests_per_connection == 1 {
        fields.push("Connection: close".to_owned());
    }
    let mut answers = Vec::new();
    for (at, target) in targets.iter().enumerate() {
        let answer = Answer::fetch(side.address(), target, &fields).ok_or_else(|| format!("{target} has no answer"))?;
        if let Some(first) = reference.and_then(|reference| reference.answers.get(at)) {
            // The page of an error is each server's own.
            let is_alike = answer.status >= 400 || answer.body == first.body;
            if answer.status != first.status || !is_alike {
                let (status, length, as_status, as_length) =
                    (answer.status, answer.body.len(), first.status, first.body.len());
                return Err(format!(
                    "{target} is answered with {status} and {length} bytes, and by the first server with {as_status} and {as_length}"
                ));
            }
        }
        answers.push(answer);
    }
    if reference.is_none() {
        let written = archive::write_bytes(replies, &recorded(&targets, &answers, site));
        written.map_err(|failure| failure.to_string())?;
    }
    Ok(Reference { answers, replies: replies.to_owned() })
}

/// All that is asked for.
fn targets(settings: &Settings, site: &Site) -> Result<Vec<String>, String> {
    match (&settings.load.path, &site.manifest) {
        (Some(path), _) => Ok(vec![path.clone()]),
        (None, None) => Ok(vec![site.target.clone()]),
        (None, Some(manifest)) => {
            let manifest = Manifest::read(manifest).map_err(|failure| failure.to_string())?;
            Ok(manifest.files.into_iter().map(|file| file.path).collect())
        }
    }
}

/// Answers as the floor reads them; large bodies are sent from their files.
fn recorded(targets: &[String], answers: &[Answer], site: &Site) -> Vec<u8> {
    /// From this length on that is cheaper than from memory (4 to 8 % at 64 to 1024 KiB).
    const FROM_FILE: usize = 64 << 10;
    let mut text = Vec::new();
    for (target, Answer { status, head, body }) in targets.iter().zip(answers) {
        let file = site.folder.join(target.trim_start_matches('/'));
        let is_file = *status == 200 && body.len() >= FROM_FILE && file.is_file();
        let place = if is_file { file.display().to_string() } else { "-".to_owned() };
        text.extend_from_slice(format!("{target} {} {} {place}\n", head.len(), body.len()).as_bytes());
        text.extend_from_slice(head);
        if !is_file {
            text.extend_from_slice(body);
        }
    }
    text
}
