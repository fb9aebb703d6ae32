//! What may use what: crates only layers to their left ([`crates`]), and modules of a crate each other only
//! without circles ([`circles`]).

mod allowed;
mod circles;
mod crates;
mod source;

use crate::metadata::{self, Package};
use crate::process;
use circles::Circle;
use std::path::Path;

/// The circles that are allowed for now, from the root of the workspace.
const ALLOWED: &str = "xtask/allowed-circles.txt";

/// Checks the workspace.
///
/// # Errors
/// Names every dependency that goes the wrong way, every circle that is not allowed, and every entry of the list
/// of allowed ones that is no longer needed.
pub fn check() -> Result<(), String> {
    let root = process::root();
    let packages = metadata::packages()?;
    let mut problems = crates::problems(&packages, &root);
    let text = std::fs::read_to_string(root.join(ALLOWED)).map_err(|error| format!("{ALLOWED}: {error}"))?;
    let allowed = allowed::parse(&text).map_err(|problem| format!("{ALLOWED}: {problem}"))?;
    let found = found(&packages, &root)?;
    problems.extend(
        allowed::problems(&allowed, &found).into_iter().map(|problem| format!("{ALLOWED}: {problem}")),
    );
    if problems.is_empty() {
        println!("   {} crates depend only on layers to their left", packages.len());
        match found.len() {
            0 => println!("   their modules form no circles"),
            count => println!("   {count} circles of modules, each allowed for a reason"),
        }
        return Ok(());
    }
    Err(problems.join("\n"))
}

/// Prints every circle with every need in it, allowed or not.
///
/// # Errors
/// If the source cannot be read.
pub fn print_circles() -> Result<(), String> {
    let found = found(&metadata::packages()?, &process::root())?;
    for (label, circle) in &found {
        println!("{}", allowed::describe(label, circle));
    }
    println!("{} circles", found.len());
    Ok(())
}

/// The circles of all crates, each with the path of its folder.
fn found(packages: &[Package], root: &Path) -> Result<Vec<(String, Circle)>, String> {
    let mut found = Vec::new();
    for package in packages {
        let source = package.folder.join("src");
        for start in ["lib.rs", "main.rs"].map(|name| source.join(name)) {
            if !start.exists() {
                continue;
            }
            let mut tree = source::Crate::read(&start)?;
            for file in &mut tree.files {
                *file = file.strip_prefix(root).unwrap_or(file).to_path_buf();
            }
            for circle in circles::find(&tree) {
                let folder = circle.folder.iter().fold(source.clone(), |folder, name| folder.join(name));
                let label = folder.strip_prefix(root).unwrap_or(&folder).display().to_string();
                found.push((label, circle));
            }
        }
    }
    Ok(found)
}
