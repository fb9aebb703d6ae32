//! Two builds of the lab in turns: whether a change made anything slower.
//!
//! Each row of [`ROWS`] is a command of the lab. It is run with both builds alternately, and the build that begins
//! changes from pair to pair, so that a machine that becomes slower or faster with time favours neither. What counts is
//! the median of the ratios pair by pair; the figures themselves differ from day to day.

use crate::process::{cargo, output, root, run};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

/// A figure that falls by more than this is named at the end.
const LOSS_MAX: f64 = 0.03;

/// The rows of `docs/performance.md` that a change of the engine may make slower, with the arguments of the lab.
const ROWS: &[(&str, &str)] = &[
    ("get", "lookup --engines vellum --tuples 10M --pool 6GiB --threads 1,2 --rounds 2"),
    ("multi_get", "lookup --engines vellum --tuples 10M --pool 6GiB --batch 64 --rounds 2"),
    ("insert-sequential", "insert --engines vellum --tuples 10M --pool 6GiB --order sequential --rounds 2"),
    ("insert-random", "insert --engines vellum --tuples 10M --pool 6GiB --order random --rounds 1"),
    ("insert-bulk", "insert --engines vellum --tuples 10M --pool 6GiB --order bulk --rounds 2"),
    ("tpcc", "tpcc --engines vellum --warehouses 4 --threads 1,2 --rounds 2"),
    ("ycsb-c", "ycsb --engines vellum --workload c --records 500k --rounds 2"),
    ("ycsb-e", "ycsb --engines vellum --workload e --records 500k --rounds 2"),
    ("get-beyond-memory", "lookup --engines vellum --tuples 10M --pool 176MiB --rounds 2"),
    ("multi_get-beyond-memory", "lookup --engines vellum --tuples 10M --pool 176MiB --batch 256 --rounds 2"),
    ("scan", "scan --engines vellum --tuples 10M --pool 6GiB --rounds 2"),
    ("scan-beyond-memory", "scan --engines vellum --tuples 10M --pool 176MiB --rounds 2"),
];

pub const HELP: &str = "\
Runs two builds of the lab in turns and prints, row by row, the median of their ratios.

Usage: cargo xtask compare BASE [HEAD] [OPTIONS]

BASE and HEAD are revisions, or paths of programs that were built before; HEAD is the working tree if it is left out.

Options:
  --pairs N     how many pairs of runs a row has (4)
  --row NAME    only this row; may be repeated (--list names them)
  --csv FILE    append each figure to a table of docs/results/
  --list        print the rows and their commands
";

struct Options<'a> {
    builds: Vec<&'a str>,
    pairs: usize,
    rows: Vec<&'a str>,
    csv: Option<&'a str>,
}

/// Compares two builds.
///
/// # Errors
/// If the arguments are not as [`HELP`] says, or a build or a run fails; also if a row became slower by more than
/// [`LOSS_MAX`].
pub fn compare(arguments: &[&str]) -> Result<(), String> {
    if arguments.contains(&"--list") {
        ROWS.iter().for_each(|(name, command)| println!("{name:24} lab {command}"));
        return Ok(());
    }
    let options = parse(arguments)?;
    let base = program(options.builds.first().ok_or("say what to compare with; see --help")?)?;
    let head = program(options.builds.get(1).copied().unwrap_or_default())?;
    let mut slower = Vec::new();
    for (name, command) in ROWS {
        if !options.rows.is_empty() && !options.rows.contains(name) {
            continue;
        }
        println!("{name}: lab {command}");
        let mut figures: BTreeMap<u64, Vec<[f64; 2]>> = BTreeMap::new();
        for pair in 0..options.pairs {
            let mut both = [BTreeMap::new(), BTreeMap::new()];
            for turn in 0..2 {
                let side = (pair + turn) % 2;
                both[side] = measure([&base, &head][side], command)?;
            }
            let [before, after] = both;
            for (threads, before) in before {
                let after = after.get(&threads).ok_or("the builds measured different numbers of threads")?;
                figures.entry(threads).or_default().push([before, *after]);
            }
        }
        for (threads, pairs) in &figures {
            let ratio = report(*threads, pairs);
            if ratio < 1.0 - LOSS_MAX {
                slower.push(format!("{name} with {threads} thread(s) at {:.1} %", ratio * 100.0));
            }
        }
        if let Some(file) = options.csv {
            append(Path::new(file), command, &options.builds, &figures)?;
        }
    }
    if slower.is_empty() { Ok(()) } else { Err(format!("slower: {}", slower.join(", "))) }
}

fn parse<'a>(arguments: &[&'a str]) -> Result<Options<'a>, String> {
    let mut options = Options { builds: Vec::new(), pairs: 4, rows: Vec::new(), csv: None };
    let mut rest = arguments.iter().copied();
    while let Some(word) = rest.next() {
        let mut value = || rest.next().ok_or(format!("{word} needs a value"));
        match word {
            "--pairs" => options.pairs = value()?.parse().map_err(|_| "--pairs needs a number".to_owned())?,
            "--row" => options.rows.push(value()?),
            "--csv" => options.csv = Some(value()?),
            _ if word.starts_with('-') => return Err(format!("there is no option {word}\n\n{HELP}")),
            _ => options.builds.push(word),
        }
    }
    if let Some(row) = options.rows.iter().find(|row| ROWS.iter().all(|(name, _)| name != *row)) {
        return Err(format!("there is no row {row:?}; --list names them"));
    }
    if options.pairs == 0 || options.builds.len() > 2 {
        return Err(format!("one or two builds, and at least one pair\n\n{HELP}"));
    }
    Ok(options)
}

