//! The steps of the test command.
//!
//! Cheap checks come first, what builds in other ways next, and the tests of the whole workspace last, so
//! that their results are what one sees at the end. The first step that fails ends the run and says what to
//! do about it.

use crate::{
    layers,
    process::{self, cargo, output, run as execute},
    tidy, vm,
};
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// How a step ended, if it did not fail.
enum Outcome {
    Done,
    /// It could not be run here; why.
    Skipped(String),
}

struct Step {
    name: &'static str,
    about: &'static str,
    /// What to do if it fails.
    cure: &'static str,
    action: fn() -> Result<Outcome, String>,
}

const STEPS: &[Step] = &[
    Step {
        name: "format",
        about: "the code is formatted",
        cure: "run `cargo fmt --all`",
        action: || done(cargo(&["fmt", "--all", "--check"])),
    },
    Step {
        name: "layers",
        about: "each crate depends only on layers to its left, and its modules form no circles",
        cure: "move the code to the layer or module that may use it; HACKING.md says what a circle is",
        action: || layers::check().map(|()| Outcome::Done),
    },
    Step {
        name: "tidy",
        about: "no leftover markers, no oversized files, documents that follow the code",
        cure: "each line above names a place and what it lacks",
        action: || tidy::check().map(|()| Outcome::Done),
    },
    Step {
        name: "clippy",
        about: "no warnings in any target of any crate",
        cure: "fix the warnings; `cargo clippy --fix` does some of it",
        action: || done(cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])),
    },
    Step {
        name: "docs",
        about: "the documentation builds without warnings",
        cure: "fix the links and examples that rustdoc names",
        action: || {
            let mut command = cargo(&["doc", "--workspace", "--no-deps"]);
            command.env("RUSTDOCFLAGS", "-D warnings");
            done(command)
        },
    },
    Step {
        name: "examples",
        about: "every example runs",
        cure: "run the example that failed by `cargo run -p vellum --example NAME`",
        action: examples,
    },
    Step {
        name: "loom",
        about: "latches, parking lot, resident set, buffer of the log, locks of persistent pages, in every interleaving of a few threads",
        cure: "see HACKING.md on loom: LOOM_LOG=trace LOOM_LOCATION=1 show the interleaving",
        action: loom,
    },
    Step {
        name: "miri",
        about: "node layout, page headers, state words and what lies in persistent memory under the interpreter, which finds undefined behaviour",
        cure: "run `cargo +nightly miri test -p vellum-access --lib node` for the whole report",
        action: miri,
    },
    Step {
        name: "vm",
        about: "the kernel module, and Vellum on it, in emulated machines",
        cure: "the test's name is above; `cargo xtask vm test` runs them alone, kernel/README.md explains them",
        action: || {
            Ok(match vm::test(&[])? {
                vm::Ended::Passed => Outcome::Done,
                vm::Ended::Skipped(what) => Outcome::Skipped(what),
            })
        },
    },
    Step {
        name: "lab",
        about: "short runs of the lab: lookups, TPC-C and YCSB, in and beyond memory",
        cure: "run the command above by hand; `cargo lab --help` explains its options",
        action: lab,
    },
    Step {
        name: "tour",
        about: "a tour over the sources of this workspace",
        cure: "run the command above by hand; `cargo run --release -- tour --help` explains its options",
        action: tour,
    },
    Step {
        name: "test",
        about: "unit tests, integration tests and documentation examples of every crate",
        cure: "the test's name is above; run it alone by `cargo test -p CRATE NAME`",
        action: || done(cargo(&["test", "--workspace"])),
    },
];

/// Runs all steps, or those asked for.
///
/// # Errors
/// If a step fails, or the options make no sense.
pub fn run(options: &[&str]) -> Result<(), String> {
    let mut chosen = Vec::new();
    let mut rest = options.iter();
    while let Some(option) = rest.next() {
        match *option {
            "--list" => return list(),
            "--only" => {
                let name = rest.next().ok_or("--only needs the name of a step; --list shows them")?;
                let step = STEPS.iter().find(|step| step.name == *name);
                chosen.push(step.ok_or_else(|| format!("there is no step {name:?}; --list shows them"))?);
            }
            other => return Err(format!("unknown option {other:?}; see `cargo xtask help`")),
        }
    }
    if chosen.is_empty() {
        chosen.extend(STEPS);
    }
    run_steps(&chosen)
}

