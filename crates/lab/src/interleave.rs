//! Runs several servers at the same time and interleaves their measurements: compared windows are seconds apart.
//!
//! All servers of one load share the same cores, each in its own control group. In each block every
//! server has one turn, a window of load, in the order of the plan. CPU time per response is that
//! of the server's group within the window. There is no monitor and no network namespace per
//! server: load on one server does not affect the others, which sleep.
//!
//! Before the first window, each server is sent every request once. A server whose responses differ
//! from the first server's is not measured. The floor server (`command/floor_server`) starts last
//! and replays the first server's responses.

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

/// A server waiting for its turn, or the reason why it cannot run.
struct Server {
    arm: String,
    site: Site,
    side: Result<Side, String>,
}

/// Makes these runs in order, and passes each with its index to `done` as soon as it ends.
///
/// # Errors
/// If nothing can be measured at all: no program, no disk space, an interrupt; and errors of `done`.
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
                // This is a result too: the server cannot run in this setup.
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

/// Starts the servers of these runs, checks their responses and warms each up without counting. The
/// floor server comes last, since it replays another server's responses.
fn start(environment: &TestEnvironment, orders: &[Order], folder: &Path, stop: &Stop) -> Result<Vec<Server>, Failure> {
    let mut firsts: Vec<&Order> = Vec::new();
    for order in orders {
        if !firsts.iter().any(|first| first.planned.arm == order.planned.arm) {
            firsts.push(order);
        }
    }
    // In arm order, regardless of the order of the windows: the first server is the reference for the others.
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

/// Responses of the first server.
struct Reference {
    answers: Vec<Answer>,
    /// The same responses, in the file that the floor server reads.
    replies: PathBuf,
}

/// Sends every request to a server once.
///
/// # Errors
/// The request without a response, or with a response that differs from the first server's.
fn look(
    order: &Order,
    site: &Site,
    side: &Side,
    reference: Option<&Reference>,
    replies: &Path,
) -> Result<Reference, String> {
    let targets = targets(&order.settings, site)?;
    let mut fields = run::fields(&order.settings, side.address(), &targets[0]);
    if order.settings.load.requests_per_connection() == 1 {
        fields.push("Connection: close".to_owned());
    }
    let mut answers = Vec::new();
    for (at, target) in targets.iter().enumerate() {
        let answer =
            Answer::fetch(side.address(), target, &fields).ok_or_else(|| format!("no response for {target}"))?;
        if let Some(first) = reference.and_then(|reference| reference.answers.get(at)) {
            // Error pages may differ between servers.
            let is_alike = answer.status >= 400 || answer.body == first.body;
            if answer.status != first.status || !is_alike {
                let (status, length, as_status, as_length) =
                    (answer.status, answer.body.len(), first.status, first.body.len());
                return Err(format!(
                    "{target}: the response has status {status} and {length} bytes, but {as_status} and {as_length} \
                     from the first server"
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

/// Returns all request targets.
fn targets(settings: &Settings, site: &Site) -> Result<Vec<String>, String> {
    match (&settings.load.path, &site.manifest) {
        (Some(path), _) => Ok(vec![path.to_string()]),
        (None, None) => Ok(vec![site.target.clone()]),
        (None, Some(manifest)) => {
            let manifest = Manifest::read(manifest).map_err(|failure| failure.to_string())?;
            Ok(manifest.files.into_iter().map(|file| file.path).collect())
        }
    }
}

/// Encodes responses in the floor server's format; large bodies are sent from their files.
fn recorded(targets: &[String], answers: &[Answer], site: &Site) -> Vec<u8> {
    /// From this size on, sending from a file is cheaper than from memory (4 to 8 % at 64 to 1024 KiB).
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
