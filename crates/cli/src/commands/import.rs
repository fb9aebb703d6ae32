//! `vellum import`: stores the files of a directory tree.

use crate::{
    arguments::{Change, FormArguments, General, TableArguments, WriteArguments},
    failure::{Code, Failure, Result, verdict},
    files::{Found, Tree},
    importer::{Importer, Omission, Tally},
    output::Output,
    progress::Progress,
    size, store,
    text::escaped,
    workers,
};
use serde::Serialize;
use std::{
    ffi::OsString,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use vellum::Database;
use vellum_base::shown;

const HELP: &str = "\
The key of a file is its path below the directory, and the value its contents. Files that are there already are \
replaced, others stay. Symbolic links are not followed. The database is created if it is not there. \
Its own files, its log and the archive of that (`--archive`) are left out.

A file that cannot be read is reported and passed over, and so is one that is larger than 1 GiB or whose key \
would be longer than 1024 bytes. A file that changes while it is being read is read again, and passed over if it changes each time. What an earlier \
import stored of a file that is passed over stays. If no more files can be opened, or memory is used up, the import ends. Ctrl-C ends the import \
and closes the database: what was imported until then stays.

Examples:
  vellum import data.vellum ./documents
  vellum import data.vellum /usr/share --pool 256MiB --threads 2
  vellum import data.vellum ~/photos --table photos --key-prefix 2024/
  vellum import data.vellum ./documents --strict         stop at the first file that is not stored
  vellum import data.vellum ./documents --json           for programs: each omission, then a summary";

/// The arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    #[command(flatten)]
    target: WriteArguments,
    /// The directory
    directory: PathBuf,
    #[command(flatten)]
    table: TableArguments,
    #[command(flatten)]
    form: FormArguments,
    /// What the keys begin with, before the path
    #[arg(long, value_name = "KEY", default_value = "")]
    key_prefix: OsString,
    /// Stop at the first file that cannot be read, or is too large or its key too long to be stored
    #[arg(long)]
    strict: bool,
    /// Stay on the file system of the directory
    #[arg(long)]
    one_file_system: bool,
    /// How many threads read and store files; default: one a processor, at most 4
    #[arg(long, short, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Option<u16>,
}

/// A file that was not stored, for programs.
#[derive(Serialize)]
struct OmissionRow<'o> {
    kind: &'static str,
    path: String,
    reason: &'o str,
}

/// The result, for programs.
#[derive(Serialize)]
struct Summary {
    kind: &'static str,
    files: u64,
    bytes: u64,
    replaced: u64,
    unreadable: u64,
    skipped: u64,
    complete: bool,
    seconds: f64,
}

/// Imports a directory.
pub fn run(arguments: &Arguments, general: &General) -> Result {
    let key_prefix = arguments.form.input_form().decode(&arguments.key_prefix, "--key-prefix")?;
    store::check_key(&key_prefix)?;
    Tree::check_root(&arguments.directory).map_err(|failure| {
        if arguments.target.store.database.is_dir() && !arguments.directory.is_dir() {
            failure.and("The database comes first, then the directory")
        } else {
            failure
        }
    })?;
    let (database, created) = store::open_or_create(&arguments.target, Change::Much)?;
    if created {
        general.remark(format_args!("created {}", shown(&arguments.target.store.database)));
    }
    let start = Instant::now();
    let (tally, imported) = match import(arguments, general, &database, &key_prefix) {
        Ok(outcome) => outcome,
        Err(failure) if created => {
            // Nothing was stored, and an empty database was not asked for.
            store::discard(database, general);
            return Err(failure);
        }
        Err(failure) => (Tally::default(), Err(failure)),
    };
    let closing = Progress::steps(general.quiet, "writing", None);
    let outcome = match imported {
        Ok(()) => store::close_changed(database, &arguments.target, general, Ok(())),
        Err(failure) => Err(match store::close(database) {
            Ok(()) => aborted(failure, &tally),
            Err(close) => failure.and(close.message),
        }),
    };
    drop(closing);
    let printed = report(&tally, outcome.is_ok(), start.elapsed(), general);
    verdict(printed, outcome)
}

