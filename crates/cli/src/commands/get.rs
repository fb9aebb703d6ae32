//! `vellum get`: the value of a key.

use crate::{
    arguments::{FormArguments, General, StoreArguments, TableArguments},
    failure::{Failure, Result},
    output::Output,
    store,
    text::{Encoder, Form, Target, escaped, named},
};
use std::{
    ffi::OsString,
    fs::File,
    io::Write,
    path::{Path, PathBuf},
};
use vellum::ValueReader;
use vellum_base::shown;

const HELP: &str = "\
The value is written as it is, byte for byte, unless standard output is a terminal: there, bytes that are not \
text are shown as escapes. Values larger than memory are written in parts.

Examples:
  vellum get data.vellum letters/1.txt                 look at a value
  vellum get data.vellum photo.jpg > photo.jpg         take it out, byte for byte
  vellum get data.vellum photo.jpg --output photo.jpg  the same
  vellum get data.vellum '\\x00\\x01' --escape           a key that is not text, a value to be given back
  vellum get data.vellum 0001 --hex                    the same, in hexadecimal
  vellum get data.vellum 0001 --hex --output -         a key in hexadecimal, a value as it is

Exits with 1 if there is no such key.";

/// The arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    #[command(flatten)]
    store: StoreArguments,
    /// The key
    key: OsString,
    #[command(flatten)]
    table: TableArguments,
    #[command(flatten)]
    form: FormArguments,
    /// Write the value in the escaped form, which `put` takes back, and a line break
    #[arg(long, conflicts_with_all = ["hex", "raw", "output"])]
    escape: bool,
    /// Write the value as it is to this file, replacing it; `-` is standard output
    #[arg(long, short, value_name = "FILE", conflicts_with = "json")]
    output: Option<PathBuf>,
}

/// Gets a value.
pub fn run(arguments: &Arguments, general: &General) -> Result {
    let form = arguments.form.form(general)?;
    let key = form.decode(&arguments.key, "the key")?;
    store::check_key(&key)?;
    let database = store::open_to_read(&arguments.store, general)?;
    let table = store::table(&database, &arguments.table.table)?;
    let Some(mut reader) = table.reader(&key)? else {
        return Err(no_such_key(&key, table.name(), &arguments.store.database));
    };
    match &arguments.output {
        Some(path) if path.as_os_str() != "-" => write_file(&mut reader, path, &arguments.store.database),
        Some(_) => write_text(&mut reader, Form::Raw, Target::Plain, false),
        None if general.json => write_json(&key, &mut reader, form),
        None if form == Form::Hex => write_text(&mut reader, form, Target::Plain, true),
        None if arguments.escape => write_text(&mut reader, form, Target::Plain, true),
        None if form == Form::Escaped && Output::is_terminal() => {
            write_text(&mut reader, form, Target::Terminal, true)
        }
        None => write_text(&mut reader, Form::Raw, Target::Plain, false),
    }
}

/// The failure that a key does not exist.
pub fn no_such_key(key: &[u8], table: &str, database: &Path) -> Failure {
    Failure::no(format!(
        "there is no key {} in table {} of {}; `vellum scan` lists the keys that there are",
        escaped(key),
        named(table),
        shown(database)
    ))
}

fn write_text(reader: &mut ValueReader<'_>, form: Form, target: Target, is_line: bool) -> Result {
    let mut out = Output::new();
    let mut last = None;
    let mut encoder = Encoder::new(&mut out, form, target);
    store::read_parts(reader, u64::MAX, |part| {
        last = part.last().copied().or(last);
        encoder.write(part).map_err(|error| Failure::output(&error))
    })?;
    encoder.finish().map_err(|error| Failure::output(&error))?;
    if is_line && !(target == Target::Terminal && last == Some(b'\n')) {
        out.line("")?;
    }
    out.finish()
}

fn write_json(key: &[u8], reader: &mut ValueReader<'_>, form: Form) -> Result {
    let mut out = Output::new();
    write_entry(&mut out, form, key, reader.len(), Some(reader))?;
    out.finish()
}

/// Writes an entry as a JSON object on its own line; the value is written in parts, however large.
pub fn write_entry(
    out: &mut Output,
    form: Form,
    key: &[u8],
    length: u64,
    value: Option<&mut ValueReader<'_>>,
) -> Result {
    let failed = |error| Failure::output(&error);
    let text = |out: &mut Output, name: &str, bytes: &mut dyn FnMut(&mut JsonText<'_>) -> Result| {
        write!(out, "\"{name}\":\"").map_err(failed)?;
        let mut encoder = Encoder::new(&mut *out, form, Target::Json);
        bytes(&mut encoder)?;
        encoder.finish().map_err(failed)?;
        write!(out, "\",").map_err(failed)
    };
    write!(out, "{{").map_err(failed)?;
    text(out, "key", &mut |encoder| encoder.write(key).map_err(failed))?;
    if let Some(reader) = value {
        text(out, "value", &mut |encoder| {
            store::read_parts(reader, u64::MAX, |part| encoder.write(part).map_err(failed))
        })?;
    }
    out.line(format_args!("\"value_length\":{length}}}"))
}

type JsonText<'o> = Encoder<&'o mut Output>;

fn write_file(reader: &mut ValueReader<'_>, path: &Path, database: &Path) -> Result {
    let failed = |error| Failure::file("write", path, &error);
    let mut file = File::options().write(true).create(true).truncate(false).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if std::fs::metadata(database).is_ok_and(|database| store::is_same_file(&database, &metadata)) {
        return Err(Failure::usage("the value cannot be written to the database file itself; name another"));
    }
    if metadata.is_file() {
        file.set_len(0).map_err(failed)?;
    }
    let incomplete = |failure: Failure| failure.and(format_args!("{} is incomplete", shown(path)));
    store::read_parts(reader, u64::MAX, |part| file.write_all(part).map_err(failed)).map_err(incomplete)
}
