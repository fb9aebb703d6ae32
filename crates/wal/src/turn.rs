//! Whose turn it is to write, and why a log takes nothing any more.

use crate::LogError;
use std::{io, sync::Arc};

/// Whose turn it is to write.
#[derive(Default)]
pub(crate) struct Turn {
    /// A thread is flushing.
    pub is_taken: bool,
    /// Why the log takes nothing any more.
    pub failure: Option<Failure>,
}

/// Why a log takes nothing any more.
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
