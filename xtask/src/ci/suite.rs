//! The test step: all test programs, several at a time.
//!
//! Where one waits for a disk or has a single long test left, another uses the processor. The output of each is kept until it
//! ends.

use super::programs::{Kind, Program};
use crate::process;
use std::{
    process::Command,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

/// So many run at a time. Each has threads of its own, so more would make all of them slow and gain nothing.
const AT_ONCE: usize = 2;

/// Those that take longest: package and name. They begin first, so that none is left alone at the end.
const LONGEST: &[(&str, &str)] =
    &[("vellum", "crash"), ("vellum-lab", "runs"), ("vellum-access", "it"), ("vellum-pmem", "vellum_pmem")];

/// Something to be run.
struct Job {
    name: String,
    command: Command,
    /// What to type to run it alone.
    alone: String,
}

/// Runs the tests among these programs, and the examples in documentation.
///
/// # Errors
/// Names those that fail. After the first that does none is begun.
pub fn run(programs: Vec<Program>) -> Result<(), String> {
    let mut tests: Vec<Program> = programs.into_iter().filter(|program| program.kind == Kind::Test).collect();
    let rank = |test: &Program| {
        LONGEST.iter().position(|one| *one == (&*test.package, &*test.name)).unwrap_or(LONGEST.len())
    };
    tests.sort_by_key(rank);
    let mut jobs: Vec<Job> = tests.iter().map(job).collect();
    let arguments = ["test", "--workspace", "--doc"];
    jobs.push(Job {
        name: "examples in documentation".to_owned(),
        command: process::cargo(&arguments),
        alone: format!("cargo {}", arguments.join(" ")),
    });
    run_jobs(jobs)
}

fn job(test: &Program) -> Job {
    let Program { package, folder, option, path, .. } = test;
    // As cargo would start it.
    let mut command = process::program(path);
    command.current_dir(folder).env("CARGO_MANIFEST_DIR", folder);
    Job { name: format!("{package} {option}"), command, alone: format!("cargo test -p {package} {option}") }
}

/// Runs jobs, [`AT_ONCE`] at a time, and prints what each has printed when it ends.
fn run_jobs(jobs: Vec<Job>) -> Result<(), String> {
    let count = jobs.len();
    let jobs = Mutex::new(jobs.into_iter());
    let failed = Mutex::new(Vec::new());
    let work = || {
        loop {
            let Ok(mut left) = jobs.lock() else { return };
            let Some(job) = left.next() else { return };
            drop(left);
            let begun = Instant::now();
            let Err(alone) = run_job(job, begun) else { continue };
            let (Ok(mut left), Ok(mut failed)) = (jobs.lock(), failed.lock()) else { return };
            failed.push(alone);
            left.by_ref().for_each(drop);
        }
    };
    thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
    let failed = failed.into_inner().unwrap_or_default();
    if failed.is_empty() {
        println!("   {count} test programs passed");
        return Ok(());
    }
    Err(format!("tests failed; to run them alone: {}", failed.join("; ")))
}

/// Runs one; an error is how to run it alone.
fn run_job(mut job: Job, begun: Instant) -> Result<(), String> {
    let outcome = job.command.output();
    let took = begun.elapsed();
    let mut text = format!("   {}, {}\n", job.name, seconds(took));
    let is_good = match &outcome {
        Ok(output) => {
            text += &String::from_utf8_lossy(&output.stdout);
            text += &String::from_utf8_lossy(&output.stderr);
            output.status.success()
        }
        Err(error) => {
            text += &format!("cannot run {}: {error}\n", process::shown(&job.command));
            false
        }
    };
    if let Some(status) = outcome.ok().map(|output| output.status).filter(|status| !status.success()) {
        text += &format!("{} ended with {status}\n", job.name);
    }
    // In one piece: the others print as well.
    print!("{text}");
    if is_good { Ok(()) } else { Err(job.alone) }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
