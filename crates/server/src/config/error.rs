//! Errors of a configuration: each with its position in the file and a remedy.
//!
//! `read` and `checked` record errors in [`Findings`], which finally becomes one [`Error`]. Each error is printed in
//! two forms: as `file:line:column: message`, for editors and scripts, and below that as the lines concerned, rendered
//! by miette, for people. All of them are the operator's errors: a bug of this program is an assertion, and a failed
//! system call names the file that the operator specified.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use miette::{GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteDiagnostic, Report};

/// All errors of a configuration, in the order of the file. Never empty.
#[derive(Debug)]
pub struct Error {
    problems: Vec<Problem>,
}

impl Error {
    /// Returns the problems, each with its message and position.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Returns the exit status: 2 if the command line alone is wrong, else 1.
    pub fn exit_status(&self) -> u8 {
        if self.problems.iter().all(|problem| problem.usage) { 2 } else { 1 }
    }

    /// Formats the whole report; `colour` is for a terminal. `Display` is the same without colour.
    pub fn report(&self, colour: bool) -> String {
        let mut report = String::new();
        for problem in &self.problems {
            report += &problem.report(colour);
        }
        if self.problems.len() > 1 {
            report += &format!("{} problems\n", self.problems.len());
        }
        report
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.report(false))
    }
}

impl std::error::Error for Error {}

/// The text of a configuration file.
///
/// A span is a range of bytes in all files: those of an included file continue after the end of the one before it.
#[derive(Debug)]
pub struct Source {
    /// Its name, as the operator gave it.
    pub name: String,
    /// Its text.
    pub text: String,
    /// The position in spans at which it begins; 0 for the main file.
    pub start: usize,
}

impl Source {
    /// Creates a main file.
    pub fn new(name: String, text: String) -> Source {
        Source { name, text, start: 0 }
    }

    /// Returns where the next file begins. The position at the end of a text belongs to that text.
    pub(super) fn end(&self) -> usize {
        self.start + self.text.len() + 1
    }

    fn contains(&self, position: usize) -> bool {
        (self.start..self.end()).contains(&position)
    }

    /// Returns line and column of a position, both from 1; columns count characters, as editors do.
    fn line_and_column(&self, position: usize) -> (usize, usize) {
        let before = self.text.get(..position.saturating_sub(self.start)).unwrap_or(&self.text);
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }

    /// Formats a position as `file:line:column`.
    fn place(&self, position: usize) -> String {
        let (line, column) = self.line_and_column(position);
        format!("{}:{line}:{column}", self.name)
    }
}

/// One error.
#[derive(Debug)]
pub struct Problem {
    message: String,
    help: Option<String>,
    /// The file with its position; `None`: the command line is wrong.
    source: Option<Arc<Source>>,
    /// Its position, and an earlier position in the same file that it refers to.
    spans: Vec<(Range<usize>, Option<String>)>,
    usage: bool,
}

