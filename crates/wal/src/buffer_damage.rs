//! What may be wrong with the file of the buffer that a process has left.

use std::fmt;

/// What is wrong with the file of the buffer that the process before has left, beyond what a crash leaves of it. All that was
/// durable is in segments; what was `Buffered` and not durable may be lost with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BufferDamage {
    /// What is wrong.
    pub flaw: BufferFlaw,
    /// How many bytes of log were taken from it all the same.
    pub bytes_taken: u64,
}

/// See [`BufferDamage`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BufferFlaw {
    /// Its first page is damaged.
    Header,
    /// It is shorter than its first page says.
    Size,
    /// It belongs to another database.
    Foreign,
    /// It belongs to a later part of the log, which is not there.
    Later,
}

impl fmt::Display for BufferDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.flaw {
            BufferFlaw::Header => "the first page of the buffer of the log is damaged",
            BufferFlaw::Size => "the buffer of the log is shorter than it was",
            BufferFlaw::Foreign => "the buffer of the log belongs to another database",
            BufferFlaw::Later => {
                "the buffer of the log belongs to a later part of the log, which is not there"
            }
        })?;
        let lost = "commits that were Buffered and not yet durable may be lost";
        match self.bytes_taken {
            0 => write!(f, ": nothing could be taken from it, and {lost}"),
            bytes => write!(f, ": {bytes} bytes of log were taken from it all the same; later {lost}"),
        }
    }
}
