//! The command line as a whole: the list of commands, parsing, and running them.

use crate::{
    arguments::General,
    commands::{
        backup, compact, delete, dump, get, import, load, pmem, put, recover, restore, scan, stat, table,
        tables, tour, verify,
    },
    failure::{Failure, Result},
};
use clap::{Parser as _, error::ErrorKind};
use std::process::ExitCode;

const ABOUT: &str = "\
Vellum keeps ordered tables of keys and values in one file, which may be much larger than memory.

Keys and values that are not text are written with escapes, in arguments and in results alike: \\xNN is the \
byte with these two hexadecimal digits, \\n, \\r, \\t and \\0 are what they are elsewhere, and \\\\ is a backslash. \
--hex and --raw change that. Names of tables are always written so. Sizes are written like 4096, 64MiB or 1GiB.";

const EXIT_CODES: &str = "\
Exit codes:
    0  done
    1  the answer is no: there is no such key, or no such table
    2  the command makes no sense as it was given
    3  the database is damaged, was not closed cleanly, or is not a database of Vellum
    4  another process is using the database
    5  no room: the disk, the file size limit, memory or the pool is full
    6  a file cannot be found, opened, read or written
  130  interrupted by Ctrl-C or a request to terminate

Examples:
  vellum tour                                     import /usr/share, compare it, and show figures
  vellum import data.vellum ./documents           store a directory tree
  vellum get data.vellum letters/1.txt            print a value
  vellum scan data.vellum --prefix letters/       list keys and values
  vellum verify data.vellum                       check every page
  vellum dump data.vellum > data.dump             write all of it as text, for `vellum load --dump`
  vellum backup data.vellum monday.backup         copy the database while nobody changes it
  vellum restore monday.backup restored.vellum    and make a database of the copy
  vellum help import                              all about a command";

/// Everything.
#[derive(clap::Parser)]
#[command(name = "vellum", version, about = "Work with databases of Vellum", long_about = ABOUT)]
#[command(after_help = EXIT_CODES)]
pub struct Arguments {
    /// What applies to all commands.
    #[command(flatten)]
    pub general: General,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Import a directory into a new database, compare it, read it, and show figures
    Tour(tour::Arguments),
    /// Store the regular files under a directory: relative path to contents
    Import(import::Arguments),
    /// Store sorted lines of keys and values in an empty table, at once; or the tables of a dump
    Load(load::Arguments),
    /// Print a whole database as text, for `load --dump`
    Dump(dump::Arguments),
    /// Print the value of a key
    Get(get::Arguments),
    /// Store a value under a key
    Put(put::Arguments),
    /// Remove a key and its value
    Delete(delete::Arguments),
    /// List the entries of a table, or of a range of keys
    Scan(scan::Arguments),
    /// List the tables
    Tables(tables::Arguments),
    /// Remove a table and all its entries
    DropTable(table::DropArguments),
    /// Remove all entries of a table
    ClearTable(table::ClearArguments),
    /// Give a table another name
    RenameTable(table::RenameArguments),
    /// Show how large a database is, and how it is read and written here
    Stat(stat::Arguments),
    /// Check every page, every structure and every checksum
    Verify(verify::Arguments),
    /// Copy a database to one file, or what has changed since another copy
    Backup(backup::Arguments),
    /// Make a database of a backup and its increments
    Restore(restore::Arguments),
    /// Make the file shorter after much was removed
    Compact(compact::Arguments),
    /// Bring a database up to date that was not closed, or tell what is damaged
    Recover(recover::Arguments),
    /// Work with stores of persistent memory
    Pmem(pmem::Arguments),
}

/// Parses the command line. If it is invalid, or asks for help, that is reported, and the exit code is returned.
pub fn parse() -> std::result::Result<Arguments, ExitCode> {
    Arguments::try_parse().map_err(|error| {
        // Nothing is known of an invalid command line, so the option is searched for.
        let json = std::env::args_os().take_while(|word| word != "--").any(|word| word == "--json");
        if json && error.use_stderr() {
            return Failure::usage(message(&error)).report(true);
        }
        if let Err(failed) = error.print()
            && !error.use_stderr()
        {
            return Failure::output(&failed).report(json);
        }
        ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
    })
}

/// The error in a command line, without the usage and the hints that follow for people.
fn message(error: &clap::Error) -> String {
    let kind = error.kind();
    if matches!(kind, ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand) {
        return "a command is missing; `vellum help` lists them".to_owned();
    }
    let text = error.render().to_string();
    let text = text.split("\n\nUsage:").next().unwrap_or_default();
    let text = text.split("\n\nFor more information").next().unwrap_or_default();
    text.strip_prefix("error: ").unwrap_or(text).trim().to_owned()
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result {
    let general = &arguments.general;
    match &arguments.command {
        Command::Tour(command) => tour::run(command, general),
        Command::Import(command) => import::run(command, general),
        Command::Load(command) => load::run(command, general),
        Command::Dump(command) => dump::run(command, general),
        Command::Get(command) => get::run(command, general),
        Command::Put(command) => put::run(command, general),
        Command::Delete(command) => delete::run(command, general),
        Command::Scan(command) => scan::run(command, general),
        Command::Tables(command) => tables::run(command, general),
        Command::DropTable(command) => table::drop(command, general),
        Command::ClearTable(command) => table::clear(command, general),
        Command::RenameTable(command) => table::rename(command, general),
        Command::Stat(command) => stat::run(command, general),
        Command::Verify(command) => verify::run(command, general),
        Command::Backup(command) => backup::run(command, general),
        Command::Restore(command) => restore::run(command, general),
        Command::Compact(command) => compact::run(command, general),
        Command::Recover(command) => recover::run(command, general),
        Command::Pmem(command) => pmem::run(command, general),
    }
}
