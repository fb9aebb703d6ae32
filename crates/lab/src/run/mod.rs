//! The runs: each engine in a process of its own, so that its memory and its I/O are its alone, but all in one run, in turn.
//!
//! - [`coordinator`], [`protocol`], [`session`], [`worker`], [`record_worker`]: the parent, what it and its workers say to
//!   each other, and the workers;
//! - [`held_snapshot`], [`writing`]: what some of them do beside their workload, and what all of them count;
//! - [`kills`]: TPC-C whose process is killed; [`recovery`]: how long it takes to open what a killed process has left;
//! - [`oo7`]: OO7, on what keeps objects; [`limited_oo7`]: the same in processes whose memory the kernel limits;
//! - [`device`]: the runs without an engine; [`records`]: those on single durable records; [`ycsb`]: YCSB, on engines of both
//!   kinds.

pub mod coordinator;
pub mod device;
mod held_snapshot;
pub mod kills;
pub mod limited_oo7;
pub mod oo7;
pub mod protocol;
mod record_worker;
pub mod records;
pub mod recovery;
mod session;
pub mod worker;
mod writing;
pub mod ycsb;
