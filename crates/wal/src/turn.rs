//! Which thread writes, and why a log accepts nothing more.

use crate::LogError;
use std::{io, sync::Arc};

/// The turn to write.
#[derive(Default)]
pub(crate) struct Turn {
    /// Whether a thread is flushing.
    pub is_taken: bool,
    /// Why the log accepts nothing more.
    pub failure: Option<Failure>,
}

/// Why a log accepts nothing more.
#[derive(Clone)]
pub(crate) enum Failure {
    Failed(Arc<io::Error>),
    Removed,
}

impl Failure {
    pub fn error(self) -> LogError {
        match self {
            Self::Failed(source) => LogError::OutcomeUnknown { source },
            Self::Removed => LogError::Closed,
        }
    }
}
