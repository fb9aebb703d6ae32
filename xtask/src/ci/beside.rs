//! Steps that run beside the others, in turn: what waits for an emulated machine, or builds in a folder of its own, uses the
//! processors when the others do not.
//!
//! Each is a process of its own, so that its output can be kept until it is over and does not mix with that of the others.

use crate::process;
use std::{
    fs::File,
    io::{Read as _, stdin},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
};

/// By which this program is told to run a step as such a process.
pub const OPTION: &str = "--beside";

/// How such a step ended: its name, and what it printed; an error if it failed.
pub type Ended = (&'static str, Result<String, String>);

/// The steps that run beside the others.
pub struct Beside {
    ended: Receiver<Ended>,
    left: usize,
}

impl Beside {
    /// Begins; `run` gives what a step has printed, as an error if it failed. A failure ends it.
    pub fn start(
        names: Vec<&'static str>,
        run: impl Fn(&str) -> Result<String, String> + Send + 'static,
    ) -> Self {
        let (sender, ended) = channel();
        let left = names.len();
        thread::spawn(move || {
            for name in names {
                let outcome = run(name);
                let has_failed = outcome.is_err();
                if sender.send((name, outcome)).is_err() || has_failed {
                    return;
                }
            }
        });
        Self { ended, left }
    }

    /// A step that has ended meanwhile, if one has.
    pub fn poll(&mut self) -> Option<Ended> {
        let ended = self.ended.try_recv().ok()?;
        self.left -= 1;
        Some(ended)
    }

    /// Waits for the next one; none if all have ended.
    pub fn wait(&mut self) -> Option<Ended> {
        let ended = (self.left > 0).then(|| self.ended.recv().ok()).flatten()?;
        self.left -= 1;
        Some(ended)
    }
}

/// Runs a step in a process and a process group of its own, whose output goes to a file in this folder.
///
/// # Errors
/// What it printed, if it failed.
pub fn run(name: &str, folder: &Path) -> Result<String, String> {
    let log = folder.join(format!("{name}.log"));
    let told = |error: std::io::Error| format!("{}: {error}", log.display());
    std::fs::create_dir_all(folder).map_err(told)?;
    let output = File::create(&log).map_err(told)?;
    let mut command = Command::new(std::env::current_exe().map_err(told)?);
    command.args(["ci", OPTION, name]).current_dir(process::root()).process_group(0);
    // It ends when this process does, however that comes: nothing is ever written here.
    command.stdin(Stdio::piped());
    command.stderr(output.try_clone().map_err(told)?).stdout(output);
    let mut child = command.spawn().map_err(told)?;
    let watched = child.stdin.take();
    let status = child.wait().map_err(told)?;
    drop(watched);
    let printed = String::from_utf8_lossy(&std::fs::read(&log).map_err(told)?).into_owned();
    if status.success() { Ok(printed) } else { Err(format!("{printed}it ended with {status}")) }
}

/// Lets this process, which [`run`] has started, and all that it starts end when that which started it is gone.
pub fn end_with_parent() {
    thread::spawn(|| {
        let _ = stdin().read_to_end(&mut Vec::new());
        let _ = Command::new("sh").args(["-c", "kill -TERM 0"]).status();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_run_in_turn_and_a_failure_ends_that() {
        let outcome = |name: &str| if name == "b" { Err("broken".to_owned()) } else { Ok(name.to_owned()) };
        let mut beside = Beside::start(vec!["a", "b", "c"], outcome);
        assert_eq!(beside.wait(), Some(("a", Ok("a".to_owned()))));
        assert_eq!(beside.wait(), Some(("b", Err("broken".to_owned()))));
        assert_eq!((beside.wait(), beside.poll()), (None, None));
    }

    #[test]
    fn none_is_waited_for_if_there_is_none() {
        assert_eq!(Beside::start(vec![], |_| unreachable!()).wait(), None);
    }
}
