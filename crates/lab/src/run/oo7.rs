//! The run of OO7: the contestants in turn, each operation for several rounds, with its count checked.

use crate::config::{GraphName, Named, Oo7Operation, Oo7Settings, RunSettings};
use crate::engines::graphs::image::Image;
use crate::engines::graphs::plan::Plan;
use crate::engines::graphs::texas::{Design, TexasGraph};
use crate::engines::graphs::{Graph, Unsupported, heap::HeapGraph, memory::MemoryGraph};
use crate::measure::machine::Manifest;
use crate::measure::statistics::Spread;
use crate::report::reporter::Reporter;
use crate::workloads::oo7;
use crate::{Failure, Result};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

/// What a contestant does in a turn: its seconds, and what it tells; none if it does not do the operation.
pub type Turn<'p> = Box<dyn FnMut(Oo7Operation) -> Result<Option<(f64, Vec<(&'static str, u64)>)>> + 'p>;

/// Opens a database that was built, with so many bytes of pages in memory.
pub type Open<'p> = Box<dyn FnOnce(u64) -> Result<Turn<'p>> + 'p>;

/// Measures each operation by each contestant, in turn, for so many rounds after one that does not count.
///
/// # Errors
/// Whatever keeps a contestant from doing its work, and a count that is wrong.
pub fn run(run: &RunSettings, settings: &Oo7Settings, reporter: &Reporter) -> Result<()> {
    let folder = run.temporary_folder()?;
    reporter.manifest(&Manifest::collect(folder.path()))?;
    let plan = Plan::new(settings.size, settings.composites, run.seed);
    let mut turns = Vec::new();
    for graph in &settings.graphs {
        turns.push((*graph, prepare(*graph, &plan, folder.path())?(settings.pool)?));
    }
    let mut seconds: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
    for (number, operation) in settings.operations.iter().enumerate() {
        for round in 0..=run.rounds {
            for (contestant, (graph, turn)) in turns.iter_mut().enumerate() {
                let Some((time, remarks)) = turn(*operation)? else { continue };
                if round == 0 {
                    continue;
                }
                seconds.entry((number, contestant)).or_default().push(time);
                let mut object = json!({
                    "kind": "round",
                    "workload": "oo7",
                    "operation": operation.as_str(),
                    "engine": graph.as_str(),
                    "round": round,
                    "seconds": time,
                });
                for (name, value) in remarks {
                    object[name] = value.into();
                }
                reporter.object(&object)?;
            }
        }
    }
    summarise(settings, &seconds, reporter)
}

/// Tells the medians, and for each contestant how many times as long as the first one it took.
fn summarise(
    settings: &Oo7Settings,
    seconds: &BTreeMap<(usize, usize), Vec<f64>>,
    reporter: &Reporter,
) -> Result<()> {
    for (number, operation) in settings.operations.iter().enumerate() {
        for (contestant, graph) in settings.graphs.iter().enumerate() {
            let (own, first) = (seconds.get(&(number, contestant)), seconds.get(&(number, 0)));
            let Some(spread) = own.and_then(|own| Spread::of(own.iter().copied())) else { continue };
            // Of each round by itself: what disturbs one disturbs its neighbour.
            let quotients =
                own.zip(first).map(|(own, first)| own.iter().zip(first).map(|(own, first)| own / first));
            let ratio = quotients.and_then(Spread::of).map(|ratio| ratio.median);
            reporter.object(&json!({
                "kind": "oo7_summary",
                "operation": operation.as_str(),
                "engine": graph.as_str(),
                "seconds": spread.median,
                "seconds_min": spread.min,
                "seconds_max": spread.max,
                "times_first": ratio,
            }))?;
            if !reporter.json {
                let ratio = ratio.map_or_else(String::new, |ratio| format!(", {ratio:.2} times the first"));
                println!(
                    "{:<10} {:<11} {:>12.6} s{ratio}",
                    operation.as_str(),
                    graph.as_str(),
                    spread.median
                );
            }
        }
    }
    Ok(())
}

/// Builds a contestant's database in a folder, unless it is there.
///
/// # Errors
/// Those of the engine.
pub fn prepare<'p>(name: GraphName, plan: &'p Plan, folder: &Path) -> Result<Open<'p>> {
    let file = folder.join(name.as_str());
    let is_new = !file.exists();
    let texas = |design| -> Result<Open<'p>> {
        let file = file.clone();
        if is_new {
            TexasGraph::create(plan, &file)?;
        }
        let image = Image::build(plan).without_pages();
        Ok(Box::new(move |pool| Ok(measured(TexasGraph::open(image, &file, pool, design)?, plan))))
    };
    let heap = |is_ahead| -> Result<Open<'p>> {
        let file = file.clone();
        if is_new {
            HeapGraph::create(plan, &file)?;
        }
        Ok(Box::new(move |pool| Ok(measured(HeapGraph::open(&file, pool, is_ahead)?, plan))))
    };
    match name {
        GraphName::Memory => Ok(Box::new(|_| Ok(measured(MemoryGraph::build(plan), plan)))),
        GraphName::Heap => heap(false),
        GraphName::HeapAhead => heap(true),
        GraphName::Texas => texas(Design::Swap),
        GraphName::TexasUffd => texas(Design::Thread),
        GraphName::TexasFree => texas(Design::Free),
        GraphName::TexasDrop => texas(Design::Drop),
        #[cfg(feature = "sqlite")]
        GraphName::Sqlite => {
            use crate::engines::graphs::sqlite::SqliteGraph;
            if is_new {
                SqliteGraph::create(plan, &file)?;
            }
            Ok(Box::new(move |pool| Ok(measured(SqliteGraph::open(&file, pool)?, plan))))
        }
    }
}

fn measured<'p, G: Graph + 'p>(mut graph: G, plan: &'p Plan) -> Turn<'p> {
    Box::new(move |operation| {
        let begin = Instant::now();
        let count = match oo7::perform(&mut graph, operation, plan) {
            Ok(count) => count,
            Err(error) if error.is::<Unsupported>() => return Ok(None),
            Err(error) => return Err(error),
        };
        let seconds = begin.elapsed().as_secs_f64();
        let expected = oo7::expected(operation, plan);
        if count != expected {
            let what = format!("{} counts {count}, and should count {expected}", operation.as_str());
            return Err(Failure::Check(what).into());
        }
        Ok(Some((seconds, graph.remarks())))
    })
}
