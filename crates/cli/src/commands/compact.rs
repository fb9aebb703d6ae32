//! `vellum compact`: makes the file of a database as short as its contents allow.

use crate::{
    arguments::{Change, General, WriteArguments},
    failure::{Failure, Result},
    output::Output,
    progress::Progress,
    signals, size, store,
};
use serde::Serialize;
use std::time::Instant;
use vellum_base::shown;

const HELP: &str = "\
After much was removed, the file keeps its length, and what is stored next takes the free places. This command moves what lies at its \
end there, and gives the rest back to the file system. It may be interrupted: what has been moved has been moved.

A program that has the database open does the same while it goes on, with `Database::compact`.";

/// The arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    #[command(flatten)]
    target: WriteArguments,
}

/// The result, for programs.
#[derive(Serialize)]
struct Summary {
    kind: &'static str,
    bytes_before: u64,
    bytes: u64,
    nodes_moved: u64,
    values_moved: u64,
    pages_left: u64,
    seconds: f64,
}

/// Makes the file shorter.
pub fn run(arguments: &Arguments, general: &General) -> Result {
    let start = Instant::now();
    let path = &arguments.target.store.database;
    let length = || std::fs::metadata(path).map_or(0, |file| file.len());
    let bytes_before = length();
    let database = store::open_to_write(&arguments.target, Change::Much)?;
    let bar = Progress::steps(general.quiet, "moving", None);
    let done = database.compact(|_| {
        bar.advance(1);
        !signals::interrupted()
    });
    drop(bar);
    let done = store::close_changed(database, &arguments.target, general, done.map_err(Failure::from))?;
    signals::check()?;
    let (bytes, seconds) = (length(), start.elapsed().as_secs_f64());
    let mut out = Output::new();
    if general.json {
        out.json(&Summary {
            kind: "summary",
            bytes_before,
            bytes,
            nodes_moved: done.nodes_moved,
            values_moved: done.values_moved,
            pages_left: done.pages_left,
            seconds,
        })?;
    } else {
        let (before, after) = (size::bytes(bytes_before), size::bytes(bytes));
        let (nodes, values) = (
            size::counted(done.nodes_moved, "node", "nodes"),
            size::counted(done.values_moved, "large value", "large values"),
        );
        out.line(format_args!(
            "{}: {before} before, {after} now; {nodes} and {values} moved, in {seconds:.2} s",
            shown(path)
        ))?;
    }
    out.finish()
}