/// The lab of a revision, which is built if need be; of the working tree for an empty name.
fn program(build: &str) -> Result<PathBuf, String> {
    if !build.is_empty() && Path::new(build).is_file() {
        return Ok(build.into());
    }
    let target = root().join("target/compare");
    let mut command = cargo(&["build", "--release", "--package", "vellum-lab", "--bin", "lab"]);
    let kept = if build.is_empty() {
        target.join("lab-working-tree")
    } else {
        let tree = target.join("tree");
        let tree = tree.to_str().ok_or("the path of the workspace is not text")?;
        let git = |words: &[&str]| {
            let mut command = Command::new("git");
            command.args(words).current_dir(root());
            output(command)
        };
        let commit = git(&["rev-parse", "--short", &format!("{build}^{{commit}}")])?;
        let kept = target.join(format!("lab-{}", commit.trim()));
        if kept.is_file() {
            return Ok(kept);
        }
        git(&["worktree", "add", "--force", "--detach", tree, commit.trim()])?;
        command.current_dir(tree);
        kept
    };
    command.arg("--target-dir").arg(target.join("target"));
    let built = run(command).and_then(|()| {
        let from = target.join("target/release/lab");
        std::fs::copy(&from, &kept).map_err(|error| format!("cannot copy {}: {error}", from.display()))
    });
    if !build.is_empty() {
        let mut command = Command::new("git");
        command.args(["worktree", "remove", "--force"]).arg(target.join("tree")).current_dir(root());
        output(command)?;
    }
    built.map(|_| kept)
}

/// The operations a second that a run measured, by the number of threads.
fn measure(lab: &Path, command: &str) -> Result<BTreeMap<u64, f64>, String> {
    let mut run = Command::new(lab);
    run.args(command.split_whitespace()).arg("--json");
    let lines = output(run)?;
    let summaries = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let figures: BTreeMap<_, _> = summaries
        .filter(|line| line["kind"] == "summary")
        .filter_map(|line| Some((line["threads"].as_u64().unwrap_or(1), line["ops_per_second"].as_f64()?)))
        .collect();
    if figures.is_empty() { Err(format!("lab {command} measured nothing")) } else { Ok(figures) }
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    if numbers.len() % 2 == 1 { numbers[middle] } else { (numbers[middle - 1] + numbers[middle]) / 2.0 }
}

/// Prints what came of a row, and returns the median of the ratios.
fn report(threads: u64, pairs: &[[f64; 2]]) -> f64 {
    let ratio = median(pairs.iter().map(|[before, after]| after / before).collect());
    let [before, after] = [0, 1].map(|side| median(pairs.iter().map(|pair| pair[side]).collect()));
    let mut each = String::new();
    for [before, after] in pairs {
        let _ = write!(each, " {:.1}", after / before * 100.0);
    }
    println!(
        "   {threads} thread(s): {:.1} % ({before:.0} to {after:.0} a second; pairs{each})",
        ratio * 100.0
    );
    ratio
}

/// Appends each run to a table.
fn append(
    file: &Path,
    command: &str,
    builds: &[&str],
    figures: &BTreeMap<u64, Vec<[f64; 2]>>,
) -> Result<(), String> {
    let mut date = Command::new("date");
    date.args(["-u", "+%F"]);
    let date = output(date)?;
    let mut text = std::fs::read_to_string(file).unwrap_or_default();
    if text.is_empty() {
        text.push_str("date,machine,commit,command,contender,metric,value,unit\n");
    }
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let cpu = cpu.trim_start_matches([' ', '\t', ':']);
    let names =
        [builds.first().copied().unwrap_or_default(), builds.get(1).copied().unwrap_or("working tree")];
    for (threads, pairs) in figures {
        for (number, pair) in pairs.iter().enumerate() {
            for ((name, side), value) in names.iter().zip(["before", "after"]).zip(pair) {
                let name = Path::new(name).file_name().unwrap_or_default().to_string_lossy();
                let _ = writeln!(
                    text,
                    "{},{cpu},{name},\"lab {command}\",{side},\"{threads} thread(s), pair {}\",{value:.0},1/s",
                    date.trim(),
                    number + 1
                );
            }
        }
    }
    std::fs::write(file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_ratios() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(report(1, &[[100.0, 90.0], [200.0, 220.0], [10.0, 10.0]]), 1.0);
    }

    #[test]
    fn arguments() {
        let options = parse(&["HEAD~1", "--pairs", "2", "--row", "get", "--row", "tpcc"]).unwrap();
        assert_eq!((options.builds, options.pairs, options.rows), (vec!["HEAD~1"], 2, vec!["get", "tpcc"]));
        for wrong in
            [&["--row", "nothing"][..], &["--pairs"], &["--pairs", "0"], &["a", "b", "c"], &["--fast"]]
        {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
