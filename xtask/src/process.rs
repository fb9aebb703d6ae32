//! Running other programs, with their output going where this program's goes.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The root of the workspace.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// A command that runs cargo in the root of the workspace. Build scripts that look at what cargo told this program would
/// otherwise run anew.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    command
}

/// A command that runs a program in the root of the workspace, without what cargo told this program about its own package.
pub fn program(path: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(path);
    command.current_dir(root());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") || text == "CARGO_BIN_NAME" {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs a command and waits for it.
///
/// # Errors
/// If it cannot be started or does not succeed; says which command.
pub fn run(mut command: Command) -> Result<(), String> {
    println!("   $ {}", shown(&command));
    let status = command.status().map_err(|error| format!("cannot run {}: {error}", shown(&command)))?;
    if status.success() { Ok(()) } else { Err(format!("{} ended with {status}", shown(&command))) }
}

/// Runs a command and waits for it; gives its status, or none if it was killed.
///
/// # Errors
/// If it cannot be started.
pub fn status(mut command: Command) -> Result<Option<i32>, String> {
    println!("   $ {}", shown(&command));
    let status = command.status().map_err(|error| format!("cannot run {}: {error}", shown(&command)))?;
    Ok(status.code())
}

/// Runs a command and returns what it printed as its result; what it says meanwhile goes where this program's goes.
///
/// # Errors
/// If it cannot be started or does not succeed.
pub fn read(mut command: Command) -> Result<String, String> {
    println!("   $ {}", shown(&command));
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run {}: {error}", shown(&command)))?;
    if !output.status.success() {
        return Err(format!("{} ended with {}", shown(&command), output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command silently, and returns what it printed.
///
/// # Errors
/// If it cannot be started or does not succeed.
pub fn output(mut command: Command) -> Result<String, String> {
    let output = command
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| format!("cannot run {}: {error}", shown(&command)))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{} ended with {}: {error}", shown(&command), output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A command as one would type it.
pub fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let set = set.map(|(name, value)| format!("{}={:?}", name.to_string_lossy(), value.to_string_lossy()));
    let rest = std::iter::once(program).chain(command.get_args()).map(|word| word.to_string_lossy().into());
    set.chain(rest).collect::<Vec<String>>().join(" ")
}
