//! `vellum backup`: a copy of a database in one file, or of the changes since another backup.

use crate::{
    arguments::{General, StoreArguments},
    failure::{Code, Failure, Result},
    output::Output,
    progress::Progress,
    signals, size, store,
};
use serde::Serialize;
use std::{
    path::{Path, PathBuf},
    time::Instant,
};
use vellum::{Backup, BackupOptions, Error, pool::PoolError};
use vellum_base::shown;

const HELP: &str = "\
The backup is one file. It is made as BACKUP.unfinished and gets its own name once it is whole and on the disk; nothing is \
overwritten, except what an interrupted backup has left. Every page is checked while it is copied. `vellum restore` makes a database of it.

A program that has the database open makes backups itself while it goes on, with `Database::backup`. This command is for a \
database that no other process changes, and that was closed: one that was not is recovered first, by `vellum recover`. \
It notes in the database that the backup was made, so that increments can be based on it.

Examples:
  vellum backup data.vellum monday.backup
  vellum backup data.vellum tuesday.backup --since monday.backup       only what has changed since
  vellum backup data.vellum wednesday.backup --since tuesday.backup    and so on
  vellum restore monday.backup tuesday.backup restored.vellum          the database as it was on Tuesday";

/// The arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    #[command(flatten)]
    store: StoreArguments,
    /// The backup to be made
    backup: PathBuf,
    /// Copy only what may have changed since this backup was made
    #[arg(long, value_name = "BACKUP")]
    since: Option<PathBuf>,
}

/// The result, for programs.
#[derive(Serialize)]
struct Summary {
    kind: &'static str,
    increment: bool,
    /// It holds everything that was committed before this place in the log.
    end: u64,
    pages: u64,
    log_bytes: u64,
    bytes: u64,
    seconds: f64,
}

/// Makes a backup.
pub fn run(arguments: &Arguments, general: &General) -> Result {
    let start = Instant::now();
    store::check_new_file(&arguments.backup)?;
    let former = arguments.since.as_deref().map(open).transpose()?;
    let database = match store::open_to_copy(&arguments.store) {
        Err(failure) if failure.code == Code::Busy => {
            return Err(failure.and(
                "Make the backup in the program that has the database open (`Database::backup`), which may go on meanwhile, or \
                 when that has closed it",
            ));
        }
        opened => opened?,
    };
    signals::watch();
    let bar = Progress::bytes(general.quiet, "copying", Some(0));
    let mut progress = |at: vellum::BackupProgress| {
        bar.set(at.pages_done * PAGE_BYTES, at.pages_total * PAGE_BYTES);
        !signals::interrupted()
    };
    let mut options = BackupOptions::default().progress(&mut progress);
    if let Some(former) = &former {
        options = options.since(former);
    }
    let made = database.backup_with(&arguments.backup, options);
    drop(bar);
    let summary = signals::outcome(made)?;
    drop(database);
    if let Err(error) =
        Backup::open(&arguments.backup).and_then(|made| made.note_in(&arguments.store.database))
    {
        let database = shown(&arguments.store.database);
        let remark = format!(
            "{database} does not say that this backup was made ({error}): once it has been opened and changed 237 times, \
             increments need another full backup",
        );
        general.remark(&remark);
    }
    let seconds = start.elapsed().as_secs_f64();
    let mut out = Output::new();
    if general.json {
        out.json(&Summary {
            kind: "summary",
            increment: former.is_some(),
            end: summary.end.0,
            pages: summary.pages,
            log_bytes: summary.log_bytes,
            bytes: summary.bytes,
            seconds,
        })?;
    } else {
        let pages = size::counted(summary.pages, "page", "pages");
        let of = if former.is_some() { "that may have changed " } else { "" };
        let bytes = size::bytes(summary.bytes);
        out.line(format_args!(
            "{pages} {of}in {} ({bytes}), in {seconds:.2} s; it ends before {} of the log",
            shown(&arguments.backup),
            summary.end
        ))?;
    }
    out.finish()
}

/// The size of a page, in bytes.
pub const PAGE_BYTES: u64 = vellum_base::PAGE_SIZE as u64;

/// Opens a backup.
pub fn open(path: &Path) -> Result<Backup> {
    store::regular_file(path, "a backup")?;
    Backup::open(path).map_err(|error| match error {
        Error::Pool(PoolError::Vm(_)) => error.into(),
        error => Failure::from(error).after(format_args!("cannot use {}", shown(path))),
    })
}
