//! All tests, examples and programs of the workspace, built at once: asked for one package at a time, cargo would choose other
//! features for what they have in common, and build it again.

use crate::process::{self, cargo};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What a program is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Unit tests or integration tests.
    Test,
    Example,
    Program,
}

/// A program that was built.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    pub kind: Kind,
    /// The name of its package.
    pub package: String,
    /// The folder of its package.
    pub folder: PathBuf,
    /// Its name: that of the library or program of which it has the unit tests, or of the file.
    pub name: String,
    /// The option by which cargo chooses it.
    pub option: String,
    pub path: PathBuf,
}

/// Builds all.
///
/// # Errors
/// If that fails, or cargo says something unexpected.
pub fn build() -> Result<Vec<Program>, String> {
    let options = ["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"];
    let text = process::read(cargo(&options))?;
    let mut found = Vec::new();
    for line in text.lines() {
        let message = serde_json::from_str(line).map_err(|error| format!("cargo test: {error}: {line}"))?;
        found.extend(program(&message));
    }
    if found.is_empty() { Err("cargo test has built no tests".into()) } else { Ok(found) }
}

/// The program that a message of cargo is about, if it is about one.
fn program(message: &Value) -> Option<Program> {
    let path = PathBuf::from(message.get("executable")?.as_str()?);
    let folder = Path::new(message.get("manifest_path")?.as_str()?).parent()?.to_path_buf();
    let target = message.get("target")?;
    let name = target.get("name")?.as_str()?.to_owned();
    let target = target.get("kind")?.get(0)?.as_str()?;
    let option = if target == "lib" { "--lib".to_owned() } else { format!("--{target} {name}") };
    let kind = match target {
        _ if message.get("profile")?.get("test")?.as_bool()? => Kind::Test,
        "example" => Kind::Example,
        _ => Kind::Program,
    };
    // Such as `path+file:///folder/crates/pool#vellum-pool@0.1.0`, or `..crates/vellum#0.1.0` if the folder has its name.
    let id = message.get("package_id")?.as_str()?;
    let package = match id.split_once('#')?.1.split_once('@') {
        Some((name, _)) => name.to_owned(),
        None => folder.file_name()?.to_str()?.to_owned(),
    };
    Some(Program { kind, package, folder, name, option, path })
}

/// The path of the program with this name.
///
/// # Errors
/// If it was not built.
pub fn path(programs: &[Program], name: &str) -> Result<PathBuf, String> {
    let found = programs.iter().find(|program| program.kind == Kind::Program && program.name == name);
    found.map(|program| program.path.clone()).ok_or_else(|| format!("cargo test has not built {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn message(id: &str, kind: &str, is_test: bool) -> Value {
        json!({
            "reason": "compiler-artifact", "package_id": id, "manifest_path": "/w/crates/vellum/Cargo.toml",
            "target": { "kind": [kind], "name": "n" }, "profile": { "test": is_test }, "executable": "/w/target/n",
        })
    }

    #[test]
    fn what_cargo_says_is_understood() {
        let found = program(&message("path+file:///w/crates/vellum#0.1.0", "lib", true)).unwrap();
        let expected = Program {
            kind: Kind::Test,
            package: "vellum".into(),
            folder: "/w/crates/vellum".into(),
            name: "n".into(),
            option: "--lib".into(),
            path: "/w/target/n".into(),
        };
        assert_eq!(found, expected);
        assert_eq!(program(&message("a#b@1", "test", true)).unwrap().option, "--test n");
        for (kind, understood) in [("bin", Kind::Program), ("example", Kind::Example)] {
            let found = program(&message("path+file:///w/crates/vm#vellum-vm@0.1.0", kind, false)).unwrap();
            assert_eq!((found.kind, found.package.as_str()), (understood, "vellum-vm"));
        }
        assert_eq!(program(&json!({ "reason": "build-finished" })), None);
        assert!(path(&[found], "n").unwrap_err().contains("has not built n"));
    }
}
