//! Under construction.

pub mod node;
