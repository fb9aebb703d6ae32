//! `vellum restore`: a database of a backup and its increments.

use super::backup::{self, PAGE_BYTES};
use crate::{
    arguments::{EngineArguments, General},
    failure::{Failure, Result},
    output::Output,
    progress::{Progress, remark},
    signals, size,
};
use serde::Serialize;
use std::{path::PathBuf, time::Instant};
use vellum::Backup;
use vellum_base::shown;

const HELP: &str = "\
The database holds what was committed when the last backup was finished. It is made under another name and gets its own \
once it is whole and on the disk; nothing is overwritten. The backups stay as they are.

The restored database is another one: an increment of it follows on a backup of itself only.

Examples:
  vellum restore monday.backup restored.vellum
  vellum restore monday.backup tuesday.backup restored.vellum    a full backup, and increments in their order
  vellum verify restored.vellum                                  check every page and every structure";

/// The arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    /// A full backup, the increments that follow on it, and last the database to be made
    #[arg(required = true, num_args = 2.., value_names = ["BACKUP", "DATABASE"])]
    files: Vec<PathBuf>,
    #[command(flatten)]
    engine: EngineArguments,
    /// How much memory pages may take
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size::parse, allow_negative_numbers = true)]
    pool: u64,
}

/// What was done, for programs.
#[derive(Serialize)]
struct Summary {
    kind: &'static str,
    backups: usize,
    pages: u64,
    log_records: u64,
    seconds: f64,
}

/// Restores a database.
pub fn run(arguments: &Arguments, general: &General) -> Result {
    let start = Instant::now();
    let Some((database, backups)) = arguments.files.split_last() else {
        return Err(Failure::usage("name a backup, and the database to be made of it"));
    };
    let backups = backups.iter().map(|path| backup::open(path)).collect::<Result<Vec<Backup>>>()?;
    let pages = backups.iter().map(|backup| backup.sizes().0).sum();
    signals::watch();
    let bar = Progress::bytes(general.quiet, "restoring", Some(0));
    let mut progress = |done, total| {
        bar.set(done * PAGE_BYTES, total * PAGE_BYTES);
        !signals::interrupted()
    };
    let options = arguments.engine.options(arguments.pool);
    let restored = Backup::restore_with(&backups, database, &options, &mut progress);
    drop(bar);
    signals::check()?;
    let log_records = restored?.recovery.map_or(0, |recovery| recovery.records);
    let seconds = start.elapsed().as_secs_f64();
    let mut out = Output::new();
    if general.json {
        out.json(&Summary { kind: "summary", backups: backups.len(), pages, log_records, seconds })?;
    } else {
        let pages = size::counted(pages, "page", "pages");
        let records = size::counted(log_records, "record", "records");
        out.line(format_args!(
            "restored {} from {pages} and {records} of log, in {seconds:.2} s",
            shown(database)
        ))?;
        remark(general.quiet, format_args!("`vellum verify {}` checks all of it", shown(database)));
    }
    out.finish()
}
