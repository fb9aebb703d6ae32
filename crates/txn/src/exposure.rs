//! Where others find what a transaction has changed.

/// Where others find what a transaction has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Exposure {
    /// Nowhere: its transaction is alone.
    Private,
    /// In its [undo buffer](crate::undo_buffers), which has this slot.
    Searched(usize),
    /// In the table of versions.
    #[default]
    Entered,
}

impl Exposure {
    /// The slot of its undo buffer, if that is searched.
    pub fn slot(self) -> Option<usize> {
        match self {
            Self::Searched(slot) => Some(slot),
            _ => None,
        }
    }
}