fn list() -> Result<(), String> {
    for step in STEPS {
        println!("{:<10}{}", step.name, step.about);
    }
    Ok(())
}

fn run_steps(steps: &[&Step]) -> Result<(), String> {
    let begun = Instant::now();
    let mut summary = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        println!("== [{}/{}] {}: {}", index + 1, steps.len(), step.name, step.about);
        let start = Instant::now();
        let outcome = (step.action)()
            .map_err(|problem| format!("{problem}\nstep {} failed: {}", step.name, step.cure))?;
        let took = seconds(start.elapsed());
        summary.push(match outcome {
            Outcome::Done => format!("   {:<10}{took:>9}  ok", step.name),
            Outcome::Skipped(why) => format!("   {:<10}{took:>9}  skipped: {why}", step.name),
        });
    }
    println!("== all {} steps passed in {}", steps.len(), seconds(begun.elapsed()));
    summary.iter().for_each(|line| println!("{line}"));
    Ok(())
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

fn done(command: Command) -> Result<Outcome, String> {
    execute(command).map(|()| Outcome::Done)
}

/// Runs every file of `crates/vellum/examples`.
fn examples() -> Result<Outcome, String> {
    let folder = process::root().join("crates/vellum/examples");
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".rs")?.to_owned()))
        .collect();
    names.sort();
    if names.is_empty() {
        return Err(format!("there are no examples in {}", folder.display()));
    }
    for name in names {
        execute(cargo(&["run", "--quiet", "--package", "vellum", "--example", &name]))?;
    }
    Ok(Outcome::Done)
}

/// The models have a target folder of their own: the flag changes every crate.
fn loom() -> Result<Outcome, String> {
    for (package, filter) in [("vellum-pool", ""), ("vellum-wal", "models"), ("vellum-pmem", "models")] {
        let mut command = cargo(&["test", "--package", package, "--release", "--lib", "--", filter]);
        command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", target().join("loom"));
        // Linking takes longer than it saves.
        command.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
        execute(command)?;
    }
    Ok(Outcome::Done)
}

/// Tests of nodes that the interpreter runs in seconds; the others look at so many inputs that it would take
/// minutes for each.
const NODE_TESTS_FOR_MIRI: &[&str] = &[
    "a_leaf_without_room_stays_as_it_was",
    "a_separator_sends_the_keys_beyond_it_to_the_right",
    "a_split_that_does_not_fit_is_refused",
    "a_value_grows_into_holes",
    "heads_are_those_of_a_padded_key",
    "malformed_slots_are_noticed",
    "overlapping_records_are_noticed",
    "records_outside_the_heap_are_noticed",
];

/// Modules of the store for persistent memory whose tests the interpreter runs in seconds; the others map files, or look at
/// so many states that it would take minutes for each.
const PMEM_MODULES_FOR_MIRI: &[&str] =
    &["lock::", "blocks::", "memory::", "layout::", "superblock::", "update::", "options::", "format::"];

fn miri() -> Result<Outcome, String> {
    let skipped = || {
        let cure = "rustup toolchain install nightly --component miri,rust-src";
        Ok(Outcome::Skipped(format!("no Miri here; `{cure}` installs it")))
    };
    let mut sysroot = Command::new("rustc");
    sysroot.args(["+nightly", "--print", "sysroot"]).env_remove("RUSTUP_TOOLCHAIN");
    let Ok(sysroot) = output(sysroot) else { return skipped() };
    // Without the sources of the standard library Miri would ask, and wait for an answer.
    let has_sources = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library").exists();
    if !has_sources || output(miri_command(&["--version"])).is_err() {
        return skipped();
    }
    let test = |package: &str, options: &[&str]| {
        let start = ["test", "--package", package, "--lib", "--"];
        execute(miri_command(&[&start[..], options].concat()))
    };
    test("vellum-base", &["--skip", "every_flipped_bit_is_noticed"])?;
    test("vellum-pool", &["state::"])?;
    test("vellum-access", NODE_TESTS_FOR_MIRI)?;
    test("vellum-pmem", PMEM_MODULES_FOR_MIRI)?;
    Ok(Outcome::Done)
}

