//! `ammeter files`: writes a file set, with the manifest from which `ammeter load` generates requests.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use ammeter_load::workload::fileset::{self, LogFileSet, Scale, Written};
use ammeter_load::workload::log::{Log, Tally};
use ammeter_load::workload::manifest::{self, Manifest};
use amped_measure::{Failure, Verdict};
use amped_units::Bytes;
use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::say;

/// The command-line flags.
#[derive(clap::Args, Debug)]
#[command(arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    set: Set,
}

/// The kind of set.
#[derive(Debug, Subcommand)]
enum Set {
    /// SPECweb96: 10 * sqrt(ops / 5) directories, each with 4 classes of 9 files, 4.88 MiB together
    Specweb96 {
        /// Expected requests per second, which determine the size of the set
        #[arg(long, value_name = "N", value_parser = ops)]
        ops: NonZeroU32,
        #[command(flatten)]
        common: Common,
    },
    /// WebStone, workload A of Yates, Almeida and Almeida: 77 files, 13 MiB
    Webstone {
        /// Size of the files relative to workload A: 1/4, 1/2, 1, 2 or 4
        #[arg(long, default_value = "1")]
        scale: Scale,
        #[command(flatten)]
        common: Common,
    },
    /// Files of an access log, with the sizes that it shows (Common, Combined or amped's JSON format, plain or gzip)
    Log {
        /// Access log to read
        file: PathBuf,
        /// Truncate the log where its files would exceed this size, as Flash's authors did [default: the whole log]
        #[arg(long, value_name = "BYTES")]
        dataset: Option<Bytes>,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(clap::Args, Debug)]
struct Common {
    /// Directory to write to: new, empty, or with this set
    #[arg(required_unless_present = "dry_run")]
    dir: Option<PathBuf>,
    /// Random seed of the file contents
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the result as JSON, on one line
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ammeter files specweb96 --ops 500 /srv/spec          488 MiB; any server can serve the folder
  ammeter files webstone --scale 1/2 /srv/stone
  ammeter files log access.log.gz --dataset 100MB /srv/set
  ammeter files specweb96 --ops 1000 --dry-run         only print the size

The folder also gets manifest.jsonl, which `ammeter load --workload` reads: the files, how often each is requested, and the seed of
its contents. The same arguments give the same set on every machine. After an interrupt, the same command continues.";

/// 100 times the largest set of its time, 22 GB, which a disk may still hold.
const OPS_MAX: u32 = 1_000_000;

fn ops(text: &str) -> Result<NonZeroU32, String> {
    let found = text.parse().ok().filter(|ops: &NonZeroU32| ops.get() <= OPS_MAX);
    found.ok_or_else(|| format!("write requests per second, from 1 to {OPS_MAX}"))
}

/// The report on a set.
#[derive(Serialize)]
struct FileSetReport<'a> {
    set: &'a str,
    seed: u64,
    files: u64,
    bytes: u64,
    /// Mean bytes per reply.
    mean_bytes: f64,
    classes: Vec<Class<'a>>,
    /// For SPECweb96: the size by its rule without rounding, in MiB, as in its table.
    #[serde(skip_serializing_if = "Option::is_none")]
    table_mib: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<Source>,
    /// The path of the manifest; null for a dry run.
    manifest: Option<PathBuf>,
    written: u64,
    kept: u64,
}

#[derive(Serialize)]
struct Class<'a> {
    class: &'a str,
    files: u64,
    bytes: u64,
    /// Share of all requests.
    share: f64,
}

/// The report on a log.
#[derive(Serialize)]
struct Source {
    lines: u64,
    /// Skipped lines, by kind.
    odd: BTreeMap<&'static str, u64>,
    /// Why reading stopped early.
    cut: Option<String>,
    requests: u64,
    /// Requests before the cut for the size of the set.
    requests_taken: u64,
    /// Bytes of all files in the log.
    bytes_shown: u64,
    files_without_size: u64,
    impossible_names: u64,
}

