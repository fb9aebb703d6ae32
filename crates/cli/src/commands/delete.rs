//! `vellum delete`: removes a key.

use super::get::no_such_key;
use crate::{
    arguments::{Change, FormArguments, General, TableArguments, WriteArguments},
    failure::Result,
    output::Output,
    store,
    text::escaped,
};
use std::ffi::OsString;
use vellum::Database;

const HELP: &str = "\
Examples:
  vellum delete data.vellum greeting
  vellum delete data.vellum '\\x00\\x01'     a key that is not text
  vellum delete data.vellum 0001 --hex     the same in hexadecimal

Exits with 1 if there is no such key.";

/// The arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    #[command(flatten)]
    target: WriteArguments,
    /// The key
    key: OsString,
    #[command(flatten)]
    table: TableArguments,
    #[command(flatten)]
    form: FormArguments,
}

/// Deletes a key.
pub fn run(arguments: &Arguments, general: &General) -> Result {
    let form = arguments.form.form(general)?;
    let key = form.decode(&arguments.key, "the key")?;
    store::check_key(&key)?;
    let database = store::open_to_write(&arguments.target, Change::Little)?;
    let removed = remove(&database, &arguments.table.table, &key);
    if !store::close_changed(database, &arguments.target, general, removed)? {
        return Err(no_such_key(&key, &arguments.table.table, &arguments.target.store.database));
    }
    if general.json {
        let key = String::from_utf8_lossy(&form.encode(&key)).into_owned();
        let mut out = Output::new();
        out.json(&serde_json::json!({ "key": key, "result": "deleted" }))?;
        return out.finish();
    }
    general.remark(format_args!("deleted {}", escaped(&key)));
    Ok(())
}

fn remove(database: &Database, table: &str, key: &[u8]) -> Result<bool> {
    Ok(store::table(database, table)?.remove(key)?)
}
