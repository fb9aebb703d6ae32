//! Loading a dump: all its tables at once.

use super::{check_signals, decode, read_line};
use crate::{
    dump::{EndLine, FIRST, Line, TableLine},
    failure::{Code, Failure, Result},
    progress::Progress,
    text::Form,
};
use std::io::BufRead;
use vellum::{BulkLoader, BulkOptions, Database, Error, Table, Transaction};

/// The lines of a dump.
struct Lines<'l> {
    source: &'l mut dyn BufRead,
    line: Vec<u8>,
    /// The number of the line.
    number: u64,
    /// The bytes of keys and values.
    bytes: u64,
    shown: u64,
    progress: Progress,
}

/// Loads all tables, none of which may exist. Returns the number of entries, and the bytes of keys and values.
pub fn load(
    (database, options): (&Database, &BulkOptions),
    source: &mut dyn BufRead,
    quiet: bool,
) -> Result<(u64, u64)> {
    let progress = Progress::bytes(quiet, "loading", None);
    let mut lines = Lines { source, line: Vec::new(), number: 0, bytes: 0, shown: 0, progress };
    // Transactions cannot use plain tables: these are filled directly, and dropped if anything fails.
    let mut plain = Vec::new();
    let transaction = database.begin()?;
    let loaded = load_tables((database, &transaction, options), &mut lines, &mut plain)
        .and_then(|loaded| Ok(transaction.commit().map(|()| loaded)?));
    let entries = loaded.map_err(|failure| {
        for name in plain {
            // The first error is more useful.
            let _ = database.drop_table(&name);
        }
        failure.and("Nothing was stored")
    })?;
    Ok((entries, lines.bytes))
}

fn load_tables(
    (database, transaction, options): (&Database, &Transaction, &BulkOptions),
    lines: &mut Lines<'_>,
    plain: &mut Vec<String>,
) -> Result<u64> {
    if !lines.next()? || lines.line != FIRST.as_bytes() {
        return Err(Failure::usage(format!(
            "this is no dump: its first line is not `{FIRST}`; without --dump, lines are loaded"
        )));
    }
    let mut there = EndLine { tables: 0, entries: 0 };
    let mut next = lines.begin_table()?;
    while let Begun::Table(line) = next {
        there.tables += 1;
        let create =
            |created: vellum::Result<Table>| created.map_err(|error| lines_failure(error, lines.number));
        next = if line.is_plain {
            let table = create(database.create_table_with(&line.name[..], line.options()))?;
            plain.push(line.name.clone());
            lines.load_entries(table.bulk_loader_with(options)?, &mut there)?
        } else {
            let table = create(transaction.create_table_with(&line.name[..], line.options()))?;
            lines.load_entries(transaction.bulk_loader_with(&table, options)?, &mut there)?
        };
    }
    let Begun::End(end) = next else { return Err(lines.incomplete()) };
    if end != there {
        return Err(Failure::new(
            Code::Damaged,
            format!(
                "the dump says that it has {} tables with {} entries, and has {} with {}: part of it is missing",
                end.tables, end.entries, there.tables, there.entries
            ),
        ));
    }
    Ok(end.entries)
}

/// What follows the entries of a table.
enum Begun {
    Table(TableLine),
    End(EndLine),
    /// The lines have ended without an end line.
    Nothing,
}

impl Lines<'_> {
    /// Reads the next line; false if there is none.
    fn next(&mut self) -> Result<bool> {
        self.number += 1;
        if self.number.is_multiple_of(super::LINES_AT_ONCE) {
            check_signals()?;
            self.progress.advance(self.bytes - self.shown);
            self.shown = self.bytes;
        }
        read_line(self.source, &mut self.line, self.number)
    }

    /// Reads the line that begins a table, or the end line.
    fn begin_table(&mut self) -> Result<Begun> {
        if !self.next()? {
            return Ok(Begun::Nothing);
        }
        match Line::of(&self.line) {
            Some(Line::Table(table)) => Ok(Begun::Table(table)),
            Some(Line::End(end)) => Ok(Begun::End(end)),
            _ => Err(self.wrong()),
        }
    }

    /// Loads the entries of a table, and returns what follows them.
    fn load_entries(&mut self, mut loader: BulkLoader<'_>, there: &mut EndLine) -> Result<Begun> {
        loop {
            if !self.next()? {
                return Ok(Begun::Nothing);
            }
            let (key, value) = match Line::of(&self.line) {
                Some(Line::Entry(key, value)) => (key, value),
                Some(Line::Table(table)) => {
                    loader.finish()?;
                    return Ok(Begun::Table(table));
                }
                Some(Line::End(end)) => {
                    loader.finish()?;
                    return Ok(Begun::End(end));
                }
                None => return Err(self.wrong()),
            };
            let key = decode(Form::Escaped, key, "the key", self.number)?;
            let value = decode(Form::Escaped, value, "the value", self.number)?;
            loader.push(&key, &value).map_err(|error| lines_failure(error, self.number))?;
            there.entries += 1;
            self.bytes += (key.len() + value.len()) as u64;
        }
    }

    fn wrong(&self) -> Failure {
        let message = format!(
            "line {} is none of a dump: it is neither an entry nor the beginning of a table",
            self.number
        );
        Failure::new(Code::Damaged, message)
    }

    fn incomplete(&self) -> Failure {
        Failure::new(
            Code::Damaged,
            format!("the dump ends after line {}, without its last line: it is incomplete", self.number - 1),
        )
    }
}

fn lines_failure(error: Error, number: u64) -> Failure {
    Failure::from(error).after(format_args!("line {number}"))
}
