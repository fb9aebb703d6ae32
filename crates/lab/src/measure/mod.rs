//! What is measured of a process and of the machine, and how figures are summed up.

pub mod line;
pub mod machine;
pub mod memory_limit;
pub mod statistics;
