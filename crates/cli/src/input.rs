//! Input that may be long in coming: from a file, a pipe or a terminal.

use crate::signals;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use std::{
    fs::File,
    io::{self, BufReader, Read},
    os::fd::AsFd as _,
};

/// How much is read at once, in bytes.
const BUFFER_BYTES: usize = 1 << 20;
/// How long the system waits for input before signals are checked again. A signal ends the wait by itself, unless it
/// comes just before.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// A reader that fails when a signal has arrived, also while it waits for input.
pub struct Input(File);

impl Input {
    /// Standard input. Nothing else may read it.
    pub fn standard() -> io::Result<BufReader<Self>> {
        Ok(Self::of(File::from(io::stdin().as_fd().try_clone_to_owned()?)))
    }

    /// A file.
    pub fn of(file: File) -> BufReader<Self> {
        BufReader::with_capacity(BUFFER_BYTES, Self(file))
    }

    /// Waits until there is something to be read, or the end.
    fn wait(&self) -> io::Result<()> {
        loop {
            if signals::interrupted() {
                return Err(io::Error::other("interrupted"));
            }
            match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&WAIT)) {
                Ok(0) | Err(Errno::INTR) => {}
                // What cannot be waited for is read at once.
                Ok(_) | Err(_) => return Ok(()),
            }
        }
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.wait()?;
            match self.0.read(buffer) {
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                done => return done,
            }
        }
    }
}
