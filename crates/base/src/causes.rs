//! The errors of the system among the causes of an error.

use std::{error::Error, io, iter};

/// The errors of the system among the causes of an error, the nearest first.
///
/// ```
/// use std::{error::Error, fmt, io};
///
/// #[derive(Debug)]
/// struct NotStored(io::Error);
///
/// impl fmt::Display for NotStored {
///     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
///         f.write_str("it was not stored")
///     }
/// }
///
/// impl Error for NotStored {
///     fn source(&self) -> Option<&(dyn Error + 'static)> {
///         Some(&self.0)
///     }
/// }
///
/// let error = NotStored(io::ErrorKind::StorageFull.into());
/// assert!(vellum_base::io_causes(&error).any(|cause| cause.kind() == io::ErrorKind::StorageFull));
/// ```
pub fn io_causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e io::Error> {
    let causes = iter::successors(error.source(), |cause| (*cause).source());
    causes.filter_map(|cause| cause.downcast_ref())
}
