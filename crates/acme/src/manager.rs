//! The certificates that the server wants: which order is due, and the account for it.
//!
//! One order at a time. The wall clock is read again at least once a minute, because it may be set, and the monotonic
//! clock does not count the time that a machine sleeps.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::time::{Duration, SystemTime};

use amped_acme_protocol::{Order, Reason, Report, Start, Status, Wanted};
use instant_acme::{Account, AccountCredentials, Error, NewAccount, RevocationRequest};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep, timeout};

use crate::client::{Http, shown};
use crate::failure::{Failure, Retry};
use crate::link::Link;
use crate::order::{self, Terms};
use crate::schedule::{self, Period};
use crate::store::{self, Stored};

/// Maximum time between two looks at the wall clock.
const TICK: Duration = Duration::from_secs(60);

/// Maximum time of an order.
const ORDER_TIMEOUT: Duration = Duration::from_secs(600);

/// Attempts of an order that fails only because of nonces.
const ATTEMPTS: usize = 5;

/// Limits of the time until the next request for renewal information (RFC 9773, 4.3.2).
const WINDOW_REFRESH_MIN: Duration = Duration::from_secs(60);
const WINDOW_REFRESH_MAX: Duration = Duration::from_secs(86_400);

/// Time until the next request for renewal information after a failure.
const WINDOW_RETRY: Duration = Duration::from_secs(6 * 3600);

/// Carries out the orders of the server, until it ends.
///
/// # Errors
/// A message: the process cannot continue.
pub(crate) async fn run(link: Link, mut orders: UnboundedReceiver<Order>) -> Result<(), String> {
    let Some(Order::Start(start)) = orders.recv().await else { return Err("the server does not begin".to_owned()) };
    let http = Http::new(start.directory_ca.as_deref())?;
    let entries = start.certificates.iter().map(|wanted| Entry::new(wanted.clone(), store::now())).collect();
    Manager { start, link, http, account: None, entries }.run(orders).await;
    Ok(())
}

struct Manager {
    start: Start,
    link: Link,
    http: Http,
    /// Set by the first order.
    account: Option<Account>,
    entries: Vec<Entry>,
}

/// A certificate, and its next order.
struct Entry {
    wanted: Wanted,
    /// The current certificate, if it has all names.
    stored: Option<Stored>,
    /// From 0 to 1, to spread renewals.
    chance: f64,
    /// The window that the CA suggests for its renewal,
    window: Option<Period>,
    /// and when to ask again.
    window_due: Instant,
    /// No order before this.
    not_before: Instant,
    failures: u32,
    last_error: Option<String>,
}

/// The file of the account.
#[derive(Serialize, Deserialize)]
struct Saved {
    email: Option<String>,
    credentials: AccountCredentials,
}

impl Entry {
    /// `now`: the wall clock, since 1970.
    fn new(wanted: Wanted, now: Duration) -> Entry {
        let stored = Stored::read(&wanted.file).ok().filter(|stored| stored.covers(&wanted.names));
        // An order before the last restart counts too, or a server that is restarted all the time would order each time.
        let pause = stored.as_ref().map_or(Duration::ZERO, |stored| {
            schedule::after_success(stored.validity).saturating_sub(now.saturating_sub(stored.written))
        });
        Entry {
            wanted,
            stored,
            chance: chance(),
            window: None,
            window_due: Instant::now(),
            not_before: Instant::now() + pause,
            failures: 0,
            last_error: None,
        }
    }

    /// The time until its next order. `now`: the wall clock, since 1970.
    fn wait(&self, now: Duration) -> Duration {
        let due = self.stored.as_ref().map_or(Duration::ZERO, |stored| {
            schedule::renewal(stored.validity, self.window, self.chance).saturating_sub(now)
        });
        due.max(self.not_before.saturating_duration_since(Instant::now()))
    }

    /// Whether the CA should be asked when to renew.
    fn asks_for_window(&self) -> bool {
        self.stored.is_some() && self.window_due <= Instant::now()
    }

    /// The time until it needs anything.
    fn idle(&self, now: Duration) -> Duration {
        let asks = self.stored.as_ref().map(|_| self.window_due.saturating_duration_since(Instant::now()));
        self.wait(now).min(asks.unwrap_or(Duration::MAX))
    }

    fn status(&self, now: Duration) -> Status {
        Status {
            names: self.wanted.names.clone(),
            file: self.wanted.file.clone(),
            expires: self.stored.as_ref().map(|stored| stored.validity.until.as_secs()),
            next_order: (now + self.wait(now)).as_secs(),
            failures: self.failures,
            last_error: self.last_error.clone(),
        }
    }
}

