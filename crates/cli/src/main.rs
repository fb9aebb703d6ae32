//! The command line of Vellum: `vellum tour`, `import`, `load`, `get`, `put`, `delete`, `scan`, `tables`,
//! `drop-table`, `clear-table`, `rename-table`, `stat`, `verify`, `backup`, `restore`, `recover`,
//! `dump`, `compact`, `pmem`.
//!
//! [`command_line`] parses the arguments and runs the command. Each command is a module of [`commands`]; shared modules
//! are beside it: [`arguments`], [`text`] (how bytes are written and read as text), [`size`], [`store`] (how databases
//! are opened and closed), [`files`] (walking and reading what is imported), [`importer`], [`input`] (what is waited for),
//! [`salvage`] (what is left of a damaged database), [`workers`], [`progress`],
//! [`output`], [`signals`], and [`failure`] (messages and exit codes).
//!
//! Results go to standard output, everything else to standard error. No input from users, files or devices makes this
//! program panic; the exit codes are those of [`failure::Code`].
#![forbid(unsafe_code)]

mod arguments;
mod command_line;
mod commands;
mod dump;
mod failure;
mod files;
mod importer;
mod input;
mod output;
mod progress;
mod salvage;
mod signals;
mod size;
mod store;
mod text;
mod time;
mod workers;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = match command_line::parse() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    signals::survive_file_size_limit();
    match command_line::run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(arguments.general.json),
    }
}
