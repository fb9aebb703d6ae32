//! `vellum tables`: lists the tables.

use crate::{
    arguments::{General, StoreArguments},
    failure::Result,
    output::{Output, columns, render},
    size, store,
    text::escaped,
};
use serde::Serialize;
use vellum::TreeShape;

const HELP: &str = "\
Examples:
  vellum tables data.vellum              their names
  vellum tables data.vellum --sizes      how many entries and bytes each has, and of what types (reads all their keys)
  vellum tables data.vellum --json       for programs: one object a table, with its types";

/// The arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Count entries and bytes, which reads all keys
    #[arg(long, short)]
    sizes: bool,
}

/// A table, for programs.
#[derive(Serialize)]
pub struct Row {
    kind: &'static str,
    /// Its name, with escapes.
    table: String,
    /// Whether it keeps no versions, if that was looked up.
    #[serde(skip_serializing_if = "Option::is_none")]
    plain: Option<bool>,
    /// The types of its keys and values, if they were looked up.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_type: Option<String>,
    #[serde(flatten)]
    shape: Option<Shape>,
}

/// The size of a table.
#[derive(Serialize)]
struct Shape {
    entries: u64,
    data_bytes: u64,
    large_values: u64,
    height: u32,
}

impl Row {
    /// Describes a table.
    pub fn new(name: &str, shape: Option<&TreeShape>) -> Self {
        let shape = shape.map(|shape| Shape {
            entries: shape.entries,
            data_bytes: shape.data_bytes,
            large_values: shape.large_values,
            height: shape.height,
        });
        Self {
            kind: "table",
            table: escaped(name.as_bytes()),
            plain: None,
            key_type: None,
            value_type: None,
            shape,
        }
    }

    /// Remarks on the table, for people.
    fn note(&self) -> String {
        let types = match (&self.key_type, &self.value_type) {
            (Some(key), Some(value)) if (&key[..], &value[..]) != ("bytes", "bytes") => {
                Some(format!("{key} to {value}"))
            }
            _ => None,
        };
        let plain = (self.plain == Some(true)).then(|| "plain".to_owned());
        let notes: Vec<String> = types.into_iter().chain(plain).collect();
        if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(", ")) }
    }
}

/// A heap of objects, for programs.
#[derive(Serialize)]
struct HeapRow {
    kind: &'static str,
    /// Its name, with escapes.
    heap: String,
}

/// Lists tables.
pub fn run(arguments: &Arguments, general: &General) -> Result {
    let database = store::open_to_read(&arguments.store, general)?;
    let mut rows = Vec::new();
    for table in database.tables()? {
        let shape = match arguments.sizes {
            true => Some(store::table(&database, &table.name)?.shape()?),
            false => None,
        };
        let row = Row::new(&table.name, shape.as_ref());
        let types = (Some(table.key_type), Some(table.value_type));
        rows.push(Row { plain: Some(table.is_plain), key_type: types.0, value_type: types.1, ..row });
    }
    write_rows(&rows, &database.heaps()?, general.json)
}

/// Writes tables, and the names of heaps of objects, for people or for programs.
fn write_rows(rows: &[Row], heaps: &[String], json: bool) -> Result {
    let mut out = Output::new();
    if json {
        rows.iter().try_for_each(|row| out.json(row))?;
        let heaps = heaps.iter().map(|heap| HeapRow { kind: "heap", heap: escaped(heap.as_bytes()) });
        heaps.into_iter().try_for_each(|heap| out.json(&heap))?;
        return out.finish();
    }
    if rows.iter().any(|row| row.shape.is_some()) {
        out.line(text(rows))?;
    } else {
        rows.iter().try_for_each(|row| out.line(&row.table))?;
    }
    for heap in heaps {
        out.line(format_args!("{} (a heap of objects)", escaped(heap.as_bytes())))?;
    }
    out.finish()
}

/// Tables and their sizes, for people.
pub fn text(rows: &[Row]) -> String {
    let mut table = columns(&["table", "entries", "data", "large values", "height"], 1);
    for row in rows {
        let Some(shape) = &row.shape else { continue };
        table.add_row([
            row.table.clone() + &row.note(),
            size::count(shape.entries),
            size::bytes(shape.data_bytes),
            size::count(shape.large_values),
            shape.height.to_string(),
        ]);
    }
    render(&table)
}
