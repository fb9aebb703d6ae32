//! `vellum put`: stores a value.

use crate::{
    arguments::{Change, FormArguments, General, TableArguments, WriteArguments},
    failure::{Code, Failure, Result},
    files::{self, Attributes, Fault, Source},
    output::Output,
    size, store,
    text::escaped,
};
use serde::Serialize;
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Cursor, Read, Seek as _, Write as _},
    path::{Path, PathBuf},
};
use vellum::{Database, Error, MAX_VALUE_BYTES, Put};
use vellum_base::shown;

const HELP: &str = "\
The database and the table are created if they are not there, unless something goes wrong. A value from a file or \
from standard input is stored as it is, byte for byte; it may be larger than memory, up to 1 GiB.

Examples:
  vellum put data.vellum greeting 'hello, world'
  vellum put data.vellum '\\x00\\x01' 'line\\nline\\n'    bytes and line breaks as escapes
  vellum put data.vellum 0001 68656c6c6f --hex         the same in hexadecimal
  vellum put data.vellum photo.jpg --file photo.jpg    the contents of a file
  ls -l | vellum put data.vellum listing -             what another program prints
  vellum put data.vellum -- -key -value                what begins with a dash, behind two";

/// How much of a value of unknown length is kept in memory at most, in bytes.
const SPOOL_BYTES: u64 = 1 << 20;

/// The arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    #[command(flatten)]
    target: WriteArguments,
    /// The key
    key: OsString,
    /// The value; `-` reads it from standard input
    #[arg(required_unless_present = "file", conflicts_with = "file", allow_negative_numbers = true)]
    value: Option<OsString>,
    /// Store the contents of this file; `-` is standard input
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    table: TableArguments,
    #[command(flatten)]
    form: FormArguments,
}

/// The result, for programs.
#[derive(Serialize)]
struct Report {
    key: String,
    result: &'static str,
    value_length: u64,
    database_created: bool,
}

/// A value, ready to be stored.
struct Value {
    length: u64,
    source: Contents,
}

/// Where a value is read from.
enum Contents {
    Stream(Box<dyn Read>),
    /// A file that others may change meanwhile, as it was when it was opened.
    Shared(File, Attributes),
}

/// Puts a value.
pub fn run(arguments: &Arguments, general: &General) -> Result {
    let form = arguments.form.form(general)?;
    let key = form.decode(&arguments.key, "the key")?;
    store::check_key(&key)?;
    let path = &arguments.target.store.database;
    let mut value = match (&arguments.file, &arguments.value) {
        (Some(file), _) if file.as_os_str() != "-" => from_file(file, path)?,
        (None, Some(text)) if text != OsStr::new("-") => Value::bytes(form.decode(text, "the value")?),
        _ => spool(io::stdin().lock(), "standard input")?,
    };
    let (database, created) = store::open_or_create(&arguments.target, Change::Little)?;
    let stored = store_value(&database, &arguments.table.table, &key, &mut value);
    let put = match stored {
        Err(failure) if created => {
            // It holds only an empty table, which was not asked for.
            store::discard(database, general);
            return Err(failure);
        }
        stored => store::close_changed(database, &arguments.target, general, stored)?,
    };
    if created {
        general.remark(format_args!("created {}", shown(path)));
    }
    let result = if put == Put::Replaced { "replaced" } else { "inserted" };
    if general.json {
        let key = String::from_utf8_lossy(&form.encode(&key)).into_owned();
        let mut out = Output::new();
        out.json(&Report { key, result, value_length: value.length, database_created: created })?;
        return out.finish();
    }
    let length = size::counted(value.length, "byte", "bytes");
    general.remark(format_args!("{result} {}: {length}", escaped(&key)));
    Ok(())
}

impl Value {
    fn bytes(bytes: Vec<u8>) -> Self {
        Self { length: bytes.len() as u64, source: Contents::Stream(Box::new(Cursor::new(bytes))) }
    }
}

fn store_value(database: &Database, table: &str, key: &[u8], value: &mut Value) -> Result<Put> {
    let target = (database, table, key, value.length);
    match &mut value.source {
        Contents::Stream(stream) => store_from(target, Source::new(stream, value.length)),
        Contents::Shared(file, attributes) => store_from(target, Source::of_file(file, *attributes)),
    }
}

