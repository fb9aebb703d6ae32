//! `vellum load`: stores sorted lines of keys and values in an empty table.

mod dump;
mod lines;

use crate::{
    arguments::{Change, FormArguments, General, TableArguments, WriteArguments},
    dump::FIRST,
    failure::{Code, Failure, Result},
    input::Input,
    output::Output,
    progress::Progress,
    signals, size, store,
    text::Form,
};
use lines::{End, Lines};
use serde::Serialize;
use std::{path::PathBuf, time::Instant};
use vellum::{
    AccessError, BulkOptions, Database, Error, MAX_KEY_BYTES, MAX_VALUE_BYTES, Table, TableOptions,
};
use vellum_base::shown;

const HELP: &str = "\
Each line is a key, a tab and a value, as `vellum scan --full` prints them; a line without a tab is a key with an empty \
value. Lines must be sorted by the bytes of their keys, each key once, and the table must be empty: then it is built from \
its leaves up, several times as fast as entry by entry, and becomes visible as a whole. If anything goes wrong, nothing \
is stored. The database and the table are created if they are not there, unless something goes wrong.

A line ends with a line feed: a carriage return before it, as files from Windows have it, belongs to the value.

Escapes do not sort as the bytes that they stand for; what has to be sorted, and has keys that are not text, is better \
written with --hex.

With --dump the lines are what `vellum dump` has printed: its tables are created, with their types, and filled. None of \
them may be there yet. If anything goes wrong, none of them is afterwards, also if the command is killed. Nothing may \
follow the last line of a dump.

Examples:
  vellum load data.vellum words.tsv --table words
  LC_ALL=C sort -t \"$(printf '\\t')\" -k1,1 words.tsv | vellum load data.vellum -    lines that are not sorted yet
  vellum scan old.vellum --full | vellum load new.vellum -    a copy of a table, without its holes
  vellum load data.vellum words.tsv --fill 80              leave room for what will be stored in between
  vellum dump old.vellum | vellum load new.vellum - --dump    a copy of all tables, without their holes";

/// How often the bar is updated, in lines. Signals are checked whenever input is read.
const LINES_AT_ONCE: u64 = 4096;

/// The arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    #[command(flatten)]
    target: WriteArguments,
    /// The file with the lines; `-` is standard input
    file: PathBuf,
    #[command(flatten)]
    table: TableArguments,
    #[command(flatten)]
    form: FormArguments,
    /// How full pages become, in percent
    #[arg(long, value_name = "PERCENT", default_value = "100", value_parser = clap::value_parser!(u8).range(50..=100))]
    fill: u8,
    /// Create the table, if it is not there, as a plain one: without versions, and of no use to transactions
    #[arg(long)]
    plain: bool,
    /// The lines are a dump of a whole database: create the tables that are in it
    #[arg(long, conflicts_with_all = ["table", "hex", "raw", "plain"])]
    dump: bool,
}

impl Arguments {
    fn options(&self) -> BulkOptions {
        BulkOptions::default().fill_percent(self.fill)
    }
}

/// The result, for programs.
#[derive(Serialize)]
struct Summary {
    kind: &'static str,
    entries: u64,
    bytes: u64,
    database_created: bool,
    seconds: f64,
}

/// Loads a file.
pub fn run(arguments: &Arguments, general: &General) -> Result {
    let path = &arguments.target.store.database;
    let mut input = if arguments.file.as_os_str() == "-" {
        Input::standard().map_err(|error| Failure::io("read standard input", &error))?
    } else {
        Input::of(store::open_input(&arguments.file, path, "loaded from itself")?.0)
    };
    let mut lines = Lines::new(&mut input);
    let (database, created) = store::open_or_create(&arguments.target, Change::Much)?;
    let start = Instant::now();
    let loaded = if arguments.dump {
        dump::load((&database, &arguments.options()), lines, general.quiet)
    } else {
        load_table(arguments, general, &database, &mut lines)
    };
    let loaded = loaded.map_err(|failure| match failure.code {
        Code::Interrupted => {
            failure.and("Nothing was stored, and the database was closed; run the same command again")
        }
        _ => failure.and("Nothing was stored"),
    });
    if created && let Err(failure) = loaded {
        // Nothing was stored, and an empty database was not asked for.
        store::discard(database, general);
        return Err(failure);
    }
    let closing = Progress::steps(general.quiet, "writing", None);
    let loaded = store::close_changed(database, &arguments.target, general, loaded);
    drop(closing);
    let (entries, bytes) = loaded?;
    if created {
        general.remark(format_args!("created {}", shown(path)));
    }
    let seconds = start.elapsed().as_secs_f64();
    let mut out = Output::new();
    if general.json {
        out.json(&Summary { kind: "summary", entries, bytes, database_created: created, seconds })?;
    } else {
        let rate = size::bytes((bytes as f64 / seconds.max(1e-9)) as u64);
        let entries = size::counted(entries, "entry", "entries");
        out.line(format_args!("loaded {entries} ({}) in {seconds:.2} s, {rate}/s", size::bytes(bytes)))?;
    }
    out.finish()
}

