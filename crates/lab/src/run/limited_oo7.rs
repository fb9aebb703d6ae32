//! OO7 in processes whose memory the kernel limits: what does not fit is swapped, or dropped, or was never there.
//!
//! For each round of each operation each contestant gets a new process. It knows the plan of the database, enters the cgroup, and
//! opens the database: so pages, and what is needed for them, are what the limit is about. It does the operation twice: *cold*, with none
//! of the pages in memory, and *warm*, at once again.

use super::oo7::prepare;
use crate::config::{GraphName, Named, Oo7Operation, Oo7Settings, Oo7Size, RunSettings};
use crate::engines::graphs::plan::Plan;
use crate::measure::machine::Manifest;
use crate::measure::memory_limit::{MemoryLimit, counted, end_with_parent, enter};
use crate::measure::statistics::Spread;
use crate::report::reporter::Reporter;
use crate::{Failure, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a process is told.
#[derive(Debug, Serialize, Deserialize)]
struct Specification {
    graph: GraphName,
    operation: Oo7Operation,
    size: Oo7Size,
    composites: u32,
    seed: u64,
    pool: u64,
    folder: PathBuf,
    /// The cgroup; none if the process is only to build its database.
    group: Option<PathBuf>,
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// The operation cold and warm: seconds, and what was counted meanwhile.
    Done(Vec<(f64, BTreeMap<String, u64>)>),
    /// The contestant does not do the operation, or was only to build its database.
    Nothing,
    /// What failed, and whether it is a count.
    Failed(String, bool),
}

/// How often the operation was done before.
const PHASES: [&str; 2] = ["cold", "warm"];

/// Measures each operation by each contestant, in turn, for so many rounds.
///
/// # Errors
/// Whatever keeps a contestant from doing its work, a count that is wrong, and a system without limits.
pub fn run(run: &RunSettings, settings: &Oo7Settings, limit: u64, reporter: &Reporter) -> Result<()> {
    let folder = run.temporary_folder()?;
    reporter.manifest(&Manifest::collect(folder.path()))?;
    let limited = MemoryLimit::new(folder.path(), limit, swap_bytes(settings))?;
    let specification = |graph, operation, group| Specification {
        graph,
        operation,
        size: settings.size,
        composites: settings.composites,
        seed: run.seed,
        pool: settings.pool,
        folder: folder.path().to_owned(),
        group,
    };
    let mut bytes = Vec::new();
    for graph in &settings.graphs {
        ask(&limited, &specification(*graph, Oo7Operation::T1, None))?;
        let file = std::fs::metadata(folder.path().join(graph.as_str()));
        bytes.push(file.map_or(0, |file| file.len()));
    }
    for operation in &settings.operations {
        let mut measured: Vec<Vec<Vec<_>>> = vec![vec![Vec::new(); PHASES.len()]; settings.graphs.len()];
        for round in 1..=run.rounds {
            for (contestant, graph) in settings.graphs.iter().enumerate() {
                let answer = ask(&limited, &specification(*graph, *operation, Some(limited.group())))?;
                let Answer::Done(phases) = answer else { continue };
                for (phase, (seconds, counts)) in phases.into_iter().enumerate() {
                    reporter.object(&json!({
                        "kind": "round",
                        "workload": "oo7",
                        "operation": operation.as_str(),
                        "engine": graph.as_str(),
                        "phase": PHASES[phase],
                        "round": round,
                        "memory_limit_bytes": limit,
                        "database_bytes": bytes[contestant],
                        "seconds": seconds,
                        "counts": counts,
                    }))?;
                    measured[contestant][phase].push((seconds, counts));
                }
            }
        }
        summarise((settings, limit), *operation, &bytes, &measured, reporter)?;
    }
    Ok(())
}

/// More than all pages of any contestant.
fn swap_bytes(settings: &Oo7Settings) -> u64 {
    /// The objects of an atomic part with its connections, with all that is beside them.
    const PART_BYTES: u64 = 400;
    let composite = u64::from(settings.size.parts()) * PART_BYTES + settings.size.document_bytes() as u64;
    (64 << 20) + 2 * u64::from(settings.composites) * composite
}

type Measured = [Vec<Vec<(f64, BTreeMap<String, u64>)>>];

/// Tells medians, and for each contestant how many times as long as the first one it took.
fn summarise(
    (settings, limit): (&Oo7Settings, u64),
    operation: Oo7Operation,
    bytes: &[u64],
    measured: &Measured,
    reporter: &Reporter,
) -> Result<()> {
    for (phase, phase_name) in PHASES.iter().enumerate() {
        for (contestant, graph) in settings.graphs.iter().enumerate() {
            let rounds = &measured[contestant][phase];
            let Some(seconds) = Spread::of(rounds.iter().map(|(seconds, _)| *seconds)) else { continue };
            let mut counts = BTreeMap::new();
            for name in rounds.iter().flat_map(|(_, counts)| counts.keys()) {
                let values = rounds.iter().map(|(_, counts)| counts.get(name).copied().unwrap_or(0) as f64);
                counts.insert(name.as_str(), Spread::of(values).map_or(0.0, |spread| spread.median));
            }
            let quotients = rounds.iter().zip(&measured[0][phase]).map(|(own, first)| own.0 / first.0);
            let ratio = Spread::of(quotients).map(|ratio| ratio.median);
            reporter.object(&json!({
                "kind": "oo7_limited_summary",
                "operation": operation.as_str(),
                "engine": graph.as_str(),
                "phase": phase_name,
                "memory_limit_bytes": limit,
                "database_bytes": bytes[contestant],
                "seconds": seconds.median,
                "seconds_min": seconds.min,
                "seconds_max": seconds.max,
                "times_first": ratio,
                "counts": counts,
            }))?;
            if !reporter.json {
                let counts: Vec<String> =
                    counts.iter().map(|(name, count)| format!("{name} {count:.0}")).collect();
                println!(
                    "{:<10} {:<11} {phase_name} {:>10.6} s, {:.2} times the first; of {:.1} MiB: {}",
                    operation.as_str(),
                    graph.as_str(),
                    seconds.median,
                    ratio.unwrap_or(1.0),
                    bytes[contestant] as f64 / f64::from(1 << 20),
                    counts.join(", ")
                );
            }
        }
    }
    Ok(())
}

/// Has a process do something.
fn ask(limited: &MemoryLimit, specification: &Specification) -> Result<Answer> {
    let name = specification.graph.as_str();
    let mut child = Command::new(std::env::current_exe()?)
        .arg("oo7-worker")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    limited.set_child(child.id());
    let mut told = serde_json::to_vec(specification)?;
    told.push(b'\n');
    let is_told = child.stdin.take().map_or(Ok(()), |mut input| input.write_all(&told));
    let mut answer = String::new();
    let is_read = match child.stdout.take() {
        Some(output) => std::io::BufReader::new(output).read_line(&mut answer),
        None => Ok(0),
    };
    let ended = limited.wait(&mut child)?;
    is_told?;
    if is_read? == 0 {
        return Err(format!("{name}: its process ended before its time ({ended})").into());
    }
    match serde_json::from_str(&answer)? {
        Answer::Failed(message, false) => Err(format!("{name}: {message}").into()),
        Answer::Failed(message, true) => Err(Failure::Check(format!("{name}: {message}")).into()),
        answer => Ok(answer),
    }
}

/// The process of one contestant: does what it is told in a line, and answers in one.
///
/// # Errors
/// If it is told nothing it understands; what fails later it answers.
pub fn serve(mut input: impl BufRead, mut output: impl Write) -> Result<()> {
    end_with_parent();
    let mut line = String::new();
    input.read_line(&mut line)?;
    let specification: Specification = serde_json::from_str(&line)?;
    let answer = perform(&specification).unwrap_or_else(|error| {
        let is_check = matches!(error.downcast_ref(), Some(Failure::Check(_)));
        Answer::Failed(error.to_string(), is_check)
    });
    serde_json::to_writer(&mut output, &answer)?;
    output.write_all(b"\n")?;
    Ok(output.flush()?)
}

fn perform(told: &Specification) -> Result<Answer> {
    let plan = Plan::new(told.size, told.composites, told.seed);
    let open = prepare(told.graph, &plan, &told.folder)?;
    let Some(group) = &told.group else { return Ok(Answer::Nothing) };
    forget(&told.folder)?;
    enter(group)?;
    let mut turn = open(told.pool)?;
    let mut done = Vec::new();
    // What graphs count goes on from one time to the next.
    let mut before = BTreeMap::new();
    for _ in PHASES {
        let counted_before = counted();
        let Some((seconds, remarks)) = turn(told.operation)? else { return Ok(Answer::Nothing) };
        let mut counts = BTreeMap::new();
        for ((name, now), (_, before)) in counted().into_iter().zip(counted_before) {
            counts.insert(name.to_owned(), now - before);
        }
        for (name, now) in remarks {
            let former = before.insert(name, now).unwrap_or(0);
            counts.insert(name.to_owned(), now - former);
        }
        let peak = std::fs::read_to_string(group.join("memory.max_usage_in_bytes"))?;
        counts.insert("memory_bytes_max".to_owned(), peak.trim().parse()?);
        done.push((seconds, counts));
    }
    Ok(Answer::Done(done))
}

/// Throws what the system has of the files in a folder out of its cache, which is not counted to any limit.
fn forget(folder: &Path) -> Result<()> {
    use std::os::fd::AsRawFd as _;
    for entry in std::fs::read_dir(folder)? {
        let file = std::fs::File::open(entry?.path())?;
        // SAFETY: a system call without pointers.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    }
    Ok(())
}
