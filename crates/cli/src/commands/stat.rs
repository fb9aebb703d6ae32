//! `vellum stat`: how large a database is, and how it is read and written here.

use crate::{
    arguments::{General, StoreArguments},
    failure::{Failure, Result},
    output::{Output, columns, render},
    size, store,
};
use serde::Serialize;
use vellum::pool::PAGE_SIZE;

const HELP: &str = "\
Examples:
  vellum stat data.vellum
  vellum stat data.vellum --json
  vellum stat data.vellum --io-engine pread      what would be used if io_uring were not there";

/// The arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    #[command(flatten)]
    store: StoreArguments,
}

/// What is shown.
#[derive(Serialize)]
struct Report {
    database: String,
    file_bytes: u64,
    page_bytes: u64,
    pages_in_file: u64,
    pages_allocated: u64,
    pages_free: u64,
    tables: usize,
    pool_bytes: u64,
    release_method: String,
    io_engine: String,
    direct_io: bool,
    resident_bytes: Option<u64>,
}

/// Shows figures.
pub fn run(arguments: &Arguments, general: &General) -> Result {
    let database = store::open_to_read(&arguments.store, general)?;
    let path = &arguments.store.database;
    let file = std::fs::metadata(path).map_err(|error| Failure::file("look at", path, &error))?;
    let tables = database.tables()?.len();
    let statistics = database.statistics();
    let report = Report {
        database: path.display().to_string(),
        file_bytes: file.len(),
        page_bytes: PAGE_SIZE as u64,
        pages_in_file: statistics.pages_in_file,
        pages_allocated: statistics.pages_allocated,
        pages_free: statistics.pages_in_file.saturating_sub(statistics.pages_allocated),
        tables,
        pool_bytes: statistics.pages_limit * PAGE_SIZE as u64,
        release_method: statistics.release_method.to_string(),
        io_engine: statistics.file.engine.to_string(),
        direct_io: statistics.file.direct,
        resident_bytes: vellum::resident_bytes().ok(),
    };
    let mut out = Output::new();
    if general.json {
        out.json(&report)?
    } else {
        out.line(text(&report))?
    }
    out.finish()
}

fn text(report: &Report) -> String {
    let pages = |count: u64| format!("{} ({})", size::count(count), size::bytes(count * report.page_bytes));
    let path = if report.direct_io { "direct (past the page cache)" } else { "buffered (the page cache)" };
    let mut table = columns(&[], 2);
    table
        .add_row(["database", &report.database])
        .add_row(["file", &size::bytes(report.file_bytes)])
        .add_row(["tables", &report.tables.to_string()])
        .add_row(["pages of 4 KiB", &pages(report.pages_in_file)])
        .add_row(["  in use", &pages(report.pages_allocated)])
        .add_row(["  free", &pages(report.pages_free)])
        .add_row(["pool", &size::bytes(report.pool_bytes)])
        .add_row(["eviction through", &report.release_method])
        .add_row(["I/O through", &format!("{}, {path}", report.io_engine)]);
    if let Some(bytes) = report.resident_bytes {
        table.add_row(["memory of this process", &size::bytes(bytes)]);
    }
    render(&table)
}
