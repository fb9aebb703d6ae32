//! How far a record must have come.

/// How far a record must have come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Durability {
    /// The operating system has it: it survives the end of the process.
    Buffered,
    /// The device has it: it survives a loss of power.
    Synced,
}
