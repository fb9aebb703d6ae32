//! Documents that must follow the code.
//!
//! FILE_FORMAT.md has a table of constants. Each constant with a literal value in the modules that define
//! what is on disk has a row there, with its name and its value as the code has it, and each row has a
//! constant. docs/dependencies.md has a section for each crate from a registry that a manifest names.

use super::Source;
use crate::metadata::Package;
use std::collections::BTreeSet;

/// The modules whose constants are the format.
const FORMAT_FILES: &[&str] = &[
    "crates/base/src/header.rs",
    "crates/base/src/lib.rs",
    "crates/pmem/src/layout.rs",
    "crates/pmem/src/superblock.rs",
    "crates/pool/src/file/lives.rs",
    "crates/pool/src/file/superblock.rs",
    "crates/wal/src/frame.rs",
    "crates/wal/src/segment.rs",
    "crates/wal/src/archive_format.rs",
    "crates/wal/src/buffer_format.rs",
    "crates/txn/src/backup/format.rs",
    "crates/access/src/node/layout.rs",
    "crates/access/src/blob/mod.rs",
    "crates/objects/src/page.rs",
    "crates/vellum/src/catalog.rs",
];

/// Parts of names that only constants of the format have: elsewhere they are a format in the wrong place.
const FORMAT_NAMES: &[&str] = &["MAGIC", "FORMAT_VERSION"];

/// Problems of FILE_FORMAT.md.
pub fn format(sources: &[Source]) -> Vec<String> {
    const DOCUMENT: &str = "FILE_FORMAT.md";
    let Some(document) = sources.iter().find(|source| source.path == DOCUMENT) else {
        return vec![format!("{DOCUMENT} is missing")];
    };
    let rows = rows(&document.text);
    let mut problems = Vec::new();
    let mut known = BTreeSet::new();
    for source in sources.iter().filter(|source| source.path.starts_with("crates/")) {
        let found = constants(&source.text);
        if FORMAT_FILES.contains(&source.path.as_str()) {
            for (name, value) in &found {
                if !rows.contains(&(name.clone(), value.clone())) {
                    problems.push(format!("{DOCUMENT}: no row `{name}` | `{value}` ({})", source.path));
                }
            }
            known.extend(found);
            continue;
        }
        for (name, _) in found {
            // The layer below knows magic numbers of file systems, which are the kernel's.
            let ours = source.path.contains("/src/") && !source.path.starts_with("crates/vm/");
            if ours && FORMAT_NAMES.iter().any(|part| name.contains(part)) {
                problems.push(format!(
                    "{}: {name} looks like a part of the file format; add the file to xtask/src/tidy/documents.rs",
                    source.path
                ));
            }
        }
    }
    for (name, value) in rows.difference(&known) {
        problems.push(format!("{DOCUMENT}: the code has no constant `{name}` of value `{value}`"));
    }
    problems
}

/// The constants of a module whose value is a literal, and which are not part of its tests.
fn constants(text: &str) -> BTreeSet<(String, String)> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    code.lines().filter_map(constant).collect()
}

fn constant(line: &str) -> Option<(String, String)> {
    let line = line.trim();
    let line = line
        .strip_prefix("pub ")
        .or_else(|| line.split_once(") ").filter(|(v, _)| v.starts_with("pub(")).map(|(_, rest)| rest))
        .unwrap_or(line);
    let (name, rest) = line.strip_prefix("const ")?.split_once(':')?;
    let value = rest.split_once('=')?.1.split(';').next()?.trim();
    let inner = value.strip_prefix("Self(").and_then(|rest| rest.strip_suffix(')')).unwrap_or(value);
    let inner = inner.trim_start_matches('*');
    let literal = inner.starts_with("b\"") || inner.starts_with(|first: char| first.is_ascii_digit());
    let value =
        if inner.starts_with("b\"") { inner.trim_start_matches('b').trim_matches('"') } else { inner };
    (literal && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'))
        .then(|| (name.to_owned(), value.to_owned()))
}

/// The rows of tables whose first two cells are code: a name and a value.
fn rows(text: &str) -> BTreeSet<(String, String)> {
    let cell = |cell: &str| Some(cell.trim().strip_prefix('`')?.strip_suffix('`')?.to_owned());
    let row = |line: &str| {
        let mut cells = line.trim().strip_prefix('|')?.split('|');
        let (name, value) = (cell(cells.next()?)?, cell(cells.next()?)?);
        name.starts_with(|first: char| first.is_ascii_uppercase()).then_some((name, value))
    };
    text.lines().filter_map(row).collect()
}

/// Problems of docs/dependencies.md.
pub fn dependencies(packages: &[Package], sources: &[Source]) -> Vec<String> {
    const DOCUMENT: &str = "docs/dependencies.md";
    let Some(document) = sources.iter().find(|source| source.path == DOCUMENT) else {
        return vec![format!("{DOCUMENT} is missing")];
    };
    let all = packages.iter().flat_map(|package| &package.dependencies);
    let used: BTreeSet<&str> = all
        .filter(|dependency| dependency.path.is_none())
        .map(|dependency| dependency.name.as_str())
        .collect();
    let named: BTreeSet<&str> = document
        .text
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name)
        .collect();
    let missing =
        used.difference(&named).map(|name| format!("{DOCUMENT}: why does {name} appear in a manifest?"));
    let extra = named.difference(&used).map(|name| format!("{DOCUMENT}: no manifest names {name}"));
    missing.chain(extra).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Dependency;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.into() }
    }

    #[test]
    fn constants_of_every_form_are_found() {
        let text = "pub const A_AT: usize = 32;\npub(super) const B: u8 = 1 << 10;\n    pub const C: Self = Self(7);\n\
                    const D: [u8; 8] = *b\"MAGIC\";\nconst E: usize = A_AT + 1;\nlet f = 3;\n\
                    #[cfg(test)]\nconst G: u8 = 9;";
        let found: Vec<_> = constants(text).into_iter().collect();
        let expected = [("A_AT", "32"), ("B", "1 << 10"), ("C", "7"), ("D", "MAGIC")];
        assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn the_format_and_its_document_must_agree() {
        let code = source("crates/base/src/header.rs", "const KIND: u8 = 3;");
        let good = source("FILE_FORMAT.md", "| `KIND` | `3` | a kind |");
        let old = source("FILE_FORMAT.md", "| `KIND` | `2` | a kind |");
        let stray = source("crates/pool/src/x.rs", "const MAGIC: u32 = 1;");
        assert!(format(&[source(&code.path, &code.text), good]).is_empty());
        assert_eq!(format(&[source(&code.path, &code.text), old]).len(), 2);
        assert_eq!(format(&[code, source("FILE_FORMAT.md", ""), stray]).len(), 2);
    }

    #[test]
    fn every_dependency_has_its_reason() {
        let package = Package {
            name: "a".into(),
            folder: "a".into(),
            has_library: true,
            dependencies: vec![
                Dependency { name: "libc".into(), path: None },
                Dependency { name: "b".into(), path: Some("b".into()) },
            ],
        };
        let document = |text: &str| [source("docs/dependencies.md", text)];
        let packages = [package];
        assert!(dependencies(&packages, &document("| `libc` | why |")).is_empty());
        assert_eq!(dependencies(&packages, &document("| `other` | why |")).len(), 2);
        assert_eq!(dependencies(&packages, &[]).len(), 1);
    }
}
