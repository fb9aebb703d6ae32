//! Loading a dump: all its tables at once.

use super::lines::{End, Lines};
use crate::{
    dump::{EndLine, FIRST, Line, MARK, TableLine},
    failure::{Code, Failure, Result},
    progress::Progress,
    text::Form,
};
use vellum::{BulkLoader, BulkOptions, Database, Error, Transaction};

/// The maximum length of a line that is not an entry, in bytes.
const MARKED_BYTES_MAX: usize = 64 << 10;

/// A dump that is being read.
struct Dump<'l> {
    lines: Lines<'l>,
    /// The current line, if it is not an entry.
    line: Vec<u8>,
    /// The value of the current line, if it is an entry.
    value: Vec<u8>,
    /// The bytes of keys and values.
    bytes: u64,
    shown: u64,
    progress: Progress,
}

/// Loads all tables, none of which may exist. Returns the number of entries, and the bytes of keys and values.
pub fn load(
    (database, options): (&Database, &BulkOptions),
    lines: Lines<'_>,
    quiet: bool,
) -> Result<(u64, u64)> {
    let progress = Progress::bytes(quiet, "loading", None);
    let mut dump = Dump { lines, line: Vec::new(), value: Vec::new(), bytes: 0, shown: 0, progress };
    let transaction = database.begin()?;
    let entries = load_tables((&transaction, options), &mut dump)?;
    transaction.commit()?;
    Ok((entries, dump.bytes))
}

fn load_tables((transaction, options): (&Transaction, &BulkOptions), dump: &mut Dump<'_>) -> Result<u64> {
    let first = dump.lines.begin()?;
    if first != Some(End::Line) || dump.lines.field != FIRST.as_bytes() {
        return Err(Failure::usage(format!(
            "this is no dump: its first line is not `{FIRST}`; without --dump, lines are loaded"
        )));
    }
    let mut there = EndLine { tables: 0, entries: 0 };
    let mut next = dump.begin_table()?;
    while let Begun::Table(line) = next {
        there.tables += 1;
        let table = transaction.create_table_with(&line.name[..], line.options());
        let table = table.map_err(|error| lines_failure(error, dump.lines.number))?;
        next = dump.load_entries(transaction.bulk_loader_with(&table, options)?, &mut there)?;
    }
    let Begun::End(end) = next else { return Err(dump.incomplete()) };
    if end != there {
        return Err(Failure::new(
            Code::Damaged,
            format!(
                "the dump says that it has {} tables with {} entries, and has {} with {}: part of it is missing",
                end.tables, end.entries, there.tables, there.entries
            ),
        ));
    }
    dump.expect_nothing()?;
    Ok(end.entries)
}

/// What follows the entries of a table.
enum Begun {
    Table(TableLine),
    End(EndLine),
    /// The lines have ended without an end line.
    Nothing,
}

/// A line of a dump.
enum Read {
    /// An entry with this key; its value is read.
    Entry(Vec<u8>),
    Other(Line),
}

impl Dump<'_> {
    /// Reads the next line; none if there is none.
    fn next(&mut self) -> Result<Option<Read>> {
        let Some(end) = self.lines.begin()? else { return Ok(None) };
        if self.lines.number.is_multiple_of(super::LINES_AT_ONCE) {
            self.progress.advance(self.bytes - self.shown);
            self.shown = self.bytes;
        }
        if self.lines.field.first() == Some(&MARK) {
            self.line.clone_from(&self.lines.field);
            if end == End::Tab {
                self.line.push(b'\t');
            }
            if end == End::Tab && !self.lines.rest(&mut self.line, MARKED_BYTES_MAX)? {
                return Err(self.wrong());
            }
            return Line::of(&self.line).map(|line| Some(Read::Other(line))).ok_or_else(|| self.wrong());
        }
        if end == End::Line {
            return Err(self.wrong());
        }
        let key = self.lines.key(Form::Escaped)?;
        self.lines.value(Form::Escaped, &mut self.value)?;
        Ok(Some(Read::Entry(key)))
    }

    /// Reads the line that begins a table, or the end line.
    fn begin_table(&mut self) -> Result<Begun> {
        match self.next()? {
            None => Ok(Begun::Nothing),
            Some(Read::Other(Line::Table(table))) => Ok(Begun::Table(table)),
            Some(Read::Other(Line::End(end))) => Ok(Begun::End(end)),
            Some(Read::Entry(_)) => Err(self.wrong()),
        }
    }

    /// Loads the entries of a table, and returns what follows them.
    fn load_entries(&mut self, mut loader: BulkLoader<'_>, there: &mut EndLine) -> Result<Begun> {
        loop {
            let key = match self.next()? {
                Some(Read::Entry(key)) => key,
                Some(Read::Other(Line::Table(table))) => {
                    loader.finish()?;
                    return Ok(Begun::Table(table));
                }
                Some(Read::Other(Line::End(end))) => {
                    loader.finish()?;
                    return Ok(Begun::End(end));
                }
                None => return Ok(Begun::Nothing),
            };
            let pushed = loader.push(&key, &self.value);
            pushed.map_err(|error| lines_failure(error, self.lines.number))?;
            there.entries += 1;
            self.bytes += (key.len() + self.value.len()) as u64;
        }
    }

    /// Makes sure that the input ends with the end line: what follows it would not be loaded.
    fn expect_nothing(&mut self) -> Result {
        if self.lines.begin()?.is_none() {
            return Ok(());
        }
        let message = format!(
            "line {}: there is more after the last line of the dump; load one dump at a time",
            self.lines.number
        );
        Err(Failure::new(Code::Damaged, message))
    }

    fn wrong(&self) -> Failure {
        let message = format!(
            "line {} is none of a dump: it is neither an entry nor the beginning of a table",
            self.lines.number
        );
        Failure::new(Code::Damaged, message)
    }

    fn incomplete(&self) -> Failure {
        Failure::new(
            Code::Damaged,
            format!(
                "the dump ends after line {}, without its last line: it is incomplete",
                self.lines.number - 1
            ),
        )
    }
}

fn lines_failure(error: Error, number: u64) -> Failure {
    Failure::from(error).after(format_args!("line {number}"))
}