pub(crate) fn run(args: &Args) -> Result<Verdict, Failure> {
    let (manifest, common, table_mib, source) = match &args.set {
        Set::Specweb96 { ops, common } => {
            let unrounded = fileset::specweb96_directories(ops.get()) * fileset::specweb96_directory() as f64;
            (fileset::specweb96(ops.get(), common.seed), common, Some(unrounded / MIB), None)
        }
        Set::Webstone { scale, common } => (fileset::webstone(*scale, common.seed), common, None, None),
        Set::Log { file, dataset, common } => {
            let log = Log::read(file)?;
            let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
            let (manifest, file_set) = fileset::of_log(&log, &name, *dataset, common.seed)?;
            (manifest, common, None, Some(source(&log, &file_set)))
        }
    };
    let folder = common.dir.as_deref().filter(|_| !common.dry_run);
    let Written { written, kept } = folder.map(|folder| write(&manifest, folder)).transpose()?.unwrap_or_default();

    let weights: f64 = manifest.files.iter().map(|file| file.weight).sum();
    let class = |class| {
        let files = || manifest.files.iter().filter(|file| file.class == class);
        let (bytes, weight) = (files().map(|file| file.bytes).sum(), files().map(|file| file.weight).sum::<f64>());
        Class { class, files: files().count() as u64, bytes, share: weight / weights }
    };
    let mut classes: Vec<Class> = manifest.classes().into_iter().map(class).collect();
    // By mean size; classes of a log would be in the order of their first requests.
    classes.sort_by_key(|class| class.bytes / class.files);
    let summary = FileSetReport {
        set: &manifest.head.set,
        seed: common.seed,
        files: manifest.head.files,
        bytes: manifest.head.bytes,
        mean_bytes: manifest.mean_bytes(),
        classes,
        table_mib,
        log: source,
        manifest: folder.map(|folder| folder.join(manifest::NAME)),
        written,
        kept,
    };
    if common.json {
        say::json(&summary)?
    } else {
        say::out(&summary.text())?
    }
    Ok(Verdict::valid())
}

fn source(log: &Log, file_set: &LogFileSet) -> Source {
    let Tally { lines, odd, cut, .. } = log.tally();
    Source {
        lines: *lines,
        odd: odd.iter().map(|(kind, count)| (kind.name(), *count)).collect(),
        cut: cut.clone(),
        requests: log.len() as u64,
        requests_taken: file_set.requests,
        bytes_shown: file_set.whole.0,
        files_without_size: file_set.unsized_files,
        impossible_names: file_set.impossible,
    }
}

fn write(manifest: &Manifest, folder: &Path) -> Result<Written, Failure> {
    // It is drawn only if standard error is a terminal.
    let style = ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {eta} left")
        .map_err(|error| Failure::failed(format!("the progress bar: {error}")))?;
    let bar = ProgressBar::new(manifest.head.bytes).with_style(style);
    let written = fileset::write(manifest, folder, |bytes| bar.inc(bytes));
    bar.finish_and_clear();
    written
}

const MIB: f64 = (1 << 20) as f64;

impl FileSetReport<'_> {
    fn text(&self) -> String {
        let mut text = format!(
            "{}: {} files, {:.2} MiB, average reply {:.2} KiB, seed {}\n",
            self.set,
            self.files,
            self.bytes as f64 / MIB,
            self.mean_bytes / 1024.0,
            self.seed
        );
        if let Some(table) = self.table_mib {
            text += &format!("by the formula of its table, with the number of directories unrounded: {table:.0} MB\n");
        }
        text += "class             files        MiB  requests\n";
        for Class { class, files, bytes, share } in &self.classes {
            text += &format!("{class:<15} {files:>7} {:>10.2} {:>8.2}%\n", *bytes as f64 / MIB, share * 100.0);
        }
        if let Some(log) = &self.log {
            text += &format!("log: {} lines, {} requests to replay", log.lines, log.requests);
            for (kind, count) in &log.odd {
                text += &format!(", {count} {kind}");
            }
            text += &format!(
                "\nthe first {} of these request the set; the whole log shows {:.2} MiB\n",
                log.requests_taken,
                log.bytes_shown as f64 / MIB
            );
            if log.files_without_size + log.impossible_names > 0 {
                text += &format!(
                    "skipped: {} files of unknown size, {} requests for names that cannot be files\n",
                    log.files_without_size, log.impossible_names
                );
            }
            if let Some(cut) = &log.cut {
                text += &format!("read up to the truncation: {cut}\n");
            }
        }
        match &self.manifest {
            Some(manifest) => {
                let (written, kept, place) = (self.written, self.kept, manifest.display());
                text + &format!("{written} files written, {kept} existed already; the manifest is {place}\n")
            }
            None => text + "nothing was written\n",
        }
    }
}
