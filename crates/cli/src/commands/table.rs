//! `vellum drop-table`, `clear-table` and `rename-table`: operations on whole tables.

use crate::{
    arguments::{Change, General, WriteArguments},
    failure::{Failure, Result},
    output::{Output, shell_path},
    store,
    text::{escaped, named, table_name},
};
use serde_json::json;
use vellum::{Database, Error};

const DROP_HELP: &str = "\
The table and all that is in it are gone for good. Their room is used again; `vellum compact` makes the file shorter.

Examples:
  vellum tables data.vellum --sizes          what there is
  vellum drop-table data.vellum old --yes    remove the table `old` and all its entries

Exits with 1 if there is no such table.";

const CLEAR_HELP: &str = "\
All entries are gone for good; the table stays, with its types. Their room is used again; `vellum compact` makes the file shorter.

Example:
  vellum clear-table data.vellum main --yes    remove all entries of the table `main`

Exits with 1 if there is no such table.";

const RENAME_HELP: &str = "\
Example:
  vellum rename-table data.vellum main fruit    the table `main` is called `fruit` from now on

Exits with 1 if there is no such table, and with 2 if there already is one of the new name.";

/// The arguments of `vellum drop-table`.
#[derive(clap::Args)]
#[command(after_help = DROP_HELP)]
pub struct DropArguments {
    #[command(flatten)]
    removal: Removal,
}

/// The arguments of `vellum clear-table`.
#[derive(clap::Args)]
#[command(after_help = CLEAR_HELP)]
pub struct ClearArguments {
    #[command(flatten)]
    removal: Removal,
}

/// Which table loses its entries.
#[derive(clap::Args)]
struct Removal {
    #[command(flatten)]
    target: WriteArguments,
    /// The table
    #[arg(value_parser = table_name)]
    table: String,
    /// Confirm: what is removed cannot be restored
    #[arg(long, short)]
    yes: bool,
}

/// The arguments of `vellum rename-table`.
#[derive(clap::Args)]
#[command(after_help = RENAME_HELP)]
pub struct RenameArguments {
    #[command(flatten)]
    target: WriteArguments,
    /// The table
    #[arg(value_parser = table_name)]
    table: String,
    /// Its new name
    #[arg(value_parser = table_name)]
    new_name: String,
}

/// Drops a table.
pub fn drop(arguments: &DropArguments, general: &General) -> Result {
    remove(&arguments.removal, general, ("drop-table", "dropped"), Database::drop_table)
}

/// Removes all entries of a table.
pub fn clear(arguments: &ClearArguments, general: &General) -> Result {
    remove(&arguments.removal, general, ("clear-table", "cleared"), Database::clear_table)
}

fn remove(
    arguments: &Removal,
    general: &General,
    (command, done): (&str, &str),
    change: fn(&Database, &str) -> vellum::Result<()>,
) -> Result {
    let Removal { target, table, yes } = arguments;
    if !yes {
        let database = store::open_to_read(&target.store, general)?;
        if !database.tables()?.iter().any(|there| there.name == *table) {
            return Err(store::no_such_table(&database, table, ""));
        }
        let (path, table) = (shell_path(&target.store.database), named(table));
        return Err(Failure::usage(format!(
            "{command} removes all entries of the table {table} for good; repeat it with --yes if that is meant \
             (`vellum tables {path} --sizes` tells what is in it)"
        )));
    }
    change_table((target, general), table, |database| change(database, table))?;
    let name = escaped(table.as_bytes());
    if general.json {
        return answer(&json!({ "table": name, "result": done }));
    }
    general.remark(format_args!("{done} {name}"));
    Ok(())
}

/// Renames a table.
pub fn rename(arguments: &RenameArguments, general: &General) -> Result {
    let RenameArguments { target, table, new_name } = arguments;
    change_table((target, general), table, |database| database.rename_table(table, new_name))?;
    let (old, new) = (escaped(table.as_bytes()), escaped(new_name.as_bytes()));
    if general.json {
        return answer(&json!({ "table": old, "result": "renamed", "new_name": new }));
    }
    general.remark(format_args!("renamed {old} to {new}"));
    Ok(())
}

/// Changes a table of a database, and closes the database.
fn change_table(
    (target, general): (&WriteArguments, &General),
    table: &str,
    change: impl FnOnce(&Database) -> vellum::Result<()>,
) -> Result {
    let database = store::open_to_write(target, Change::Little)?;
    let changed = change(&database).map_err(|error| match error {
        Error::NoSuchTable { .. } => store::no_such_table(&database, table, ""),
        Error::TableExists { .. } => {
            Failure::from(error).and("Choose another name, or drop or rename that table first")
        }
        error => error.into(),
    });
    store::close_changed(database, target, general, changed)
}

fn answer(answer: &serde_json::Value) -> Result {
    let mut out = Output::new();
    out.json(answer)?;
    out.finish()
}
