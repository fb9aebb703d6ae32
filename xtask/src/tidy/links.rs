//! Links between documents, and the paths that they name in code style.

use super::Source;
use std::path::Path;

/// Relative links in documents that lead to no file, and paths such as `crates/x/y.rs` that do not exist.
pub fn check(sources: &[Source], root: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    for source in sources.iter().filter(|source| source.path.ends_with(".md")) {
        let folder = root.join(&source.path);
        let folder = folder.parent().unwrap_or(root);
        for target in targets(&source.text) {
            if !folder.join(target).exists() {
                problems.push(format!("{}: the link to {target} leads nowhere", source.path));
            }
        }
        for path in paths(&source.text) {
            if !root.join(path).exists() {
                problems.push(format!("{}: it names {path}, which does not exist", source.path));
            }
        }
    }
    problems
}

/// The targets of links that are neither on the web nor in the same document.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    let all = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    all.filter(|target| !target.contains("://") && !target.starts_with('#'))
        .map(|target| target.split('#').next().unwrap_or(target))
}

/// What stands in backquotes and looks like a path of this workspace.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    quoted.filter(|word| {
        let begins = ["crates/", "docs/", "xtask/", ".ci/"].iter().any(|start| word.starts_with(start));
        begins && !word.contains([' ', '*', '{', '<', 'N'])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_paths_are_found() {
        let text = "[a](b.md) [c](https://x.y) [d](#e) [f](g.md#h) `crates/base/x.rs` `crates/*/x` `let x`";
        assert_eq!(targets(text).collect::<Vec<_>>(), ["b.md", "g.md"]);
        assert_eq!(paths(text).collect::<Vec<_>>(), ["crates/base/x.rs"]);
    }

    #[test]
    fn what_leads_nowhere_is_reported() {
        let text = "[a](Cargo.toml) `docs/nothing.md` [b](nothing.md)";
        let source = Source { path: "README.md".into(), text: text.into() };
        let problems = check(&[source], &crate::process::root());
        assert_eq!(problems.len(), 2, "{problems:?}");
    }
}
