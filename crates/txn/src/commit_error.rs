//! Why a transaction is refused at its end.

use std::sync::Arc;
use vellum_base::PageId;
use vellum_pool::PoolError;

/// Why a transaction cannot be committed.
#[derive(Debug)]
pub enum CommitError {
    /// It is serializable, and something that it has read has been changed since.
    Invalidated {
        /// The root of the tree.
        tree: PageId,
        /// The key that was changed.
        key: Arc<[u8]>,
    },
    /// Its snapshot has been ended.
    Ended,
    /// Others' changes could not be read.
    Failed(PoolError),
}
