//! A value that an operation found.

use std::ops::Deref;
use vellum_pool::{Pager, SharedPage};

/// A value, as one slice: a copy if it is small, the pages themselves if it is large.
///
/// A large value stays latched, and in memory, as long as this lives: drop it soon. An operation that replaces or
/// removes the value meanwhile, even on the same thread, does not wait: its space is freed later.
pub struct Value<'p, P: Pager + 'p>(pub(crate) Held<'p, P>);

pub(crate) enum Held<'p, P: Pager + 'p> {
    Copy(Vec<u8>),
    Blob { guard: P::Shared<'p>, length: usize },
}

impl<P: Pager> Value<'_, P> {
    /// The value as a vector; copies a large one.
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            Held::Copy(bytes) => bytes,
            blob @ Held::Blob { .. } => Value(blob).to_vec(),
        }
    }

    /// Whether this is a large value, which is read in place.
    pub fn is_in_place(&self) -> bool {
        matches!(self.0, Held::Blob { .. })
    }
}

impl<P: Pager> Deref for Value<'_, P> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Held::Copy(bytes) => bytes,
            Held::Blob { guard, length } => {
                let start = vellum_base::HEADER_BYTES;
                guard.page().get(start..start + length).unwrap_or_default()
            }
        }
    }
}

impl<P: Pager> std::fmt::Debug for Value<'_, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = if self.is_in_place() { "in place" } else { "copied" };
        write!(f, "{} bytes, {place}", self.len())
    }
}
