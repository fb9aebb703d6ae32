//! What compilers do not look at.
//!
//! - leftover markers, and debugging output;
//! - files of more than [`LINES_MAX`] lines that give no reason: a comment that begins `Over 600 lines:`;
//! - files that no `mod` declares;
//! - code of `crates/access` that writes to pages, allocates or frees them past its gateway;
//! - crates that do not say in their first line that they are internal;
//! - crates that may not use `unsafe` and do not forbid it;
//! - FILE_FORMAT.md and docs/dependencies.md, which must follow the code: see [`documents`];
//! - links in documents that lead nowhere;
//! - results that cannot be read: see [`results`].

mod documents;
mod links;
mod results;

use crate::{
    metadata::{self, Package},
    process,
};
use std::path::{Path, PathBuf};

/// How long a file may be without giving a reason, in lines.
const LINES_MAX: usize = 600;
/// What a reason begins with.
const REASON: &str = "Over 600 lines:";

/// What must not stay in the code. Written in two parts, so that this file passes its own check.
const MARKERS: &[(&str, &str)] = &[
    ("to", "do!("),
    ("unimple", "mented!("),
    ("db", "g!("),
    ("TO", "DO"),
    ("FIX", "ME"),
    ("XX", "X:"),
    ("<<<<", "<<<"),
    (">>>>", ">>>"),
];

/// The crates that may use `unsafe`; all others forbid it.
const UNSAFE_CRATES: &[&str] = &["vellum-vm", "vellum-pool", "vellum-pmem", "vellum-lab"];

/// The only folder of `crates/access` in which pages are written.
const GATEWAY: &str = "crates/access/src/gateway/";
/// What writes to pages, allocates or frees them: the traits that have the methods, and the methods. Without the traits the
/// compiler knows none of those that write.
const WRITING: &[&str] = &[
    "ExclusivePage",
    "AllocatedPage",
    "PageWriter",
    "ExtentWriter",
    "page_mut",
    "payload_mut",
    ".upgrade(",
    "pager.allocate(",
    "pager.discard(",
    "pager.stream(",
    "pager.pages(",
];

/// A file of the workspace and its text.
pub struct Source {
    /// Its path from the root of the workspace.
    pub path: String,
    /// What is in it.
    pub text: String,
}

/// Checks the workspace.
///
/// # Errors
/// Names every place that something is wrong with.
pub fn check() -> Result<(), String> {
    let root = process::root();
    let sources = sources(&root)?;
    let packages = metadata::packages()?;
    let mut problems = Vec::new();
    for source in &sources {
        problems.extend(markers(source));
        problems.extend(length(source));
        problems.extend(past_the_gateway(source));
    }
    problems.extend(dead_files(&sources));
    problems.extend(first_lines(&packages, &root));
    problems.extend(documents::format(&sources));
    problems.extend(documents::dependencies(&packages, &sources));
    problems.extend(links::check(&sources, &root));
    problems.extend(results::check(&sources));
    if problems.is_empty() {
        println!("   {} files are tidy", sources.len());
        return Ok(());
    }
    Err(problems.join("\n"))
}

