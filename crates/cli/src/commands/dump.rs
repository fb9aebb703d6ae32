//! `vellum dump`: a whole database as text.

use crate::{
    arguments::{General, StoreArguments},
    dump::{self, EndLine, FIRST, TableLine},
    failure::{Code, Failure, Result, verdict},
    output::Output,
    progress::remark,
    salvage, size, store,
    text::{Encoder, Form, Target, escaped, named, table_name},
};
use std::io::Write as _;
use vellum::{Database, Piece, Salvage, TableInformation};

const HELP: &str = "\
All tables, with their types and all their entries, as they are at one moment, as lines of text: to be looked at, compared, kept, and \
loaded into a new database by `vellum load --dump`, also by another version of Vellum. The first line is `!vellum dump 1`. Each table \
begins with a line of `!table`, its name, the types of its keys and values, and `plain` or `versions`; its entries follow, each a key, a \
tab and a value, with escapes. The last line is `!end` with the numbers of tables and entries: without it a dump is incomplete. A \
backup (`vellum backup`) is smaller and faster, and can be made while a program uses the database.

Examples:
  vellum dump data.vellum > data.dump
  vellum load new.vellum data.dump --dump
  vellum dump data.vellum --table words --table names | gzip > some.dump.gz
  zcat some.dump.gz | vellum load new.vellum - --dump
  vellum dump damaged.vellum --salvage > saved.dump       what can still be read; exits with 3 if anything is lost";

/// The arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Only this table; may be given several times
    #[arg(long = "table", value_name = "NAME", value_parser = table_name)]
    tables: Vec<String>,
    /// Of a damaged database, dump what can still be read, and say on standard error what is lost; changes nothing
    #[arg(long)]
    salvage: bool,
}

/// Writes a dump.
pub fn run(arguments: &Arguments, general: &General) -> Result {
    if general.json {
        return Err(Failure::usage(
            "a dump has a form of its own, which is not JSON; `vellum scan --json` prints a table",
        ));
    }
    let out = if arguments.salvage { Output::before_verdict() } else { Output::new() };
    let mut dump = Dump { out, end: EndLine { tables: 0, entries: 0 } };
    if arguments.salvage {
        return dump.salvaged(arguments, general);
    }
    let database = store::open_to_read(&arguments.store, general)?;
    for name in &arguments.tables {
        store::table(&database, name)?;
    }
    if arguments.tables.is_empty()
        && let Some(heap) = database.heaps()?.first()
    {
        return Err(Failure::usage(format!(
            "the database has the heap of objects {}, which a dump cannot hold: dump tables by their names (`--table`), or \
             take a backup",
            named(heap)
        )));
    }
    dump.out.line(FIRST)?;
    for table in database.tables()? {
        if arguments.wants(&table.name) {
            dump.table(&database, &table)?;
        }
    }
    dump.finish(general)
}

impl Arguments {
    fn wants(&self, table: &str) -> bool {
        self.tables.is_empty() || self.tables.iter().any(|name| name == table)
    }
}

/// A dump that is being written.
struct Dump {
    out: Output,
    end: EndLine,
}

impl Dump {
    fn begin_table(&mut self, table: &TableLine) -> Result {
        self.end.tables += 1;
        self.out.line(table)
    }

    fn table(&mut self, database: &Database, information: &TableInformation) -> Result {
        let TableInformation { name, key_type, value_type, is_plain, .. } = information;
        let types = (key_type.clone(), value_type.clone());
        self.begin_table(&TableLine { name: name.clone(), types, is_plain: *is_plain })?;
        let table = store::table(database, name)?;
        let mut cursor = table.cursor(..)?;
        let failed = |error| Failure::output(&error);
        while let Some(entry) = cursor.next()? {
            let Some(mut reader) = table.reader(entry.key())? else {
                return Err(store::not_found_again(entry.key(), name));
            };
            self.begin_entry(entry.key())?;
            let mut encoder = Encoder::new(&mut self.out, Form::Escaped, Target::Plain);
            store::read_parts(&mut reader, u64::MAX, |part| encoder.write(part).map_err(failed))?;
            encoder.finish().map_err(failed)?;
            self.out.line("")?;
        }
        Ok(())
    }

