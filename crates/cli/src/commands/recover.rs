//! `vellum recover`: recovers a database that was not closed, or reports what a recovery would do and what is damaged.

use crate::{
    arguments::{Change, General, WriteArguments},
    failure::{Code, Failure, Result, verdict},
    output::Output,
    salvage, size, store,
    text::{escaped, named},
};
use serde::Serialize;
use std::fmt::Display;
use vellum::{LeftBy, Piece, Problem, Recovery, Salvage};
use vellum_base::shown;

const HELP: &str = "\
Opens the database, does again what its log holds, and closes it. Any command that changes a database does so; this one does \
nothing else. Commands that only read do it in memory, each time, and change no file. A copy of the superblock that is damaged is \
written again. If the log is archived, name the archive: it gets what it lacks.

With --report nothing is changed: the recovery runs on a copy in memory of what it changes, which takes about as much memory as \
the log is long. The report tells what the log holds and what of it would be undone, and which pages are damaged, with the \
tables and the keys that are lost with them, and what is wrong with heaps of objects. If nothing is lost, all other pages are checked too, as by `vellum verify`. \
`vellum dump --salvage` prints what is left.

If the superblocks or the space map are damaged, all of the file is read, and its pages are found by their headers. If both \
superblocks are, the log is left out, for it is not known where in it to begin. Tables whose names are lost with the catalog are \
called lost-1 and so on; `vellum scan --table lost-1 --salvage` prints one as bytes.

Examples:
  vellum recover data.vellum
  vellum recover data.vellum --report

Exits with 3 if anything is damaged.";

/// The arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    #[command(flatten)]
    target: WriteArguments,
    /// Change nothing; report what is there
    #[arg(long)]
    report: bool,
}

/// How the database was left, for programs.
#[derive(Serialize)]
struct Summary {
    kind: &'static str,
    left_by: &'static str,
    log_records: u64,
    log_bytes: u64,
    undone_transactions: u64,
    undone_changes: u64,
    /// How many copies of the superblock are damaged, or were and have been written again.
    damaged_superblocks: usize,
    /// What was wrong with the buffer of the log, which may have held commits that were not durable.
    buffer_damage: Option<String>,
    seconds: f64,
}

/// A loss, for programs.
#[derive(Serialize)]
struct Lost {
    kind: &'static str,
    table: Option<String>,
    after: Option<String>,
    upto: Option<String>,
    message: String,
}

/// How a database was left whose log is needed, and is not there or cannot be read.
const WITHOUT_LOG: &str = "crash_without_log";

/// How a database was left that was closed, and whose log is a later one.
const OLDER_COPY: &str = "older_copy";

/// What is damaged without a loss, for programs.
#[derive(Serialize)]
struct Flaw<'f> {
    kind: &'static str,
    message: &'f str,
}

/// Recovers a database, or reports.
pub fn run(arguments: &Arguments, general: &General) -> Result {
    if arguments.report { report(arguments, general) } else { recover(arguments, general) }
}

fn recover(arguments: &Arguments, general: &General) -> Result {
    let database = store::open_to_write(&arguments.target, Change::Much)?;
    let recovery = database.recovery();
    // After a crash the opening has written both.
    let mended = database.mend_superblocks();
    let mended = mended.map_err(Failure::from);
    let damaged = store::close_changed(database, &arguments.target, general, mended)?;
    let mut out = Output::new();
    let left_by = if recovery.is_some() { "crash" } else { "closing" };
    write_summary(&mut out, general.json, (left_by, recovery, damaged), "was")?;
    if damaged > 0 && !general.json {
        out.line("a copy of its superblock was damaged, and was written again")?;
    }
    out.finish()
}