impl Manager {
    async fn run(mut self, mut orders: UnboundedReceiver<Order>) {
        loop {
            let now = store::now();
            self.link.report(Report::Status(self.entries.iter().map(|entry| entry.status(now)).collect()));
            let idle = self.entries.iter().map(|entry| entry.idle(now)).min().unwrap_or(TICK).min(TICK);
            tokio::select! {
                biased;
                order = orders.recv() => match order {
                    Some(order) => self.execute(order).await,
                    None => return,
                },
                () = sleep(idle) => self.turn().await,
            }
        }
    }

    /// Does the next thing that is due, if any.
    async fn turn(&mut self) {
        let now = store::now();
        // Before an order, because the CA may suggest a later time.
        if let Some(n) = self.entries.iter().position(Entry::asks_for_window) {
            self.update_window(n).await;
        } else if let Some(n) = self.entries.iter().position(|entry| entry.wait(now).is_zero()) {
            // The result is in the log and the status.
            let _ = self.attempt(n).await;
        }
    }

    async fn execute(&mut self, order: Order) {
        let (number, result) = match order {
            Order::Renew { number, name } => (number, self.renew(&name).await),
            Order::Revoke { number, name } => (number, self.revoke(&name).await),
            // A new configuration is for a new process; `link` takes the other.
            Order::Start(_) | Order::Published(_) => return,
        };
        self.link.report(Report::Done(number, result));
    }

    fn find(&self, name: &str) -> Result<usize, String> {
        let has = |entry: &Entry| entry.wanted.names.iter().any(|own| own.eq_ignore_ascii_case(name));
        self.entries.iter().position(has).ok_or_else(|| format!("no site with `acme = true` has the name {name}"))
    }

    async fn renew(&mut self, name: &str) -> Result<String, String> {
        let n = self.find(name)?;
        self.attempt(n).await?;
        Ok(format!("new certificate in {}", self.entries[n].wanted.file.display()))
    }

    async fn revoke(&mut self, name: &str) -> Result<String, String> {
        let n = self.find(name)?;
        let Some(stored) = self.entries[n].stored.clone() else {
            return Err(format!("there is no certificate for {name} yet"));
        };
        let revoked = async {
            let account = self.account().await?;
            Ok(account.revoke(&RevocationRequest { certificate: &stored.der, reason: None }).await?)
        };
        revoked.await.map_err(|failure: Failure| failure.message)?;
        let entry = &mut self.entries[n];
        // It must not be used after a restart either. The server keeps it until there is another one.
        let removed = fs::remove_file(&entry.wanted.file);
        (entry.stored, entry.window, entry.not_before) = (None, None, Instant::now());
        let text = format!("revoked the certificate for {name}; obtaining another one");
        self.link.log(text.clone());
        removed.map_err(|error| format!("{text}; cannot remove its file: {error}"))?;
        Ok(text)
    }