    fn begin_entry(&mut self, key: &[u8]) -> Result {
        self.end.entries += 1;
        let written = self.out.write_all(&dump::key(key)).and_then(|()| self.out.write_all(b"\t"));
        written.map_err(|error| Failure::output(&error))
    }

    fn entry(&mut self, key: &[u8], value: &[u8]) -> Result {
        self.begin_entry(key)?;
        self.out.write_all(&Form::Escaped.encode(value)).map_err(|error| Failure::output(&error))?;
        self.out.line("")
    }

    fn finish(mut self, general: &General) -> Result {
        self.out.line(self.end)?;
        self.out.finish()?;
        let EndLine { tables, entries } = self.end;
        let entries = size::counted(entries, "entry", "entries");
        general.remark(format_args!("dumped {entries} of {}", size::counted(tables, "table", "tables")));
        Ok(())
    }

    /// Dumps what is left of a damaged database.
    fn salvaged(mut self, arguments: &Arguments, general: &General) -> Result {
        let salvage = salvage::open(&arguments.store)?;
        let losses = salvage::losses(&salvage);
        let (tables, _) = salvage.tables();
        let missing: Vec<&String> = arguments.tables.iter().filter(|name| !tables.contains(name)).collect();
        if let Some(name) = missing.first().filter(|_| losses.is_empty()) {
            return Err(salvage::missing(&salvage, name, &losses));
        }
        let mut lost = 0;
        let mut tell = |message: String| {
            lost += 1;
            remark(false, format_args!("lost: {message}"));
        };
        losses.into_iter().for_each(&mut tell);
        missing.iter().for_each(|name| tell(format!("the table {}, which was not found", named(name))));
        let nameless: Vec<&str> = salvage.nameless().collect();
        let described = salvage.described();
        self.out.line(FIRST)?;
        for name in tables.iter().filter(|name| arguments.wants(name)) {
            let known = described.iter().find(|table| table.name == *name);
            // That of tables without names has been told.
            if known.is_none() && !nameless.contains(&name.as_str()) {
                tell(format!(
                    "table {}: its types, and whether it keeps versions; it is dumped as one from bytes to bytes that does",
                    named(name)
                ));
            }
            self.begin_table(&salvaged_table(name, known))?;
            self.salvaged_entries(&salvage, name, &mut tell)?;
        }
        if arguments.tables.is_empty() {
            for heap in salvage.heaps() {
                remark(
                    false,
                    format_args!("left out: the heap of objects {}, which a dump cannot hold", named(&heap)),
                );
            }
        }
        let damaged = "the database is damaged; all that was found of it was dumped";
        let judgement = if lost == 0 { Ok(()) } else { Err(Failure::new(Code::Damaged, damaged)) };
        verdict(self.finish(general), judgement)
    }

    fn salvaged_entries(&mut self, salvage: &Salvage, name: &str, tell: &mut dyn FnMut(String)) -> Result {
        let mut failure = None;
        let walked = salvage.table(name, |piece| {
            let (after, upto, error) = match piece {
                Piece::Entry { key, value } => {
                    // If the output cannot be written, stop.
                    return self.entry(key, value).map_err(|error| {
                        failure = Some(error);
                        vellum::Error::Ended
                    });
                }
                Piece::LostValue { key, error } => (Some(key), Some(key), error),
                Piece::LostRange { after, upto, error } => (after, upto, error),
                _ => return Ok(()),
            };
            let place = salvage::place(Some(name), after.map(escaped), upto.map(escaped));
            tell(format!("{place}: {error}"));
            Ok(())
        });
        if let Some(failure) = failure {
            return Err(failure);
        }
        // The other tables may be intact.
        walked.unwrap_or_else(|error| tell(format!("{}: {error}", salvage::place(Some(name), None, None))));
        Ok(())
    }
}

/// The line of a table; of one that is not known any more, that of a table of bytes.
fn salvaged_table(name: &str, known: Option<&TableInformation>) -> TableLine {
    let bytes = || ("bytes".to_owned(), "bytes".to_owned());
    let types = known.map_or_else(bytes, |table| (table.key_type.clone(), table.value_type.clone()));
    TableLine { name: name.to_owned(), types, is_plain: known.is_some_and(|table| table.is_plain) }
}
