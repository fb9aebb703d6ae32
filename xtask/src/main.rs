//! Chores of the workspace: everything that is checked before a change is accepted, and what is made by hand.
//!
//! - [`ci`]: the steps of the test command, in their order;
//! - [`compare`]: two builds of the lab in turns;
//! - [`layers`]: each crate uses only what lies to its left, and modules of a crate form no circles;
//! - [`tidy`]: what compilers do not look at: markers, sizes, documents that no longer follow the code;
//! - [`process`]: running other programs;
//! - [`vm`]: tests in emulated machines.
//!
//! Run as `cargo xtask COMMAND`.
#![forbid(unsafe_code)]

mod ci;
mod compare;
mod layers;
mod metadata;
mod process;
mod tidy;
mod vm;

use std::process::ExitCode;

const HELP: &str = "\
Chores of the Vellum workspace.

Usage: cargo xtask COMMAND

Commands:
  ci                run every check, in order, and stop at the first that fails
  ci --only STEP    run one step, or several with --only repeated
  ci --list         list the steps
  compare BASE      run the lab of a revision and of the working tree in turns (compare --help)
  layers            check that each crate depends only on layers to its left, and that modules form no circles
  layers circles    print the circles of modules that there are, with what makes them
  tidy              check markers, sizes and documents
  sample            write crates/vellum/tests/data/sample-v4.vellum anew (only for a new format version)
  vm test           test the kernel module, and Vellum on it, in emulated machines: a few minutes
  vm test --full    the same at length (--debug: on a kernel that looks for errors; --stress: an hour of
                    lookups and updates; --counts: instructions and TLB shootdowns for each page)
  help              show this

Examples:
  cargo xtask ci
  cargo xtask ci --only clippy --only test
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["ci", options @ ..] => ci::run(options),
        ["compare", "--help" | "-h"] => {
            print!("{}", compare::HELP);
            Ok(())
        }
        ["compare", options @ ..] => compare::compare(options),
        ["layers"] => layers::check(),
        ["layers", "circles"] => layers::print_circles(),
        ["tidy"] => tidy::check(),
        ["sample"] => ci::write_sample(),
        ["vm", "test", options @ ..] => vm::test(options).map(|ended| {
            if let vm::Ended::Skipped(what) = ended {
                eprintln!("xtask: SKIPPED: {what}");
            }
        }),
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        other => Err(format!("there is no command {:?}; see `cargo xtask help`", other.join(" "))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