fn store_from<R: Read>(
    (database, table, key, length): (&Database, &str, &[u8], u64),
    mut source: Source<'_, R>,
) -> Result<Put> {
    let stored = match source.check_end() {
        Ok(()) => put_from(database, table, (key, length), &mut source),
        Err(error) => Err(Failure::io("read the value", &error)),
    };
    let changed = |how: &str| {
        Failure::new(
            Code::Io,
            format!("the file {how} while it was being read; nothing was stored, try again"),
        )
    };
    match source.fault.take() {
        None => stored,
        Some(Fault::Io(error)) => Err(Failure::io("read the value", &error)),
        Some(Fault::Shrunk) => Err(changed("became shorter")),
        Some(Fault::Grown) => Err(changed("became longer")),
        Some(Fault::Changed) => Err(changed("was changed")),
        Some(Fault::Interrupted) => Err(Failure::new(
            Code::Interrupted,
            "interrupted; nothing was stored, and the database was closed",
        )),
    }
}

/// Stores the next `length` bytes of `source`. A table that is not there is created in the same transaction: if
/// anything fails, it is not there afterwards either.
fn put_from(
    database: &Database,
    name: &str,
    (key, length): (&[u8], u64),
    source: &mut dyn Read,
) -> Result<Put> {
    match database.table(name) {
        Err(Error::NoSuchTable { .. }) => {}
        table => return Ok(table.map_err(store::of_bytes)?.put_from(key, length, source)?),
    }
    let transaction = database.begin()?;
    let table = transaction.create_table(name)?;
    let put = transaction.put_from(&table, key, length, source)?;
    transaction.commit()?;
    Ok(put)
}

fn from_file(path: &Path, database: &Path) -> Result<Value> {
    let (file, metadata) = store::open_input(path, database, "stored in itself")?;
    // The length is known only for regular files, and not for those that the kernel generates.
    if !metadata.is_file() || metadata.len() == 0 || files::is_kernels_state(&file) {
        return spool(file, &shown(path).to_string());
    }
    let attributes = Attributes::of(&metadata);
    check_length(attributes.length, &shown(path).to_string())?;
    Ok(Value { length: attributes.length, source: Contents::Shared(file, attributes) })
}

fn check_length(length: u64, what: &str) -> Result {
    if length > MAX_VALUE_BYTES {
        let most = size::bytes(MAX_VALUE_BYTES);
        let message = format!("{what} is longer than a value can be ({most}); divide it among several keys");
        return Err(Failure::usage(message));
    }
    Ok(())
}

/// Reads a stream to its end, to know its length before the database is opened: into memory if it is short, into a
/// temporary file otherwise.
fn spool(mut from: impl Read, what: &str) -> Result<Value> {
    let reading = |error| Failure::io(format_args!("read {what}"), &error);
    let mut buffer = Vec::new();
    from.by_ref().take(SPOOL_BYTES).read_to_end(&mut buffer).map_err(reading)?;
    if (buffer.len() as u64) < SPOOL_BYTES {
        return Ok(Value::bytes(buffer));
    }
    let keeping = |error| {
        let directory = std::env::temp_dir();
        let what = format!("keep {what} in a temporary file in {}", shown(&directory));
        Failure::io(what, &error).and("Set TMPDIR to a directory with more room, or use --file")
    };
    let mut file = tempfile::tempfile().map_err(keeping)?;
    file.write_all(&buffer).map_err(keeping)?;
    let (mut from, mut length) = (from.take(MAX_VALUE_BYTES), SPOOL_BYTES);
    loop {
        // Not `io::copy`: what cannot be read is told from what cannot be kept.
        let done = files::read_retrying(&mut from, &mut buffer).map_err(reading)?;
        if done == 0 {
            break;
        }
        file.write_all(buffer.get(..done).unwrap_or_default()).map_err(keeping)?;
        length += done as u64;
    }
    check_length(length, what)?;
    file.rewind().map_err(keeping)?;
    Ok(Value { length, source: Contents::Stream(Box::new(file)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_that_fails_is_not_taken_for_a_full_disk() {
        struct Failing;
        impl Read for Failing {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("the device is gone"))
            }
        }
        for length in [0, SPOOL_BYTES, 3 * SPOOL_BYTES + 5] {
            let failure = spool(io::repeat(7).take(length).chain(Failing), "it").err().unwrap();
            assert_eq!(
                (failure.code, &failure.message[..]),
                (Code::Io, "cannot read it: the device is gone")
            );
        }
        let length = 3 * SPOOL_BYTES + 5;
        let value = spool(io::repeat(7).take(length), "it").ok().unwrap();
        let Contents::Stream(mut stream) = value.source else { panic!("it is a file") };
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        assert!(value.length == length && bytes == vec![7; length as usize]);
    }
}
