//! Each crate uses only layers to its left.
//!
//! `base -> vm -> pool -> access -> txn -> vellum -> cli, lab`, with `wal` and `pmem` beside `pool`, and `objects` beside `txn`; the crates of the last column do not use each other,
//! no crate uses `xtask`, and `kernel/`, which is C, stands apart: no crate lies in it or depends on it.

use crate::metadata::Package;
use std::path::Path;

/// The layers, from the left; crates of the same layer do not use each other.
const LAYERS: &[&[&str]] = &[
    &["vellum-base", "vellum-objects-derive"],
    &["vellum-vm"],
    &["vellum-pool", "vellum-wal", "vellum-pmem"],
    &["vellum-access"],
    &["vellum-txn", "vellum-objects"],
    &["vellum"],
    &["vellum-cli", "vellum-lab"],
];

/// Crates that use nothing of the workspace, and that nothing uses.
const APART: &[&str] = &["xtask"];

/// Every dependency that goes the wrong way.
pub fn problems(packages: &[Package], root: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    for package in packages {
        let name = &package.name;
        if package.folder.starts_with(root.join("kernel")) {
            problems.push(format!("{name} lies in kernel/, which holds no crates"));
        }
        let own = layer(name);
        if own.is_none() && !APART.contains(&name.as_str()) {
            problems.push(format!("{name} has no layer; give it one in xtask/src/layers/crates.rs"));
        }
        for dependency in package.dependencies.iter().filter(|dependency| dependency.path.is_some()) {
            let other = &dependency.name;
            // Its tests turn its own features on.
            if other == name {
                continue;
            }
            let Some(theirs) = layer(other) else {
                problems.push(format!("{name} depends on {other}, which is no layer"));
                continue;
            };
            if own.is_none_or(|own| theirs >= own) {
                problems.push(format!("{name} depends on {other}, which is not to its left"));
            }
        }
    }
    problems
}

fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|crates| crates.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Dependency;

    fn package(name: &str, uses: &[&str]) -> Package {
        let dependency = |name: &&str| Dependency {
            name: (*name).to_owned(),
            path: Some(format!("/w/crates/{name}").into()),
        };
        Package {
            name: name.to_owned(),
            folder: format!("/w/crates/{name}").into(),
            has_library: true,
            dependencies: uses.iter().map(dependency).collect(),
        }
    }

    fn count(packages: &[Package]) -> usize {
        problems(packages, Path::new("/w")).len()
    }

    #[test]
    fn only_dependencies_to_the_left_pass() {
        assert_eq!(count(&[package("vellum-pool", &["vellum-vm", "vellum-base"])]), 0);
        assert_eq!(count(&[package("vellum-cli", &["vellum"])]), 0);
        assert_eq!(count(&[package("vellum-vm", &["vellum-pool"])]), 1);
        assert_eq!(count(&[package("vellum-lab", &["vellum-cli"])]), 1);
        assert_eq!(count(&[package("xtask", &["vellum"])]), 1);
        assert_eq!(count(&[package("vellum", &["xtask"])]), 1);
    }

    #[test]
    fn new_crates_need_a_layer_and_kernel_holds_none() {
        assert_eq!(count(&[package("vellum-new", &[])]), 1);
        let inside = Package { folder: "/w/kernel/x".into(), ..package("vellum-vm", &[]) };
        assert_eq!(count(&[inside]), 1);
    }
}
