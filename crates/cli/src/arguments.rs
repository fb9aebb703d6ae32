//! What may be written on the command line, as far as commands share it.

use crate::{
    commands::{delete, get, import, load, pmem, put, scan, stat, tables, tour, verify},
    failure::Failure,
    size,
    text::Form,
};
use clap::{Parser as _, error::ErrorKind};
use std::{path::PathBuf, process::ExitCode};
use vellum::{IoEngine, Options, ReleaseMethod};

const ABOUT: &str = "\
Vellum keeps ordered tables of keys and values in one file, which may be much larger than memory.

Keys and values that are not text are written with escapes, in arguments and in results alike: \\xNN is the \
byte with these two hexadecimal digits, \\n, \\r, \\t and \\0 are what they are elsewhere, and \\\\ is a backslash. \
--hex and --raw change that. Sizes are written like 4096, 64MiB or 1GiB.";

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

/// What applies to all commands.
#[derive(clap::Args)]
pub struct General {
    /// Print JSON for programs: one object a line; errors are objects on standard error
    #[arg(long, global = true)]
    pub json: bool,
    /// Print results and errors only: no progress, no remarks
    #[arg(long, short, global = true)]
    pub quiet: bool,
}

/// The commands.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Import a directory into a new database, compare it, read it, and show figures
    Tour(tour::Arguments),
    /// Store the regular files under a directory: relative path to contents
    Import(import::Arguments),
    /// Store sorted lines of keys and values in an empty table, at once
    Load(load::Arguments),
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
    /// Show how large a database is, and how it is read and written here
    Stat(stat::Arguments),
    /// Check every page, every structure and every checksum
    Verify(verify::Arguments),
    /// Work with stores of persistent memory
    Pmem(pmem::Arguments),
}

/// Reads the command line. If it makes no sense, or asks for help, that is told, and the exit code is returned.
pub fn parse() -> Result<Arguments, ExitCode> {
    Arguments::try_parse().map_err(|error| {
        // What was understood of a command line that makes no sense is not known, so the option is looked for.
        let json = std::env::args_os().take_while(|word| word != "--").any(|word| word == "--json");
        if json && error.use_stderr() {
            return Failure::usage(message(&error)).report(true);
        }
        // With the output closed there is nobody to tell.
        let _ = error.print();
        ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
    })
}

/// What is wrong with a command line, without the usage and the hints that follow for people.
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

/// An I/O engine that can be asked for. The simulated one is for tests of the library.
fn io_engine(name: &str) -> Result<IoEngine, String> {
    match name.parse() {
        Ok(engine) if engine != IoEngine::Simulated => Ok(engine),
        _ => Err("it is not an I/O engine; use one of: io_uring, pread".to_owned()),
    }
}

/// Which database, and how it is used.
#[derive(clap::Args)]
pub struct StoreArguments {
    /// The database file
    pub database: PathBuf,
    #[command(flatten)]
    pub engine: EngineArguments,
    /// How much memory pages may take
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size::parse, allow_negative_numbers = true)]
    pub pool: u64,
}

/// How the engine uses the system.
#[derive(clap::Args)]
pub struct EngineArguments {
    /// Force a way of giving memory back to the system: process_madvise, madvise or exmap
    #[arg(long, value_name = "METHOD", help_heading = "Engine", hide_short_help = true)]
    pub release_method: Option<ReleaseMethod>,
    /// Force a way of doing I/O: io_uring or pread
    #[arg(long, value_name = "ENGINE", help_heading = "Engine", hide_short_help = true, value_parser = io_engine)]
    pub io_engine: Option<IoEngine>,
    /// Read and write through the system's page cache, instead of past it
    #[arg(long, help_heading = "Engine", hide_short_help = true)]
    pub buffered: bool,
}

impl EngineArguments {
    /// The options that they amount to.
    pub fn options(&self, pool_bytes: u64) -> Options {
        let mut options = Options::default().pool_bytes(pool_bytes);
        if let Some(method) = self.release_method {
            options = options.release_method(method);
        }
        if let Some(engine) = self.io_engine {
            options = options.io_engine(engine);
        }
        if self.buffered {
            options = options.direct_io(false);
        }
        options
    }
}

/// Which table.
#[derive(clap::Args)]
pub struct TableArguments {
    /// The table
    #[arg(long, value_name = "NAME", default_value = crate::store::DEFAULT_TABLE)]
    pub table: String,
}

/// How keys and values are written.
#[derive(clap::Args)]
pub struct FormArguments {
    /// Keys and values are hexadecimal digits, in arguments and results
    #[arg(long, conflicts_with = "raw")]
    hex: bool,
    /// Keys and values are bytes as they are, in arguments and results; a backslash is a backslash
    #[arg(long)]
    raw: bool,
}

impl FormArguments {
    /// The form that was chosen.
    pub fn form(&self) -> Form {
        match (self.hex, self.raw) {
            (true, _) => Form::Hex,
            (_, true) => Form::Raw,
            _ => Form::Escaped,
        }
    }
}
