//! Requests to a file: the elements of a batch of reads and writes.

use std::io;

/// The direction of a [`Request`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// From the file to memory.
    Read,
    /// From memory to the file.
    Write,
}

/// A read or write of a batch, see [`File::run`](crate::File::run).
#[derive(Debug)]
pub struct Request {
    /// Whether to read or write.
    pub operation: Operation,
    /// Where in the file, in bytes.
    pub offset: u64,
    /// Where in memory. A write only reads from it.
    pub address: *mut u8,
    /// How much, in bytes.
    pub bytes: usize,
    /// The result. Meaningless before the request was run.
    pub result: io::Result<()>,
}

// SAFETY: a request is only a description; its address is used by the caller of `File::run`, which vouches for it.
unsafe impl Send for Request {}
// SAFETY: as above.
unsafe impl Sync for Request {}

impl Request {
    /// A request to read `bytes` bytes at `offset` to `address`.
    pub fn read(offset: u64, address: *mut u8, bytes: usize) -> Self {
        Self { operation: Operation::Read, offset, address, bytes, result: Ok(()) }
    }

    /// A request to write `bytes` bytes from `address` to `offset`.
    pub fn write(offset: u64, address: *const u8, bytes: usize) -> Self {
        Self { operation: Operation::Write, offset, address: address.cast_mut(), bytes, result: Ok(()) }
    }
}
