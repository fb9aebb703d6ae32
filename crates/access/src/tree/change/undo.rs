//! Undoing a transaction's change of a record, wherever the record is by now.

use crate::blob::BlobReference;
use crate::error::{AccessError, damaged};
use crate::gateway::{AtomicChange, Latched, UndoChange, ValueImage};
use crate::node::{NodeFault, ValueKind};
use crate::tree::change::write::Mode;
use crate::tree::read::record::RecordLocation;
use crate::tree::{Tree, check_key};
use vellum_pool::{Interrupt, Pager};

impl<'p, P: Pager> Tree<'p, P> {
    /// Restores a record to what it was before a change, in one atomic change, whose log record says so if the tree's
    /// view has [`Writer::Undo`](crate::Writer::Undo). A large value that came with the change is freed; one that it
    /// replaced or removed is referred to again. Undoing a change twice changes nothing that is seen.
    ///
    /// # Errors
    /// As for [`insert`](Self::insert). The record then stays as it was before this call.
    pub fn undo(&self, change: UndoChange<'_>) -> Result<(), AccessError> {
        match change {
            UndoChange::Restore { key, before: None } => self.remove(key).map(drop),
            UndoChange::Restore { key, before: Some(ValueImage { kind, bytes }) } => {
                check_key(key)?;
                if kind == ValueKind::Blob
                    && let Some(reference) = BlobReference::decode(bytes)
                {
                    self.pager.note_referred_to_again(reference.extent());
                }
                self.place(key, bytes, kind, Mode::Restore).map(drop)
            }
            UndoChange::Patch { key, offset, before } => {
                check_key(key)?;
                Ok(self.pager.run(|| self.try_patch_back(key, offset.into(), before))?)
            }
        }
    }

    fn try_patch_back(&self, key: &[u8], offset: usize, before: &[u8]) -> Result<(), Interrupt> {
        let at = RecordLocation::of(self.leaf(key)?, key);
        let mut atomic = self.change(Latched::latch(at.leaf)?)?;
        let AtomicChange { pages: leaf, recording, .. } = &mut atomic;
        let value = leaf.view().value_location(at.index);
        let fits = value.kind == ValueKind::Inline && offset + before.len() <= value.length;
        if !at.found || !fits {
            return Err(damaged(leaf.id(), NodeFault::NotRecorded));
        }
        let patched = recording.patch(leaf, at.index, key, |value| {
            value.iter_mut().skip(offset).zip(before).for_each(|(byte, before)| *byte = *before);
        });
        patched.map_err(|error| damaged(leaf.id(), error))?;
        atomic.commit_by(self.recorder(), None);
        Ok(())
    }
}