/// Loads all lines into the table, which is created if it does not exist, and in that case dropped again if loading
/// fails.
fn load_table(
    arguments: &Arguments,
    general: &General,
    database: &Database,
    lines: &mut Lines<'_>,
) -> Result<(u64, u64)> {
    let name = &arguments.table.table;
    let (table, created) = match database.table(name) {
        Err(Error::NoSuchTable { .. }) => {
            (database.create_table_with(name, TableOptions::default().versions(!arguments.plain))?, true)
        }
        table => (table.map_err(store::of_bytes)?, false),
    };
    let loaded = load(arguments, general, &table, lines);
    drop(table);
    if loaded.is_err() && created {
        // The first error is more useful than one about a remaining empty table.
        let _ = database.drop_table(name);
    }
    loaded
}

/// Loads all lines. Returns their number, and the bytes of their keys and values.
fn load(
    arguments: &Arguments,
    general: &General,
    table: &Table,
    lines: &mut Lines<'_>,
) -> Result<(u64, u64)> {
    let form = arguments.form.input_form();
    let mut loader = table.bulk_loader_with(&arguments.options()).map_err(|error| match error {
        Error::Access(AccessError::NotEmpty) => Failure::from(error).and("--table names another table"),
        error => error.into(),
    })?;
    let progress = Progress::bytes(general.quiet, "loading", None);
    let (mut value, mut bytes, mut shown) = (Vec::new(), 0, 0);
    let mut was_escaped = false;
    while let Some(end) = lines.begin()? {
        let number = lines.number;
        if number == 1 && end == End::Line && lines.field == FIRST.as_bytes() {
            return Err(Failure::usage("this is a dump of a database; load it with --dump"));
        }
        let key = lines.key(form)?;
        match end {
            End::Tab => lines.value(form, &mut value)?,
            End::Line => value.clear(),
        }
        let is_escaped = form == Form::Escaped && lines.field.contains(&b'\\');
        let has_escapes = is_escaped || was_escaped;
        loader.push(&key, &value).map_err(|error| refused(error, number, (&key, &value), has_escapes))?;
        was_escaped = is_escaped;
        bytes += (key.len() + value.len()) as u64;
        if number.is_multiple_of(LINES_AT_ONCE) {
            progress.advance(bytes - shown);
            shown = bytes;
        }
    }
    signals::check()?;
    Ok((loader.finish()?, bytes))
}

fn refused(error: Error, number: u64, (key, value): (&[u8], &[u8]), has_escapes: bool) -> Failure {
    let advice = advice(&error, has_escapes);
    let failure = Failure::from(error).after(format_args!("line {number}"));
    if advice.is_empty() || key.len() > MAX_KEY_BYTES || value.len() as u64 > MAX_VALUE_BYTES {
        failure
    } else {
        failure.and(advice)
    }
}

/// Advice about keys that are not in order. Sorting lines does not take escapes into account, which this key or the one
/// before may have been written with.
fn advice(error: &Error, has_escapes: bool) -> &'static str {
    match error {
        Error::Access(AccessError::KeyOrder { .. }) if has_escapes => {
            "Escapes do not sort as the bytes that they stand for: write the lines in hexadecimal, as `vellum scan \
             --full --hex` does, sort those, and load them with --hex"
        }
        Error::Access(AccessError::KeyOrder { .. }) => {
            "`LC_ALL=C sort -t \"$(printf '\\t')\" -k1,1` sorts lines by the bytes of their keys"
        }
        Error::Access(AccessError::KeyTwice { .. }) if !has_escapes => {
            "`LC_ALL=C sort -u -t \"$(printf '\\t')\" -k1,1` sorts lines and keeps one of each key"
        }
        _ => "",
    }
}
