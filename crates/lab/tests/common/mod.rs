//! How tests run the lab as a user would, and what holds for all that it prints.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// The fields of a summary, in their order.
const SUMMARY_FIELDS: [&str; 22] = [
    "kind",
    "workload",
    "engine",
    "threads",
    "clients",
    "tuples",
    "pool_bytes",
    "rounds",
    "ops_per_second",
    "ops_per_second_min",
    "ops_per_second_max",
    "p50_ns",
    "p99_ns",
    "p999_ns",
    "p9999_ns",
    "load_seconds",
    "resident_bytes_max",
    "bytes_read",
    "bytes_written",
    "line_ns",
    "line_ns_min",
    "line_ns_max",
];

pub fn lab(directory: &Path, line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    command.args(line.split_ascii_whitespace()).arg("--dir").arg(directory);
    command.output().unwrap()
}

/// Runs with `--json` and gives the objects, after the checks that hold for all runs.
pub fn objects(directory: &Path, line: &str) -> Vec<(String, Value)> {
    let output = lab(directory, &format!("{line} --json"));
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let objects: Vec<(String, Value)> =
        text.lines().map(|line| (line.to_owned(), serde_json::from_str(line).unwrap())).collect();
    assert_eq!(objects[0].1["kind"], "manifest");
    objects
}

/// Checks the summaries and the rounds of a run, given its engines and the threads of each load.
pub fn check_run(
    objects: &[(String, Value)],
    workload: &str,
    engines: &[&str],
    threads: &[u64],
    rounds: u64,
) {
    let of_kind = |kind: &str| objects.iter().filter(|(_, o)| o["kind"] == kind).collect::<Vec<_>>();
    let summaries = of_kind("summary");
    assert_eq!(summaries.len(), engines.len() * threads.len());
    assert_eq!(of_kind("round").len() as u64, rounds * summaries.len() as u64);
    assert_eq!(
        of_kind("ratio").len(),
        (engines.len() - 1) * threads.len() + engines.len() * (threads.len() - 1)
    );
    for (place, (text, summary)) in summaries.iter().enumerate() {
        assert_eq!(summary["workload"], workload);
        assert_eq!(summary["engine"], engines[place / threads.len()]);
        assert_eq!(summary["threads"], threads[place % threads.len()]);
        assert_eq!(summary["rounds"], rounds);
        let places: Vec<usize> =
            SUMMARY_FIELDS.iter().map(|field| text.find(&format!("\"{field}\":")).expect(field)).collect();
        assert!(places.is_sorted(), "the fields are out of order: {text}");
        assert_eq!(summary.as_object().unwrap().len(), SUMMARY_FIELDS.len());
        let number = |field: &str| summary[field].as_f64().unwrap_or_else(|| panic!("{field}: {text}"));
        assert!(number("ops_per_second_min") > 0.0);
        assert!(number("ops_per_second_min") <= number("ops_per_second"));
        assert!(number("ops_per_second") <= number("ops_per_second_max"));
        assert!(number("p50_ns") > 0.0 && number("p50_ns") <= number("p99_ns"));
        assert!(number("p99_ns") <= number("p999_ns") && number("p999_ns") <= number("p9999_ns"));
        // Engines of single records have no pool.
        let has_pool = !RECORD_ENGINES.contains(&engines[place / threads.len()]);
        assert!(number("tuples") > 0.0 && (number("pool_bytes") > 0.0) == has_pool);
        assert!(number("resident_bytes_max") > 1e6 && number("load_seconds") >= 0.0);
        assert!(number("bytes_read") >= 0.0 && number("bytes_written") >= 0.0);
        // Of one thread there is none; nor on a machine of one processor.
        let has_line = summary["threads"] != 1 && std::thread::available_parallelism().unwrap().get() > 1;
        assert_eq!(summary["line_ns"].is_number(), has_line, "{text}");
        assert!(!has_line || number("line_ns_min") <= number("line_ns_max"));
    }
    // The last line of each engine, and of the run, is a summary.
    for engine in engines {
        let last = objects.iter().rfind(|(_, object)| object["engine"] == *engine).unwrap();
        assert_eq!(last.1["kind"], "summary");
    }
    assert_eq!(objects.last().unwrap().1["kind"], "summary");
}

/// Engines of single records that are always built in.
pub const RECORD_ENGINES: [&str; 4] = ["pmem", "pmem_variable", "dashmap", "papaya"];

/// The texts of the remarks.
pub fn notes(objects: &[(String, Value)]) -> Vec<&str> {
    objects.iter().filter(|(_, o)| o["kind"] == "note").map(|(_, o)| o["text"].as_str().unwrap()).collect()
}