/// All files of text in the workspace, build products and hidden folders left out.
fn sources(root: &Path) -> Result<Vec<Source>, String> {
    let mut found = Vec::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(folder) = todo.pop() {
        let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for entry in entries.flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if path.is_dir() {
                if !name.starts_with("target") && !name.starts_with('.') && name != "data" {
                    todo.push(path);
                }
            } else if [".rs", ".md", ".toml", ".sh", ".c", ".h", ".csv"].iter().any(|end| name.ends_with(end))
            {
                let text =
                    std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
                let path = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
                found.push(Source { path, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn markers(source: &Source) -> Vec<String> {
    let mut problems = Vec::new();
    for (number, line) in source.text.lines().enumerate() {
        for (first, second) in MARKERS {
            if line.contains(&format!("{first}{second}")) {
                problems.push(format!("{}:{}: leftover {first}{second}", source.path, number + 1));
            }
        }
    }
    problems
}

fn length(source: &Source) -> Option<String> {
    let lines = source.text.lines().count();
    let excused = !source.path.ends_with(".rs") || source.text.contains(REASON);
    (lines > LINES_MAX && !excused).then(|| {
        format!(
            "{}: {lines} lines are more than {LINES_MAX}; divide it, or say why in a comment that begins {REASON:?}",
            source.path
        )
    })
}

/// Changes of pages in `crates/access` that are not made by its gateway.
fn past_the_gateway(source: &Source) -> Vec<String> {
    if !source.path.starts_with("crates/access/src/") || source.path.starts_with(GATEWAY) {
        return Vec::new();
    }
    let mut problems = Vec::new();
    let engine = source.text.lines().take_while(|line| line.trim() != "#[cfg(test)]");
    for (number, line) in engine.enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        for word in WRITING.iter().filter(|word| code.contains(**word)) {
            let path = &source.path;
            problems.push(format!("{path}:{}: `{word}` is used past the gateway, {GATEWAY}", number + 1));
        }
    }
    problems
}

/// Files under `src` that no `mod` of their crate declares: compilers do not see them.
fn dead_files(sources: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    for source in sources {
        let Some((package, module)) = source.path.split_once("/src/") else { continue };
        let Some(module) = module.strip_suffix(".rs") else { continue };
        let module = module.strip_suffix("/mod").unwrap_or(module);
        if matches!(module, "lib" | "main") || module.starts_with("bin/") {
            continue;
        }
        let name = module.rsplit('/').next().unwrap_or(module);
        let declaration = format!("mod {name};");
        let folder = format!("{package}/src/");
        let declared = |other: &&Source| {
            other.path.starts_with(&folder)
                && other.text.lines().any(|line| line.trim().ends_with(&declaration))
        };
        if !sources.iter().any(|other| declared(&other)) {
            problems.push(format!("{}: no `{declaration}` leads to this file", source.path));
        }
    }
    problems
}

fn first_lines(packages: &[Package], root: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    for package in packages {
        let file = if package.has_library { "src/lib.rs" } else { "src/main.rs" };
        let path: PathBuf = package.folder.join(file);
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let shown = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        problems.extend(first_line(package, &text).map(|problem| format!("{shown}: {problem}")));
    }
    problems
}

/// What is wrong with the beginning of a crate.
fn first_line(package: &Package, text: &str) -> Option<String> {
    let public = package.name == "vellum" || !package.has_library;
    if !public && !text.starts_with("//! Internal to Vellum") {
        return Some(
            "its first line must say `//! Internal to Vellum`: only the crate vellum is public".into(),
        );
    }
    if !text.starts_with("//! ") {
        return Some("it does not begin with what the crate is for".into());
    }
    let forbids = text.lines().any(|line| line.trim() == "#![forbid(unsafe_code)]");
    (!forbids && !UNSAFE_CRATES.contains(&package.name.as_str()))
        .then(|| "it must say `#![forbid(unsafe_code)]`".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.into() }
    }

    #[test]
    fn each_marker_is_found() {
        for (first, second) in MARKERS {
            let problems = markers(&source("a.rs", &format!("fine\n    {first}{second}")));
            assert_eq!(problems.len(), 1, "{first}{second}");
            assert!(problems[0].starts_with("a.rs:2:"));
        }
        assert!(markers(&source("a.rs", "let mut todo = vec![];")).is_empty());
    }

    #[test]
    fn pages_are_written_by_the_gateway_alone() {
        for word in WRITING {
            let text = format!("// {word} is fine here\nlet page = self.{word};");
            assert_eq!(past_the_gateway(&source("crates/access/src/tree/mod.rs", &text)).len(), 1, "{word}");
            assert!(past_the_gateway(&source(&format!("{GATEWAY}atomic.rs"), &text)).is_empty());
            assert!(past_the_gateway(&source("crates/pool/src/pool.rs", &text)).is_empty());
        }
    }

    #[test]
    fn long_files_give_a_reason() {
        let long = "x\n".repeat(LINES_MAX + 1);
        assert!(length(&source("a.rs", &long)).is_some());
        assert!(length(&source("a.md", &long)).is_none());
        assert!(length(&source("a.rs", &format!("// {REASON} one table.\n{long}"))).is_none());
        assert!(length(&source("a.rs", &"x\n".repeat(LINES_MAX))).is_none());
    }

    #[test]
    fn files_that_nothing_declares_are_found() {
        let files = [
            source("crates/a/src/lib.rs", "pub mod used;\nmod folder;"),
            source("crates/a/src/used.rs", ""),
            source("crates/a/src/folder/mod.rs", ""),
            source("crates/a/src/dead.rs", ""),
            source("crates/b/src/lib.rs", "mod dead;"),
        ];
        let problems = dead_files(&files);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].starts_with("crates/a/src/dead.rs"));
    }

    #[test]
    fn crates_say_what_they_are() {
        let package = |name: &str, has_library| Package {
            name: name.into(),
            folder: PathBuf::new(),
            has_library,
            dependencies: Vec::new(),
        };
        let inner = package("vellum-base", true);
        assert!(first_line(&inner, "//! Internal to Vellum: x\n#![forbid(unsafe_code)]").is_none());
        assert!(first_line(&inner, "//! Internal to Vellum: x\n").is_some());
        assert!(first_line(&inner, "//! Identifiers\n#![forbid(unsafe_code)]").is_some());
        assert!(first_line(&package("vellum-vm", true), "//! Internal to Vellum: x").is_none());
        assert!(first_line(&package("vellum", true), "//! An engine\n#![forbid(unsafe_code)]").is_none());
        assert!(first_line(&package("xtask", false), "//! Chores\n").is_some());
    }
}
