//! Rounds in which contestants alternate, and what is printed of them.

pub mod contest;
pub mod recovery;
pub mod reporter;