fn report(arguments: &Arguments, general: &General) -> Result {
    let salvage = salvage::open(&arguments.target.store)?;
    let mut out = Output::before_verdict();
    let mut lost = 0;
    let left = match salvage.left_by() {
        LeftBy::Crash(recovery) => ("crash", Some(*recovery)),
        LeftBy::CrashWithoutLog(_) => (WITHOUT_LOG, None),
        LeftBy::OlderCopy(_) => (OLDER_COPY, None),
        LeftBy::Unknown { .. } => ("unknown", None),
        _ => ("closing", None),
    };
    let damaged = salvage.damaged_superblocks();
    write_summary(&mut out, general.json, (left.0, left.1, damaged), "would be")?;
    if damaged == 1 && !general.json {
        out.line("one of the two copies of its superblock is damaged, and the other is used: nothing is lost with it")?;
    }
    let mut tell = |table: Option<&str>, range: (Option<&[u8]>, Option<&[u8]>), message: String| {
        lost += 1;
        let text = |key: Option<&[u8]>| key.map(escaped);
        let (after, upto) = (text(range.0), text(range.1));
        if general.json {
            return out.json(&Lost {
                kind: "lost",
                table: table.map(|name| escaped(name.as_bytes())),
                after,
                upto,
                message,
            });
        }
        out.line(format_args!("{}: {message}", salvage::place(table, after, upto)))
    };
    for loss in salvage::losses(&salvage) {
        tell(None, (None, None), loss)?;
    }
    let (tables, heaps) = (salvage.tables().0, salvage.heaps());
    for name in &tables {
        let mut failure = None;
        let walked = salvage.table(name, |piece| {
            let told = match piece {
                Piece::LostValue { key, error } => {
                    tell(Some(name), (Some(key), Some(key)), format!("its value is lost: {error}"))
                }
                Piece::LostRange { after, upto, error } => tell(Some(name), (after, upto), error.to_string()),
                _ => Ok(()),
            };
            failure = failure.take().or(told.err());
            Ok(())
        });
        if let Some(failure) = failure {
            return Err(failure);
        }
        if let Err(error) = walked {
            tell(Some(name), (None, None), error.to_string())?;
        }
    }
    for name in &heaps {
        match salvage.verify_heap(name) {
            Ok(Some(problems)) => {
                for problem in problems {
                    tell(None, (None, None), problem.to_string())?;
                }
            }
            Ok(None) => {
                let what = "it cannot be examined, because it is not known which pages belong together";
                tell(None, (None, None), format!("heap {}: {what}", named(name)))?;
            }
            Err(error) => tell(None, (None, None), format!("heap {}: {error}", named(name)))?,
        }
    }
    let flaws = if lost == 0 { flaws(&salvage) } else { Vec::new() };
    for message in &flaws {
        if general.json {
            out.json(&Flaw { kind: "damaged", message })?;
        } else {
            out.line(format_args!("damaged: {message}"))?;
        }
    }
    if lost == 0 && !general.json {
        let tables = size::counted(tables.len() as u64, "table", "tables");
        match heaps.len() as u64 {
            0 => out.line(format_args!("{tables}, all of whose entries can be read"))?,
            heaps => out.line(format_args!(
                "{tables}, all of whose entries can be read, and {}, all of whose objects can",
                size::counted(heaps, "heap of objects", "heaps of objects")
            ))?,
        }
    }
    let path = shown(&arguments.target.store.database);
    if lost + flaws.len() == 0 && left.1.is_some_and(|recovery| recovery.buffer_damage.is_some()) {
        return verdict(out.finish(), Err(only_buffer(&path)));
    }
    verdict(out.finish(), judge(lost + flaws.len(), damaged, left.0, &path))
}

/// What is damaged although all entries and objects can be read, as bytes of a page that nothing refers to, or the map of
/// what is in use.
fn flaws(salvage: &Salvage) -> Vec<String> {
    let problems = salvage.database().verify(|_| {}).problems.into_iter();
    let is_told = |problem: &Problem| {
        matches!(problem, Problem::DamagedSuperblock { .. } | Problem::DamagedBuffer { .. })
    };
    let problems = problems.filter(|problem| !is_told(problem));
    problems.map(|problem| problem.to_string()).collect()
}

