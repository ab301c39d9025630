//! What is asked in each row, and what `amped` is to reach in it: plain data.

/// A row in which a request is the same work for every server, and its CPU time is what is compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// What it is called on the command line and in the file of samples.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) asks: Asks,
    /// With which status that is answered.
    pub(super) status: u16,
    pub(super) field: Field,
    /// How `ammeter load` asks: its flags.
    pub(super) flags: &'static [&'static str],
    pub(super) logs: Logs,
    /// Whether `amped` compares each request with patterns, none of which matches. The others have none.
    pub(super) rules: bool,
    /// At most so many times the CPU time of the best rival.
    pub(super) best_max: Option<f64>,
    /// At most so many times the CPU time of the floor.
    pub(super) floor_max: Option<f64>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    /// One target.
    Target(&'static str),
    /// A path of so many segments of a byte, none of which is there: all the work that one of its length can be for patterns.
    Deep(usize),
    /// The file set that `ammeter files` makes, each file as often as its manifest says.
    Specweb96,
    /// The same of an access log.
    Log,
}

/// A header field of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    None,
    /// `Range` with this value.
    Range(&'static str),
    /// `If-None-Match` with the server's own validator.
    Validator,
}

/// Who writes an access log. All write it to a file, several lines at a time where they can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Logs {
    /// `amped` alone.
    Ours,
    Nobody,
    Everybody,
}

/// Requests one after the other on each of 64 connections.
const KEPT: &[&str] = &["--clients", "64"];

/// One request on each connection.
const NEW: &[&str] = &["--clients", "64", "--requests-per-connection", "1"];

const PIPELINED: &[&str] = &["--clients", "64", "--pipeline", "16"];

const ROW: Row = Row {
    name: "",
    title: "",
    asks: Asks::Target("/1024.html"),
    status: 200,
    field: Field::None,
    flags: KEPT,
    logs: Logs::Ours,
    rules: false,
    best_max: None,
    floor_max: None,
};

/// The sizes of the files of single targets, in bytes.
pub(super) const SIZES: [u64; 5] = [0, 1 << 10, 10 << 10, 100 << 10, 1 << 20];

pub(super) const ROWS: &[Row] = &[
    Row { name: "0b", title: "0 B", asks: Asks::Target("/0.html"), ..ROW },
    Row { name: "1k", title: "1 KiB", best_max: Some(0.85), floor_max: Some(1.15), ..ROW },
    Row { name: "1k-no-logs", title: "1 KiB, nobody logs", logs: Logs::Nobody, ..ROW },
    Row { name: "1k-logs", title: "1 KiB, everybody logs", logs: Logs::Everybody, ..ROW },
    Row {
        name: "10k",
        title: "10 KiB",
        asks: Asks::Target("/10240.html"),
        best_max: Some(0.85),
        floor_max: Some(1.15),
        ..ROW
    },
    Row {
        name: "100k",
        title: "100 KiB",
        asks: Asks::Target("/102400.html"),
        best_max: Some(0.95),
        floor_max: Some(1.05),
        ..ROW
    },
    Row {
        name: "1m",
        title: "1 MiB",
        asks: Asks::Target("/1048576.html"),
        best_max: Some(0.95),
        floor_max: Some(1.05),
        ..ROW
    },
    Row {
        name: "new",
        title: "1 KiB, each on a new connection",
        flags: NEW,
        best_max: Some(0.95),
        floor_max: Some(1.10),
        ..ROW
    },
    Row {
        name: "pipelined",
        title: "1 KiB, 16 sent ahead",
        flags: PIPELINED,
        best_max: Some(0.5),
        floor_max: Some(1.5),
        ..ROW
    },
    Row {
        name: "304",
        title: "304, by ETag",
        status: 304,
        field: Field::Validator,
        best_max: Some(0.8),
        floor_max: Some(1.15),
        ..ROW
    },
    Row {
        name: "404",
        title: "404",
        asks: Asks::Target("/no-such-file.html"),
        status: 404,
        best_max: Some(0.8),
        floor_max: Some(1.15),
        ..ROW
    },
    Row {
        name: "206",
        title: "206, 10 KiB of 1 MiB",
        asks: Asks::Target("/1048576.html"),
        status: 206,
        field: Field::Range("bytes=524288-534527"),
        ..ROW
    },
    Row { name: "rules", title: "1 KiB, 8 patterns", rules: true, ..ROW },
    Row { name: "long", title: "404, a path of 2 KiB", asks: Asks::Deep(1000), status: 404, ..ROW },
    Row {
        name: "long-rules",
        title: "404, a path of 2 KiB, 8 patterns",
        asks: Asks::Deep(1000),
        status: 404,
        rules: true,
        ..ROW
    },
    Row { name: "specweb96", title: "SPECweb96, 98 MiB", asks: Asks::Specweb96, ..ROW },
    Row { name: "log", title: "the files of an access log", asks: Asks::Log, ..ROW },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn rows_are_sound() {
        let names: BTreeSet<&str> = ROWS.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), ROWS.len());
        for Row { name, asks, status, .. } in ROWS {
            if let Asks::Target(target) = asks {
                let is_there = SIZES.iter().any(|bytes| *target == format!("/{bytes}.html"));
                assert_eq!(is_there, *status != 404, "{name}");
            }
        }
    }
}
