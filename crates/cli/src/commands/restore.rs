//! `vellum restore`: makes a database from a backup and its increments.

use super::backup::{self, PAGE_BYTES};
use crate::{
    arguments::{EngineArguments, General},
    failure::{Failure, Result},
    output::Output,
    progress::Progress,
    signals, size, store, time,
};
use serde::Serialize;
use std::{
    path::PathBuf,
    time::{Instant, SystemTime},
};
use vellum::{Backup, LogArchive, Lsn, RestoreOptions, Until};
use vellum_base::shown;

const HELP: &str = "\
The database holds what was committed when the last backup was finished. It is made as DATABASE.unfinished and gets its own name once it is whole and on the disk; nothing is \
overwritten, except what an interrupted restore has left. The backups stay as they are.

With an archive of the log (`--archive` of the commands that change something, `Options::log_archive` of programs) it holds \
also what was committed after the backup: up to the end of the archive, a time, or a place of the log. `--until-lsn` takes in \
what the record at a place commits, `--before-lsn` only what lies before it: a place that a command or `archive_log` has told. Nothing that was committed later \
is there, and nothing in part. --log names the directory of the lost database's log, if that is left: it has what was not \
archived. A command with --no-archive ends the archive: nothing is restored over the gap between that and a later --archive.

The restored database is another one: an increment of it follows on a backup of itself only, and it needs an archive of its own.

Examples:
  vellum restore monday.backup restored.vellum
  vellum restore monday.backup tuesday.backup restored.vellum    a full backup, and increments in their order
  vellum restore monday.backup restored.vellum --archive log --until 2026-11-23T06:00:00Z
  vellum restore monday.backup restored.vellum --archive log --before-lsn 62384
  vellum restore monday.backup restored.vellum --archive log --log lost.vellum-log    all that is left
  vellum verify restored.vellum                                  check every page and every structure";

/// The arguments.
#[derive(clap::Args)]
#[command(after_help = HELP, override_usage = "vellum restore [OPTIONS] <BACKUP>... <DATABASE>")]
pub struct Arguments {
    /// A full backup, the increments that follow on it, and last the database to be made
    // Options may lie between them, which a larger number would not allow: `run` counts them.
    #[arg(required = true, num_args = 1.., value_name = "FILES")]
    files: Vec<PathBuf>,
    /// Follow this archive of the log, to its end unless --until, --until-lsn or --before-lsn is given
    #[arg(long, value_name = "DIR")]
    archive: Option<PathBuf>,
    /// The directory of the lost database's log, which goes on where the archive ends
    #[arg(long, value_name = "DIR", requires = "archive")]
    log: Option<PathBuf>,
    /// Only what was committed at this time or before: 2026-11-23T06:00:00Z (UTC), with or without a fraction of a second, or seconds since 1970
    #[arg(long, value_name = "TIME", requires = "archive", value_parser = time::parse)]
    until: Option<SystemTime>,
    /// Only what was committed by the record at this place of the log or before
    #[arg(long, value_name = "LSN", requires = "archive", conflicts_with = "until")]
    until_lsn: Option<u64>,
    /// Only what was committed before this place of the log: one that a backup, a restore or `Database::archive_log` has told
    #[arg(long, value_name = "LSN", requires = "archive", conflicts_with_all = ["until", "until_lsn"])]
    before_lsn: Option<u64>,
    #[command(flatten)]
    engine: EngineArguments,
    /// How much memory the buffer pool may take
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size::parse, allow_negative_numbers = true)]
    pool: u64,
}

/// The result, for programs.
#[derive(Serialize)]
struct Summary {
    kind: &'static str,
    backups: usize,
    pages: u64,
    log_records: u64,
    /// If an archive was followed: everything before this place in the log is restored.
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<u64>,
    seconds: f64,
}

/// Restores a database.
pub fn run(arguments: &Arguments, general: &General) -> Result {
    let start = Instant::now();
    let (database, backups) = match arguments.files.split_last() {
        Some((database, backups)) if !backups.is_empty() => (database, backups),
        _ => {
            let message =
                "a restore takes a BACKUP and, behind it, the DATABASE to be made: only one file is named";
            return Err(Failure::usage(message));
        }
    };
    store::check_new_file(database)?;
    let backups = backups.iter().map(|path| backup::open(path)).collect::<Result<Vec<Backup>>>()?;
    let pages = backups.iter().map(|backup| backup.sizes().0).sum();
    for (directory, what) in [(&arguments.archive, "an archive of the log"), (&arguments.log, "a log")] {
        directory.as_ref().map_or(Ok(()), |directory| store::require_directory(directory, what))?;
    }
    signals::watch();
    let bar = Progress::bytes(general.quiet, "restoring", Some(0));
    let mut progress = |done, total| {
        bar.set(done * PAGE_BYTES, total * PAGE_BYTES);
        !signals::interrupted()
    };
    let options = arguments.engine.options(arguments.pool);
    let mut how = RestoreOptions::default().progress(&mut progress);
    if let Some(archive) = &arguments.archive {
        let until = arguments.until.map(Until::Time);
        let until = until.or(arguments.until_lsn.map(|lsn| Until::Lsn(Lsn(lsn))));
        let until = until.or(arguments.before_lsn.map(|lsn| Until::Before(Lsn(lsn))));
        how = how.archive(archive).until(until.unwrap_or_default());
    }
    if let Some(log) = &arguments.log {
        how = how.log(log);
    }
    let restored = Backup::restore_with(&backups, database, &options, how);
    drop(bar);
    let restored = signals::outcome(restored)?;
    let log_records = restored.recovery.map_or(0, |recovery| recovery.records);
    let end = restored.point.map(|point| point.end.0);
    let seconds = start.elapsed().as_secs_f64();
    let mut out = Output::new();
    if general.json {
        out.json(&Summary { kind: "summary", backups: backups.len(), pages, log_records, end, seconds })?;
    } else {
        let pages = size::counted(pages, "page", "pages");
        let records = size::counted(log_records, "record", "records");
        out.line(format_args!(
            "restored {} from {pages} and {records} of log, in {seconds:.2} s",
            shown(database)
        ))?;
        if let Some(point) = restored.point {
            let time = point
                .time
                .map_or_else(String::new, |time| format!(", whose last commit is of {}", time::shown(time)));
            out.line(format_args!("it is as it was before {} of the log{time}", point.end))?;
        }
        if let (Some(archive), Some(last)) = (&arguments.archive, backups.last())
            && let Ok(parts) = LogArchive::open(archive, last)
            && let Some(needed) = parts.needed_by(last)
        {
            let name = needed.name();
            general.remark(format_args!(
                "the last of these backups needs {name} of the archive, and what follows"
            ));
        }
        general.remark(format_args!("`vellum verify {}` checks all of it", shown(database)));
    }
    out.finish()
}