fn judge(damages: usize, damaged_superblocks: usize, left_by: &str, path: &dyn Display) -> Result {
    let what = match (damages, damaged_superblocks) {
        (0, 0) => return Ok(()),
        (0, _) => return Err(one_superblock(path)),
        _ if left_by == OLDER_COPY => {
            "is an older copy than its log, and was not changed. Put the file that belongs to the log where it was: then nothing is lost"
        }
        _ if left_by == WITHOUT_LOG => {
            "was not closed, and is damaged without its log; it was not changed. Put the log where it was: then nothing is lost. If \
             the log is gone, restore the database from a backup"
        }
        _ => "is damaged, and was not changed. Restore it from a backup",
    };
    Err(Failure::new(
        Code::Damaged,
        format!(
            "{path} {what}; `vellum dump {path} --salvage` prints what is left of its tables, and `vellum load --dump` stores \
             that in a new database"
        ),
    ))
}

/// The failure for a database of which nothing but one copy of the superblock is damaged.
pub fn one_superblock(path: &dyn Display) -> Failure {
    Failure::new(
        Code::Damaged,
        format!(
            "one of the two copies of the superblock of {path} is damaged, and nothing is lost: `vellum recover` writes it \
             again, and so does the next change"
        ),
    )
}

/// The failure for a database that has crashed, and of which nothing but the buffer of its log is damaged, and perhaps one copy
/// of the superblock.
pub fn only_buffer(path: &dyn Display) -> Failure {
    Failure::new(
        Code::Damaged,
        format!(
            "the buffer of the log of {path} is damaged; all that was durable is there, but commits that were only Buffered may \
             be lost: put the file back if there is a copy of it from after the crash. `vellum recover` goes on without it, and \
             so does the next change"
        ),
    )
}

fn write_summary(
    out: &mut Output,
    json: bool,
    (left_by, recovery, damaged_superblocks): (&'static str, Option<Recovery>, usize),
    verb: &str,
) -> Result {
    let buffer_damage = recovery.and_then(|recovery| recovery.buffer_damage);
    if json {
        return out.json(&Summary {
            kind: "summary",
            left_by,
            log_records: recovery.map_or(0, |recovery| recovery.records),
            log_bytes: recovery.map_or(0, |recovery| recovery.log_bytes),
            undone_transactions: recovery.map_or(0, |recovery| recovery.undone_transactions),
            undone_changes: recovery.map_or(0, |recovery| recovery.undone_changes),
            damaged_superblocks,
            buffer_damage: buffer_damage.map(|damage| damage.to_string()),
            seconds: recovery.map_or(0.0, |recovery| recovery.duration.as_secs_f64()),
        });
    }
    match recovery {
        Some(recovery) => {
            let records = size::counted(recovery.records, "record", "records");
            let changes = size::counted(recovery.undone_changes, "change", "changes");
            let transactions = size::counted(recovery.undone_transactions, "transaction", "transactions");
            out.line(format_args!(
                "it was not closed: {records} of log ({}) {verb} done again, and {changes} of {transactions} undone that did not \
                 commit",
                size::bytes(recovery.log_bytes)
            ))?;
            buffer_damage.map_or(Ok(()), |damage| out.line(damage))
        }
        None if left_by == "closing" => out.line("it was closed, and needs no recovery"),
        None if left_by == OLDER_COPY => {
            out.line("it is an older copy, which was closed before the log beside it was written: what follows is what the copy holds")
        }
        None if left_by == "unknown" => out.line(
            "whether it was closed is not known: what follows is what the file holds; if it was not, some is older than the rest",
        ),
        None => out.line(
            "it was not closed, and its log cannot be read: what follows is what the file holds, of which some is older than the rest",
        ),
    }
}