impl Problem {
    /// Returns the message, one line.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the remedy.
    pub fn help(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// Returns file, line and column, the last two from 1; `None` if the error has no position in a file.
    pub fn place(&self) -> Option<(&str, usize, usize)> {
        let (source, (span, _)) = (self.source.as_ref()?, self.spans.first()?);
        let (line, column) = source.line_and_column(span.start);
        Some((&source.name, line, column))
    }

    fn report(&self, colour: bool) -> String {
        let (Some((file, line, column)), Some(source)) = (self.place(), &self.source) else {
            let help = self.help.as_ref().map(|help| format!("  help: {help}\n")).unwrap_or_default();
            return format!("error: {}\n{help}\n", self.message);
        };
        let labels = self.spans.iter().enumerate().map(|(at, (span, label))| {
            let span = span.start - source.start..span.end.max(span.start + 1) - source.start;
            match at {
                0 => LabeledSpan::new_primary_with_span(label.clone(), span),
                _ => LabeledSpan::new_with_span(label.clone(), span),
            }
        });
        // The message is empty, because the line for tools has it already.
        let drawing = MietteDiagnostic {
            help: self.help.clone(),
            labels: Some(labels.collect()),
            ..MietteDiagnostic::new(String::new())
        };
        let theme = if colour { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
        let handler = GraphicalReportHandler::new_themed(theme).with_width(100);
        let mut drawn = String::new();
        // Writing to a string cannot fail, and miette fails only for spans outside the text, which toml does not
        // return; even then the line above has the message.
        let _ = handler.render_report(&mut drawn, Report::new(drawing).with_source_code(source.text.clone()).as_ref());
        let drawn = drawn.split_once('\n').map_or("", |(_, rest)| rest);
        format!("{file}:{line}:{column}: {}\n{drawn}\n", self.message)
    }
}

/// The position of a value from the command line: beyond any text, plus the number of its flag.
pub(super) const FLAGS: usize = usize::MAX / 2;

/// The errors found so far.
#[derive(Debug, Default)]
pub(super) struct Findings {
    sources: Vec<Arc<Source>>,
    flags: Vec<&'static str>,
    problems: Vec<Problem>,
}

impl Findings {
    /// Creates an empty list for the values of these flags.
    pub(super) fn of_flags(flags: Vec<&'static str>) -> Findings {
        Findings { flags, ..Findings::default() }
    }

    /// Adds a file, in which errors may then have a position.
    pub(super) fn add(&mut self, source: Arc<Source>) {
        self.sources.push(source);
    }

    /// Returns the file that has this position.
    fn source_of(&self, position: usize) -> Option<Arc<Source>> {
        self.sources.iter().find(|source| source.contains(position)).cloned()
    }

    /// Returns whether there are no errors so far.
    pub(super) fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    /// Records an error at this position of the file.
    pub(super) fn at(&mut self, span: Range<usize>, message: impl Into<String>, help: impl Into<String>) {
        self.push(vec![(span, None)], message.into(), help.into(), false);
    }

    /// Records an error that conflicts with an `earlier` position.
    pub(super) fn against(
        &mut self,
        span: Range<usize>,
        earlier: (Range<usize>, &str),
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        let spans = vec![(span, Some("this".to_owned())), (earlier.0, Some(earlier.1.to_owned()))];
        self.push(spans, message.into(), help.into(), false);
    }

    /// Records that a well-formed value names something that does not exist. This is not wrong usage, even for a flag.
    pub(super) fn absent(&mut self, span: Range<usize>, message: impl Into<String>, help: impl Into<String>) {
        self.at(span, message, help);
        if let Some(problem) = self.problems.last_mut() {
            problem.usage = false;
        }
    }

    /// Records an error outside the file: for instance, a path on the command line does not exist.
    pub(super) fn outside(&mut self, message: impl Into<String>, help: impl Into<String>) {
        self.push(Vec::new(), message.into(), help.into(), false);
    }

    /// Records wrong usage of the command line.
    pub(super) fn usage(&mut self, message: impl Into<String>, help: impl Into<String>) {
        self.push(Vec::new(), message.into(), help.into(), true);
    }

    fn push(&mut self, mut spans: Vec<(Range<usize>, Option<String>)>, message: String, help: String, usage: bool) {
        let flag = spans.first().and_then(|(span, _)| self.flags.get(span.start.checked_sub(FLAGS)?));
        if let Some(flag) = flag {
            return self.push(Vec::new(), format!("--{flag}: {message}"), help, true);
        }
        spans.retain(|(span, _)| span.start < FLAGS);
        // Tools expect one message per line; some messages of toml have several lines.
        let mut message = message.lines().map(str::trim).collect::<Vec<_>>().join("; ");
        let help = (!help.is_empty()).then_some(help);
        let source = spans.first().and_then(|(span, _)| self.source_of(span.start));
        // One drawing shows lines of one file.
        let is_here = |start| source.as_ref().is_none_or(|source| source.contains(start));
        let (spans, elsewhere): (Vec<_>, Vec<_>) = spans.into_iter().partition(|(span, _)| is_here(span.start));
        for (span, label) in elsewhere {
            if let (Some(label), Some(other)) = (label, self.source_of(span.start)) {
                message += &format!(" ({label}: {})", other.place(span.start));
            }
        }
        self.problems.push(Problem { message, help, source, spans, usage });
    }

    /// Removes errors after this position: they are consequences of another one.
    pub(super) fn forget_behind(&mut self, offset: usize) {
        self.problems.retain(|problem| problem.spans.first().is_none_or(|(span, _)| span.start <= offset));
    }

    /// Returns `value` if there are no errors, else the errors.
    pub(super) fn into_result<T>(mut self, value: Option<T>) -> Result<T, Error> {
        self.problems.sort_by_key(|problem| problem.spans.first().map(|(span, _)| span.start));
        match value {
            Some(value) if self.problems.is_empty() => Ok(value),
            _ => {
                assert!(!self.problems.is_empty(), "a configuration was rejected without a reason");
                Err(Error { problems: self.problems })
            }
        }
    }
}

/// Returns the error of a failed system call on the main configuration file.
pub(super) fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    let help = match error.kind() {
        std::io::ErrorKind::NotFound => "check the path after `--config`, or omit it and give the directory to serve",
        std::io::ErrorKind::PermissionDenied => "make it readable by the user that starts the server",
        std::io::ErrorKind::IsADirectory => "name the file, not its directory",
        _ => "",
    };
    let mut findings = Findings::default();
    findings.outside(format!("cannot read the configuration {}: {error}", path.display()), help);
    Error { problems: findings.problems }
}
