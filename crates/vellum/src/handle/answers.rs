//! The answers of the operations of a batch.

use super::Handle;
use crate::{Result, Task, shared::Owned};
use vellum_access::{AccessError, Answer};
use vellum_pool::PoolError;

impl Handle {
    /// Passes the answer of an operation of a batch to `visit`. An operation that must be a transaction, because some
    /// have begun since the batch did, is run as one.
    // A value that was read is passed on in its parts, and everything else is in a separate function, so that this one
    // is inlined: an answer moved as a whole goes through memory, for which the processor waits.
    #[inline(always)]
    pub(crate) fn settle<T>(
        &self,
        request: (&[u8], &Task<impl AsRef<[u8]>>),
        answer: std::result::Result<Answer<'_>, AccessError>,
        visit: impl FnOnce(Result<Answer<'_>>) -> T,
    ) -> T {
        match answer {
            Ok(Answer::Value(value)) => visit(Ok(Answer::Value(value))),
            answer => self.settle_other(request, answer, visit),
        }
    }

    #[inline(never)]
    fn settle_other<T>(
        &self,
        (key, task): (&[u8], &Task<impl AsRef<[u8]>>),
        answer: std::result::Result<Answer<'_>, AccessError>,
        visit: impl FnOnce(Result<Answer<'_>>) -> T,
    ) -> T {
        match answer {
            // Or the table has been cleared.
            Err(AccessError::NeedsTransaction { .. } | AccessError::Pool(PoolError::Cancelled)) => {
                match self.perform(key, task) {
                    Ok(done) => visit(Ok(done.answer())),
                    Err(error) => visit(Err(error)),
                }
            }
            answer => match answer.map_err(|error| self.refused(error)) {
                // The pool has no room for the value: it is read past the pool.
                Err(error) if matches!(task, Task::Get) && error.is_about_room() => {
                    match self.find(|tree| self.read_whole(tree, key)) {
                        Ok(value) => visit(Ok(Owned::Value(value).answer())),
                        Err(error) => visit(Err(error)),
                    }
                }
                answer => visit(answer),
            },
        }
    }
}
