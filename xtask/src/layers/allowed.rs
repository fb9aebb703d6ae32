//! The list of circles that are allowed for now, each with its reason.
//!
//! A line is `folder | part part part | reason`; lines that begin with `#` are comments. An entry allows
//! circles of its parts only, and each of its parts must be in such a circle: the list shrinks with them.

use super::circles::Circle;
use std::collections::BTreeSet;

/// An entry of the list.
#[derive(Debug, PartialEq, Eq)]
pub struct Allowed {
    folder: String,
    parts: BTreeSet<String>,
}

/// Reads the list.
///
/// # Errors
/// If a line has another form, or no reason.
pub fn parse(text: &str) -> Result<Vec<Allowed>, String> {
    let mut entries = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut fields = line.splitn(3, '|').map(str::trim);
        let fields = (fields.next(), fields.next(), fields.next().filter(|reason| !reason.is_empty()));
        let (Some(folder), Some(parts), Some(_)) = fields else {
            return Err(format!("{line:?} is not `folder | part part | reason`"));
        };
        let parts = parts.split_whitespace().map(str::to_owned).collect();
        entries.push(Allowed { folder: folder.to_owned(), parts });
    }
    Ok(entries)
}

/// Circles that no entry allows, and entries that allow more than there is.
pub fn problems(allowed: &[Allowed], found: &[(String, Circle)]) -> Vec<String> {
    let covers = |entry: &Allowed, label: &str, circle: &Circle| {
        entry.folder == label && circle.parts.is_subset(&entry.parts)
    };
    let mut problems = Vec::new();
    for (label, circle) in found {
        if !allowed.iter().any(|entry| covers(entry, label, circle)) {
            problems.push(format!("not allowed: {}", describe(label, circle)));
        }
    }
    for entry in allowed {
        let covered = found.iter().filter(|(label, circle)| covers(entry, label, circle));
        let needed: BTreeSet<&String> = covered.flat_map(|(_, circle)| &circle.parts).collect();
        let needless = entry.parts.iter().filter(|part| !needed.contains(part));
        let needless: Vec<&str> = needless.map(String::as_str).collect();
        if !needless.is_empty() {
            let folder = &entry.folder;
            problems.push(format!(
                "{folder}: no longer in a circle, take out of the list: {}",
                needless.join(" ")
            ));
        }
    }
    problems
}

/// A circle with every need in it.
pub fn describe(label: &str, circle: &Circle) -> String {
    let parts: Vec<&str> = circle.parts.iter().map(String::as_str).collect();
    let mut text = format!("circle in {label}: {}", parts.join(" "));
    for (from, to, place) in &circle.needs {
        text.push_str(&format!("\n      {from} -> {to}  ({place})"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circle(parts: &[&str]) -> (String, Circle) {
        let parts = parts.iter().map(|part| (*part).to_owned()).collect();
        ("crates/x/src".into(), Circle { folder: Vec::new(), parts, needs: Vec::new() })
    }

    #[test]
    fn an_entry_allows_its_parts_and_must_be_needed() {
        let allowed = parse("# why\n\ncrates/x/src | a b mod::c | being mended\n").unwrap();
        assert!(problems(&allowed, &[circle(&["a", "b", "mod::c"])]).is_empty());
        // Two circles of the same parts are no more than one.
        let three = parse("crates/x/src | a b c d | being mended").unwrap();
        assert!(problems(&three, &[circle(&["a", "b"]), circle(&["c", "d"])]).is_empty());
        // Another part, another folder, a circle that became smaller, one that is gone.
        assert_eq!(problems(&allowed, &[circle(&["a", "d"])]).len(), 2);
        assert_eq!(problems(&[], &[circle(&["a", "b"])]).len(), 1);
        assert_eq!(problems(&allowed, &[circle(&["a", "b"])]).len(), 1);
        assert_eq!(problems(&allowed, &[]).len(), 1);
    }

    #[test]
    fn an_entry_gives_its_reason() {
        assert!(parse("crates/x/src | a b | ").is_err());
        assert!(parse("crates/x/src | a b").is_err());
    }
}
