//! Files that exist only in memory and fail in every way that real ones do, from a seed.
//!
//! All layers above are tested with these files. A file keeps three things: the contents that reads see, the contents
//! that would certainly survive a crash, and the list of changes that leads from the second to the first. A sync moves
//! changes over; a crash keeps some of them.
//!
//! Faults that a caller must not notice (short transfers, interruptions) happen below the loop that all files share, so
//! that this loop is tested too. A failed sync is as bad as on Linux: some of the data that it was to make durable
//! never will be, though it can be read until the crash.
//!
//! The same calls with the same seed meet the same faults. With threads this depends on their timing; the history says
//! what happened.
//!
//! One lock guards all files of a disk; it is held for the duration of one step, and no other lock is taken meanwhile.

mod disk;
mod faults;
mod file;
mod history;
mod image;
mod queue;
mod random;
mod state;

pub use disk::SimulatedDisk;
pub use faults::{CrashModel, Faults, FileOperation, OperationCounts};
pub use file::{HeldReads, SimulatedFile};
pub use image::Image;
