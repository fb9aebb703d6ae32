//! How a transaction ended, and the errors of those that miss something.

use crate::Result;

/// How a transaction ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It went through.
    Done,
    /// It was to be rolled back, and changed nothing.
    RolledBack,
    /// A delivery that found nothing to deliver in so many districts.
    Skipped(u32),
}

/// What must be there.
///
/// # Errors
/// That it is not.
#[inline]
pub fn must<T>(found: Option<T>, what: &str, key: &[u8]) -> Result<T> {
    found.ok_or_else(|| missing(what, key))
}

/// What must all be there.
///
/// # Errors
/// That one of them is not.
pub fn must_all<K: AsRef<[u8]>>(all: bool, what: &str, keys: &[K]) -> Result<()> {
    if all {
        return Ok(());
    }
    let keys: Vec<_> = keys.iter().map(AsRef::as_ref).collect();
    Err(format!("one of the {what} with the keys {keys:02x?} is missing").into())
}

#[cold]
fn missing(what: &str, key: &[u8]) -> crate::Error {
    format!("there is no {what} with the key {key:02x?}").into()
}