/// Miri of the nightly toolchain, which rustup's cargo chooses and not the one that runs this program.
fn miri_command(arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.arg("+nightly").arg("miri").args(arguments).current_dir(process::root()).stdin(Stdio::null());
    command.env_remove("RUSTUP_TOOLCHAIN").env("CARGO_TARGET_DIR", target().join("miri"));
    command
}

fn lab() -> Result<Outcome, String> {
    let lookup = ["lookup", "--engines", "vellum", "--tuples", "50k", "--seconds", "1", "--rounds", "1"];
    let tpcc =
        ["tpcc", "--warehouses", "1", "--threads", "1,2", "--seconds", "1", "--rounds", "1", "--check"];
    // As the tests build it: nothing is measured here.
    let start = ["run", "--quiet", "--package", "vellum-lab", "--bin", "lab", "--"];
    for pool in [["--pool", "64MiB"], ["--pool", "1MiB"]] {
        execute(cargo(&[&start[..], &lookup[..], &pool[..]].concat()))?;
    }
    let ycsb = ["ycsb", "--records", "20k", "--threads", "2", "--seconds", "0.5", "--rounds", "1", "--check"];
    for pool in [["--pool", "256MiB"], ["--pool", "16MiB"]] {
        execute(cargo(&[&start[..], &tpcc[..], &pool[..]].concat()))?;
        for workload in [["--workload", "a"], ["--workload", "e"]] {
            execute(cargo(&[&start[..], &ycsb[..], &workload[..], &pool[..]].concat()))?;
        }
    }
    Ok(Outcome::Done)
}

fn tour() -> Result<Outcome, String> {
    let database = target().join("ci-tour.vellum");
    let mut command = cargo(&["run", "--quiet", "--", "tour", "crates", "--pool", "256KiB"]);
    command.arg("--database").arg(&database);
    execute(command)?;
    std::fs::remove_file(&database)
        .map(|()| Outcome::Done)
        .map_err(|error| format!("the tour should have left {}: {error}", database.display()))
}

/// Writes the sample file that `crates/vellum/tests/format.rs` reads.
///
/// # Errors
/// If the test that writes it fails.
pub fn write_sample() -> Result<(), String> {
    execute(cargo(&[
        "test",
        "--package",
        "vellum",
        "--test",
        "format",
        "--",
        "--ignored",
        "--exact",
        "write_the_sample",
    ]))
}

fn target() -> PathBuf {
    let set = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    process::root().join(set.unwrap_or_else(|| "target".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_names_of_their_own() {
        let mut names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), STEPS.len());
    }

    #[test]
    fn what_the_interpreter_runs_exists() {
        let tests = std::fs::read_to_string(process::root().join("crates/access/src/node/tests.rs")).unwrap();
        for name in NODE_TESTS_FOR_MIRI {
            assert!(tests.contains(&format!("fn {name}()")), "{name}");
        }
        let modules = process::root().join("crates/pmem/src");
        for name in PMEM_MODULES_FOR_MIRI {
            let name = name.trim_end_matches("::");
            let files = match std::fs::read_dir(modules.join(name)) {
                Ok(files) => files.map(|file| file.unwrap().path()).collect(),
                Err(_) => vec![modules.join(format!("{name}.rs"))],
            };
            let has_tests = |file: &PathBuf| std::fs::read_to_string(file).unwrap().contains("#[test]");
            assert!(files.iter().any(has_tests), "{name}");
        }
    }

    #[test]
    fn unknown_steps_and_options_are_refused() {
        assert!(run(&["--only", "nonsense"]).unwrap_err().contains("nonsense"));
        assert!(run(&["--only"]).is_err());
        assert!(run(&["--fast"]).is_err());
    }

    #[test]
    fn the_first_failure_ends_the_run_and_says_what_to_do() {
        let ok = Step { name: "a", about: "", cure: "", action: || Ok(Outcome::Done) };
        let bad = Step { name: "b", about: "", cure: "do this", action: || Err("broken".into()) };
        let never = Step { name: "c", about: "", cure: "", action: || panic!("must not run") };
        let message = run_steps(&[&ok, &bad, &never]).unwrap_err();
        assert!(message.contains("broken") && message.contains("do this"), "{message}");
        assert!(run_steps(&[&ok]).is_ok());
    }
}