fn import(
    arguments: &Arguments,
    general: &General,
    database: &Database,
    key_prefix: &[u8],
) -> Result<(Tally, Result)> {
    let path = &arguments.target.store.database;
    let file = std::fs::metadata(path).map_err(|error| Failure::file("look at", path, &error))?;
    let log = std::fs::metadata(Database::log_path(path)).ok();
    // The archive of the log grows with what is imported.
    let archive = arguments.target.archive.as_ref().and_then(|archive| std::fs::metadata(archive).ok());
    let except = [file].into_iter().chain(log).chain(archive).collect();
    let tree = Tree { root: &arguments.directory, one_file_system: arguments.one_file_system, except };
    let progress = Progress::bytes(general.quiet, "importing", Some(0));
    if progress.is_visible() {
        progress.set(0, total_bytes(&tree));
    }
    let table = database.table_or_create(&arguments.table.table).map_err(store::of_bytes)?;
    let importer = Importer {
        table: &table,
        attributes: None,
        key_prefix,
        strict: arguments.strict,
        threads: arguments.threads.map_or_else(workers::default_threads, usize::from),
        progress: &progress,
        observer: &|omission, path, reason| tell(omission, path, reason, general, &progress),
    };
    Ok(importer.run(&tree))
}

/// The number of bytes to import, for the bar.
fn total_bytes(tree: &Tree<'_>) -> u64 {
    let mut total = 0;
    tree.walk(|found| {
        if let Found::File(job) = found {
            total += std::fs::symlink_metadata(&job.path).map_or(0, |metadata| metadata.len());
        }
        !crate::signals::interrupted()
    });
    total
}

/// Reports a file that was not stored.
fn tell(omission: Omission, path: &Path, reason: &str, general: &General, progress: &Progress) {
    let path = escaped(path.as_os_str().as_bytes());
    let kind = match omission {
        Omission::Unreadable => "unreadable",
        Omission::Unfit | Omission::Skipped => "skipped",
    };
    if general.json {
        let mut out = Output::new();
        // If the output was closed, writing the summary at the end fails.
        let _ = out.json(&OmissionRow { kind, path, reason }).and_then(|()| out.finish());
        return;
    }
    let unwanted = general.quiet && omission == Omission::Skipped;
    progress.remark(unwanted, format_args!("{kind}: {path}: {reason}"));
}

fn aborted(failure: Failure, tally: &Tally) -> Failure {
    let files = size::counted(tally.files, "file was", "files were");
    let kept = format!("{files} stored before that and stay, and the database was closed");
    match failure.code {
        Code::Silent => failure,
        Code::Interrupted => {
            failure.and(format_args!("{kept}; run the same command again to import the rest"))
        }
        _ => failure.and(kept),
    }
}

fn report(tally: &Tally, complete: bool, time: Duration, general: &General) -> Result {
    let seconds = time.as_secs_f64();
    let Tally { files, bytes, replaced, unreadable, skipped } = *tally;
    let mut out = Output::before_verdict();
    if general.json {
        let kind = "summary";
        out.json(&Summary { kind, files, bytes, replaced, unreadable, skipped, complete, seconds })?;
    } else if complete {
        let rate = size::bytes((bytes as f64 / seconds.max(1e-9)) as u64);
        let mut line = format!("imported {}", size::counted(files, "file", "files"));
        line += &format!(" ({}) in {seconds:.2} s, {rate}/s", size::bytes(bytes));
        for (count, what) in [(replaced, "replaced"), (unreadable, "unreadable"), (skipped, "skipped")] {
            if count > 0 {
                line += &format!("; {} {what}", size::count(count));
            }
        }
        out.line(line)?;
    }
    out.finish()
}
