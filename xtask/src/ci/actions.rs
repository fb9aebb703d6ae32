//! What the steps do.

use super::{
    Outcome,
    programs::{self, Kind},
};
use crate::process::{self, cargo, output, run as execute};
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Runs a command as a step.
pub fn done(command: Command) -> Result<Outcome, String> {
    execute(command).map(|()| Outcome::Done)
}

/// Runs every file of `crates/vellum/examples`.
pub fn examples() -> Result<Outcome, String> {
    let programs = programs::build()?;
    let is_one = |kind, package: &str| kind == Kind::Example && package == "vellum";
    let examples: Vec<_> = programs.iter().filter(|one| is_one(one.kind, &one.package)).collect();
    if examples.is_empty() {
        return Err("vellum has no examples".into());
    }
    for example in examples {
        execute(process::program(&example.path))?;
    }
    Ok(Outcome::Done)
}

/// The models have a target folder of their own: the flag changes every crate.
pub fn loom() -> Result<Outcome, String> {
    for (package, filter) in [("vellum-pool", ""), ("vellum-wal", "models"), ("vellum-pmem", "models")] {
        let mut command = cargo(&["test", "--package", package, "--release", "--lib", "--", filter]);
        command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", target().join("loom"));
        // Linking takes longer than it saves.
        command.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
        execute(command)?;
    }
    Ok(Outcome::Done)
}

/// Crashes and models under a scheduler, which have a target folder of their own, too.
pub fn shuttle() -> Result<Outcome, String> {
    const OPTIMISED: [&str; 5] = [
        "test",
        "--config",
        "profile.dev.package.vellum.opt-level=1",
        "--config",
        "profile.dev.package.vellum-objects.opt-level=1",
    ];
    let filters = ["clients::", "heaps::", "schedule::", "planted::", "however_threads_meet"];
    let mut command = cargo(
        &[
            &OPTIMISED[..],
            &["--package", "vellum", "--package", "vellum-txn", "--lib", "--test", "crash", "--"],
            &filters[..],
        ]
        .concat(),
    );
    command.env("RUSTFLAGS", "--cfg shuttle").env("CARGO_TARGET_DIR", target().join("shuttle"));
    // Lines would take longer to write than the tests to run. Schedules are many short steps, which take four times as long where
    // they are not optimised, as they are not elsewhere.
    command.env("CARGO_PROFILE_DEV_DEBUG", "none");
    done(command)
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

pub fn miri() -> Result<Outcome, String> {
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

pub fn lab() -> Result<Outcome, String> {
    let lookup = ["lookup", "--engines", "vellum", "--tuples", "50k", "--seconds", "1", "--rounds", "1"];
    let tpcc =
        ["tpcc", "--warehouses", "1", "--threads", "1,2", "--seconds", "1", "--rounds", "1", "--check"];
    // As the tests build it: nothing is measured here.
    let path = programs::path(&programs::build()?, "lab")?;
    let run = |arguments: &[&str]| {
        let mut command = process::program(&path);
        command.args(arguments);
        execute(command)
    };
    for pool in [["--pool", "64MiB"], ["--pool", "1MiB"]] {
        run(&[&lookup[..], &pool[..]].concat())?;
    }
    let ycsb = ["ycsb", "--records", "20k", "--threads", "2", "--seconds", "0.5", "--rounds", "1", "--check"];
    for pool in [["--pool", "256MiB"], ["--pool", "16MiB"]] {
        run(&[&tpcc[..], &pool[..]].concat())?;
        for workload in [["--workload", "a"], ["--workload", "e"]] {
            run(&[&ycsb[..], &workload[..], &pool[..]].concat())?;
        }
    }
    Ok(Outcome::Done)
}

pub fn tour() -> Result<Outcome, String> {
    let database = target().join("ci-tour.vellum");
    let mut command = process::program(programs::path(&programs::build()?, "vellum")?);
    command.args(["tour", "crates", "--pool", "256KiB", "--database"]).arg(&database);
    execute(command)?;
    std::fs::remove_file(&database)
        .map(|()| Outcome::Done)
        .map_err(|error| format!("the tour should have left {}: {error}", database.display()))
}

/// Writes the sample file that `crates/vellum/tests/it/format.rs` reads.
///
/// # Errors
/// If the test that writes it fails.
pub fn write_sample() -> Result<(), String> {
    execute(cargo(&[
        "test",
        "--package",
        "vellum",
        "--test",
        "it",
        "--",
        "--ignored",
        "--exact",
        "format::write_the_sample",
    ]))
}

pub fn target() -> PathBuf {
    let set = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    process::root().join(set.unwrap_or_else(|| "target".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
