//! What cargo knows of the workspace.

use crate::process;
use serde_json::Value;
use std::path::PathBuf;

/// A crate of the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// The folder of its manifest.
    pub folder: PathBuf,
    /// Whether it has a library.
    pub has_library: bool,
    /// What it depends on in any way, tests and build scripts included.
    pub dependencies: Vec<Dependency>,
}

/// What a crate depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    /// The name of the crate.
    pub name: String,
    /// Where it lies, if it is not from a registry.
    pub path: Option<PathBuf>,
}

/// The crates of the workspace.
///
/// # Errors
/// If cargo fails or says something unexpected.
pub fn packages() -> Result<Vec<Package>, String> {
    let text = process::output(process::cargo(&["metadata", "--no-deps", "--format-version", "1"]))?;
    let value: Value = serde_json::from_str(&text).map_err(|error| format!("cargo metadata: {error}"))?;
    parse(&value).ok_or_else(|| "cargo metadata has another form than expected".into())
}

fn parse(metadata: &Value) -> Option<Vec<Package>> {
    metadata.get("packages")?.as_array()?.iter().map(package).collect()
}

fn package(value: &Value) -> Option<Package> {
    let dependency = |value: &Value| {
        let path = value.get("path").and_then(Value::as_str).map(PathBuf::from);
        Some(Dependency { name: value.get("name")?.as_str()?.to_owned(), path })
    };
    let is_library = |target: &Value| {
        target
            .get("kind")
            .and_then(Value::as_array)
            .is_some_and(|kind| kind.contains(&"lib".into()) || kind.contains(&"proc-macro".into()))
    };
    Some(Package {
        name: value.get("name")?.as_str()?.to_owned(),
        folder: PathBuf::from(value.get("manifest_path")?.as_str()?).parent()?.to_path_buf(),
        has_library: value.get("targets")?.as_array()?.iter().any(is_library),
        dependencies: value.get("dependencies")?.as_array()?.iter().map(dependency).collect::<Option<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn packages_are_read_with_all_their_dependencies() {
        let metadata = json!({ "packages": [{
            "name": "a",
            "manifest_path": "/w/crates/a/Cargo.toml",
            "targets": [{ "kind": ["lib"] }, { "kind": ["test"] }],
            "dependencies": [
                { "name": "b", "path": "/w/crates/b", "kind": null },
                { "name": "libc", "kind": "dev" },
            ],
        }] });
        let found = parse(&metadata).unwrap();
        let expected = Package {
            name: "a".into(),
            folder: "/w/crates/a".into(),
            has_library: true,
            dependencies: vec![
                Dependency { name: "b".into(), path: Some("/w/crates/b".into()) },
                Dependency { name: "libc".into(), path: None },
            ],
        };
        assert_eq!(found, [expected]);
        assert_eq!(parse(&json!({ "packages": [{}] })), None);
    }
}