    /// Orders a certificate, and notes the result.
    async fn attempt(&mut self, n: usize) -> Result<(), String> {
        let names = self.entries[n].wanted.names.join(", ");
        let (directory, challenge) = (&self.start.directory, self.start.challenge);
        self.link.report(Report::Ordered);
        self.link.log(format!("ordering a certificate for {names} from {directory} ({challenge})"));
        self.http.take_retry_after();
        let late = |_| Failure::new(Reason::Unreachable, format!("not complete within {} s", ORDER_TIMEOUT.as_secs()));
        let ordered = timeout(ORDER_TIMEOUT, self.order(n)).await.unwrap_or_else(|elapsed| Err(late(elapsed)));
        // They are of no use any more, whatever the result.
        let _ = self.link.publish(Vec::new()).await;
        let entry = &mut self.entries[n];
        match ordered {
            Ok(stored) => {
                (entry.window, entry.window_due, entry.chance) = (None, Instant::now(), chance());
                entry.not_before = Instant::now() + schedule::after_success(stored.validity);
                (entry.failures, entry.last_error) = (0, None);
                let until = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + stored.validity.until);
                entry.stored = Some(stored);
                self.link.report(Report::Obtained);
                let file = entry.wanted.file.display();
                self.link.log(format!("obtained a certificate for {names}, valid until {until}: {file}"));
                Ok(())
            }
            Err(failure) => {
                entry.failures = entry.failures.saturating_add(1);
                let delay = schedule::after_failure(entry.failures, self.http.take_retry_after(), chance());
                entry.not_before = Instant::now() + delay;
                entry.last_error = Some(failure.message.clone());
                // The CA may have changed its URLs.
                self.account = None;
                self.link.report(Report::Failed(failure.reason));
                let serving = match &entry.stored {
                    Some(stored) if store::now() < stored.validity.until => "serving the current one",
                    Some(_) => "serving an expired one",
                    None => "there is none to serve",
                };
                let (message, minutes) = (&failure.message, (delay.as_secs() + 30) / 60);
                self.link.log(format!(
                    "cannot obtain a certificate for {names}: {message}; trying again in {minutes} min; {serving}"
                ));
                Err(failure.message)
            }
        }
    }

    async fn order(&mut self, n: usize) -> Result<Stored, Failure> {
        let mut attempts = 1;
        let content = loop {
            let ordered = self.order_once(n).await;
            match ordered {
                Err(Failure { retry: Retry::Now, .. }) if attempts < ATTEMPTS => attempts += 1,
                Err(Failure { retry: Retry::WithNewAccount, message, .. }) if attempts < ATTEMPTS => {
                    attempts = ATTEMPTS;
                    self.account = None;
                    let path = self.start.state.join("account.json");
                    let kept = path.with_extension("json.unknown");
                    fs::rename(&path, &kept).map_err(|error| storage("rename", &path, &error))?;
                    let kept = kept.display();
                    self.link
                        .log(format!("the CA does not know the account: {message}; kept as {kept}, creating another"));
                }
                Ok(content) => break content,
                Err(failure) => return Err(failure),
            }
        };
        let file = &self.entries[n].wanted.file;
        store::write(file, content.as_bytes()).map_err(|error| storage("write", file, &error))?;
        let stored = Stored::read(file).map_err(|error| storage("read", file, &error))?;
        if !stored.covers(&self.entries[n].wanted.names) {
            return Err(Failure::new(Reason::Refused, "the CA has issued a certificate without some of the names"));
        }
        Ok(stored)
    }

    async fn order_once(&mut self, n: usize) -> Result<String, Failure> {
        let account = self.account().await?;
        let (profile, challenge) = (self.start.profile.as_deref(), self.start.challenge);
        let terms = Terms { account: &account, challenge, profile, link: &self.link };
        let entry = &self.entries[n];
        order::obtain(&terms, &entry.wanted, entry.stored.as_ref().filter(|_| entry.window.is_some())).await
    }

    /// Returns the account, which is created if there is none.
    async fn account(&mut self) -> Result<Account, Failure> {
        if let Some(account) = &self.account {
            return Ok(account.clone());
        }
        let path = self.start.state.join("account.json");
        let contact: Vec<String> = self.start.email.iter().map(|email| format!("mailto:{email}")).collect();
        let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
        let builder = Account::builder_with_http(Box::new(self.http.clone()));
        let account = match fs::read(&path) {
            Ok(bytes) => {
                let saved = || serde_json::from_slice::<Saved>(&bytes);
                let damaged = |error| storage("use", &path, &io::Error::other(error));
                let Saved { email, credentials } = saved().map_err(damaged)?;
                let account = builder.from_credentials(credentials).await?;
                if email != self.start.email {
                    account.update_contacts(&contact).await?;
                    self.save(&Saved { email: self.start.email.clone(), ..saved().map_err(damaged)? })?;
                }
                account
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let new = NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
                let (account, credentials) = builder.create(&new, self.start.directory.clone(), None).await?;
                self.save(&Saved { email: self.start.email.clone(), credentials })?;
                self.link.log(format!("created the account {}", account.id()));
                account
            }
            Err(error) => return Err(storage("read", &path, &error)),
        };
        self.account = Some(account.clone());
        Ok(account)
    }

    fn save(&self, saved: &Saved) -> Result<(), Failure> {
        let path = self.start.state.join("account.json");
        let bytes = serde_json::to_vec_pretty(saved).map_err(|error| storage("write", &path, &error.into()))?;
        store::write(&path, &bytes).map_err(|error| storage("write", &path, &error))
    }

    /// Asks the CA when to renew (RFC 9773). Without an answer, the validity decides.
    async fn update_window(&mut self, n: usize) {
        let asked = async {
            let account = self.account().await?;
            let identifier = self.entries[n].stored.as_ref().and_then(Stored::identifier);
            let Some(identifier) = identifier else { return Ok(None) };
            match account.renewal_info(&identifier).await {
                Ok(found) => Ok(Some(found)),
                Err(Error::Unsupported(_)) => Ok(None),
                Err(error) => Err(Failure::from(error)),
            }
        };
        let asked: Result<_, Failure> = asked.await;
        let entry = &mut self.entries[n];
        match asked {
            Ok(Some((info, delay))) => {
                let at = |time: i64| Duration::from_secs(time.try_into().unwrap_or(0));
                let (from, until) = (info.suggested_window.start, info.suggested_window.end);
                let window = Period { from: at(from.unix_timestamp()), until: at(until.unix_timestamp()) };
                // RFC 9773, 4.2: a window that ends before it begins is to be ignored.
                let window = Some(window).filter(|window| window.from < window.until);
                if entry.window != window
                    && let Some(why) = info.explanation_url
                {
                    let names = entry.wanted.names.join(", ");
                    self.link
                        .log(format!("the CA suggests another time to renew the certificate for {names}: see {why}"));
                }
                entry.window = window;
                entry.window_due = Instant::now() + delay.clamp(WINDOW_REFRESH_MIN, WINDOW_REFRESH_MAX);
            }
            Ok(None) => entry.window_due = Instant::now() + WINDOW_REFRESH_MAX,
            Err(failure) => {
                self.account = None;
                entry.window_due = Instant::now() + WINDOW_RETRY;
                let (names, message) = (entry.wanted.names.join(", "), failure.message);
                self.link.log(format!("cannot ask the CA when to renew the certificate for {names}: {message}"));
            }
        }
    }
}

