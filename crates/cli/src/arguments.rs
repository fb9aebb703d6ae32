//! Command-line arguments that commands share.

use crate::{
    failure::{Failure, Result},
    progress, size,
    text::{Form, table_name},
};
use std::{fmt::Display, path::PathBuf};
use vellum::{Durability, IoEngine, Options, ReleaseMethod};

/// What applies to all commands.
#[derive(clap::Args)]
pub struct General {
    /// Print JSON for programs: one object a line; errors and remarks are objects on standard error
    #[arg(long, global = true)]
    pub json: bool,
    /// Print results and errors only: no progress, no remarks
    #[arg(long, short, global = true)]
    pub quiet: bool,
}

impl General {
    /// Prints a remark on standard error, unless remarks are not wanted.
    pub fn remark(&self, remark: impl Display) {
        if !self.quiet {
            self.warn(remark);
        }
    }

    /// Prints on standard error what should be known also where remarks are not wanted.
    pub fn warn(&self, warning: impl Display) {
        if self.json {
            let object = serde_json::json!({ "kind": "remark", "remark": warning.to_string() });
            progress::remark(false, object);
        } else {
            progress::remark(false, warning);
        }
    }
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
    /// How much memory the buffer pool may take
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size::parse, allow_negative_numbers = true)]
    pub pool: u64,
}

/// Which database is changed, how it is used, and where its log is archived.
#[derive(clap::Args)]
pub struct WriteArguments {
    #[command(flatten)]
    pub store: StoreArguments,
    /// Archive the log in this directory: `vellum restore --archive` follows it to any point in time
    #[arg(long, value_name = "DIR")]
    pub archive: Option<PathBuf>,
    /// End the archive that the log has so far, with the first change; with --archive, another one begins
    #[arg(long)]
    pub no_archive: bool,
}

/// How much a command changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A few records: the log is small, so that there is room for it on a disk that is almost full.
    Little,
    /// Perhaps much: the log has files of the usual size, unless the disk is almost full.
    Much,
}

impl Change {
    /// The size of each file of the log, in bytes.
    fn file_bytes(self) -> u64 {
        match self {
            Self::Little => 4 << 20,
            Self::Much => 16 << 20,
        }
    }

    /// These options, with a log whose files have this size.
    pub fn options(self, options: Options) -> Options {
        options.log_segment_bytes(self.file_bytes()).log_buffer_bytes(self.file_bytes())
    }

    /// The room that the log takes while the database is open, in bytes: two segments and the file of its buffer. A log that
    /// is there goes on in segments of the size that it has.
    pub fn log_bytes(self, existing_segment_bytes: Option<u64>) -> u64 {
        2 * existing_segment_bytes.unwrap_or(self.file_bytes()) + self.file_bytes()
    }
}

impl WriteArguments {
    /// The options to open the database with.
    pub fn options(&self, change: Change) -> Options {
        let options = change.options(self.store.engine.options(self.store.pool));
        let options = options.end_log_archive(self.no_archive);
        match &self.archive {
            Some(directory) => options.log_archive(directory),
            None => options,
        }
    }
}

/// How the engine uses the system.
#[derive(clap::Args)]
pub struct EngineArguments {
    /// Force how memory is given back to the system: process_madvise, madvise or exmap
    #[arg(long, value_name = "METHOD", help_heading = "Engine", hide_short_help = true)]
    pub release_method: Option<ReleaseMethod>,
    /// Force how files are read and written: io_uring or pread
    #[arg(long, value_name = "ENGINE", help_heading = "Engine", hide_short_help = true, value_parser = io_engine)]
    pub io_engine: Option<IoEngine>,
    /// Read and write through the system's page cache, instead of past it
    #[arg(long, help_heading = "Engine", hide_short_help = true)]
    pub buffered: bool,
}

impl EngineArguments {
    /// The resulting options.
    pub fn options(&self, pool_bytes: u64) -> Options {
        // A command is done when it has closed the database, which makes everything durable.
        let mut options = Options::default().pool_bytes(pool_bytes).durability(Durability::Deferred);
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

/// The table that is used when none is named.
pub const DEFAULT_TABLE: &str = "main";

/// Which table.
#[derive(clap::Args)]
pub struct TableArguments {
    /// The table
    #[arg(long, value_name = "NAME", default_value = DEFAULT_TABLE, value_parser = table_name)]
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
    /// The form in which results are printed.
    ///
    /// # Errors
    /// If results are JSON, which cannot hold bytes as they are.
    pub fn form(&self, general: &General) -> Result<Form> {
        if general.json && self.raw {
            return Err(Failure::usage(
                "--json and --raw exclude each other: JSON cannot hold any bytes; --hex can be used with --json",
            ));
        }
        Ok(self.input_form())
    }

    /// The form in which only input is given, and nothing is printed.
    pub fn input_form(&self) -> Form {
        match (self.hex, self.raw) {
            (true, _) => Form::Hex,
            (_, true) => Form::Raw,
            _ => Form::Escaped,
        }
    }
}
