//! From the names of engines that keep single records to their types.

use super::dashmap::Dash;
use super::papaya::Papaya;
use super::pmem::Pmem;
use super::records::RecordEngine;
#[cfg(feature = "rocksdb")]
use super::rocksdb_records::Rocks;
use crate::Result;
use crate::config::RecordEngineName;
use vellum_pmem::{Fixed, Variable};

/// What is done with an engine whose type is known by its name and the sizes of its records.
pub trait WithRecordEngine {
    /// What comes of it.
    type Output;

    /// Does it.
    fn with<E: RecordEngine + 'static>(self) -> Self::Output;
}

/// Does something with the engine that has this name, for keys and values of these sizes.
///
/// # Errors
/// If the engine needs sizes that are built in, and these are not.
pub fn with_engine<W: WithRecordEngine>(
    engine: RecordEngineName,
    key_bytes: usize,
    value_bytes: usize,
    what: W,
) -> Result<W::Output> {
    use RecordEngineName as Name;
    Ok(match (engine, (key_bytes, value_bytes)) {
        (Name::Pmem, (8, 8)) => what.with::<Pmem<Fixed<8, 8>>>(),
        (Name::Pmem, (8, 200)) => what.with::<Pmem<Fixed<8, 200>>>(),
        (Name::Pmem, (8, 1000)) => what.with::<Pmem<Fixed<8, 1000>>>(),
        (Name::Pmem, (16, 200)) => what.with::<Pmem<Fixed<16, 200>>>(),
        (Name::Pmem, (16, 1000)) => what.with::<Pmem<Fixed<16, 1000>>>(),
        (Name::Pmem | Name::PmemVariable, _) => what.with::<Pmem<Variable>>(),
        (Name::Dashmap, (8, 8)) => what.with::<Dash<8, 8>>(),
        (Name::Dashmap, (8, 200)) => what.with::<Dash<8, 200>>(),
        (Name::Dashmap, (8, 1000)) => what.with::<Dash<8, 1000>>(),
        (Name::Dashmap, (16, 200)) => what.with::<Dash<16, 200>>(),
        (Name::Dashmap, (16, 1000)) => what.with::<Dash<16, 1000>>(),
        (Name::Papaya, (8, 8)) => what.with::<Papaya<8, 8>>(),
        (Name::Papaya, (8, 200)) => what.with::<Papaya<8, 200>>(),
        (Name::Papaya, (8, 1000)) => what.with::<Papaya<8, 1000>>(),
        (Name::Papaya, (16, 200)) => what.with::<Papaya<16, 200>>(),
        (Name::Papaya, (16, 1000)) => what.with::<Papaya<16, 1000>>(),
        (Name::Dashmap | Name::Papaya, _) => {
            return Err(format!(
                "hash tables are built for some sizes only, and not for keys of {key_bytes} and values of \
                 {value_bytes} bytes; use --key-bytes 8 or 16 with --value-bytes 200 or 1000, or 8 with 8"
            )
            .into());
        }
        #[cfg(feature = "rocksdb")]
        (Name::Rocksdb, _) => what.with::<Rocks>(),
    })
}
