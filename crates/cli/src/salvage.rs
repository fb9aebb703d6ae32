//! What is left of a crashed or damaged database, and what is lost, for the commands that tell or print it.

use crate::{
    arguments::StoreArguments,
    failure::{Code, Failure, Result},
    size, store,
    text::named,
};
use vellum::{LeftBy, Salvage, Scanned};

/// Opens a database to inspect what is left of it.
pub fn open(arguments: &StoreArguments) -> Result<Salvage> {
    let path = &arguments.database;
    store::require_file(path)?;
    Salvage::open(path, &arguments.engine.options(arguments.pool)).map_err(|error| {
        if error.kind() == vellum::ErrorKind::Corruption {
            return Failure::from(error).and("No page of a table was found in it that is sound");
        }
        store::explain(path, error)
    })
}

/// What is lost of a database as a whole. What is lost of a table is found when that is read.
pub fn losses(salvage: &Salvage) -> Vec<String> {
    let mut losses: Vec<String> = salvage.scanned().map(found).into_iter().collect();
    match salvage.left_by() {
        LeftBy::Unknown { has_log: true } => losses.push(
            "there is a log with later changes, which are left out: the superblocks would say where in it they begin".to_owned(),
        ),
        LeftBy::CrashWithoutLog(error) => {
            losses.push(format!("what is in its log only, and the rest is from several moments: {error}"))
        }
        LeftBy::OlderCopy(error) => losses.push(format!("what was committed later: {error}")),
        _ => {}
    }
    losses.extend(salvage.damage().iter().map(ToString::to_string));
    losses.extend(salvage.tables().1.iter().map(|error| format!("tables: {error}")));
    let nameless: Vec<&str> = salvage.nameless().collect();
    if !nameless.is_empty() {
        losses.push(format!(
            "the names of tables, which are called {} instead, and shown as bytes",
            nameless.join(", ")
        ));
    }
    losses
}

/// The failure for a table that was not found. If nothing is lost, there is none of that name.
pub fn missing(salvage: &Salvage, name: &str, losses: &[String]) -> Failure {
    if losses.is_empty() {
        return store::no_such_table(salvage.database(), name, "");
    }
    Failure::new(
        Code::Damaged,
        format!("the table {} was not found in what is left of the database", named(name)),
    )
}

/// How the pages of a damaged database were found.
fn found(scanned: &Scanned) -> String {
    let Scanned { error, pages, nodes, values, .. } = scanned;
    let [nodes, values] =
        [(nodes, "node of a table", "nodes of tables"), (values, "large value", "large values")]
            .map(|(count, one, many)| size::counted(*count, one, many));
    format!(
        "{error}: all {pages} pages of the file were read instead, of which {nodes} are sound, and {values}"
    )
}

/// Where something is lost.
pub fn place(table: Option<&str>, after: Option<String>, upto: Option<String>) -> String {
    let Some(table) = table.map(named) else { return "database".to_owned() };
    match (after, upto) {
        (Some(after), Some(upto)) if after == upto => format!("table {table}, key \"{after}\""),
        (None, None) => format!("table {table}, all keys"),
        (after, upto) => {
            let after = after.map_or(String::new(), |key| format!(" after \"{key}\""));
            let upto = upto.map_or(String::new(), |key| format!(" up to \"{key}\""));
            format!("table {table}, keys{after}{upto}")
        }
    }
}
