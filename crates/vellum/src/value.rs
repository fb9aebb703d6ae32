//! Values that were found.

use crate::{Result, nested};
use std::{
    io::{self, Read, Seek, SeekFrom},
    ops::Deref,
};
use vellum_access::BlobReader;
use vellum_pool::Pool;

/// A value as one slice: a copy if it is small, the pages themselves if it is large.
///
/// A large value stays in memory, latched, while this exists, and its space is not reused until then if it is replaced:
/// drop this soon.
#[derive(Debug)]
pub struct Value<'t>(pub(crate) vellum_access::Value<'t, Pool>);

impl Value<'_> {
    /// The value as a vector; copies a large one.
    pub fn into_vec(self) -> Vec<u8> {
        self.0.into_vec()
    }

    /// Whether the value is read in place, without a copy.
    pub fn is_in_place(&self) -> bool {
        self.0.is_in_place()
    }
}

impl Deref for Value<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Value<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Reads a value in parts, whatever its size; implements [`Read`] and [`Seek`].
///
/// Only the requested parts are read from storage, 64 KiB at a time, and each is checked. If the value is replaced or
/// removed meanwhile, the next read fails: a reader never mixes two values.
pub struct ValueReader<'t> {
    source: Source<'t>,
    position: u64,
}

enum Source<'t> {
    Small(Vec<u8>),
    Large(Box<BlobReader<'t, Pool>>, &'t Pool),
}

impl<'t> ValueReader<'t> {
    pub(crate) fn small(value: Vec<u8>) -> Self {
        Self { source: Source::Small(value), position: 0 }
    }

    pub(crate) fn large(reader: BlobReader<'t, Pool>, pool: &'t Pool) -> Self {
        Self { source: Source::Large(Box::new(reader), pool), position: 0 }
    }

    /// The length of the value in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a length in bytes, not a collection")]
    pub fn len(&self) -> u64 {
        match &self.source {
            Source::Small(value) => value.len() as u64,
            Source::Large(reader, _) => reader.length(),
        }
    }

    /// Reads bytes from `offset` on into `buffer`, and returns how many: fewer than the buffer holds only at the end.
    ///
    /// # Errors
    /// If the value has changed, cannot be read, or is damaged.
    pub fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        match &mut self.source {
            Source::Large(reader, pool) => {
                nested::check(pool);
                Ok(reader.read_at(offset, buffer)?)
            }
            Source::Small(value) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(value.len());
                let mut rest = value.get(start..).unwrap_or_default();
                Ok(rest.read(buffer).unwrap_or(0))
            }
        }
    }
}

impl Read for ValueReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let done = self.read_at(self.position, buffer).map_err(io::Error::other)?;
        self.position += done as u64;
        Ok(done)
    }
}

impl Seek for ValueReader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(offset) => self.len().checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        let before = || io::Error::new(io::ErrorKind::InvalidInput, "a position before the beginning");
        self.position = position.ok_or_else(before)?;
        Ok(self.position)
    }
}

impl std::fmt::Debug for ValueReader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "reader at {} of {} bytes", self.position, self.len())
    }
}
