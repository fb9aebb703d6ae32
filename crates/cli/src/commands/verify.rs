//! `vellum verify`: checks a whole database.

use super::{recover, tables};
use crate::{
    arguments::{General, StoreArguments},
    failure::{Code, Failure, Result, verdict},
    output::Output,
    progress::Progress,
    size, store,
    text::escaped,
};
use serde::Serialize;
use std::{collections::BTreeMap, path::Path, time::Instant};
use vellum::{Problem, VerifyReport};
use vellum_base::shown;

const HELP: &str = "\
Walks every table, reads every page, checks every checksum and every invariant, and finds pages that belong to \
nothing or to two things. Changes nothing: a database that was not closed is recovered in memory.

Examples:
  vellum verify data.vellum
  vellum verify data.vellum --json | jq 'select(.kind == \"problem\")'

Exits with 3 if anything is wrong.";

/// The arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    #[command(flatten)]
    store: StoreArguments,
}

/// A heap of objects, and the number of reachable objects of each type.
#[derive(Serialize)]
struct HeapRow<'r> {
    kind: &'static str,
    /// Its name, with escapes.
    heap: String,
    objects: &'r BTreeMap<String, u64>,
}

#[derive(Serialize)]
struct ProblemRow {
    kind: &'static str,
    problem: &'static str,
    message: String,
}

#[derive(Serialize)]
struct Summary {
    kind: &'static str,
    clean: bool,
    problems: usize,
    pages_verified: u64,
    /// Of which it is unknown whether anything needs them.
    undecided_pages: u64,
    seconds: f64,
}

/// Verifies a database.
pub fn run(arguments: &Arguments, general: &General) -> Result {
    let database = store::open_to_read(&arguments.store, general)?;
    let start = Instant::now();
    let progress = Progress::steps(general.quiet, "verifying pages", Some(0));
    let report = database.verify(|at| progress.set(at.pages_done, at.pages_total));
    drop(progress);
    let seconds = start.elapsed().as_secs_f64();
    let mut out = Output::before_verdict();
    if general.json {
        write_json(&report, seconds, &mut out)?
    } else {
        write_text(&report, seconds, &mut out)?
    }
    verdict(out.finish(), judge(&report, &arguments.store.database))
}

fn judge(report: &VerifyReport, path: &Path) -> Result {
    if report.is_clean() {
        return Ok(());
    }
    let path = shown(path);
    if report.problems.iter().all(|problem| matches!(problem, Problem::DamagedSuperblock { .. })) {
        return Err(recover::one_superblock(&path));
    }
    let is_small = |problem: &Problem| {
        matches!(problem, Problem::DamagedSuperblock { .. } | Problem::DamagedBuffer { .. })
    };
    if report.problems.iter().all(is_small) {
        return Err(recover::only_buffer(&path));
    }
    let problems = size::counted(report.problems.len() as u64, "problem", "problems");
    let message = format!(
        "{problems} found in {path}; restore it from a backup, or save what can still be read with `vellum dump --salvage` \
         (`vellum recover --report` tells what is lost)"
    );
    Err(Failure::new(Code::Damaged, message))
}

fn write_json(report: &VerifyReport, seconds: f64, out: &mut Output) -> Result {
    for (name, shape) in &report.tables {
        out.json(&tables::Row::new(name, Some(shape)))?;
    }
    for (heap, objects) in &report.heaps {
        out.json(&HeapRow { kind: "heap", heap: escaped(heap.as_bytes()), objects })?;
    }
    for problem in &report.problems {
        out.json(&ProblemRow { kind: "problem", problem: name(problem), message: problem.to_string() })?;
    }
    out.json(&Summary {
        kind: "summary",
        clean: report.is_clean(),
        problems: report.problems.len(),
        pages_verified: report.pages_verified,
        undecided_pages: report.undecided_pages,
        seconds,
    })
}

fn write_text(report: &VerifyReport, seconds: f64, out: &mut Output) -> Result {
    let rows: Vec<_> =
        report.tables.iter().map(|(name, shape)| tables::Row::new(name, Some(shape))).collect();
    if !rows.is_empty() {
        out.line(tables::text(&rows))?;
    }
    for (name, objects) in &report.heaps {
        // Programs name heaps and types, with any characters.
        let name = escaped(name.as_bytes());
        let types = objects.iter().map(|(name, count)| format!("{count} {}", escaped(name.as_bytes())));
        let types: Vec<String> = types.collect();
        let holds =
            if types.is_empty() { "no objects that a root leads to".to_owned() } else { types.join(", ") };
        out.line(format_args!("heap {name}: {holds}"))?;
    }
    report.problems.iter().try_for_each(|problem| out.line(format_args!("problem: {problem}")))?;
    if report.undecided_pages > 0 {
        let pages = size::counted(report.undecided_pages, "page", "pages");
        out.line(format_args!("unknown whether anything needs {pages}: verify again"))?;
    }
    let pages = size::counted(report.pages_verified, "page", "pages");
    let verdict = if report.is_clean() { "everything is as it should be" } else { "damaged" };
    out.line(format_args!("{pages} verified in {seconds:.2} s: {verdict}"))
}

fn name(problem: &Problem) -> &'static str {
    match problem {
        Problem::Damaged { .. } => "damaged",
        Problem::UsedTwice { .. } => "used_twice",
        Problem::Leaked { .. } => "leaked",
        Problem::Dangling { .. } => "dangling",
        Problem::Unreachable { .. } => "unreachable",
        Problem::DamagedSuperblock { .. } => "damaged_superblock",
        Problem::DamagedBuffer { .. } => "damaged_buffer",
        _ => "other",
    }
}
