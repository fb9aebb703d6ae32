//! Moving exactly as many bytes as requested, with a primitive that may move fewer.
//!
//! All kinds of files share this loop, so that tests with the simulated file also hold for the others.

use std::io;
use vellum_base::PAGE_SIZE;

/// The most bytes that one call to the kernel asks for. The kernel would not do more than 2 GiB, and io_uring counts in
/// 32 bits.
pub(crate) const CALL_BYTES_MAX: usize = 1 << 30;

/// The progress of one read or write of a given length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    /// Where the next call begins, relative to the whole transfer.
    pub done: usize,
    /// The length of the whole transfer, in bytes.
    bytes: usize,
    /// Whether the next call must begin at a multiple of a page.
    direct: bool,
    write: bool,
}

impl Transfer {
    /// A transfer of `bytes` bytes that has not begun.
    pub fn new(bytes: usize, write: bool, direct: bool) -> Self {
        Self { done: 0, bytes, direct, write }
    }

    /// Whether nothing is left to do.
    pub fn is_complete(&self) -> bool {
        self.done >= self.bytes
    }

    /// How many bytes the next call should move.
    pub fn next_bytes(&self, most: usize) -> usize {
        (self.bytes - self.done).min(most)
    }

    /// Notes that the last call moved `moved` bytes.
    ///
    /// # Errors
    /// If there is no point in calling again: the file has ended, or takes no more.
    pub fn advance(&mut self, moved: usize) -> io::Result<()> {
        let reached = self.done.saturating_add(moved).min(self.bytes);
        // A direct transfer that stopped within a page is continued from the beginning of that page: the device accepts
        // nothing else, and repeating a part does no harm.
        let resume = if self.direct && reached < self.bytes { reached & !(PAGE_SIZE - 1) } else { reached };
        if resume == self.done && resume < self.bytes {
            return Err(self.stuck(reached));
        }
        self.done = resume;
        Ok(())
    }

    /// The reason why the transfer cannot go on from `reached`.
    fn stuck(&self, reached: usize) -> io::Error {
        let bytes = self.bytes;
        if self.write {
            let message = format!("only {reached} of {bytes} bytes could be written");
            io::Error::new(io::ErrorKind::WriteZero, message)
        } else {
            let message = format!("the file ends {reached} bytes into a read of {bytes} bytes");
            io::Error::new(io::ErrorKind::UnexpectedEof, message)
        }
    }
}

/// Calls `step(done, bytes)`, which moves up to `bytes` bytes from `done` on and returns how many it moved, until the
/// transfer is complete.
pub(crate) fn transfer_all(
    mut transfer: Transfer,
    mut step: impl FnMut(usize, usize) -> io::Result<usize>,
) -> io::Result<()> {
    while !transfer.is_complete() {
        match step(transfer.done, transfer.next_bytes(CALL_BYTES_MAX)) {
            Ok(moved) => transfer.advance(moved)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffered_transfer_goes_on_where_it_stopped() {
        let mut calls = Vec::new();
        let moves = [1000, 3096, 5000, 3192];
        transfer_all(Transfer::new(12288, false, false), |done, bytes| {
            calls.push((done, bytes));
            Ok(moves[calls.len() - 1])
        })
        .unwrap();
        assert_eq!(calls, [(0, 12288), (1000, 11288), (4096, 8192), (9096, 3192)]);
    }

    #[test]
    fn a_direct_transfer_goes_on_from_the_beginning_of_a_page() {
        let mut calls = Vec::new();
        let moves = [5000, 4096, 4096];
        transfer_all(Transfer::new(12288, true, true), |done, bytes| {
            calls.push((done, bytes));
            Ok(moves[calls.len() - 1])
        })
        .unwrap();
        assert_eq!(calls, [(0, 12288), (4096, 8192), (8192, 4096)]);
    }

    #[test]
    fn no_progress_is_an_error_and_not_a_loop() {
        let ended = transfer_all(Transfer::new(8192, false, false), |_, _| Ok(0)).unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
        let ended = transfer_all(Transfer::new(8192, false, true), |_, _| Ok(100)).unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
        let full = transfer_all(Transfer::new(8192, true, false), |_, _| Ok(0)).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::WriteZero);
    }

    #[test]
    fn interruptions_are_repeated_and_other_errors_are_not() {
        let mut calls = 0;
        let outcome = transfer_all(Transfer::new(4096, false, false), |_, _| {
            calls += 1;
            match calls {
                1 => Err(io::ErrorKind::Interrupted.into()),
                2 => Ok(96),
                _ => Err(io::Error::from_raw_os_error(5)),
            }
        });
        assert_eq!(outcome.unwrap_err().raw_os_error(), Some(5));
        assert_eq!(calls, 3);
    }
}
