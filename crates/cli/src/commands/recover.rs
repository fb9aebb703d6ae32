//! `vellum recover`: recovers a database that was not closed, or reports what a recovery would do and what is damaged.

use crate::{
    arguments::{General, StoreArguments, WriteArguments},
    failure::{Code, Failure, Result},
    output::Output,
    size, store,
    text::escaped,
};
use serde::Serialize;
use vellum::{LeftBy, Piece, Recovery, Salvage, Scanned};
use vellum_base::shown;

const HELP: &str = "\
Opens the database, does again what its log holds, and closes it. Any command that changes a database does so; this one does \
nothing else.

With --report nothing is changed: the recovery runs on a copy in memory of what it changes, which takes about as much memory as \
the log is long. The report tells what the log holds and what of it would be undone, and which pages are damaged, with the \
tables and the keys that are lost with them. `vellum scan --salvage` prints what is left.

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

/// Recovers a database, or reports.
pub fn run(arguments: &Arguments, general: &General) -> Result {
    if arguments.report { report(arguments, general) } else { recover(arguments, general) }
}

fn recover(arguments: &Arguments, general: &General) -> Result {
    let database = store::open_to_write(&arguments.target)?;
    let recovery = database.recovery();
    store::close(database)?;
    let mut out = Output::new();
    let left_by = if recovery.is_some() { "crash" } else { "closing" };
    write_summary(&mut out, general.json, (left_by, recovery), "was")?;
    out.finish()
}

fn report(arguments: &Arguments, general: &General) -> Result {
    let salvage = open(&arguments.target.store)?;
    let mut out = Output::new();
    let mut lost = 0;
    let left = match salvage.left_by() {
        LeftBy::Crash(recovery) => ("crash", Some(*recovery)),
        LeftBy::CrashWithoutLog(_) => ("crash_without_log", None),
        LeftBy::Unknown { .. } => ("unknown", None),
        _ => ("closing", None),
    };
    write_summary(&mut out, general.json, left, "would be")?;
    let mut tell = |table: Option<&str>, range: (Option<&[u8]>, Option<&[u8]>), message: String| {
        lost += 1;
        let text = |key: Option<&[u8]>| key.map(escaped);
        let (after, upto) = (text(range.0), text(range.1));
        if general.json {
            return out.json(&Lost { kind: "lost", table: table.map(str::to_owned), after, upto, message });
        }
        out.line(format_args!("{}: {message}", place(table, after, upto)))
    };
    if let Some(scanned) = salvage.scanned() {
        tell(None, (None, None), found(scanned))?;
    }
    if let LeftBy::Unknown { has_log: true } = salvage.left_by() {
        let what = "there is a log with later changes, which are left out: the superblocks would say where in it they begin";
        tell(None, (None, None), what.to_owned())?;
    }
    if let LeftBy::CrashWithoutLog(error) = salvage.left_by() {
        tell(None, (None, None), error.to_string())?;
    }
    for error in salvage.damage() {
        tell(None, (None, None), error.to_string())?;
    }
    let (tables, errors) = salvage.tables();
    for error in errors {
        tell(None, (None, None), format!("tables are lost: {error}"))?;
    }
    if salvage.nameless().next().is_some() {
        let names = salvage.nameless().collect::<Vec<_>>().join(", ");
        tell(
            None,
            (None, None),
            format!("the names of tables are lost, which are called {names}, and shown as bytes"),
        )?;
    }
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
    if lost == 0 {
        if !general.json {
            let tables = size::counted(tables.len() as u64, "table", "tables");
            out.line(format_args!("{tables}, all of whose entries can be read"))?;
        }
        return out.finish();
    }
    out.finish()?;
    let path = shown(&arguments.target.store.database);
    Err(Failure::new(
        Code::Damaged,
        format!(
            "{path} is damaged, and was not changed. Restore it from a backup; `vellum scan {path} --table NAME --full --salvage` \
             prints what is left of a table, and `vellum load` stores that in a new database"
        ),
    ))
}

/// Opens a database to inspect what is left of it.
pub fn open(arguments: &StoreArguments) -> Result<Salvage> {
    let path = &arguments.database;
    store::require_file(path)?;
    Salvage::open(path, &arguments.engine.options(arguments.pool)).map_err(|error| {
        let is_damaged = error.kind() == vellum::ErrorKind::Corruption;
        let failure = Failure::from(error);
        if is_damaged { failure.and("No page of a table was found in it that is sound") } else { failure }
    })
}

/// How the pages of a damaged database were found, for people.
pub fn found(scanned: &Scanned) -> String {
    let Scanned { error, pages, nodes, values, .. } = scanned;
    let [nodes, values] =
        [(nodes, "node of a table", "nodes of tables"), (values, "large value", "large values")]
            .map(|(count, one, many)| size::counted(*count, one, many));
    format!(
        "{error}: all {pages} pages of the file were read instead, of which {nodes} are sound, and {values}"
    )
}

/// Where something is lost, for people.
pub fn place(table: Option<&str>, after: Option<String>, upto: Option<String>) -> String {
    let Some(table) = table else { return "database".to_owned() };
    match (after, upto) {
        (Some(after), Some(upto)) if after == upto => format!("table {table:?}, key \"{after}\""),
        (None, None) => format!("table {table:?}, all keys"),
        (after, upto) => {
            let after = after.map_or(String::new(), |key| format!(" after \"{key}\""));
            let upto = upto.map_or(String::new(), |key| format!(" up to \"{key}\""));
            format!("table {table:?}, keys{after}{upto}")
        }
    }
}

fn write_summary(
    out: &mut Output,
    json: bool,
    (left_by, recovery): (&'static str, Option<Recovery>),
    verb: &str,
) -> Result {
    if json {
        return out.json(&Summary {
            kind: "summary",
            left_by,
            log_records: recovery.map_or(0, |recovery| recovery.records),
            log_bytes: recovery.map_or(0, |recovery| recovery.log_bytes),
            undone_transactions: recovery.map_or(0, |recovery| recovery.undone_transactions),
            undone_changes: recovery.map_or(0, |recovery| recovery.undone_changes),
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
            ))
        }
        None if left_by == "closing" => out.line("it was closed, and needs no recovery"),
        None if left_by == "unknown" => out.line(
            "whether it was closed is not known: what follows is what the file holds; if it was not, some is older than the rest",
        ),
        None => out.line(
            "it was not closed, and its log cannot be read: what follows is what the file holds, of which some is older than the rest",
        ),
    }
}
