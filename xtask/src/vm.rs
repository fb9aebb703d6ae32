//! Tests that need a kernel of their own: the module `kernel/exmap`, and Vellum on it, in emulated machines.
//!
//! The scripts in `kernel/` do the work; each can be run by hand. What they fetch and build stays in
//! `target/kernel`, so that only the first run takes long. They need QEMU and some small tools, and at the first
//! run Debian's package archive; without those they say so and end with a status of their own, which is no
//! failure.

use crate::process;
use std::process::Command;

/// The status by which the scripts say that they tested nothing.
const SKIPPED: i32 = 77;

/// A script under `kernel/`, and its arguments.
type Script = &'static [&'static str];

/// The kinds of runs: what to add to `cargo xtask vm test`, and the scripts.
const RUNS: &[(&str, &[Script])] = &[
    ("", &[&["test.sh", "short"], &["vellum/test.sh", "short", "6.12"]]),
    (
        "--full",
        &[&["test.sh", "full"], &["vellum/test.sh", "full", "6.1"], &["vellum/test.sh", "full", "6.12"]],
    ),
    ("--counts", &[&["test.sh", "counts", "6.12"], &["vellum/test.sh", "counts", "6.12"]]),
    ("--stress", &[&["vellum/test.sh", "stress", "6.12"]]),
    ("--debug", &[&["test.sh", "debug"]]),
];

/// How a run ended, if it did not fail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    /// Everything passed.
    Passed,
    /// A script tested nothing; which.
    Skipped(String),
}

/// Runs the tests that the options ask for.
///
/// # Errors
/// If a test fails, or the options make no sense.
pub fn test(options: &[&str]) -> Result<Ended, String> {
    let wanted = options.join(" ");
    let scripts = RUNS.iter().find(|(option, _)| *option == wanted).map(|(_, scripts)| *scripts);
    let scripts = scripts.ok_or_else(|| {
        let known: Vec<_> =
            RUNS.iter().map(|(option, _)| *option).filter(|option| !option.is_empty()).collect();
        format!("vm test has no option {wanted:?}; it has {}", known.join(", "))
    })?;
    run_all(scripts, |script| {
        let mut command = Command::new(process::root().join("kernel").join(script[0]));
        command.args(&script[1..]).current_dir(process::root());
        // Beside a build a machine with little right to the processor would be so slow that its kernel complains.
        command.env("VM_NICE", "0");
        process::status(command)
    })
}

/// Runs the scripts in turn; `run` gives the status of one.
fn run_all(
    scripts: &[Script],
    mut run: impl FnMut(Script) -> Result<Option<i32>, String>,
) -> Result<Ended, String> {
    let mut skipped = Vec::new();
    for script in scripts {
        let shown = format!("kernel/{}", script.join(" "));
        match run(script)? {
            Some(0) => {}
            Some(SKIPPED) => skipped.push(format!("{shown} tested nothing")),
            Some(status) => return Err(format!("{shown} failed with status {status}")),
            None => return Err(format!("{shown} was killed")),
        }
    }
    Ok(if skipped.is_empty() { Ended::Passed } else { Ended::Skipped(skipped.join(", ")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_exist() {
        for script in RUNS.iter().flat_map(|(_, scripts)| *scripts) {
            assert!(process::root().join("kernel").join(script[0]).is_file(), "{script:?}");
        }
    }

    #[test]
    fn a_failure_ends_the_run_and_what_was_skipped_is_told() {
        let scripts: &[Script] = &[&["a"], &["b", "c"]];
        assert_eq!(run_all(scripts, |_| Ok(Some(0))), Ok(Ended::Passed));
        let first = |status| move |script: Script| Ok(Some(if script[0] == "a" { status } else { 0 }));
        assert_eq!(run_all(scripts, first(77)), Ok(Ended::Skipped("kernel/a tested nothing".into())));
        assert!(run_all(scripts, first(1)).unwrap_err().contains("kernel/a failed with status 1"));
        assert!(run_all(scripts, |_| Ok(None)).unwrap_err().contains("killed"));
    }

    #[test]
    fn unknown_options_are_refused() {
        assert!(test(&["--everything"]).unwrap_err().contains("--full"));
    }
}
