//! The steps of the test command.
//!
//! Cheap checks come first, and the tests of the whole workspace last, so that their results are what one sees at the end.
//! Steps that leave a processor idle, or build in a folder of their own, run beside the others. The first step that fails ends
//! the run and says what to do about it.
//!
//! - [`actions`]: what steps do;
//! - [`programs`]: all tests, examples and programs, built once;
//! - [`suite`]: the test programs, several at a time;
//! - [`beside`]: steps beside the others.

mod actions;
mod beside;
mod programs;
mod suite;

pub use actions::write_sample;

use crate::{layers, process::cargo, tidy, vm};
use beside::Beside;
use std::time::{Duration, Instant};

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
    /// Whether it runs beside the others.
    is_beside: bool,
    action: fn() -> Result<Outcome, String>,
}

const STEPS: &[Step] = &[
    Step {
        name: "format",
        about: "the code is formatted",
        cure: "run `cargo fmt --all`",
        is_beside: false,
        action: || actions::done(cargo(&["fmt", "--all", "--check"])),
    },
    Step {
        name: "layers",
        about: "each crate depends only on layers to its left, and its modules form no circles",
        cure: "move the code to the layer or module that may use it; HACKING.md says what a circle is",
        is_beside: false,
        action: || layers::check().map(|()| Outcome::Done),
    },
    Step {
        name: "tidy",
        about: "no leftover markers, no oversized files, documents that follow the code",
        cure: "each line above names a place and what it lacks",
        is_beside: false,
        action: || tidy::check().map(|()| Outcome::Done),
    },
    Step {
        name: "clippy",
        about: "no warnings in any target of any crate",
        cure: "fix the warnings; `cargo clippy --fix` does some of it",
        is_beside: false,
        action: || actions::done(cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])),
    },
    Step {
        name: "build",
        about: "tests, examples and programs are built, once for all steps",
        cure: "fix what the compiler says; `cargo test --workspace --no-run` builds the same",
        is_beside: false,
        action: || programs::build().map(|_| Outcome::Done),
    },
    Step {
        name: "docs",
        about: "the documentation builds without warnings",
        cure: "fix the links and examples that rustdoc names",
        is_beside: false,
        action: || {
            let mut command = cargo(&["doc", "--workspace", "--no-deps"]);
            command.env("RUSTDOCFLAGS", "-D warnings");
            actions::done(command)
        },
    },
    Step {
        name: "examples",
        about: "every example runs",
        cure: "run the example that failed by `cargo run -p vellum --example NAME`",
        is_beside: false,
        action: actions::examples,
    },
    Step {
        name: "lab",
        about: "short runs of the lab: lookups, TPC-C and YCSB, in and beyond memory",
        cure: "run the command above by hand; `cargo lab --help` explains its options",
        is_beside: false,
        action: actions::lab,
    },
    Step {
        name: "tour",
        about: "a tour over the sources of this workspace",
        cure: "run the command above by hand; `cargo run --release -- tour --help` explains its options",
        is_beside: false,
        action: actions::tour,
    },
    Step {
        name: "test",
        about: "unit tests, integration tests and documentation examples of every crate",
        cure: "the test's name is above; run it alone by `cargo test -p CRATE NAME`",
        is_beside: false,
        action: || suite::run(programs::build()?).map(|()| Outcome::Done),
    },
    Step {
        name: "vm",
        about: "the kernel module, and Vellum on it, in emulated machines",
        cure: "the test's name is above; `cargo xtask vm test` runs them alone, kernel/README.md explains them",
        is_beside: true,
        action: || {
            Ok(match vm::test(&[])? {
                vm::Ended::Passed => Outcome::Done,
                vm::Ended::Skipped(what) => Outcome::Skipped(what),
            })
        },
    },
    Step {
        name: "loom",
        about: "latches, parking lot, resident set, admission of changes, buffer of the log, locks of persistent pages, in every interleaving of a few threads",
        cure: "see HACKING.md on loom: LOOM_LOG=trace LOOM_LOCATION=1 show the interleaving",
        is_beside: true,
        action: actions::loom,
    },
    Step {
        name: "shuttle",
        about: "databases that crash, all of whose threads run in an order that the seed fixes",
        cure: "the seed is above; HACKING.md on shuttle says how to run it again",
        is_beside: true,
        action: actions::shuttle,
    },
    Step {
        name: "miri",
        about: "node layout, page headers, state words and what lies in persistent memory under the interpreter, which finds undefined behaviour",
        cure: "run `cargo +nightly miri test -p vellum-access --lib node` for the whole report",
        is_beside: true,
        action: actions::miri,
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
            option @ ("--only" | beside::OPTION) => {
                let name = rest
                    .next()
                    .ok_or_else(|| format!("{option} needs the name of a step; --list shows them"))?;
                let step = STEPS.iter().find(|step| step.name == *name);
                let step = step.ok_or_else(|| format!("there is no step {name:?}; --list shows them"))?;
                if option == beside::OPTION {
                    return run_beside(step);
                }
                chosen.push(step);
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
    let is_beside = |step: &&&Step| step.is_beside && steps.len() > 1;
    let names: Vec<_> = steps.iter().filter(is_beside).map(|step| step.name).collect();
    let logs = actions::target().join("ci");
    if !names.is_empty() {
        println!("== beside the others: {}; they write to {} meanwhile", names.join(", "), logs.display());
    }
    let mut beside = Beside::start(names, move |name| beside::run(name, &logs));
    let mut summary = Vec::new();
    let mut number = 0;
    let mut header = |step: &Step| {
        number += 1;
        println!("== [{number}/{}] {}: {}", steps.len(), step.name, step.about);
    };
    for step in steps.iter().filter(|step| !is_beside(step)) {
        header(step);
        summary.push(run_step(step)?);
        while let Some(ended) = beside.poll() {
            summary.push(show(steps, ended, &mut header)?);
        }
    }
    while let Some(ended) = beside.wait() {
        summary.push(show(steps, ended, &mut header)?);
    }
    println!("== all {} steps passed in {}", steps.len(), seconds(begun.elapsed()));
    summary.iter().for_each(|line| println!("{line}"));
    Ok(())
}

/// Runs a step, and gives its line of the summary.
fn run_step(step: &Step) -> Result<String, String> {
    let start = Instant::now();
    let outcome = (step.action)().map_err(|problem| failure(step, &problem))?;
    let took = seconds(start.elapsed());
    Ok(match outcome {
        Outcome::Done => format!("   {:<10}{took:>9}  ok", step.name),
        Outcome::Skipped(why) => format!("   {:<10}{took:>9}  skipped: {why}", step.name),
    })
}

/// Prints what a step has printed that ran beside the others, and gives its line of the summary, which was the last.
fn show(
    steps: &[&Step],
    (name, outcome): beside::Ended,
    mut header: impl FnMut(&Step),
) -> Result<String, String> {
    let step = steps.iter().find(|step| step.name == name).ok_or("a step without a name has ended")?;
    header(step);
    let printed = outcome.map_err(|problem| failure(step, &problem))?;
    let (text, line) = printed.trim_end().rsplit_once('\n').unwrap_or(("", printed.trim_end()));
    println!("{text}");
    Ok(format!("{line}, beside the others"))
}

fn failure(step: &Step, problem: &str) -> String {
    format!("{problem}\nstep {} failed: {}", step.name, step.cure)
}

/// Runs a step in this process, which another one of this program has started for that.
fn run_beside(step: &Step) -> Result<(), String> {
    beside::end_with_parent();
    println!("{}", run_step(step)?);
    Ok(())
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
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
    fn unknown_steps_and_options_are_refused() {
        assert!(run(&["--only", "nonsense"]).unwrap_err().contains("nonsense"));
        assert!(run(&["--only"]).is_err());
        assert!(run(&["--fast"]).is_err());
    }

    #[test]
    fn the_first_failure_ends_the_run_and_says_what_to_do() {
        let ok = Step { name: "a", about: "", cure: "", is_beside: false, action: || Ok(Outcome::Done) };
        let bad =
            Step { name: "b", about: "", cure: "do this", is_beside: false, action: || Err("broken".into()) };
        let never =
            Step { name: "c", about: "", cure: "", is_beside: false, action: || panic!("must not run") };
        let message = run_steps(&[&ok, &bad, &never]).unwrap_err();
        assert!(message.contains("broken") && message.contains("do this"), "{message}");
        assert!(run_steps(&[&ok]).is_ok());
    }
}
