//! The commands, one module each: their arguments, and what they do.

pub mod delete;
pub mod get;
pub mod import;
pub mod load;
pub mod pmem;
pub mod put;
pub mod scan;
pub mod stat;
pub mod tables;
pub mod tour;
pub mod verify;

use crate::{
    arguments::{Arguments, Command},
    failure::Result,
};

/// Does what was asked.
pub fn run(arguments: &Arguments) -> Result {
    let general = &arguments.general;
    match &arguments.command {
        Command::Tour(command) => tour::run(command, general),
        Command::Import(command) => import::run(command, general),
        Command::Load(command) => load::run(command, general),
        Command::Get(command) => get::run(command, general),
        Command::Put(command) => put::run(command, general),
        Command::Delete(command) => delete::run(command, general),
        Command::Scan(command) => scan::run(command, general),
        Command::Tables(command) => tables::run(command, general),
        Command::Stat(command) => stat::run(command, general),
        Command::Verify(command) => verify::run(command, general),
        Command::Pmem(command) => pmem::run(command, general),
    }
}