fn storage(verb: &str, path: &std::path::Path, error: &io::Error) -> Failure {
    Failure::new(Reason::Storage, format!("cannot {verb} {}: {}", path.display(), shown(error)))
}

/// A random number from 0 to 1.
fn chance() -> f64 {
    // The seed of each hash is random.
    RandomState::new().hash_one(0) as f64 / u64::MAX as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    const DAY: Duration = Duration::from_secs(86_400);

    /// 2026-01-01
    const BEGIN: Duration = Duration::from_secs(20_454 * 86_400);

    /// A certificate of 90 days in a file that was written at this time, as a process that starts now sees it.
    fn entry(folder: &std::path::Path, written: Duration, now: Duration) -> Entry {
        let mut params = CertificateParams::new(["a.example".to_owned()]).expect("names");
        (params.not_before, params.not_after) = (date_time_ymd(2026, 1, 1), date_time_ymd(2026, 4, 1));
        let certificate = params.self_signed(&KeyPair::generate().expect("a key")).expect("signed");
        let file = folder.join("a.pem");
        fs::write(&file, certificate.pem()).expect("written");
        let file_written = SystemTime::UNIX_EPOCH + written;
        fs::File::options().write(true).open(&file).and_then(|file| file.set_modified(file_written)).expect("set");
        Entry::new(Wanted { names: vec!["a.example".to_owned()], file }, now)
    }

    #[test]
    fn clock_that_jumps_causes_one_order_in_twelve_hours() {
        let folder = tempfile::tempdir().expect("a directory");
        let entry = entry(folder.path(), BEGIN, BEGIN);
        // Ahead by a year: the certificate looks expired.
        let wait = entry.wait(BEGIN + 365 * DAY);
        assert!(wait > DAY * 4 / 10 && wait <= DAY / 2, "{wait:?}");
        // Behind by a year: it looks as if it were not valid yet.
        assert!(entry.wait(BEGIN - 365 * DAY) > 365 * DAY);
        // And back again.
        let wait = entry.wait(BEGIN + DAY);
        assert!(wait > 50 * DAY && wait <= 59 * DAY, "{wait:?}");
    }

    #[test]
    fn restart_neither_forgets_nor_repeats_order() {
        let folder = tempfile::tempdir().expect("a directory");
        let wait = |written, now| entry(folder.path(), written, now).wait(now);
        assert!(wait(BEGIN, BEGIN + 70 * DAY).is_zero(), "overdue while the machine was off");
        // A clock that is wrong from one start to the next.
        let late = BEGIN + 400 * DAY;
        assert!(wait(late, late) > DAY * 4 / 10);
        assert!(wait(late, late + DAY).is_zero());
    }

    #[test]
    fn other_names_are_reason_for_order() {
        let folder = tempfile::tempdir().expect("a directory");
        let Entry { wanted, .. } = entry(folder.path(), BEGIN, BEGIN);
        let names = ["a.example", "b.example"].map(str::to_owned).into();
        assert!(Entry::new(Wanted { names, ..wanted }, BEGIN).wait(BEGIN).is_zero());
    }
}
